"""A SQLite file that this process may read but not write: nothing is created, changed or locked for writers.

SQLite in WAL mode writes even to read, because it creates the index of the log (-shm). Which files exist decides how to
read without that:

- The log (-wal) and its index exist: a writer may be alive. SQLite reads with the writer's index, opened read-only.
- A log without an index: no writer is alive. SQLite builds an index in memory; it takes no locks.
- No log: no writer is alive, and everything is in the database file, which is read as immutable.
- A rollback journal: SQLite decides whether a dead process left it half-done, and refuses to read then.

Without locks, a writer that starts meanwhile would not be noticed. Therefore the files are compared before and after
each query, and a query during which they changed is repeated.
"""

import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import quote

import apsw

from limpet.errors import ConnectionLost, ReadOnlyStore, StoreUnavailable
from limpet.stores.connection_pool import ConnectionPool

__all__ = ["ReadOnlyFile", "why_read_only"]

T = TypeVar("T")
Way = Literal["shared", "private", "immutable", "journal"]
QUERIES: dict[Way, str] = {
    "shared": "mode=ro&readonly_shm=1",
    "private": "mode=ro&vfs=unix-none",
    "immutable": "immutable=1",
    "journal": "mode=ro",
}
# How often a query is repeated because the files changed. Writers that start and stop change them; a live one does not.
MOST_REPEATS = 20


def _is_locked(path: Path) -> bool:
    """Return whether a file exists, and cannot be written by this user."""
    return not os.access(path, os.W_OK) and path.exists()


def why_read_only(path: Path) -> ReadOnlyStore | None:
    """Return why a file cannot be written here, or None. A file that does not exist is not judged."""
    if not path.is_file():
        return None
    if not os.access(path, os.W_OK):
        return ReadOnlyStore(reason=f"{path} is not writable for this user")
    beside = [path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "-gate")]
    for each in beside:
        if all(_is_locked(each) for _ in range(3)):  # Another process may create or delete it between two looks.
            return ReadOnlyStore(reason=f"{each} is not writable for this user")
    if not os.access(path.parent, os.W_OK) and not all(each.exists() for each in beside):
        return ReadOnlyStore(reason=f"the folder {path.parent} is not writable for this user")
    return None


class _Files(NamedTuple):
    """The files of a database: how to read them, and marks that change when that is no longer right."""

    way: Way
    marks: tuple[tuple[int, ...] | None, ...]


class ReadOnlyFile:
    """Connections that read one database file."""

    def __init__(self, path: Path, connect: str, private: str, patience: int) -> None:
        self._path, self._patience = path, patience
        self._statements: dict[Way, str] = {"private": f"{private};\n{connect}"}
        self._connect = connect
        self._lock = Lock()
        self._files: _Files | None = None
        self._readers: ConnectionPool[apsw.Connection] | None = None

    def ask(self, work: Callable[[apsw.Connection], T]) -> T:
        """Return what a query finds. A query during which the files changed is repeated."""
        for _ in range(MOST_REPEATS):
            files = _look(self._path)
            try:
                with self._pool(files).connection() as db:
                    found = work(db)
            except apsw.Error:
                if _look(self._path) == files:
                    raise
                continue
            if _look(self._path) == files:
                return found
        raise ConnectionLost(reason=f"{self._path} changes while it is read")

    def stamp(self) -> tuple[object, ...]:
        """Return values that differ after another process has written to the files."""
        return tuple(_mark(each, is_full=True) for each in _paths(self._path))

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            readers, self._readers, self._files = self._readers, None, None
        if readers is not None:
            readers.close()

    def _pool(self, files: _Files) -> ConnectionPool[apsw.Connection]:
        with self._lock:
            if self._readers is None or files != self._files:
                if self._readers is not None:
                    self._readers.close()
                self._files, self._readers = files, ConnectionPool(lambda: self._open(files.way))
            return self._readers

    def _open(self, way: Way) -> apsw.Connection:
        if way == "private" and "unix-none" not in apsw.vfs_names():
            raise StoreUnavailable(
                reason=f"{self._path} has a log without an index, which cannot be read here without writing",
                fix="Copy the file with its -wal to a folder that is writable, and open the copy.",
            )
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        db = apsw.Connection(f"file:{quote(str(self._path))}?{QUERIES[way]}", flags=flags, statementcachesize=200)
        try:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.set_busy_timeout(self._patience // 1000)
            db.execute(self._statements.get(way, self._connect)).fetchall()
        except BaseException:
            db.close()
            raise
        return db


def _paths(path: Path) -> tuple[Path, ...]:
    return (path, *(path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "-journal")))


def _look(path: Path) -> _Files:
    """Return how to read a file now. With a shared index, SQLite itself notices what writers do."""
    database, log, index, journal = (_mark(each, is_full=True) for each in _paths(path))
    if log is not None and index is not None:
        return _Files("shared", tuple(_mark(each, is_full=False) for each in _paths(path)[:3]))
    way: Way = "immutable"
    if log is not None and log[2]:
        way = "private"
    elif journal is not None and journal[2]:
        way = "journal"
    return _Files(way, (database, log, index, journal))


def _mark(path: Path, *, is_full: bool) -> tuple[int, ...] | None:
    """Return what identifies a file, or also its content; None if it does not exist."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    identity = (found.st_dev, found.st_ino)
    return (*identity, found.st_size, found.st_mtime_ns) if is_full else identity
