"""Views as plain JSON: times in ISO 8601, lists as pages, errors with their hints."""

from datetime import UTC, datetime
from types import NoneType
from typing import Any

import msgspec
from msgspec import Raw

from limpet.errors import LimpetError
from limpet.service.page import Page

__all__ = ["as_json", "error_json"]

_SCALARS = (str, int, float, bool, NoneType)


def as_json(view: Any) -> Any:
    """Return a view as plain JSON data. Times are ISO 8601 in UTC, with microseconds."""
    if isinstance(view, Page):
        return {"items": [as_json(each) for each in view], "next": view.next}
    if isinstance(view, list | tuple) and not hasattr(view, "_fields"):
        return [as_json(each) for each in view]
    shown = view.as_json() if hasattr(view, "as_json") else view
    return _formatted(msgspec.to_builtins(shown, builtin_types=(datetime,), str_keys=True, enc_hook=_plain))


def error_json(error: LimpetError) -> dict[str, Any]:
    """Return an error as all interfaces show it. The hint includes suggested ids."""
    hint = " ".join([error.hint, *getattr(error, "__notes__", ())])
    return {"code": error.code, "message": error.summary, "facts": dict(error.facts), "hint": hint}


def _plain(value: Any) -> Any:
    """Return a value that msgspec leaves to this function: JSON that is kept as bytes."""
    return msgspec.json.decode(value) if isinstance(value, Raw) else str(value)


def _formatted(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {name: each if type(each) in _SCALARS else _formatted(each) for name, each in plain.items()}
    if isinstance(plain, list | tuple):
        return [each if type(each) in _SCALARS else _formatted(each) for each in plain]
    if isinstance(plain, datetime):
        return plain.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return plain
