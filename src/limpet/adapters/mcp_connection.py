"""A connection to an MCP server: opened by the first call, closed when it fails, one for each event loop."""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from limpet.engine.steps.verdict import NotApplied, Permanent

if TYPE_CHECKING:
    from mcp import Client

__all__ = ["MCPConnection"]


class MCPConnection:
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
