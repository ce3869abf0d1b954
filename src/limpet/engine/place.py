"""Where code is running: in an agent's function, in a tool, or outside of any run."""

from contextvars import ContextVar
from typing import Literal

__all__ = ["enter_agent", "entered", "is_in_agent"]

_place: ContextVar[Literal["agent", "tool", "outside"]] = ContextVar("limpet_place", default="outside")


def is_in_agent() -> bool:
    """Whether this is an agent's own code, where only what goes through its run is durable."""
    return _place.get() == "agent"


def enter_agent() -> None:
    """What follows in this task or thread is an agent's own code."""
    _place.set("agent")


class entered:  # noqa: N801 - used like a function
    """What is called inside runs there, in tasks that it starts too."""

    __slots__ = ("_name", "_token")

    def __init__(self, place: Literal["agent", "tool"]) -> None:
        self._name: Literal["agent", "tool"] = place

    def __enter__(self) -> None:
        self._token = _place.set(self._name)

    def __exit__(self, *exc: object) -> None:
        _place.reset(self._token)
