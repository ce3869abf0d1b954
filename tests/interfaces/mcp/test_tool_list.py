"""The list of tools: small, true, and as large as the caller's roles allow. Results are bounded and marked as data."""

import json
from itertools import combinations
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

import limpet
from limpet import Principal
from limpet.mcp.tool_results import DATA
from limpet.mcp.tool_table import BEHIND_QUERY
from limpet.service.access import ROLES, may
from limpet.service.operation import operations_of
from tests.interfaces.mcp.harbour import asker, connected, data_of, opened, payer, person, waiting, worker

OPERATIONS = {name: each for name, each in operations_of(limpet.App).items() if "mcp" in each.doors}
LARGEST = 12_000
CALLERS = [*((role,) for role in ROLES), *combinations(ROLES, 2), tuple(ROLES)]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_list_is_small_and_has_what_each_role_may_use(mode: Any) -> None:
    """Every schema is valid, and annotations say what the operation does."""
    checked = set()
    async with opened() as app:
        for roles in CALLERS:
            who = person(*roles)
            async with connected(app, who, mode=mode) as client:
                tools = (await client.list_tools()).tools
            plain = [each.model_dump(by_alias=True, exclude_none=True) for each in tools]
            size = len(json.dumps(plain, separators=(",", ":")))
            assert size <= LARGEST, (roles, size)
            allowed = {name for name, each in OPERATIONS.items() if may(who, *each.needs)}
            extra = {"query"} if allowed & BEHIND_QUERY else set()
            extra |= {"wait"} if may(who, "payloads") else set()
            assert {each.name for each in tools} == allowed - BEHIND_QUERY | extra, roles
            for tool in tools:
                if (schema := json.dumps(tool.input_schema)) not in checked:  # most callers get the same schemas
                    Draft202012Validator.check_schema(tool.input_schema)
                    checked.add(schema)
                assert tool.description
                assert tool.annotations is not None
                if tool.name in OPERATIONS:
                    assert tool.annotations.read_only_hint is not OPERATIONS[tool.name].is_command
                    assert bool(tool.annotations.destructive_hint) is OPERATIONS[tool.name].is_destructive


async def test_a_viewer_runs_no_command_and_reads_no_payload() -> None:
    """A tool that is not listed is refused by name, too, and the refusal is in the audit log."""
    async with opened() as app, connected(app, person("viewer")) as client:
        await app.run(worker, "boats", id="r")
        arguments: dict[str, dict[str, Any]] = {
            "start": {"agent": "harbour_worker", "input": "x"},
            "cancel": {"run": "r", "reason": "x"},
            "context": {"run": "r"},
            "query": {"name": "input", "arguments": {"run": "r"}},
            "wait": {"run": "r"},
        }
        for tool, given in arguments.items():
            refusal = await data_of(client, tool, **given)
            assert refusal["code"] == "not_permitted", tool
            assert "`limpet mcp --role operator`" in refusal["hint"]
        assert len((await data_of(client, "runs"))["items"]) == 1
        assert (await data_of(client, "query", name="stats"))["runs"]
        refused = {each.action for each in await app.audit(outcome="not_permitted")}
        assert refused == {"start", "cancel", "context", "input", "info"}


async def test_commands_control_runs_and_record_who_sent_them() -> None:
    async with opened() as app, connected(app) as client:
        started = await data_of(client, "start", agent="harbour_asker", input="boats", id="r", deadline="1h")
        assert started["id"] == "r"
        await waiting_run(app, "r")
        assert (await data_of(client, "pause", run="r"))["id"] == "r"
        assert (await data_of(client, "resume", run="r"))["id"] == "r"
        assert (await data_of(client, "signal", run="r", name="paid", value={"cents": 9}))["id"] == "r"
        assert (await data_of(client, "extend", run="r", deadline="2h"))["deadline"]
        forked = await data_of(client, "fork", run="r", at=1)
        assert forked["fork_of"] == "r"
        assert (await data_of(client, "say", conversation="chat", text="hello"))["run"] is None
        assert (await data_of(client, "cancel", run="r", reason="enough"))["id"] == "r"
        created = [each for each in await app.log("r") if each.kind == "run.created"]
        assert (created[0].body["by"], created[0].body["via"]) == ("ann", "mcp")
        used = {each.action: (each.who, each.door) for each in await app.audit() if each.outcome == "done"}
        for command in ("start", "pause", "resume", "signal", "extend", "fork", "say", "cancel"):
            assert used[command] == ("ann", "mcp")


