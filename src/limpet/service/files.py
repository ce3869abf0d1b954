"""Files that a command reads or writes: their errors become FileFailed, and a new file is whole or not there."""

from collections.abc import Iterator
from contextlib import contextmanager
from errno import EISDIR
from os import strerror
from pathlib import Path

from limpet.errors import FileFailed

__all__ = ["file_errors", "new_file"]


@contextmanager
def file_errors(path: str | Path) -> Iterator[Path]:
    """Yield the path. Raise FileFailed for an OSError inside, and for an invalid path."""
    try:
        yield Path(path)
    except OSError as error:
        raise FileFailed(path=str(error.filename or path), reason=error.strerror or str(error)) from error
    except ValueError as error:
        raise FileFailed(path=repr(path), reason=str(error)) from error


@contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to, whose file replaces the one at `path` at the end. After an error nothing has changed.

    Raises FileFailed.
    """
    with file_errors(path) as final:
        if final.is_dir():
            raise IsADirectoryError(EISDIR, strerror(EISDIR), str(final))
        part = final.with_name(f"{final.name}.part")
        try:
            yield part
            part.replace(final)
        finally:
            part.unlink(missing_ok=True)
