"""Exceptions as data: the recorded form of an error, and questions that are answered from that form alone.

An exception is foreign code: its text, fields and attributes may raise, be endless or contain lone surrogates.
Recording it never fails, because a failure that cannot be recorded would be lost. Secrets, and text that looks like
one, are removed before anything is truncated, because half a secret is still one.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from traceback import TracebackException
from types import TracebackType
from typing import TypeVar

from limpet.errors import AgentFailed, LimpetError, StepFailed, is_named
from limpet.events import Failure, Payload, canonical, inline
from limpet.redaction import hide_secrets, hide_secrets_in

__all__ = ["failure_of", "from_user_code", "hint_of", "message_of", "reason_of", "was"]

MAX_MESSAGE = 4_000
MAX_TRACEBACK = 8_000
# Errors of a group whose texts are part of its own.
MAX_LEAVES = 20
# Limit of one frame or message in a traceback, so that a long message does not push out all frames.
MAX_PIECE = 2_000
# Maximum frames of one exception; more than the text has room for.
MAX_FRAMES = 100
# How much of a long text is searched for secrets; the rest would be cut off anyway.
MAX_SEARCHED = 30_000
# Separates the pieces of a traceback while it is searched.
_BETWEEN = "\0"

T = TypeVar("T")


def failure_of(error: BaseException, *, facts: Mapping[str, object] | None = None) -> Failure:
    """Return the error as data. `facts` are added to the fields of a LimpetError. Never raises.

    A group of errors has the code and the facts of its reason.
    """
    reason = reason_of(error)
    return Failure(
        type=_qualified(type(error)),
        mro=(*(_qualified(each) for each in _lineage(type(error))), *_inner(error)),
        message=message_of(error),
        code=_code(reason),
        facts=_payload({**_facts(reason), **_fix(reason), **(facts or {})}),
        traceback=_traceback(error),
    )


def reason_of(error: BaseException) -> BaseException:
    """Return the first LimpetError in a group of errors; the error itself if there is none, or it is no group.

    Never raises.
    """
    return _attempt(
        lambda: next((each for each in _leaves(error) if issubclass(type(each), LimpetError)), error), error
    )


def was(failure: Failure, kind: type[BaseException] | str) -> bool:
    """Return whether the recorded error has this class or name: a qualified name, or the end of one."""
    return is_named((failure.type, *failure.mro), kind)


def hint_of(failure: Failure, run: str) -> str:
    """Return the hint of a recorded error, in which the run is named; "" if the error has none.

    A failed step has none: to resume the run is all that its hint could say.
    """
    kind = _by_code(LimpetError).get(failure.code)
    if kind is None or kind is StepFailed:
        return ""
    facts = failure.facts.value() if failure.facts is not None and failure.facts.is_inline else {}
    hint = _attempt(lambda: kind(**facts).hint, "")
    names = {"`limpet resume` on the failed run": f"`limpet resume {run}`", " RUN`": f" {run}`", " RUN ": f" {run} "}
    for general, named in names.items():
        hint = hint.replace(general, named)
    return hint


def _by_code(kind: type[LimpetError]) -> dict[str, type[LimpetError]]:
    """Return the classes of errors that Limpet defines, by code."""
    found = {kind.code: kind}
    for each in kind.__subclasses__():
        if each.__module__ == LimpetError.__module__:
            found |= _by_code(each)
    return found


def message_of(error: BaseException) -> str:
    """Return the error's text, truncated, or a placeholder if it cannot be read."""
    return _attempt(
        lambda: _cleaned_start(_text(error), MAX_MESSAGE), f"<{_qualified(type(error))} without readable text>"
    )


