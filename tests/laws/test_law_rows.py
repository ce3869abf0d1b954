"""Rows match the log after any sequence of operations.

A seeded walk over one memory store without threads: several workers, commands, time that passes, lost owners. After
every operation, each run's row is compared with the fold of its log, and the invariants are checked.
"""

import random  # noqa: TID251 - a seeded walk
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cache

import pytest

from limpet.errors import LimpetError
from limpet.events import AnyBody, Event, Failure, PlanItem, StatePatch, Wait, inline, verify
from limpet.events import bodies as b
from limpet.state import ENDED, RunState, fold
from limpet.stores import Inline, Missed, RequestFilter, RunRow
from limpet.stores.conformance import Harness, World
from limpet.stores.conformance.suite import Owner, asked, completed, started
from limpet.stores.memory import MemoryBackend

RUNS = ("r1", "r2", "r3")
WORKERS = ("w1", "w2")
FAILURE = Failure(type="builtins.ValueError")


class Walk:
    """One seeded walk, with its owners and counters."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.owners: list[Owner] = []
        self.commands = 0
        self.requests = 0
        self.refused: Counter[str] = Counter()

    async def step(self) -> None:
        """Do one random operation, which may be refused."""
        choices: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (2, self.create),
            (4, self.claim),
            (12, self.append),
            (6, self.tell),
            (1, self.release),
            (2, self.wait),
            (1, self.retire),
        ]
        weights = [weight for weight, _ in choices]
        [(_, action)] = self.chance.choices(choices, weights)
        try:
            await action()
        except LimpetError as error:
            self.refused[error.code] += 1

    async def create(self) -> None:
        """Create a run, which may exist already."""
        await self.world.create(self.chance.choice(RUNS), exclusive=self.chance.choice([None, "session:s"]))

    async def claim(self) -> None:
        """Claim runs for a random worker."""
        worker = self.chance.choice(WORKERS)
        await self.world.worker(worker)
        self.owners += [Owner(self.world, claimed.row) for claimed in await self.world.claim(worker, limit=2)]

    async def append(self) -> None:
        """Append events as a random owner, who may be superseded."""
        if not self.owners:
            return
        owner = self.chance.choice(self.owners)
        leg = owner.extend(*(self.owner_event() for _ in range(self.chance.randrange(1, 4))))
        done = await owner.send(leg)
        if isinstance(done, Missed) and self.chance.random() < 0.8:
            owner.head = done.events[-1].event.head

    def owner_event(self) -> AnyBody:
        """Return a random owner event."""
        number = self.chance.randrange(1, 6)
        self.requests += 1
        wake = self.world.clock.now() + self.chance.randrange(20_000_000)
        again = self.chance.choice([None, 5])
        events: list[AnyBody] = [
            started(number),
            completed(number),
            b.StepFailed(name="t", number=number, attempt=1, failure=FAILURE, retry_at=again),
            b.StepUnknown(name="t", number=number, attempt=1, reason="died"),
            b.StepResolved(name="t", number=number, attempt=1, how="verify", outcome="not_applied"),
            b.StatePatched(name="p", patch=StatePatch(goal=f"g{number}", plan=(PlanItem(item="x"),) * number)),
            b.TurnStarted(loop="turns#1", number=number),
            asked(f"q{self.requests}", expires=self.chance.choice([None, wake])),
            b.RequestExpired(request=f"q{self.requests - 1}", outcome="escalated", to=("cfo",)),
            b.RequestExpired(request=f"q{self.requests - 2}", outcome="raised"),
            b.WaitEnded(name="a", how="withdrawn", request=f"q{self.requests - 1}"),
            b.RunWaiting(waits=(Wait(what="signal", key="go"),), wake=self.chance.choice([None, wake])),
            b.RunFailed(failure=FAILURE, number=number),
        ]
        ends: list[AnyBody] = [b.RunCompleted(output=inline(1)), b.RunCancelled(reason="x")]
        return self.chance.choice(events + ends if number == 1 else events)

    async def tell(self) -> None:
        """Send a random command, sometimes twice."""
        self.commands += self.chance.random() < 0.9
        command = f"c{self.commands}"
        request = f"q{self.chance.randrange(self.requests + 1)}"
        bodies: list[AnyBody] = [
            b.SignalReceived(command=command, signal=self.chance.choice(["go", "other"]), value=inline(1)),
            b.RequestAnswered(command=command, request=request, decision="approved", by="ann"),
            b.CancelRequested(command=command, reason="x"),
            b.PauseRequested(command=command),
            b.ResumeRequested(command=command),
            b.AgentReturned(command=command, run="c", outcome="completed"),
        ]
        await self.world.store.send_commands(self.chance.choice(RUNS), self.chance.choice(bodies), actor="ann")

    async def release(self) -> None:
        """Release the run of a random owner."""
        if self.owners:
            owner = self.chance.choice(self.owners)
            await self.world.store.release(owner.run, fence=owner.fence, worker=owner.worker, reason="drain")

    async def wait(self) -> None:
        """Advance the clock, possibly past a lease."""
        self.world.advance(self.chance.choice(["1s", "5s", "11s"]))

    async def retire(self) -> None:
        """Retire a random worker."""
        await self.world.store.retire(self.chance.choice(WORKERS))

    async def check(self) -> None:
        """Check that rows, requests and counters match the logs."""
        rows = (await self.world.store.runs(limit=100)).rows
        for row in rows:
            log = await self.world.log(row.id)
            state = fold(log)
            agree(row, state, log)
            assert await self.world.store.check_rows(row.id) == []
            opened = await self.world.store.requests(RequestFilter(run=row.id))
            assert {request.id for request in opened} == {request.request for request in state.requests}
            assert {request.id: request.to for request in opened} == {each.request: each.to for each in state.requests}
        assert await self.world.store.counts() == Counter((row.agent, row.status) for row in rows)
        held = [row for row in rows if row.exclusive and row.status == "running" and not row.cancelling]
        assert len(held) <= 1


def agree(row: RunRow, state: RunState, log: list[Event]) -> None:
    """Check that a row matches the head, status, waits, owner, deaths, goal and position of its log."""
    assert verify(log) == row.head
    assert (row.status, row.fence, row.worker, row.deaths) == (state.status, state.fence, state.worker, state.deaths)
    assert row.waits == tuple(str(wait) for wait in state.waits)
    assert (row.goal, row.step, row.items) == (state.working.goal, state.position.step, state.position.items)
    assert (row.ended is not None) == (row.status in ENDED)
    assert row.ready_at is None or row.status in ("pending", "waiting")
    ends = [event.kind for event in log if event.kind in ("run.completed", "run.cancelled")]
    assert len(ends) <= 1
    assert not ends or log[-1].kind == ends[0]


@pytest.mark.parametrize("seed", range(60))
async def test_rows_match_their_logs_after_any_operations(seed: int, full: bool) -> None:
    """The test id has the failing seed."""
    async with World(Harness(backend=cache(MemoryBackend), handover=Inline)) as world:
        walk = Walk(world, seed)
        for _ in range(300 if full else 80):
            await walk.step()
            await walk.check()
        assert await world.store.count() > 0
