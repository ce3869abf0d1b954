"""A task is a run: clients with the tasks extension get, update and cancel it, and the tool `wait` does for others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.client.extension import advertise
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ElicitResult,
    Request,
    Result,
)
from msgspec.structs import replace

import limpet
from limpet.mcp.offer import TASKS
from limpet.mcp.run_tasks import status_of
from tests.interfaces.mcp.harbour import (
    asker,
    connected,
    data_of,
    decides,
    opened,
    paid,
    payer,
    person,
    waiting,
    worker,
)

Json = dict[str, Any]


class Reply(Result):
    """Any result."""

    model_config = {"extra": "allow"}


class TaskRequest(Request[Json, str]):
    """A request about a task."""

    method: str
    params: Json
    name_param = "taskId"


class ToolRequest(TaskRequest):
    """A call of a tool whose result may be a task."""

    name_param = "name"


async def ask(client: Client, method: str, task: str, **more: Any) -> Json:
    """Send a request about a task, and return its result."""
    request = TaskRequest(method=f"tasks/{method}", params={"taskId": task, **more})
    found = await client.session.send_request(request, Reply)
    return found.model_dump(by_alias=True, exclude_none=True, exclude={"meta"})


async def start(client: Client, agent: str, given: Any, id: str) -> Json:
    """Start a run whose call is answered with a task."""
    arguments = {"agent": agent, "input": given, "id": id}
    request = ToolRequest(method="tools/call", params={"name": "start", "arguments": arguments})
    found = await client.session.send_request(request, Reply)
    return found.model_dump(by_alias=True, exclude_none=True, exclude={"meta"})


@asynccontextmanager
async def with_tasks(app: limpet.App, *roles: Any, **more: Any) -> AsyncIterator[Client]:
    """Yield a client that supports tasks."""
    async with connected(app, person(*roles), extensions=[advertise(TASKS)], **more) as client:
        yield client


async def settled(client: Client, task: str, *status: str) -> Json:
    """Return a task once it has one of these statuses."""
    async with asyncio.timeout(20):
        while (found := await ask(client, "get", task))["status"] not in status:
            await data_of(client, "wait", run=task, seconds=1)
    return found


async def test_a_started_run_is_a_task_until_it_has_ended() -> None:
    async with opened() as app, with_tasks(app) as client:
        made = await start(client, "harbour_worker", "boats", "r")
        assert (made["resultType"], made["taskId"], made["status"]) == ("task", "r", "working")
        assert {"createdAt", "lastUpdatedAt", "pollIntervalMs"} <= made.keys()
        done = await settled(client, "r", "completed")
        assert done["resultType"] == "complete"
        assert done["result"]["structuredContent"]["output"] == "boats"
        assert not done["result"].get("isError")
        assert await ask(client, "cancel", "r") == {"resultType": "complete"}
        assert (await app.info("r")).status == "completed"


async def test_a_failed_run_is_a_completed_task_with_an_error() -> None:
    """`failed` is for faults of Limpet itself."""
    async with opened() as app, with_tasks(app) as client:
        await start(client, "harbour_broken", "boats", "r")
        done = await settled(client, "r", "completed", "failed")
        assert done["status"] == "completed"
        assert done["result"]["isError"]
        assert "boats is broken" in done["result"]["structuredContent"]["error"]
        assert status_of({"status": "failed", "error": "limpet.Unexpected: x"}) == "failed"


async def test_a_cancelled_task_is_a_cancelled_run() -> None:
    async with opened() as app, with_tasks(app) as client:
        await waiting(app, asker, "boats", "r")
        assert await ask(client, "cancel", "r") == {"resultType": "complete"}
        assert (await settled(client, "r", "cancelled"))["taskId"] == "r"
        assert "result" not in await ask(client, "get", "r")


async def test_a_person_decides_in_the_forms_of_a_task() -> None:
    """A reply to an unknown form is ignored, and a form without a decision leaves the request open."""
    async with opened() as app, with_tasks(app, fills=decides("approve")) as client:
        request = await waiting(app, payer, 900, "r")
        found = await ask(client, "get", "r")
        [(key, form)] = found["inputRequests"].items()
        assert found["status"] == "input_required"
        assert key.startswith(f"{request.id}.")
        assert "Tool: harbour_pay" in form["params"]["message"]
        approve = {"action": "accept", "content": {"decision": "approve"}}
        ignored: list[Json] = [{"other": approve}, {f"{request.id}.0000000000000000": approve}, {key: 7}]
        for replies in [*ignored, {key: {"action": "cancel"}}]:
            assert await ask(client, "update", "r", inputResponses=replies) == {"resultType": "complete"}
            assert (await app.request(request.id)).decision.status == "open"
        await ask(client, "update", "r", inputResponses={key: approve})
        assert (await settled(client, "r", "completed"))["result"]["structuredContent"]["output"] == 900
        assert paid == [900]
        decision = (await app.request(request.id)).decision
        assert (decision.by, decision.via) == ("ann", "mcp")


async def test_a_question_is_a_form_with_its_options() -> None:
    async with opened() as app, with_tasks(app, fills=decides("approve")) as client:
        await waiting(app, asker, "boats", "r")
        [(key, form)] = (await ask(client, "get", "r"))["inputRequests"].items()
        assert form["params"]["requestedSchema"]["properties"]["answer"]["enum"] == ["red", "blue"]
        await ask(client, "update", "r", inputResponses={key: {"action": "accept", "content": {"answer": "blue"}}})
        assert (await settled(client, "r", "completed"))["result"]["structuredContent"]["output"] == "blue"


async def test_a_caller_who_may_not_decide_gets_no_forms() -> None:
    async with opened() as app, with_tasks(app, "operator", fills=decides("approve")) as client:
        request = await waiting(app, payer, 900, "r")
        found = await ask(client, "get", "r")
        assert found["status"] == "working"
        key = f"{request.id}.0000000000000000"
        await ask(client, "update", "r", inputResponses={key: {"action": "accept", "content": {"decision": "approve"}}})
        assert (await app.request(request.id)).decision.status == "open"


async def test_forms_are_for_those_who_are_asked() -> None:
    """A person of another group, and the one who started the run, see that it waits, and no form."""
    async with opened() as app:
        await waiting(app, payer, 900, "r")
        stranger = replace(person(), groups=("sales",))
        async with connected(app, stranger, extensions=[advertise(TASKS)], fills=decides("approve")) as client:
            assert (await ask(client, "get", "r"))["status"] == "working"


async def test_tasks_need_the_extension_the_role_and_a_known_id() -> None:
    async with opened() as app:
        await app.run(worker, "boats", id="r")
        async with connected(app) as client:
            plain = await data_of(client, "start", agent="harbour_worker", input="x", id="other")
            assert plain["id"] == "other"
            for method in ("get", "update", "cancel"):
                with pytest.raises(MCPError) as refused:
                    await ask(client, method, "r")
                assert refused.value.code == MISSING_REQUIRED_CLIENT_CAPABILITY
        async with connected(app, mode="legacy") as client:
            with pytest.raises(MCPError) as refused:
                await ask(client, "get", "r")
            assert refused.value.code in (METHOD_NOT_FOUND, INVALID_PARAMS)
        async with with_tasks(app) as client:
            for method in ("get", "update", "cancel"):
                with pytest.raises(MCPError) as refused:
                    await ask(client, method, "nothing")
                assert refused.value.code == INVALID_PARAMS
        async with with_tasks(app, "viewer") as client:
            with pytest.raises(MCPError, match="may not use info"):
                await ask(client, "get", "r")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_wait_returns_when_a_run_has_ended_and_reports_progress(mode: Any) -> None:
    """Closing the request, or a time that is over, leaves the run as it is."""
    seen: list[tuple[float, str | None]] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))

    async with opened() as app, connected(app, mode=mode) as client:
        request = await waiting(app, asker, "boats", "r")
        assert (await data_of(client, "wait", run="r", seconds=0))["status"] in ("running", "waiting")
        waited = asyncio.create_task(client.call_tool("wait", {"run": "r"}, progress_callback=progress))
        await data_of(client, "answer", request=request.id, answer="red")
        found = (await waited).structured_content
        assert found is not None
        assert (found["status"], found["output"]) == ("completed", "red")
        assert [value for value, _ in seen] == sorted(value for value, _ in seen)
        for bad in ({}, {"run": "r", "seconds": 61}, {"run": "r", "seconds": True}, {"run": "r", "more": 1}):
            assert (await data_of(client, "wait", **bad))["code"] == "invalid_argument"
        assert (await data_of(client, "wait", run="nothing"))["code"] == "not_found"


async def test_wait_shows_the_person_what_the_run_asks() -> None:
    """The next request after the first one, too, until the run has ended."""

    @limpet.agent(name="tasks_two_questions")
    async def curious(run: limpet.Run, what: str) -> list[Any]:
        colour = await run.ask("Which colour?", options=["red", "blue"], to="finance")
        return [colour, await run.ask("Sure?", to="finance")]

    asked: list[str] = []

    def fill(params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"answer": "blue"} if len(asked) == 1 else {"decision": "approve"})

    async with opened(curious) as app, connected(app, fills=fill) as client:
        await app.start(curious, "x", id="r")
        found = await data_of(client, "wait", run="r")
        assert (found["status"], found["output"]) == ("completed", ["blue", True])
        assert len(asked) == 2


async def test_a_client_that_leaves_does_not_cancel_the_run() -> None:
    async with opened() as app:
        request = await waiting(app, asker, "boats", "r")
        async with connected(app) as client:
            waited = asyncio.create_task(client.call_tool("wait", {"run": "r"}))
            await data_of(client, "runs")
            waited.cancel()
            await asyncio.gather(waited, return_exceptions=True)
        await app.answer(request.id, "red", by="ann")
        assert await (await app.get("r")).result() == "red"
