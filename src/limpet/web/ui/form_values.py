"""Values that people type into forms: JSON, or text."""

from typing import Any

from limpet.errors import InvalidArgument, InvalidValue
from limpet.service.json_body import read_json

__all__ = ["json_object", "json_or_text", "step_number"]


def json_or_text(text: str) -> Any:
    """Return a value as JSON, or as the text itself if it is not JSON."""
    try:
        return read_json(text.strip())
    except InvalidValue:
        return text


def json_object(text: str, name: str) -> dict[str, Any]:
    """Return an object in JSON. Raises InvalidArgument."""
    try:
        found = read_json(text, name)
    except InvalidValue as error:
        raise InvalidArgument(path=name, reason=f"not JSON: {error.reason}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(path=name, reason="is not an object")
    return found


def step_number(text: str | None) -> int | None:
    """Return the number of a step, None for no text. Raises InvalidArgument."""
    if not text:
        return None
    if not text.isdecimal() or not 1 <= int(text[:18]) < 2**53:
        raise InvalidArgument(path="step", reason=f"{text[:20]!r} is not a step number")
    return int(text)
