"""Whether a value fits a JSON Schema: the parts of it that declared types use."""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["faults"]

_TYPES: Mapping[str, Any] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def faults(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """What is wrong with a value, in words; nothing if it fits."""
    return list(_faults(value, schema, schema, "$"))


def _faults(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], path: str) -> Iterator[str]:
    if "$ref" in schema:
        yield from _faults(value, _resolve(schema["$ref"], root), root, path)
        return
    yield from _alternatives(value, schema, root, path)
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds is not None and not any(_TYPES.get(kind, lambda _: True)(value) for kind in kinds):
        yield f"{path} is not of type {' or '.join(kinds)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path} is none of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{path} is not {schema['const']!r}"
    yield from _bounds(value, schema, path)
    if isinstance(value, dict):
        yield from _members(value, schema, root, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(item, _item_schema(schema, index), root, f"{path}[{index}]")


def _alternatives(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], path: str) -> Iterator[str]:
    for word in ("anyOf", "oneOf"):
        if word in schema and all(list(_faults(value, each, root, path)) for each in schema[word]):
            yield f"{path} fits none of its alternatives"
    for each in schema.get("allOf", ()):
        yield from _faults(value, each, root, path)


def _bounds(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            yield f"{path} is out of bounds"
        if value <= schema.get("exclusiveMinimum", value - 1) or value >= schema.get("exclusiveMaximum", value + 1):
            yield f"{path} is out of bounds"
    if isinstance(value, str | list):
        kind = "Length" if isinstance(value, str) else "Items"
        if not schema.get(f"min{kind}", 0) <= len(value) <= schema.get(f"max{kind}", len(value)):
            yield f"{path} is too short or too long"


def _members(value: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], path: str) -> Iterator[str]:
    known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name} is missing"
    for name, member in value.items():
        if name in known:
            yield from _faults(member, known[name], root, f"{path}.{name}")
        elif more is False:
            yield f"{path}.{name} is not known"
        elif isinstance(more, Mapping):
            yield from _faults(member, more, root, f"{path}.{name}")


def _item_schema(schema: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    first = schema.get("prefixItems", [])
    found: Any = first[index] if index < len(first) else schema.get("items", {})
    return found if isinstance(found, Mapping) else {}


def _resolve(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A definition of the same schema; nothing is ever fetched."""
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found[part.replace("~1", "/").replace("~0", "~")]
    assert isinstance(found, Mapping)
    return found
