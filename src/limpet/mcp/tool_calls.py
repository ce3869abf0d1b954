"""Calls of tools: every operation runs as the caller, its result is bounded, and a command runs once for its key."""

import asyncio
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from typing import Any

import mcp_types as t

from limpet.engine.execution.principal import Principal
from limpet.errors import InvalidArgument, LimpetError, NeedsPerson
from limpet.mcp.offer import McpCall, ToolOffer, ToolReply
from limpet.mcp.person_forms import Proposed, form_of, how_to_decide, key_of, reply_of, send_decision
from limpet.mcp.run_tasks import created
from limpet.mcp.tool_results import MAX_RESULT, fitted, items_that_fit, refusal, result_of, size_of, tool_error
from limpet.mcp.tool_table import BEHIND_QUERY, QUERY, is_offered, query_tool, tool_of
from limpet.service.access import LOCAL, may
from limpet.service.operation import Operation
from limpet.service.resolve import open_request

__all__ = ["IDEMPOTENCY_KEY", "ToolTable", "operation_tools"]

IDEMPOTENCY_KEY = "limpet/idempotency_key"
"""Key in a call's metadata: a command that is repeated with the same value has no further effect."""
LONGEST_KEY = 255
FORM = "decision"
"""Key of the form in which a person decides."""
# Queries that bound their result themselves, and the parameter that says so.
OWN_SIZE = {"context": "max_bytes", "artifact": "limit", "value": "limit"}


