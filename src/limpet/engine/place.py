"""Where code is running: in an agent's function, in a tool, or outside of any run."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

__all__ = ["entered", "is_in_agent"]

_place: ContextVar[Literal["agent", "tool", "outside"]] = ContextVar("limpet_place", default="outside")


def is_in_agent() -> bool:
    """Whether this is an agent's own code, where only what goes through its run is durable."""
    return _place.get() == "agent"


@contextmanager
def entered(place: Literal["agent", "tool"]) -> Iterator[None]:
    """What is called inside runs there, in tasks that it starts too."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)
