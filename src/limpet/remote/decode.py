"""Replies of a server as Python objects: the types that the app's methods return, and errors by their codes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from limpet import errors
from limpet.errors import LimpetError, Unexpected
from limpet.remote.moment import RemoteMoment
from limpet.service.moments import Moment, MomentJson
from limpet.service.page import Page

__all__ = ["decoded", "problem_error", "shortened"]


class _Shortened(msgspec.Struct):
    truncated: list[str] = []


class _Problem(msgspec.Struct):
    code: str
    detail: str
    facts: dict[str, Any]
    hint: str


def shortened(text: bytes) -> list[str]:
    """Return what the server left out of a reply, because the whole is too large."""
    return msgspec.json.decode(text, type=_Shortened).truncated if b'"truncated":["$' in text else []


def decoded(text: bytes, kind: Any) -> Any:
    """Return a reply as an object of a type. Raises msgspec.ValidationError if it has another form."""
    return _decoder(kind)(text)


@cache
def _decoder(kind: Any) -> Callable[[bytes], Any]:
    if kind is Moment:
        moment = msgspec.json.Decoder(MomentJson)
        return lambda text: RemoteMoment(moment.decode(text))
    if get_origin(kind) is Page:
        [item] = get_args(kind)
        made = msgspec.defstruct("PageJson", [("items", list[item]), ("next", str | None)])  # type: ignore[valid-type]
        page = msgspec.json.Decoder(made)

        def read(text: bytes) -> Any:
            found: Any = page.decode(text)
            return Page(found.items, found.next)

        return read
    return msgspec.json.Decoder(kind).decode


def problem_error(text: bytes) -> LimpetError:
    """Return the error that a problem (RFC 9457) stands for, with its facts and its hint."""
    try:
        told = msgspec.json.decode(text, type=_Problem)
    except msgspec.DecodeError:
        return Unexpected(error_type="problem", message=text[:200].decode(errors="replace"))
    kind = _kinds().get(told.code)
    found = None if kind is None else _made(kind, told)
    return found or Unexpected(error_type=told.code, message=told.detail)


def _made(kind: type[LimpetError], told: _Problem) -> LimpetError | None:
    """Return an error of a class, or None if its facts are not those of this version."""
    hints = get_type_hints(kind)
    known = {each.name for each in fields(kind)}
    try:
        facts = {
            name: msgspec.convert(value, hints[name], strict=False)
            for name, value in told.facts.items()
            if name in known
        }
        found = kind(**facts)
    except (msgspec.ValidationError, TypeError):
        return None
    if told.hint.startswith(found.hint):
        if more := told.hint.removeprefix(found.hint).strip():
            found.add_note(more)
    elif "fix" in known:
        found = kind(**{**facts, "fix": told.hint})
    return found


@cache
def _kinds() -> Mapping[str, type[LimpetError]]:
    """Return the classes of errors by code."""
    return {each.code: each for each in _below(errors.LimpetError) if each.__module__ == LimpetError.__module__}


def _below(kind: type[LimpetError]) -> Iterator[type[LimpetError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _below(each)
