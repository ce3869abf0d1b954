"""The engine scenarios, on the built-in worker and on Temporal, while workers die and Temporal is killed."""

import asyncio
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

import limpet
from limpet.engines import Engine
from limpet.engines.scenarios import EngineHarness, scenarios
from limpet.engines.scenarios.agents import agents
from tests.behaviour.engines.test_own_engine import engine_of_the_page
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


@pytest.mark.parametrize("engine", [None, engine_of_the_page()], ids=["builtin", "own"])
async def test_a_worker_in_this_process_plays_the_scenarios(engine: Engine | None, tmp_path: Path) -> None:
    """At the same time, without kills, on SQLite."""
    store, played = f"sqlite:///{tmp_path / 'limpet.db'}", scenarios(processes=False)
    async with limpet.open(store, engine=engine, agents=agents) as app:
        with EngineHarness(store=store, app=app, ledger=tmp_path, patience=60) as harness:
            found = await asyncio.gather(*(each.run(harness) for each in played), return_exceptions=True)
    failed = [each for each in found if isinstance(each, BaseException)]
    if failed:
        raise BaseExceptionGroup("scenarios that failed", failed)


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
