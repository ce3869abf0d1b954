"""A store with runs that wait for people, and clients of an MCP server over it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client
from mcp_types import ElicitRequestParams, ElicitResult

import limpet
from limpet import Approvals, Principal
from limpet.mcp import server_of

paid: list[int] = []
"""Amounts that were paid."""


@limpet.tool(effect="once", name="harbour_pay", risk="pay")
async def pay(cents: int, to: str = "ann") -> int:
    """Pays."""
    paid.append(cents)
    return cents


@limpet.agent(name="harbour_payer", approvals=Approvals("pay", to="finance"))
async def payer(run: limpet.Run, cents: int) -> int:
    return await run.step(pay, cents)


@limpet.agent(name="harbour_asker")
async def asker(run: limpet.Run, what: str) -> str:
    return await run.ask(f"Which colour for {what}?", options=["red", "blue"], to="finance")


@limpet.agent(name="harbour_worker")
async def worker(run: limpet.Run, what: str) -> str:
    await run.patch(goal=f"look after {what}", plan=["look", "report"], facts={"what": what})
    await run.artifact(f"{what}\n" * 20, type="text/markdown", summary="a report")
    return what


@limpet.agent(name="harbour_broken")
async def broken(run: limpet.Run, what: str) -> str:
    raise limpet.Permanent(f"{what} is broken")


AGENTS: list[limpet.Agent[Any, Any]] = [payer, asker, worker, broken]
ALL = ("viewer", "operator", "approver", "auditor", "admin")
Fill = Callable[[ElicitRequestParams], ElicitResult]


def person(*roles: Any, name: str = "ann") -> Principal:
    """Return a person in finance with some roles; all but that of workers by default."""
    return Principal(name=name, door="mcp", roles=roles or ALL, groups=("finance",))


@asynccontextmanager
async def opened(*more: limpet.Agent[Any, Any]) -> AsyncIterator[limpet.App]:
    """Open an app over a new store."""
    paid.clear()
    async with limpet.open("memory:", agents=[*AGENTS, *more]) as app:
        yield app


@asynccontextmanager
async def connected(
    app: limpet.App, who: Principal | None = None, *, fills: Fill | None = None, **more: Any
) -> AsyncIterator[Client]:
    """Yield a client in memory. With `fills`, a person at the client fills in forms."""
    given: dict[str, Any] = {name: more.pop(name) for name in ("mode", "extensions") if name in more}

    async def fill(context: Any, params: ElicitRequestParams) -> ElicitResult:
        assert fills is not None
        return fills(params)

    server = server_of({"main": app}, local=who or person(), **more)
    async with Client(server, elicitation_callback=None if fills is None else fill, **given) as client:
        yield client


def decides(decision: str, note: str = "") -> Fill:
    """Return how a person fills in a form with a decision."""
    return lambda _: ElicitResult(action="accept", content={"decision": decision, "note": note})


async def waiting(app: limpet.App, agent: limpet.Agent[Any, Any], given: Any, id: str) -> limpet.Request:
    """Start a run, and return the request with which it waits."""
    handle = await app.start(agent, given, id=id)
    async for event in handle.events():
        if event.kind == "request.opened":
            break
    [found] = await app.inbox(run=id)
    return found


async def data_of(client: Client, tool: str, /, **given: Any) -> Any:
    """Call a tool, and return its structured content."""
    return (await client.call_tool(tool, given)).structured_content


async def gathered(*work: Awaitable[Any]) -> list[Any]:
    """Return the results of some work that goes on at once."""
    return list(await asyncio.gather(*work))
