"""Queries across all runs: decisions, errors, calls of tools, and a text search; the newest results first.

"Every refund over 100 that an agent decided this week, and why" is `app.tool_calls("refund", where=["cents>100"],
since="7d")`.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar, get_args

import msgspec

from limpet.clock import SECOND, Duration, microseconds, to_microseconds
from limpet.engine.approvals.refusals import Refusal
from limpet.engine.execution.failures import failure_of
from limpet.engine.execution.views import EventView as Shown
from limpet.engine.execution.views import Status
from limpet.errors import InvalidArgument, NotFound
from limpet.events import KINDS, AnyBody, Event, Payload
from limpet.events import bodies as b
from limpet.journal import load, load_step
from limpet.service.error_records import ERRORS, REFUSALS, ErrorInfo, ErrorRecords
from limpet.service.given_times import read_time
from limpet.service.page import Page, number_of
from limpet.service.resolve import run_of
from limpet.service.steps import (
    StepInfo,
    bounded_value,
    call_text,
    describe_failure,
    failure_info,
    infos_of,
    plain_value,
)
from limpet.service.views import event_views, load_values
from limpet.service.where_conditions import all_of
from limpet.stores import Place, RunRow, Store
from limpet.times import to_datetime
from limpet.view import View

__all__ = [
    "CallInfo",
    "DecisionInfo",
    "Queries",
    "check_last",
    "check_status",
    "labels_of",
    "statuses_of",
    "time_before",
]

T = TypeVar("T")
DECISIONS = ("decision.made",)
# Maximum difference between the clocks of the writers.
SKEW = 300 * SECOND


class DecisionInfo(View, frozen=True, kw_only=True):
    """A decision of an agent, with its options and reason."""

    run: str
    """Run id."""
    agent: str
    """Name of the agent."""
    seq: int
    """Number of its event."""
    time: datetime
    """When it was decided."""
    question: str
    """The question."""
    chosen: Any
    """The option that was chosen."""
    options: Any
    """The options."""
    because: str
    """Reason of the choice."""
    confidence: float | None = None
    """Confidence of the agent, from 0 to 1."""


class CallInfo(View, frozen=True, kw_only=True):
    """A call of a tool, and the decision before it."""

    run: str
    """Run id."""
    agent: str
    """Name of the agent."""
    step: StepInfo
    """The step that made the call."""
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


def statuses_of(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return one status or several as a tuple. Raises InvalidArgument for an unknown one."""
    found = (given,) if isinstance(given, str) else tuple(given or ())
    for each in found:
        check_status(each)
    return found


