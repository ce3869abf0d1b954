"""mcp: tools and resources of MCP servers, for LLM agents and for agents in code.

    desk = limpet.adapters.mcp.MCPTools("http://localhost:8000/mcp", effects={"search": "none"})
    agent = limpet.llm_agent("helper", ..., tools=[desk])  # a model calls them

    tools = await desk.tools(run)  # or the code of an agent
    await run.step(tools["create_issue"], title="The meter is late")
    prices = desk.resource("prices://{city}", ttl="5m")
    await run.read(prices, "Cork")

The tools of a server are listed when a run starts and recorded; the run uses that list until its end. Every call of a
tool is a step, with the tool's own arguments. Only you know what repeating a call means: the default effect is `once`,
so a call without an answer is decided by a person. `trust_hints=True` uses the effects that the server declares.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from limpet.adapters.mcp_calls import MCPResource, MCPTool, result_of, revealed
from limpet.adapters.mcp_connection import MCPConnection
from limpet.arguments import defining
from limpet.clock import Duration, microseconds
from limpet.engine.definitions.call_context import current
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.traits import EFFECTS, Effect, Traits
from limpet.engine.run.run import Run
from limpet.engine.steps.verdict import Permanent
from limpet.errors import DefinitionError, ExtraMissing
from limpet.events import bodies as b
from limpet.events import digest
from limpet.llm.model import ToolSpec
from limpet.llm.providers import valid_name
from limpet.llm.tools import CallableTool
from limpet.policy.retry import READ_RETRY, Retry
from limpet.secret import Secret

if TYPE_CHECKING:
    from mcp_types import ReadResourceResult

__all__ = ["MCPResource", "MCPTool", "MCPTools"]

KEY = "limpet/idempotency_key"
"""Key in a call's metadata for the idempotency key, which is the same for every attempt."""
MAX_PAGES = 100
LISTING = Traits(effect="none", retry=READ_RETRY, timeout=60 * 1_000_000)


