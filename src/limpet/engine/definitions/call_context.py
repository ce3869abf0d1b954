"""The context of running code: whether it is agent code, and the current step of a tool (key, attempt, progress)."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from limpet.arguments import checked
from limpet.errors import WrongCall
from limpet.events import Payload, Spent, inline
from limpet.redaction import NOTHING, Redaction, hide_secrets
from limpet.secret import hidden

__all__ = [
    "Call",
    "current",
    "enter_agent",
    "enter_tool",
    "header_key",
    "idempotency_key",
    "in_tool",
    "is_in_agent",
    "is_in_tool",
    "leave_tool",
    "made_in_tool",
]

# The call of the running tool, AGENT in an agent's own code, None elsewhere.
_place: ContextVar["Call | str | None"] = ContextVar("limpet_place", default=None)
AGENT = "agent"
enter_tool, leave_tool = _place.set, _place.reset
"""Make the code that follows belong to a call, and end that; as functions of C, because each step calls them."""


@checked
class Call:
    """The current attempt of a step, for the code of its tool; `limpet.current()` returns it. Thread-safe."""

    transaction: Any = None
    """Open connection of the store, in a tool with `effect="transaction"`."""
    note = ""
    fraction: float | None = None
    late: "asyncio.Future[Any] | None" = None
    """Result of a function that still ran on its thread after its timeout."""
    _partial: Payload | Callable[[], Any] | None = None
    _tokens, _cost = 0, 0.0

    def __init__(
        self,
        key: str,
        attempt: int,
        *,
        sends: str = "",
        undoes: str = "",
        on_change: Callable[[], object] = lambda: None,
        redaction: Redaction = NOTHING,
    ) -> None:
        self._key, self._undoes, self._on_change, self._redaction = key, undoes, on_change, redaction
        self.sends = sends
        """Value of the `Idempotency-Key` header that HTTP hooks send; "" in a read and in a `verify`."""
        self.attempt = attempt
        """Number of this attempt, starting at 1."""

    @property
    def key(self) -> str:
        """Idempotency key, the same on every attempt and resume. Raises WrongCall in a tool with `effect="none"`."""
        if not self._key:
            reason = 'A tool with effect="none" has no idempotency key, because repeating it changes nothing'
            raise WrongCall(reason=reason, fix='Declare effect="idempotent" or "once" on the tool.')
        return self._key

    @property
    def original_key(self) -> str:
        """In a `compensate` function, the key of the step to undo. Raises WrongCall elsewhere."""
        if not self._undoes:
            raise _not_in_step("The key of an action to undo", "Read it inside a `compensate` function.")
        return self._undoes

    def progress(self, note: str, fraction: float | None = None) -> None:
        """Report progress as a note and, optionally, a fraction from 0 to 1. Limpet shows it to readers of the run."""
        self.note, self.fraction = hide_secrets(note), fraction
        self._on_change()

    def partial(self, value: Any) -> None:
        """Record a partial result. The compensation receives it if the step has no result."""
        self._partial = self._payload(value)
        self._on_change()

    def _partial_from(self, read: Callable[[], Any]) -> None:
        """Record a partial result that grows: `read` returns it when it is recorded, or None if there is none."""
        self._partial = read
        self._on_change()

    @property
    def partial_value(self) -> Payload | None:
        """The partial result, if there is one."""
        if not callable(self._partial):
            return self._partial
        value = self._partial()
        return None if value is None else self._payload(value)

    def _payload(self, value: Any) -> Payload:
        return inline(self._redaction.value(hidden(value)))

    def spent(self, *, tokens: int = 0, cost: float = 0) -> None:
        """Report tokens and cost that this call used. Repeated reports add up; the budget counts them."""
        self._tokens += tokens
        self._cost += cost

    @property
    def total(self) -> Spent | None:
        """Sum of the reported tokens and cost; None if nothing was reported."""
        return Spent(tokens=self._tokens, cost=self._cost) if self._tokens or self._cost else None


def _not_in_step(wanted: str, fix: str) -> WrongCall:
    return WrongCall(reason=f"{wanted} is only available in a tool that a step runs", fix=fix)


def current() -> Call:
    """Return the current step's `Call`. Raises WrongCall outside a tool that a step runs."""
    return _step_call("limpet.current()")


def _step_call(wanted: str) -> Call:
    call = _place.get()
    if not isinstance(call, Call):
        raise _not_in_step(wanted, "Move the call into a tool.")
    return call


def idempotency_key() -> str:
    """Return the idempotency key of the current step; in a `compensate`, the key of the compensation."""
    return _step_call("limpet.idempotency_key()").key


def header_key() -> str:
    """Return the `Idempotency-Key` header to send from here, or "" if there is none."""
    call = _place.get()
    return call.sends if isinstance(call, Call) else ""


def is_in_agent() -> bool:
    """Return whether this is an agent's own code, where only calls through its run are durable."""
    return _place.get() is AGENT


def is_in_tool() -> bool:
    """Return whether this is the code of a tool, or a task that it started."""
    return isinstance(_place.get(), Call)


def made_in_tool() -> WrongCall:
    """Return the error for a durable call in a tool.

    A recorded step is not called again, so the next execution would not make the call, and diverge from the log.
    """
    reason = (
        "A method of run was called inside a tool. Call it in the agent's code: a tool is not called again once its "
        "result is recorded"
    )
    fix = "Pass what the tool needs as arguments."
    return WrongCall(reason=reason, fix=fix)


def enter_agent() -> None:
    """Mark the rest of this task or thread as an agent's own code."""
    _place.set(AGENT)


class in_tool:  # noqa: N801 - used like a function
    """Context in which code belongs to a tool's attempt, including the tasks that it starts."""

    __slots__ = ("_before", "_call")

    def __init__(self, call: Call) -> None:
        self._call = call

    def __enter__(self) -> None:
        self._before = _place.set(self._call)

    def __exit__(self, *exc: object) -> None:
        _place.reset(self._before)
