"""mcp: tools of MCP servers, for LLM agents.

    tools = limpet.adapters.mcp.MCPTools("http://localhost:8000/mcp", effects={"search": "none"})
    agent = limpet.llm_agent("helper", ..., tools=[tools])

The tools of a server are listed when a run starts and recorded; the run uses that list until its end. Every call of a
tool is a step. Only you know what repeating a call means: the default effect is `once`, so a call without an answer is
decided by a person. `trust_hints=True` uses the effects that the server declares.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from limpet.clock import Duration, microseconds
from limpet.engine.definitions.call_context import current
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.traits import EFFECTS, Effect, Traits
from limpet.engine.run.run import Run
from limpet.engine.steps.verdict import NotApplied, Permanent
from limpet.errors import DefinitionError, ExtraMissing
from limpet.llm.model import ToolSpec
from limpet.llm.providers import valid_name
from limpet.llm.tools import CallableTool
from limpet.policy.retry import Retry
from limpet.secret import Secret

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult

__all__ = ["MCPTools"]

KEY = "limpet/idempotency_key"
"""Key in a call's metadata for the idempotency key, which is the same for every attempt."""
MAX_PAGES = 100


class MCPTools:
    """The tools of one MCP server.

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
        self._open: dict[asyncio.AbstractEventLoop, _Connection] = {}

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
        there = {each["name"] for each in listed}
        if missing := [name for name in (*(self._only or ()), *self._effects, *self._risks) if name not in there]:
            raise DefinitionError(what=f"the tools of {self.name}", reason=f"the server has no {', '.join(missing)}")
        return [self._offer(each) for each in listed if self._only is None or each["name"] in self._only]

    def _offer(self, listed: Mapping[str, Any]) -> CallableTool:
        name, effect = listed["name"], self._effect(listed)

        async def call(arguments: dict[str, Any]) -> Any:
            return await self._call(name, arguments, None if effect == "none" else {KEY: current().key})

        traits = Traits(effect=effect, risk=self._risks.get(name), retry=self._retry, timeout=self._timeout)
        tool: Tool[..., Any, Any] = Tool(call, valid_name(f"{self._prefix}{name}"), traits)

        async def does(run: Run[Any], args: dict[str, Any]) -> Any:
            return await run.step(tool, args)

        description = listed.get("description") or listed.get("title") or name
        return CallableTool(ToolSpec(name=tool.name, description=description, schema=listed["inputSchema"]), does)

    def _effect(self, listed: Mapping[str, Any]) -> Effect:
        """Return the effect of a tool: as declared by the user, or by the server if its hints are trusted."""
        hints = listed.get("annotations", {}) if self._trusts else {}
        said: Effect = "none" if hints.get("readOnlyHint") else "idempotent" if hints.get("idempotentHint") else "once"
        return self._effects.get(listed["name"], said)

    async def _call(self, name: str, arguments: dict[str, Any], meta: Any) -> Any:
        """Call a tool and return its result. An error result is returned too, so that a model can continue."""
        answer = await self._connection().ask(lambda client: client.call_tool(name, arguments, meta=meta))
        found = _value(answer)
        return {"is_error": True, "error": found} if answer.is_error else found

    def _connection(self) -> "_Connection":
        """Return the connection of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._open.get(loop)
        if found is None or found.is_over:
            found = _Connection(self._target)
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


class _Connection:
    """A connection to a server, kept by its own task, which opens and closes it."""

    def __init__(self, target: Callable[[Callable[[Any], Awaitable[None]]], AbstractAsyncContextManager[Any]]) -> None:
        self._target = target
        self._refusal = ""
        self._asking = 0
        self._is_retired = False
        self._closing = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.ensure_future(self._keep())

    @property
    def is_over(self) -> bool:
        """Whether the connection is closed or accepts no more calls."""
        return self._keeper.done() or self._is_retired or self._closing.is_set()

    async def ask(self, question: Any) -> Any:
        """Call the server. If it cannot be reached, the call was not made.

        A connection that fails or does not answer accepts no more calls. It is closed once the others have their
        answers.
        """
        try:
            client = await asyncio.shield(self._client)
        except Exception as error:
            if self._refusal:
                raise Permanent(f"the MCP server denied access: {self._refusal}") from error
            raise NotApplied(f"the MCP server cannot be reached: {_cause(error)}") from error
        types = importlib.import_module("mcp_types")
        self._asking += 1
        try:
            return await question(client)
        except importlib.import_module("mcp").MCPError as error:
            if error.code in (types.INVALID_PARAMS, types.METHOD_NOT_FOUND):
                raise Permanent(f"the MCP server rejected the call: {error}") from error
            self._is_retired = self._is_retired or error.code == types.CONNECTION_CLOSED
            raise
        except BaseException:
            self._is_retired = True
            raise
        finally:
            self._asking -= 1
            if self._is_retired and not self._asking:
                self._closing.set()

    async def _answered(self, response: Any) -> None:
        if response.status_code in (401, 403):
            self._refusal = f"{response.status_code} {response.reason_phrase}"

    async def _keep(self) -> None:
        client: type[Client] = await asyncio.to_thread(lambda: importlib.import_module("mcp").Client)
        try:
            async with self._target(self._answered) as target, client(target) as opened:
                self._client.set_result(opened)
                await self._closing.wait()
        except Exception as error:  # noqa: BLE001 - callers get the error
            self._closing.set()
            if not self._client.done():
                self._client.set_exception(error)
                self._client.exception()  # mark the exception as retrieved


def _cause(error: BaseException) -> BaseException:
    """Return the underlying error, without the groups that tasks wrap around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _name_of(server: "str | Sequence[str]") -> str:
    """Return a name for a server, without anything that may be secret."""
    if not isinstance(server, str):
        return Path(server[0]).name
    parts = urlsplit(server)
    return f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _value(answer: "CallToolResult") -> Any:
    """Return the answer of a server as JSON: structured content unchanged, text as text, anything else as sent."""
    blocks = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in answer.content]
    text = "\n".join(each["text"] for each in blocks) if all(each["type"] == "text" for each in blocks) else None
    if answer.structured_content not in (None, {"result": text}):  # text that a server had to wrap
        return answer.structured_content
    return blocks if text is None else text
