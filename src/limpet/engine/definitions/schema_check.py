"""Validation of values against the parts of JSON Schema that declared types use. It never fetches anything."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, time
from math import isclose
from typing import Any

from limpet.events import canonical

__all__ = ["faults", "resolved"]

Schema = Mapping[str, Any]
# Limit of a chain of references: definitions that only refer to each other would never end.
MOST_REFERENCES = 100
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_SIZES: Mapping[type, str] = {str: "Length", list: "Items", dict: "Properties"}
_BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: value < bound,
    "maximum": lambda value, bound: value > bound,
    "exclusiveMinimum": lambda value, bound: value <= bound,
    "exclusiveMaximum": lambda value, bound: value >= bound,
}
_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", re.IGNORECASE)
_FORMATS: Mapping[str, Callable[[str], object]] = {
    "date-time": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
}


def faults(value: Any, schema: Schema) -> list[str]:
    """Return all mismatches of a value, each with its path as text; an empty list if the value fits."""
    try:
        return list(_faults(value, schema, schema, "$"))
    except RecursionError:
        return ["$: the schema has endless references"]


def _faults(value: Any, schema: Schema, root: Schema, path: str) -> Iterator[str]:
    found = resolved(schema, root)
    if found is None:
        yield f"{path}: the schema refers to {schema['$ref']}, which does not exist"
        return
    schema = found
    yield from _alternatives(value, schema, root, path)
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds is not None and not any(_TYPES.get(kind, lambda _: True)(value) for kind in kinds):
        yield f"{path} is not of type {' or '.join(kinds)}"
        return
    for wrong in _CHECKS:
        yield from (f"{path} {each}" for each in wrong(value, schema))
    if isinstance(value, dict):
        yield from _members(value, schema, root, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(item, _item_schema(schema, index), root, f"{path}[{index}]")


def _alternatives(value: Any, schema: Schema, root: Schema, path: str) -> Iterator[str]:
    for word in ("anyOf", "oneOf"):
        if word in schema and all(list(_faults(value, each, root, path)) for each in schema[word]):
            yield f"{path} matches none of the alternatives"
    for each in schema.get("allOf", ()):
        yield from _faults(value, each, root, path)
    if "not" in schema and not list(_faults(value, schema["not"], root, path)):
        yield f"{path} matches a schema that it must not match"


def _choice(value: Any, schema: Schema) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"is not one of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"is not {schema['const']!r}"


def _number(value: Any, schema: Schema) -> Iterator[str]:
    if not _TYPES["number"](value):
        return
    if any(word in schema and is_out(value, schema[word]) for word, is_out in _BOUNDS.items()):
        yield "is out of bounds"
    if "multipleOf" in schema and not _is_multiple(value, schema["multipleOf"]):
        yield f"is not a multiple of {schema['multipleOf']}"


def _is_multiple(value: float, of: float) -> bool:
    try:
        if isinstance(value, int) and isinstance(of, int):
            return value % of == 0
        return isclose(quotient := value / of, round(quotient))
    except ArithmeticError:  # division by zero, or a value too large for a float
        return False


def _size(value: Any, schema: Schema) -> Iterator[str]:
    kind = _SIZES.get(type(value))
    if kind and not schema.get(f"min{kind}", 0) <= len(value) <= schema.get(f"max{kind}", len(value)):
        yield "has an invalid length"
    if isinstance(value, list) and schema.get("uniqueItems") and len(set(map(canonical, value))) < len(value):
        yield "has duplicate items"


def _text(value: Any, schema: Schema) -> Iterator[str]:
    if not isinstance(value, str):
        return
    with suppress(re.error):  # a pattern in another dialect is not checked
        if "pattern" in schema and re.search(schema["pattern"], value) is None:
            yield f"does not match {schema['pattern']}"
    read = _FORMATS.get(schema.get("format", ""))
    try:
        if read is not None:
            read(value)
        elif schema.get("format") == "uuid" and not _UUID.fullmatch(value):
            yield "is not a uuid"
    except ValueError:
        yield f"is not a valid {schema['format']}"


_CHECKS = (_choice, _number, _size, _text)


def _members(value: dict[str, Any], schema: Schema, root: Schema, path: str) -> Iterator[str]:
    known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name} is missing"
    for name, member in value.items():
        if name in known:
            yield from _faults(member, known[name], root, f"{path}.{name}")
        elif more is False:
            yield f"{path}.{name} is unknown"
        elif isinstance(more, Mapping):
            yield from _faults(member, more, root, f"{path}.{name}")


def _item_schema(schema: Schema, index: int) -> Schema:
    first = schema.get("prefixItems", [])
    found: Any = first[index] if index < len(first) else schema.get("items", {})
    return found if isinstance(found, Mapping) else {}


def resolved(schema: Schema, root: Schema) -> Schema | None:
    """Return the schema with its reference resolved, or None if the definition does not exist."""
    for _ in range(MOST_REFERENCES):
        if "$ref" not in schema:
            return schema
        found: Any = root
        for part in schema["$ref"].removeprefix("#").split("/"):
            if part:
                found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            return None
        schema = {**found, **{key: each for key, each in schema.items() if key != "$ref"}}
    return None
