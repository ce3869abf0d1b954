"""A run on one page: where it is, what it did, what it waits for, and what went wrong last."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from limpet.engine.views import Request, RunInfo
from limpet.events import AnyBody, Event, Failure
from limpet.events import bodies as b
from limpet.service.app import App
from limpet.state import Fold

__all__ = ["Report", "StepInfo", "report"]

StepStatus = Literal["running", "retrying", "escalated", "unknown", "completed", "failed", "undone"]


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """A step as reports show it."""

    number: int
    name: str
    """Its identity in the log: scopes, name and occurrence."""
    tool: str
    effect: str
    status: StepStatus
    attempts: int
    started: int
    ended: int | None = None
    note: str = ""
    """What the tool said last about how far it is."""
    error: str | None = None
    """What went wrong last, also if a later attempt went well."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A run, and everything that whoever is woken at night wants to know first."""

    info: RunInfo
    wake: int | None
    """When it goes on by itself, if it waits for a time."""
    steps: tuple[StepInfo, ...]
    requests: tuple[Request, ...]
    """What it asks, and nobody has decided."""
    error: Failure | None
    """Why it failed; or, while it goes on, what went wrong last."""
    error_step: int | None

    def as_json(self) -> dict[str, Any]:
        """The same as plain data: the fields of the run, and what is reported beside them."""
        error = self.error and {
            "type": self.error.type,
            "message": self.error.message,
            "step": self.error_step,
            "traceback": self.error.traceback,
        }
        steps, requests = [asdict(each) for each in self.steps], [asdict(each) for each in self.requests]
        return {**asdict(self.info), "wake": self.wake, "steps": steps, "requests": requests, "error": error}


async def report(app: App, run: str) -> Report:
    """The report on a run."""
    steps, folding = _Steps(), Fold()
    async for event in app.store.log(run):
        body = app.store.decode(event)
        folding.add(event, body)
        steps.learn(event, body)
    state = folding.freeze()
    return Report(
        info=await app.info(run),
        wake=state.wake,
        steps=tuple(steps.found.values()),
        requests=tuple(await app.inbox(run=run)),
        error=state.error,
        error_step=state.error_step,
    )


class _Steps:
    """The steps of a log, in the order of their numbers."""

    def __init__(self) -> None:
        self.found: dict[int, StepInfo] = {}

    def learn(self, event: Event, body: AnyBody) -> None:  # noqa: C901 - one match
        """Take in one event."""
        match body:
            case b.StepStarted():
                self._started(event, body)
            case b.StepProgressed():
                self._change(body.number, note=body.note)
            case b.StepCompleted():
                self._change(body.number, status="completed", ended=event.time)
            case b.StepFailed():
                status = "failed" if body.is_final else "retrying" if body.retry_at is not None else "escalated"
                self._change(body.number, status=status, error=_words(body.failure), ended=event.time)
            case b.StepUnknown():
                why = f"no answer: {body.reason}" if body.failure is None else _words(body.failure)
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


def _words(failure: Failure) -> str:
    return f"{failure.type}: {failure.message}" if failure.message else failure.type
