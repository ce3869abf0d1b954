"""The OpenAPI description of the HTTP API, made from the operations."""

from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin

from limpet.service.json_views import VERSION, name_of, schemas
from limpet.service.operation import Operation
from limpet.service.page import Page

__all__ = ["ROOT", "document"]

ROOT = f"/v{VERSION}"
SCHEMAS = "#/components/schemas/"
ERROR = {
    "title": "Error",
    "type": "object",
    "description": "An error, as all interfaces return it.",
    "properties": {
        "code": {"type": "string", "description": "It never changes.", "examples": ["not_found"]},
        "message": {"type": "string", "description": "What happened."},
        "facts": {"type": "object", "description": "What the message is about, by name."},
        "hint": {"type": "string", "description": "What to type or change."},
    },
    "required": ["code", "message", "facts", "hint"],
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
            "schemas": {**schemas(SCHEMAS), "Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": operation.description,
        "parameters": _parameters(operation),
        "responses": {
            "200": _content("What was asked for.", _schema_of(operation.result_type)),
            "default": _content("An error, with a hint.", {"$ref": f"{SCHEMAS}Error"}),
        },
    }


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
            "schema": _without_null({key: value for key, value in about.items() if key != "description"}),
        }
        for name, about in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter, which is text: it can be left out, but it cannot be null."""
    kinds = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**kinds[0], **{key: value for key, value in schema.items() if key not in ("anyOf", "default")}}
