"""Queries across all runs: decisions, errors, calls of tools, and a text search; the newest results first.

"Every refund over 100 that an agent decided this week, and why" is `app.tool_calls("refund", where=["cents>100"],
since="7d")`.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from limpet.clock import SECOND, Duration, microseconds, to_microseconds
from limpet.engine.execution.views import EventView as Shown
from limpet.engine.execution.views import Status
from limpet.errors import InvalidArgument, NotFound
from limpet.events import KINDS, AnyBody, Event, Failure, Payload
from limpet.events import bodies as b
from limpet.service.views import event_views, load_values
from limpet.service.where_conditions import Condition, all_of
from limpet.stores import Store

__all__ = ["CallInfo", "DecisionInfo", "ErrorInfo", "Queries", "check_last", "check_status"]

# Maximum difference between the clocks of the writers.
SKEW = 300 * SECOND
STEPS = ("step.started", "step.completed", "step.failed", "step.unknown", "step.resolved", "decision.made")
STARTS = ("run.created", "run.forked")
ERRORS = ("step.failed", "step.unknown", "step.resolved", "run.failed", "compensation.failed")
Handled = Literal["retried", "escalated", "failed the step", "unknown", "settled", "ended the run", "left undone"]


@dataclass(frozen=True, kw_only=True)
class DecisionInfo:
    """A decision of an agent, with its options and reason."""

    run: str
    agent: str
    seq: int
    time: int
    question: str
    chosen: Any
    options: Any
    because: str
    confidence: float | None = None


@dataclass(frozen=True, kw_only=True)
class ErrorInfo:
    """A failure, and how it was handled."""

    run: str
    agent: str
    seq: int
    time: int
    step: int | None
    name: str
    """The step's identity; the run's id, if the failure ended the run."""
    attempt: int | None
    type: str
    message: str
    handled: Handled


@dataclass(frozen=True, kw_only=True)
class CallInfo:
    """A call of a tool, and the decision before it."""

    run: str
    agent: str
    step: int
    tool: str
    kind: str
    """`tool`, `model` or `read`."""
    effect: str
    args: Any
    started: int
    status: str = "running"
    """`running`, `completed`, `failed`, `retrying` or `unknown`."""
    attempts: int = 1
    ended: int | None = None
    result: Any = None
    error: str = ""
    decision: DecisionInfo | None = None
    """The agent's last decision before the call."""


@dataclass
class _Ending:
    """The known end of a step whose start has not been read yet."""

    status: str = "running"
    attempts: int = 0
    ended: int | None = None
    result: Any = None
    error: str = ""
    seen: bool = False
    """Whether the outcome, which is the last event of a step, has been read."""


def check_last(last: object) -> None:
    """Raise InvalidArgument unless `last` is a positive integer."""
    if isinstance(last, bool) or not isinstance(last, int) or last < 1:
        raise InvalidArgument(path="last", reason=f"must be at least 1, not {last!r}")


def check_status(status: str | None) -> None:
    """Raise InvalidArgument for an unknown status, which would match no run."""
    if status not in (None, *get_args(Status)):
        raise InvalidArgument(path="status", reason=f"unknown status {status!r}; use {', '.join(get_args(Status))}")


async def _since(store: Store, since: Duration | datetime | None) -> int:
    """Return a duration before now, or a datetime, in microseconds."""
    if since is None:
        return 0
    if isinstance(since, datetime):
        return to_microseconds(since, "since")
    return await store.now() - microseconds(since)


