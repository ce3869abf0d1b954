"""Locks that the operating system gives back when a process dies.

The gate makes writers of several processes queue in order, before SQLite's own lock would make them collide. A worker
holds a lock for as long as it lives: whoever can take it knows that the worker is dead, without waiting for its lease.
Where there is no flock, writers rely on SQLite's busy time-out and the lease alone decides.
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

__all__ = ["HAVE_FLOCK", "Gate", "WorkerLocks"]


_held_here: "WeakSet[Gate | WorkerLocks]" = WeakSet()
_queueing: set[int] = set()
"""Files that threads of this process wait with."""


def _abandon() -> None:
    """In a forked child: what it inherited belongs to its parent, and must not outlive it here."""
    for each in list(_held_here):
        each.close()
    while _queueing:
        os.close(_queueing.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon)


class Gate:
    """A queue for the writers of one database file."""

    def __init__(self, path: Path, patience: int) -> None:
        self._path, self._patience = path, patience / 10**6
        self._file: int | None = self._open()
        _held_here.add(self)

    def enter(self) -> None:
        """Wait for my turn, as long as patience lasts."""
        if not HAVE_FLOCK or self._file is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not _queue(self._file).wait(self._patience):
                self.close()  # whoever waits with it lets go at once when its turn comes
                self._file = self._open()
                raise StoreBusy(reason=self._who()) from None
        with suppress(OSError):  # a full disk: then nobody is told who it is
            os.pwrite(self._file, b"%-20d" % os.getpid(), 0)

    def _who(self) -> str:
        """Who holds the gate, in words; a process in another container is known only to that."""
        assert self._file is not None
        noted = os.pread(self._file, 20, 0).strip()
        if not noted.isdigit():
            return f"another process is at {self._path.name}"
        pid = int(noted)
        stopped = f", and is stopped; `kill -CONT {pid}` lets it go on" if is_stopped(pid) else ""
        return f"process {pid} is at {self._path.name}{stopped}"

    def leave(self) -> None:
        """Let the next one in."""
        if HAVE_FLOCK and self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def close(self) -> None:
        """Give the file back."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _queue(file: int) -> Event:
    """Set when it is this file's turn. A wait for a lock cannot be given up: so a thread waits, and may be forgotten.

    It waits with a second name for the same open file: the lock stays while the first is open, and goes with it.
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
