"""The resources of a Limpet: one entry for each kind, with the operation that reads it.

To offer another kind, add an entry to `RESOURCES`: its URI template, the operation that returns its content, and what
announces a change of it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NotRequired, TypedDict

import mcp_types as t
from msgspec import Struct

from limpet.errors import InvalidArgument, NotFound
from limpet.mcp.offer import McpCall, ResourceOffer
from limpet.mcp.tool_results import MARK, json_text
from limpet.mcp.uris import filled
from limpet.redaction import hide_secrets_in
from limpet.service.access import check_permission, may
from limpet.service.operation import Operation, limpet_errors
from limpet.service.resolve import run_of
from limpet.stores.writes import RECORD as RECORD_ID

__all__ = ["RESOURCES", "STATE", "ResourceKind", "StateResource", "operation_resources", "state_uri"]

STATE = "state://agents/{agent}/tasks/{task}"
RECORD = "state://records/{record}"
RUN = "limpet://runs/{run}"
JSON = "application/json"
# How long a client may keep content that never changes, in milliseconds.
FIXED = 3_600_000
# Largest artifact that is read as a whole, in bytes.
WHOLE_ARTIFACT = 1_000_000
Values = Mapping[str, str]
Reader = Callable[[McpCall, str, Values], Awaitable[Any]]


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


class ResourceKind(Struct, frozen=True, kw_only=True):
    """A kind of resource, which an operation reads."""

    template: str
    name: str
    operation: str
    """Operation whose permission applies, and which returns the content unless `reader` does."""
    description: str = ""
    """Default: that of the operation."""
    parameters: Mapping[str, str] = {}
    """Parameters of the operation by variable, where the names differ."""
    fixed: Mapping[str, Any] = {}
    """Further arguments of the operation."""
    reader: Reader | None = None
    watches: str | Callable[[McpCall, Values], Awaitable[str]] = "run:{run}"
    """Name under which a change is announced, with variables in braces; empty if none is announced."""
    is_fixed: bool = False
    """Whether the content never changes."""
    mime: str = JSON


def state_uri(agent: str, run: str) -> str:
    """Return the URI of a run's state."""
    return filled(STATE, {"agent": agent, "task": run})


def operation_resources(operations: Mapping[str, Operation]) -> list[ResourceOffer]:
    """Return the resources that the operations of an app read."""
    return [_offer(each, operations[each.operation]) for each in RESOURCES if each.operation in operations]


def _offer(kind: ResourceKind, operation: Operation) -> ResourceOffer:
    async def read(call: McpCall, uri: str, values: Values) -> t.ReadResourceResult:
        with limpet_errors(uri):
            if kind.reader is not None:
                check_permission(call.who, operation.name, operation.needs)
                found = await kind.reader(call, uri, values)
            else:
                given = {kind.parameters.get(name, name): value for name, value in values.items()}
                found = await call.run(operation.name, {**given, **kind.fixed})
        if isinstance(found, t.ReadResourceResult):
            return found
        ttl = FIXED if kind.is_fixed else 0
        content = t.TextResourceContents(uri=uri, mime_type=kind.mime, text=json_text(found), _meta=MARK)
        return t.ReadResourceResult(contents=[content], ttl_ms=ttl, cache_scope="private")

    async def watches(call: McpCall, values: Values) -> str:
        return kind.watches.format_map(values) if isinstance(kind.watches, str) else await kind.watches(call, values)

    return ResourceOffer(
        template=kind.template,
        name=kind.name,
        description=kind.description or operation.summary,
        mime=kind.mime,
        read=read,
        may_use=lambda who: may(who, *operation.needs),
        watches=watches if kind.watches else None,
    )


async def _state(call: McpCall, uri: str, values: Values) -> StateResource:
    agent, run = values["agent"], values["task"]
    row = await run_of(call.app.store, run)
    if row.agent != agent:
        raise NotFound(what=f"run of {agent}", id=run)
    known = (await call.app.state(run)).working
    shown: StateResource = {"uri": uri, "agent_id": agent, "task_id": run, "state": row.status}
    if known.plan:
        shown["plan"] = hide_secrets_in(list(known.plan))
    if known.artifacts:
        shown["artifacts"] = [each.artifact_id for each in known.artifacts]
    return shown


