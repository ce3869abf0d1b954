"""The demo's folder: recreated by each run of the demo, and kept afterwards for inspection."""

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
MARKED = "# Created by `limpet demo`, which recreates this folder each time.\n*\n"
PROJECT = '[tool.limpet]\napp = "limpet.demo.ticket_agent:support"\n'
STORE = "limpet.db"


class Folder:
    """A folder with a store, and the commands to inspect it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{quote(str(path.absolute() / STORE))}"

    def preparations(self) -> list[str]:
        """Return the shell prefix with which `limpet …` uses this program and this store."""
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
    """Return a path to type in the current shell, quoted, and absolute if that is safer."""
    here = Path.cwd()
    return "$PWD" / path.relative_to(here) if path.is_relative_to(here) else path


@contextmanager
def fresh(path: Path) -> Iterator[Folder]:
    """Yield the folder, emptied. Raises FileFailed if it contains other files.

    While it is in use, no other demo can start in it. If the location is not writable, it is a temporary folder.
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
    """Mark the folder as the demo's, and lock it while the descriptor is open."""
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
