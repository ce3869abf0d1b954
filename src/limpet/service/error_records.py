"""Failures as records: when, where, with which input, what was raised, and how it was handled.

A record belongs to one event. A failed step has a record for each failed attempt. A step that was refused before it
started has one, too. A run that fails because of a step has no further record: that of the step says so.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from limpet.engine.approvals.approvals import AFTER_EXPIRY, AFTER_REFUSAL, rejection
from limpet.engine.approvals.refusals import Refusal, refusal_in
from limpet.engine.execution.failures import failure_of, hint_of
from limpet.errors import BudgetExceeded, Expired, NotFound
from limpet.events import AnyBody, Event, Failure, Payload
from limpet.events import bodies as b
from limpet.journal import load
from limpet.service.steps import bounded_value, plain_value
from limpet.service.views import Ended, load_payloads, read_end
from limpet.state import LogView, RunState, StepView
from limpet.stores import RequestFilter, Store
from limpet.stores.fork_reads import StepRange
from limpet.times import to_datetime
from limpet.view import View

__all__ = ["ERRORS", "REFUSALS", "ErrorInfo", "ErrorRecords", "Handled", "frame_at", "frame_lines"]

REFUSALS = ("value.recorded", "request.answered", "request.expired")
# The hint of a failure that a resume does not undo.
KEPT = (
    "The code made other calls after this failure, so a resume returns the failure to it again. "
    "To do the step again, continue in a fork: `limpet fork {run} --at {step}`."
)
ERRORS = ("step.failed", "step.unknown", "run.failed", "compensation.failed", *REFUSALS)
Handled = Literal[
    "caught", "retried", "escalated", "unknown", "settled", "failed the step", "failed the run", "left undone"
]
# Number of events after a failure that are searched for what followed, and before the end for a refusal.
SEARCHED = 200
# Errors of a step that has its own records.
STEP_ERRORS = ("step_failed", "outcome_unknown")
# Names of calls that refuse a step.
_REFUSING = re.compile(r"/(approval|budget|refused|stale|late)#\d+$")
# Events that the code of a run causes: it has continued.
_CONTINUED = (
    b.StepStarted,
    b.DecisionMade,
    b.StatePatched,
    b.TurnStarted,
    b.ValueRecorded,
    b.TimerSet,
    b.WaitOpened,
    b.RequestOpened,
    b.AgentCalled,
    b.ArtifactStored,
    b.MessageSaid,
    b.RunCompleted,
)


class ErrorInfo(View, frozen=True, kw_only=True):
    """A failure: of an attempt of a step, of a run, or of a compensation."""

    run: str
    """Run id."""
    agent: str
    """Name of the agent."""
    seq: int
    """Sequence of the event that records it."""
    time: datetime
    """When it happened."""
    step: int | None
    """Number of the step; null if the run failed outside a step."""
    name: str
    """Identity of the step; the run's id, if the run failed outside a step."""
    tool: str = ""
    """Name of the tool."""
    input: Any = None
    """The arguments as used; the input of the run, if it failed outside a step. Large values as `{"blob", "bytes"}`."""
    output: Any = None
    """The last partial value that the tool had reported."""
    type: str
    """Qualified name of the exception's class."""
    message: str
    """Text of the error."""
    traceback: str = ""
    """The end of the traceback, at most 8,000 characters."""
    attempt: int | None = None
    """Number of the attempt, from 1; null if the step did not start."""
    attempts: int = 0
    """Number of attempts of the step so far."""
    handled: Handled
    """`caught` if the step failed and the run did not fail with it; `failed the step` until that is known."""
    hint: str = ""
    """Advice of the error on how to continue; "" if it has none."""


class CodeLine(NamedTuple):
    """A line of the user's code in a traceback."""

    file: str
    line: int
    function: str
    code: str


