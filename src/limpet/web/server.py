"""The HTTP server: listens on an address, limits connections, and stops on a signal."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import cast

import h11
import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.h11_impl import H11Protocol

from limpet.errors import InvalidArgument
from limpet.service.access import PRINCIPAL
from limpet.service.tokens import TENANT
from limpet.web.api import Apps, Mounted, asgi, opened
from limpet.web.event_streams import ABORT, STREAMING
from limpet.web.guard import LOCAL
from limpet.web.limits import RATE
from limpet.web.oidc import Oidc

__all__ = ["ServerOptions", "serve"]

# Seconds that running requests get to finish on shutdown, and that a client has to send the headers of a request, and
# then its body.
GRACE = 10
HEADERS, BODY = 5, 30
# Maximum number of open connections, and of those that have sent no valid token so far.
MOST, STRANGERS = 1024, 64


class ServerOptions(Struct, frozen=True, kw_only=True):
    """Options of the server."""

    host: str
    port: int
    token: str
    hosts: tuple[str, ...] = ()
    """Accepted host names, besides localhost and the address the server listens on."""
    origins: tuple[str, ...] = ()
    """Origins whose pages may call the server from a browser."""
    public_url: str | None = None
    """The server's address as callers see it, if a proxy is in front."""
    proxies: tuple[str, ...] = ()
    """Addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed."""
    rate: float = RATE
    """Requests a second of each caller."""
    ui: bool = False
    """Whether to serve the dashboard, too."""
    link_alone: tuple[str, ...] = ()
    """People for whom the link in a notice is enough to approve or reject."""
    oidc: Oidc | None = None
    """Identity provider with which people log in to the dashboard."""
    also: Mapping[str, Mounted]


async def serve(apps: Apps, options: ServerOptions, told: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; call `told` with the URL once the server is ready."""
    stopping = asyncio.Event()
    inside = asgi(
        apps[TENANT],
        auth=options.token,
        hosts=(*LOCAL, options.host, *options.hosts),
        origins=options.origins,
        public_url=options.public_url,
        tenants=apps,
        rate=options.rate,
        also=options.also,
        stopping=stopping,
        ui=options.ui,
        link_alone=options.link_alone,
        oidc=options.oidc,
    )
    config = uvicorn.Config(
        inside,
        http=_protocol(),
        proxy_headers=bool(options.proxies),
        forwarded_allow_ips=list(options.proxies),
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(opened(apps))
        listening = stack.enter_context(_listening(options.host, options.port))
        for _, enter in options.also.values():
            await stack.enter_async_context(enter())
        address = options.public_url or f"http://{_shown(options.host)}:{listening.getsockname()[1]}"
        server = _Server(config, lambda: told(address), stopping.set)
        stack.callback(server.close)
        await server.serve([listening])


def _protocol() -> type[H11Protocol]:
    """Return the class of a server's connections."""
    return type("_OwnConnection", (_Connection,), {"_strangers": {}})


class _Connection(H11Protocol):
    """A connection that is closed if a request does not arrive completely in time.

    Connections that have sent no valid token are few: the oldest of them is dropped for a new one.
    """

    _strangers: "dict[_Connection, None]"
    """The connections of this server that have sent no valid token, the oldest first."""
    _timer: asyncio.TimerHandle | None = None
    _awaited = 0
    """How long the rest of the request may take, in seconds."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or drop it if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MOST and self._requesting() > MOST:
            transport.abort()
            return
        self._strangers[self] = None
        while len(self._strangers) > STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            if not oldest.is_known:
                oldest.transport.abort()
        self._wait()

    @property
    def is_known(self) -> bool:
        """Whether the last request on this connection had a valid token."""
        scope = cast("Mapping[str, object] | None", self.scope)  # None before the first request
        return scope is not None and PRINCIPAL in scope

    @property
    def is_streaming(self) -> bool:
        """Whether the last request on this connection is answered with a stream. Streams have a limit of their own."""
        scope = cast("Mapping[str, object] | None", self.scope)
        return scope is not None and STREAMING in scope

    def _requesting(self) -> int:
        """Return the number of connections without a stream."""
        return sum(not (isinstance(each, _Connection) and each.is_streaming) for each in self.connections)

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        if self.is_known:
            self._strangers.pop(self, None)
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes."""
        super().data_received(data)
        scope = cast("dict[str, object] | None", self.scope)
        if scope is not None:
            scope[ABORT] = self.transport.abort
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer of a closed connection."""
        self._stop()
        self._strangers.pop(self, None)
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Start or stop the timer for the rest of a request."""
        awaited = {h11.IDLE: HEADERS, h11.SEND_BODY: BODY}.get(self.conn.their_state, 0)
        if awaited != self._awaited or not awaited:
            self._stop()
        if awaited and self._timer is None:
            self._awaited, self._timer = awaited, self.loop.call_later(awaited, self.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Server(uvicorn.Server):
    """A server that reports when it is ready, and that exits normally on a signal."""

    def __init__(self, config: uvicorn.Config, told: Callable[[], None], stop: Callable[[], None]) -> None:
        super().__init__(config)
        self.servers: list[asyncio.Server] = []
        self._told, self._stop = told, stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and report the URL."""
        await super().startup(sockets)
        self._told()

    def close(self) -> None:
        """Stop listening and drop connections, also if the server was cancelled: a later socket may get its number."""
        for each in self.servers:
            each.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def handle_exit(self, sig: int, frame: object) -> None:  # noqa: ARG002 - uvicorn's own names
        """Finish running requests and stop; a second signal stops immediately."""
        self.force_exit, self.should_exit = self.should_exit, True
        asyncio.get_running_loop().call_soon_threadsafe(self._stop)


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
