"""Arguments of the app's methods as JSON, in the form that a server takes."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_origin

import msgspec
from msgspec.structs import asdict

from limpet.clock import microseconds, to_microseconds
from limpet.engine.definitions.agents import Budget, limits_of
from limpet.errors import NotRemote
from limpet.events.values import canonical
from limpet.service.moments import Point
from limpet.service.operation import Parameter
from limpet.state import AgentState
from limpet.times import to_datetime

__all__ = ["sent"]


def sent(value: Any, parameter: Parameter) -> Any:
    """Return an argument as plain JSON.

    Raises InvalidValue, InvalidArgument for a time without a time zone, and NotRemote for what only Python has.
    """
    kinds = {get_origin(each) or each: each for each in (*get_args(parameter.type), parameter.type)}
    if list in kinds:
        return _list(value)
    if dict in kinds:
        return _object(value, get_args(kinds[dict])[1], parameter.name)
    if str in kinds or datetime in kinds:
        return _text(value, parameter.name, is_duration=int not in kinds)
    canonical(value)
    return value


def _list(value: Any) -> list[Any]:
    """Return several values; labels by name are NAME=VALUE."""
    if isinstance(value, Mapping):
        return [f"{name}={each}" for name, each in value.items()]
    return [value] if isinstance(value, str) else list(value or ())


def _object(value: Any, kind: Any, name: str) -> Any:
    """Return values by name: labels, facts, ages, limits, or a whole state."""
    if isinstance(value, Budget):
        plain: Any = {name: each for name, each in asdict(limits_of(value)).items() if each is not None}
    elif isinstance(value, AgentState):
        plain = msgspec.json.decode(msgspec.json.encode(value))
    elif isinstance(value, Mapping):
        is_text = kind is not Any and str in (kind, *get_args(kind))
        is_duration = is_text and int not in get_args(kind)
        plain = {
            str(key): _text(each, name, is_duration=is_duration) if is_text else each for key, each in value.items()
        }
    else:
        plain = value
    canonical(plain)
    return plain


def _text(value: Any, name: str, *, is_duration: bool) -> Any:
    """Return a point, a time or a duration as text. A number is only a duration where no other number is meant."""
    match value:
        case Point(at=None):
            given = {"before": value.before, "after": value.after, "event": value.seq}
            return next((f"{kind}:{number}" for kind, number in given.items() if number is not None), None)
        case Point(at=at):
            return _time(at if isinstance(at, datetime) else to_datetime(at or 0), name)
        case datetime():
            return _time(value, name)
        case timedelta():
            return f"{microseconds(value)}us"
        case int() | float() if is_duration:
            return f"{microseconds(value)}us"
        case str() | int() | float() | None:
            return value
        case _:
            raise NotRemote(what=f"{name} as a {type(value).__name__}", fix="Pass a text.")


def _time(at: datetime, path: str) -> str:
    """Return a time as text. Raises InvalidArgument if it has no time zone."""
    to_microseconds(at, path)
    return at.astimezone(UTC).isoformat()
