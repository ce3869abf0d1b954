"""The HTTP server: listens on an address, limits connections, and stops on a signal."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from limpet.errors import InvalidArgument
from limpet.service.app import App
from limpet.web.api import Mounted, asgi
from limpet.web.guard import LOCAL

__all__ = ["ServerOptions", "serve"]

# Seconds that running requests get to finish on shutdown, and that a client has to send a whole request.
GRACE = 10
PROMPT = 30
# Maximum number of open connections.
MOST = 256


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of the server."""

    host: str
    port: int
    token: str
    hosts: tuple[str, ...] = ()
    """Accepted host names, besides localhost and the address the server listens on."""
    also: Mapping[str, Mounted]


async def serve(app: App, options: ServerOptions, told: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; call `told` with the URL once the server is ready."""
    names = (*LOCAL, options.host, *options.hosts)
    inside = asgi(app, auth=options.token, hosts=names, also=options.also)
    config = uvicorn.Config(
        inside,
        http=_Prompt,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app)
        listening = stack.enter_context(_listening(options.host, options.port))
        for _, enter in options.also.values():
            await stack.enter_async_context(enter())
        address = f"http://{_shown(options.host)}:{listening.getsockname()[1]}"
        await _Server(config, lambda: told(address)).serve([listening])


class _Prompt(H11Protocol):
    """A connection that is closed if a request does not arrive completely in time."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or drop it if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MOST:
            transport.abort()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer of a closed connection."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Start or stop the timer for the rest of a request."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(PROMPT, self.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Server(uvicorn.Server):
    """A server that reports when it is ready, and that exits normally on a signal."""

    def __init__(self, config: uvicorn.Config, told: Callable[[], None]) -> None:
        super().__init__(config)
        self._told = told

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and report the URL."""
        await super().startup(sockets)
        self._told()

    def handle_exit(self, sig: int, frame: object) -> None:  # noqa: ARG002 - uvicorn's own names
        """Finish running requests and stop; a second signal stops immediately."""
        self.force_exit, self.should_exit = self.should_exit, True


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family)
        # asyncio sends replies without delay (TCP_NODELAY) only if the socket names its protocol.
        return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=made.detach())
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fix = "Pass --port, or stop the other server."
            raise InvalidArgument(path="port", reason=f"{port} is already in use", fix=fix) from error
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise InvalidArgument(path="address", reason=f"{_shown(host)}:{port}: {reason}", fix="Pass --host.") from error


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
