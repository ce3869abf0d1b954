"""Differences between two points of a run: what happened, step by step with its causes, and how the state changed."""

from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from msgspec.structs import replace

from limpet.events import AnyBody, Event, Payload
from limpet.events import bodies as b
from limpet.service.moments import Point, point, state_after, used_by, used_text
from limpet.service.steps import StepInfo, call_text, describe_failure, describe_step, plain_value, short, some_steps
from limpet.service.views import load_payloads, load_values
from limpet.state import AgentState, RunState, step_of
from limpet.state.patch import describe_patch
from limpet.state.patch import diff as patch_between
from limpet.stores import RequestFilter, Store
from limpet.stores.fork_reads import StepRange
from limpet.times import format_time
from limpet.view import View

__all__ = ["ChangeInfo", "Diff", "diff", "of_step", "state_changes"]

# Events that are described; of more, the newest.
MOST = 1000
WINDOW = 64


class ChangeInfo(View, frozen=True, kw_only=True):
    """One change, as data and as text."""

    part: str
    """`step`, `decision`, `request`, `run`, `signal`, `wait`, `command`, `worker`, `status`, `spent`, `goal`, `plan`,
    `fact`, `question`, `artifact`, `flag`, `budget`, `constraints` or `data`; of two runs also `outcome`.
    """
    key: str
    """The step, fact, question …; "" if there is only one."""
    before: Any
    """Value before the change."""
    after: Any
    """Value after the change."""
    text: str
    """The change for people."""


class Diff(View, frozen=True, kw_only=True):
    """The differences between two points of a run."""

    changes: tuple[ChangeInfo, ...]
    """All that happened, in order, then how the state changed."""
    text: str
    """All changes, one per line."""
    steps: tuple[StepInfo, ...] = ()
    """The steps that made progress between the two points, as they were at the second one."""
    earlier_events: int = 0
    """Number of events after the first point that are not described, because there were too many."""

    def __str__(self) -> str:
        return self.text

    def of(self, part: str) -> dict[str, ChangeInfo]:
        """Return the changes of one part by key."""
        return {change.key: change for change in self.changes if change.part == part}


async def diff(store: Store, run: str, one: Point, other: Point) -> Diff:
    """Return what happened between two points of a run, and how its state changed."""
    first, second = await point(store, run, one), await point(store, run, other)
    before, after = await state_after(store, run, first), await state_after(store, run, second)
    since, until = min(first, second), max(first, second)
    log = await _events(store, run, max(since, until - MOST), until)
    numbers = {step for _, body in log if (step := step_of(body))}
    steps = {step.number: step for step in await some_steps(store, run, numbers, upto=until)}
    opened = await _requests(store, run, log)
    happened = [*_happened(log, steps, opened)]
    changes = [*happened, *state_changes(before.working, after.working), *_totals(before, after)]
    skipped = max(until - MOST - since, 0)
    lines = [f"{skipped} earlier events are not listed"] * (skipped > 0) + [change.text for change in changes]
    return Diff(
        changes=tuple(changes),
        text="\n".join(lines) or "nothing changed",
        steps=tuple(steps.values()),
        earlier_events=skipped,
    )


async def of_step(store: Store, run: str, step: int) -> tuple[Point, Point]:
    """Return where a step begins and ends: from the request for its approval to the next step or its request."""
    last = await point(store, run, Point(after=step))
    events = await store.read_steps(run, StepRange(after=step - 1, before=step + 1))
    first = min(event.seq for event in events if step_of(store.decode(event)) == step)
    while page := await store.read(run, after=last, limit=WINDOW):
        for event in page:
            if (step_of(store.decode(event)) or 0) > step and event.kind in ("step.started", "request.opened"):
                return Point(seq=first - 1), Point(seq=last)
            last = event.seq
    return Point(seq=first - 1), Point(seq=last)


def state_changes(before: AgentState, after: AgentState) -> list[ChangeInfo]:
    """Return how a working state changed."""
    return [ChangeInfo(**each._asdict()) for each in describe_patch(before, patch_between(before, after))]


async def _events(store: Store, run: str, since: int, until: int) -> list[tuple[Event, AnyBody]]:
    events = [event async for event in store.log(run, after=since, upto=until)]
    return list(zip(events, await load_values(store, [store.decode(event) for event in events]), strict=True))


