"""What happened across runs: decisions, errors, calls of tools, whatever holds some words; the newest first.

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
from limpet.service.filters import Condition, all_of
from limpet.service.views import entries_of, readable
from limpet.stores import Store

__all__ = ["CallInfo", "DecisionInfo", "ErrorInfo", "Queries", "check_last", "check_status"]

# Clocks of those who write may differ by so much.
SKEW = 300 * SECOND
STEPS = ("step.started", "step.completed", "step.failed", "step.unknown", "step.resolved", "decision.made")
BEGINNINGS = ("run.created", "run.forked")
ERRORS = ("step.failed", "step.unknown", "step.resolved", "run.failed", "compensation.failed")
Handled = Literal["retried", "escalated", "failed the step", "nobody knows", "settled", "ended the run", "left undone"]


@dataclass(frozen=True, kw_only=True)
class DecisionInfo:
    """What an agent chose, from what, and why."""

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
    """What went wrong, and how it was handled."""

    run: str
    agent: str
    seq: int
    time: int
    step: int | None
    name: str
    """The step's identity; the run's, if it ended that."""
    attempt: int | None
    type: str
    message: str
    handled: Handled


@dataclass(frozen=True, kw_only=True)
class CallInfo:
    """A call of a tool, and what led to it."""

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
    """The last choice of its agent before it."""


@dataclass
class _Ending:
    """What is known of a step whose beginning has not been come to."""

    status: str = "running"
    attempts: int = 0
    ended: int | None = None
    result: Any = None
    error: str = ""
    seen: bool = False
    """Its outcome, which is the last that was written of it."""


def check_last(last: object) -> None:
    """Refuse what is no number of things that can be shown."""
    if isinstance(last, bool) or not isinstance(last, int) or last < 1:
        raise InvalidArgument(path="last", reason=f"{last!r} is not how many to show: say 1, or more")


def check_status(status: str | None) -> None:
    """Refuse what no run ever is: nothing would be found."""
    if status not in (None, *get_args(Status)):
        raise InvalidArgument(path="status", reason=f"{status!r} is none of {', '.join(get_args(Status))}")


async def _since(store: Store, since: Duration | datetime | None) -> int:
    """A time in the past, in microseconds: so long ago, or at a time with its zone."""
    if since is None:
        return 0
    if isinstance(since, datetime):
        return to_microseconds(since, "since")
    return await store.now() - microseconds(since)


class Queries:
    """Questions about all runs of a store: the last so many that fit, of so long."""

    def __init__(self, store: Store, since: int, last: int) -> None:
        self._store, self._since, self._last = store, since, last
        self._agents: dict[str, str] = {}

    @classmethod
    async def over(cls, store: Store, since: Duration | datetime | None, last: int) -> "Queries":
        """Questions, once it is checked what is asked for."""
        check_last(last)
        return cls(store, await _since(store, since), last)

    async def search(self, text: str, *, kind: str | None) -> list[Shown]:
        """Events that hold some words, in any case of letters."""
        kinds = [each.name for each in KINDS if kind is None or each.name == kind]
        if not kinds:
            near = ", ".join(each.name for each in KINDS if kind and kind.split(".")[0] in each.name)
            raise InvalidArgument(
                path="kind", reason=f"there is no kind {kind!r}{f'; there are {near}' if near else ''}"
            )
        wanted, found = text.casefold(), list[Shown]()
        async for page in self._pages(kinds):
            shown = await entries_of(self._store, page)
            found += [each for each in shown if _holds([each.run, each.body], wanted)]
            if len(found) >= self._last:
                break
        return found[: self._last]

    async def decisions(self, *, agent: str | None, text: str) -> list[DecisionInfo]:
        """What agents chose, and why."""
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
        """What went wrong, and how it was handled."""
        found: list[ErrorInfo] = []
        settled: set[tuple[str, int, int]] = set()
        async for event, body in self._bodies(ERRORS):  # the newest first: what came of it before that nobody knew
            if isinstance(body, b.StepResolved) and body.outcome != "gave_up":
                settled.add((event.run, body.number, body.attempt))
            wrong, known = _wrong(event.run, body), await self._agent(event.run)
            if wrong is not None and agent in (None, known):
                if isinstance(body, b.StepUnknown):
                    is_settled = (event.run, body.number, body.attempt) in settled
                    wrong = wrong._replace(handled="settled" if is_settled else await self._handled(event, body))
                found.append(_error(event, known, wrong))
            if len(found) >= self._last:
                break
        return found

    async def calls(self, tool: str | None, *, where: Sequence[str], agent: str | None) -> list[CallInfo]:
        """Calls of a tool whose arguments fulfil some conditions, each with the choice that came before it."""
        calls = _Calls(all_of(where))
        async for event, body in self._bodies((*STEPS, *BEGINNINGS)):
            if event.kind in BEGINNINGS:
                calls.open.pop(event.run, None)  # there was no choice before
            elif isinstance(body, b.DecisionMade):
                if calls.wants(event.run):
                    calls.decided(await self._decision(event, body))
            elif isinstance(body, b.StepStarted) and body.attempt == 1 and tool in (None, body.tool):
                known, args = await self._agent(event.run), await self._args(body)
                fits = agent in (None, known) and calls.holds(args) and len(calls.found) < self._last
                if not calls.began_before(event, body) and fits:
                    calls.add(event, body, known, args)
                calls.forget(event, body)
            else:
                calls.learn(event, body)
            if len(calls.found) >= self._last and not calls.open:
                break
        return calls.found

    async def _handled(self, event: Event, unknown: b.StepUnknown) -> Handled:
        """What came of a step that ended without a word, if nobody had to settle it."""
        async for later in self._store.log(event.run, after=event.seq):
            body = self._store.decode(later) if later.kind == "step.started" else None
            if isinstance(body, b.StepStarted) and body.number == unknown.number:
                return "retried"
        return "nobody knows"

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
        """Whose run it is; nobody's, if it was pruned meanwhile."""
        if run not in self._agents:
            try:
                self._agents[run] = (await self._store.get(run)).agent
            except NotFound:
                return ""
        return self._agents[run]

    async def _args(self, body: b.StepStarted) -> Any:
        """The arguments of a call, however big."""
        try:
            return await self._store.unpack(body.args)
        except NotFound:
            return _plain(body.args)

    async def _bodies(self, kinds: Sequence[str]) -> AsyncIterator[tuple[Event, AnyBody]]:
        async for page in self._pages(kinds):
            bodies = await readable(self._store, [self._store.decode(event) for event in page])
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
    """Calls as they are come to, the newest first: how each ended comes before how it began."""

    def __init__(self, holds: Condition) -> None:
        self.holds = holds
        self.found: list[CallInfo] = []
        self.open: dict[str, list[int]] = {}
        """Calls that wait for the choice before them, by run."""
        self._endings: dict[tuple[str, int], _Ending] = {}
        self._places: dict[tuple[str, str], int] = {}
        """Where calls are among those that were found, by run and identity."""

    def wants(self, run: str) -> bool:
        """Whether calls of a run wait for the choice before them."""
        return run in self.open

    def decided(self, made: DecisionInfo) -> None:
        """The choice before some calls."""
        for place in self.open.pop(made.run):
            self.found[place] = replace(self.found[place], decision=made)

    def forget(self, event: Event, body: b.StepStarted) -> None:
        """What came before was another one."""
        self._endings.pop((event.run, body.number), None)

    def add(self, event: Event, body: b.StepStarted, agent: str, args: Any) -> None:
        """A call that is asked for."""
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

    def began_before(self, event: Event, body: b.StepStarted) -> bool:
        """Whether this is a call that was found: its process died meanwhile, or its run failed and was resumed."""
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

    def learn(self, event: Event, body: AnyBody) -> None:
        """How a call went on."""
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


