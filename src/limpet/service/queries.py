"""Queries across all runs: decisions, errors, calls of tools, and a text search; the newest results first.

"Every refund over 100 that an agent decided this week, and why" is `app.tool_calls("refund", where=["cents>100"],
since="7d")`.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

import msgspec

from limpet.clock import SECOND, Duration, microseconds, to_datetime, to_microseconds
from limpet.engine.execution.views import EventView as Shown
from limpet.engine.execution.views import Status
from limpet.errors import InvalidArgument, NotFound
from limpet.events import KINDS, AnyBody, Event, Failure, Payload
from limpet.events import bodies as b
from limpet.journal import load, load_step
from limpet.service.page import Page
from limpet.service.steps import StepInfo, infos_of, plain_value
from limpet.service.views import event_views, load_values
from limpet.service.where_conditions import all_of
from limpet.state import StepView
from limpet.stores import Store

__all__ = ["CallInfo", "DecisionInfo", "ErrorInfo", "Queries", "check_last", "check_status"]

T = TypeVar("T")
# Maximum difference between the clocks of the writers.
SKEW = 300 * SECOND
ERRORS = ("step.failed", "step.unknown", "run.failed", "compensation.failed")
Handled = Literal["retried", "escalated", "failed the step", "unknown", "settled", "ended the run", "left undone"]


@dataclass(frozen=True, kw_only=True)
class DecisionInfo:
    """A decision of an agent, with its options and reason."""

    run: str
    agent: str
    seq: int
    time: datetime
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
    time: datetime
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
    step: StepInfo
    decision: DecisionInfo | None = None
    """The agent's last decision before the call."""


