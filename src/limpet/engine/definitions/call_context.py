"""Where code runs, and what a tool's code can ask about its step: its key, its attempt, how to say how far it is."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from limpet.arguments import checked
from limpet.errors import WrongCall
from limpet.events import Payload, Spent, inline
from limpet.redaction import NOTHING, Redaction, hide_secrets
from limpet.secret import hidden

__all__ = ["Call", "current", "enter_agent", "header_key", "idempotency_key", "in_tool", "is_in_agent"]

_current: ContextVar["Call | None"] = ContextVar("limpet_call", default=None)
_in_agent: ContextVar[bool] = ContextVar("limpet_in_agent", default=False)


@checked
class Call:
    """One attempt of a step, as its tool sees it. May be used from any thread."""

    def __init__(
        self,
        key: str,
        attempt: int,
        *,
        sends: str = "",
        undoes: str = "",
        told: Callable[[], object] = lambda: None,
        redaction: Redaction = NOTHING,
    ) -> None:
        self._key, self._undoes, self._told, self._redaction = key, undoes, told, redaction
        self.sends = sends
        """What goes out as `Idempotency-Key` by itself; nothing in a read and in a `verify`."""
        self.attempt = attempt
        """Counted from 1."""
        self.transaction: Any = None
        """The store's open connection, in a tool whose writes commit with the event."""
        self.note = ""
        self.fraction: float | None = None
        self.partial_value: Payload | None = None
        self.late: asyncio.Future[Any] | None = None
        """What a function on a thread returned after it had been given up."""
        self._tokens, self._cost = 0, 0.0

    @property
    def key(self) -> str:
        """The idempotency key, the same on every attempt and resume; an error in a tool without effect."""
        if not self._key:
            raise _not_in_step("An idempotency key", 'Declare effect="idempotent" or "once" on the tool.')
        return self._key

    @property
    def original_key(self) -> str:
        """The key of the action that a `compensate` undoes; an error anywhere else."""
        if not self._undoes:
            raise _not_in_step("The key of an action to undo", "Read it inside a `compensate` function.")
        return self._undoes

    def progress(self, note: str, fraction: float | None = None) -> None:
        """Say how far it is; shown to whoever looks, and a sign of life."""
        self.note, self.fraction = hide_secrets(note), fraction
        self._told()

    def partial(self, value: Any) -> None:
        """Say what there is so far: it is recorded, and handed to the compensation if there will be no result."""
        self.partial_value = inline(self._redaction.value(hidden(value)))
        self._told()

    def spent(self, *, tokens: int = 0, cost: float = 0) -> None:
        """Say what this used up, on top of what was said before: the budget must know."""
        self._tokens += tokens
        self._cost += cost

    @property
    def total(self) -> Spent | None:
        """All that was said to be used up."""
        return Spent(tokens=self._tokens, cost=self._cost) if self._tokens or self._cost else None


def _not_in_step(wanted: str, fix: str) -> WrongCall:
    return WrongCall(reason=f"{wanted} is only available in a tool that a step runs", fix=fix)


def current() -> Call:
    """The step that runs this code."""
    call = _current.get()
    if call is None:
        raise _not_in_step("limpet.current()", "Move the call into a tool.")
    return call


def idempotency_key() -> str:
    """The key of the action that this code performs or checks; in a `compensate`, the undo's own key."""
    return current().key


def header_key() -> str:
    """What to send as `Idempotency-Key` from here; nothing where there is none."""
    call = _current.get()
    return call.sends if call is not None else ""


def is_in_agent() -> bool:
    """Whether this is an agent's own code, where only what goes through its run is durable."""
    return _in_agent.get()


def enter_agent() -> None:
    """What follows in this task or thread is an agent's own code."""
    _in_agent.set(True)


class in_tool:  # noqa: N801 - used like a function
    """What is called inside is a tool's code, and belongs to this attempt; in tasks that it starts too."""

    __slots__ = ("_call", "_tokens")

    def __init__(self, call: Call) -> None:
        self._call = call

    def __enter__(self) -> None:
        self._tokens = _in_agent.set(False), _current.set(self._call)

    def __exit__(self, *exc: object) -> None:
        outer, before = self._tokens
        _current.reset(before)
        _in_agent.reset(outer)
