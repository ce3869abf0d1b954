"""The engine scenarios, on the built-in worker and on Temporal, while workers die and the server of Temporal is killed."""

import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest

from limpet.engines.scenarios import EngineHarness, Scenario, scenarios
from tests.engines.fleets import Faults, worker_command
from tests.engines.workflows import check_workflows
from tests.servers.temporal import TemporalServer

THREE = ("ask", "call", "signal-from-a-run")
HEARTBEAT = "1s"


@pytest.mark.parametrize("scenario", scenarios(processes=False), ids=str)
async def test_the_builtin_worker_plays_the_scenario(scenario: Scenario, tmp_path: Path) -> None:
    """Without kills, on SQLite, in one process."""
    with EngineHarness(store=f"sqlite:///{tmp_path / 'limpet.db'}", ledger=tmp_path, patience=60) as harness:
        assert await scenario.run(harness)


async def test_the_builtin_worker_plays_scenarios_while_workers_die(
    postgres_schema: str, tmp_path: Path, full: bool
) -> None:
    """With processes that die before and after each effect, on PostgreSQL."""
    if not full:
        pytest.skip("runs with --full")
    worker = worker_command(postgres_schema, None)
    with EngineHarness(
        store=postgres_schema, worker=worker, workers=3, ledger=tmp_path, kills="every step"
    ) as harness:
        for scenario in scenarios():
            await scenario.run(harness)
            print(scenario, "passed")


async def test_temporal_plays_scenarios_while_workers_die(
    postgres_schema: str, temporal: TemporalServer, tmp_path: Path, full: bool
) -> None:
    """Three scenarios whose workers die at the first step, at the same time.

    With `--full`, all of them, one after another, whose workers die at each step, while the server is killed, too.
    """
    engine = temporal.url(HEARTBEAT)
    worker, kills = worker_command(postgres_schema, engine), "every step" if full else "first step"
    with EngineHarness(
        store=postgres_schema, engine=engine, worker=worker, workers=3, ledger=tmp_path, kills=kills
    ) as harness:
        if not full:
            played = [each for each in scenarios() if each.name in THREE]
            runs = await asyncio.gather(*(each.run(harness) for each in played))
            assert harness.fleet.deaths
            await check_workflows(temporal, sum(runs, []))
            return
        with Faults(temporal) as faults:
            runs = []
            for scenario in scenarios():
                runs.append(await scenario.run(harness))
                print(scenario, "passed:", harness.fleet.deaths, "deaths,", faults.outages, "outages")
        await check_workflows(temporal, sum(runs, []))
