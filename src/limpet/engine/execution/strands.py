"""The scope of the code that makes a call, and its strand: the asyncio task, or the thread of a blocking agent."""

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import get_ident

from limpet.engine.replay.scopes import Scope, unscoped

__all__ = [
    "as_caller",
    "calling_strand",
    "current_scope",
    "current_strand",
    "enter_thread",
    "is_current_scope",
    "set_scope",
    "surrounding_strands",
]

_scope: ContextVar[Scope | None] = ContextVar("limpet_scope", default=None)
_thread: ContextVar[int | None] = ContextVar("limpet_thread", default=None)


def current_scope() -> Scope:
    """Return the scope of the current code. Raises WrongCall if there is none."""
    scope = _scope.get()
    if scope is None:
        raise unscoped("A method of run")
    return scope


def is_current_scope(scope: Scope | None) -> bool:
    """Return whether the current code is in this scope."""
    return _scope.get() is scope


def set_scope(scope: Scope) -> None:
    """Set the scope of the code that follows."""
    _scope.set(scope)


def current_strand() -> Hashable:
    """Return the strand of the current code."""
    thread = _thread.get()
    if thread is not None:
        return thread
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread that belongs to no strand of the agent
        return get_ident()


def calling_strand() -> Hashable:
    """Return the strand that made the current call, also if the call runs in a task of its own."""
    scope = _scope.get()
    return None if scope is None else scope.owner


def surrounding_strands() -> tuple[Hashable, ...]:
    """Return the strand that made the current call, and those of the scopes around it."""
    found: dict[Hashable, None] = {}
    scope = _scope.get()
    while scope is not None:
        found[scope.owner] = None
        scope = scope.outer
    return tuple(found)


def enter_thread(thread: int) -> None:
    """Mark this context as the thread of a blocking agent."""
    _thread.set(thread)


@contextmanager
def as_caller(thread: int) -> Iterator[None]:
    """Make calls inside the block on behalf of this thread."""
    token = _thread.set(thread)
    try:
        yield
    finally:
        _thread.reset(token)
