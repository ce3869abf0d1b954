"""The OpenAPI description of the HTTP API, made from the operations."""

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, get_args, get_origin

from limpet.engine.execution.views import RunInfo
from limpet.service.json_views import VERSION, name_of, schemas
from limpet.service.operation import Operation
from limpet.service.page import Page
from limpet.web.event_streams import MEDIA_TYPE
from limpet.web.replies import PROBLEM

__all__ = ["CREATING", "ROOT", "document"]

ROOT = f"/v{VERSION}"
SCHEMAS, RESPONSES = "#/components/schemas/", "#/components/responses/"
# Operations that create a run.
CREATING = ("start", "batch", "fork")
PROBLEM_SCHEMA = {
    "title": "Problem",
    "type": "object",
    "description": "An error (RFC 9457), with the same code, facts and hint as in every interface.",
    "properties": {
        "type": {"type": "string", "description": "The code as a URN.", "examples": ["urn:limpet:error:not_found"]},
        "title": {"type": "string", "description": "Name of the status.", "examples": ["Not Found"]},
        "status": {"type": "integer", "description": "HTTP status.", "examples": [404]},
        "detail": {"type": "string", "description": "What happened."},
        "code": {"type": "string", "description": "It never changes.", "examples": ["not_found"]},
        "facts": {"type": "object", "description": "What the detail is about, by name."},
        "hint": {"type": "string", "description": "What to type or change."},
    },
    "required": ["type", "title", "status", "detail", "code", "facts", "hint"],
}
# Problems that an operation may reply with, by status.
OF_ALL: Mapping[int, str] = {
    401: "The token is missing, invalid, expired or revoked.",
    403: "The caller may not do this, or the request came from a page of another origin.",
    404: "There is no such run, request or other thing.",
    409: "It conflicts with the state of the run or of the store.",
    421: "The server does not accept this host name.",
    422: "An argument is invalid.",
    429: "There are too many requests. `Retry-After` says when to retry.",
    503: "The store, or a part of the server, is not available. Retry later.",
}
OF_COMMANDS: Mapping[int, str] = {
    400: "The body is not valid JSON.",
    410: "The request has expired.",
    413: "The body is larger than 4 MiB.",
    415: "The body is not JSON.",
}
STREAM = (
    "Server-sent events. The data of a message is an item as JSON, its id the item's cursor. The last message is named "
    "`end` if nothing follows, `resume` if the client should reconnect, and `error` with a problem."
)
RESUMING = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "Cursor of the last item that the client got. It wins over `after`.",
    "schema": {"type": "string", "examples": ["57"]},
}
KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Your id of this command. Repeating the same request with it has no further effect.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "examples": ["order-42"]},
}
WAIT = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "`wait=10` waits up to 10 seconds for the end of the run.",
    "schema": {"type": "string", "examples": ["wait=10"]},
}


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the description of these operations, with the schemas of all results."""
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(f"{ROOT}{each.path}", {})[each.http_method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Limpet", "version": str(VERSION)},
        "paths": paths,
        "components": {
            "schemas": {**schemas(SCHEMAS), "Problem": PROBLEM_SCHEMA},
            "responses": {
                str(status): _content(words, {"$ref": f"{SCHEMAS}Problem"}, PROBLEM)
                for status, words in {**OF_ALL, **OF_COMMANDS}.items()
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    is_new = "201" if operation.name in CREATING else "200"
    described = {
        "operationId": operation.name,
        "tags": [operation.topic],
        "summary": operation.summary,
        "description": operation.description,
        "parameters": _parameters(operation),
        "responses": {
            is_new: _content("What was asked for.", _schema_of(operation.result_type))
            if not operation.is_stream
            else _content(STREAM, {"type": "string", "contentSchema": _schema_of(operation.result_type)}, MEDIA_TYPE),
            **_problems(operation),
        },
    }
    return described | ({"requestBody": _body(operation)} if operation.is_command else {})


def _problems(operation: Operation) -> dict[str, Any]:
    found = {**OF_ALL, **OF_COMMANDS} if operation.is_command else OF_ALL
    return {str(status): {"$ref": f"{RESPONSES}{status}"} for status in sorted(found)}


def _body(operation: Operation) -> dict[str, Any]:
    """Return the description of the body of a command: its arguments that are not in the path."""
    schema = operation.schema
    properties = {name: each for name, each in schema["properties"].items() if name not in operation.in_path}
    required = [name for name in schema["required"] if name in properties]
    whole = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"required": bool(required), "content": {"application/json": {"schema": whole}}}


def _content(words: str, schema: Mapping[str, Any], kind: str = "application/json") -> dict[str, Any]:
    return {"description": words, "content": {kind: {"schema": schema}}}


def _schema_of(form: Any) -> dict[str, Any]:
    if get_origin(form) is Page:
        items = {"type": "array", "items": _schema_of(get_args(form)[0]), "description": "The items of this page."}
        after = {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "Pass it as `cursor` to read on."}
        return {"type": "object", "properties": {"items": items, "next": after}, "required": ["items", "next"]}
    if NoneType in get_args(form):
        return {"anyOf": [*(_schema_of(each) for each in get_args(form) if each is not NoneType), {"type": "null"}]}
    return {"$ref": f"{SCHEMAS}{name_of(form)}"}


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    schema = operation.schema
    required = schema.get("required", ())
    found = [
        {
            "name": name,
            "in": "path" if name in operation.in_path else "query",
            "required": name in required,
            "description": about["description"],
            "schema": _without_null({key: value for key, value in about.items() if key != "description"}),
        }
        for name, about in schema["properties"].items()
        if name in operation.in_path or not operation.is_command
    ]
    if operation.is_stream:
        found.append(RESUMING)
    if operation.is_command:
        found += [KEY, WAIT] if operation.result_type is RunInfo else [KEY]
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter, which is text: it can be left out, but it cannot be null."""
    kinds = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**kinds[0], **{key: value for key, value in schema.items() if key not in ("anyOf", "default")}}
