"""Locks that the operating system gives back when a process dies.

The gate makes writers of several processes queue in order, before SQLite's own lock would make them collide. A worker
holds a lock for as long as it lives: whoever can take it knows that the worker is dead, without waiting for its lease.
Where there is no flock, writers rely on SQLite's busy time-out and the lease alone decides.
"""

import os
from pathlib import Path

from limpet.errors import WorkerAlive

try:
    import fcntl
except ImportError:  # Windows
    HAVE_FLOCK = False
else:
    HAVE_FLOCK = True

__all__ = ["HAVE_FLOCK", "Gate", "WorkerLocks"]


class Gate:
    """A queue for the writers of one database file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def enter(self) -> None:
        """Wait for my turn."""
        if HAVE_FLOCK:
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def leave(self) -> None:
        """Let the next one in."""
        if HAVE_FLOCK:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)


class WorkerLocks:
    """The locks that this process's workers hold, and a look at those of others."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._held: dict[str, int] = {}

    def hold(self, worker: str) -> None:
        """Show that a worker is alive, until it is dropped or the process ends."""
        if not HAVE_FLOCK or worker in self._held:
            return
        file = os.open(self._path(worker), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise WorkerAlive(worker=worker) from error
        self._held[worker] = file

    def drop(self, worker: str) -> None:
        """A worker has gone; nothing of it stays behind."""
        file = self._held.pop(worker, None)
        if file is not None:
            os.close(file)
        self._path(worker).unlink(missing_ok=True)

    def is_free(self, worker: str) -> bool:
        """Whether nobody holds the worker's lock, so that it must be dead; false where nobody can tell."""
        if not HAVE_FLOCK or worker in self._held:
            return False
        try:
            file = os.open(self._path(worker), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(file)
        return True

    def close(self) -> None:
        """Give back every lock: these workers are seen as dead from now on."""
        for file in self._held.values():
            os.close(file)
        self._held.clear()

    def _path(self, worker: str) -> Path:
        return self._database.with_name(f"{self._database.name}-worker-{worker}")
