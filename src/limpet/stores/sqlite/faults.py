"""What SQLite's errors mean, and what is known of a disk that fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import apsw

from limpet.errors import ConnectionLost, StoreBusy, StoreRefused, StoreUnavailable

__all__ = ["Failed", "Fault", "error_text", "failing", "meaning"]

# What one operation may be refused for: nothing was written, and the file is as it was.
REFUSED = (apsw.ConstraintError, apsw.MismatchError, apsw.RangeError, apsw.SQLError, apsw.TooBigError)
DAMAGED = (apsw.CorruptError, apsw.NotADBError)


class Failed(Exception):
    """The disk, or what is on it, failed: nobody knows what was written."""

    def __init__(self, reason: str, *, is_full: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_full = is_full
        """Whether there was only no space: then what was written before is as good as it was."""


@dataclass
class Fault:
    """A disk that fails, from its first error until something was committed again."""

    reason: str
    is_full: bool = True
    """Whether there was only no space, since everything was known to be on the disk."""
    is_open: bool = False
    """Whether the file was opened again since the last error."""
    since: float = field(default_factory=monotonic)
    """In seconds; later by what verifying took."""

    def again(self, failed: Failed) -> "Fault":
        """It failed once more."""
        self.reason, self.is_open = failed.reason, False
        self.is_full = self.is_full and failed.is_full
        return self


def meaning(error: BaseException, path: Path) -> BaseException:
    """SQLite's errors as ours, for whoever writes."""
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
    """The same for what is done inside."""
    try:
        yield
    except (apsw.Error, OSError) as error:
        raise meaning(error, path) from error


@contextmanager
def error_text(path: Path, *, passing: bool = True) -> Iterator[None]:
    """The same for whoever opens or reads; a failing disk is `passing` unless the file is damaged."""
    try:
        with failing(path):
            yield
    except Failed as failed:
        lasting = not passing or isinstance(failed.__cause__, DAMAGED)
        raise (StoreUnavailable if lasting else ConnectionLost)(reason=failed.reason) from failed.__cause__


def _words(error: BaseException, path: Path) -> str:
    return f"{path}: {type(error).__name__}: {error}"
