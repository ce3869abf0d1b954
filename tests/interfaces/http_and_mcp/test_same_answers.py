"""Every query has the same result through Python, the command line, HTTP, and MCP over pipes and HTTP."""

import json
from asyncio import to_thread
from itertools import product
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from mcp import Client

import limpet
from limpet.redaction import hide_secrets_in
from limpet.service.json_values import as_json, error_json
from limpet.service.operation import operations_of
from tests.interfaces.cli.run_cli import limpet as typing
from tests.interfaces.http_and_mcp.clients import call_json, fill, over_http, over_pipes, serving

OPERATIONS = {
    name: each for name, each in operations_of(limpet.App).items() if "mcp" in each.doors and not each.is_command
}

Given = dict[str, Any]
in_one_loop = pytest.mark.asyncio(loop_scope="module")
# Every operation: the call in Python, its command line arguments, and its parameters for the other interfaces.
THEN = "2100-01-01T00:00:00Z"
QUERIES: dict[str, tuple[Any, list[str], Given]] = {
    "runs": (
        lambda app: app.runs(status="completed", user="ann", conversation="chat-7", last=5),
        ["--status", "completed", "--user", "ann", "--conversation", "chat-7", "--last", "5"],
        {"status": ["completed"], "user": "ann", "conversation": "chat-7", "last": 5},
    ),
    "info": (lambda app: app.info("refund-50"), ["refund-50"], {"run": "refund-50"}),
    "task": (lambda app: app.task("refund-50"), ["refund-50"], {"run": "refund-50"}),
    "tasks": (lambda app: app.tasks(state="awaiting_user"), ["--state", "awaiting_user"], {"state": "awaiting_user"}),
    "show": (lambda app: app.show("refund-950"), ["refund-950"], {"run": "refund-950"}),
    "input": (lambda app: app.input("refund-950"), ["refund-950"], {"run": "refund-950"}),
    "log": (lambda app: app.log("refund-50"), ["refund-50"], {"run": "refund-50"}),
    "steps": (
        lambda app: app.steps("refund-50", limit=1),
        ["refund-50", "--limit", "1"],
        {"run": "refund-50", "limit": 1},
    ),
    "step": (lambda app: app.step("refund-50", 1), ["refund-50", "1"], {"run": "refund-50", "step": 1}),
    "timeline": (
        lambda app: app.timeline("refund-50", limit=2),
        ["refund-50", "--limit", "2"],
        {"run": "refund-50", "limit": 2},
    ),
    "lineage": (lambda app: app.lineage("refund-50"), ["refund-50"], {"run": "refund-50"}),
    "doctor": (lambda app: app.doctor(last=2), ["--last", "2"], {"last": 2}),
    "grants": (lambda app: app.grants("refund-50"), ["refund-50"], {"run": "refund-50"}),
    "state": (
        lambda app: app.state("refund-50", before=1),
        ["refund-50", "--before", "1"],
        {"run": "refund-50", "before": 1},
    ),
    "context": (
        lambda app: app.context("talk-2", max_tokens=80),
        ["talk-2", "--max-tokens", "80"],
        {"run": "talk-2", "max_tokens": 80},
    ),
    "prompt": (lambda app: app.prompt("talk-2", step=1), ["talk-2", "1"], {"run": "talk-2", "step": 1}),
    "diff": (lambda app: app.diff("refund-50", step=1), ["refund-50", "1"], {"run": "refund-50", "step": 1}),
    "compare": (
        lambda app: app.compare("refund-50", "refund-950"),
        ["refund-50", "refund-950"],
        {"one": "refund-50", "other": "refund-950"},
    ),
    "verify": (lambda app: app.verify("refund-50"), ["refund-50"], {"run": "refund-50"}),
    "inbox": (lambda app: app.inbox(to="sales"), ["--to", "sales"], {"to": "sales"}),
    "conversations": (lambda app: app.conversations(user="ann"), ["--user", "ann"], {"user": "ann"}),
    "messages": (
        lambda app: app.messages("chat-7", last=3, whole=True),
        ["chat-7", "--last", "3", "--whole"],
        {"conversation": "chat-7", "last": 3, "whole": True},
    ),
    "records": (lambda app: app.records(last=3), ["--last", "3"], {"last": 3}),
    "record": (
        lambda app: app.record("board", version=2),
        ["board", "--version", "2"],
        {"record": "board", "version": 2},
    ),
    "record_changes": (
        lambda app: app.record_changes("board", since=1),
        ["board", "--since", "1"],
        {"record": "board", "since": 1},
    ),
    "sessions": (lambda app: app.sessions(), [], {}),
    "search": (
        lambda app: app.search("GRÖSSER", kind="state.patched", since="7d", last=1),
        ["GRÖSSER", "--kind", "state.patched", "--since", "7d", "--last", "1"],
        {"text": "GRÖSSER", "kind": "state.patched", "since": "7d", "last": 1},
    ),
    "decisions": (
        lambda app: app.decisions("broken", last=1),
        ["broken", "--last", "1"],
        {"text": "broken", "last": 1},
    ),
    "scores": (
        lambda app: app.scores(run="refund-50", name="quality", who="ann"),
        ["--run", "refund-50", "--name", "quality", "--who", "ann"],
        {"run": "refund-50", "name": "quality", "who": "ann"},
    ),
    "errors": (lambda app: app.errors(agent="doors_support"), ["--agent", "doors_support"], {"agent": "doors_support"}),
    "calls": (
        lambda app: app.tool_calls("doors_refund", where=["cents>10", "cents<100"]),
        ["doors_refund", "--where", "cents>10", "--where", "cents<100"],
        {"tool": "doors_refund", "where": ["cents>10", "cents<100"]},
    ),
    "agents": (lambda app: app.agents(), [], {}),
    "workers": (lambda app: app.workers(), [], {}),
    "stats": (lambda app: app.stats(), [], {}),
    "activity": (
        lambda app: app.activity(last=5, until=THEN),
        ["--last", "5", "--until", THEN],
        {"last": 5, "until": THEN},
    ),
}