async def _requests(
    store: Store, run: str, log: list[tuple[Event, AnyBody]]
) -> dict[str, tuple[b.RequestOpened, Mapping[str, Any]]]:
    """Return the requests that are opened or closed in a log, each with the arguments of its call."""
    found = {body.request: body for _, body in log if isinstance(body, b.RequestOpened)}
    closed = {body.request for _, body in log if isinstance(body, b.RequestAnswered | b.RequestExpired)}
    if closed - found.keys():
        for row in await store.requests(RequestFilter(status=None, run=run)):
            if row.id in closed and row.id not in found:
                [event] = await store.read(run, after=row.seq - 1, limit=1)
                body = store.decode(event)
                assert isinstance(body, b.RequestOpened)
                found[row.id] = body
    args = map(plain_value, await load_payloads(store, [body.args for body in found.values()]))
    return {id: (body, given or {}) for (id, body), given in zip(found.items(), args, strict=True)}


def _totals(before: RunState, after: RunState) -> Iterator[ChangeInfo]:
    if before.status != after.status:
        text = f"status: {after.status} (was {before.status})"
        yield ChangeInfo(part="status", key="", before=before.status, after=after.status, text=text)
    old, new = used_by(before.spent), used_by(after.spent)
    if old != new:
        used = {name: round(new[name] - old[name], 6) for name in new}
        yield ChangeInfo(part="spent", key="", before=old, after=new, text=f"spent: {used_text(used)}")


Requests = Mapping[str, tuple[b.RequestOpened, Mapping[str, Any]]]


def _happened(
    log: list[tuple[Event, AnyBody]], steps: Mapping[int, StepInfo], requests: Requests
) -> Iterator[ChangeInfo]:
    """Yield what the events of a log say. A step comes once, where its first event is."""
    told: set[int] = set()
    for event, body in log:
        number = None if isinstance(body, b.RequestOpened) else step_of(body)
        if number is None or number not in steps:
            change = _of_event(event, body, requests)
        elif number in told:
            continue
        else:
            change = ChangeInfo(
                part="step", key=str(number), before=None, after=steps[number].status, text=describe_step(steps[number])
            )
            told.add(number)
        if change is not None:
            yield replace(change, text=short(change.text) if change.part != "step" else change.text)


