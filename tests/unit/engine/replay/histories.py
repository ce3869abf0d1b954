"""Histories for tests of replay, made from event bodies in order."""

from limpet.engine.replay.history import History
from limpet.events import START, AnyBody, inline, seal_all
from limpet.events import bodies as b
from limpet.events.parts import Failure

FAILURE = Failure(type="builtins.ValueError")


def history_of(*bodies: AnyBody) -> History:
    """Return the history of these bodies, from sequence 1 on."""
    history = History()
    for sealed in seal_all(START, "r1", bodies, time=1, fence=1, actor="w1"):
        history.learn(sealed.event, sealed.body)
    return history


def started(name: str, number: int = 1, *, effect: str = "idempotent", attempt: int = 1, asked: str = "a") -> AnyBody:
    """Return the start of an attempt."""
    fields = {"name": name, "tool": "t", "number": number, "attempt": attempt, "asked": asked, "effect": effect}
    return b.StepStarted(args=inline([]), **fields)  # type: ignore[arg-type]


def completed(name: str, number: int = 1) -> b.StepCompleted:
    """Return the completion of a step."""
    return b.StepCompleted(name=name, number=number, attempt=1, output=inline(number))


def failed(name: str, number: int = 1, *, again_at: int | None = None) -> b.StepFailed:
    """Return the failure of an attempt."""
    return b.StepFailed(name=name, number=number, attempt=1, failure=FAILURE, retry_at=again_at)
