"""Simulations of two workers with kills, stalls past the lease, lost replies and commands, over many seeds."""

import os

import pytest

from limpet.engine.steps import steps
from limpet.engine.steps.verdict import TryAgain, judge
from tests.simulation.invariants import check_end
from tests.simulation.world import simulate

SEED = os.environ.get("LIMPET_SEED")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose 15 seeds, or 400 with --full."""
    if "seed" in metafunc.fixturenames:
        seeds = range(400 if metafunc.config.getoption("--full") else 15)
        metafunc.parametrize("seed", [int(SEED)] if SEED else seeds)


def test_invariants_hold_under_all_faults(seed: int) -> None:
    """LIMPET_SEED=n runs a single seed."""
    try:
        simulate(seed, check=check_end)
    except BaseException:
        print(f"LIMPET_SEED={seed}")
        raise


def test_the_same_seed_gives_the_same_logs() -> None:
    """A failure can be reproduced."""
    once, again = ([event.hash for event, _, _ in simulate(seed).watcher.tape] for seed in (7, 7))
    assert once == again


def test_an_unsafe_repeat_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The invariants can fail: an engine that repeats an unsafe effect is found within a few seeds."""
    monkeypatch.setattr(steps, "judge", lambda *how: TryAgain(0) if how[2] is None else judge(*how))

    def look() -> None:
        for seed in range(60):
            simulate(seed, check=check_end)

    with pytest.raises(AssertionError, match=r"^I4 "):
        look()
