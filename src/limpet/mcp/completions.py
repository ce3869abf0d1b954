"""Completion of arguments: ids of runs and requests, names of agents and records, numbers of steps.

Values begin with what was typed so far.
"""

from collections.abc import Awaitable, Callable, Mapping

import mcp_types as t

from limpet.errors import LimpetError
from limpet.mcp.offer import McpCall

__all__ = ["completed"]

# Values of one reply, as the protocol limits them, and rows that are looked through for them.
MOST, LOOKED = 100, 500
Known = Mapping[str, str]
"""Arguments that are known already."""


async def completed(call: McpCall, argument: t.CompletionArgument, known: Known) -> t.CompleteResult:
    """Return values of an argument that begin with what was typed; none for an unknown argument or caller."""
    source = SOURCES.get(argument.name)
    if source is None:
        return t.CompleteResult(completion=t.Completion(values=[], has_more=False))
    operation, find = source
    try:
        found = await find(call, argument.value[:200], known) if call.may(operation) else []
    except LimpetError:
        found = []  # there is no such run: it has no steps
    fitting = [each for each in dict.fromkeys(found) if each.startswith(argument.value)]
    return t.CompleteResult(completion=t.Completion(values=fitting[:MOST], has_more=len(fitting) > MOST))


async def _runs(call: McpCall, typed: str, known: Known) -> list[str]:
    given = {"last": LOOKED, **({"text": typed} if typed else {}), **_of_agent(known)}
    return [each["id"] for each in (await call.run("runs", given))["items"]]


async def _agents(call: McpCall, _: str, __: Known) -> list[str]:
    return sorted({each["name"] for each in (await call.run("agents", {}))["items"]})


async def _requests(call: McpCall, _: str, __: Known) -> list[str]:
    return [each["id"] for each in (await call.run("inbox", {"limit": MOST}))["items"]]


async def _steps(call: McpCall, _: str, known: Known) -> list[str]:
    found = await call.run("steps", {"run": known.get("run", ""), "limit": LOOKED, "newest": True})
    return [str(each["number"]) for each in found["items"]]


async def _records(call: McpCall, _: str, __: Known) -> list[str]:
    return [each["name"] for each in (await call.run("records", {"last": LOOKED}))["items"]]


async def _artifacts(call: McpCall, _: str, known: Known) -> list[str]:
    found = await call.run("context", {"run": known.get("run", "")})
    return [each["artifact_id"] for each in found["artifacts"]]


def _of_agent(known: Known) -> dict[str, str]:
    return {"agent": known["agent"]} if known.get("agent") else {}


SOURCES: Mapping[str, tuple[str, Callable[[McpCall, str, Known], Awaitable[list[str]]]]] = {
    "run": ("runs", _runs),
    "task": ("runs", _runs),
    "agent": ("agents", _agents),
    "request": ("inbox", _requests),
    "record": ("records", _records),
    "step": ("steps", _steps),
    "artifact": ("context", _artifacts),
}
"""How the values of each argument are found, and the operation whose permission that needs."""
