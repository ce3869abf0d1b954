"""A disk that fails on demand: a library between a process and the kernel, and a small disk that can be filled."""

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers import lack, need

__all__ = ["SYNC", "WRITE", "Disk", "fill", "run_on_faulty_disk", "small_disk"]

ROOT = Path(__file__).parents[2]
WRITE, SYNC = 1, 2


class Disk:
    """What the disk of this process does, in a process that was started by `run_on_faulty_disk`."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)

    def fails(self, call: int, error: int, *, nth: int = 1, times: int = 1, suffix: str = "", rule: int = 0) -> None:
        """Let calls fail from the n-th on: so often, or always if that is below zero."""
        self._library.disk_fails(rule, call, suffix.encode(), error, ctypes.c_long(nth), ctypes.c_long(times))

    def fails_by_chance(self, seed: int, per_mille: int) -> None:
        """Let any call fail, so many in a thousand."""
        self._library.disk_fails_by_chance(seed, per_mille)

    def is_well(self) -> None:
        """Let nothing fail any more."""
        self.fails_by_chance(0, 0)
        for rule in (0, 1):
            self.fails(0, 0, times=0, rule=rule)

    @property
    def failed(self) -> int:
        """How many calls have failed so far."""
        return int(self._library.disk_failed())


def run_on_faulty_disk(folder: Path, module: str, *words: object) -> str:
    """Run a module in a process whose disk can fail; what it printed. It must end well."""
    source, library = Path(__file__).with_name("faulty_disk.c"), folder / "faulty_disk.so"
    if not sys.platform.startswith("linux"):
        pytest.skip("a library that fails for the kernel is written for Linux")
    command = [need("gcc"), "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    env = {**os.environ, "LD_PRELOAD": str(library)}
    command = [sys.executable, "-m", module, str(folder), *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A disk that can be filled, where this process may mount one."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        lack("only root can mount a disk that can be filled")
    folder = Path(tempfile.mkdtemp(prefix="limpet-disk-"))
    folder.chmod(0o755)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False).returncode:
        lack("no disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def fill(folder: Path) -> Path:
    """Write a file until there is no space left."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue
    return path
