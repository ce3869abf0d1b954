"""The tasks extension: a task is a run. Its id is the run's id, so it outlives every client and server.

A run that waits for a person is `input_required`, if the caller may decide: the client shows the forms of its requests.
"""

from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as t
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from limpet.engine.execution.views import Request
from limpet.errors import AlreadyAnswered, Expired, FormOutdated, LimpetError, NeedsPerson, NotFound, Unexpected
from limpet.mcp.offer import TASKS, McpCall
from limpet.mcp.person_forms import form_of, key_of, reply_of, send_decision
from limpet.mcp.subscriptions import missing_tasks
from limpet.mcp.tool_results import MAX_RESULT, fitted, refusal, result_of
from limpet.mcp.uris import LONGEST_URI
from limpet.redaction import hide_secrets_in

__all__ = ["MANY", "RunTasks", "created", "forms_of", "status_of", "task_notice"]

# Milliseconds after which a client asks again.
POLL = 1_000
# Requests of a run that a client is shown at once.
MANY = 20
CANCELLED = "A client cancelled the task."
CallOf = Callable[[Any], McpCall]


class TaskParams(t.RequestParams):
    """Parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str


class TaskUpdateParams(TaskParams):
    """Parameters of `tasks/update`."""

    input_responses: dict[str, Any] = {}


class RunTasks:
    """Handlers of the extension's methods."""

    def __init__(self, call_of: CallOf) -> None:
        self._call_of = call_of

    def add_to(self, server: Server[Any]) -> None:
        """Serve the methods, and say so to clients."""
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", TaskParams, self._get)
        server.add_request_handler("tasks/update", TaskUpdateParams, self._update)
        server.add_request_handler("tasks/cancel", TaskParams, self._cancel)

    async def _get(self, asked: Any, params: TaskParams) -> dict[str, Any]:
        call = self._checked(asked, params.task_id)
        try:
            return await detailed(call, params.task_id)
        except LimpetError as error:
            raise refusal(error) from error

    async def _update(self, asked: Any, params: TaskUpdateParams) -> dict[str, Any]:
        """Record what a person replied to forms. Replies to other forms than those of open requests are ignored."""
        call = self._checked(asked, params.task_id)
        try:
            await call.run("info", {"run": params.task_id})
            known = await forms_of(call, params.task_id)
            for key, given in params.input_responses.items():
                if key in known:
                    await _decide(call, key, given)
        except LimpetError as error:
            raise refusal(error) from error
        return {}

    async def _cancel(self, asked: Any, params: TaskParams) -> dict[str, Any]:
        call = self._checked(asked, params.task_id)
        try:
            info = await call.run("info", {"run": params.task_id})
            if info["ended"] is None:
                await call.run("cancel", {"run": params.task_id, "reason": CANCELLED})
        except LimpetError as error:
            raise refusal(error) from error
        return {}

    def _checked(self, asked: Any, task: str) -> McpCall:
        """Return the call of a method. Raises MCPError for a client without tasks, or with headers of another task."""
        call = self._call_of(asked)
        if not call.is_modern:
            raise MCPError(t.METHOD_NOT_FOUND, "Method not found", asked.method)
        if not call.has_tasks:
            raise missing_tasks()
        name = None if asked.request is None else asked.request.headers.get("mcp-name")
        if asked.request is not None and name != task:
            raise MCPError(t.HEADER_MISMATCH, "The header Mcp-Name must be the task's id")
        if len(task) > LONGEST_URI:
            raise refusal(NotFound(what="task", id=task[:100]))
        return call


async def _decide(call: McpCall, key: str, given: Any) -> None:
    try:
        reply = reply_of(t.ElicitResult.model_validate(given))
        await send_decision(call, key, reply)
    except (AlreadyAnswered, Expired, FormOutdated, NeedsPerson, ValueError):
        return  # the request is as it is: the next `tasks/get` says how


async def forms_of(call: McpCall, run: str) -> dict[str, t.ElicitRequest]:
    """Return the forms of a run's open requests that the caller may decide; none if the client shows no forms."""
    if not call.has_forms or not call.may("answer"):
        return {}
    found: list[Request] = await call.app.inbox(run=run, limit=MANY)
    who = call.confirmed().who
    forms = {key_of(each): form_of(each) for each in found if await call.app._may_decide(each, who)}
    return {key: form.shown for key, form in forms.items() if form is not None}


def created(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply to a call whose result is a task."""
    return {"resultType": "task", **_task(info, "working")}


async def detailed(call: McpCall, run: str) -> dict[str, Any]:
    """Return a task with its result, its error, or the forms that it waits for. Raises LimpetError."""
    info = await call.run("info", {"run": run})
    forms = {} if info["ended"] is not None else await forms_of(call, run)
    status = "input_required" if forms else status_of(info)
    task = _task(info, status)
    match status:
        case "input_required":
            shown = {key: each.model_dump(by_alias=True, mode="json", exclude_none=True) for key, each in forms.items()}
            return {**task, "inputRequests": shown}
        case "completed":
            result = result_of(fitted(_outcome(info), MAX_RESULT), is_error=info["status"] == "failed")
            return {**task, "result": result.model_dump(by_alias=True, mode="json", exclude_none=True)}
        case "failed":
            return {**task, "error": {"code": t.INTERNAL_ERROR, "message": info["error"] or "The run failed."}}
        case _:
            return task


async def task_notice(call: McpCall, run: str) -> dict[str, Any] | None:
    """Return a task for a notification of its change, None for one that is gone or that the caller may not read."""
    try:
        return await detailed(call, run)
    except LimpetError:
        return None  # `tasks/get` says why


def status_of(info: Mapping[str, Any]) -> str:
    """Return the status of a task. A failed run is a completed task with an error; `failed` is Limpet's own fault."""
    match info["status"]:
        case "completed":
            return "completed"
        case "failed":
            return "failed" if Unexpected.__name__ in (info["error"] or "").partition(":")[0] else "completed"
        case "cancelled":
            return "cancelled"
        case _:
            return "working"


def _outcome(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: info[name] for name in ("id", "agent", "status", "output", "error")}


def _task(info: Mapping[str, Any], status: str) -> dict[str, Any]:
    waits = ", ".join(f"{each['what']} {each['key']}".strip() for each in info["waits_for"])
    message = hide_secrets_in(f"The run is {info['status']}{f', and waits for {waits}' if waits else ''}.")
    return {
        "taskId": info["id"],
        "status": status,
        "statusMessage": message,
        "createdAt": info["created"],
        "lastUpdatedAt": info["updated"],
        "ttlMs": None,
        "pollIntervalMs": POLL,
    }
