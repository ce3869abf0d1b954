"""Calls that failed or were cancelled, and that the code has not gone on from. If the run fails, a resume repeats them.

Code has gone on from the end of a call once the strand that made the call, or a strand around it, makes another call or
begins another branch: what follows may depend on this end. A branch that fails, and those that its failure cancels, do
neither.
"""

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from itertools import takewhile
from weakref import WeakSet

from msgspec import Struct

from limpet.engine.execution.strands import surrounding_strands
from limpet.engine.replay.history import History

__all__ = ["UnhandledEnds"]

# Errors that are looked at, of those that an error consists of or follows from.
MOST_ERRORS = 1_000
# Number of tasks that one execution may look at, and how many more for each end.
MOST_TASKS, MORE_TASKS = 100_000, 10
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
    """Tasks that existed then: they did not begin because of this end."""
    is_cancelled: bool


class UnhandledEnds:
    """The calls of one execution that ended without a result, until the code goes on from that."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._ends: dict[str, _End] = {}
        self._got: set[str] = set()
        """Calls whose failure the code has got since it has last gone on from all ends."""
        self.by_strand: dict[Hashable, dict[str, None]] = {}
        """Names of the calls, by the strands that may go on from them."""
        self._last_handled = 0
        """Place of the last cancelled call that the code has gone on from."""
        self._place = self._place_of_call = 0
        """Place of the last end, and of the last one before any strand made another call."""
        self._tasks = WeakSet[Task]()
        self._is_current = False
        """Whether `_tasks` was found in this iteration of the event loop."""
        self._left = MOST_TASKS
        """How many tasks may still be looked at."""

    def note(self, name: str, error: BaseException) -> None:
        """Note that a call ends with this error: its failure, or a cancellation.

        A cancellation passes through a step after the wait inside it, and is that of the wait.
        """
        is_cancelled = isinstance(error, asyncio.CancelledError)
        if not is_cancelled:
            self._got.add(name)
        if not (is_cancelled and "limpet_call" in error.__dict__):
            error.__dict__["limpet_call"] = (self._run, name)
        strands = surrounding_strands()
        if name in self._ends or not strands:
            return
        self._place += 1
        end = _End(name, self._place, strands, asyncio.current_task(), self._existing_tasks(), is_cancelled)
        self._ends[name] = end
        for strand in strands:
            self.by_strand.setdefault(strand, {})[name] = None

    def _existing_tasks(self) -> WeakSet[Task]:
        """Return the tasks that exist now.

        After very many ends the set may be older. Newer tasks then count as begun because of this end.
        """
        self._left += MORE_TASKS
        if not self._is_current and self._left >= len(self._tasks):
            self._tasks = WeakSet(asyncio.all_tasks())
            self._left -= len(self._tasks)
            self._is_current = True
            asyncio.get_running_loop().call_soon(self._outdate_tasks)
        return self._tasks

    def _outdate_tasks(self) -> None:
        self._is_current = False

    def go_on(self, strand: Hashable) -> None:
        """Note that a strand makes a call. The strand that has begun this one has gone on, too, when it did that."""
        self._place_of_call = self._place
        self._handle(self.by_strand.get(strand, ()))
        beginner = next(iter(surrounding_strands()), strand)
        if beginner != strand:
            # A task that existed at one end also existed at the later ones.
            self._handle(takewhile(lambda name: strand not in self._ends[name].tasks, self.by_strand.get(beginner, ())))

    def _handle(self, names: Iterable[str]) -> None:
        for name in list(names):
            end = self._ends.pop(name)
            if not self._ends:
                self._got.clear()  # What the code gets from now on ended later.
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

        These are the calls that it comes from, and then: other calls that failed their branches, calls that failed
        before the code got that, and calls that were cancelled. It is empty if the code has gone on from a cancellation
        since: this may be another path, and the resume would not find it.

        If the error comes from no call, these are the calls that were cancelled after the last call was made.
        """
        ends = [end for end in self._ends.values() if end.name in history.records]
        names = set(self._calls_in(error))
        causes = [end for end in ends if end.name in names]
        first = min((end.place for end in causes), default=self._place_of_call)
        if self._last_handled > first:
            return ()
        later = [end for end in ends if end.place > first]
        found = {end.name for end in causes}
        found |= {end.name for end in later if history.is_cancelled(end.name)}
        if causes:
            found |= {end.name for end in later if not end.is_cancelled and self._has_failed_branch(end)}
            found |= set(history.failed_after(min(history.end_of(end.name) for end in causes))) - self._got
        return tuple(sorted(found, key=history.end_of))

    def _has_failed_branch(self, end: _End) -> bool:
        """Return whether the task that got a failure ended with it, or has not ended and made no call since."""
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
            left += [earlier for earlier in (each.__context__, each.__cause__) if earlier is not None]
            left += reversed(each.exceptions) if isinstance(each, BaseExceptionGroup) else []
