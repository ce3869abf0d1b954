"""Live views: the log of a run as it grows, and the list of runs as it changes, until Ctrl-C."""

import asyncio
import errno
import os
import stat
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar, cast

from limpet.cli.output import clean, console, print_line
from limpet.cli.pages import runs_table
from limpet.clock import SystemClock
from limpet.engine.execution.views import EventView, RunInfo
from limpet.service.app import App
from limpet.service.page import Page
from limpet.service.views import one_line
from limpet.times import format_time

__all__ = ["print_log", "watch", "while_read"]

T = TypeVar("T")
# Minimum interval between two queries, in microseconds: a busy store changes all the time.
AT_MOST_EVERY = 100_000
# Maximum interval, in seconds: a worker's lease expires without an event.
AT_LEAST_EVERY = 1.0


async def while_read(view: Coroutine[Any, Any, None]) -> None:
    """Run a view until the reader of its output is gone: without new output, no write would fail."""
    pipe = _pipe()
    if pipe is None:
        await view
        return
    loop, closed = asyncio.get_running_loop(), asyncio.Event()
    shown, unread = asyncio.ensure_future(view), asyncio.ensure_future(closed.wait())
    loop.add_reader(pipe, closed.set)
    try:
        await asyncio.wait((shown, unread), return_when=asyncio.FIRST_COMPLETED)
        if not shown.done():
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        shown.result()
    finally:
        loop.remove_reader(pipe)
        shown.cancel()
        unread.cancel()
        await asyncio.gather(shown, unread, return_exceptions=True)


def _pipe() -> int | None:
    """Return the file descriptor of stdout if it is a pipe."""
    with suppress(OSError):
        out = sys.stdout.fileno()
        if stat.S_ISFIFO(os.fstat(out).st_mode) and sys.platform != "win32":
            return out
    return None


async def print_log(events: AsyncIterator[EventView], *, json: bool) -> None:
    """Print events, one per line."""
    out, reading = console(), cast("AsyncGenerator[EventView, None]", events)
    async with aclosing(reading):  # a stream is closed before the loop ends
        async for event in reading:
            if json:
                print_line(event)
            else:
                line = f"{event.seq:>4}  {format_time(event.time)}  {event.kind:<18}  {one_line(event.body)}".rstrip()
                out.print(clean(line), overflow="ellipsis", no_wrap=True)


async def watch(app: App, look: Callable[[], Awaitable[Page[RunInfo]]], *, json: bool) -> None:
    """Show runs as they change: in a live table on a terminal, else one line per change."""
    out = console()
    async with aclosing(whenever_changed(app, look)) as looks:
        if json or not out.is_terminal or out.is_dumb_terminal:
            await _print_changes(looks, json=json)
        else:
            await _keep_table(app, looks)


async def whenever_changed(app: App, look: Callable[[], Awaitable[T]]) -> AsyncGenerator[T, None]:
    """Yield what `look` returns, now and after each possible change of a run. Never ends."""
    changed, clock = asyncio.Event(), SystemClock()

    async def follow() -> None:
        async for _ in app.watch_runs():
            changed.set()

    following = asyncio.create_task(follow())
    following.add_done_callback(lambda _: changed.set())
    try:
        while not following.done():
            changed.clear()
            yield await look()
            await clock.sleep(AT_MOST_EVERY)
            with suppress(TimeoutError):  # `wait_for` would lose a Ctrl-C that arrives together with a change
                async with asyncio.timeout(AT_LEAST_EVERY):
                    await changed.wait()
        following.result()
    finally:
        following.cancel()


async def _print_changes(looks: AsyncIterator[Sequence[RunInfo]], *, json: bool) -> None:
    known: dict[str, RunInfo] = {}
    async for found in looks:
        for run in sorted(found, key=lambda each: (each.updated, each.created)):
            if known.get(run.id) != run:
                print_line(run) if json else console().print(_line(run))
        known = {run.id: run for run in found}


def _line(run: RunInfo) -> str:
    waits, agent = f"waits for {run.waits_text}" if run.waits_for else "", f"{run.agent} {run.version}"
    parts = (format_time(run.updated), run.id, agent, run.status, run.position.text, waits, run.goal)
    return "  ".join(clean(each) for each in parts if each)


async def _keep_table(app: App, looks: AsyncIterator[Sequence[RunInfo]]) -> None:
    from rich.live import Live  # noqa: PLC0415 - slow to import

    out = console()
    with Live(console=out, auto_refresh=False, screen=False) as live:
        async for found in looks:
            fit = found[: max(out.height - 3, 1)]  # lines beyond the terminal could not be redrawn
            now = await app.now()
            live.update(runs_table(fit, now, out.width) if fit else "no runs", refresh=True)
