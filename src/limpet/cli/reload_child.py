"""The worker under `limpet dev`: it loads the user's code, drives its runs and shows them, until it is told to end."""

import asyncio
import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import IO

import typer

from limpet.cli.commands import failed
from limpet.cli.load_app import load_worker, make_worker, serve_until_stopped
from limpet.cli.watch import watch
from limpet.engine.definitions.agents import Agent
from limpet.engine.worker.worker import Worker
from limpet.service import App

__all__: list[str] = []


class _Above(logging.StreamHandler[IO[str]]):
    """The log goes to what stderr is now: with a table on the terminal, above it."""

    @property
    def stream(self) -> IO[str]:
        """As it is now."""
        return sys.stderr

    @stream.setter
    def stream(self, _: IO[str]) -> None:
        """It is looked up whenever it is used."""


def main(target: str, folder: str, lifeline: str, grace: str, url: str, json: str) -> int:
    """Work until told otherwise; the exit code."""
    Thread(target=_end_with_parent, args=(int(lifeline),), daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=[_Above()])
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True  # Python would take it for the next change, if that comes within a second
    try:
        app = _app(target, url or None, Worker(grace=grace))
    except typer.BadParameter as error:
        return failed(error)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises when it is loaded
        _show(error, Path(folder))
        return 1
    asyncio.run(serve_until_stopped(_shown(app, json=bool(json)), json=bool(json)))
    return 0


def _app(target: str, url: str | None, worker: Worker) -> App:
    """What is served: under its name, or of a file whatever there is, an app first, else all agents."""
    if ":" in target:
        return load_worker(target, url, worker)
    held = list(vars(importlib.import_module(target)).values())
    apps = [each for each in held if isinstance(each, App) and each.serves]
    agents = list({id(each): each for each in held if isinstance(each, Agent)}.values())
    if not apps and not agents:
        raise typer.BadParameter(f"{target}.py holds neither an app that was opened with agents, nor an agent")
    return make_worker(apps[0] if apps else agents, target, url, worker)


@asynccontextmanager
async def _shown(app: App, *, json: bool) -> AsyncIterator[App]:
    """The app at work, its runs shown as they change."""
    async with app:
        showing = asyncio.create_task(watch(app, status=None, agent=None, last=20, json=json))
        try:
            yield app
        finally:
            showing.cancel()
            with suppress(asyncio.CancelledError, BrokenPipeError):  # nobody may read it any more
                await showing


def _show(error: Exception, folder: Path) -> None:
    """Where in the user's code it went wrong; nothing of how we came there."""
    while error.__traceback__ is not None and not _is_in(error.__traceback__.tb_frame.f_code.co_filename, folder):
        error.__traceback__ = error.__traceback__.tb_next
    traceback.print_exception(error)


def _is_in(path: str, folder: Path) -> bool:
    return Path(path).is_relative_to(folder)


def _end_with_parent(lifeline: int) -> None:
    """Whoever started us is gone, however it ended: stop, as if it had said so."""
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
