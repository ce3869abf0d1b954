"""Invalid arguments are refused by HTTP and MCP with the same error, before anything is read."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from mcp import Client

import limpet
from limpet.mcp import server_of
from limpet.service.access import LOCAL
from limpet.service.operation import Operation, operations_of
from limpet.web import asgi
from tests.interfaces.http_and_mcp.clients import TOKEN, fill, text_of
from tests.servers.postgres import new_schema

OPERATIONS = {
    name: each for name, each in operations_of(limpet.App).items() if "mcp" in each.doors and not each.is_command
}

GOOD = {"authorization": f"Bearer {TOKEN}"}
TEXTS = [
    "",
    " ",
    "x",
    "-1",
    "0",
    "1.5",
    "1e9",
    "9" * 400,
    str(2**63),
    str(2**53),
    "true",
    "null",
    "\x00",
    "a\x00b",
    "\ud7ff\U0001f41a",
    "%",
    "%_",
    "'; drop table runs; --",
    "../../etc/passwd",
    "refund-50/../refund-950",
    "a" * 10_000,
    "{}",
    "[]",
    '{"$gt": ""}',
    "cents>" * 150,
    "a=x" + " " * 900 + "x",
    "order=" + "[" * 900,
]
VALUES: list[Any] = [None, True, 1.5, -1, 2**70, [], {}, [1], ["a", ["b"]], {"$gt": ""}, [None]]
FITTING: dict[str, Any] = {
    "run": "refund-50",
    "one": "refund-50",
    "other": "refund-950",
    "step": 1,
    "conversation": "chat-7",
    "record": "board",
    "text": "broken",
    "artifact": "a",
    "blob": "b",
    "request": "r",
}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a filled store, which no test changes."""
    if request.param == "sqlite":
        found = f"sqlite:///{tmp_path_factory.mktemp('filled')}/limpet.db"
        asyncio.run(fill(found))
        yield found
    else:
        with new_schema(request.getfixturevalue("postgres")) as found:
            asyncio.run(fill(found))
            yield found


def cases(values: Sequence[Any], *, is_main: bool, full: bool) -> Iterator[tuple[Operation, str, Sequence[Any]]]:
    """Yield each parameter of each operation with its values: all of them with --full.

    Otherwise all go to the first operation that has a parameter of this name, and every twelfth to the others, in turn.
    A store that is not the main one of an interface gets a fourth of these.
    """
    seen: Counter[str] = Counter()
    for question in OPERATIONS.values():
        for name in question.parameters:
            every = 1 if full else (12 if seen[name] else 1) * (1 if is_main else 4)
            yield question, name, values[seen[name] % every :: every]
            seen[name] += 1


def needed(question: Operation) -> dict[str, Any]:
    """Return valid values for the required parameters."""
    return {name: FITTING[name] for name, each in question.parameters.items() if each.is_required}


async def test_http_answers_or_refuses_any_text_in_any_parameter(url: str, full: bool) -> None:
    """The status is 200, 404 or 422, or 403 for a parameter that needs a right; never 500."""
    async with (
        limpet.open(url, worker=False) as app,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(asgi(app, auth=TOKEN, rate=1e9)), base_url="http://localhost", headers=GOOD
        ) as client,
    ):
        for question, name, texts in cases(TEXTS, is_main=url.startswith("sqlite"), full=full):
            for text in texts:
                given = {**needed(question), name: text}
                path = (question.path or "").format(
                    **{each: quote(str(given[each]), safe="") for each in question.in_path}
                )
                query = {each: value for each, value in given.items() if each not in question.in_path}
                answer = await client.get(f"/v1{path}", params=query)
                known = (200, 404, 422, 403) if question.parameters[name].about.right else (200, 404, 422)
                assert answer.status_code in known, (question.name, name, text, answer.text)
                assert answer.status_code == 200 or answer.json()["hint"]
        for question in OPERATIONS.values():
            twice = [(name, value) for name, value in needed(question).items() if name not in question.in_path]
            path = (question.path or "").format(**needed(question))
            for more in [("nobody_knows", "1"), *((each, "x") for each in question.in_path), *twice]:
                answer = await client.get(f"/v1{path}", params=[*twice, more])
                assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument"), (question.name, more)


async def test_mcp_answers_or_refuses_any_value_in_any_parameter(url: str, full: bool) -> None:
    """The error has a hint that a model can read."""
    given = cases([*TEXTS, *VALUES], is_main=url.startswith("postgres"), full=full)
    async with limpet.open(url, worker=False) as app, Client(server_of({"main": app}, local=LOCAL)) as client:
        for question, name, values in given:
            for value in values:
                result = await client.call_tool(question.name, {**needed(question), name: value})
                answer = json.loads(text_of(result))
                assert not result.is_error or answer["code"] != "unexpected", (question.name, name, value, answer)
                assert not result.is_error or answer["hint"]
        for question in OPERATIONS.values():
            unknown = await client.call_tool(question.name, {**needed(question), "nobody_knows": 1})
            assert unknown.is_error
            assert json.loads(text_of(unknown))["facts"]["path"] == "nobody_knows"
            if needed(question):
                assert (await client.call_tool(question.name, {})).is_error
