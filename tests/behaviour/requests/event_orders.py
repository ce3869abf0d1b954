"""One request and everything that can happen to it, in any order, checked against the log."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, Literal, NamedTuple, get_args

from msgspec.structs import replace

import limpet
from limpet.clock import Clock, microseconds, to_microseconds
from limpet.engine.execution.views import EventView
from limpet.engine.worker.worker_settings import Worker
from limpet.ids import RandomIds
from limpet.stores import Backend
from limpet.stores.memory import MemoryBackend
from limpet.stores.postgres import PostgresBackend
from limpet.stores.sqlite import SqliteBackend
from limpet.testing.app import TestApp, TestSettings

__all__ = ["OUTCOMES", "Case", "Kind", "State", "Trial", "all_cases", "backend_of", "outcome_of", "summarize"]

Kind = Literal["ask", "approval", "escalating"]
State = Literal["pending", "running", "waiting", "parked", "paused", "cancelling", "completed", "failed", "cancelled"]
Act = Literal["ask", "answer", "second", "cancel", "expire", "kill"]
ACTS: tuple[Act, ...] = get_args(Act)
ASKED: tuple[State, ...] = ("paused", "cancelling", "completed", "failed", "cancelled")
"""States of a run in which the request is already open."""
ENDS = ("run.completed", "run.failed", "run.cancelled")
HOUR = microseconds("1h")
OUTCOMES = (
    "waits: never asked",
    "run.cancelled: never asked",
    "run.cancelled: withdrawn",
    "run.cancelled: withdrawn escalated",
    "run.cancelled: answered",
    "run.cancelled: answered escalated",
    "run.cancelled: approved",
    "run.cancelled: approved, withdrawn",
    "run.cancelled: approved, rejected",
    "run.cancelled: rejected",
    "run.cancelled: expired raised",
    "run.cancelled: expired default",
    "run.completed: answered",
    "run.completed: answered escalated",
    "run.completed: approved",
    "run.completed: approved, rejected",
    "run.completed: rejected",
    "run.completed: expired default",
    "run.failed: expired raised",
    "run.failed: approved, expired raised",
)
"""All possible outcomes: how the run ended, and how each of its requests ended. A second request exists if the first
approval was not used before it expired.
"""
# Turns of the event loop after which a run without new events is idle.
TURNS = 40


class Case(NamedTuple):
    """The kind of request, the state of the run, and the order of events."""

    kind: Kind
    state: State
    order: tuple[Act, ...]

    def __str__(self) -> str:
        return f"{self.kind}, {self.state}: {' '.join(self.order)}"


def all_cases(groups: Iterable[tuple[Kind, State]]) -> list[Case]:
    """Return every order of every selection. Escalating cases may expire twice, others may be killed twice."""
    return [Case(kind, state, order) for kind, state in groups for order in _orders_of(kind, state)]


def _orders_of(kind: Kind, state: State) -> Iterator[tuple[Act, ...]]:
    acts = tuple(act for act in ACTS if act != "ask" or state not in ASKED)
    for count in range(len(acts) + 1):
        yield from permutations(acts, count)
    again: Act = "expire" if kind == "escalating" else "kill"
    yield from (
        order for order in dict.fromkeys(permutations((*acts, again))) if order[0] == "ask" or "ask" not in acts
    )


# The agent


class Process:
    """State that the tools of this process share."""

    held: asyncio.Event
    applied: list[tuple[str, str, Any]]


@limpet.tool(effect="idempotent", name="orders_begin")
async def begin() -> None:
    Process.applied.append(("begin", limpet.idempotency_key(), None))


@limpet.tool(effect="none", name="orders_hold")
async def hold() -> None:
    await Process.held.wait()


@limpet.tool(effect="idempotent", name="orders_act")
async def act(said: Any) -> Any:
    Process.applied.append(("act", limpet.idempotency_key(), said))
    return said


@limpet.tool(effect="idempotent", risk="external_action", name="orders_pay")
async def pay(said: Any) -> Any:
    Process.applied.append(("act", limpet.idempotency_key(), said))
    return said


async def _decide(run: limpet.Run, kind: str) -> Any:
    async with run.scope("decide"):
        await run.receive("go", bool)
        if kind == "approval":
            return await run.step(pay, "approved")
        if kind == "ask":
            said: Any = "approved" if await run.ask("well?", expires="1h") else "rejected"
        else:
            said = await run.ask(
                "which?", options=["one", "two", "default"], expires="1h", escalate=["boss"], default="default"
            )
        return await run.step(act, said)


@limpet.agent(name="orders_agent", approvals=limpet.Approvals("external_action", to=["ops"], expires="1h", valid="1h"))
async def agent(run: limpet.Run, case: dict[str, Any]) -> Any:
    """Run an effect, a request and an effect, optionally beside a step that blocks."""
    await run.step(begin)
    try:
        if not case["held"]:
            return await _decide(run, case["kind"])
        return (await asyncio.gather(_decide(run, case["kind"]), run.step(hold)))[0]
    except limpet.Rejected:
        return "rejected"


# Reading the log


@dataclass
class LoggedRequest:
    """One request, as recorded in the log."""

    id: str
    expires: int
    status: str = "open"
    by: str = ""
    said: Any = None
    outcome: str = ""
    uses: int = 0


@dataclass
class LogSummary:
    """A run and its requests, as recorded in the log."""

    requests: dict[str, LoggedRequest] = field(default_factory=dict)
    granted: list[Any] = field(default_factory=list)
    """Calls that used an approval."""
    cancelled: bool = False
    end: str = ""
    output: Any = None
    failure: str = ""

    @property
    def last(self) -> LoggedRequest | None:
        """The newest request."""
        return next(reversed(self.requests.values()), None)


def summarize(log: Sequence[EventView]) -> LogSummary:
    """Read a log, and check that no decision changes."""
    found = LogSummary()
    for event in log:
        assert not found.end, f"{event.kind} after the end"
        request = found.requests.get(event.body.get("request") or event.body.get("grant") or "")
        if event.kind in _READ:
            _READ[event.kind](found, event, request)
    return found


def _open(found: LogSummary, event: EventView, _: LoggedRequest | None) -> None:
    assert found.last is None or found.last.status != "open", "two requests are open"
    found.requests[event.body["request"]] = LoggedRequest(event.body["request"], event.body["expires"])


def _answer(found: LogSummary, event: EventView, request: LoggedRequest | None) -> None:
    body = event.body
    assert request is not None
    assert request.status == "open", f"answered after it was {request.status}"
    assert to_microseconds(event.time, "time") < request.expires
    assert not found.cancelled
    request.status, request.by = body["decision"], body["by"]
    request.said = body["answer"]["json"] if body.get("answer") else body["decision"]


def _expire(_: LogSummary, event: EventView, request: LoggedRequest | None) -> None:
    assert request is not None
    assert request.status == "open", f"expired after it was {request.status}"
    assert to_microseconds(event.time, "time") >= request.expires
    request.outcome = event.body["outcome"]
    if request.outcome == "escalated":
        request.expires = event.body["expires"]
    else:
        request.status = "expired"


def _withdraw(_: LogSummary, __: EventView, request: LoggedRequest | None) -> None:
    if request is not None:
        assert request.status == "open", f"withdrawn after it was {request.status}"
        request.status = "withdrawn"


def _cancel(found: LogSummary, _: EventView, __: LoggedRequest | None) -> None:
    found.cancelled = True


def _start(found: LogSummary, event: EventView, request: LoggedRequest | None) -> None:
    """Check that an effect uses an approval, which was given in time. It may start later: `expires` limits the answer.

    A call interrupted by a crash is repeated with the same key.
    """
    if event.body.get("risk") is None:
        return
    call = (event.body["name"], event.body["args"]["json"], event.body["key"])
    if request is None:
        assert call in found.granted, "an effect without a grant"
        return
    assert request.status == "approved", f"an effect with a grant that is {request.status}"
    request.uses += 1
    assert request.uses == 1, "a grant was used twice"
    found.granted.append(call)


def _end(found: LogSummary, event: EventView, _: LoggedRequest | None) -> None:
    body = event.body
    found.end = event.kind
    found.output = body["output"]["json"] if event.kind == "run.completed" else None
    found.failure = body["failure"]["type"] if event.kind == "run.failed" else ""
    assert all(request.status != "open" for request in found.requests.values()), "the run ended with an open request"


_READ = {
    "request.opened": _open,
    "request.answered": _answer,
    "request.expired": _expire,
    "wait.ended": _withdraw,
    "step.started": _start,
    "cancel.requested": _cancel,
    **dict.fromkeys(ENDS, _end),
}


def outcome_of(found: LogSummary) -> str:
    """Describe how the run and its requests ended."""
    how = [f"{each.status}{' ' + each.outcome if each.outcome else ''}" for each in found.requests.values()]
    return f"{found.end or 'waits'}: {', '.join(how) or 'never asked'}"


def refusal_of(found: LogSummary, now: int) -> tuple[Any, ...] | None:
    """Return the error that an answer must raise now, with its fields, or None if the answer must be accepted."""
    asked = found.last
    if asked is None:
        return (limpet.NotFound, "none")
    if asked.status == "expired":
        return (limpet.Expired, asked.id, asked.expires)
    if asked.status != "open":
        by = "the run itself" if asked.status == "withdrawn" else asked.by
        return (limpet.AlreadyAnswered, asked.id, "used" if asked.uses else asked.status, by)
    if asked.expires <= now:
        return (limpet.Expired, asked.id, asked.expires)
    return (limpet.WrongState, "being cancelled") if found.cancelled else None


def fields_of(error: limpet.LimpetError) -> tuple[Any, ...]:
    """Return an error's type and fields, comparable with `refusal_of`."""
    match error:
        case limpet.NotFound():
            return (limpet.NotFound, error.id)
        case limpet.Expired():
            return (limpet.Expired, error.request, error.expired_at)
        case limpet.AlreadyAnswered():
            return (limpet.AlreadyAnswered, error.request, error.status, error.by)
        case limpet.WrongState():
            return (limpet.WrongState, error.status.partition(" and ")[2])
        case _:
            raise error


