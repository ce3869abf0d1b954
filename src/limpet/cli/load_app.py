"""A process that does nothing but work: what it serves, and how it stops."""

import asyncio
import importlib
import logging
import os
import signal
import sys
import tomllib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import typer

import limpet
from limpet.engine.definitions.agents import Agent
from limpet.engine.worker.worker import Worker
from limpet.redaction import hide_secrets_in
from limpet.service import App

__all__ = [
    "app_target",
    "idle_app",
    "load_worker",
    "make_worker",
    "named_app",
    "run_in_app",
    "run_with_app",
    "run_with_time",
    "serve_until_stopped",
    "worker_command",
]

T = TypeVar("T")
log = logging.getLogger("limpet")

LOOK = 1.0
"""How often, in seconds, a worker looks whether its store has failed for good."""


def load_worker(target: str, url: str | None, worker: Worker) -> App:
    """The app that a worker is, from what the user's module holds under a name."""
    return make_worker(_load(target), target, url, worker)


def make_worker(found: Any, target: str, url: str | None, worker: Worker) -> App:
    """The app that a worker is, from an app, an agent or a list of agents."""
    if isinstance(found, App):
        if not found.serves:
            raise typer.BadParameter(f"{target} was opened without agents: limpet.open(…, agents=[…])")
        return found.replace(worker=worker, store=None if url is None else limpet.open_store(url), url=url)
    agents = [found] if isinstance(found, Agent) else found
    if not isinstance(agents, list | tuple) or not agents or not all(isinstance(each, Agent) for each in agents):
        kind = type(found).__name__
        raise typer.BadParameter(f"{target} is of type {kind}: an app, an agent or a list of agents is needed")
    return limpet.open(url, agents=agents).replace(worker=worker)


def app_target(target: str | None, how: str = "--app ") -> str:
    """Where the code is: as it was said, else as the project says."""
    if found := target or _configured():
        return found
    raise typer.BadParameter(f"the code is needed: say {how}MODULE:ATTRIBUTE, or set LIMPET_APP")


def worker_command() -> str:
    """What to type for a worker, with the app, if it is known."""
    with suppress(typer.BadParameter, OSError):
        return f"limpet worker {os.environ.get('LIMPET_APP') or _configured() or 'MODULE:ATTRIBUTE'}"
    return "limpet worker MODULE:ATTRIBUTE"


def idle_app(target: str | None, url: str | None) -> App:
    """The user's app, which drives nothing."""
    return load_worker(app_target(target), url, Worker()).replace(idle=True)


def named_app(target: str | None, url: str | None) -> App | None:
    """The same; none, if nothing names it."""
    target = target or _configured()
    return None if target is None else idle_app(target, url)


def _configured() -> str | None:
    """The app that the project names: `app` of [tool.limpet] in pyproject.toml."""
    path = Path("pyproject.toml")
    if not path.is_file():
        return None
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("limpet", {}).get("app")
    except ValueError as error:
        raise typer.BadParameter(f"pyproject.toml, which may name the app, cannot be read: {error}") from error
    return found if isinstance(found, str) else None


class JsonLines(logging.Formatter):
    """A line of the log as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """When, how bad, what."""
        told = {"time": int(record.created * 1_000_000), "level": record.levelname, "message": record.getMessage()}
        if record.exc_text:
            told["traceback"] = record.exc_text  # as it may be said: ours have no other
        elif record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(hide_secrets_in(told)).decode()


async def serve_until_stopped(app: AbstractAsyncContextManager[App], *, json: bool = False) -> None:
    """Work until SIGTERM or SIGINT; a second one does not wait for anything. Raise why, if the store cannot go on."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if json:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
        stop.set()

    with suppress(NotImplementedError):  # Windows: Ctrl-C ends it at once
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, end)
    async with app as opened:
        while not stop.is_set():
            if (failure := opened.store.failure) is not None:
                raise failure  # whoever supervises this process starts another
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await stop.wait()
        log.info("stopping: effects under way finish, the rest is given back")


def _load(target: str) -> Any:
    """What is in MODULE under ATTRIBUTE; the working directory is searched first, as for `python -m`."""
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise typer.BadParameter(f"{target!r} is not MODULE:ATTRIBUTE, such as support:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and imports something that is not
        raise typer.BadParameter(f"there is no module {error.name!r} in {Path.cwd()} or on the path") from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise typer.BadParameter(f"{module} has no {attribute!r}")
        found = getattr(found, name)
    return found


def run_with_app(url: str | None, work: Callable[[App], Awaitable[T]], *, creates_store: bool = False) -> T:
    """What some work on the store at an address gives; the usual one, if nothing is said."""
    return run_in_app(limpet.open(url, worker=False), work, creates_store=creates_store)


def run_with_time(url: str, work: Callable[[App], Awaitable[T]]) -> tuple[T, int]:
    """The same, and what time it is there."""

    async def look(app: App) -> tuple[T, int]:
        return await work(app), await app.store.now()

    return run_with_app(url, look)


def run_in_app(app: App, work: Callable[[App], Awaitable[T]], *, creates_store: bool = False) -> T:
    """What some work with an app gives."""

    async def do() -> T:
        async with app.replace(interface="cli", creates_store=creates_store) as opened:
            return await work(opened)

    return asyncio.run(do())
