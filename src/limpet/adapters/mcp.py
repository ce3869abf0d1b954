"""mcp: tools of MCP servers, for agents of a model.

    tools = limpet.adapters.mcp.MCPTools("http://localhost:8000/mcp", effects={"search": "none"})
    agent = limpet.llm_agent("helper", ..., tools=[tools])

What a server offers is asked for when a run begins, and recorded: the run goes by that for ever. Every call of a tool
is a step. What repeating one means nobody knows but you: it is `once` where you do not say otherwise, so that a call
without an answer goes to a person. `trust_hints=True` believes what the server itself says of its tools.
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
from limpet.llm.providers import fitting_name
from limpet.llm.tools import CallableTool
from limpet.policy.retry import Retry
from limpet.secret import Secret

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult

__all__ = ["MCPTools"]

KEY = "limpet/idempotency_key"
"""What a call carries beside its arguments, the same however often it is sent."""
MOST_PAGES = 100


class MCPTools:
    """The tools of one MCP server: at a URL, or a command that is run and spoken to."""

    def __init__(  # noqa: PLR0913 - all by name, and few at a time
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
                raise DefinitionError(what=tool, reason=f"its effect is {effect!r}: say one of {choices}")
        self._trusts, self._retry, self._timeout, self._env = trust_hints, retry, microseconds(timeout), env
        self._headers = dict(headers or {})
        if self._headers and not isinstance(server, str):
            raise DefinitionError(what=f"The tools of {self.name}", reason="a command takes env=, and no headers")
        self._open: dict[asyncio.AbstractEventLoop, _Connection] = {}

    def __repr__(self) -> str:
        return f"<tools of {self.name}>"

    async def listed(self) -> list[dict[str, Any]]:
        """What the server offers, as it says."""
        connection = self._connection()
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await connection.ask(lambda client, cursor=cursor: client.list_tools(cursor=cursor))
            found += [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    def offered(self, listed: Sequence[Mapping[str, Any]]) -> list[CallableTool]:
        """What a model may call of that."""
        there = {each["name"] for each in listed}
        if missing := [name for name in (*(self._only or ()), *self._effects, *self._risks) if name not in there]:
            raise DefinitionError(what=f"The tools of {self.name}", reason=f"it has no {', '.join(missing)}")
        return [self._offer(each) for each in listed if self._only is None or each["name"] in self._only]

    def _offer(self, listed: Mapping[str, Any]) -> CallableTool:
        name, effect = listed["name"], self._effect(listed)

        async def call(arguments: dict[str, Any]) -> Any:
            return await self._call(name, arguments, None if effect == "none" else {KEY: current().key})

        traits = Traits(effect=effect, risk=self._risks.get(name), retry=self._retry, timeout=self._timeout)
        tool: Tool[..., Any, Any] = Tool(call, fitting_name(f"{self._prefix}{name}"), traits)

        async def does(run: Run[Any], args: dict[str, Any]) -> Any:
            return await run.step(tool, args)

        description = listed.get("description") or listed.get("title") or name
        return CallableTool(ToolSpec(name=tool.name, description=description, schema=listed["inputSchema"]), does)

    def _effect(self, listed: Mapping[str, Any]) -> Effect:
        """What repeating a call means: what its user says, else what the server says if it is believed."""
        hints = listed.get("annotations", {}) if self._trusts else {}
        said: Effect = "none" if hints.get("readOnlyHint") else "idempotent" if hints.get("idempotentHint") else "once"
        return self._effects.get(listed["name"], said)

    async def _call(self, name: str, arguments: dict[str, Any], meta: Any) -> Any:
        """What the server answers; that it failed is an answer too, which a model can go on from."""
        answer = await self._connection().ask(lambda client: client.call_tool(name, arguments, meta=meta))
        found = _value(answer)
        return {"is_error": True, "error": found} if answer.is_error else found

    def _connection(self) -> "_Connection":
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._open.get(loop)
        if found is None or found.is_over:
            found = _Connection(self._target)
            self._open = {each: kept for each, kept in self._open.items() if not each.is_closed()} | {loop: found}
        return found

    @asynccontextmanager
    async def _target(self, answered: Callable[[Any], Awaitable[None]]) -> AsyncIterator[Any]:
        """What is connected to; `answered` hears of every answer over HTTP."""
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
    """A server that is connected to, by a task of its own: whoever opens it must also close it."""

    def __init__(self, target: Callable[[Callable[[Any], Awaitable[None]]], AbstractAsyncContextManager[Any]]) -> None:
        self._target = target
        self._refusal = ""
        self._asking = 0
        self._is_retired = False
        self._over = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.ensure_future(self._keep())

    @property
    def is_over(self) -> bool:
        """Whether nothing can be asked here any more."""
        return self._keeper.done() or self._is_retired or self._over.is_set()

    async def ask(self, question: Any) -> Any:
        """What the server answers; nothing was asked if it cannot be reached.

        What breaks off, or does not answer, is asked nothing more: it is closed when the others have their answers.
        """
        try:
            client = await asyncio.shield(self._client)
        except Exception as error:
            if self._refusal:
                raise Permanent(f"the MCP server does not let us in: it answered {self._refusal}") from error
            raise NotApplied(f"the MCP server cannot be reached: {_cause(error)}") from error
        types = importlib.import_module("mcp_types")
        self._asking += 1
        try:
            return await question(client)
        except importlib.import_module("mcp").MCPError as error:
            if error.code in (types.INVALID_PARAMS, types.METHOD_NOT_FOUND):
                raise Permanent(f"the MCP server refused it: {error}") from error
            self._is_retired = self._is_retired or error.code == types.CONNECTION_CLOSED
            raise
        except BaseException:
            self._is_retired = True
            raise
        finally:
            self._asking -= 1
            if self._is_retired and not self._asking:
                self._over.set()

    async def _answered(self, response: Any) -> None:
        if response.status_code in (401, 403):
            self._refusal = f"{response.status_code} {response.reason_phrase}"

    async def _keep(self) -> None:
        client: type[Client] = await asyncio.to_thread(lambda: importlib.import_module("mcp").Client)
        try:
            async with self._target(self._answered) as target, client(target) as opened:
                self._client.set_result(opened)
                await self._over.wait()
        except Exception as error:  # noqa: BLE001 - whoever asks is told
            self._over.set()
            if not self._client.done():
                self._client.set_exception(error)
                self._client.exception()  # it was looked at, should nobody ask


def _cause(error: BaseException) -> BaseException:
    """What went wrong, without the groups that tasks put around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _name_of(server: "str | Sequence[str]") -> str:
    """Where a server is, or what is run, without anything that may be secret."""
    if not isinstance(server, str):
        return Path(server[0]).name
    parts = urlsplit(server)
    return f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _value(answer: "CallToolResult") -> Any:
    """What a server answers, as JSON: as it is if it is that, text as text, anything else as the server says it."""
    blocks = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in answer.content]
    text = "\n".join(each["text"] for each in blocks) if all(each["type"] == "text" for each in blocks) else None
    if answer.structured_content not in (None, {"result": text}):  # text is wrapped so, where a server must
        return answer.structured_content
    return blocks if text is None else text
