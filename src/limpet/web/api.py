"""The HTTP API: every operation has a path under /v1; /openapi.json describes them."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache
from typing import Any, get_origin
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from limpet.clock import SystemClock
from limpet.engine.execution.principal import Principal
from limpet.engine.execution.views import RunInfo
from limpet.errors import (
    DefinitionError,
    InvalidArgument,
    LimpetError,
    NotDone,
    NotFound,
    RunCancelled,
    RunFailed,
    ServerBusy,
    StoreUnavailable,
    TooManyRequests,
)
from limpet.service.access import PRINCIPAL, RELEASE, STOPPING
from limpet.service.app import App
from limpet.service.operation import Operation, operations_of
from limpet.service.tokens import TENANT
from limpet.web.access_log import AccessLog, note
from limpet.web.callers import Auth, Callers
from limpet.web.command_requests import EarlyReply, body_of, command_id_of, waiting_time
from limpet.web.event_streams import MEDIA_TYPE, STREAMING, EventStream, StreamLimits
from limpet.web.guard import LOCAL, Guard, Places
from limpet.web.health import Health
from limpet.web.lazy_site import LazySite
from limpet.web.limits import RATE, RequestLimits
from limpet.web.oidc import Oidc
from limpet.web.openapi import CREATING, ROOT, document
from limpet.web.protected_resource import ProtectedResource, issuer_of
from limpet.web.replies import answered, refused

__all__ = ["Apps", "Mounted", "asgi", "opened", "routed"]

NOT_OPEN = "Open the app in the lifespan of the server: a mounted ASGI app gets no startup event."
# Longest path that is repeated in an error.
LONGEST = 200
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Apps = Mapping[str, App]
"""The app of each tenant."""
Mounted = tuple[ASGIApp, Callable[[], Any]]
"""Another ASGI application to serve behind the same guard, and a context to enter while the server runs."""


def asgi(  # noqa: PLR0913 - all by name, and few at a time
    app: App,
    *,
    auth: Auth | None = None,
    hosts: Collection[str] = LOCAL,
    origins: Collection[str] = (),
    public_url: str | None = None,
    tenants: Apps | None = None,
    rate: float = RATE,
    also: Mapping[str, Mounted] | None = None,
    stopping: asyncio.Event | None = None,
    ui: bool = False,
    link_alone: Collection[str] = (),
    oidc: Oidc | None = None,
) -> ASGIApp:
    """Return an ASGI application over a store. Every request needs a token, health checks excepted.

    A token that `limpet token create` made is looked up in the store. For other tokens, `auth` is a token, several
    tokens, or a function that returns whose token it is, as a `Principal` with roles, and None for an unknown one; the
    default is LIMPET_TOKEN. A caller with such a token is the operator `env`. If the function has an attribute
    `issuer`, clients of the applications in `also` find their authorization server by it (RFC 9728). `tenants` are
    further apps by name; the tenant in a token selects its store.

    `hosts` are the accepted host names, `origins` those whose pages may call the server from a browser. `public_url` is
    the server's address as callers see it, if a proxy is in front. Each caller may send `rate` requests a second. The
    application opens and closes the apps with the server, unless they are already open. `also` maps paths to other
    applications to serve. After `stopping` is set, callers do not wait for runs any more. `ui` also serves the
    dashboard, under /ui. For the people in `link_alone`, the link in a notice that was sent to them is enough to
    approve or reject; all others log in. `oidc` lets people log in with an identity provider.
    """
    given = os.environ.get("LIMPET_TOKEN", "").strip() or None if auth is None else auth
    if not rate > 0:
        raise DefinitionError(what="rate", reason=f"{rate} must be more than 0")
    if given is not None and not given:
        raise DefinitionError(what="auth", reason="no client could authenticate; pass a token, or leave auth= out")
    apps, clock, stops = {TENANT: app, **(tenants or {})}, SystemClock(), stopping or asyncio.Event()
    places = Places(hosts, origins, public_url)
    api = routed(apps, also or {}, RequestLimits(clock, rate), places.public_url or "", stops)
    guard: ASGIApp = Guard(api, callers=Callers(apps, given, clock), places=places, apps=apps)
    pages: ASGIApp = guard
    if ui:
        pages = LazySite(guard, apps=apps, places=places, clock=clock, stopping=stops, link_alone=link_alone, oidc=oidc)
    if also and (issuer := issuer_of(given)) is not None:
        pages = ProtectedResource(pages, paths=also, issuer=issuer, places=places)
    return AccessLog(Health(pages, apps, clock, stops), clock)


def routed(
    apps: Apps, also: Mapping[str, Mounted], limits: RequestLimits, public_url: str, stopping: asyncio.Event
) -> Starlette:
    """Return the application behind the guard: the operations, their description, and others to serve."""
    operations = [each for each in operations_of(type(apps[TENANT])).values() if "http" in each.doors]
    served = _Served(apps, limits, public_url, stopping)
    api = Starlette(
        routes=[
            # First, because routes are tried in turn, and a client of MCP calls this one for everything.
            *(Route(path, _Limited(inside, limits, stopping), methods=["POST"]) for path, (inside, _) in also.items()),
            Route("/openapi.json", _describing(operations, public_url)),
            *(_route(path, handlers) for path, handlers in served.handlers(operations).items()),
        ],
        lifespan=lambda _: opened(apps, [enter for _, enter in also.values()]),
        exception_handlers={HTTPException: _not_served},
    )
    api.router.redirect_slashes = False
    return api


@asynccontextmanager
async def opened(apps: Apps, others: Collection[Callable[[], Any]] = ()) -> AsyncIterator[None]:
    """Open the apps that are not open, and enter other contexts, while a server runs."""
    async with AsyncExitStack() as stack:
        for app in apps.values():
            if not app.is_open:
                await stack.enter_async_context(app)
        for enter in others:
            await stack.enter_async_context(enter())
        yield


def _describing(operations: Sequence[Operation], public_url: str) -> Handler:
    """Return a function that replies with the description of the API."""
    made = cache(lambda: document(operations))

    async def describe(request: Request) -> Response:
        root = f"{public_url}{request.scope.get('root_path', '')}"
        return answered({**made(), **({"servers": [{"url": root}]} if root else {})})

    return describe


def _route(path: str, handlers: Mapping[str, Handler]) -> Route:
    async def handle(request: Request) -> Response:
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, handle, methods=[*handlers])


class _Served:
    """The operations of the apps, as handlers of requests."""

    def __init__(self, apps: Apps, limits: RequestLimits, public_url: str, stopping: asyncio.Event) -> None:
        self._apps, self._limits, self._public_url, self._stopping = apps, limits, public_url, stopping
        self._streams = StreamLimits()

    def handlers(self, operations: Iterable[Operation]) -> dict[str, dict[str, Handler]]:
        """Return the handlers of all operations, by path and method."""
        found: dict[str, dict[str, Handler]] = {}
        for each in operations:
            path = f"{ROOT}{each.path}"
            for name in each.in_path:
                if each.parameters[name].about.is_free_text:
                    path = path.replace(f"{{{name}}}", f"{{{name}:path}}")
            found.setdefault(path, {})[each.http_method] = self._handler(each)
        return found

    def _handler(self, operation: Operation) -> Handler:
        lists = {name for name, each in operation.sent.items() if get_origin(each.type) is list}

        async def handle(request: Request) -> Response:
            note(request.scope, operation=operation.name)
            try:
                if operation.is_stream:
                    return await self._stream(operation, request, lists)
                return await self._answer(operation, request, lists)
            except EarlyReply as early:
                note(request.scope, code=early.error.code)
                return refused(early.error, early.status)
            except LimpetError as error:
                note(request.scope, code=error.code)
                return refused(error)
            except _CallerLeft:
                return Response(status_code=499)  # for the log; it is not sent

        return handle

    async def _stream(self, operation: Operation, request: Request, lists: Collection[str]) -> Response:
        """Answer with a stream, which goes on after the last item that the client got."""
        app, who = self._app_of(request)
        async with self._limits.admitted(who):
            given = _arguments(request, _query(request, lists))
        if after := request.headers.get("last-event-id"):
            given["after"] = after
        return EventStream(operation.stream(app, given, who=who), who, self._streams, self._stopping)

    def _app_of(self, request: Request) -> tuple[App, Principal]:
        """Return the app of a request's caller, and the caller."""
        who: Principal = request.scope[PRINCIPAL]
        app = self._apps[who.tenant or TENANT]
        if not app.is_open:
            raise StoreUnavailable(reason="the app is not open", fix=NOT_OPEN)
        return app, who

    async def _answer(self, operation: Operation, request: Request, lists: Collection[str]) -> Response:
        app, who = self._app_of(request)
        async with self._limits.admitted(who):
            given = _arguments(request, await body_of(request) if operation.is_command else _query(request, lists))
            wait = waiting_time(request.headers)
            key = command_id_of(request.headers, who, operation.name) if operation.is_command else None
            async with self._limits.turn(is_large=operation.is_large):
                work = operation.run(app, given, who=who, command_id=key)
                found = await (work if operation.is_command else _while_there(request, work))
            if wait and operation.result_type is RunInfo:
                found = operation.to_json(await _while_there(request, self._ended(app, found["id"], wait)))
        if operation.name not in CREATING:
            return answered(found)
        root = f"{self._public_url}{request.scope.get('root_path', '')}{ROOT}"
        return answered(found, 201, {"location": f"{root}/runs/{quote(found['id'], safe='')}"})

    async def _ended(self, app: App, run: str, wait: float) -> RunInfo:
        """Return a run as it is once it has ended, or after some seconds, or when the server stops."""
        handle = await app.get(run)
        ended = asyncio.ensure_future(handle.result(timeout=wait, quiet=True))
        stops = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((ended, stops), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                with suppress(NotDone, RunFailed, RunCancelled):  # the reply says which of them
                    ended.result()
        finally:
            ended.cancel()
            stops.cancel()
        return await app.info(run)


class _Limited:
    """Serves another application within the limits of large operations. A stream holds no turn."""

    def __init__(self, inside: ASGIApp, limits: RequestLimits, stopping: asyncio.Event) -> None:
        self._inside, self._limits, self._stopping = inside, limits, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        try:
            async with AsyncExitStack() as held:
                await held.enter_async_context(self._limits.admitted(scope[PRINCIPAL]))
                await held.enter_async_context(self._limits.turn(is_large=True))
                scope[RELEASE], scope[STOPPING] = held.aclose, self._stopping

                async def sent(message: Message) -> None:
                    is_start = message["type"] == "http.response.start"
                    if is_start and Headers(raw=message["headers"]).get("content-type") == MEDIA_TYPE:
                        scope[STREAMING] = True
                        await held.aclose()
                    await send(message)

                await self._inside(scope, receive, sent)
        except (TooManyRequests, ServerBusy) as error:
            note(scope, code=error.code)
            await refused(error)(scope, receive, send)


def _arguments(request: Request, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a request, with those in its path."""
    for name in request.path_params.keys() & given.keys():
        raise InvalidArgument(path=name, reason="already given in the path", fix="Leave it out there.")
    return {**given, **request.path_params}


def _query(request: Request, lists: Collection[str]) -> dict[str, Any]:
    query = request.query_params
    return {name: _one_or_all(query.getlist(name), name in lists) for name in query}


async def _while_there(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of some work, cancelling it if the client disconnects."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise _CallerLeft
        return await answer
    finally:
        answer.cancel()
        gone.cancel()


class _CallerLeft(Exception):
    """The client has disconnected: no reply reaches it."""


def _one_or_all(said: list[str], is_list: bool) -> Any:
    return said if is_list or len(said) > 1 else said[0]


async def _not_served(request: Request, error: Exception) -> Response:
    """Reply to an unknown path or method with 404 or 405."""
    assert isinstance(error, HTTPException)
    return refused(
        NotFound(
            what=request.method, id=request.url.path[:LONGEST], fix="Request /openapi.json for the available paths."
        ),
        error.status_code,
        error.headers,
    )
