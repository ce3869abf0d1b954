"""The engine scenarios, on the built-in worker and on Temporal."""

from pathlib import Path

import pytest

from limpet.engines.scenarios import EngineHarness, Scenario, scenarios


@pytest.mark.parametrize("scenario", scenarios(processes=False), ids=str)
async def test_the_builtin_worker_plays_the_scenario(scenario: Scenario, tmp_path: Path) -> None:
    """Without kills, on SQLite, in one process."""
    with EngineHarness(store=f"sqlite:///{tmp_path / 'limpet.db'}", ledger=tmp_path, patience=60) as harness:
        assert await scenario.run(harness)
