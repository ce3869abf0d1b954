"""Locks that the operating system releases when a process dies.

The gate queues the writers of several processes in order, before they would collide on SQLite's own lock. A worker
holds a lock as long as it lives: a process that can take it knows that the worker is dead, without waiting for the
lease. Without flock, writers rely on SQLite's busy timeout, and only leases decide.
"""

import os
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from weakref import WeakSet

from limpet.errors import StoreBusy, StoreUnavailable, WorkerAlive
from limpet.stores.processes import is_stopped

try:
    import fcntl
except ImportError:  # Windows
    HAVE_FLOCK = False
else:
    HAVE_FLOCK = True

__all__ = ["HAVE_FLOCK", "WorkerLocks", "WriterQueue"]


_held_here: "WeakSet[WriterQueue | WorkerLocks]" = WeakSet()
_queueing: set[int] = set()
"""File descriptors with which threads of this process wait."""


def _abandon() -> None:
    """In a forked child, close inherited locks, which belong to the parent and must not outlive it here."""
    for each in list(_held_here):
        each.close()
    while _queueing:
        os.close(_queueing.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon)


class WriterQueue:
    """A queue for the writers of one database file."""

    def __init__(self, path: Path, patience: int) -> None:
        self._path, self._patience = path, patience / 10**6
        self._file: int | None = self._open()
        _held_here.add(self)

    def enter(self) -> None:
        """Wait for the lock until the timeout. Raises StoreBusy."""
        if not HAVE_FLOCK or self._file is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not _queue(self._file).wait(self._patience):
                self.close()  # The waiting thread then releases the lock as soon as it gets it.
                self._file = self._open()
                raise StoreBusy(reason=self._who()) from None
        self._sign(self._file)

    def enter_now(self) -> bool:
        """Take the lock if it is free; return whether it was."""
        if not HAVE_FLOCK or self._file is None:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._sign(self._file)
        return True

    def _sign(self, file: int) -> None:
        """Write down which process holds the lock, unless it is written there."""
        signature = b"%-20d" % os.getpid()
        try:
            if os.pread(file, 20, 0) != signature:
                os.pwrite(file, signature, 0)
        except OSError:
            return  # On a full disk, the holder stays unknown.

    def _who(self) -> str:
        """Describe the holder of the gate. The pid of a process in another container is only valid there."""
        assert self._file is not None
        noted = os.pread(self._file, 20, 0).strip()
        if not noted.isdigit():
            return f"another process holds {self._path.name}"
        pid = int(noted)
        stopped = f", and is stopped; run `kill -CONT {pid}` to continue it" if is_stopped(pid) else ""
        return f"process {pid} holds {self._path.name}{stopped}"

    def leave(self) -> None:
        """Release the lock."""
        if HAVE_FLOCK and self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _queue(file: int) -> Event:
    """Return an event that is set when this file gets the lock.

    A wait for a lock cannot be cancelled, so a thread waits, and may be abandoned. It waits with a duplicate of the
    file descriptor: the lock lasts while the first one is open, and ends with it.
    """
    come, second = Event(), os.dup(file)
    _queueing.add(second)

    def wait() -> None:
        fcntl.flock(second, fcntl.LOCK_EX)
        come.set()
        _queueing.discard(second)
        os.close(second)

    Thread(target=wait, name="limpet-gate", daemon=True).start()
    return come


class WorkerLocks:
    """The locks of this process's workers, and checks of those of others."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._held: dict[str, int] = {}
        _held_here.add(self)

    def hold(self, worker: str) -> None:
        """Hold a worker's lock until it is dropped or the process ends. Raises WorkerAlive."""
        if not HAVE_FLOCK or self._is_held(worker):
            return
        try:
            file = os.open(self._path(worker), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreUnavailable(reason=f"cannot lock worker {worker[:40]}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise WorkerAlive(worker=worker) from error
        self._held[worker] = file

    def drop(self, worker: str) -> None:
        """Release a worker's lock and delete its file."""
        self._let_go(worker)
        with suppress(OSError):  # A file that stays is not locked, which means dead.
            self._path(worker).unlink(missing_ok=True)

    def is_free(self, worker: str) -> bool:
        """Return whether the worker's lock is free, so that it must be dead; False if that is unknown."""
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
        """Release every lock; these workers are then seen as dead."""
        for worker in list(self._held):
            self._let_go(worker)

    def _is_held(self, worker: str) -> bool:
        """Return whether the lock is held on the file that others see. Another process may have deleted that."""
        file = self._held.get(worker)
        if file is None:
            return False
        with suppress(OSError):  # The file does not exist.
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
