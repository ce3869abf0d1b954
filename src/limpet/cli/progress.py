"""A bar for long work: on stderr, and only where somebody looks."""

from collections.abc import Iterator
from contextlib import contextmanager

from limpet.service.progress import hearing

__all__ = ["bar"]


@contextmanager
def bar(what: str) -> Iterator[None]:
    """Shows how far the work inside has come."""
    from rich.console import Console  # noqa: PLC0415 - it takes long, and few need it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    err = Console(stderr=True, highlight=False, markup=False)
    seen = err.is_terminal and not err.is_dumb_terminal
    shown = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        console=err,
        transient=True,
        disable=not seen,
    )
    with shown:
        task = shown.add_task(what, total=None)

        def told(done: int, total: int | None = None) -> None:
            shown.update(task, completed=done, total=total)

        with hearing(told):
            yield