_FRAME = re.compile(
    r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>.+)(?:\n +(?!File ")(?P<code>.+))?',
    re.MULTILINE,
)
_FOREIGN = re.compile(
    r"[/\\](site-packages|dist-packages|[Ll]ib[/\\]python3\.\d+|[Ll]ib[/\\]asyncio)[/\\]"
    r"|[/\\]limpet[/\\](engine|llm|service|journal|stores|testing|adapters|sync|arguments)[/\\.]|^<"
)


def user_frames(traceback: str, most: int = 3) -> list[CodeLine]:
    """Return the innermost lines of the user's code in a traceback, without those of libraries and of Limpet."""
    found = [
        CodeLine(each["file"], int(each["line"]), each["function"], (each["code"] or "").strip())
        for each in _FRAME.finditer(traceback)
        if not _FOREIGN.search(each["file"])
    ]
    return list(dict.fromkeys(found))[-most:]


class _Handling(NamedTuple):
    """How a failure was handled; with the failure of the run, if it failed with it and has not been resumed."""

    how: Handled
    ended: Failure | None = None


class ErrorRecords:
    """Makes records of the failures of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._agents: dict[str, str] = {}
        self._ends: dict[str, tuple[Event, Ended] | None] = {}

    async def agent_of(self, run: str) -> str:
        """Return the agent of a run, or "" if the run was pruned since."""
        if run not in self._agents:
            try:
                self._agents[run] = (await self._store.get(run)).agent
            except NotFound:
                return ""
        return self._agents[run]

    async def record(self, event: Event, body: AnyBody, run: str | None = None) -> ErrorInfo | None:
        """Return the failure that an event records, or None. `run` is a fork that shares the event."""
        run = run or event.run
        match body:
            case b.StepFailed() | b.StepUnknown():
                return await self._of_attempt(run, event, body)
            case b.CompensationFailed():
                return await self._of_compensation(run, event, body)
            case b.RunFailed() if not _is_passed_on(body):
                return await self._of_run(run, event, body)
            case b.ValueRecorded() | b.RequestAnswered() | b.RequestExpired():
                refusal = await self.refusal(event, body)
                return None if refusal is None else await self._of_refusal(run, event, body, refusal)
            case _:
                return None

    async def last(self, state: RunState) -> ErrorInfo | None:
        """Return why a run failed; while it runs, its last error; None if there is none. Reads a part of the log."""
        run = state.run
        if state.error is None:
            return None
        ended = await self._end(run) if state.status == "failed" else None
        if ended is None:
            return None if state.error_step is None else await self._last_of_step(run, state.error_step)
        event, body = ended
        if not isinstance(body, b.RunFailed):
            return None
        if not _is_passed_on(body):
            return await self.record(event, body, run)
        number = _number_in(body)
        is_refused = body.name is not None and _REFUSING.search(body.name)
        found = await self._last_refusal(run) if is_refused or number is None else await self._last_of_step(run, number)
        found = found or await self._of_run(run, event, body)
        is_kept = body.number is not None and not body.voids
        return replace(found, hint=KEPT.format(run=run, step=body.number)) if is_kept and not found.hint else found

    async def _last_of_step(self, run: str, number: int) -> ErrorInfo | None:
        for event in reversed(await self._store.read_steps(run, _only(number))):
            body = self._store.decode(event)
            if isinstance(body, b.StepFailed | b.StepUnknown):
                return await self.record(event, body, run)
        return None

    async def _last_refusal(self, run: str) -> ErrorInfo | None:
        for event in await self._store.read(run, limit=SEARCHED, backwards=True):
            if event.kind in REFUSALS:
                found = await self.record(event, self._store.decode(event), run)
                if found is not None:
                    return found
        return None

    # Attempts

    async def _of_attempt(self, run: str, event: Event, body: b.StepFailed | b.StepUnknown) -> ErrorInfo | None:
        then, now = await self._step(run, body.number, event.seq)
        if then is None or now is None:
            return None  # pruned meanwhile, or not shared by the fork
        place = len(then.attempts)
        handling = await self._handling(run, event, body, now, place)
        failure = body.failure or Failure(type="unknown", message=f"started, then {_reason(body)}")
        found = await self._info(run, event, failure, handling, step=body.number, name=body.name)
        args, partial = await load_payloads(self._store, [then.args, then.partial])
        return replace(
            found,
            tool=then.tool,
            input=plain_value(args),
            output=plain_value(partial),
            attempt=place,
            attempts=len(now.attempts),
        )

    async def _step(self, run: str, number: int, seq: int) -> tuple[StepView | None, StepView | None]:
        """Return a step as it was after an event, and as it is now."""
        view, then = LogView(), None
        for event in await self._store.read_steps(run, _only(number)):
            view.add(event, self._store.decode(event))
            then = view.steps.get(number) if event.seq <= seq else then
        return then, view.steps.get(number, then)

    async def _handling(
        self, run: str, event: Event, body: b.StepFailed | b.StepUnknown, step: StepView, place: int
    ) -> _Handling:
        is_repeated, outcome = len(step.attempts) > place, step.attempts[place - 1].outcome
        if isinstance(body, b.StepFailed):
            if not body.is_final:
                return _Handling("escalated" if body.escalated else "retried")
            # A step that failed starts again only if the run failed with it and was resumed.
            return _Handling("failed the run") if is_repeated else await self._fate(run, event, body.number, body.name)
        if outcome in ("applied", "not_applied"):
            return _Handling("settled")
        if outcome == "gave_up" and not is_repeated:
            return await self._fate(run, event, body.number, body.name)
        return _Handling("retried" if is_repeated else "unknown")

    async def _fate(self, run: str, event: Event, number: int | None, *names: str) -> _Handling:
        """Return whether a run failed with an error that its code got, caught it, or has not continued yet."""
        ended = await self._end(run)
        if ended is not None and isinstance(ended[1], b.RunFailed) and _is_because(ended[1], number, names):
            return _Handling("failed the run", ended[1].failure)
        has_continued = ended is not None
        for later in await self._store.read(run, after=event.seq, limit=SEARCHED):
            body = self._store.decode(later)
            if isinstance(body, b.RunFailed):
                return _Handling("failed the run" if _is_because(body, number, names) else "caught")
            has_continued |= isinstance(body, _CONTINUED)
        return _Handling("caught" if has_continued else "failed the step")

    async def _end(self, run: str) -> tuple[Event, Ended] | None:
        """Return the event with which a run ended. Each is read once, for all its failures."""
        if run not in self._ends:
            self._ends[run] = await read_end(self._store, run)
        return self._ends[run]

    # Runs and compensations

    async def _of_run(self, run: str, event: Event, body: b.RunFailed) -> ErrorInfo:
        number, handling = _number_in(body), _Handling("failed the run")
        found = await self._info(run, event, body.failure, handling, step=number, name=body.name or run)
        _, step = (None, None) if number is None else await self._step(run, number, event.seq)
        payloads: list[Payload | None]
        if step is None:
            payloads = [(await load(self._store, run, at_most=event.seq)).input, None]
        else:
            payloads = [step.args, step.partial]
        given, partial = await load_payloads(self._store, payloads)
        attempts = 0 if step is None else len(step.attempts)
        return replace(
            found,
            tool="" if step is None else step.tool,
            input=plain_value(given),
            output=plain_value(partial),
            attempt=attempts or None,
            attempts=attempts,
        )

    async def _of_compensation(self, run: str, event: Event, body: b.CompensationFailed) -> ErrorInfo:
        handling = _Handling("left undone" if body.retry_at is None else "retried")
        name = f"undo {body.number}"
        found = await self._info(run, event, body.failure, handling, step=body.number, name=name)
        _, step = await self._step(run, body.number, event.seq)
        if step is None:
            return found
        [args] = await load_payloads(self._store, [step.args])
        attempts = body.attempt if step.compensation is None else step.compensation.attempts
        return replace(
            found, tool=step.tool, input=plain_value(args), attempt=body.attempt, attempts=max(attempts, body.attempt)
        )

    # Refusals

    async def refusal(self, event: Event, body: AnyBody) -> Refusal | None:
        """Return the refusal of a step that an event records: out-of-date data, no budget, or no approval."""
        match body:
            case b.ValueRecorded():
                return refusal_in(body)
            case b.RequestAnswered(decision="rejected") | b.RequestExpired(outcome="raised"):
                opened = await self._request(body.request)
                return None if opened is None or opened.number is None else _undecided(opened, event, body)
            case _:
                return None

    async def _request(self, request: str) -> b.RequestOpened | None:
        """Return the event that opened a request, for approval or budget."""
        rows = await self._store.requests(RequestFilter(status=None, id=request))
        seq = next((row.seq for row in rows if row.kind in ("approval", "budget")), None)
        found = [] if seq is None else await self._store.read(rows[0].run, after=seq - 1, limit=1)
        body = self._store.decode(found[0]) if found else None
        return body if isinstance(body, b.RequestOpened) else None

    async def _of_refusal(self, run: str, event: Event, body: AnyBody, refusal: Refusal) -> ErrorInfo:
        number, call = refusal.number, getattr(body, "name", "")
        names = [call] if call else [f"{refusal.name}/approval#", f"{refusal.name}/budget#"]
        handling = await self._fate(run, event, number, *names)
        failure = failure_of(refusal.error)
        found = await self._info(run, event, failure, handling, step=number, name=refusal.name)
        return replace(found, tool=refusal.tool, input=bounded_value(refusal.args))

    async def _info(
        self, run: str, event: Event, failure: Failure, handling: _Handling, *, step: int | None, name: str
    ) -> ErrorInfo:
        ended = handling.ended
        return ErrorInfo(
            run=run,
            agent=await self.agent_of(run),
            seq=event.seq,
            time=to_datetime(event.time),
            step=step,
            name=name,
            type=failure.type,
            message=failure.message,
            # That of the run also shows where its code made the call.
            traceback=failure.traceback if ended is None or not ended.traceback else ended.traceback,
            handled=handling.how,
            hint=hint_of(failure if ended is None else ended, run),
        )


def _only(number: int) -> StepRange:
    return StepRange(after=number - 1, before=number + 1)


def _reason(body: b.StepFailed | b.StepUnknown) -> str:
    return body.reason if isinstance(body, b.StepUnknown) else "failed"


def _number_in(body: b.RunFailed) -> int | None:
    """Return the step with which a run failed: a resumed compensation has it only in the facts of the error."""
    if body.number is not None or body.failure.code not in STEP_ERRORS:
        return body.number
    facts = body.failure.facts
    number = facts.value().get("number") if facts is not None and facts.is_inline else None
    return number if isinstance(number, int) else None


def _is_passed_on(body: b.RunFailed) -> bool:
    """Return whether a run failed with the error of a step, which has its own record."""
    is_refused = body.name is not None and _REFUSING.search(body.name) is not None
    return body.failure.code in STEP_ERRORS or (is_refused and body.failure.code != "")


def _is_because(ended: b.RunFailed, number: int | None, names: tuple[str, ...]) -> bool:
    """Return whether a run failed because of a step or call: with its error, or another error raised from it."""
    by_name = any(
        name == each or (each.endswith("#") and name.startswith(each))
        for name in (ended.name or "", *ended.voids)
        for each in names
    )
    return by_name or (number is not None and _number_in(ended) == number)


def _undecided(opened: b.RequestOpened, event: Event, body: b.RequestAnswered | b.RequestExpired) -> Refusal:
    """Return the refusal of a step that a person rejected, or did not decide in time."""
    number = opened.number or 0
    name, args = opened.name.rpartition("/")[0], opened.args.value() if opened.args is not None else None
    if opened.kind == "budget":
        return Refusal(BudgetExceeded(**(args or {}), fix=AFTER_REFUSAL), name, "", number, None)
    tool = opened.tool or ""
    if isinstance(body, b.RequestAnswered):
        return Refusal(rejection(tool, number, body), name, tool, number, args)
    expired = Expired(request=opened.request, expired_at=opened.expires or event.time, fix=AFTER_EXPIRY)
    return Refusal(expired, name, tool, number, args)


def frame_at(traceback: str) -> str:
    """Return the file and line of the innermost frame of the user's code, or ""."""
    frames = user_frames(traceback, most=1)
    file = "" if not frames else frames[0].file.replace("\\", "/").rpartition("/")[2]
    return f"{file}:{frames[0].line}" if frames else ""


def frame_lines(traceback: str) -> Iterator[str]:
    """Yield the innermost lines of the user's code as text, two lines for each."""
    for frame in user_frames(traceback):
        yield f"{frame.file}:{frame.line} in {frame.function}"
        if frame.code:
            yield f"  {frame.code}"