class Queries:
    """Queries about all runs of a store: at most `last` results, not older than `since`."""

    def __init__(self, store: Store, since: int, last: int) -> None:
        self._store, self._since, self._last = store, since, last
        self._agents: dict[str, str] = {}

    @classmethod
    async def over(cls, store: Store, since: Duration | datetime | None, last: int) -> "Queries":
        """Check the arguments, and return the queries."""
        check_last(last)
        return cls(store, await _since(store, since), last)

    async def search(self, text: str, *, kind: str | None) -> list[Shown]:
        """Return events that contain a text, ignoring case."""
        kinds = [each.name for each in KINDS if kind is None or each.name == kind]
        if not kinds:
            near = ", ".join(each.name for each in KINDS if kind and kind.split(".")[0] in each.name)
            raise InvalidArgument(path="kind", reason=f"unknown kind {kind!r}{f'; similar: {near}' if near else ''}")
        wanted, found = text.casefold(), list[Shown]()
        async for page in self._pages(kinds):
            shown = await event_views(self._store, page)
            found += [each for each in shown if _contains([each.run, each.body], wanted)]
            if len(found) >= self._last:
                break
        return found[: self._last]

    async def decisions(self, *, agent: str | None, text: str) -> list[DecisionInfo]:
        """Return decisions that contain a text."""
        found: list[DecisionInfo] = []
        async for event, body in self._bodies(("decision.made",)):
            assert isinstance(body, b.DecisionMade)
            made = await self._decision(event, body)
            if (
                agent in (None, made.agent)
                and text.casefold() in f"{made.question} {made.chosen} {made.because}".casefold()
            ):
                found.append(made)
            if len(found) >= self._last:
                break
        return found

    async def errors(self, *, agent: str | None) -> list[ErrorInfo]:
        """Return failures, and how each was handled."""
        found: list[ErrorInfo] = []
        settled: set[tuple[str, int, int]] = set()
        async for event, body in self._bodies(ERRORS):  # newest first: resolutions precede unknown outcomes
            if isinstance(body, b.StepResolved) and body.outcome != "gave_up":
                settled.add((event.run, body.number, body.attempt))
            wrong, known = _failure_in(event.run, body), await self._agent(event.run)
            if wrong is not None and agent in (None, known):
                if isinstance(body, b.StepUnknown):
                    is_settled = (event.run, body.number, body.attempt) in settled
                    wrong = wrong._replace(handled="settled" if is_settled else await self._handled(event, body))
                found.append(_error(event, known, wrong))
            if len(found) >= self._last:
                break
        return found

    async def calls(self, tool: str | None, *, where: Sequence[str], agent: str | None) -> list[CallInfo]:
        """Return calls whose arguments match all conditions, each with the decision before it."""
        calls = _Calls(all_of(where))
        async for event, body in self._bodies((*STEPS, *STARTS)):
            if event.kind in STARTS:
                calls.open.pop(event.run, None)  # no decision can be earlier
            elif isinstance(body, b.DecisionMade):
                if calls.needs_decision(event.run):
                    calls.add_decision(await self._decision(event, body))
            elif isinstance(body, b.StepStarted) and body.attempt == 1 and tool in (None, body.tool):
                known, args = await self._agent(event.run), await self._args(body)
                fits = agent in (None, known) and calls.holds(args) and len(calls.found) < self._last
                if not calls.extend_found(event, body) and fits:
                    calls.add(event, body, known, args)
                calls.forget(event, body)
            else:
                calls.note(event, body)
            if len(calls.found) >= self._last and not calls.open:
                break
        return calls.found

    async def _handled(self, event: Event, unknown: b.StepUnknown) -> Handled:
        """Return how a step with an unknown outcome was handled, if it was not resolved explicitly."""
        async for later in self._store.log(event.run, after=event.seq):
            body = self._store.decode(later) if later.kind == "step.started" else None
            if isinstance(body, b.StepStarted) and body.number == unknown.number:
                return "retried"
        return "unknown"

    async def _decision(self, event: Event, body: b.DecisionMade) -> DecisionInfo:
        return DecisionInfo(
            run=event.run,
            agent=await self._agent(event.run),
            seq=event.seq,
            time=event.time,
            question=body.question,
            chosen=_plain(body.chosen),
            options=_plain(body.options),
            because=body.because,
            confidence=body.confidence,
        )

    async def _agent(self, run: str) -> str:
        """Return the agent of a run, or "" if the run was pruned since."""
        if run not in self._agents:
            try:
                self._agents[run] = (await self._store.get(run)).agent
            except NotFound:
                return ""
        return self._agents[run]

    async def _args(self, body: b.StepStarted) -> Any:
        """Return the arguments of a call, loading them from a blob if necessary."""
        try:
            return await self._store.unpack(body.args)
        except NotFound:
            return _plain(body.args)

    async def _bodies(self, kinds: Sequence[str]) -> AsyncIterator[tuple[Event, AnyBody]]:
        async for page in self._pages(kinds):
            bodies = await load_values(self._store, [self._store.decode(event) for event in page])
            for found in zip(page, bodies, strict=True):
                yield found

    async def _pages(self, kinds: Sequence[str]) -> AsyncIterator[list[Event]]:
        before: str | None = ""
        while before is not None:
            page = await self._store.recent(kinds, before=before)
            yield [event for event in page.events if event.time >= self._since]
            if page.time < self._since - SKEW:
                return
            before = page.next


