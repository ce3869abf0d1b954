"""The tool `wait`: it reports progress of a run, and shows the person at the client what the run asks them.

It holds nothing: a client that leaves, or waits no longer, calls it again. The run goes on in any case.
"""

import asyncio
from contextlib import aclosing, suppress
from typing import Any

import mcp_types as t

from limpet.errors import AlreadyAnswered, Expired, FormOutdated, InvalidArgument
from limpet.mcp.offer import McpCall, ToolOffer, ToolReply
from limpet.mcp.person_forms import reply_of, send_decision
from limpet.mcp.run_tasks import forms_of
from limpet.mcp.tool_results import MAX_RESULT, fitted, result_of
from limpet.mcp.tool_table import wait_tool
from limpet.service.access import RELEASE, may

__all__ = ["wait_offer"]

DEFAULT, LONGEST = 30, 60
# Kinds of events that count as progress for a person.
PROGRESS = frozenset({
    *("step.completed", "step.failed", "turn.started", "run.waiting", "request.opened", "request.answered"),
    *("agent.called", "agent.returned"),
})  # fmt: skip


def wait_offer(needs: tuple[Any, ...]) -> ToolOffer:
    """Return the tool. It needs the permission to read how a run ended."""
    tool = wait_tool()
    return ToolOffer(name=tool.name, shown=lambda _: tool, run=_wait, may_use=lambda who: may(who, *needs))


async def _wait(call: McpCall, wanted: t.CallToolRequestParams) -> ToolReply:
    run, seconds = _arguments(wanted.arguments or {})
    info = await call.run("info", {"run": run})
    if wanted.request_state is not None:
        await _decide(call, run, wanted.input_responses or {})
    if call.context.request is not None:
        await call.context.request.scope.get(RELEASE, _nothing)()  # others may work while this request waits
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            forms = await _until_asked(call, run, info["position"]["seq"])
            if forms:
                return t.InputRequiredResult(input_requests=dict(forms), request_state=run)
    return result_of(fitted(await call.run("info", {"run": run}), MAX_RESULT))


async def _until_asked(call: McpCall, run: str, seq: int) -> dict[str, t.ElicitRequest]:
    """Wait until a run has ended, or asks something that the person at the client may decide: return the forms."""
    forms = await forms_of(call, run) if call.is_modern else {}
    if forms:
        return forms
    watched: Any = call.app.events(run, seq)
    async with aclosing(watched) as events:
        async for event in events:
            if event.kind in PROGRESS:
                await call.context.session.report_progress(event.seq, message=event.kind)
            if event.kind == "request.opened" and call.is_modern and (forms := await forms_of(call, run)):
                return forms
    return {}


async def _decide(call: McpCall, run: str, replies: dict[str, Any]) -> None:
    """Record the decisions of forms. A request that was decided meanwhile stays as it is."""
    known = await forms_of(call, run)
    for key, given in replies.items():
        if key in known:
            with suppress(AlreadyAnswered, Expired, FormOutdated):
                await send_decision(call, key, reply_of(given))


def _arguments(given: dict[str, Any]) -> tuple[str, int]:
    run, seconds = given.get("run"), given.get("seconds", DEFAULT)
    for name in given.keys() - {"run", "seconds"}:
        raise InvalidArgument(path=name, reason="unknown argument; wait takes run, seconds")
    if not isinstance(run, str):
        raise InvalidArgument(path="run", reason="is required")
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not 0 <= seconds <= LONGEST:
        raise InvalidArgument(path="seconds", reason=f"must be a whole number from 0 to {LONGEST}")
    return run, seconds


async def _nothing() -> None: ...
