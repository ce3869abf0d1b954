"""Event bodies with defaults for fields that a test ignores, and logs made of them."""

from collections.abc import Iterable, Sequence
from typing import Any

from limpet.events import START, AnyBody, Event, Failure, Head, StatePatch, Wait, inline, seal
from limpet.events import bodies as b
from limpet.state import RunState, fold

RUN = "run-1"
CREATED = b.RunCreated(agent="support", agent_version="1", input=inline({"order": "A-1"}))
CLAIMED = b.RunClaimed(worker="w-1")
RELEASED = b.RunReleased(reason="drain")
BOOM = Failure(type="builtins.ValueError", mro=("builtins.ValueError", "builtins.Exception"), message="boom")
CRASH = Failure(type="builtins.OSError", message="crash")
PERSON = Wait(what="person", key="q-1")
WAITING = b.RunWaiting(waits=(PERSON,), wake=5000)
RUN_COMPLETED = b.RunCompleted(output=inline("receipt"))
RUN_FAILED = b.RunFailed(failure=BOOM, number=1)
RUN_CANCELLED = b.RunCancelled(reason="no longer needed", by="ann")
CANCEL = b.CancelRequested(command="c-1", reason="no longer needed")
PAUSE = b.PauseRequested(command="c-2")
RESUME = b.ResumeRequested(command="c-3")
DIED = b.RunClaimed(worker="w-2", died=True)


def started(number: int = 1, attempt: int = 1, **more: Any) -> b.StepStarted:
    """Return the start of an attempt."""
    given: dict[str, Any] = {
        "name": f"refund#{number}",
        "tool": "refund",
        "asked": "",
        "args": inline([]),
        "effect": "once",
    } | more
    return b.StepStarted(number=number, attempt=attempt, **given)


def completed(number: int = 1, attempt: int = 1, **more: Any) -> b.StepCompleted:
    """Return the completion of an attempt."""
    given: dict[str, Any] = {"name": f"refund#{number}", "output": inline("ok")} | more
    return b.StepCompleted(number=number, attempt=attempt, **given)


def failed(number: int = 1, attempt: int = 1, **more: Any) -> b.StepFailed:
    """Return the failure of an attempt."""
    given: dict[str, Any] = {"name": f"refund#{number}", "failure": BOOM} | more
    return b.StepFailed(number=number, attempt=attempt, **given)


def unknown(number: int = 1, attempt: int = 1, **more: Any) -> b.StepUnknown:
    """Return an attempt with an unknown outcome."""
    given: dict[str, Any] = {"name": f"refund#{number}", "reason": "died"} | more
    return b.StepUnknown(number=number, attempt=attempt, **given)


def resolved(outcome: str, number: int = 1, attempt: int = 1, **more: Any) -> b.StepResolved:
    """Return the resolution of an unknown attempt."""
    given: dict[str, Any] = {"name": f"refund#{number}", "how": "person", "outcome": outcome} | more
    return b.StepResolved(number=number, attempt=attempt, **given)


def asked(request: str = "q-1", **more: Any) -> b.RequestOpened:
    """Return the opening of a request."""
    given: dict[str, Any] = {"name": "ask#1", "kind": "approval", "question": "may I?", "to": ("finance",)} | more
    return b.RequestOpened(request=request, **given)


def answered(request: str = "q-1", decision: str = "approved", **more: Any) -> b.RequestAnswered:
    """Return an answer to a request."""
    given: dict[str, Any] = {"command": f"c-{request}", "decision": decision, "by": "ann"} | more
    return b.RequestAnswered(request=request, **given)


def called(run: str = "run-1.helper-1", mode: str = "call", **more: Any) -> b.AgentCalled:
    """Return a call of another agent."""
    given: dict[str, Any] = {"name": "helper#1", "agent": "helper", "mode": mode, "asked": ""} | more
    return b.AgentCalled(run=run, **given)


def returned(run: str = "run-1.helper-1", **more: Any) -> b.AgentReturned:
    """Return the return of another agent."""
    given: dict[str, Any] = {"command": f"c-{run}", "outcome": "completed"} | more
    return b.AgentReturned(run=run, **given)


def decided(question: str = "refund?") -> b.DecisionMade:
    """Return a decision."""
    return b.DecisionMade(
        name="decide#1", question=question, chosen=inline("full"), options=inline(["none", "full"]), because="broken"
    )


def patched(**parts: Any) -> b.StatePatched:
    """Return a patch of the working state."""
    return b.StatePatched(name="patch#1", patch=StatePatch(**parts))


def forked(**more: Any) -> b.RunForked:
    """Return the creation of a fork."""
    given: dict[str, Any] = {"run": "run-1", "at": 2, "step": 0, "effects": "ask"} | more
    return b.RunForked(**given)


def log(
    *bodies: AnyBody, times: Sequence[int] | None = None, after: Head = START, run: str = RUN, fence: int = 0
) -> list[Event]:
    """Return the bodies as an intact log, by default ten microseconds apart, with a new fence for each claim."""
    events: list[Event] = []
    for place, body in enumerate(bodies):
        fence += isinstance(body, b.RunClaimed)
        time = times[place] if times is not None else 1000 + 10 * (after.seq + 1)
        events.append(seal(after, run, body, time=time, fence=fence, actor="worker:w-1").event)
        after = events[-1].head
    return events


def state_after(*bodies: AnyBody, times: Sequence[int] | None = None) -> RunState:
    """Return the state of a run that was created and claimed, after these bodies."""
    return fold(log(CREATED, CLAIMED, *bodies, times=times))


def statuses(bodies: Iterable[AnyBody]) -> list[str]:
    """Return the status of a run after each of the bodies."""
    events = log(*bodies)
    return [fold(events[: end + 1]).status for end in range(len(events))]
