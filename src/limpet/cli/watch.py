"""Views that stay: the log of a run as it grows, and runs as they change. Ctrl-C ends them."""

import asyncio
import errno
import os
import stat
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, suppress
from typing import Any

from limpet.cli.output import clean, console, print_line
from limpet.cli.pages import runs_table
from limpet.clock import format_time
from limpet.engine.execution.views import EventView, RunInfo
from limpet.service import App
from limpet.service.views import one_line
from limpet.service.watch import watch_runs

__all__ = ["print_log", "watch", "while_read"]


async def while_read(view: Coroutine[Any, Any, None]) -> None:
    """A view that ends when nobody reads it any more: the line that would tell it so may never come."""
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
    """Where output goes, if that is a pipe."""
    with suppress(OSError):
        out = sys.stdout.fileno()
        if stat.S_ISFIFO(os.fstat(out).st_mode) and sys.platform != "win32":
            return out
    return None


async def print_log(events: AsyncIterator[EventView], *, json: bool) -> None:
    """Events, a line for each."""
    out = console()
    async for event in events:
        if json:
            print_line(event)
        else:
            line = clean(
                f"{event.seq:>4}  {format_time(event.time)}  {event.kind:<18}  {one_line(event.body)}".rstrip()
            )
            out.print(line, overflow="ellipsis", no_wrap=True)


async def watch(app: App, *, status: str | None, agent: str | None, last: int, json: bool) -> None:
    """Runs as they change: a table that stays where there is a terminal; else a line for each change."""
    out = console()
    async with aclosing(watch_runs(app, status=status, agent=agent, last=last)) as looks:
        if json or not out.is_terminal or out.is_dumb_terminal:
            await _print_changes(looks, json=json)
        else:
            await _keep_table(app, looks)


async def _print_changes(looks: AsyncIterator[list[RunInfo]], *, json: bool) -> None:
    known: dict[str, RunInfo] = {}
    async for found in looks:
        for run in sorted(found, key=lambda each: (each.updated, each.created)):
            if known.get(run.id) != run:
                print_line(run) if json else console().print(_line(run))
        known = {run.id: run for run in found}


def _line(run: RunInfo) -> str:
    waits = f"waits for {run.waits_for}" if run.waits_for else ""
    told = (format_time(run.updated), run.id, f"{run.agent} {run.version}", run.status, run.position, waits, run.goal)
    return "  ".join(clean(each) for each in told if each)


async def _keep_table(app: App, looks: AsyncIterator[list[RunInfo]]) -> None:
    from rich.live import Live  # noqa: PLC0415 - it takes long, and few need it

    out = console()
    with Live(console=out, auto_refresh=False, screen=False) as live:
        async for found in looks:
            fit = found[: max(out.height - 3, 1)]  # what does not fit could not be drawn over
            live.update(runs_table(fit, await app.store.now(), out.width) if fit else "no runs", refresh=True)