def http_get(server: httpx.Client, name: str, given: Given) -> httpx.Response:
    """Send a query over HTTP."""
    question = OPERATIONS[name]
    query = {each: value for each, value in given.items() if each not in question.in_path}
    return server.get("/v1" + (question.path or "").format(**given), params=query)


def run_command(url: str, name: str, words: list[str]) -> Any:
    """Run a query on the command line."""
    done = typing(name.replace("_", "-"), *words, "--url", url, "--json")
    assert done.exit_code == 0, done.stderr
    if name == "log":  # one event per line, so that it can be followed
        return {"items": [json.loads(line) for line in done.stdout.splitlines()], "next": None}
    return json.loads(done.stdout)


def test_every_operation_is_covered() -> None:
    assert QUERIES.keys() | {"artifact", "precedents", "request", "value"} == OPERATIONS.keys()


@in_one_loop
async def test_all_interfaces_return_the_same_results(url: str, server: httpx.Client, pipes: Client) -> None:
    """Each result also fits the schema in the API description."""
    described = server.get("/openapi.json").json()
    async with limpet.open(url, worker=False) as app, over_http(server) as http:
        for name, (ask, words, given) in QUERIES.items():
            wanted = hide_secrets_in(as_json(await ask(app)))
            assert wanted or name == "workers", name  # the worker has stopped
            answer = http_get(server, name, given)
            assert (answer.status_code, answer.json()) == (200, wanted), name
            assert await call_json(pipes, name, **given) == wanted, name
            assert await call_json(http, name, **given) == wanted, name
            assert await to_thread(run_command, url, name, words) == wanted, name
            schema = described["paths"][f"/v1{OPERATIONS[name].path}"]["get"]["responses"]["200"]["content"]
            checked = {**schema["application/json"]["schema"], "components": described["components"]}
            Draft202012Validator(checked).validate(wanted)