async def _artifacts(call: McpCall, _: str, values: Values) -> Any:
    known = (await call.app.state(values["run"])).working.artifacts
    items = [
        {
            "uri": filled(ARTIFACT, {"run": values["run"], "artifact": each.artifact_id}),
            "type": each.type,
            "summary": each.summary,
            "bytes": each.bytes,
        }
        for each in known
    ]
    return hide_secrets_in({"items": items, "next": None})


async def _artifact(call: McpCall, uri: str, values: Values) -> t.ReadResourceResult:
    """Return an artifact as what it is. Raises InvalidArgument for one that has to be read in pieces."""
    known = {each.artifact_id: each for each in (await call.app.state(values["run"])).working.artifacts}
    about = known.get(values["artifact"])
    given = {"run": values["run"], "artifact": values["artifact"], "limit": WHOLE_ARTIFACT}
    found = await call.run("artifact", given)
    if found["next"] is not None:
        reason = f"has {found['bytes']} bytes; the tool `artifact` reads it in pieces"
        raise InvalidArgument(path="uri", reason=reason)
    mime = "text/plain" if about is None else about.type
    content = t.TextResourceContents(uri=uri, mime_type=mime, text=found["text"], _meta=MARK)
    return t.ReadResourceResult(contents=[content], ttl_ms=FIXED, cache_scope="private")


async def _conversation(call: McpCall, _: str, values: Values) -> Any:
    return await call.run("messages", {"conversation": (await call.app.info(values["run"])).conversation})


async def _watched_conversation(call: McpCall, values: Values) -> str:
    return f"run:{(await call.app.info(values['run'])).conversation}"


ARTIFACT = f"{RUN}/artifacts/{{artifact}}"
STEP = f"{RUN}/steps/{{step}}"
RESOURCES: tuple[ResourceKind, ...] = (
    ResourceKind(
        template=STATE,
        name="state",
        operation="state",
        description="Where the task of an agent is.",
        reader=_state,
        watches="run:{task}",
    ),
    ResourceKind(
        template=RECORD,
        name="record",
        operation="record",
        description="A record that several agents, people and services share, with the version that a patch names.",
        watches=f"run:{RECORD_ID}{{record}}",
    ),
    ResourceKind(
        template=f"{RECORD}/versions/{{version}}",
        name="record-version",
        operation="record",
        description="A shared record as it was at a version.",
        watches="",
        is_fixed=True,
    ),
    ResourceKind(template=RUN, name="run", operation="info"),
    ResourceKind(template=f"{RUN}/log", name="log", operation="log"),
    ResourceKind(template=f"{RUN}/steps", name="steps", operation="steps"),
    ResourceKind(template=STEP, name="step", operation="step"),
    ResourceKind(
        template=f"{STEP}/before",
        name="before-step",
        operation="state",
        description="State of a run just before a step.",
        parameters={"step": "before"},
        watches="",
        is_fixed=True,
    ),
    ResourceKind(
        template=f"{STEP}/after",
        name="after-step",
        operation="state",
        description="State of a run just after a step was settled.",
        parameters={"step": "after"},
        watches="",
        is_fixed=True,
    ),
    ResourceKind(template=f"{RUN}/diff{{?step,since,until}}", name="diff", operation="diff"),
    ResourceKind(template=f"{RUN}/context", name="context", operation="context"),
    ResourceKind(
        template=f"{RUN}/artifacts",
        name="artifacts",
        operation="context",
        description="Artifacts that a run has stored.",
        reader=_artifacts,
    ),
    ResourceKind(
        template=ARTIFACT,
        name="artifact",
        operation="artifact",
        reader=_artifact,
        watches="",
        is_fixed=True,
        mime="text/plain",
    ),
    ResourceKind(
        template=f"{RUN}/conversation",
        name="conversation",
        operation="messages",
        description="Newest messages of the conversation that a run takes part in.",
        reader=_conversation,
        watches=_watched_conversation,
    ),
    ResourceKind(template="limpet://inbox", name="inbox", operation="inbox", watches="inbox"),
    ResourceKind(template="limpet://sessions", name="sessions", operation="sessions", watches="runs"),
    ResourceKind(template="limpet://records", name="records", operation="records", watches="records"),
    ResourceKind(template="limpet://agents", name="agents", operation="agents", watches=""),
)
"""The kinds of resources, in the order in which clients see their templates."""
