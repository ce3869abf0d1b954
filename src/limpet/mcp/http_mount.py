"""MCP over HTTP, stateless: replies are JSON, and become a stream when the server has something to say meanwhile."""

from collections.abc import AsyncIterator, Callable, Container
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import (
    DEFAULT_MAX_REQUEST_BODY_SIZE,
    RequestBodyLimitMiddleware,
    StreamableHTTPSessionManager,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["mounted"]

# A request of an older client that wants to hear of progress.
PROGRESS = b'"progressToken"'


def mounted(
    server: Server[Any], quick: Container[str]
) -> tuple[ASGIApp, Callable[[], AbstractAsyncContextManager[None]]]:
    """Return an ASGI application of a server, and a context to enter while it serves.

    `quick`: names of tools that report nothing while they run, and do not run for long.
    """
    found = _Mounted(server, quick)
    return RequestBodyLimitMiddleware(found, DEFAULT_MAX_REQUEST_BODY_SIZE), found.run


class _Mounted:
    """Chooses the form of the reply: a reply may be a stream if its client can use one."""

    def __init__(self, server: Server[Any], quick: Container[str]) -> None:
        self._quick = quick
        self._plain = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
        self._streaming = StreamableHTTPSessionManager(server, json_response=False, stateless=True)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        async with self._plain.run(), self._streaming.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Newer clients get a stream only once there is a notification; older ones always do."""
        headers = Headers(scope=scope)
        version = headers.get("mcp-protocol-version")
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            is_quick = headers.get("mcp-method") == "tools/call" and headers.get("mcp-name", "") in self._quick
            await (self._plain if is_quick else self._streaming).handle_request(scope, receive, send)
            return
        body = await _body(receive)
        manager = self._streaming if PROGRESS in body else self._plain
        await manager.handle_request(scope, _again(body, receive), send)


async def _body(receive: Receive) -> bytes:
    """Return the body of a request, whose size is limited already."""
    found = b""
    while (message := await receive())["type"] == "http.request":
        found += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return found


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that has the whole body first."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> Message:
        return first.pop() if first else await receive()

    return read
