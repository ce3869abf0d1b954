"""The HTTP API inside another ASGI application, which authenticates its callers itself."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from limpet.clock import SECOND, SystemClock
from limpet.engine.execution.principal import Principal
from limpet.errors import AuthUnavailable, DefinitionError, LimpetError, NotAuthenticated
from limpet.service.access import PRINCIPAL, RECHECK
from limpet.service.app import App
from limpet.service.tokens import TENANT
from limpet.web.access_log import note
from limpet.web.api import Apps, opened, routed
from limpet.web.guard import Places, identified, marked
from limpet.web.limits import RATE, RequestLimits
from limpet.web.replies import refused

__all__ = ["install"]

log = logging.getLogger("limpet")
# Microseconds between two looks at the caller of a stream.
EVERY = 10 * SECOND
Identify = Callable[[Request], Principal | Awaitable[Principal | None] | None]


def install(
    service: Starlette, app: App, *, prefix: str, principal: Identify, tenants: Apps | None = None, rate: float = RATE
) -> None:
    """Serve the HTTP API at a prefix of a FastAPI or Starlette application.

    `principal` takes a request, and returns who sends it, with roles, or None. Errors are answered as problems, also
    those of `principal`. The app is opened and closed with the service, unless it is already open. Requests of pages of
    other origins are refused, so that `principal` may read a cookie. Each caller may send `rate` requests a second.
    """
    if not prefix.startswith("/") or prefix.endswith("/"):
        raise DefinitionError(what="prefix", reason=f"{prefix!r} must begin with a slash, and not end with one")
    apps = {TENANT: app, **(tenants or {})}
    service.mount(
        prefix, _Identified(routed(apps, {}, RequestLimits(SystemClock(), rate), "", asyncio.Event()), principal, apps)
    )
    around = service.router.lifespan_context

    @asynccontextmanager
    async def both(inside: Any) -> AsyncIterator[Any]:
        async with opened(apps), around(inside) as state:
            yield state

    service.router.lifespan_context = both


class _Rechecked:
    """Asks again who sends a request, for streams; not often, because the service's function may be slow."""

    def __init__(self, identified: Callable[[Request], Awaitable[Principal]], scope: Scope) -> None:
        self._identified, self._scope = identified, scope
        self._who: Principal | None = scope[PRINCIPAL]
        self._at = SystemClock().ticks()

    async def find(self) -> Principal | None:
        """Return the caller, None if it is not one any more."""
        if SystemClock().ticks() - self._at > EVERY:
            self._at = SystemClock().ticks()
            try:
                self._who = await self._identified(Request(self._scope))
            except NotAuthenticated:
                self._who = None
        return self._who


class _Identified:
    """Passes requests of identified callers on to an application."""

    def __init__(self, inside: ASGIApp, principal: Identify, apps: Apps) -> None:
        self._inside, self._principal, self._apps = inside, principal, apps
        self._places = Places(())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            self._places.check_origin(scope, Headers(scope=scope))
            scope[PRINCIPAL] = await self._identified(Request(scope))
            scope[RECHECK] = _Rechecked(self._identified, scope).find
        except LimpetError as error:
            note(scope, code=error.code)
            await refused(error)(scope, receive, marked(send))
        else:
            await self._inside(scope, receive, marked(send))

    async def _identified(self, request: Request) -> Principal:
        try:
            found = self._principal(request)
            who = await found if isawaitable(found) else found
        except Exception as error:
            log.exception("auth: the function that identifies callers failed")
            raise AuthUnavailable from error  # its text is not for callers that are not identified
        if who is None or (who.tenant or TENANT) not in self._apps:
            raise NotAuthenticated
        return identified(request.scope, who, self._apps[who.tenant or TENANT])
