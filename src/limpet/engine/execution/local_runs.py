"""Runs that this process has handles on, each with the way it ended here."""

from weakref import WeakValueDictionary

from limpet.engine.execution.failures import from_user_code
from limpet.events import bodies as b

__all__ = ["LocalRun", "LocalRuns"]

Ended = b.RunCompleted | b.RunFailed | b.RunCancelled


class LocalRun:
    """A run, as long as a handle on it exists in this process."""

    def __init__(self) -> None:
        self.waiters = 0
        """Number of calls that wait for the run now."""
        self.announced: set[str] = set()
        """Lines that were printed to say why it waits."""
        self._ended: Ended | None = None
        self._error: BaseException | None = None
        self._seq = 0

    def end(self, ended: Ended, error: BaseException | None, seq: int) -> None:
        """Keep the event with which the run ended, its sequence, and the exception that failed the run."""
        self._ended, self._seq = ended, seq
        self._error = None if error is None else error.with_traceback(from_user_code(error.__traceback__))

    def end_at(self, seq: int) -> Ended | None:
        """Return the event with which the run ended, or None if another process wrote it."""
        return self._ended if seq == self._seq else None

    def error_at(self, seq: int) -> BaseException | None:
        """Return the exception that the event records, or None if the run failed in another process."""
        return self._error if seq == self._seq else None


class LocalRuns:
    """The runs that this process has handles on."""

    def __init__(self) -> None:
        self._runs: WeakValueDictionary[str, LocalRun] = WeakValueDictionary()

    def of(self, run: str) -> LocalRun:
        """Return what is remembered of a run. The caller keeps it as long as it is needed."""
        found = self._runs.get(run)
        if found is None:
            found = self._runs[run] = LocalRun()
        return found

    def find(self, run: str) -> LocalRun | None:
        """Return what is remembered of a run, or None if no handle on it exists."""
        return self._runs.get(run)
