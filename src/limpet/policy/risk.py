"""Decide whether a step needs approval before it starts."""

from collections.abc import Iterable

from msgspec import Struct

from limpet.arguments import defining
from limpet.clock import Duration, microseconds
from limpet.errors import DefinitionError
from limpet.events import Constraints, approval_levels
from limpet.state.run import Grant

__all__ = ["Approvals", "AskPerson", "Free", "decide"]


@defining
class Approvals:
    """Which risks need approval, whose, how long the request is open, and how long an approval is valid.

    `expires` limits the time to answer. `valid` limits the time to use an approval; without it, the run's deadline
    does. Where people authenticate, the person who started a run may not approve its steps, unless `self_approval` is
    set.
    """

    def __init__(
        self,
        *risks: str,
        to: str | Iterable[str] = "anyone",
        expires: Duration | None = None,
        escalate: Iterable[str] = (),
        valid: Duration | None = None,
        self_approval: bool = False,
    ) -> None:
        self.risks = frozenset(risks)
        self.to = (to,) if isinstance(to, str) else tuple(to)
        self.expires = None if expires is None else microseconds(expires)
        self.escalate = tuple(escalate)
        self.valid = None if valid is None else microseconds(valid)
        self.self_approval = self_approval
        if self.escalate and self.expires is None:
            raise DefinitionError(what="Approvals", reason="escalate= needs expires=")


class Free(Struct, frozen=True):
    """The step may start; `grant` is the approval that it uses, if it needs one."""

    grant: str | None = None


class AskPerson(Struct, frozen=True, kw_only=True):
    """The step may not start before one of these people approves it."""

    to: tuple[str, ...]
    expires: int | None
    """Microseconds from now."""
    escalate: tuple[str, ...]
    valid: int | None = None
    """Microseconds from the answer."""
    self_approval: bool = False
    """Whether the person who started the run may approve it."""


_NO_APPROVALS = Approvals()


def decide(
    risk: str | None,
    tool: str,
    *,
    approvals: Approvals | None,
    constraints: Constraints | None,
    grants: Iterable[Grant] = (),
    always: bool = False,
) -> Free | AskPerson:
    """Decide whether a tool with this risk may start. Without a risk it may, unless `always` is set."""
    approvals = approvals or _NO_APPROVALS
    required = approvals.risks | frozenset(approval_levels(constraints))
    if not always and (risk is None or risk not in required):
        return Free()
    for grant in grants:
        if grant.standing and (grant.tool == tool or (risk is not None and grant.risk == risk)):
            return Free(grant.grant)
    return AskPerson(
        to=approvals.to,
        expires=approvals.expires,
        escalate=approvals.escalate,
        valid=approvals.valid,
        self_approval=approvals.self_approval,
    )
