"""The report of a run: its status, what it did, what it waits for, and its last error."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict

from limpet.context.brief import Chosen
from limpet.engine.execution.views import Request, RunInfo, Status
from limpet.events import AnyBody, Event, Failure
from limpet.events import bodies as b
from limpet.service.app import App
from limpet.service.moments import Moment
from limpet.service.timeline import TimelineBuilder, TimelineRow
from limpet.service.views import short_text
from limpet.state import Fold, RunState

__all__ = ["Report", "ReportJson", "StepInfo", "report"]

StepStatus = Literal["running", "retrying", "escalated", "unknown", "completed", "failed", "undone"]


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """A step in a report."""

    number: int
    name: str
    """Identity in the log: scopes, name and occurrence."""
    tool: str
    effect: str
    status: StepStatus
    attempts: int
    started: int
    ended: int | None = None
    note: str = ""
    """The tool's last progress note."""
    error: str | None = None
    """The last error, even if a later attempt succeeded."""


class FailureJson(TypedDict):
    """A failure as plain data."""

    type: str
    message: str
    step: int | None
    traceback: str


class ReportJson(TypedDict):
    """A report as plain data: the fields of the run, and those of the report."""

    id: str
    agent: str
    version: str
    status: Status
    waits_for: str | None
    position: str
    goal: str
    created: int
    updated: int
    ended: int | None
    user: str | None
    session: str | None
    parent: str | None
    fork_of: str | None
    labels: Mapping[str, str]
    input: str
    output: str
    wake: int | None
    why: str | None
    steps: list[StepInfo]
    requests: list[Request]
    decisions: list[Chosen]
    timeline: list[TimelineRow]
    error: FailureJson | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """A run and everything that an operator needs to know first."""

    info: RunInfo
    input: str
    """Input of the run, shortened."""
    output: str
    """Output of the run, shortened."""
    wake: int | None
    """When the run continues automatically, if it waits for a time."""
    why: str | None
    """Why the run waits for an operator, or why a worker released it for a while."""
    steps: tuple[StepInfo, ...]
    requests: tuple[Request, ...]
    """Open requests of the run."""
    decisions: tuple[Chosen, ...]
    """Decisions of the run, the newest last."""
    timeline: tuple[TimelineRow, ...]
    """When the run worked, and when it waited."""
    error: Failure | None
    """Why the run failed; while it is running, its last error."""
    error_step: int | None

    def as_json(self) -> ReportJson:
        """Return the report as plain data: the fields of the run, and those of the report."""
        error: FailureJson | None = None
        if self.error is not None:
            error = {
                "type": self.error.type,
                "message": self.error.message,
                "step": self.error_step,
                "traceback": self.error.traceback,
            }
        found: Any = {each.name: getattr(self.info, each.name) for each in fields(self.info)}
        found |= {"input": self.input, "output": self.output}
        found |= {
            "wake": self.wake,
            "why": self.why,
            "steps": list(self.steps),
            "requests": list(self.requests),
            "error": error,
        }
        found |= {"decisions": list(self.decisions), "timeline": list(self.timeline)}
        shown: ReportJson = found
        return shown


async def report(app: App, run: str) -> Report:
    """Return the report of a run."""
    steps, lines, folding, reasons = _Steps(), TimelineBuilder(), Fold(), dict[str, str]()
    async for event in app.store.log(run):
        body = app.store.decode(event)
        folding.add(event, body)
        steps.add(event, body)
        lines.add(event, body)
        reasons |= _reason(body)
    state = folding.freeze()
    return Report(
        info=await app.info(run),
        input=await short_text(app.store, state.input),
        output=await short_text(app.store, state.output),
        wake=state.wake,
        why=next((reasons[key] for key in _keys(state) if key in reasons), None),
        steps=tuple(steps.found.values()),
        requests=tuple(await app.inbox(run=run)),
        decisions=Moment(state).decisions,
        timeline=tuple(lines.rows),
        error=state.error,
        error_step=state.error_step,
    )


def _reason(body: AnyBody) -> dict[str, str]:
    """Return why an event parks or releases a run, by what the run then waits for."""
    match body:
        case b.RiskFlagged() if body.detail:
            return {f"operator:{body.flag}": body.detail}
        case b.RunReleased() if body.retry_at is not None:
            return {"retry": f"released by its worker: {body.reason}"}
        case _:
            return {}


def _keys(state: RunState) -> list[str]:
    waits_for_retry = state.status == "pending" and state.wake is not None
    return ["retry"] if waits_for_retry else [str(wait) for wait in state.waits]


class _Steps:
    """Collects the steps of a log, in the order of their numbers."""

    def __init__(self) -> None:
        self.found: dict[int, StepInfo] = {}

    def add(self, event: Event, body: AnyBody) -> None:  # noqa: C901 - one match
        """Add one event."""
        match body:
            case b.StepStarted():
                self._started(event, body)
            case b.StepProgressed():
                self._change(body.number, note=body.note)
            case b.StepCompleted():
                self._change(body.number, status="completed", ended=event.time)
            case b.StepFailed():
                status = "failed" if body.is_final else "retrying" if body.retry_at is not None else "escalated"
                self._change(body.number, status=status, error=_describe(body.failure), ended=event.time)
            case b.StepUnknown():
                why = f"no answer: {body.reason}" if body.failure is None else _describe(body.failure)
                self._change(body.number, status="unknown", error=why)
            case b.StepResolved():
                status = {"applied": "completed", "not_applied": "retrying", "gave_up": "failed"}[body.outcome]
                self._change(body.number, status=status, ended=event.time)
            case b.CompensationCompleted():
                self._change(body.number, status="undone", ended=event.time)
            case b.RunForked():
                settled = [each for each in self.found.values() if each.status in ("completed", "failed")]
                self.found = {each.number: each for each in settled}
            case _:
                pass

    def _started(self, event: Event, body: b.StepStarted) -> None:
        before = self.found.get(body.number)
        self.found[body.number] = StepInfo(
            number=body.number,
            name=body.name,
            tool=body.tool,
            effect=body.effect,
            status="running",
            attempts=1 if before is None else before.attempts + 1,
            started=event.time if before is None else before.started,
            error=None if before is None else before.error,
        )

    def _change(self, number: int, **changes: Any) -> None:
        if number in self.found:
            self.found[number] = replace(self.found[number], **changes)


def _describe(failure: Failure) -> str:
    return f"{failure.type}: {failure.message}" if failure.message else failure.type
