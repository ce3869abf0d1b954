"""The report of a run: its status, what it did, what it waits for, and its last error."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from limpet.context.brief import Chosen, chosen_of
from limpet.engine.execution.views import Request, RunInfo
from limpet.events import AnyBody
from limpet.events import bodies as b
from limpet.journal import load, load_steps
from limpet.redaction import hide_secrets
from limpet.service.error_records import ErrorInfo, ErrorRecords
from limpet.service.scores import ScoreInfo
from limpet.service.steps import StepInfo, describe_failure, infos_of, plain_value
from limpet.service.timeline import TimelineRow, timeline_of
from limpet.service.views import Ended, load_payloads, short_text
from limpet.state import LogView, RunState
from limpet.state.fold import PAUSED
from limpet.state.run import CommandKind
from limpet.stores import Store
from limpet.stores.fork_reads import StepRange
from limpet.times import to_datetime, to_datetime_or_none
from limpet.view import View

__all__ = ["CommandInfo", "Report", "outcome", "report"]

# Numbers of newest steps, and of newest events that are searched for waits.
STEPS, EVENTS = 50, 500


class CommandInfo(View, frozen=True, kw_only=True):
    """A command that a run received, and who sent it."""

    kind: CommandKind
    """Kind of the command."""
    time: datetime
    """When it was sent."""
    by: str
    """Name of the person or service; if `via` is "run", the id of the run. Empty if it is unknown."""
    via: str
    """The interface: "python", "cli", "http" or "mcp"; "run" for another run. Empty in logs of older versions."""
    reason: str
    """Reason that was given."""


class Report(View, frozen=True, kw_only=True):
    """A run and everything that an operator needs to know first."""

    run: RunInfo
    """Summary of the run."""
    input: str
    """Input of the run, shortened."""
    output: str
    """Output of the run, shortened."""
    wake: datetime | None
    """When the run continues automatically, if it waits for a time."""
    why: str | None
    """Why the run waits for an operator, or why a worker released it for a while."""
    since: datetime | None
    """Since when the run waits, if it is parked."""
    commands: tuple[CommandInfo, ...]
    """How the run was created, and the last command of each kind that controls it, in order."""
    steps: tuple[StepInfo, ...]
    """The newest steps, by number."""
    earlier_steps: int
    """Number of steps before these."""
    requests: tuple[Request, ...]
    """Open requests of the run, and of the runs that it waits for; of each, the oldest 20. `inbox` lists all."""
    is_served: bool
    """Whether a live worker serves the run's agent and version."""
    failed_steps: int
    """Number of steps that failed, also if the run continued."""
    decisions: tuple[Chosen, ...]
    """Decisions of the run, the newest last."""
    timeline: tuple[TimelineRow, ...]
    """When the run worked, and when it waited, as far as the newest steps and events show it."""
    error: ErrorInfo | None
    """Why the run failed; while it is running, its last error."""
    patches: int
    """Number of patches from outside that wait for the next turn."""
    messages: int
    """Approximate number of messages in the run's conversation, also those of other runs."""
    scores: tuple[ScoreInfo, ...] = ()
    """The newest scores of the run and its steps, the newest first. `scores` lists all."""


async def outcome(store: Store, ended: Ended) -> dict[str, Any]:
    """Return the output of a run that has ended, or why it has none."""
    match ended:
        case b.RunCompleted():
            [output] = await load_payloads(store, [ended.output])
            return {"output": plain_value(output)}
        case b.RunFailed():
            return {"error": hide_secrets(describe_failure(ended.failure))}
        case b.RunCancelled():
            return {"error": hide_secrets(ended.reason)}


async def report(
    store: Store, info: RunInfo, requests: tuple[Request, ...], scores: tuple[ScoreInfo, ...], *, is_served: bool
) -> Report:
    """Return the report of a run. However long its log is, only its end is read."""
    id, state = info.id, await load(store, info.id)
    steps = (await load_steps(store, id, StepRange(limit=STEPS, backwards=True)))[::-1]
    view, reasons, parked = LogView(), dict[str, str](), None
    for event in reversed(await store.read(id, limit=EVENTS, backwards=True)):
        body = store.decode(event)
        view.add(event, body)
        reasons |= _reason(body)
        parked = event.time if isinstance(body, b.RunWaiting | b.PauseRequested) else parked
    return Report(
        run=info,
        input=await short_text(store, state.input),
        output=await short_text(store, state.output),
        wake=to_datetime_or_none(state.wake),
        why=next((reasons[key] for key in _keys(state) if key in reasons), None),
        since=to_datetime_or_none(parked) if state.status == "waiting" else None,
        commands=tuple(_commands(state)),
        steps=tuple(await infos_of(store, steps)),
        earlier_steps=steps[0].number - 1 if steps else 0,
        requests=requests,
        is_served=is_served,
        failed_steps=state.counters.steps_failed,
        decisions=tuple(map(chosen_of, state.decisions)),
        timeline=tuple(timeline_of(steps, view)),
        error=await ErrorRecords(store).last(state),
        patches=len(state.patches),
        messages=await _count_messages(store, info.conversation),
        scores=scores,
    )


async def _count_messages(store: Store, conversation: str) -> int:
    found = (await store.positions([conversation])).get(conversation)
    return 0 if found is None else found.seq - 1


def _commands(state: RunState) -> Iterator[CommandInfo]:
    for kind, sent in sorted(state.commands.items(), key=lambda each: each[1].seq):
        reason = hide_secrets(sent.reason)
        yield CommandInfo(kind=kind, time=to_datetime(sent.time), by=sent.by, via=sent.via, reason=reason)


def _reason(body: AnyBody) -> dict[str, str]:
    """Return why an event parks or releases a run, by what the run then waits for."""
    match body:
        case b.RiskFlagged() if body.detail:
            return {f"operator:{body.flag}": body.detail}
        case b.PauseRequested() if body.reason:
            return {str(PAUSED): body.reason}
        case b.RunReleased() if body.retry_at is not None:
            return {"retry": f"released by its worker: {body.reason}"}
        case _:
            return {}


def _keys(state: RunState) -> list[str]:
    waits_for_retry = state.status == "pending" and state.wake is not None
    return ["retry"] if waits_for_retry else [str(wait) for wait in state.waits]
