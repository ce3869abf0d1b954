"""`limpet dev`: a worker in a process of its own, which starts again whenever a file of the app has changed."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from limpet.cli.output import clean
from limpet.clock import SystemClock, microseconds

__all__ = ["ReloadOptions", "Target", "develop", "snapshot_files"]

# Microseconds between two looks at the files.
LOOK = 200_000
# Seconds after its grace in which a worker must have ended.
MARGIN = 2.0
FOREIGN = ("__pycache__", "node_modules", "site-packages")
Stamps = dict[Path, tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is served, and where its files are."""

    name: str
    """A module, or MODULE:ATTRIBUTE."""
    folder: Path


@dataclass(frozen=True, kw_only=True)
class ReloadOptions:
    """What the worker is to be."""

    target: Target
    url: str | None
    grace: str
    json: bool


def snapshot_files(target: str) -> Target:
    """A file, or MODULE:ATTRIBUTE in this folder."""
    if not target.endswith(".py"):
        if ":" not in target:
            raise typer.BadParameter(f"{target!r} is neither a file, such as app.py, nor MODULE:ATTRIBUTE")
        return Target(name=target, folder=Path.cwd())
    path = Path(target).absolute()
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {target}")
    if not path.stem.isidentifier():
        raise typer.BadParameter(f"{path.name} cannot be imported: its name is no name in Python")
    return Target(name=path.stem, folder=path.parent)


async def develop(wanted: ReloadOptions) -> None:
    """Drive and show runs until SIGINT or SIGTERM, with the code as it is now; a second signal does not wait."""
    microseconds(wanted.grace)
    reloader = _Reloader(wanted)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(each, reloader.stop)
    await reloader.run()


class _Reloader:
    """The process above the worker: it imports nothing of the user's."""

    def __init__(self, wanted: ReloadOptions) -> None:
        self._wanted = wanted
        self._clock = SystemClock()
        self._is_stopping = False
        self._child: asyncio.subprocess.Process | None = None
        # Whoever holds the other end ends when ours is closed, by whatever ends us.
        self._lifeline, self._ours = os.pipe()

    def stop(self) -> None:
        """End after the worker has; at once, if it is said twice."""
        if self._is_stopping and self._child is not None and self._child.returncode is None:
            self._child.kill()
        self._is_stopping = True

    async def run(self) -> None:
        """One worker after the other."""
        try:
            while not self._is_stopping:
                seen = _stamps(self._wanted.target.folder)
                self._child = await self._spawn()
                changed = await self._until_changed(self._child, seen)
                await self._end(self._child)
                for path in changed:
                    self._say(f"{path.relative_to(self._wanted.target.folder)} has changed")
        finally:
            os.close(self._ours)
            os.close(self._lifeline)

    async def _spawn(self) -> asyncio.subprocess.Process:
        """In a process group of its own: Ctrl-C is for us, and we tell it."""
        wanted = self._wanted
        words = [wanted.target.name, str(wanted.target.folder), str(self._lifeline), wanted.grace]
        words += [wanted.url or "", "json" if wanted.json else ""]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "limpet.cli.reload_child",
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(self._lifeline,),
            process_group=0,
        )

    async def _until_changed(self, child: asyncio.subprocess.Process, seen: Stamps) -> list[Path]:
        """The files that have changed, as soon as any has; none, if it is to stop."""
        was_told = False
        while not self._is_stopping:
            if child.returncode is not None and not was_told:
                self._say(f"the worker has ended with {child.returncode}; the next change starts it again")
                was_told = True
            await self._clock.sleep(LOOK)
            now = _stamps(self._wanted.target.folder)
            if changed := sorted(path for path in {*seen, *now} if seen.get(path) != now.get(path)):
                return changed
        return []

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        """SIGTERM; after the grace, SIGKILL."""
        if child.returncode is None:
            child.terminate()
        try:
            async with asyncio.timeout(microseconds(self._wanted.grace) / 10**6 + MARGIN):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()

    def _say(self, text: str) -> None:
        typer.echo(clean(text), err=True)


def _stamps(folder: Path) -> Stamps:
    """When each file of code was written last, and how long it is."""
    found: Stamps = {}
    for path in _files(folder):
        try:
            status = path.stat()
        except OSError:
            continue  # it went away while we looked
        found[path] = (status.st_mtime_ns, status.st_size)
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Code under a folder, but for what is hidden, and other people's."""
    for place, folders, names in os.walk(folder):
        folders[:] = [
            each
            for each in folders
            if not each.startswith(".") and each not in FOREIGN and not Path(place, each, "pyvenv.cfg").exists()
        ]
        yield from (Path(place, name) for name in names if name.endswith(".py"))