def _text(error: BaseException) -> str:
    """Return the text of an error; for a LimpetError without its hint, which depends on the reader.

    That of a group contains the texts of its errors.
    """
    if isinstance(error, BaseExceptionGroup):
        inner = (f"{_qualified(type(each))}: {message_of(each)}" for each in islice(_leaves(error), MAX_LEAVES))
        return f"{error}: {'; '.join(inner)}"
    return error.summary if isinstance(error, LimpetError) else str(error)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in a group, and in the groups in it; for another error, just that."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _attempt(ask: Callable[[], T], fallback: T) -> T:
    """Return what a foreign object returns, or the alternative if it raises."""
    try:
        return ask()
    except BaseException:  # noqa: BLE001 - it may raise anything, and the failure must be recorded
        return fallback


def _cleaned_start(text: str, limit: int) -> str:
    """Return the start of a text without secrets."""
    return hide_secrets(_clean(text[:MAX_SEARCHED]))[:limit]


def _clean(text: str) -> str:
    """Return plain text without lone surrogates, whatever subclass of str it was."""
    return str.encode(text, "utf-8", "replace").decode()


def _qualified(kind: type) -> str:
    # Read from `type` itself, because a metaclass may return anything.
    module = _attempt(lambda: _clean(type.__getattribute__(kind, "__module__")), "")
    name = _clean(type.__getattribute__(kind, "__qualname__"))
    return f"{module}.{name}" if module else name


def _lineage(kind: type) -> tuple[type, ...]:
    every: tuple[type, ...] = type.__getattribute__(kind, "__mro__")
    return tuple(each for each in every if each is not object)


def _inner(error: BaseException) -> tuple[str, ...]:
    """Return the error types of a failed step or agent; the error counts as those, too."""
    return (error.error_type, *error.error_types) if isinstance(error, StepFailed | AgentFailed) else ()


def _code(error: BaseException) -> str:
    if not issubclass(type(error), LimpetError):
        return ""
    return _attempt(lambda: _clean(getattr(error, "code", "")), "")


def _facts(error: BaseException) -> dict[str, object]:
    if not issubclass(type(error), LimpetError):
        return {}
    return _attempt(lambda: dict(getattr(error, "facts", {})), {})


def _fix(error: BaseException) -> dict[str, object]:
    """Return the hint that an error carries itself; without it, the hint follows from its class and facts."""
    fix = _attempt(lambda: getattr(error, "fix", ""), "") if issubclass(type(error), LimpetError) else ""
    return {"fix": fix} if fix else {}


def _payload(facts: Mapping[str, object]) -> Payload | None:
    return (
        _attempt(lambda: inline(hide_secrets_in({_clean(name): _plain(fact) for name, fact in facts.items()})), None)
        if facts
        else None
    )


def _plain(fact: object) -> object:
    """Return a field unchanged if it can be stored, else its repr."""
    if type(fact) is tuple:
        return [_plain(each) for each in fact]
    shown = f"<{_qualified(type(fact))} without readable form>"
    return fact if _attempt(lambda: bool(canonical(fact)), False) else _attempt(lambda: _shown(fact), shown)


def _shown(fact: object) -> str:
    return _cleaned_start(repr(fact), MAX_MESSAGE)


def from_user_code(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of Limpet that called the user's code; all of it if there is no such code.

    Those frames say nothing to users, and would keep the run in memory.
    """
    found = traceback
    while found is not None and found.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _CALLERS:
        found = found.tb_next
    return found or traceback


_CALLERS = frozenset({"limpet", "asyncio", "concurrent", "threading"})


def _traceback(error: BaseException) -> str:
    """Return the end of the traceback, where the error is."""
    return _attempt(lambda: "".join(_pieces(error))[-MAX_TRACEBACK:], "")


def _pieces(error: BaseException) -> Iterator[str]:
    """Yield the traceback in truncated pieces. It is searched as a whole, since a secret may span several lines."""
    trace = from_user_code(error.__traceback__)
    pieces = TracebackException(type(error), error, trace, limit=-MAX_FRAMES).format()
    whole = _BETWEEN.join(piece[:MAX_SEARCHED] for piece in pieces)
    for piece in hide_secrets(_clean(whole[-10 * MAX_SEARCHED :])).split(_BETWEEN):
        yield piece if len(piece) <= MAX_PIECE else f"{piece[:MAX_PIECE]}…\n"
