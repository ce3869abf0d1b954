"""Runs on two workers and a Temporal server that are killed, stalled and stopped at random moments.

An outside service counts the effects. `LIMPET_SEED=7` selects what happens when.
"""

import os
import random  # noqa: TID251 - what happens when
import signal
from collections import Counter
from contextlib import ExitStack

import pytest
from temporalio.client import WorkflowExecutionStatus as Status

import limpet
from limpet.clock import SECOND
from tests.crash.counting_service import Service
from tests.temporal.chaos_agents import PORT, agents, trader
from tests.temporal.temporal_world import TemporalWorld, WorkerProcess

pytestmark = pytest.mark.long


WAYS = ("free", "ask", "sleep", "hear", "call")
# What happens between two batches of runs.
BLOWS = ("kill", "kill", "stop", "stall", "server", "server", "terminate", "nothing")
RUNS, BATCH = 500, 10
TARGET = "tests.temporal.chaos_agents:agents"
ENDED = ("completed", "failed", "cancelled")


class Fleet:
    """Two worker processes that are replaced when they end."""

    def __init__(self, world: TemporalWorld, stack: ExitStack) -> None:
        self._world, self._stack = world, stack
        self.workers = [self._start(), self._start()]

    def _start(self) -> WorkerProcess:
        found: WorkerProcess = self._stack.enter_context(self._world.worker(TARGET, "--grace", "5s", lease="2s"))
        return found

    def replace(self, place: int) -> None:
        """Start another worker instead of one that has ended."""
        self.workers[place] = self._start()


async def strike(world: TemporalWorld, fleet: Fleet, blow: str, chance: random.Random, runs: list[str]) -> None:
    """Do something to a worker, to the server, or to a workflow."""
    place = chance.randrange(2)
    victim = fleet.workers[place]
    match blow:
        case "kill":
            victim.kill()
            fleet.replace(place)
        case "stop":
            victim.send(signal.SIGTERM)
            fleet.replace(place)
        case "stall":
            victim.send(signal.SIGSTOP)
            await world.clock.sleep(chance.randrange(1, 5) * SECOND)
            victim.send(signal.SIGCONT)
        case "server":
            world.server.kill()
            await world.clock.sleep(chance.randrange(0, 4 * SECOND))
            world.server.start()
        case "terminate":
            run = chance.choice(runs)
            world.server._call("workflow", "terminate", "-w", run)
        case _:
            pass


async def serve_people(app: limpet.App) -> None:
    """Answer questions, say words, and resume runs that wait for an operator."""
    for request in await app.inbox():
        await app.answer(request.id, True, by="ann")
    for info in await app.runs(status="waiting", last=1000):
        waits = [str(each) for each in info.waits_for]
        if "signal:word" in waits:
            await app.signal(info.id, "word", "hello", command_id=f"word-{info.id}")
        if any(each.startswith("operator:") for each in waits):
            await app.resume(info.id)


async def test_no_effect_is_lost_or_doubled(world: TemporalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(int(os.environ.get("LIMPET_SEED", "1")))
    with Service() as service, ExitStack() as stack:
        monkeypatch.setenv(PORT, str(service.server_port))
        fleet = Fleet(world, stack)
        sender = await stack_app(world, knows_engine=True)
        outsider = await stack_app(world, knows_engine=False)
        runs: list[str] = []
        blows: Counter[str] = Counter()
        try:
            while len(runs) < RUNS:
                for _ in range(BATCH):
                    run = f"chaos-{len(runs)}"
                    await sender.start(trader, chance.choice(WAYS), id=run)
                    runs.append(run)
                await serve_people(chance.choice((sender, outsider)))
                blow = chance.choice(BLOWS)
                blows[blow] += 1
                await strike(world, fleet, blow, chance, runs)

            async def are_done() -> bool:
                await serve_people(chance.choice((sender, outsider)))
                infos = await sender.runs(last=1000)
                return all(each.status in ENDED for each in infos)

            took = await world.until(are_done, patience=300)
            print(f"{blows}; the last runs ended {took:.1f} s after the last blow")
            infos = list(await sender.runs(last=1000))
            assert Counter(each.status for each in infos) == {"completed": len(infos)}
            assert {*runs} <= {each.id for each in infos}
            for each in infos:
                executions = await world.until_closed(each.id)
                assert max(len(one.events) for one in executions) <= 200
                assert all(one.status is not Status.RUNNING for one in executions)
            assert (await sender.verify()).runs == len(infos)
        finally:
            await sender.close()
            await outsider.close()
        service.settle()
        wanted = {f"/once/{each.id}/pay" for each in infos}
        wanted |= {f"/keyed/{run}/{what}" for run in runs for what in ("begin", "end")}
        wanted |= {f"/keyed/{each.id}/cash" for each in infos if each.id not in runs}
        assert service.applied == dict.fromkeys(wanted, 1)


async def stack_app(world: TemporalWorld, *, knows_engine: bool) -> limpet.App:
    engine = world.engine() if knows_engine else None
    return await limpet.open(world.store, engine=engine, agents=agents, worker=False)
