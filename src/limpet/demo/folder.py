"""Where the demo keeps its store: a folder of its own, made anew by each start, that stays to be looked at."""

import fcntl
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from limpet.errors import FileFailed

__all__ = ["DEFAULT", "Folder", "fresh"]

OTHER_FOLDER = "Pass another folder, or move the existing one away."

DEFAULT = Path("limpet-demo")
MARK = ".gitignore"
MARKED = "# Made by `limpet demo`, which makes this folder anew each time.\n*\n"
PROJECT = '[tool.limpet]\napp = "limpet.demo.agent:support"\n'
STORE = "limpet.db"


class Folder:
    """A folder with a store, and how to look around in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{quote(str(path.absolute() / STORE))}"

    def preparations(self) -> list[str]:
        """What must be typed before `limpet …` means this program and this store."""
        program = Path(sys.executable).with_name("limpet")
        found = shutil.which("limpet")
        lines = []
        if found is None or not program.exists() or not Path(found).samefile(program):
            lines.append(f'export PATH="{_short(program.parent)}:$PATH"')
        lines.append(f"cd {shlex.quote(str(self.path))}")
        if set_elsewhere := [name for name in ("LIMPET_URL", "LIMPET_APP") if name in os.environ]:
            lines.append(f"unset {' '.join(set_elsewhere)}")
        return lines


def _short(path: Path) -> Path:
    """A path as one would type it here, between quotes, and that stays true in another folder."""
    here = Path.cwd()
    return "$PWD" / path.relative_to(here) if path.is_relative_to(here) else path


@contextmanager
def fresh(path: Path) -> Iterator[Folder]:
    """The folder, empty but for what says whose it is; raises FileFailed if it is somebody else's.

    While it is held, no other demo begins in it. Where nothing can be written, it is a temporary one.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        mark = _mark(path)
    except PermissionError:
        path = Path(tempfile.mkdtemp(prefix="limpet-demo-"))
        mark = _mark(path)
    try:
        for old in path.glob(f"{STORE}*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        (path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
        yield Folder(path)
    finally:
        os.close(mark)


def _mark(path: Path) -> int:
    """Make the folder ours, as long as the descriptor is open."""
    if not path.is_dir():
        raise FileFailed(path=str(path), reason="not a folder", fix=OTHER_FOLDER)
    if not (path / MARK).exists() and any(path.iterdir()):
        raise FileFailed(path=str(path), reason="contains files that `limpet demo` did not create", fix=OTHER_FOLDER)
    mark = os.open(path / MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _take(mark, path)
    except BaseException:
        os.close(mark)
        raise
    return mark


def _take(mark: int, path: Path) -> None:
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FileFailed(path=str(path), reason="another demo is running in it", fix=OTHER_FOLDER) from error
    said = os.pread(mark, len(MARKED.encode()) + 1, 0)
    if said not in (b"", MARKED.encode()):
        raise FileFailed(path=str(path), reason="contains files that `limpet demo` did not create", fix=OTHER_FOLDER)
    os.pwrite(mark, MARKED.encode(), 0)
