"""Health checks, for the probes of a supervisor or a load balancer. They need no token, and tell nothing about runs.

`/healthz` says that the process answers. `/readyz` says that its stores can be used: a deleted or replaced file, an
unreachable server and another schema are noticed.
"""

import asyncio
import logging
from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from limpet.clock import SECOND, Clock
from limpet.errors import LimpetError, StoreUnavailable
from limpet.service.app import App
from limpet.web.guard import marked
from limpet.web.replies import answered, refused

__all__ = ["Health"]

log = logging.getLogger("limpet")

# How long the result of a check is returned again, in microseconds, and how long a check may take, in seconds.
FRESH, LONGEST = SECOND, 5.0


class Health:
    """Answers health checks, and passes other requests on to an application."""

    def __init__(self, inside: ASGIApp, apps: Mapping[str, App], clock: Clock, stopping: asyncio.Event) -> None:
        self._inside, self._apps, self._clock, self._stopping = inside, apps, clock, stopping
        self._checking = asyncio.Lock()
        self._checked: tuple[int, dict[str, object] | LimpetError] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a check, or pass a request on."""
        path = "" if scope["type"] != "http" else scope["path"].removeprefix(scope.get("root_path", ""))
        if path not in ("/healthz", "/readyz"):
            await self._inside(scope, receive, send)
            return
        found = {"status": "alive"} if path == "/healthz" else await self._ready()
        reply = refused(found) if isinstance(found, LimpetError) else answered(found)
        await reply(scope, receive, marked(send))

    async def _ready(self) -> Mapping[str, object] | LimpetError:
        if self._stopping.is_set():
            return StoreUnavailable(reason="the server is stopping", fix="Ask another server.")
        async with self._checking:  # many probes at once are one check
            if self._checked is None or self._clock.ticks() - self._checked[0] >= FRESH:
                found = await self._check()
                self._checked = self._clock.ticks(), found
            return self._checked[1]

    async def _check(self) -> dict[str, object] | LimpetError:
        """Check all stores. The server is ready while one of them is, so that tenants do not affect each other."""
        checks = [_schema(each) for each in self._apps.values()]
        found = await asyncio.gather(*checks, return_exceptions=True)
        schemas = [each for each in found if isinstance(each, int)]
        for each in found:
            if isinstance(each, BaseException):
                log.warning("health: a store is not ready: %s", str(each) or type(each).__name__)
        if not schemas:
            return StoreUnavailable(reason="no store can be read", fix="The server's log and `limpet doctor` say why.")
        away = len(found) - len(schemas)
        return {"status": "ready", "stores": len(schemas), "unavailable": away, "schema": schemas[0]}


async def _schema(app: App) -> int:
    """Return the schema version of an app's store, read from the store itself."""
    if not app.is_open:
        raise StoreUnavailable(reason="the app is not open")
    if app.store.failure is not None:
        raise app.store.failure
    async with asyncio.timeout(LONGEST):
        return (await app.store.about()).schema
