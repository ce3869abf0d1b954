"""The files of an open database, known by what they are: a name may come to lead elsewhere.

They are only looked at by name. To open and close one of them would drop the locks that SQLite holds on it.
"""

import os
from copy import copy
from pathlib import Path
from time import monotonic

from limpet.errors import StoreReplaced

__all__ = ["Files"]

EVERY = 1.0
"""How often, in seconds, readers look."""


class Files:
    """The database and its write-ahead log, as they were when they were opened."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._known: dict[Path, tuple[int, int] | None] = {}
        self._replaced: StoreReplaced | None = None
        self._looked = 0.0

    def opened(self, log: Path) -> None:
        """The database was opened, perhaps again: it must be the same one, with a log that may be a new one."""
        self._known.setdefault(self._database, _identity(self._database))
        self._known[log] = _identity(log)
        self.check()

    def closed(self) -> None:
        """The log is not ours any more: SQLite deletes it when nobody needs it."""
        self._known = {path: known for path, known in self._known.items() if path == self._database}

    def check(self) -> None:
        """Raise StoreReplaced, now and ever after, if a name does not lead to the file that is open."""
        if self._replaced is None:
            self._looked = monotonic()
            for path, known in self._known.items():
                if (found := _identity(path)) is None or found != known:
                    reason = f"{path} was {'deleted' if found is None else 'replaced'} while it was open"
                    self._replaced = StoreReplaced(reason=reason)
        if self._replaced is not None:
            raise copy(self._replaced)

    def check_sometimes(self) -> None:
        """The same, for those who come often."""
        if self._replaced is not None or monotonic() - self._looked > EVERY:
            self.check()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
