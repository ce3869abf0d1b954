"""Load the user's app by name, run a command's work in it, and serve it until a signal."""

import asyncio
import importlib
import logging
import os
import signal
import sys
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import msgspec
import typer

import limpet
from limpet.cli.target import parse_target
from limpet.compose import is_server, open_engine
from limpet.engine.definitions.agents import Agent
from limpet.engine.worker.engine import Engine
from limpet.engine.worker.worker_settings import Worker
from limpet.errors import NotRemote
from limpet.redaction import hide_secrets_in
from limpet.service.app import App
from limpet.state.fold import BUILT_IN

__all__ = [
    "app_target",
    "idle_app",
    "load_worker",
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
"""Seconds between two checks whether the store has failed permanently."""


def load_worker(target: str, url: str | None, worker: Worker, engine: str | None = None) -> App:
    """Load a file or MODULE:ATTRIBUTE, and return it as an app with a worker."""
    app = _with_worker(_load(target), target, url, worker)
    return app if engine is None else app.with_engine(named_engine(engine))


def _with_worker(found: Any, target: str, url: str | None, worker: Worker) -> App:
    if url is not None and is_server(url):
        raise NotRemote(what="a worker")
    agents = _agents_of(found, target)
    if isinstance(found, App):
        if worker.keep is None and found.worker is not None:
            worker.keep = found.worker.keep  # The app's own rule is not lost when the command sets other options.
        store = None if url is None else limpet.open_store(url)
        return found.replace(worker=worker, store=store, url=url)
    return limpet.open(url, agents=agents).replace(worker=worker)


def named_engine(given: str) -> Engine | None:
    """Return the engine with an address; None for `builtin`. `temporal` is the configured one, or on this machine."""
    if given == "temporal":
        given = os.environ.get("LIMPET_ENGINE") or "temporal://127.0.0.1:7233/default"
    return open_engine(given)


def _agents_of(found: Any, target: str) -> Sequence[Agent[Any, Any]]:
    """Return the agents of an app, an agent or a list of agents."""
    if isinstance(found, App):
        if not found.serves:
            raise typer.BadParameter(f"{target} has no agents; open it with limpet.open(…, agents=[…])")
        return found.serves
    agents = [found] if isinstance(found, Agent) else found
    if not isinstance(agents, list | tuple) or not agents or not all(isinstance(each, Agent) for each in agents):
        kind = type(found).__name__
        raise typer.BadParameter(f"{target} is a {kind}, not an app, an agent or a list of agents")
    return agents


def app_target(target: str | None, how: str = "--app ") -> str:
    """Return the code as given, or as pyproject.toml names it."""
    if found := target or _configured():
        return found
    raise typer.BadParameter(f"no app given; pass {how}MODULE:ATTRIBUTE or a file, or set LIMPET_APP")


def worker_command(engine: str = "") -> str:
    """Return the command that starts a worker, with the app if it is configured."""
    option = f" --engine {engine or BUILT_IN}" if engine or os.environ.get("LIMPET_ENGINE") else ""
    with suppress(typer.BadParameter, OSError):
        return f"limpet worker {os.environ.get('LIMPET_APP') or _configured() or 'MODULE:ATTRIBUTE'}{option}"
    return f"limpet worker MODULE:ATTRIBUTE{option}"


def idle_app(target: str | None, url: str | None) -> App:
    """Return the user's app without a worker."""
    if url is not None and is_server(url):
        target = app_target(target)
        return limpet.open(url, agents=_agents_of(_load(target), target), worker=False)
    return load_worker(app_target(target), url, Worker()).replace(idle=True)


def named_app(target: str | None, url: str | None) -> App | None:
    """Return the user's app without a worker, or None if no app is configured."""
    target = target or _configured()
    return None if target is None else idle_app(target, url)


def _configured() -> str | None:
    """Return `app` of [tool.limpet] in pyproject.toml, or None."""
    path = Path("pyproject.toml")
    if not path.is_file():
        return None
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("limpet", {}).get("app")
    except ValueError as error:
        raise typer.BadParameter(f"cannot read pyproject.toml, which may name the app: {error}") from error
    return found if isinstance(found, str) else None


class JsonLines(logging.Formatter):
    """Formats log records as JSON, one per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON: time, level, message, the run it is about, and traceback if there is one."""
        line = {"time": int(record.created * 1_000_000), "level": record.levelname, "message": record.getMessage()}
        line |= {
            name: getattr(record, name)
            for name in ("run", "agent", "version", "step", "request")
            if hasattr(record, name)
        }
        if record.exc_text:
            line["traceback"] = record.exc_text  # already redacted by our log filter
        elif record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(hide_secrets_in(line)).decode()


def log_to_stderr(*, json: bool) -> None:
    """Write log records to stderr, as text or as JSON."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if json:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())


async def serve_until_stopped(app: AbstractAsyncContextManager[App], *, json: bool = False) -> None:
    """Serve until SIGTERM or SIGINT; a second signal stops immediately. Raises the store's error if it has failed."""
    log_to_stderr(json=json)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
        stop.set()

    with suppress(NotImplementedError):  # on Windows, Ctrl-C stops it immediately
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, end)
    async with app as opened:
        while not stop.is_set():
            if (failure := opened.store.failure) is not None:
                raise failure  # a supervisor restarts the process
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await stop.wait()
        log.info("Stopping: finishing running effects and releasing runs.")


def _load(given: str) -> Any:
    """Import the code that a command names, and return its attribute; of a file its first app, else all its agents."""
    target = parse_target(given)
    sys.path[:0] = dict.fromkeys((str(target.folder), str(Path.cwd())))
    try:
        found: Any = importlib.import_module(target.module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{target.module}.".startswith(f"{error.name}."):
            raise  # the module exists, but imports a missing one
        raise typer.BadParameter(f"no module {error.name!r} in {target.folder} or on the path") from error
    if target.file is not None and target.file.resolve() != Path(getattr(found, "__file__", None) or "").resolve():
        raise typer.BadParameter(f"{given} cannot be imported: another module has the name {target.module}; rename it")
    if not target.attribute:
        return _served_by(found, given)
    for name in target.attribute.split("."):
        if not hasattr(found, name):
            raise typer.BadParameter(f"{target.module} has no {target.attribute!r}")
        found = getattr(found, name)
    return found


def _served_by(module: ModuleType, given: str) -> App | list[Agent[Any, Any]]:
    held = list(vars(module).values())
    apps = [each for each in held if isinstance(each, App) and each.serves]
    agents = list({id(each): each for each in held if isinstance(each, Agent)}.values())
    if not apps and not agents:
        raise typer.BadParameter(f"{given} has no app with agents, and no agent")
    return apps[0] if apps else agents


def run_with_app(url: str | None, work: Callable[[App], Awaitable[T]], *, creates_store: bool = False) -> T:
    """Run a function with an app on the store at a URL, or on the default store; return its result."""
    return run_in_app(limpet.open(url, worker=False), work, creates_store=creates_store)


def run_with_time(url: str, work: Callable[[App], Awaitable[T]]) -> tuple[T, datetime]:
    """Like `run_with_app`, but also return the store's time."""

    async def look(app: App) -> tuple[T, datetime]:
        return await work(app), await app.now()

    return run_with_app(url, look)


def run_in_app(app: App, work: Callable[[App], Awaitable[T]], *, creates_store: bool = False) -> T:
    """Run a function with an opened app, and return its result."""

    async def do() -> T:
        async with app.replace(interface="cli", creates_store=creates_store) as opened:
            return await work(opened)

    return asyncio.run(do())
