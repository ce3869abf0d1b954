"""Calls that failed or were cancelled, and that the code has not gone on from. If the run fails, a resume repeats them.

Code has gone on from the end of a call once the strand that made the call, or a strand around it, makes another call or
begins another branch: what follows may depend on this end. While a branch fails and takes others with it, none of
them does that.
"""

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from itertools import count
from weakref import WeakSet

from msgspec import Struct

from limpet.engine.execution.strands import surrounding_strands
from limpet.engine.replay.history import History

__all__ = ["UnhandledEnds"]

# Errors that are looked at, of those that an error consists of or follows from.
MOST_ERRORS = 1_000
Task = asyncio.Task[object]


class _End(Struct):
    """The end of a call without a result."""

    name: str
    place: int
    """Its place in the order of these ends."""
    strands: tuple[Hashable, ...]
    """The strand that made the call, and those of the scopes around it."""
    task: Task | None
    """The task that got the error."""
    tasks: WeakSet[Task]
    """The tasks that existed then, in parallel code. They did not begin because of this end."""
    is_cancelled: bool


class UnhandledEnds:
    """The calls of one execution that ended without a result, until the code goes on from that."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._ends: dict[str, _End] = {}
        self._places = count(1)
        self._failed: set[str] = set()
        """All calls whose failure the code has got."""
        self.by_strand: dict[Hashable, dict[str, None]] = {}
        """Names of the calls, by the strands that may go on from them."""
        self._last_handled = 0
        """Place of the last cancelled call that the code has gone on from."""
        self._tasks: WeakSet[Task] | None = None

    def note(self, name: str, error: BaseException) -> None:
        """Note that a call ends with this error: its failure, or a cancellation.

        A cancellation passes through a step after the wait inside it, and is that of the wait.
        """
        is_cancelled = isinstance(error, asyncio.CancelledError)
        if not is_cancelled:
            self._failed.add(name)
        if not (is_cancelled and "limpet_call" in error.__dict__):
            error.__dict__["limpet_call"] = (self._run, name)
        strands, task = surrounding_strands(), asyncio.current_task()
        if name in self._ends or not strands:
            return
        tasks = WeakSet[Task]() if strands == (task,) else self._existing_tasks()
        self._ends[name] = _End(name, next(self._places), strands, task, tasks, is_cancelled)
        for strand in strands:
            self.by_strand.setdefault(strand, {})[name] = None

    def _existing_tasks(self) -> WeakSet[Task]:
        """Return the tasks that exist in this iteration of the event loop."""
        if self._tasks is None:
            self._tasks = WeakSet(asyncio.all_tasks())
            asyncio.get_running_loop().call_soon(self._forget_tasks)
        return self._tasks

    def _forget_tasks(self) -> None:
        self._tasks = None

    def go_on(self, strand: Hashable) -> None:
        """Note that a strand makes a call. The strand that has begun this one has gone on, too, when it did that."""
        self._handle(self.by_strand.get(strand, ()))
        beginner = next(iter(surrounding_strands()), strand)
        if beginner != strand:
            names = self.by_strand.get(beginner, ())
            self._handle(name for name in names if strand not in self._ends[name].tasks)

    def _handle(self, names: Iterable[str]) -> None:
        for name in list(names):
            end = self._ends.pop(name)
            if end.is_cancelled:
                self._last_handled = max(self._last_handled, end.place)
            for strand in end.strands:
                del self.by_strand[strand][name]
                if not self.by_strand[strand]:
                    del self.by_strand[strand]

    def cause_of(self, error: BaseException) -> str | None:
        """Return the call that an error of the run comes from, unless the code has gone on from it."""
        return next((name for name in self._calls_in(error) if name in self._ends), None)

    def behind(self, error: BaseException, history: History) -> tuple[str, ...]:
        """Return the calls that a resume makes again after this error of the run, in the order of their ends.

        These are the calls that it comes from, other calls that failed their branches, and what was cancelled
        because of them. It is empty if the code has gone on from a cancellation since: this may be another path, and
        the resume would not find it.
        """
        ends = [end for end in self._ends.values() if end.name in history.records]
        causes = set(self._calls_in(error))
        failed = {
            end.name: end for end in ends if end.name in causes or (not end.is_cancelled and self._failed_in(end))
        }
        causes &= failed.keys()
        if not causes:
            return ()
        first = min(end.place for end in failed.values())
        if self._last_handled > first:
            return ()
        cancelled = {end.name for end in ends if end.place > first and history.is_cancelled(end.name)}
        not_got = set(history.failed_after(min(map(history.end_of, causes)))) - self._failed
        return tuple(sorted(failed.keys() | cancelled | not_got, key=history.end_of))

    def _failed_in(self, end: _End) -> bool:
        """Return whether the task that got a failure ended with it, or has not ended."""
        task = end.task
        if task is None or not task.done():
            return True
        error = None if task.cancelled() else task.exception()
        return error is not None and end.name in self._calls_in(error)

    def _calls_in(self, error: BaseException) -> Iterator[str]:
        """Yield the calls of this run that an error comes from: its own, those of its group, and those before it."""
        left, seen = [error], set[int]()
        while left and len(seen) < MOST_ERRORS:
            each = left.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            run, name = each.__dict__.get("limpet_call", ("", ""))
            if run == self._run:
                yield name
            earlier = each.__cause__ or each.__context__
            left += [] if earlier is None else [earlier]
            left += reversed(each.exceptions) if isinstance(each, BaseExceptionGroup) else []