def _of_event(event: Event, body: AnyBody, requests: Requests) -> ChangeInfo | None:  # noqa: C901, PLR0912, PLR0915 - one match over all kinds
    match body:
        case b.RunCreated():
            return _change("run", event.run, "created", f"run {event.run} of {body.agent} was created")
        case b.RunForked():
            return _change("run", event.run, "forked", f"forked from {body.run} after event {body.at}")
        case b.RunClaimed():
            taken = "another worker took over: the one before died"
            return _change("worker", body.worker, "claimed", taken) if body.died else None
        case b.RunReleased():
            return _change("worker", event.actor, "released", f"released by its worker: {body.reason}")
        case b.RunCompleted():
            return _change("run", event.run, "completed", f"the run completed: {_value(body.output)}")
        case b.RunFailed():
            return _change("run", event.run, "failed", f"the run failed: {describe_failure(body.failure)}")
        case b.RunCancelled():
            return _change("run", event.run, "cancelled", f"the run was cancelled: {body.reason}")
        case b.TurnStarted():
            return _change("turn", body.loop, body.number, f"turn {body.number} began")
        case b.DecisionMade():
            chosen = plain_value(body.chosen)
            sure = "" if body.confidence is None else f" (confidence {body.confidence:g})"
            text = f"decided {body.question} {_value(body.chosen)}: {body.because}{sure}"
            return _change("decision", body.question, chosen, text)
        case b.RequestOpened():
            return _change("request", body.request, "open", _asked(body, requests))
        case b.RequestAnswered():
            return _change("request", body.request, body.decision, _answered(body, requests))
        case b.RequestExpired():
            text = f"request {body.request} expired: {body.outcome}"
            return _change("request", body.request, body.outcome, text)
        case b.GrantGiven():
            text = f"{body.by} approved all further calls of {body.tool or body.risk} (grant {body.grant})"
            return _change("grant", body.grant, "given", text)
        case b.GrantRevoked():
            return _change("grant", body.grant, "revoked", f"{body.by} revoked grant {body.grant}: {body.because}")
        case b.AgentCalled():
            verbs = {"call": "called", "start": "started", "handoff": "handed over to", "notify": "notifies with"}
            return _change("run", body.run, body.mode, f"{verbs[body.mode]} {body.agent} as run {body.run}")
        case b.AgentReturned():
            how = "" if body.failure is None else f": {describe_failure(body.failure)}"
            output = "" if body.output is None else f": {_value(body.output)}"
            return _change("run", body.run, body.outcome, f"run {body.run} {body.outcome}{how}{output}")
        case b.SignalReceived():
            sender = f" from {body.by}" if body.by else ""
            text = f"received signal {body.signal}{sender}: {_value(body.value)}"
            return _change("signal", body.signal, plain_value(body.value), text)
        case b.TimerSet():
            return _change("wait", body.name, "open", f"waits until {format_time(body.wake)}")
        case b.WaitOpened():
            return _change("wait", body.name, "open", f"waits for signal {body.signal}")
        case b.WaitEnded():
            if body.how in ("timeout", "withdrawn"):
                return _change("wait", body.name, body.how, f"wait {body.name} ended: {body.how}")
            return None
        case b.VersionChosen():
            which = "the new code" if body.chosen else "the old code"
            return _change("version", body.change, body.chosen, f"change {body.change} takes {which}")
        case b.MessageSaid():
            text = f"added {body.count} message{'s' * (body.count > 1)} to {body.conversation}"
            return _change("conversation", body.conversation, body.count, text)
        case b.ExternalInvalidated():
            return _change("source", body.source, "stale", f"what was read from {body.source} is stale")
        case b.BudgetExtended():
            return _change("command", "budget", "extended", _extended(body, "the budget"))
        case b.DeadlineExtended():
            text = _extended(body, f"the deadline to {format_time(body.deadline)}")
            return _change("command", "deadline", body.deadline, text)
        case b.PatchReceived():
            return _change("command", "patch", "sent", f"{_by(body.by)}sent a patch for the next turn")
        case b.CancelRequested():
            return _change("command", "cancel", body.reason, f"{_by(body.by)}asked to cancel: {body.reason}")
        case b.PauseRequested():
            return _change("command", "pause", body.reason, f"{_by(body.by)}asked to pause: {body.reason}")
        case b.RunMoved():
            return _change("command", "move", body.engine, f"{_by(body.by)}moved the run to {body.engine}")
        case b.ResumeRequested():
            return _change("command", "resume", "", f"{_by(body.by)}asked to resume")
        case (
            b.StepStarted()
            | b.StepProgressed()
            | b.StepCompleted()
            | b.StepFailed()
            | b.StepUnknown()
            | b.StepResolved()
            | b.CompensationStarted()
            | b.CompensationCompleted()
            | b.CompensationFailed()
            | b.CompensationSkipped()
        ):
            return None  # told with the step
        case b.StatePatched() | b.ArtifactStored() | b.RiskFlagged() | b.RunWaiting():
            return None  # told with the change of the state
        case b.ValueRecorded() | b.ExternalRead() | b.BudgetReserved():
            return None
        case b.ScoreGiven() | b.ScoreWithdrawn():
            return None  # said about the run, and not a part of it
        case b.ConversationCreated() | b.ConversationForked() | b.ConversationCompacted() | b.MessageAdded():
            return None
        case b.AuditStarted() | b.AuditRecorded() | b.RecordCreated() | b.RecordPatched():
            return None
        case _:
            assert_never(body)


def _change(part: str, key: str, after: Any, text: str) -> ChangeInfo:
    return ChangeInfo(part=part, key=key, before=None, after=after, text=text)


def _by(name: str) -> str:
    return f"{name} " if name else ""


def _extended(body: b.BudgetExtended | b.DeadlineExtended, what: str) -> str:
    return f"{_by(body.by)}extended {what}{f': {body.because}' if body.because else ''}"


def _value(payload: Payload | None) -> str:
    return "" if payload is None else repr(plain_value(payload))


def _asked(body: b.RequestOpened, requests: Requests) -> str:
    about = f" {call_text(body.tool, requests[body.request][1])}" if body.tool else ""
    return f"asked {', '.join(body.to)}: {body.question}{about} (request {body.request})"


def _answered(body: b.RequestAnswered, requests: Requests) -> str:
    opened, args = requests.get(body.request, (None, {}))
    what = body.request if opened is None else opened.tool or f"“{opened.question}”"
    edits = plain_value(body.args) if body.args is not None and body.args.is_inline else {}
    changed = [
        f"{name}={value!r} instead of {args.get(name)!r}" for name, value in edits.items() if args.get(name) != value
    ]
    answer = "" if body.answer is None else f": {_value(body.answer)}"
    because = f", because {body.because}" if body.because else ""
    return f"{body.by} {body.decision} {what}{answer}{' with ' + ', '.join(changed) if changed else ''}{because}"
