"""The worker process of `limpet dev`: loads the user's code, executes its runs and shows them, until SIGTERM."""

import asyncio
import logging
import os
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

import typer

from limpet.cli.command_group import failed
from limpet.cli.lifeline import hold_lifeline
from limpet.cli.load_app import load_worker, serve_until_stopped
from limpet.cli.watch import watch
from limpet.engine.worker.worker_settings import Worker
from limpet.service.app import App

__all__: list[str] = []


class _LiveStderrHandler(logging.StreamHandler[IO[str]]):
    """Logs to the current stderr, which a live table replaces so that lines appear above it."""

    @property
    def stream(self) -> IO[str]:
        """The current stderr."""
        return sys.stderr

    @stream.setter
    def stream(self, _: IO[str]) -> None:
        """Ignore assignments: the property always returns the current stderr."""


def main(*words: str) -> int:
    """Run the worker until a signal, and return the exit code."""
    target, folder, lifeline, grace, url, json, report = words
    hold_lifeline(int(lifeline))
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=[_LiveStderrHandler()]
    )
    sys.dont_write_bytecode = True  # else a change within the same second would load the stale bytecode
    try:
        app = load_worker(target, url or None, Worker(grace=grace))
    except typer.BadParameter as error:
        return failed(error)
    except Exception as error:  # noqa: BLE001 - user code may raise anything on import
        _show(error, Path(folder))
        return 1
    asyncio.run(serve_until_stopped(_shown(app, json=bool(json), report=int(report)), json=bool(json)))
    return 0


@asynccontextmanager
async def _shown(app: App, *, json: bool, report: int) -> AsyncIterator[App]:
    """Open the app, report the URL of its store to the supervisor, and show its runs as they change."""
    async with app:
        os.write(report, app._settings.url.encode())
        os.close(report)
        showing = asyncio.create_task(watch(app, lambda: app.runs(last=20), json=json))
        try:
            yield app
        finally:
            showing.cancel()
            with suppress(asyncio.CancelledError, BrokenPipeError):  # the reader may be gone
                await showing


def _show(error: Exception, folder: Path) -> None:
    """Print the traceback from the user's code on, without Limpet's frames above it."""
    while error.__traceback__ is not None and not _is_in(error.__traceback__.tb_frame.f_code.co_filename, folder):
        error.__traceback__ = error.__traceback__.tb_next
    traceback.print_exception(error)


def _is_in(path: str, folder: Path) -> bool:
    return Path(path).is_relative_to(folder)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
