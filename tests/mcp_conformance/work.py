"""Tools of the official suite that start a task (SEP-2663): each starts a run of an agent."""

import asyncio
from dataclasses import dataclass
from typing import Any

import mcp_types as t

import limpet
from limpet.errors import Unexpected
from limpet.mcp.offer import McpCall, ToolOffer, ToolReply
from limpet.mcp.run_tasks import created
from limpet.mcp.subscriptions import missing_tasks
from limpet.mcp.tool_results import result_of
from tests.mcp_conformance.content import text_result, tool
from tests.mcp_conformance.inputs import elicit, filled, needs

__all__ = ["AGENTS", "work_tools"]


@dataclass
class Confirm:
    """Answer of a person."""

    confirm: bool


@dataclass
class Named:
    """Answer of a person."""

    name: str


@limpet.agent(name="slow_compute")
async def slow_compute(run: limpet.Run, given: dict[str, Any]) -> str:
    """Sleep for some seconds."""
    if given.get("seconds"):
        await run.sleep(f"{given['seconds']}s")
    return f"computed {given.get('label', '')}"


@limpet.agent(name="failing_job")
async def failing_job(run: limpet.Run, _: dict[str, Any]) -> str:
    """Fail after a second."""
    await run.sleep("1s")
    raise RuntimeError("the job failed")


@limpet.agent(name="protocol_error_job")
async def protocol_error_job(_: limpet.Run, __: dict[str, Any]) -> str:
    """Fail as Limpet itself would."""
    raise Unexpected(error_type="RuntimeError", message="the server broke")


@limpet.agent(name="confirm_delete")
async def confirm_delete(run: limpet.Run, given: dict[str, Any]) -> str:
    """Ask a person once."""
    answer = await run.ask(f"Delete {given.get('filename')}?", answer=Confirm)
    return "deleted" if answer.confirm else "kept"


@limpet.agent(name="multi_input")
async def multi_input(run: limpet.Run, _: dict[str, Any]) -> str:
    """Ask a person two things at once."""
    name, confirmed = await asyncio.gather(
        run.ask("What is your name?", answer=Named), run.ask("Do you confirm?", answer=Confirm)
    )
    return f"{name.name}: {confirmed.confirm}"


@limpet.agent(name="greeting_task")
async def greeting_task(_: limpet.Run, given: dict[str, Any]) -> str:
    """Greet."""
    return f"Hello, {given['name']}!"


AGENTS = (slow_compute, failing_job, protocol_error_job, confirm_delete, multi_input, greeting_task)


async def _started(call: McpCall, agent: str, given: Any) -> ToolReply:
    """Start a run, and return it as a task; or its result, for a client without tasks."""
    info = await call.run("start", {"agent": agent, "input": given})
    if call.has_tasks:
        return created(info)
    handle = await call.app.get(info["id"])
    return result_of(await handle.result())


def _working(name: str, properties: dict[str, str], *, is_required: bool = False) -> ToolOffer:
    async def run(call: McpCall, wanted: t.CallToolRequestParams) -> ToolReply:
        if is_required and not call.has_tasks:
            raise missing_tasks()
        return await _started(call, name, wanted.arguments or {})

    return tool(name, run, {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}})


async def _greet(_: McpCall, wanted: t.CallToolRequestParams) -> ToolReply:
    return text_result(f"Hello, {(wanted.arguments or {}).get('name')}!")


async def _with_task(call: McpCall, wanted: t.CallToolRequestParams) -> ToolReply:
    """Ask for a name first, then start a task."""
    if not call.has_tasks:
        raise missing_tasks()
    found = filled(wanted.input_responses or {}, "user_name")
    if found is None:
        return needs({"user_name": elicit("What is your name?", "name")})
    return await _started(call, "greeting_task", {"name": next(iter(found.values()))})


def work_tools() -> list[ToolOffer]:
    """Return the tools that start tasks, and the one that does not."""
    return [
        tool("greet", _greet, {"type": "object", "properties": {"name": {"type": "string"}}}),
        _working("slow_compute", {"seconds": "number", "label": "string"}),
        _working("failing_job", {}, is_required=True),
        _working("protocol_error_job", {}),
        _working("confirm_delete", {"filename": "string"}),
        _working("multi_input", {}),
        tool("test_tool_with_task", _with_task),
    ]
