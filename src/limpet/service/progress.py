"""How far long work has come, for whoever wants to hear of it: a door that shows a bar."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["Told", "progress", "report_progress_to"]

Told = Callable[[int, int | None], object]
"""Hears how much is done, and of how much, if that is known."""
_told: ContextVar[Told | None] = ContextVar("limpet_told", default=None)


@contextmanager
def report_progress_to(told: Told) -> Iterator[None]:
    """Hear how far the work inside has come; it may tell from another thread."""
    token = _told.set(told)
    try:
        yield
    finally:
        _told.reset(token)


def progress(done: int, total: int | None = None) -> None:
    """Tell whoever listens."""
    if (told := _told.get()) is not None:
        told(done, total)
