"""Who sends a command: a person, a service or an agent, and through which interface."""

from typing import Literal, TypedDict

from msgspec import Struct
from msgspec.structs import replace

__all__ = ["Principal", "Right", "Role", "Sender", "principal_of", "sent_by_run"]

Role = Literal["viewer", "operator", "writer", "approver", "auditor", "worker", "admin"]
"""A role of a caller over HTTP or MCP: look at runs, control them, patch shared records, decide requests, audit, work,
or maintain.
"""
Right = Literal["raw", "approve-by-agent"]
"""A right beyond the roles: read data that is not redacted; decide approvals as a service."""


class Sender(TypedDict):
    """The sender of a command, as an event records it."""

    by: str
    via: str


class Principal(Struct, frozen=True, kw_only=True):
    """The sender of a command. The command's event records the name and the interface."""

    name: str
    kind: Literal["person", "service", "agent"] = "person"
    groups: tuple[str, ...] = ()
    """Groups that the sender belongs to, in addition to those that the app knows."""
    door: str = ""
    """The interface through which the command came; the app's own by default."""
    roles: tuple[Role, ...] = ()
    """Roles of a caller over HTTP or MCP. Code that opens the app itself needs none."""
    rights: tuple[Right, ...] = ()
    """Rights beyond the roles."""
    tenant: str = ""
    """The store that the caller belongs to, if a server has several."""
    address: str = ""
    """Network address from which the caller sends a request."""
    is_confirmed: bool = False
    """Whether the person has confirmed this very command in a form of their MCP client. A model cannot."""

    @property
    def sender(self) -> Sender:
        """The fields of an event that record the sender."""
        return {"by": self.name, "via": self.door}


def principal_of(who: Principal | str | None, door: str) -> Principal:
    """Return a sender, with the door as its default interface; a text is the name of a person, and None is unknown."""
    given = who if isinstance(who, Principal) else Principal(name="" if who is None else str.__str__(who))
    return given if given.door else replace(given, door=door)


def sent_by_run(run: str) -> Sender:
    """Return the sender of a command that a run sends to another run."""
    return {"by": run, "via": "run"}
