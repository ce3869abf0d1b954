"""Forms made from JSON Schemas: fields for a value, and the value of the fields that a person filled in.

An object has a field per property, and any other value has one field. What has no field of its own, such as a list, is
typed as JSON. The schema is checked where the value is used, so a form only has to be able to express it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from limpet.errors import InvalidArgument, InvalidValue
from limpet.service.json_body import read_json

__all__ = ["FormField", "fields_of", "value_of"]

Schema = Mapping[str, Any]
FieldKind = Literal["text", "long", "integer", "number", "boolean", "choice", "json", "nothing"]
# Texts from this length on are typed in a larger field.
LONG = 60
MISSING: Any = object()
ABSENT = ""
"""The value of a field that is left out."""


class FormField(Struct, frozen=True, kw_only=True):
    """A field of a form."""

    name: str
    """Name in the form."""
    label: str
    """Name for people; empty for the field of a whole value."""
    kind: FieldKind
    value: str
    """The text that it begins with."""
    choices: tuple[str, ...] = ()
    """Texts to choose from."""
    hint: str = ""
    """Describes the values that may be typed."""
    is_required: bool = False


def fields_of(schema: Schema | None, value: Any = MISSING, *, prefix: str) -> list[FormField]:
    """Return the fields for a value that a schema describes. `prefix` begins their names."""
    known = _resolved(schema or {}, schema or {})
    names = _properties(known, value)
    if names is None:
        return [_field(known, schema or {}, value, name=prefix, label="", is_required=True)]
    required = known.get("required", ())
    found = [
        _field(
            _resolved(part, schema or {}),
            schema or {},
            value.get(name, MISSING) if isinstance(value, Mapping) else part.get("default", MISSING),
            name=f"{prefix}.{name}",
            label=name,
            is_required=name in required,
        )
        for name, part in names.items()
    ]
    return sorted(found, key=lambda field: not field.is_required)


def value_of(schema: Schema | None, form: Mapping[str, str], *, prefix: str, value: Any = MISSING) -> Any:
    """Return the value that a form has. Raises InvalidArgument, with the name of the field.

    `value` is the one that the form was made with, if there was one: its type tells how to read a field that the schema
    does not describe.
    """
    found: dict[str, Any] = {}
    for field in fields_of(schema, value, prefix=prefix):
        text = form.get(field.name, ABSENT)
        if not field.label:
            return _read(field, text)
        if field.kind == "boolean" or text != ABSENT or (field.is_required and field.kind in ("text", "long")):
            found[field.label] = _read(field, text)
        elif field.is_required:
            raise InvalidArgument(path=field.label, reason="is empty")
        elif field.value != ABSENT:
            found[field.label] = "" if field.kind in ("text", "long") else None
    return found


def _properties(schema: Schema, value: Any) -> Mapping[str, Schema] | None:
    """Return the properties that have fields: of an object with known names, or of the value itself."""
    properties: Mapping[str, Schema] | None = schema.get("properties")
    if properties is None and not schema and isinstance(value, Mapping):
        return {name: {} for name in value}
    return properties or None


def _field(schema: Schema, whole: Schema, value: Any, *, name: str, label: str, is_required: bool) -> FormField:
    choices = _choices(schema)
    kind = "choice" if choices else _kind(schema, value)
    text = _text(kind, value if value is not MISSING else schema.get("default", MISSING))
    if kind == "text" and len(text) >= LONG:
        kind = "long"
    hint = ", ".join(_hints(schema, kind, whole))
    return FormField(name=name, label=label, kind=kind, value=text, choices=choices, hint=hint, is_required=is_required)


KINDS: Mapping[str, FieldKind] = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "null": "nothing",
}


def _kind(schema: Schema, value: Any) -> FieldKind:
    kind = schema.get("type")
    if kind is None and value not in (MISSING, None) and "anyOf" not in schema:
        kind = {bool: "boolean", int: "integer", float: "number", str: "string"}.get(type(value))
    return KINDS.get(kind, "json") if isinstance(kind, str) else "json"


def _choices(schema: Schema) -> tuple[str, ...]:
    """Return the texts to choose from, if a value is one of some texts."""
    found = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return tuple(found) if found and all(isinstance(each, str) for each in found) else ()


def _hints(schema: Schema, kind: FieldKind, whole: Schema) -> Iterator[str]:
    words = {"integer": "a whole number", "number": "a number", "json": "as JSON"}
    if kind in words:
        yield words[kind]
    for name, word in (("minimum", "at least"), ("maximum", "at most"), ("format", "")):
        if name in schema:
            yield f"{word} {schema[name]}".strip()
    if kind == "json" and schema.get("type") == "array":
        items = _resolved(schema.get("items", {}), whole).get("type")
        yield f"a list of {items}s" if isinstance(items, str) else "a list"


def _resolved(schema: Schema, whole: Schema) -> Schema:
    """Return a schema with its reference followed, and without the alternative null."""
    for _ in range(20):
        reference = schema.get("$ref", "")
        if not reference.startswith("#/$defs/"):
            break
        schema = whole.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    some = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    if len(some) == 1:
        return {**_resolved(some[0], whole), **{name: schema[name] for name in ("default",) if name in schema}}
    return schema


def _text(kind: FieldKind, value: Any) -> str:
    """Return a value as the text of its field."""
    if value is MISSING or value is None:
        return ABSENT
    if kind in ("text", "choice") and isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, dict | list) else None)


def _read(field: FormField, text: str) -> Any:
    """Return the value of one field."""
    name = field.label or "value"
    match field.kind:
        case "text" | "long" | "choice":
            return text.replace("\r\n", "\n")
        case "boolean":
            return text in ("on", "true")
        case "nothing":
            return None
        case _:
            return _number_or_json(field, name, text)


def _number_or_json(field: FormField, name: str, text: str) -> Any:
    try:
        found = read_json(text.strip(), name)
    except InvalidValue as error:
        words = {"integer": "a whole number", "number": "a number"}
        wanted = words.get(field.kind)
        reason = f"{text[:40]!r} is not {wanted}" if wanted else f"not JSON: {error.reason}"
        raise InvalidArgument(path=name, reason=reason) from None
    if field.kind in ("integer", "number") and (isinstance(found, bool) or not isinstance(found, int | float)):
        raise InvalidArgument(path=name, reason=f"{text[:40]!r} is not a number")
    return found
