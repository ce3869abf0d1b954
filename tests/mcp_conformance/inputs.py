"""Tools of the official suite that need input of the client (SEP-2322). The server seals the state that they send."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as t

from limpet.mcp.offer import McpCall, ToolOffer, ToolReply
from tests.mcp_conformance.content import text_result, tool

__all__ = ["asking", "elicit", "filled", "input_tools", "needs"]

ROOTS: dict[str, Any] = {"method": "roots/list", "params": {}}
Responses = Mapping[str, Any]


def elicit(message: str, field: str, kind: str = "string") -> dict[str, Any]:
    """Return a request for one field."""
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}}


def sample(question: str, most: int) -> dict[str, Any]:
    """Return a request for a model's reply."""
    message = {"role": "user", "content": {"type": "text", "text": question}}
    return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": most}}


def needs(requests: Mapping[str, Any], state: str | None = None) -> t.InputRequiredResult:
    """Return a reply that asks for input."""
    return t.InputRequiredResult.model_validate({"inputRequests": dict(requests), "requestState": state})


def filled(responses: Responses, key: str) -> Any:
    """Return what the client sent for a key, None if it is missing or was declined."""
    found = responses.get(key)
    if isinstance(found, t.ElicitResult):
        return found.content if found.action == "accept" else None
    return found


def asking(
    name: str, requests: Mapping[str, Any], done: Callable[[Responses], str], state: str | None = None
) -> ToolOffer:
    """Return a tool that asks until it has an answer for each key."""

    async def run(_: McpCall, wanted: t.CallToolRequestParams) -> ToolReply:
        given = wanted.input_responses or {}
        if not given or any(filled(given, key) is None for key in requests):
            return needs(requests, state)
        return text_result(done({key: filled(given, key) for key in requests}))

    return tool(name, run)


async def _multi_round(_: McpCall, wanted: t.CallToolRequestParams) -> ToolReply:
    given = wanted.input_responses or {}
    if wanted.request_state is None:
        return needs({"step1": elicit("Step 1: What is your name?", "name")}, "1")
    at = wanted.request_state
    if at == "1" and filled(given, "step1") is not None:
        return needs({"step2": elicit("Step 2: What is your favorite color?", "color")}, "2")
    if at == "2" and filled(given, "step2") is not None:
        return text_result(f"done: {filled(given, 'step2')['color']}")
    return needs({f"step{at}": elicit(f"Step {at}, again", "name" if at == "1" else "color")}, at)


async def _by_capability(call: McpCall, wanted: t.CallToolRequestParams) -> ToolReply:
    known = call.context.session.client_capabilities
    can = {
        "user_name": (elicit("What is your name?", "name"), known and known.elicitation),
        "greeting": (sample("Generate a greeting", 50), known and known.sampling),
    }
    if wanted.input_responses:
        return text_result("done")
    asked = {key: request for key, (request, capability) in can.items() if capability is not None}
    return needs(asked) if asked else text_result("nothing to ask")


def input_tools() -> list[ToolOffer]:
    """Return the tools that ask for input."""
    name = elicit("What is your name?", "name")
    confirm = elicit("Please confirm", "ok", "boolean")
    several = {"user_name": name, "greeting": sample("Generate a greeting", 50), "client_roots": ROOTS}
    prefix = "test_input_required_result"
    return [
        asking(f"{prefix}_elicitation", {"user_name": name}, lambda found: f"Hello, {found['user_name']['name']}!"),
        asking(
            f"{prefix}_sampling",
            {"capital_question": sample("What is the capital of France?", 100)},
            lambda found: f"It said: {found['capital_question'].content}",
        ),
        asking(
            f"{prefix}_list_roots",
            {"client_roots": ROOTS},
            lambda found: json.dumps([str(each.uri) for each in found["client_roots"].roots]),
        ),
        asking(f"{prefix}_request_state", {"confirm": confirm}, lambda _: "state-ok", "confirm"),
        asking(f"{prefix}_multiple_inputs", several, lambda _: "done", "several"),
        asking(f"{prefix}_tampered_state", {"confirm": confirm}, lambda _: "done", "tampered"),
        tool(f"{prefix}_multi_round", _multi_round),
        tool(f"{prefix}_capabilities", _by_capability),
    ]