class ToolTable:
    """The tools of a server by name."""

    def __init__(self, tools: Mapping[str, ToolOffer]) -> None:
        self._tools = tools
        self._schemas: dict[str, Mapping[str, Any]] = {}
        """Of the tools that were called."""

    def schema_of(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema of a tool's arguments, None for an unknown tool."""
        if name in self._tools and name not in self._schemas:
            self._schemas[name] = self._tools[name].shown(LOCAL).input_schema
        return self._schemas.get(name)

    def listed(self, call: McpCall) -> t.ListToolsResult:
        """Return the tools that a caller may use."""
        return t.ListToolsResult(
            tools=[each.shown(call.who) for each in self._tools.values() if each.is_listed and each.may_use(call.who)]
        )

    async def call(self, call: McpCall, wanted: t.CallToolRequestParams) -> ToolReply:
        """Call a tool. An error is returned as a result, so that a model can read it. Raises MCPError for an unknown
        tool.
        """
        tool = self._tools.get(wanted.name)
        if tool is None:
            known = ", ".join(name for name, each in self._tools.items() if each.is_listed and each.may_use(call.who))
            raise refusal(InvalidArgument(path="name", reason=f"there is no {wanted.name[:100]}, but {known}"))
        try:
            return await tool.run(call, wanted)
        except LimpetError as error:
            return tool_error(error)


def operation_tools(operations: Mapping[str, Operation]) -> list[ToolOffer]:
    """Return the tools of operations, and the tool that runs rare queries."""
    offered = [each for each in operations.values() if is_offered(each)]
    behind = [each for each in offered if each.name in BEHIND_QUERY]
    return [*(_tool(each) for each in offered), *([_query(behind)] if behind else [])]


def _tool(operation: Operation) -> ToolOffer:
    async def run(call: McpCall, wanted: t.CallToolRequestParams) -> ToolReply:
        given = dict(wanted.arguments or {})
        if operation.is_command and wanted.request_state is not None:
            return await decided(call, Proposed(operation.name, given), wanted)
        try:
            found = await run_bounded(call, operation, given)
            return created(found) if operation.name == "start" and call.has_tasks else result_of(found)
        except NeedsPerson as error:
            return await ask_person(call, Proposed(operation.name, given), error.request)

    tool = cache(lambda: tool_of(operation))  # not now: `limpet mcp` answers before anything asks for all tools
    return ToolOffer(
        name=operation.name,
        shown=lambda _: tool(),
        run=run,
        may_use=lambda who: may(who, *operation.needs),
        is_listed=operation.name not in BEHIND_QUERY,
    )


def _query(behind: list[Operation]) -> ToolOffer:
    by_name = {each.name: each for each in behind}

    async def run(call: McpCall, wanted: t.CallToolRequestParams) -> ToolReply:
        given = dict(wanted.arguments or {})
        size, name, arguments = given.pop("max_bytes", None), given.pop("name", None), given.pop("arguments", {})
        if name not in by_name:
            raise InvalidArgument(path="name", reason=f"must be one of {', '.join(by_name)}")
        if given or not isinstance(arguments, dict):
            raise InvalidArgument(path=next(iter(given), "arguments"), reason="pass name, arguments and max_bytes")
        more = {} if size is None else {"max_bytes": size}
        return result_of(await run_bounded(call, by_name[name], {**arguments, **more}))

    def shown(who: Principal) -> t.Tool:
        return query_tool(each for each in behind if may(who, *each.needs))

    needs = {need for each in behind for need in each.needs}
    return ToolOffer(name=QUERY, shown=shown, run=run, may_use=lambda who: may(who, *needs))


async def run_bounded(call: McpCall, operation: Operation, arguments: dict[str, Any]) -> Any:
    """Run an operation for the caller, and return its result as JSON of limited size. Raises LimpetError."""
    if operation.is_command:
        work = call.run(operation.name, arguments, command_id=command_id_of(call, operation.name))
        # A client that leaves cancels its request, not a command that may be written already.
        return fitted(await asyncio.shield(asyncio.ensure_future(work)), MAX_RESULT)
    own = OWN_SIZE.get(operation.name)
    if own is not None and own in arguments:
        return await call.run(operation.name, arguments)
    size = size_of(arguments)
    if own is not None:
        return await call.run(operation.name, {**arguments, own: size})
    found = await call.run(operation.name, arguments)
    fitting, count = (
        items_that_fit(found, size),
        next((each for each in ("limit", "last") if each in operation.sent), ""),
    )
    if fitting is None or not count or fitting >= len(found["items"]):
        return fitted(found, size)
    whole = len(found["items"])
    found = fitted(await call.run(operation.name, {**arguments, count: fitting}), size)
    parts = [f"$.items: {whole - fitting} of {whole} items", *found.get("left_out", {}).get("parts", ())]
    return {**found, "left_out": {"parts": parts, "read": "Pass `next` as cursor, or a larger max_bytes."}}


async def ask_person(call: McpCall, proposed: Proposed, request: str) -> ToolReply:
    """Show the person at the client a form, or return an error that says where they decide."""
    found = await open_request(call.app.store, request)
    form = form_of(found, proposed) if call.has_forms else None
    if form is None or not (call.is_modern or call.context.session.can_send_request):
        return result_of(await how_to_decide(call, found), is_error=True)
    if call.is_modern:
        return t.InputRequiredResult(input_requests={FORM: form.shown}, request_state=key_of(found))
    params = form.shown.params
    assert isinstance(params, t.ElicitRequestFormParams)
    reply = await call.context.session.elicit_form(params.message, params.requested_schema, call.context.request_id)
    return result_of(await send_decision(call, key_of(found), reply_of(reply), proposed))


async def decided(call: McpCall, proposed: Proposed, wanted: t.CallToolRequestParams) -> ToolReply:
    """Record the decision of a form. The request state was sealed by this server for this caller and these arguments;
    it names what the form showed.
    """
    assert wanted.request_state is not None
    reply = reply_of((wanted.input_responses or {}).get(FORM))
    return result_of(await send_decision(call, wanted.request_state, reply, proposed))


def command_id_of(call: McpCall, operation: str) -> str | None:
    """Return the id of a command with an idempotency key. The same key of another caller is another command."""
    key = (call.context.meta or {}).get(IDEMPOTENCY_KEY)
    if key is None:
        return None
    if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY:
        reason = f"must be a text of 1 to {LONGEST_KEY} characters"
        raise InvalidArgument(path=IDEMPOTENCY_KEY, reason=reason)
    parts = ("mcp", call.who.tenant, call.who.name, operation, key)
    return f"key-{sha256(chr(0).join(parts).encode(errors='surrogatepass')).hexdigest()[:40]}"
