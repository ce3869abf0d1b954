"""Files that commands read and write: what goes wrong with one is an error of ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from limpet.errors import FileFailed

__all__ = ["using"]


@contextmanager
def using(path: str | Path) -> Iterator[Path]:
    """Raise FileFailed for a file that cannot be used inside, or for a name that no file can have."""
    try:
        yield Path(path)
    except OSError as error:
        raise FileFailed(path=str(error.filename or path), reason=error.strerror or str(error)) from error
    except ValueError as error:
        raise FileFailed(path=repr(path), reason=str(error)) from error
