"""Everything that can happen to a request, in every order and every state of its run: one decision or none.

The first answer stands, later ones are told what stands; nothing is done twice or without a grant; when the faults
stop and time passes, every run ends or waits for what its log says. Some 300 of them, or all with `--full`.
"""

import os
import random  # noqa: TID251 - which of them
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from limpet.clock import Clock
from limpet.stores import Backend
from tests.behaviour.requests.event_orders import OUTCOMES, Case, Kind, State, Trial, all_cases, backend_of

SEED = int(os.environ.get("LIMPET_SEED", "1"))
GROUPS = [*product(get_args(Kind), get_args(State))]
EACH = -(-300 // len(GROUPS))
REACHED: dict[tuple[Kind, State], set[str]] = {}
"""What came of all orders of a group."""


def some(cases: list[Case], count: int) -> list[Case]:
    """So many of them, chosen by the seed."""
    return random.Random(SEED).sample(cases, count)


async def all_hold(cases: list[Case], backend: Callable[[Clock], Backend], *, apart: bool) -> Counter[str]:
    """Try them; how they came out. Each in a store of its own, or all in one."""
    print(f"LIMPET_SEED={SEED}: {len(cases)} orders")
    outcomes: Counter[str] = Counter()
    for number, case in enumerate(cases):
        try:
            outcomes[await Trial.run(case, backend, "r1" if apart else f"r{number}")] += 1
        except BaseException:
            print(f"LIMPET_SEED={SEED}: {case}")
            raise
    print(*(f"{times:6} {outcome}" for outcome, times in outcomes.most_common()), sep="\n")
    assert set(outcomes) <= set(OUTCOMES)
    return outcomes


@pytest.mark.parametrize(("kind", "state"), GROUPS)
async def test_every_order_in_memory(kind: Kind, state: State, full: bool) -> None:
    """All of them with `--full`, else a dozen of each kind and state."""
    cases = all_cases([(kind, state)])
    outcomes = await all_hold(cases if full else some(cases, EACH), backend_of("memory:"), apart=True)
    REACHED[kind, state] = set(outcomes)


def test_every_outcome_that_has_a_name_is_reached(full: bool) -> None:
    """And others there are none."""
    if full and len(REACHED) == len(GROUPS):
        assert set().union(*REACHED.values()) == set(OUTCOMES)


@pytest.mark.parametrize(("store", "count"), [("sqlite", 2), ("postgres", 1)])
async def test_orders_in_a_database(
    store: str, count: int, full: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The same where rows are written and read: a few of each kind and state, in one store."""
    url = str(tmp_path / "orders.db") if store == "sqlite" else request.getfixturevalue("postgres_schema")
    wanted = count * 10 if full else count
    cases = [case for group in GROUPS for case in some(all_cases([group]), wanted)]
    await all_hold(cases, backend_of(url), apart=False)
