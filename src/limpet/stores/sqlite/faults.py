"""The meaning of SQLite's errors, and the state of a failing disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import apsw

from limpet.errors import ConnectionLost, StoreBusy, StoreRefused, StoreUnavailable

__all__ = ["Failed", "Fault", "error_text", "failing", "meaning"]

# Errors for which one operation is refused. Nothing was written, and the file is unchanged.
REFUSED = (apsw.ConstraintError, apsw.MismatchError, apsw.RangeError, apsw.SQLError, apsw.TooBigError)
DAMAGED = (apsw.CorruptError, apsw.NotADBError)


class Failed(Exception):
    """The disk or the file failed; what was written is unknown."""

    def __init__(self, reason: str, *, is_full: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_full = is_full
        """Whether only space was missing. Then earlier writes are intact."""


@dataclass
class Fault:
    """A failing disk, from its first error until the next commit."""

    reason: str
    is_full: bool = True
    """Whether only space was missing since everything was known to be on the disk."""
    is_open: bool = False
    """Whether the file was reopened since the last error."""
    since: float = field(default_factory=monotonic)
    """Start, in seconds, moved forward by the time that verifying took."""

    def again(self, failed: Failed) -> "Fault":
        """Record another failure."""
        self.reason, self.is_open = failed.reason, False
        self.is_full = self.is_full and failed.is_full
        return self


def meaning(error: BaseException, path: Path) -> BaseException:
    """Translate SQLite's errors, for writers."""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(reason=str(error))
        case _ if isinstance(error, REFUSED):
            return StoreRefused(reason=_words(error, path))
        case apsw.Error() | OSError():
            return Failed(_words(error, path), is_full=isinstance(error, apsw.FullError))
        case _:
            return error


@contextmanager
def failing(path: Path) -> Iterator[None]:
    """Translate SQLite's errors inside the block, for writers."""
    try:
        yield
    except (apsw.Error, OSError) as error:
        raise meaning(error, path) from error


@contextmanager
def error_text(path: Path, *, passing: bool = True) -> Iterator[None]:
    """Translate SQLite's errors inside the block, for opening and reading.

    A failing disk is transient (`passing`) unless the file is damaged.
    """
    try:
        with failing(path):
            yield
    except Failed as failed:
        lasting = not passing or isinstance(failed.__cause__, DAMAGED)
        raise (StoreUnavailable if lasting else ConnectionLost)(reason=failed.reason) from failed.__cause__


def _words(error: BaseException, path: Path) -> str:
    return f"{path}: {type(error).__name__}: {error}"
