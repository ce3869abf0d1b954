"""Locks that the operating system gives back when a process dies.

The gate makes writers of several processes queue in order, before SQLite's own lock would make them collide. A worker
holds a lock for as long as it lives: whoever can take it knows that the worker is dead, without waiting for its lease.
Where there is no flock, writers rely on SQLite's busy time-out and the lease alone decides.
"""

import os
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from limpet.errors import StoreUnavailable, WorkerAlive

try:
    import fcntl
except ImportError:  # Windows
    HAVE_FLOCK = False
else:
    HAVE_FLOCK = True

__all__ = ["HAVE_FLOCK", "Gate", "WorkerLocks"]


_held_here: "WeakSet[Gate | WorkerLocks]" = WeakSet()


def _abandon() -> None:
    """In a forked child: what it inherited belongs to its parent, and must not outlive it here."""
    for each in list(_held_here):
        each.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon)


class Gate:
    """A queue for the writers of one database file."""

    def __init__(self, path: Path) -> None:
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _held_here.add(self)

    def enter(self) -> None:
        """Wait for my turn."""
        if HAVE_FLOCK and self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def leave(self) -> None:
        """Let the next one in."""
        if HAVE_FLOCK and self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the file back."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


class WorkerLocks:
    """The locks that this process's workers hold, and a look at those of others."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._held: dict[str, int] = {}
        _held_here.add(self)

    def hold(self, worker: str) -> None:
        """Show that a worker is alive, until it is dropped or the process ends."""
        if not HAVE_FLOCK or self._is_held(worker):
            return
        try:
            file = os.open(self._path(worker), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreUnavailable(reason=f"no lock for worker {worker[:40]}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise WorkerAlive(worker=worker) from error
        self._held[worker] = file

    def drop(self, worker: str) -> None:
        """A worker has gone; nothing of it stays behind."""
        self._let_go(worker)
        with suppress(OSError):  # a file that stays behind is free, and means dead
            self._path(worker).unlink(missing_ok=True)

    def is_free(self, worker: str) -> bool:
        """Whether nobody holds the worker's lock, so that it must be dead; false where nobody can tell."""
        if not HAVE_FLOCK or worker in self._held:
            return False
        try:
            file = os.open(self._path(worker), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(file)
        return True

    def close(self) -> None:
        """Give back every lock: these workers are seen as dead from now on."""
        for worker in list(self._held):
            self._let_go(worker)

    def _is_held(self, worker: str) -> bool:
        """Whether its lock is held on the file that others see: one that was given up may have lost it."""
        file = self._held.get(worker)
        if file is None:
            return False
        with suppress(OSError):  # the file is gone
            if os.fstat(file).st_ino == self._path(worker).stat().st_ino:
                return True
        self._let_go(worker)
        return False

    def _let_go(self, worker: str) -> None:
        file = self._held.pop(worker, None)
        if file is not None:
            os.close(file)

    def _path(self, worker: str) -> Path:
        return self._database.with_name(f"{self._database.name}-worker-{worker}")