# Running a case


def backend_of(url: str) -> Callable[[Clock], Backend]:
    """Return a store whose clock a test controls and that no other process writes to."""

    class File(SqliteBackend):
        capabilities = replace(SqliteBackend.capabilities, processes=False)

    class Server(PostgresBackend):
        capabilities = replace(PostgresBackend.capabilities, processes=False)

    if url == "memory:":
        return MemoryBackend
    return lambda clock: File(url, clock) if "://" not in url else Server(url, clock)


class Trial:
    """One case, run in its own app."""

    def __init__(self, case: Case, app: TestApp, run: str) -> None:
        self.case, self.app, self.id = case, app, run
        self.outcome = ""
        self._took_cancel = False

    @classmethod
    async def run(cls, case: Case, backend: Callable[[Clock], Backend], run: str = "r1") -> str:
        """Run and check a case, and return its outcome. The store may contain other runs."""
        async with _opened(case, backend) as app:
            trial = cls(case, app, run)
            await trial.prepare()
            for each in case.order:
                await trial.do(each)
            await trial.finish()
            return trial.outcome

    async def prepare(self) -> None:
        """Bring the run into the state of the case."""
        state, app = self.case.state, self.app
        if state == "pending":
            await self._kill_worker()
        held = state in ("running", "cancelling")
        await app.start(agent, {"kind": self.case.kind, "held": held}, id=self.id)
        await self._settle()
        if state in ASKED:
            await self.do("ask")
        match state:
            case "paused":
                await app.pause(self.id)
            case "cancelling" | "cancelled":
                await self.do("cancel")
            case "completed":
                await self.do("answer")
            case "failed":
                await self.do("expire")
                await self.do("expire")
            case _:
                pass
        await self._settle()
        await self._check_state()

    async def _check_state(self) -> None:
        row, found = await self.app.store.get(self.id), await self._summary()
        wanted = {"waiting": "running", "parked": "waiting", "paused": "waiting", "cancelling": "running"}
        state = self.case.state
        if state == "failed" and self.case.kind == "escalating":
            state = "completed"  # an escalating request takes its default instead
        assert row.status == wanted.get(state, state)
        assert found.cancelled == (state in ("cancelling", "cancelled"))

    async def do(self, what: Act) -> None:
        """Perform one event of the case."""
        match what:
            case "ask":
                await self._command(lambda: self.app.signal(self.id, "go", True))
                if self.case.state == "pending":
                    await self._begin_worker()
                    await self._settle()
                    await self._kill_worker()
            case "answer" | "second":
                await self._answer(what)
            case "cancel":
                self._took_cancel |= await self._command(lambda: self.app.cancel(self.id, reason="enough"))
            case "expire":
                await self._advance(HOUR)
            case "kill":
                await self._kill()
        await self._settle()

    async def _command(self, tell: Callable[[], Any]) -> bool:
        """Send a command, and check that it is accepted unless the run has ended."""
        found = await self._summary()
        try:
            await tell()
        except limpet.WrongState:
            assert found.end
            return False
        assert not found.end
        return True

    async def _answer(self, which: Act) -> None:
        found = await self._summary()
        request = found.last.id if found.last is not None else "none"
        expected = refusal_of(found, await self.app.store.now())
        by, first = ("ann", True) if which == "answer" else ("bob", False)
        try:
            if self.case.kind == "escalating":
                await self.app.answer(request, "one" if first else "two", by=by)
            elif first:
                await self.app.approve(request, by=by)
            else:
                await self.app.reject(request, by=by, because="no")
        except limpet.LimpetError as error:
            assert fields_of(error) == expected  # noqa: PT017 - the answer may be accepted
        else:
            assert expected is None, f"the answer was accepted, expected {expected}"
            after = (await self._summary()).requests[request]
            assert (after.by, after.status != "open") == (by, True)

    async def _kill(self) -> None:
        if self.case.state == "pending":  # the worker that claims the run dies at its first commit
            self.app.crash_at("after")
            await self._begin_worker()
            await self._turn()
            await self._kill_worker()
            self.app._test_settings.faulty.faults.clear()
            self.app._test_settings.faulty.is_down = False
        else:
            await self.app.crash()

    async def finish(self) -> None:
        """End all faults, then check that the run finishes or waits with an open request."""
        Process.held.set()
        if self.app._worker_loop is None:
            await self._begin_worker()
        if self.case.state == "paused" and not (await self._summary()).end:
            await self.app.resume(self.id)
        await self._settle()
        for _ in range(3):
            await self._check_status()
            await self._advance(HOUR)
        found = await self._summary()
        self._check_end(found)
        await self.app.verify(self.id)
        assert await self.app.store.check_rows(self.id) == []
        self.outcome = outcome_of(found)

    async def _check_status(self) -> None:
        """Check that the run has ended, or waits for what the log shows."""
        found, row = await self._summary(), await self.app.store.get(self.id)
        inbox = [request.id for request in await self.app.inbox(run=self.id)]
        if found.end:
            assert (f"run.{row.status}", inbox) == (found.end, [])
            return
        is_open = found.last is not None and found.last.status == "open"
        assert inbox == ([found.last.id] if found.last is not None and is_open else [])
        if self.case.state != "waiting":
            assert row.status == "waiting"
            assert list(row.waits) == [f"person:{inbox[0]}" if inbox else "signal:go"]

    def _check_end(self, found: LogSummary) -> None:
        acted = [each for each in Process.applied if each[0] == "act"]
        begun = [each for each in Process.applied if each[0] == "begin"]
        assert len({key for _, key, _ in acted}) == len(acted) <= 1, "an effect took place twice"
        assert len({key for _, key, _ in begun}) <= 1
        assert len(begun) == 1 or "kill" in self.case.order or found.cancelled
        assert self._took_cancel == found.cancelled == (found.end == "run.cancelled")
        last = found.last
        if acted:
            assert last is not None
            assert acted[0][2] == (last.said if last.status != "expired" else "default")
        if found.cancelled:
            return
        if last is None:
            assert (found.end, acted) == ("", [])
        elif last.status == "expired" and last.outcome == "raised":
            assert (found.end, found.failure, acted) == ("run.failed", "limpet.Expired", [])
        else:
            said = "default" if last.status == "expired" else last.said
            assert (found.end, found.output) == ("run.completed", said)
            assert len(acted) == (self.case.kind != "approval" or said == "approved")

    # Controlling the worker and the clock

    async def _summary(self) -> LogSummary:
        return summarize(await self.app.log(self.id))

    async def _kill_worker(self) -> None:
        """Kill the worker and start no other."""
        if self.app._worker_loop is not None:
            await self.app._worker_loop.kill()
            self.app._worker_loop = None

    async def _begin_worker(self) -> None:
        await self.app._start_worker(self.app._test_settings.worker or Worker())

    async def _advance(self, how_long: int) -> None:
        """Advance the clock step by step; blocked tools stay blocked."""
        clock = self.app._test_settings.frozen
        target = clock.now() + how_long
        while clock.now() < target:
            due = [time for time in (clock.next_alarm, await self.app._next_wake()) if time is not None]
            clock.set(min([target, *(time for time in due if time > clock.now())]))
            await self._settle()

    async def _settle(self) -> None:
        """Run the event loop until the log no longer grows."""
        seq = -1
        while seq != (seq := (await self.app.store.get(self.id)).seq):
            if self.app._worker_loop is not None:
                self.app._worker_loop.wake()
            await self._turn()

    async def _turn(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the event loop


@asynccontextmanager
async def _opened(case: Case, backend: Callable[[Clock], Backend]) -> AsyncIterator[TestApp]:
    settings = TestSettings(backend)
    settings.ids = RandomIds(settings.clock)
    if case.state == "waiting":
        settings.linger = 100 * HOUR  # the run stays in memory
    Process.held, Process.applied = asyncio.Event(), []
    async with TestApp(settings, [agent]) as app:
        yield app
