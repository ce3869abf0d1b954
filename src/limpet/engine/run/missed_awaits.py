"""Detection of `run` methods that agent code called but never awaited. They did nothing, so the run must fail."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import CORO_CREATED, getcoroutinestate, isfunction
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, Protocol, TypeVar, get_origin

from limpet.errors import WrongCall

__all__ = ["AwaitTracker", "track_awaits"]

T = TypeVar("T")
# Number of tracked calls above which the awaited ones are dropped.
TRACKED = 64


class _Called(NamedTuple):
    verb: str
    coroutine: Coroutine[Any, Any, Any]
    code: CodeType
    instruction: int
    """Where the call is in the code, as `f_lasti`: the line is found out when it is needed."""

    @property
    def is_pending(self) -> bool:
        return getcoroutinestate(self.coroutine) == CORO_CREATED

    @property
    def location(self) -> str:
        lines = (line for start, end, line in self.code.co_lines() if start <= self.instruction < end)
        return f"{Path(self.code.co_filename).name}, line {next(lines, None)}"


class AwaitTracker:
    """The calls of `run` methods in one execution."""

    def __init__(self) -> None:
        self._called: list[tuple[str, Coroutine[Any, Any, Any], CodeType, int]] = []
        """Each as the fields of `_Called`."""
        self._most = TRACKED

    def add(self, verb: str, coroutine: Coroutine[Any, Any, Any], code: CodeType, instruction: int) -> None:
        """Track a call until it is awaited."""
        self._called.append((verb, coroutine, code, instruction))
        if len(self._called) > self._most:
            self._called = [each for each in self._called if getattr(each[1], "cr_frame", None)]  # not ended
            self._most = TRACKED + 2 * len(self._called)

    def check_all_awaited(self) -> None:
        """Raise WrongCall for the first method that the code called and did not await."""
        pending = [each for each in map(_Called._make, self._called) if each.is_pending]
        tasks = {task.get_coro(): task for task in asyncio.all_tasks()} if pending else {}
        cancelled = {coroutine for coroutine, task in tasks.items() if task.cancelling()}
        missed = [each for each in pending if each.coroutine not in cancelled]
        for each in missed:
            if each.coroutine not in tasks:
                each.coroutine.close()  # Python need not warn about it as well.
        if not missed:
            return
        first = missed[0]
        raise WrongCall(
            reason=f"run.{first.verb} was called in {first.location} and never awaited; nothing was done",
            fix="Put `await` before the call, and resume the run.",
        )


class _HasCalls(Protocol):
    calls: AwaitTracker


def track_awaits(kind: type[T]) -> type[T]:
    """Make every public method of a class that returns a coroutine record where it was called."""
    for name, fn in list(vars(kind).items()):
        if isfunction(fn) and not name.startswith("_") and get_origin(fn.__annotations__.get("return")) is Coroutine:
            setattr(kind, name, _tracked(name, fn))
    return kind


def _tracked(verb: str, fn: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(fn)
    def call(run: _HasCalls, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        coroutine, frame = fn(run, *args, **kwargs), sys._getframe(1)
        while frame.f_globals.get("__name__", "").startswith("limpet.") and frame.f_back is not None:
            frame = frame.f_back
        run.calls.add(verb, coroutine, frame.f_code, frame.f_lasti)
        return coroutine

    return call