class MCPTools:
    """The tools and resources of one MCP server.

    - `server`: a URL, or a command to start, which is connected by its standard input and output.
    - `name`: name of the source in records; the default is the host or the command.
    - `only`: names of the tools to offer; the default is all.
    - `effects`, `risks`: effect ("none", "idempotent" or "once") and risk by tool name.
    - `prefix`: prefix for the names of the tools.
    - `trust_hints`: whether to use the effects that the server declares for the other tools.
    - `retry`, `timeout`: of each call.
    - `env`: environment of a command. `headers`: HTTP headers for a URL.
    """

    def __init__(  # noqa: PLR0913 - keyword-only
        self,
        server: "str | Sequence[str]",
        *,
        name: str | None = None,
        only: Sequence[str] | None = None,
        effects: Mapping[str, Effect] | None = None,
        risks: Mapping[str, str] | None = None,
        prefix: str = "",
        trust_hints: bool = False,
        retry: Retry | None = None,
        timeout: Duration = "60s",
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str | Secret] | None = None,
    ) -> None:
        if find_spec("mcp") is None:
            raise ExtraMissing(extra="mcp")
        self._server = server if isinstance(server, str) else tuple(server)
        self.name = name or _name_of(server)
        self._prefix = prefix
        self._only, self._effects, self._risks = only, dict(effects or {}), dict(risks or {})
        for tool, effect in self._effects.items():
            if effect not in ("none", "idempotent", "once"):
                choices = ", ".join(each for each in EFFECTS if each != "transaction")
                raise DefinitionError(what=tool, reason=f"unknown effect {effect!r}; use {choices}")
        self._trusts, self._retry, self._timeout, self._env = trust_hints, retry, microseconds(timeout), env
        self._headers = dict(headers or {})
        if self._headers and not isinstance(server, str):
            raise DefinitionError(
                what=f"the tools of {self.name}", reason="headers= needs a URL; for a command, use env="
            )
        self._open: dict[asyncio.AbstractEventLoop, MCPConnection] = {}

    def __repr__(self) -> str:
        return f"<tools of {self.name}>"

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the tools that the server offers, as JSON."""
        connection = self._connection()
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await connection.ask(lambda client, cursor=cursor: client.list_tools(cursor=cursor))
            found += [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    def callable_tools(self, listed: Sequence[Mapping[str, Any]]) -> list[CallableTool]:
        """Return the tools that a model may call, from a recorded list."""
        return [self._callable(each) for each in self._chosen(listed)]

    async def tools(self, run: Run[Any]) -> dict[str, MCPTool]:
        """Return the tools for the code of an agent, by the server's names, from a list that the run records.

        A step of such a tool fails with StepFailed if the server reports an error.
        """
        listing: Tool[..., Any, Any] = Tool(self.list_tools, f"tools of {self.name}", LISTING)
        listing.kind = "read"
        return {each["name"]: self._tool(each, fails=True) for each in self._chosen(await run.step(listing))}

    @defining
    def resource(self, uri: str, *, ttl: Duration | None = None, name: str | None = None) -> MCPResource:
        """Return a resource as an external source, which `run.read` reads.

        `uri` may be a template: its variables, such as `{city}`, are the parameters of a read. `ttl` is how long the
        content is valid; the default is the time that the server sends with it, and without one it is read again each
        time. `name` defaults to the name of the server and the URI.
        """
        ttl_us = None if ttl is None else microseconds(ttl)
        if ttl_us is not None and ttl_us <= 0:
            raise DefinitionError(what=uri, reason="pass a ttl above 0, or none to use the server's")
        return MCPResource(self._read, uri, name=name or f"{self.name} {uri}", ttl=ttl_us)

    def _chosen(self, listed: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the tools of a list to offer. Raises DefinitionError if one that is named is missing."""
        there = {each["name"] for each in listed}
        if missing := [name for name in (*(self._only or ()), *self._effects, *self._risks) if name not in there]:
            raise DefinitionError(what=f"the tools of {self.name}", reason=f"the server has no {', '.join(missing)}")
        return [each for each in listed if self._only is None or each["name"] in self._only]

    def _tool(self, listed: Mapping[str, Any], *, fails: bool) -> MCPTool:
        """Return a listed tool. If it `fails`, an error that it reports fails its step; else the error is returned."""
        name, traits = listed["name"], self._traits(listed, fails=fails)

        async def call(**arguments: Any) -> Any:
            meta = None if traits.effect == "none" else {KEY: current().key}
            answer = await self._connection().ask(lambda client: client.call_tool(name, revealed(arguments), meta=meta))
            found = result_of(answer)
            if not answer.is_error:
                return found
            if fails:
                raise Permanent(f"{name} reported an error: {found}")
            return {"is_error": True, "error": found}

        return MCPTool(call, valid_name(f"{self._prefix}{name}"), traits, listed)

    def _traits(self, listed: Mapping[str, Any], *, fails: bool) -> Traits:
        effect = self._effect(listed)
        retry = self._retry or (READ_RETRY if fails and effect == "none" else None)
        return Traits(effect=effect, risk=self._risks.get(listed["name"]), retry=retry, timeout=self._timeout)

    def _callable(self, listed: Mapping[str, Any]) -> CallableTool:
        tool = self._tool(listed, fails=False)

        async def nested(arguments: dict[str, Any]) -> Any:
            return await tool.fn(**arguments)

        earlier: Tool[..., Any, Any] = Tool(nested, tool.name, tool.traits)

        async def does(run: Run[Any], args: dict[str, Any]) -> Any:
            if _is_nested(run, tool.step_name, args):
                return await run.step(earlier, args)
            return await run.step(tool, **args)

        return CallableTool(ToolSpec(name=tool.name, description=tool.__doc__ or tool.name, schema=tool.schema), does)

    def _effect(self, listed: Mapping[str, Any]) -> Effect:
        """Return the effect of a tool: as declared by the user, or by the server if its hints are trusted."""
        hints = listed.get("annotations", {}) if self._trusts else {}
        said: Effect = "none" if hints.get("readOnlyHint") else "idempotent" if hints.get("idempotentHint") else "once"
        return self._effects.get(listed["name"], said)

    async def _read(self, uri: str) -> "ReadResourceResult":
        """Read a resource from the server itself, not from the client's cache."""
        found: ReadResourceResult = await self._connection().ask(
            lambda client: client.read_resource(uri, cache_mode="refresh")
        )
        return found

    def _connection(self) -> MCPConnection:
        """Return the connection of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._open.get(loop)
        if found is None or found.is_over:
            found = MCPConnection(self._target)
            self._open = {each: kept for each, kept in self._open.items() if not each.is_closed()} | {loop: found}
        return found

    @asynccontextmanager
    async def _target(self, answered: Callable[[Any], Awaitable[None]]) -> AsyncIterator[Any]:
        """Yield what to connect to. `answered` is called with every HTTP response."""
        if not isinstance(self._server, str):
            command, *args = self._server
            env = None if self._env is None else dict(self._env)
            yield importlib.import_module("mcp").StdioServerParameters(command=command, args=args, env=env)
            return
        transport = importlib.import_module("mcp.client.streamable_http")
        headers = {name: each.reveal() if isinstance(each, Secret) else each for name, each in self._headers.items()}
        async with transport.create_mcp_http_client(headers=headers) as http:
            http.event_hooks["response"].append(answered)
            yield transport.streamable_http_client(self._server, http_client=http)


def _is_nested(run: Run[Any], step: str, args: Mapping[str, Any]) -> bool:
    """Return whether the run recorded the next call like 0.1.0, which had one argument with all arguments in it."""
    x = run.execution
    record = x.history.records.get(x.peek_name(step))
    opened = record.opened if record is not None else None
    return isinstance(opened, b.StepStarted) and opened.asked == digest({"arguments": args})


def _name_of(server: "str | Sequence[str]") -> str:
    """Return a name for a server, without anything that may be secret."""
    if not isinstance(server, str):
        return Path(server[0]).name
    parts = urlsplit(server)
    return f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
