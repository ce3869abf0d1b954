"""Many runs on Temporal, while workers and the server are killed: each effect happens once, and every run ends."""

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from temporalio.client import Client

import limpet
from limpet.clock import SECOND, SystemClock
from limpet.engines.scenarios import Ledger, WorkerFleet
from limpet.engines.scenarios.ledger import LEDGER
from tests.engines.fleets import Faults, fork_worker, worker_command
from tests.engines.load import EFFECTS, KINDS, load_job
from tests.engines.workflows import check_workflows, open_workflows
from tests.servers.temporal import TemporalServer

RUNS = 500
WORKERS = 3
# Seconds until all runs must have ended.
PATIENCE = 1200


async def start_runs(app: limpet.App) -> dict[str, str]:
    """Start runs of all kinds, and return their kinds by id."""
    kinds = {f"load-{number}": KINDS[number % len(KINDS)] for number in range(RUNS)}
    for run, kind in kinds.items():
        await app.start(load_job, kind, id=run)
        await SystemClock().sleep(SECOND // 20)
    return kinds


async def all_runs(app: limpet.App) -> list[limpet.RunInfo]:
    """Return all runs, also those that other runs made."""
    page = await app.runs(last=1000)
    found = list(page)
    while page.next is not None:
        page = await app.runs(last=1000, cursor=page.next)
        found += page
    return found


async def answer_all(app: limpet.App, kinds: dict[str, str]) -> None:
    """Answer each question and send each signal, until cancelled."""
    for run, kind in kinds.items():
        if kind == "signal":
            await app.signal(run, "go", 1, command_id=f"go-{run}")
    while True:
        for request in await app.inbox(limit=100):
            await app.answer(request, True, by="ann")
        await SystemClock().sleep(SECOND // 2)


async def until_ended(app: limpet.App, share: float) -> list[limpet.RunInfo]:
    """Wait until a share of the runs has ended, and return all."""
    while True:
        found = await all_runs(app)
        ended = sum(each.ended is not None for each in found)
        if ended >= share * len(found):
            return found
        await SystemClock().sleep(SECOND)


@pytest.mark.skipif('not config.getoption("--full")', reason="runs with --full")
async def test_no_effect_is_lost_or_doubled_while_workers_and_the_server_are_killed(
    postgres_schema: str, temporal: TemporalServer, tmp_path: Path
) -> None:
    """The effects of 500 runs, counted outside the store, are those that their code asked for."""
    engine, ledger = temporal.url("2s"), Ledger(tmp_path)
    worker = worker_command(postgres_schema, engine, "tests.engines.load:agents")
    fleet_of = partial(WorkerFleet, size=WORKERS, environment={LEDGER: str(tmp_path)}, spawn=fork_worker)
    async with asyncio.timeout(PATIENCE), limpet.open(postgres_schema, engine=engine, worker=False) as app:
        with fleet_of(worker, folder=tmp_path) as fleet:
            with Faults(temporal, fleet, size=WORKERS) as faults:
                kinds = await start_runs(app)
                answering = asyncio.create_task(answer_all(app, kinds))
                await until_ended(app, 0.9)
            runs = await until_ended(app, 1)
            answering.cancel()
            print(f"{len(runs)} runs, {fleet.deaths} deaths of workers, {faults.outages} outages of Temporal")
            assert Counter(each.status for each in runs) == {"completed": len(runs)}
            await check_workflows(temporal, [each.id for each in runs])
            assert not await open_workflows(await Client.connect(temporal.host))
        for each in runs:
            await app.verify(each.id)
    expected = Counter((run, label) for run, kind in kinds.items() for label in EFFECTS[kind])
    assert ledger.count("load-") == expected
