"""The files of an open database, identified by inode, since a path may later lead to another file.

They are only examined by path. Opening and closing one of them would drop SQLite's locks on it.
"""

import os
from copy import copy
from pathlib import Path
from time import monotonic

from limpet.errors import StoreReplaced

__all__ = ["Files"]

EVERY = 1.0
"""Seconds between two checks by readers."""


class Files:
    """The database and its write-ahead log, as they were when opened."""

    def __init__(self, database: Path) -> None:
        self._database = str(database)
        self._known: dict[str, tuple[int, int] | None] = {}
        self._replaced: StoreReplaced | None = None
        self._looked = 0.0

    def opened(self, log: Path) -> None:
        """Record the files after opening or reopening. The database must be the same file; its log may be a new one."""
        for path in (self._database, str(log)):
            self._known[path] = self._known.get(path) or _identity(path)
        self.check()

    def closed(self) -> None:
        """Forget the log, which SQLite deletes when no connection needs it."""
        self._known = {path: known for path, known in self._known.items() if path == self._database}

    def check(self) -> None:
        """Raise StoreReplaced, now and always, if a path no longer leads to the open file."""
        if self._replaced is None:
            self._looked = monotonic()
            for path, known in self._known.items():
                if (found := _identity(path)) is None or found != known:
                    reason = f"{path} was {'deleted' if found is None else 'replaced'} while it was open"
                    self._replaced = StoreReplaced(reason=reason)
        if self._replaced is not None:
            raise copy(self._replaced)

    def check_sometimes(self) -> None:
        """Check like `check`, but at most once a second."""
        if self._replaced is not None or monotonic() - self._looked > EVERY:
            self.check()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