def check_last(last: object, name: str = "last") -> None:
    """Raise InvalidArgument unless a number of items is a positive integer."""
    if isinstance(last, bool) or not isinstance(last, int) or last < 1:
        raise InvalidArgument(path=name, reason=f"must be at least 1, not {last!r}")


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
    """Queries about all runs of a store: at most `limit` results, not older than `since`, before a cursor."""

    def __init__(self, store: Store, since: int, limit: int, cursor: str | None = None) -> None:
        self._store, self._since, self._limit, self._cursor = store, since, limit, cursor
        self._agents: dict[str, str] = {}

    @classmethod
    async def over(
        cls, store: Store, since: Duration | datetime | None, limit: int, cursor: str | None = None
    ) -> "Queries":
        """Check the arguments, and return the queries."""
        check_last(limit)
        return cls(store, await _since(store, since), limit, cursor)

    async def search(self, text: str, *, kind: str | None) -> Page[Shown]:
        """Return events that contain a text, ignoring case."""
        kinds = [each.name for each in KINDS if kind is None or each.name == kind]
        if not kinds:
            near = ", ".join(each.name for each in KINDS if kind and kind.split(".")[0] in each.name)
            raise InvalidArgument(path="kind", reason=f"unknown kind {kind!r}{f'; similar: {near}' if near else ''}")
        wanted, found = text.casefold(), Found[Shown](self._limit)
        async for events, cursors in self._pages(kinds):
            for shown, cursor in zip(await event_views(self._store, events), cursors, strict=True):
                if _contains([shown.run, shown.body], wanted):
                    found.add(shown, cursor)
                if found.is_full:
                    return found.page
        return found.page

    async def decisions(self, *, agent: str | None, text: str) -> Page[DecisionInfo]:
        """Return decisions that contain a text."""
        found = Found[DecisionInfo](self._limit)
        async for event, body, cursor in self._bodies(("decision.made",)):
            assert isinstance(body, b.DecisionMade)
            made = await self._decision(event, body)
            words = f"{made.question} {made.chosen} {made.because}".casefold()
            if agent in (None, made.agent) and text.casefold() in words:
                found.add(made, cursor)
            if found.is_full:
                break
        return found.page

    async def errors(self, *, agent: str | None) -> Page[ErrorInfo]:
        """Return failures, and how each was handled."""
        found = Found[ErrorInfo](self._limit)
        async for event, body, cursor in self._bodies(ERRORS):
            wrong, known = _failure_in(event.run, body), await self._agent(event.run)
            if wrong is not None and agent in (None, known):
                if isinstance(body, b.StepUnknown):
                    wrong = wrong._replace(handled=await self._handled(event, body))
                found.add(_error(event, known, wrong), cursor)
            if found.is_full:
                break
        return found.page

    async def calls(self, tool: str | None, *, where: Sequence[str], agent: str | None) -> Page[CallInfo]:
        """Return calls whose arguments match all conditions, each with the decision before it."""
        holds, found = all_of(where), Found[CallInfo](self._limit)
        async for event, body, cursor in self._bodies(("step.started",)):
            assert isinstance(body, b.StepStarted)
            if body.attempt != 1 or tool not in (None, body.tool) or agent not in (None, await self._agent(event.run)):
                continue
            step = await load_step(self._store, event.run, body.number)
            if step.seq != event.seq:
                continue  # the run failed, and was resumed: the step is found where it first started
            if holds(await self._args(step.args)):
                found.add(await self._call(event.run, step), cursor)
            if found.is_full:
                break
        return found.page

    async def _call(self, run: str, step: StepView) -> CallInfo:
        [info] = await infos_of(self._store, [step])
        made = (await load(self._store, run, at_most=step.seq)).decisions
        return CallInfo(
            run=run,
            agent=await self._agent(run),
            step=info,
            decision=await self._decision_at(run, made[-1].seq) if made else None,
        )

    async def _handled(self, event: Event, unknown: b.StepUnknown) -> Handled:
        """Return how an attempt with an unknown outcome was handled."""
        step = await load_step(self._store, event.run, unknown.number)
        place = max(place for place, attempt in enumerate(step.attempts) if attempt.seq < event.seq)
        if step.attempts[place].outcome in ("applied", "not_applied"):
            return "settled"
        return "retried" if place + 1 < len(step.attempts) else "unknown"

    async def _decision_at(self, run: str, seq: int) -> DecisionInfo:
        [event] = await self._store.read(run, after=seq - 1, limit=1)
        [body] = await load_values(self._store, [self._store.decode(event)])
        assert isinstance(body, b.DecisionMade)
        return await self._decision(event, body)

    async def _decision(self, event: Event, body: b.DecisionMade) -> DecisionInfo:
        return DecisionInfo(
            run=event.run,
            agent=await self._agent(event.run),
            seq=event.seq,
            time=to_datetime(event.time),
            question=body.question,
            chosen=plain_value(body.chosen),
            options=plain_value(body.options),
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

    async def _args(self, args: Payload) -> Any:
        """Return the arguments of a call, loading them from a blob if necessary."""
        try:
            return await self._store.unpack(args)
        except NotFound:
            return plain_value(args)

    async def _bodies(self, kinds: Sequence[str]) -> AsyncIterator[tuple[Event, AnyBody, str]]:
        async for events, cursors in self._pages(kinds):
            bodies = await load_values(self._store, [self._store.decode(event) for event in events])
            for found in zip(events, bodies, cursors, strict=True):
                yield found

    async def _pages(self, kinds: Sequence[str]) -> AsyncIterator[tuple[list[Event], list[str]]]:
        before: str | None = self._cursor or ""
        while before is not None:
            try:
                page = await self._store.recent(kinds, before=before)
            except InvalidArgument as error:
                raise InvalidArgument(path="cursor", reason=error.reason) from error
            young = [
                (event, cursor)
                for event, cursor in zip(page.events, page.cursors, strict=True)
                if event.time >= self._since
            ]
            yield [event for event, _ in young], [cursor for _, cursor in young]
            if page.time < self._since - SKEW:
                return
            before = page.next


class Found(Generic[T]):
    """Results of a query, until there are enough: one more than wanted, to know whether there are more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: list[tuple[T, str]] = []

    def add(self, item: T, cursor: str) -> None:
        """Add a result, with the cursor of older ones."""
        self._items.append((item, cursor))

    @property
    def is_full(self) -> bool:
        """Whether enough results were found."""
        return len(self._items) > self._limit

    @property
    def page(self) -> Page[T]:
        """The results."""
        cut = Page.cut(self._items, self._limit, lambda each: each[1])
        return Page((item for item, _ in cut), cut.next)


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
        time=to_datetime(event.time),
        step=wrong.step,
        name=wrong.name,
        attempt=wrong.attempt,
        type=wrong.failure.type,
        message=wrong.failure.message,
        handled=wrong.handled,
    )


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
