"""Turn errors of files that a command reads or writes into FileFailed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from limpet.errors import FileFailed

__all__ = ["file_errors"]


@contextmanager
def file_errors(path: str | Path) -> Iterator[Path]:
    """Yield the path. Raise FileFailed for an OSError inside, and for an invalid path."""
    try:
        yield Path(path)
    except OSError as error:
        raise FileFailed(path=str(error.filename or path), reason=error.strerror or str(error)) from error
    except ValueError as error:
        raise FileFailed(path=repr(path), reason=str(error)) from error
