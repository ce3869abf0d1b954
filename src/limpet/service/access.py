"""Who may use which operation: the permissions that operations need, and the roles that hold them.

Roles apply where callers authenticate: over HTTP and MCP. Code that opens the app itself, and the command line on the
same machine, can read and write the store anyway.
"""

from collections.abc import Collection, Mapping
from typing import Literal, get_args

from limpet.engine.execution.principal import Principal, Right, Role
from limpet.errors import NotPermitted

__all__ = [
    "LOCAL",
    "PRINCIPAL",
    "RECHECK",
    "RELEASE",
    "ROLES",
    "STOPPING",
    "Permission",
    "check_permission",
    "check_right",
    "may",
    "not_permitted",
    "roles_with",
]

PRINCIPAL = "limpet.principal"
"""Key of the authenticated caller in the scope of a request."""
RECHECK = "limpet.recheck"
"""Key in the scope of a request: a function that returns its caller, None if the token is not valid any more."""
RELEASE = "limpet.release"
"""Key in the scope of a request: a function that ends its turn, for a request that only waits from then on."""
STOPPING = "limpet.stopping"
"""Key in the scope of a request: an event that is set when the server stops."""

Permission = Literal["look", "payloads", "control", "write", "decide", "audit", "maintain"]
"""A permission: see runs without their data; see that, too; change runs; patch shared records; decide requests; see who
did what; change the store itself.
"""
ROLES: Mapping[Role, frozenset[Permission]] = {
    "viewer": frozenset({"look"}),
    "operator": frozenset({"look", "payloads", "control", "write"}),
    "writer": frozenset({"look", "write"}),
    "approver": frozenset({"decide"}),
    "auditor": frozenset({"look", "payloads", "audit"}),
    "worker": frozenset(),
    "admin": frozenset({"look", "maintain"}),
}
assert set(ROLES) == set(get_args(Role))
LOCAL = Principal(name="", roles=tuple(ROLES), rights=get_args(Right))
"""A caller on the same machine, who can read the store anyway."""


def roles_with(needs: Collection[Permission]) -> tuple[Role, ...]:
    """Return the roles that may use an operation with one of these permissions."""
    return tuple(role for role, held in ROLES.items() if not held.isdisjoint(needs))


def may(who: Principal, *needs: Permission) -> bool:
    """Return whether a caller has a role with one of these permissions."""
    return any(not ROLES[role].isdisjoint(needs) for role in who.roles)


def check_permission(who: Principal, operation: str, needs: Collection[Permission]) -> None:
    """Raise NotPermitted unless a caller has a role with one of these permissions."""
    if not may(who, *needs):
        raise not_permitted(who, operation, needs)


def not_permitted(who: Principal, operation: str, needs: Collection[Permission]) -> NotPermitted:
    """Return the error for a caller without a role that an operation needs."""
    roles, fix = roles_with(needs), ""
    if who.door == "mcp" and not who.address:
        fix = f"Start the server with one of these roles: {', '.join(roles)}, such as `limpet mcp --role {roles[0]}`."
    return NotPermitted(operation=operation, by=who.name, roles=roles, fix=fix)


def check_right(who: Principal, operation: str, parameter: str, right: Right | None) -> None:
    """Raise NotPermitted unless a caller has the right that a parameter needs, if it needs one."""
    if right is not None and right not in who.rights:
        fix = f"It needs the right `{right}`. An admin creates a token with it: `limpet token create`."
        raise NotPermitted(operation=f"{operation} with {parameter}", by=who.name, roles=(), fix=fix)