def as_everywhere(answer: httpx.Response) -> Any:
    """Return a result or a problem as the other interfaces show it."""
    found = answer.json()
    if answer.headers["content-type"] != "application/problem+json":
        return found
    assert found["type"] == f"urn:limpet:error:{found['code']}"
    assert found["status"] == answer.status_code
    return {"code": found["code"], "message": found["detail"], "facts": found["facts"], "hint": found["hint"]}


@in_one_loop
async def test_all_interfaces_return_the_same_context(url: str, server: httpx.Client, pipes: Client) -> None:
    """At several points and sizes. A missing step raises the same error."""
    runs = ("refund-50", "refund-950", "talk-1", "talk-2", "letter-1")
    points: list[Given] = [{}, {"before": 1}, {"after": 1, "max_tokens": 60}, {"max_bytes": 200}]
    async with limpet.open(url, worker=False) as app, over_http(server) as http:
        for run, given in product(runs, points):
            said = as_everywhere(http_get(server, "context", {"run": run, **given}))
            try:
                wanted = as_json(await app.context(run, **given))
            except limpet.NotFound as error:
                wanted = error_json(error)
            assert said == wanted
            assert said == await call_json(pipes, "context", run=run, **given)
            assert said == await call_json(http, "context", run=run, **given)


async def test_all_interfaces_return_the_same_context_on_postgres(postgres_schema: str) -> None:
    await fill(postgres_schema)
    with serving(postgres_schema) as server:
        async with limpet.open(postgres_schema, worker=False) as app, over_pipes(postgres_schema) as pipes:
            for run in ("refund-50", "talk-2"):
                wanted = as_json(await app.context(run, max_tokens=80))
                assert wanted["left_out"]
                assert http_get(server, "context", {"run": run, "max_tokens": 80}).json() == wanted
                assert await call_json(pipes, "context", run=run, max_tokens=80) == wanted


@in_one_loop
async def test_all_interfaces_show_the_same_request(url: str, server: httpx.Client, pipes: Client) -> None:
    """Its id is random, so it is found in the inbox first."""
    async with limpet.open(url, worker=False) as app, over_http(server) as http:
        [asked] = await app.inbox(to="sales")
        wanted = hide_secrets_in(as_json(await app.request(asked.id)))
        assert wanted["decision"]["status"] == "open"
        assert http_get(server, "request", {"request": asked.id}).json() == wanted
        followed: Given = {"items": [], "next": None}
        assert http_get(server, "precedents", {"request": asked.id}).json() == followed
        assert await to_thread(run_command, url, "precedents", [asked.id]) == followed
        assert await call_json(pipes, "request", request=asked.id) == wanted
        assert await call_json(http, "request", request=asked.id) == wanted
        assert await to_thread(run_command, url, "request", [asked.id]) == wanted


@in_one_loop
async def test_an_artifact_of_the_context_can_be_read_in_pieces(url: str, server: httpx.Client, pipes: Client) -> None:
    """The same pieces through every interface."""
    [about] = http_get(server, "context", {"run": "refund-50"}).json()["artifacts"]
    assert about["summary"] == "the letter of complaint"
    given = {"run": "refund-50", "artifact": about["artifact_id"]}
    text = ""
    for start in (0, 90_000):
        more: Given = {"start": start, "limit": 90_000}
        piece = http_get(server, "artifact", {**given, **more}).json()
        assert await call_json(pipes, "artifact", **given, **more) == piece
        text += piece["text"]
        assert piece["next"] == (90_000 if start == 0 else None)
    assert text == "Der Brief.\n" * 9_000
    words = [*given.values()]
    printed = await to_thread(typing, "artifact", *words, "--url", url)
    assert printed.stdout == text
    assert await to_thread(run_command, url, "artifact", words) == http_get(server, "artifact", given).json()
