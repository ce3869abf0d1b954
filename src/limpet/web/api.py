"""The HTTP API: every operation has a path under /v1; /openapi.json describes them."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, get_args, get_origin

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from limpet.errors import DefinitionError, InvalidArgument, LimpetError, NotFound, StoreUnavailable
from limpet.service.app import App
from limpet.service.json_views import VERSION, name_of, schemas
from limpet.service.operation import Operation, operations_of
from limpet.service.page import Page
from limpet.web.guard import LOCAL, Auth, Guard
from limpet.web.replies import answered, refused

__all__ = ["Mounted", "asgi"]

ROOT = f"/v{VERSION}"
NOT_OPEN = "Open the app in the lifespan of the server: a mounted ASGI app gets no startup event."
# Number of concurrent queries; further ones wait.
AT_ONCE = 8
SCHEMAS = "#/components/schemas/"
ERROR = {
    "title": "Error",
    "type": "object",
    "properties": {
        "code": {"type": "string", "description": "It never changes."},
        "message": {"type": "string"},
        "facts": {"type": "object"},
        "hint": {"type": "string", "description": "What to type or change."},
    },
    "required": ["code", "message", "facts", "hint"],
}

Mounted = tuple[ASGIApp, Callable[[], Any]]
"""Another ASGI application to serve behind the same guard, and a context to enter while the server runs."""


def asgi(
    app: App, *, auth: Auth | None = None, hosts: Collection[str] = LOCAL, also: Mapping[str, Mounted] | None = None
) -> ASGIApp:
    """Return a read-only ASGI application over a store. Every request needs a token.

    `auth` is a token, several tokens, or a function that returns whether a token is valid; the default is LIMPET_TOKEN.
    `hosts` are the accepted host names. The application opens and closes the app with the server, unless it is already
    open. `also` maps paths to other applications to serve.
    """
    known = os.environ.get("LIMPET_TOKEN", "").strip() if auth is None else auth
    if not known:
        raise DefinitionError(what="auth", reason="no client could authenticate; pass auth=, or set LIMPET_TOKEN")
    api = FastAPI(
        title="Limpet",
        version=str(VERSION),
        lifespan=_open(app, [enter for _, enter in (also or {}).values()]),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={HTTPException: _not_served},
    )
    room = asyncio.Semaphore(AT_ONCE)
    for operation in operations_of(type(app)).values():
        if "http" in operation.doors:
            _add(api, app, operation, room)
    for path, (inside, _) in (also or {}).items():
        api.router.routes.append(Route(path, inside, methods=["POST"]))  # these paths handle their own responses
    api.openapi = lambda: _described(FastAPI.openapi(api))  # type: ignore[method-assign]
    return Guard(api, auth=known, hosts=hosts)


def _open(app: App, others: Collection[Callable[[], Any]]) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def opened(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if not app.is_open:
                await stack.enter_async_context(app)
            for enter in others:
                await stack.enter_async_context(enter())
            yield

    return opened


def _add(api: FastAPI, app: App, operation: Operation, room: asyncio.Semaphore) -> None:
    """Add a route for an operation."""
    lists = {name for name, each in operation.parameters.items() if get_origin(each.type) is list}

    async def ask(request: Request) -> Response:
        query, path = request.query_params, request.path_params
        given = {name: _one_or_all(query.getlist(name), name in lists) for name in query}
        try:
            if not app.is_open:
                raise StoreUnavailable(reason="the app is not open", fix=NOT_OPEN)
            for name in path.keys() & given.keys():
                raise InvalidArgument(path=name, reason="already given in the path", fix="Remove the query parameter.")
            async with room:
                return answered(await _while_there(request, operation.run(app, {**given, **path})))
        except LimpetError as error:
            return refused(error)

    api.add_api_route(
        f"{ROOT}{operation.path}",
        ask,
        methods=[operation.http_method],
        operation_id=operation.name,
        summary=operation.summary,
        description=operation.description,
        response_model=None,
        responses={
            200: _content("What was asked for.", _schema_of(operation.result_type)),
            "default": _content("An error, with a hint.", {"$ref": f"{SCHEMAS}Error"}),
        },
        openapi_extra={"parameters": _parameters(operation)},
    )


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


def _described(made: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description, with the schemas of all results."""
    made["components"] = {
        "schemas": {**schemas(SCHEMAS), "Error": ERROR},
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    made["security"] = [{"token": []}]
    return made


def _content(words: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": words, "content": {"application/json": {"schema": schema}}}


def _schema_of(form: Any) -> dict[str, Any]:
    if get_origin(form) is Page:
        items = {"type": "array", "items": _schema_of(get_args(form)[0])}
        after = {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "Pass it as `cursor` to read on."}
        return {"type": "object", "properties": {"items": items, "next": after}, "required": ["items", "next"]}
    return {"$ref": f"{SCHEMAS}{name_of(form)}"}


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    schema = operation.schema
    required = schema.get("required", ())
    return [
        {
            "name": name,
            "in": "path" if name in operation.in_path else "query",
            "required": name in required,
            "description": about["description"],
            "schema": {key: value for key, value in about.items() if key != "description"},
        }
        for name, about in schema["properties"].items()
    ]
