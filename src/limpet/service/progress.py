"""Progress of long operations, for an interface that shows a progress bar."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["ProgressListener", "progress", "report_progress_to"]

ProgressListener = Callable[[int, int | None], object]
"""Called with the amount done, and the total if it is known."""
_listener: ContextVar[ProgressListener | None] = ContextVar("limpet_listener", default=None)


@contextmanager
def report_progress_to(listener: ProgressListener) -> Iterator[None]:
    """Call a function with the progress of the work inside, possibly from another thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def progress(done: int, total: int | None = None) -> None:
    """Report progress to the current listener, if any."""
    if (listener := _listener.get()) is not None:
        listener(done, total)
