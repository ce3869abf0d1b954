"""Everything that can happen to a request, in every order and every state of its run: one decision or none.

The first answer is final, and later ones get an error that names it. No effect happens twice or without approval. When
the faults stop, every run ends or waits for what its log shows. Runs about 150 orders, or all with `--full`.
"""

import os
import random  # noqa: TID251 - a seeded sample
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
EACH = -(-150 // len(GROUPS))
REACHED: dict[tuple[Kind, State], set[str]] = {}
"""Outcomes reached by each group."""


def choose(cases: list[Case], count: int) -> list[Case]:
    """Return `count` cases, chosen by the seed."""
    return random.Random(SEED).sample(cases, count)


async def run_cases(cases: list[Case], backend: Callable[[Clock], Backend], *, apart: bool) -> Counter[str]:
    """Run the cases and count their outcomes, each in its own store (`apart`) or all in one."""
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
async def test_requests_are_decided_once_in_every_order_of_events(kind: Kind, state: State, full: bool) -> None:
    """All orders with `--full`, otherwise six per kind and state."""
    cases = all_cases([(kind, state)])
    outcomes = await run_cases(cases if full else choose(cases, EACH), backend_of("memory:"), apart=True)
    REACHED[kind, state] = set(outcomes)


def test_every_listed_outcome_is_reached(full: bool) -> None:
    """Checked only with `--full`, and only if all groups ran in this process."""
    if full and len(REACHED) == len(GROUPS):
        assert set().union(*REACHED.values()) == set(OUTCOMES)


@pytest.mark.parametrize(("store", "count"), [("sqlite", 2), ("postgres", 1)])
async def test_requests_are_decided_once_in_a_database(
    store: str, count: int, full: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A few orders of every fourth kind and state, of all with `--full`, all in one store."""
    url = str(tmp_path / "orders.db") if store == "sqlite" else request.getfixturevalue("postgres_schema")
    wanted = count * 10 if full else count
    cases = [case for group in (GROUPS if full else GROUPS[::4]) for case in choose(all_cases([group]), wanted)]
    await run_cases(cases, backend_of(url), apart=False)