class _Wrong(NamedTuple):
    """Something that went wrong."""

    failure: Failure
    handled: Handled
    step: int | None
    name: str
    attempt: int | None = None


def _wrong(run: str, body: AnyBody) -> _Wrong | None:
    match body:
        case b.StepFailed():
            handled: Handled = "escalated" if body.escalated else "failed the step" if body.is_final else "retried"
            return _Wrong(body.failure, handled, body.number, body.name, body.attempt)
        case b.StepUnknown():
            failure = body.failure or Failure(type="unknown", message=f"it began, and {body.reason}")
            return _Wrong(failure, "nobody knows", body.number, body.name, body.attempt)
        case b.RunFailed():
            return _Wrong(body.failure, "ended the run", body.number, body.name or run)
        case b.CompensationFailed():
            handled = "left undone" if body.retry_at is None else "retried"
            return _Wrong(body.failure, handled, body.number, f"undo {body.number}", body.attempt)
        case _:
            return None


def _error(event: Event, agent: str, wrong: _Wrong) -> ErrorInfo:
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
    """A value; one that is big by where it is."""
    if payload is None:
        return None
    return payload.value() if payload.is_inline else {"blob": payload.blob, "bytes": payload.bytes}


def _holds(value: Any, wanted: str) -> bool:
    return any(wanted in text.casefold() for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    """Everything in some JSON that can be read, names too."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    else:
        yield value if isinstance(value, str) else msgspec.json.encode(value).decode()
