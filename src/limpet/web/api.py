"""The HTTP API: every operation has a path under /v1; /openapi.json describes them."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache
from typing import Any, get_origin
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

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
    StoreUnavailable,
)
from limpet.service.access import PRINCIPAL, check_permission
from limpet.service.app import App
from limpet.service.operation import Operation, operations_of
from limpet.web.command_requests import EarlyReply, body_of, command_id_of, waiting_time
from limpet.web.guard import LOCAL, Auth, Guard
from limpet.web.openapi import CREATING, ROOT, document
from limpet.web.replies import answered, refused

__all__ = ["Mounted", "asgi"]

NOT_OPEN = "Open the app in the lifespan of the server: a mounted ASGI app gets no startup event."
# Number of concurrent queries; further ones wait.
AT_ONCE = 8
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Mounted = tuple[ASGIApp, Callable[[], Any]]
"""Another ASGI application to serve behind the same guard, and a context to enter while the server runs."""


def asgi(
    app: App, *, auth: Auth | None = None, hosts: Collection[str] = LOCAL, also: Mapping[str, Mounted] | None = None
) -> ASGIApp:
    """Return an ASGI application over a store. Every request needs a token.

    `auth` is a token, several tokens, or a function that returns whose token it is, as a `Principal` with roles, and
    None for an unknown one; the default is LIMPET_TOKEN. A caller with such a token is the operator `env`.
    `hosts` are the accepted host names. The application opens and closes the app with the server, unless it is already
    open. `also` maps paths to other applications to serve.
    """
    known = os.environ.get("LIMPET_TOKEN", "").strip() if auth is None else auth
    if not known:
        raise DefinitionError(what="auth", reason="no client could authenticate; pass auth=, or set LIMPET_TOKEN")
    operations = [each for each in operations_of(type(app)).values() if "http" in each.doors]
    room = asyncio.Semaphore(AT_ONCE)
    api = Starlette(
        routes=[
            Route("/openapi.json", _describing(operations)),
            *(_route(path, handlers) for path, handlers in _handlers(app, operations, room).items()),
            *(Route(path, inside, methods=["POST"]) for path, (inside, _) in (also or {}).items()),
        ],
        lifespan=_open(app, [enter for _, enter in (also or {}).values()]),
        exception_handlers={HTTPException: _not_served},
    )
    api.router.redirect_slashes = False
    return Guard(api, auth=known, hosts=hosts)


def _describing(operations: Sequence[Operation]) -> Handler:
    """Return a function that replies with the description of the API."""
    made = cache(lambda: document(operations))

    async def describe(request: Request) -> Response:
        root = request.scope.get("root_path", "")
        return answered({**made(), **({"servers": [{"url": root}]} if root else {})})

    return describe


def _open(app: App, others: Collection[Callable[[], Any]]) -> Callable[[Starlette], Any]:
    @asynccontextmanager
    async def opened(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if not app.is_open:
                await stack.enter_async_context(app)
            for enter in others:
                await stack.enter_async_context(enter())
            yield

    return opened


def _handlers(app: App, operations: Iterable[Operation], room: asyncio.Semaphore) -> dict[str, dict[str, Handler]]:
    """Return the handlers of all operations, by path and method."""
    found: dict[str, dict[str, Handler]] = {}
    for each in operations:
        found.setdefault(f"{ROOT}{each.path}", {})[each.http_method] = _handler(app, each, room)
    return found


def _route(path: str, handlers: Mapping[str, Handler]) -> Route:
    async def handle(request: Request) -> Response:
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, handle, methods=[*handlers])


def _handler(app: App, operation: Operation, room: asyncio.Semaphore) -> Handler:
    """Return the handler of an operation."""
    lists = {name for name, each in operation.sent.items() if get_origin(each.type) is list}

    async def ask(request: Request) -> Response:
        path = request.path_params
        try:
            if not app.is_open:
                raise StoreUnavailable(reason="the app is not open", fix=NOT_OPEN)
            who: Principal = request.scope[PRINCIPAL]
            check_permission(who, operation.name, operation.needs)
            given = await body_of(request) if operation.is_command else _query(request, lists)
            for name in path.keys() & given.keys():
                raise InvalidArgument(path=name, reason="already given in the path", fix="Leave it out there.")
            wait = waiting_time(request.headers)
            key = command_id_of(request.headers, who, operation.name) if operation.is_command else None
            async with room:
                work = operation.run(app, {**given, **path}, who=who, command_id=key)
                found = await _while_there(request, work)
            if wait and operation.result_type is RunInfo:
                found = operation.to_json(await _while_there(request, _ended(app, found["id"], wait)))
        except EarlyReply as early:
            return refused(early.error, early.status)
        except LimpetError as error:
            return refused(error)
        return _reply(operation, found)

    return ask


def _query(request: Request, lists: Collection[str]) -> dict[str, Any]:
    query = request.query_params
    return {name: _one_or_all(query.getlist(name), name in lists) for name in query}


def _reply(operation: Operation, found: Any) -> Response:
    """Return the result; a new run has its own address."""
    if operation.name not in CREATING:
        return answered(found)
    return answered(found, 201, {"location": f"{ROOT}/runs/{quote(found['id'], safe='')}"})


async def _ended(app: App, run: str, wait: float) -> RunInfo:
    """Return a run as it is once it has ended, or after some seconds."""
    handle = await app.get(run)
    with suppress(NotDone, RunFailed, RunCancelled):  # the reply says which of them
        await handle.result(timeout=wait, quiet=True)
    return await app.info(run)


async def _while_there(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of some work, cancelling it if the client disconnects."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        return await answer if answer.done() else None
    finally:
        answer.cancel()
        gone.cancel()


def _one_or_all(said: list[str], is_list: bool) -> Any:
    return said if is_list or len(said) > 1 else said[0]


async def _not_served(request: Request, error: Exception) -> Response:
    """Reply to an unknown path or method with 404 or 405."""
    assert isinstance(error, HTTPException)
    return refused(
        NotFound(what=request.method, id=request.url.path, fix="Request /openapi.json for the available paths."),
        error.status_code,
        error.headers,
    )
