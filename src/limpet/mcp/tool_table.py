"""The tools of operations: which are offered over MCP, and how clients see them. The whole list stays small.

A list of tools costs tokens in every conversation. So descriptions are one sentence, parameters that explain themselves
have none, rare parameters are not offered, and rare queries are behind one tool, `query`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import mcp_types as t

from limpet.service.operation import Operation, Parameter

__all__ = ["BEHIND_QUERY", "QUERY", "WAIT", "is_offered", "query_tool", "tool_of", "wait_tool"]

QUERY, WAIT = "query", "wait"
BEHIND_QUERY = frozenset({
    *("task", "tasks", "info", "input", "compare", "prompt", "timeline", "lineage", "value", "precedents", "grants"),
    *("scores", "conversations", "sessions", "decisions", "calls", "errors", "workers", "stats", "activity", "doctor"),
    *("verify", "artifact", "messages", "log", "steps", "search", "records", "record_changes"),
})  # fmt: skip
"""Queries that `query` runs. They are not tools of their own in the list."""
# Parameters that the list does not show.
HIDDEN: Mapping[str, frozenset[str]] = {
    "start": frozenset({"state", "constraints", "at", "labels", "user"}),
    "fork": frozenset({"seq", "results", "reads", "model", "version", "budget", "deadline"}),
    "runs": frozenset({"parent", "fork_of", "labels", "scored", "until", "conversation", "user"}),
    "patch": frozenset({"source", "derived_from", "lower", "flags"}),
    "state": frozenset({"at", "steps"}),
    "patch_record": frozenset({"source", "derived_from"}),
    "inbox": frozenset({"older_than", "risk"}),
}
# Parameters that need no description.
PLAIN = frozenset({
    *("run", "cursor", "limit", "last", "request", "conversation", "agent", "session", "text", "goal", "reason", "id"),
    *("name", "step", "max_tokens", "value", "since", "interrupt", "to", "because", "retract", "record"),
    *("questions", "sort", "status", "answered", "plan", "facts", "waits_for", "data"),
    *("before", "after", "close", "unset"),
})  # fmt: skip
SHORTER = {
    "state": "Show what a run knew, had done and decided: now, before or after a step, or after an event.",
    "runs": "List the newest runs, their status, and what each waits for.",
    "fork": "Start a run that shares the events of another up to a step, and continues on its own.",
    "context": "Show the part of a run's state and messages that fits, now or before or after a step.",
    "approve": "Ask the person at the client to approve or reject a tool call of a run.",
    "reject": "Ask the person at the client to reject or approve a tool call of a run.",
}
INTEGER = {"type": "integer"}


def is_offered(operation: Operation) -> bool:
    """Return whether an operation is a tool."""
    return "mcp" in operation.doors and not operation.is_stream


def tool_of(operation: Operation) -> t.Tool:
    """Return the tool of an operation."""
    schema = operation.schema
    hidden = HIDDEN.get(operation.name, frozenset())
    properties = {
        name: _short(schema["properties"][name], each) for name, each in operation.sent.items() if name not in hidden
    }
    if not operation.is_command:
        properties["max_bytes"] = INTEGER
    return t.Tool(
        name=operation.name,
        description=SHORTER.get(operation.name, operation.summary),
        input_schema=_object(properties, schema["required"], schema.get("$defs")),
        annotations=_annotations(operation),
    )


def query_tool(queries: Iterable[Operation]) -> t.Tool:
    """Return the tool that runs the queries behind it."""
    calls = ", ".join(f"{each.name}({', '.join(_signature(each))})" for each in queries)
    properties = {"name": {"type": "string"}, "arguments": {"type": "object"}, "max_bytes": INTEGER}
    return t.Tool(
        name=QUERY,
        description=f"Run another query; a parameter with ? is optional: {calls}",
        input_schema=_object(properties, ["name"]),
        annotations=t.ToolAnnotations(read_only_hint=True, open_world_hint=False),
    )


def wait_tool() -> t.Tool:
    """Return the tool that waits for a run."""
    return t.Tool(
        name=WAIT,
        description="Wait until a run has ended, or some seconds. Reports progress; asks the person if the run does.",
        input_schema=_object({"run": {"type": "string"}, "seconds": {**INTEGER, "maximum": 60}}, ["run"]),
        annotations=t.ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True),
    )


def _signature(operation: Operation) -> list[str]:
    common = ("last", "limit", "raw", "whole")
    return [name + ("" if each.is_required else "?") for name, each in operation.sent.items() if name not in common]


def _annotations(operation: Operation) -> t.ToolAnnotations:
    if not operation.is_command:
        return t.ToolAnnotations(read_only_hint=True, open_world_hint=False)
    return t.ToolAnnotations(
        read_only_hint=False, destructive_hint=operation.is_destructive, idempotent_hint=operation.is_idempotent
    )


def _object(properties: Mapping[str, Any], required: list[str], parts: Any = None) -> dict[str, Any]:
    whole: dict[str, Any] = {"type": "object", "properties": dict(properties)}
    if required:
        whole["required"] = required
    return {**whole, "additionalProperties": False, **({"$defs": parts} if parts else {})}


def _short(schema: Mapping[str, Any], parameter: Parameter) -> dict[str, Any]:
    """Return the schema of a parameter in fewer words: without null, examples, defaults and limits."""
    dropped = ("anyOf", "examples", "default", "minimum", "maximum", "description", "additionalProperties")
    found = {name: value for name, value in schema.items() if name not in dropped}
    kinds = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    for kind in kinds if len(kinds) == 1 else ():
        found |= {name: value for name, value in kind.items() if name not in dropped}
    if len(kinds) > 1:
        found["anyOf"] = kinds
    is_plain = parameter.name in PLAIN
    return (
        found if is_plain or not parameter.about.description else {**found, "description": parameter.about.description}
    )