def labels_of(given: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Return labels by name, from texts such as `team=sales`. Raises InvalidArgument."""
    if isinstance(given, Mapping):
        return dict(given)
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or found.get(name, value) != value:
            reason = f"{each!r} is not NAME=VALUE" if not equals else f"no run has two labels {name!r}"
            raise InvalidArgument(path="labels", reason=reason)
        found[name] = value
    return found


def cursor_at(row: RunRow) -> str:
    """Return the cursor of the runs after this one, in the order of last events."""
    return f"{row.time}.{row.number}"


def place_of(cursor: str | None) -> Place | None:
    """Return the place that a cursor stands for. Raises InvalidArgument."""
    if cursor is None:
        return None
    time, _, number = cursor.partition(".")
    return Place(number_of(time) or 0, number_of(number) or 0)


async def time_before(store: Store, given: Duration | datetime, path: str) -> int:
    """Return a time, or a duration before now, in microseconds. A text may be either."""
    given = read_time(given, path)
    if isinstance(given, datetime):
        return to_microseconds(given, path)
    return await store.now() - microseconds(given)


class Queries:
    """Queries about all runs of a store, or one: at most `limit` results, not older than `since`, before a cursor."""

    def __init__(self, store: Store, since: int, limit: int, cursor: str | None = None, run: str | None = None) -> None:
        self._store, self._since, self._limit, self._cursor, self._run = store, since, limit, cursor, run
        self._records = ErrorRecords(store)

    @classmethod
    async def over(
        cls,
        store: Store,
        since: Duration | datetime | None,
        limit: int,
        cursor: str | None = None,
        run: str | None = None,
    ) -> "Queries":
        """Check the arguments, and return the queries. With `run`, they only concern this run."""
        check_last(limit)
        if run is not None:
            await run_of(store, run)
        start = 0 if since is None else await time_before(store, since, "since")
        return cls(store, start, limit, cursor, run)

    async def search(self, text: str, *, kind: str | None) -> Page[Shown]:
        """Return events that contain a text, ignoring case."""
        kinds = [each.name for each in KINDS if kind in (None, each.name) and not each.name.startswith("audit.")]
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
        async for event, body, cursor in self._bodies(DECISIONS):
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
            if agent in (None, await self._agent(self._run or event.run)):
                record = await self._records.record(event, body, self._run)
                if record is not None:
                    found.add(record, cursor)
            if found.is_full:
                break
        return found.page

    async def calls(self, tool: str | None, *, where: Sequence[str], agent: str | None) -> Page[CallInfo]:
        """Return calls whose arguments match all conditions, each with the decision before it."""
        holds, found = all_of(where), Found[CallInfo](self._limit)
        async for event, body, cursor in self._bodies(("step.started", *REFUSALS)):
            run = self._run or event.run
            if agent in (None, await self._agent(run)):
                call = await self._call_in(run, event, body, tool)
                if call is not None and holds(call.args):
                    found.add(await self._call(run, event.seq, call.step), cursor)
            if found.is_full:
                break
        return found.page

    async def _call_in(self, run: str, event: Event, body: AnyBody, tool: str | None) -> "_Call | None":
        """Return the call of a tool that an event starts or refuses, or None."""
        if isinstance(body, b.StepStarted):
            if body.attempt != 1 or tool not in (None, body.tool):
                return None
            step = await load_step(self._store, run, body.number)
            if step.seq != event.seq:
                return None  # the run failed, and was resumed: the step is found where it first started
            [info] = await infos_of(self._store, [step])
            return _Call(info, await self._args(step.args))
        refusal = await self._records.refusal(event, body)
        if refusal is None or refusal.number is None or not refusal.tool or tool not in (None, refusal.tool):
            return None
        return _Call(_refused(event, refusal, refusal.number), refusal.args)

    async def _call(self, run: str, seq: int, step: StepInfo) -> CallInfo:
        made = (await load(self._store, run, at_most=seq)).decisions
        return CallInfo(
            run=run,
            agent=await self._agent(run),
            step=step,
            decision=await self._decision_at(run, made[-1].seq) if made else None,
        )

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
        return await self._records.agent_of(run)

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
        if self._run is not None:
            pages = self._pages_of_decisions(self._run) if kinds is DECISIONS else self._pages_of_run(self._run, kinds)
            async for events in pages:
                yield events, [str(event.seq) for event in events]
            return
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

    async def _pages_of_decisions(self, run: str) -> AsyncIterator[list[Event]]:
        """Yield the decisions of a run. The state knows where the last ones are, so they are found without a search."""
        state, before = await load(self._store, run), number_of(self._cursor)
        known = [made.seq for made in state.decisions if before is None or made.seq < before]
        for seq in reversed(known):
            yield [event for event in await self._store.read(run, after=seq - 1, limit=1) if event.time >= self._since]
        if state.counters.decisions > len(state.decisions):
            oldest = state.decisions[0].seq
            async for events in self._pages_of_run(run, DECISIONS, min(oldest, before or oldest)):
                yield events

    async def _pages_of_run(
        self, run: str, kinds: Sequence[str], before: int | None = None
    ) -> AsyncIterator[list[Event]]:
        before = before or number_of(self._cursor)
        while page := await self._store.read(run, before=before, backwards=True):
            yield [event for event in page if event.kind in kinds and event.time >= self._since]
            if page[-1].time < self._since - SKEW:
                return
            before = page[-1].seq


class _Call(NamedTuple):
    """A call of a tool, and its whole arguments."""

    step: StepInfo
    args: Any


def _refused(event: Event, refusal: Refusal, number: int) -> StepInfo:
    """Return a step that was refused before it started."""
    failure, time = failure_info(failure_of(refusal.error)), to_datetime(event.time)
    assert failure is not None
    return StepInfo(
        number=number,
        name=refusal.name,
        tool=refusal.tool,
        effect=None,
        status="refused",
        args=bounded_value(refusal.args),
        error=failure,
        attempt_count=0,
        started=time,
        ended=time,
        text=f"{call_text(refusal.tool, refusal.args)} ✗ {describe_failure(failure)}",
    )


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
