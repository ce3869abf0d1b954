"""The table of operations: one declaration makes an operation appear in every interface."""

import asyncio
import json
from typing import Annotated

import httpx
import pytest
import typer
from mcp import Client
from typer.testing import CliRunner

import limpet
from limpet import sync
from limpet.cli.commands import command as group
from limpet.cli.derived import OWN, add_operations
from limpet.mcp import server_of
from limpet.service.operation import Limit, Operation, Param, RunId, operations_of, query
from limpet.service.page import Page
from limpet.web import asgi
from tests.docs.reference import operations_page
from tests.interfaces.http_and_mcp.clients import call_json

# Commands that are not operations of a store: they start processes, or work on files and code.
NOT_OPERATIONS = {
    "token",  # a group of commands
    "login",  # a link for a browser
    "demo",
    "init",
    "dev",
    "worker",
    "serve",
    "mcp",
    "bench",
    "replay",
    "export",
    "import",
    "load",
}
TOKEN = "t" * 32


class Wider(limpet.App):
    """An app with one more operation."""

    topic = "Inspect runs"

    @query("/runs/{run}/kinds", needs="look", example="ticket-42")
    async def kinds(
        self,
        run: RunId,
        /,
        *,
        start: Annotated[str, Param(description="How the kinds begin.")] = "",
        limit: Limit = 5,
    ) -> Page[str]:
        """List the kinds of a run's events."""
        found = [event.kind for event in await self.log(run)]
        return Page([kind for kind in found if kind.startswith(start)][:limit])


@pytest.fixture
def app(tmp_path: object) -> Wider:
    """Return a closed app over a new store, which has one run."""
    url = f"sqlite:///{tmp_path}/limpet.db"

    @limpet.agent(name="table_agent")
    async def agent(run: limpet.Run) -> None: ...

    async def fill() -> None:
        async with limpet.open(url, agents=[agent]) as opened:
            await opened.run(agent, id="r1")

    asyncio.run(fill())
    opened = limpet.open(url, worker=False)
    return Wider(opened._settings)


async def test_a_new_operation_is_in_python_http_and_mcp(app: Wider) -> None:
    """The same arguments give the same results, and the API description has it."""
    wanted = {"items": ["run.created"], "next": None}
    transport = httpx.ASGITransport(asgi(app, auth=TOKEN))
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with app, httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
        assert await app.kinds("r1", limit=1) == wanted["items"]
        answer = await http.get("/v1/runs/r1/kinds", params={"limit": 1})
        assert (answer.status_code, answer.json()) == (200, wanted)
        assert (await http.get("/v1/runs/r1/kinds", params={"limit": 0})).status_code == 422
        assert "/v1/runs/{run}/kinds" in (await http.get("/openapi.json")).json()["paths"]
        async with Client(server_of({"main": app})) as client:
            assert "kinds" in [tool.name for tool in (await client.list_tools()).tools]
            assert await call_json(client, "kinds", run="r1", limit=1) == wanted


def test_a_new_operation_is_a_command_a_blocking_method_and_in_the_reference(app: Wider) -> None:
    """The command has help with an example; the reference lists the operation."""
    operation = operations_of(Wider)["kinds"]
    program = typer.Typer()
    program.callback()(lambda: None)
    add_operations(program, {"kinds": operation})
    url = app._settings.url
    done = CliRunner().invoke(program, ["kinds", "r1", "--limit", "1", "--url", url, "--json"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"items": ["run.created"], "next": None})
    assert "limpet kinds ticket-42" in CliRunner().invoke(program, ["kinds", "--help"]).output
    with sync.App(app) as blocking:
        assert blocking.kinds("r1", limit=1) == ["run.created"]
    assert "| `kinds` | GET `/v1/runs/{run}/kinds` |" in operations_page(Wider)


def test_no_command_declares_an_operation_of_its_own() -> None:
    """Every command is an operation of the table, or is listed as something else."""
    commands = typer.main.get_command(group).commands  # type: ignore[attr-defined]
    known = {name.replace("_", "-") for name, each in operations_of(limpet.App).items() if "cli" in each.doors}
    assert set(commands) == known | NOT_OPERATIONS
    assert known >= OWN


@pytest.mark.parametrize("operation", operations_of(limpet.App).values(), ids=lambda each: each.name)
def test_every_parameter_is_described(operation: Operation) -> None:
    """A parameter has a description, a query has no side effects, and every operation has a path of its own."""
    for name, each in operation.parameters.items():
        assert each.about.description, name
    assert operation.path
    assert not (operation.is_destructive and not operation.is_command)
    assert operation.needs
    assert operation.is_command == {"control", "write", "decide", "maintain"}.issuperset(operation.needs)


def test_paths_are_unique() -> None:
    """No two operations have the same method and path."""
    found = [(each.http_method, each.path) for each in operations_of(limpet.App).values()]
    assert len(set(found)) == len(found)
