"""Who sends a command: a person, a service or an agent, and through which interface."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Principal", "principal_of"]


@dataclass(frozen=True, kw_only=True)
class Principal:
    """The sender of a command. Its name and interface are recorded where an event has a place for them."""

    name: str
    kind: Literal["person", "service", "agent"] = "person"
    groups: tuple[str, ...] = ()
    """Groups that the sender belongs to, in addition to those that the app knows."""
    door: str = ""
    """The interface through which the command came; the app's own by default."""


def principal_of(who: "Principal | str | None") -> Principal:
    """Return a sender; a text is the name of a person, and None is unknown."""
    return who if isinstance(who, Principal) else Principal(name=who or "")
