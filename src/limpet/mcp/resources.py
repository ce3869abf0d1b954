"""MCP resources: the state of a run at a URI, so that one agent can continue another's work."""

import re
from typing import Any, NotRequired, TypedDict
from urllib.parse import quote, unquote

from limpet.engine.execution.principal import Principal
from limpet.errors import InvalidArgument, NotFound
from limpet.redaction import hide_secrets_in
from limpet.service.access import check_permission
from limpet.service.app import App
from limpet.service.operation import operations_of
from limpet.service.resolve import run_of

__all__ = ["CONTEXT", "STATE", "StateResource", "address_of", "read"]

STATE = "state://agents/{agent}/tasks/{task}"
CONTEXT = "limpet://runs/{run}/context"


class StateResource(TypedDict):
    """The state of an agent's task."""

    uri: str
    agent_id: str
    task_id: str
    state: str
    """Status of the run."""
    plan: NotRequired[list[str]]
    artifacts: NotRequired[list[str]]
    """Ids of the artifacts."""


def address_of(agent: str, run: str) -> str:
    """Return the URI of a run's state."""
    return STATE.format(agent=quote(agent, safe=""), task=quote(run, safe=""))


async def read(app: App, address: str, who: Principal) -> Any:
    """Return the content of a resource. Raises NotFound, and NotPermitted like the query with the same content."""
    if found := _match(STATE, address):
        check_permission(who, "state", operations_of(type(app))["state"].needs)
        return await _state(app, address, found["agent"], found["task"])
    if found := _match(CONTEXT, address):
        return await operations_of(type(app))["context"].run(app, found, who=who)
    raise InvalidArgument(path="uri", reason=f"there are {STATE} and {CONTEXT}, and no {address}")


async def _state(app: App, address: str, agent: str, run: str) -> StateResource:
    row = await run_of(app.store, run)
    if row.agent != agent:
        raise NotFound(what=f"run of {agent}", id=run)
    known = (await app.state(run)).working
    shown: StateResource = {"uri": address, "agent_id": agent, "task_id": run, "state": row.status}
    if known.plan:
        shown["plan"] = hide_secrets_in(list(known.plan))
    if known.artifacts:
        shown["artifacts"] = [each.artifact_id for each in known.artifacts]
    return shown


def _match(template: str, address: str) -> dict[str, str] | None:
    """Match a URI against a template; a value never contains a slash."""
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(template))
    found = re.fullmatch(pattern, address)
    return None if found is None else {name: unquote(value) for name, value in found.groupdict().items()}