class _Calls:
    """Collects calls while logs are read backwards: the end of each call is read before its start."""

    def __init__(self, holds: Condition) -> None:
        self.holds = holds
        self.found: list[CallInfo] = []
        self.open: dict[str, list[int]] = {}
        """Calls without their decision so far, by run."""
        self._endings: dict[tuple[str, int], _Ending] = {}
        self._places: dict[tuple[str, str], int] = {}
        """Indexes in `found`, by run and identity."""

    def needs_decision(self, run: str) -> bool:
        """Return whether calls of a run still need the decision before them."""
        return run in self.open

    def add_decision(self, made: DecisionInfo) -> None:
        """Add the decision to the calls after it."""
        for place in self.open.pop(made.run):
            self.found[place] = replace(self.found[place], decision=made)

    def forget(self, event: Event, body: b.StepStarted) -> None:
        """Forget the end of a step, whose start has been read."""
        self._endings.pop((event.run, body.number), None)

    def add(self, event: Event, body: b.StepStarted, agent: str, args: Any) -> None:
        """Add a call that matches."""
        end = self._endings.get((event.run, body.number), _Ending())
        self._places[event.run, body.name] = len(self.found)
        self.open.setdefault(event.run, []).append(len(self.found))
        self.found.append(
            CallInfo(
                run=event.run,
                agent=agent,
                step=body.number,
                tool=body.tool,
                kind=body.kind,
                effect=body.effect,
                args=args,
                started=event.time,
                status=end.status,
                attempts=end.attempts + 1,
                ended=end.ended,
                result=end.result,
                error=end.error,
            )
        )

    def extend_found(self, event: Event, body: b.StepStarted) -> bool:
        """Extend a call that was already found, and return whether it was: its worker died, or its failed run was
        resumed.
        """
        place = self._places.get((event.run, body.name))
        if place is None:
            return False
        end, found = self._endings.get((event.run, body.number), _Ending()), self.found[place]
        self.found[place] = replace(
            found,
            started=event.time,
            attempts=found.attempts + end.attempts + 1,
            error=found.error or end.error,
        )
        return True

    def note(self, event: Event, body: AnyBody) -> None:
        """Note how a call continued."""
        assert isinstance(body, b.StepStarted | b.StepCompleted | b.StepFailed | b.StepUnknown | b.StepResolved)
        key = (event.run, body.number)
        if isinstance(body, b.StepStarted) and body.attempt == 1:
            self.forget(event, body)
            return
        end = self._endings.setdefault(key, _Ending())
        if isinstance(body, b.StepStarted):
            end.attempts += 1
            return
        failure = None if isinstance(body, b.StepCompleted) else body.failure
        end.error = end.error or ("" if failure is None else f"{failure.type}: {failure.message}")
        if not end.seen:
            end.seen, end.status = True, _status(body)
            end.ended = event.time if end.status in ("completed", "failed") else None
            end.result = _plain(body.output) if isinstance(body, b.StepCompleted | b.StepResolved) else None


def _status(body: b.StepCompleted | b.StepFailed | b.StepUnknown | b.StepResolved) -> str:
    match body:
        case b.StepCompleted():
            return "completed"
        case b.StepFailed():
            return "failed" if body.is_final else "retrying"
        case b.StepUnknown():
            return "unknown"
        case b.StepResolved():
            return {"applied": "completed", "not_applied": "retrying", "gave_up": "failed"}[body.outcome]


class _Failed(NamedTuple):
    """A failure in an event."""

    failure: Failure
    handled: Handled
    step: int | None
    name: str
    attempt: int | None = None


def _failure_in(run: str, body: AnyBody) -> _Failed | None:
    match body:
        case b.StepFailed():
            handled: Handled = "escalated" if body.escalated else "failed the step" if body.is_final else "retried"
            return _Failed(body.failure, handled, body.number, body.name, body.attempt)
        case b.StepUnknown():
            failure = body.failure or Failure(type="unknown", message=f"started, then {body.reason}")
            return _Failed(failure, "unknown", body.number, body.name, body.attempt)
        case b.RunFailed():
            return _Failed(body.failure, "ended the run", body.number, body.name or run)
        case b.CompensationFailed():
            handled = "left undone" if body.retry_at is None else "retried"
            return _Failed(body.failure, handled, body.number, f"undo {body.number}", body.attempt)
        case _:
            return None


def _error(event: Event, agent: str, wrong: _Failed) -> ErrorInfo:
    return ErrorInfo(
        run=event.run,
        agent=agent,
        seq=event.seq,
        time=event.time,
        step=wrong.step,
        name=wrong.name,
        attempt=wrong.attempt,
        type=wrong.failure.type,
        message=wrong.failure.message,
        handled=wrong.handled,
    )


def _plain(payload: Payload | None) -> Any:
    """Return the value of a payload; a large one as a reference to its blob."""
    if payload is None:
        return None
    return payload.value() if payload.is_inline else {"blob": payload.blob, "bytes": payload.bytes}


def _contains(value: Any, wanted: str) -> bool:
    return any(wanted in text.casefold() for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value, names included."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    else:
        yield value if isinstance(value, str) else msgspec.json.encode(value).decode()
