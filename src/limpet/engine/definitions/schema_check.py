"""Validation of values against the parts of JSON Schema that declared types use. It never fetches anything."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, time
from math import isclose
from typing import Any

from limpet.errors import place_of
from limpet.events import canonical

__all__ = ["PYTHON_NAMES", "faults", "kind_of", "resolved"]

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
PYTHON_NAMES: Mapping[str, str] = {
    "null": "None",
    "boolean": "bool",
    "integer": "int",
    "number": "float",
    "string": "str",
    "array": "list",
    "object": "dict",
}
_SIZES: Mapping[type, str] = {str: "Length", list: "Items", dict: "Properties"}
_BOUNDS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, bound: value < bound, "at least"),
    "maximum": (lambda value, bound: value > bound, "at most"),
    "exclusiveMinimum": (lambda value, bound: value <= bound, "more than"),
    "exclusiveMaximum": (lambda value, bound: value >= bound, "less than"),
}
_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", re.IGNORECASE)
_FORMATS: Mapping[str, Callable[[str], object]] = {
    "date-time": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
}


def faults(value: Any, schema: Schema, name: str = "value") -> list[str]:
    """Return all mismatches of a value, such as "order.cents: expected int, got str"; an empty list if it fits.

    `name` is that of the whole value, for a mismatch of the value itself.
    """
    try:
        return [f"{place_of(path, name)}: {reason}" for path, reason in _faults(value, schema, schema, "$")]
    except RecursionError:
        return [f"{name}: the schema has endless references"]


def kind_of(value: Any) -> str:
    """Return the name of a value's type, for people."""
    return "None" if value is None else type(value).__name__


Fault = tuple[str, str]
"""A path, and the reason."""


def _faults(value: Any, schema: Schema, root: Schema, path: str) -> Iterator[Fault]:
    found = resolved(schema, root)
    if found is None:
        yield path, f"the schema refers to {schema['$ref']}, which does not exist"
        return
    schema = found
    yield from _alternatives(value, schema, root, path)
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds is not None and not any(_TYPES.get(kind, lambda _: True)(value) for kind in kinds):
        yield path, _expected(kinds, value)
        return
    for wrong in _CHECKS:
        yield from ((path, each) for each in wrong(value, schema))
    if isinstance(value, dict):
        yield from _members(value, schema, root, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(item, _item_schema(schema, index), root, f"{path}[{index}]")


def _expected(kinds: Iterable[str], value: Any) -> str:
    return f"expected {' or '.join(PYTHON_NAMES.get(kind, kind) for kind in kinds)}, got {kind_of(value)}"


def _alternatives(value: Any, schema: Schema, root: Schema, path: str) -> Iterator[Fault]:
    for word in ("anyOf", "oneOf"):
        found = [(each, list(_faults(value, each, root, path))) for each in schema.get(word, ())]
        if found and all(wrong for _, wrong in found):
            yield from _nearest(value, found, root, path)
    for each in schema.get("allOf", ()):
        yield from _faults(value, each, root, path)
    if "not" in schema and not list(_faults(value, schema["not"], root, path)):
        yield path, "matches a schema that it must not match"


def _nearest(value: Any, alternatives: list[tuple[Schema, list[Fault]]], root: Schema, path: str) -> Iterator[Fault]:
    """Yield the mismatches of the only alternative with the value's type; otherwise name all of them."""
    kinds = [(resolved(each, root) or {}).get("type") for each, _ in alternatives]
    near = [
        wrong
        for kind, (_, wrong) in zip(kinds, alternatives, strict=True)
        if isinstance(kind, str) and _TYPES.get(kind, lambda _: False)(value)
    ]
    if len(near) == 1:
        yield from near[0]
    elif all(isinstance(kind, str) for kind in kinds) and not near:
        yield path, _expected(dict.fromkeys(map(str, kinds)), value)
    else:
        yield path, "matches none of the alternatives"


def _choice(value: Any, schema: Schema) -> Iterator[str]:
    if "enum" in schema and not any(_is_same(value, each) for each in schema["enum"]):
        yield f"expected one of {schema['enum']}"
    if "const" in schema and not _is_same(value, schema["const"]):
        yield f"expected {schema['const']!r}"


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two JSON values are the same: True is not 1, and 1.0 is not 1."""
    return type(value) is type(other) and bool(value == other)


def _number(value: Any, schema: Schema) -> Iterator[str]:
    if not _TYPES["number"](value):
        return
    for word, (is_out, text) in _BOUNDS.items():
        if word in schema and is_out(value, schema[word]):
            yield f"expected {text} {schema[word]}"
    if "multipleOf" in schema and not _is_multiple(value, schema["multipleOf"]):
        yield f"expected a multiple of {schema['multipleOf']}"


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


def _members(value: dict[str, Any], schema: Schema, root: Schema, path: str) -> Iterator[Fault]:
    known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}", "missing"
    for name, member in value.items():
        if name in known:
            yield from _faults(member, known[name], root, f"{path}.{name}")
        elif more is False:
            yield f"{path}.{name}", f"unknown; expected {', '.join(known) or 'nothing'}"
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
