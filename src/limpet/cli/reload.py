"""`limpet dev`: a supervisor that restarts a worker process whenever a source file changes."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from msgspec import Struct

from limpet.cli.dev_dashboard import DevDashboard
from limpet.cli.output import clean
from limpet.cli.target import Target
from limpet.clock import SystemClock, microseconds

__all__ = ["ReloadOptions", "develop"]

# Microseconds between two scans of the files.
LOOK = 200_000
# Seconds after the grace period before a worker is killed.
MARGIN = 2.0
FOREIGN = ("__pycache__", "node_modules", "site-packages")
Stamps = dict[Path, tuple[int, int]]


class ReloadOptions(Struct, frozen=True, kw_only=True):
    """Options of the worker process."""

    target: Target
    url: str | None
    grace: str
    json: bool
    port: int | None
    """Port of the dashboard, 0 for a free one; None for no dashboard."""
    opens: bool
    """Whether to open the dashboard in a browser."""


async def develop(wanted: ReloadOptions) -> None:
    """Run the worker, restarting it on changes, until SIGINT or SIGTERM; a second signal kills it."""
    microseconds(wanted.grace)
    reloader = _Reloader(wanted)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(each, reloader.stop)
    await reloader.run()


class _Reloader:
    """The supervisor of the worker process. It imports no user code."""

    def __init__(self, wanted: ReloadOptions) -> None:
        self._wanted = wanted
        self._clock = SystemClock()
        self._is_stopping = False
        self._child: asyncio.subprocess.Process | None = None
        # The worker stops when this pipe closes, so it never outlives the supervisor.
        self._lifeline, self._ours = os.pipe()
        self._dashboard = None if wanted.port is None else self._make_dashboard(wanted.port)

    def _make_dashboard(self, port: int) -> DevDashboard:
        def told(text: str) -> None:
            typer.echo(text, err=True)  # unlike `_print`, with the code that logs in

        return DevDashboard(port=port, opens=self._wanted.opens, told=told, lifeline=self._lifeline)

    def stop(self) -> None:
        """Stop after the worker has stopped; the second call kills it."""
        if self._is_stopping and self._child is not None and self._child.returncode is None:
            self._child.kill()
        self._is_stopping = True

    async def run(self) -> None:
        """Start a worker, and replace it after each change."""
        try:
            while not self._is_stopping:
                seen = _stamps(self._wanted.target.folder)
                reported, report = os.pipe()
                self._child = await self._spawn(report)
                os.close(report)
                showing = asyncio.create_task(self._show(reported))
                changed = await self._until_changed(self._child, seen)
                await self._end(self._child)
                await showing
                for path in changed:
                    self._print(f"{path.relative_to(self._wanted.target.folder)} changed")
        finally:
            if self._dashboard is not None:
                await self._dashboard.stop()
            os.close(self._ours)
            os.close(self._lifeline)

    async def _show(self, reported: int) -> None:
        """Show the dashboard of the store that the worker reports; it reports none if its code cannot be loaded."""
        url = await asyncio.to_thread(_read_all, reported)
        if url and self._dashboard is not None and not self._is_stopping:
            await self._dashboard.show(url)

    async def _spawn(self, report: int) -> asyncio.subprocess.Process:
        """Start a worker in its own process group, so that Ctrl-C reaches only the supervisor."""
        wanted = self._wanted
        words = [wanted.target.given, str(wanted.target.folder), str(self._lifeline), wanted.grace]
        words += [wanted.url or "", "json" if wanted.json else "", str(report)]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "limpet.cli.reload_child",
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(self._lifeline, report),
            process_group=0,
        )

    async def _until_changed(self, child: asyncio.subprocess.Process, seen: Stamps) -> list[Path]:
        """Wait for changes and return the changed files; none if the supervisor is stopping."""
        was_reported = False
        while not self._is_stopping:
            if child.returncode is not None and not was_reported:
                self._print(f"The worker exited with {child.returncode}; the next change restarts it.")
                was_reported = True
            await self._clock.sleep(LOOK)
            now = _stamps(self._wanted.target.folder)
            if changed := sorted(path for path in {*seen, *now} if seen.get(path) != now.get(path)):
                return changed
        return []

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        """Send SIGTERM, and SIGKILL after the grace period."""
        if child.returncode is None:
            child.terminate()
        try:
            async with asyncio.timeout(microseconds(self._wanted.grace) / 10**6 + MARGIN):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()

    def _print(self, text: str) -> None:
        typer.echo(clean(text), err=True)


def _read_all(pipe: int) -> str:
    """Return everything that a process writes to a pipe until it closes its end."""
    with os.fdopen(pipe, "rb") as file:
        return file.read().decode()


def _stamps(folder: Path) -> Stamps:
    """Return modification time and size of each source file."""
    found: Stamps = {}
    for path in _files(folder):
        try:
            status = path.stat()
        except OSError:
            continue  # deleted meanwhile
        found[path] = (status.st_mtime_ns, status.st_size)
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Return source files below a folder, without hidden folders, virtual environments and dependencies."""
    for place, folders, names in os.walk(folder):
        folders[:] = [
            each
            for each in folders
            if not each.startswith(".") and each not in FOREIGN and not Path(place, each, "pyvenv.cfg").exists()
        ]
        yield from (Path(place, name) for name in names if name.endswith(".py"))
