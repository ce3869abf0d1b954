"""The engine scenarios, on the built-in worker and on Temporal, while workers die and Temporal is killed."""

import asyncio
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from limpet.engines.scenarios import EngineHarness, Scenario, scenarios
from tests.engines.fleets import Faults, fork_worker, worker_command
from tests.engines.workflows import check_workflows
from tests.servers.temporal import TemporalServer

# Those that have workers killed in every run of the tests.
THREE = ("ask", "call", "steps")
HEARTBEAT = "1s"
WORKERS = 3
long = pytest.mark.skipif('not config.getoption("--full")', reason="runs with --full")
short = pytest.mark.skipif('config.getoption("--full")', reason="a longer test does the same")
Processes = partial(EngineHarness, workers=WORKERS, spawn=fork_worker)


@pytest.mark.parametrize("scenario", scenarios(processes=False), ids=str)
async def test_the_builtin_worker_plays_the_scenario(scenario: Scenario, tmp_path: Path) -> None:
    """Without kills, on SQLite, in one process."""
    with EngineHarness(store=f"sqlite:///{tmp_path / 'limpet.db'}", ledger=tmp_path, patience=60) as harness:
        assert await scenario.run(harness)


@long
async def test_the_builtin_worker_plays_all_scenarios_while_workers_die(postgres_schema: str, tmp_path: Path) -> None:
    """With processes that die before and after each effect, on PostgreSQL."""
    worker = worker_command(postgres_schema, None)
    with Processes(store=postgres_schema, worker=worker, ledger=tmp_path, kills="every step") as harness:
        for scenario in scenarios():
            await scenario.run(harness)
            print(f"{scenario}: {harness.fleet.deaths} deaths of workers")


@short
async def test_temporal_plays_three_scenarios_while_workers_die(
    postgres_schema: str, temporal: TemporalServer, tmp_path: Path
) -> None:
    """At the same time, with processes that die before and after the first effect of each."""
    engine, played = temporal.url(HEARTBEAT), [each for each in scenarios() if each.name in THREE]
    worker = worker_command(postgres_schema, engine)
    with Processes(store=postgres_schema, engine=engine, worker=worker, ledger=tmp_path, kills="first step") as harness:
        runs = await asyncio.gather(*(each.run(harness) for each in played))
        assert harness.fleet.deaths
        await check_workflows(temporal, chain(*runs))


@long
async def test_temporal_plays_all_scenarios_while_workers_die_and_the_server_is_killed(
    postgres_schema: str, temporal: TemporalServer, tmp_path: Path
) -> None:
    """With processes that die before and after each effect, and a server that is killed every few seconds."""
    engine, runs = temporal.url(HEARTBEAT), []
    worker = worker_command(postgres_schema, engine)
    with Processes(store=postgres_schema, engine=engine, worker=worker, ledger=tmp_path, kills="every step") as harness:
        with Faults(temporal) as faults:
            for scenario in scenarios():
                runs += await scenario.run(harness)
                print(f"{scenario}: {harness.fleet.deaths} deaths of workers, {faults.outages} of the server")
        await check_workflows(temporal, runs)