async def waiting_run(app: limpet.App, run: str) -> None:
    """Return when a run has asked a person."""
    async for event in (await app.get(run)).events():
        if event.kind == "request.opened":
            return


def key(text: str) -> Any:
    """Return the metadata of a call with an idempotency key."""
    return {"limpet/idempotency_key": text}


async def test_a_repeated_command_with_a_key_has_no_further_effect() -> None:
    async with opened() as app, connected(app) as client, connected(app, person(name="bob")) as other:
        await waiting(app, asker, "boats", "r")
        given: dict[str, Any] = {"run": "r", "name": "paid", "value": 1}
        for each in (client, client, other):
            await each.call_tool("signal", given, meta=key("k"))
        assert len([each for each in await app.log("r") if each.kind == "signal.received"]) == 2
        bad = await client.call_tool("signal", given, meta=key(""))
        assert bad.is_error


async def test_results_are_structured_bounded_and_marked_as_data() -> None:
    """`left_out` says what is missing, and a page goes on where it was cut."""
    async with opened() as app, connected(app) as client:
        for number in range(12):
            await app.run(worker, f"boat {number} " + "x" * 1_500, id=f"r{number}")
        whole = await client.call_tool("runs", {})
        text, note = whole.content
        assert (note.text, json.loads(text.text)) == (DATA, whole.structured_content)  # type: ignore[union-attr]
        assert text.meta == {"limpet/untrusted": True}
        found, cursor = [], None
        while True:
            more: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
            page = await client.call_tool("runs", {"max_bytes": 4_000, **more})
            assert page.structured_content is not None
            assert len(json.dumps(page.structured_content)) < 5_000
            found += [each["id"] for each in page.structured_content["items"]]
            cursor = page.structured_content["next"]
            if cursor is None:
                break
            assert page.structured_content["left_out"]["read"].startswith("Pass `next` as cursor")
        assert found == [f"r{number}" for number in range(11, -1, -1)]
        shown = await data_of(client, "query", name="input", arguments={"run": "r1"}, max_bytes=1_000)
        assert shown["left_out"]["parts"]
        assert len(json.dumps(shown)) < 1_500
        for size in (10, 5_000_000, "big", True):
            assert (await data_of(client, "runs", max_bytes=size))["code"] == "invalid_argument"


async def test_rare_queries_are_behind_one_tool() -> None:
    async with opened() as app, connected(app) as client:
        await app.run(worker, "boats", id="r")
        assert (await data_of(client, "query", name="task", arguments={"run": "r"}))["id"] == "r"
        assert (await data_of(client, "query", name="verify", arguments={"run": "r"}))["events"]
        for bad in ({}, {"name": "start"}, {"name": "task", "arguments": []}, {"name": "stats", "more": 1}):
            assert (await data_of(client, "query", **bad))["code"] == "invalid_argument", bad


def test_a_robot_without_roles_sees_nothing() -> None:
    assert not any(may(Principal(name="x", door="mcp"), *each.needs) for each in OPERATIONS.values())


async def test_requests_are_read_by_those_who_are_asked() -> None:
    async with opened() as app:
        request = await waiting(app, payer, 5, "r")
        async with connected(app, person("approver")) as client:
            assert [each["id"] for each in (await data_of(client, "inbox"))["items"]] == [request.id]
            assert (await data_of(client, "request", request=request.id))["args"]["cents"] == 5
