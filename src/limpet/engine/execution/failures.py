"""Exceptions as data: what is recorded of an error, and questions about it that are answered from the record alone.

An exception is somebody else's code: its text, its facts and its attributes may fail, be endless or hold half a
character. Whatever it does, recording it succeeds, because a failure that cannot be recorded would be lost. What looks
like a secret, or is one, is taken out before anything is cut off: half of one is a secret still.
"""

from collections.abc import Callable, Iterator, Mapping
from traceback import TracebackException
from typing import TypeVar

from limpet.errors import AgentFailed, LimpetError, StepFailed, is_named
from limpet.events import Failure, Payload, canonical, inline
from limpet.redaction import hide_secrets, hide_secrets_in

__all__ = ["failure_of", "message_of", "was"]

MAX_MESSAGE = 4_000
MAX_TRACEBACK = 8_000
# One frame or one message within a traceback: a long message must not push out all frames.
MAX_PIECE = 2_000
# Frames of one exception; more than the text has room for.
MAX_FRAMES = 100
# How much is looked through of a longer text: what is cut off from it would have been cut off anyway.
MAX_SAID = 30_000
# Stands between two pieces of a traceback while it is looked through.
_BETWEEN = "\0"

T = TypeVar("T")


def failure_of(error: BaseException, *, facts: Mapping[str, object] | None = None) -> Failure:
    """The error as data; `facts` are added to those that a LimpetError has. Never raises."""
    return Failure(
        type=_qualified(type(error)),
        mro=(*(_qualified(each) for each in _lineage(type(error))), *_inner(error)),
        message=message_of(error),
        code=_code(error),
        facts=_payload({**_facts(error), **(facts or {})}),
        traceback=_traceback(error),
    )


def was(failure: Failure, kind: type[BaseException] | str) -> bool:
    """Whether the recorded error was of this class, or of one with this name: qualified, or the end of one."""
    return is_named((failure.type, *failure.mro), kind)


def message_of(error: BaseException) -> str:
    """What the error says, within bounds, even if it cannot say it."""
    return _attempt(lambda: _said(_text(error), MAX_MESSAGE), f"<{_qualified(type(error))} without readable text>")


def _text(error: BaseException) -> str:
    """Ours without the cure, which depends on who reads it."""
    return error.summary if isinstance(error, LimpetError) else str(error)


def _attempt(ask: Callable[[], T], otherwise: T) -> T:
    """What a foreign object answers, or the alternative."""
    try:
        return ask()
    except BaseException:  # noqa: BLE001 - it may raise anything, and the failure must be recorded all the same
        return otherwise


def _said(text: str, most: int) -> str:
    """The beginning of a text, as it may be said."""
    return hide_secrets(_clean(text[:MAX_SAID]))[:most]


def _clean(text: str) -> str:
    """Plain text without lone surrogates, whatever subclass of str it was."""
    return str.encode(text, "utf-8", "replace").decode()


def _qualified(kind: type) -> str:
    # Asked of `type` itself, because a metaclass may answer anything.
    module = _attempt(lambda: _clean(type.__getattribute__(kind, "__module__")), "")
    name = _clean(type.__getattribute__(kind, "__qualname__"))
    return f"{module}.{name}" if module else name


def _lineage(kind: type) -> tuple[type, ...]:
    every: tuple[type, ...] = type.__getattribute__(kind, "__mro__")
    return tuple(each for each in every if each is not object)


def _inner(error: BaseException) -> tuple[str, ...]:
    """What a step, or another agent, failed with: the error is of that kind too."""
    return (error.error_type, *error.error_types) if isinstance(error, StepFailed | AgentFailed) else ()


def _code(error: BaseException) -> str:
    if not issubclass(type(error), LimpetError):
        return ""
    return _attempt(lambda: _clean(getattr(error, "code", "")), "")


def _facts(error: BaseException) -> dict[str, object]:
    if not issubclass(type(error), LimpetError):
        return {}
    return _attempt(lambda: dict(getattr(error, "facts", {})), {})


def _payload(facts: Mapping[str, object]) -> Payload | None:
    return (
        _attempt(lambda: inline(hide_secrets_in({_clean(name): _plain(fact) for name, fact in facts.items()})), None)
        if facts
        else None
    )


def _plain(fact: object) -> object:
    """The fact as it is, if it can be stored; else how it shows itself."""
    if type(fact) is tuple:
        return [_plain(each) for each in fact]
    shown = f"<{_qualified(type(fact))} without readable form>"
    return fact if _attempt(lambda: bool(canonical(fact)), False) else _attempt(lambda: _shown(fact), shown)


def _shown(fact: object) -> str:
    return _said(repr(fact), MAX_MESSAGE)


def _traceback(error: BaseException) -> str:
    """The end of the traceback: there is what happened."""
    return _attempt(lambda: "".join(_pieces(error))[-MAX_TRACEBACK:], "")


def _pieces(error: BaseException) -> Iterator[str]:
    """The traceback in pieces, none too long; looked through as a whole, since a secret may have several lines."""
    told = TracebackException.from_exception(error, limit=-MAX_FRAMES).format()
    whole = _BETWEEN.join(piece[:MAX_SAID] for piece in told)
    for piece in hide_secrets(_clean(whole[-10 * MAX_SAID :])).split(_BETWEEN):
        yield piece if len(piece) <= MAX_PIECE else f"{piece[:MAX_PIECE]}…\n"
