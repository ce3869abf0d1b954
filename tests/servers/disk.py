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
    """Control of the disk of a process that `run_on_faulty_disk` has started."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)

    def fails(self, call: int, error: int, *, nth: int = 1, times: int = 1, suffix: str = "", rule: int = 0) -> None:
        """Let calls fail from the n-th on, `times` times, or always if that is negative."""
        self._library.disk_fails(rule, call, suffix.encode(), error, ctypes.c_long(nth), ctypes.c_long(times))

    def fails_by_chance(self, seed: int, per_mille: int) -> None:
        """Let each call fail with a probability in thousandths."""
        self._library.disk_fails_by_chance(seed, per_mille)

    def is_well(self) -> None:
        """Stop all failures."""
        self.fails_by_chance(0, 0)
        for rule in (0, 1):
            self.fails(0, 0, times=0, rule=rule)

    @property
    def failed(self) -> int:
        """Number of calls that have failed so far."""
        return int(self._library.disk_failed())


def run_on_faulty_disk(folder: Path, module: str, *words: object) -> str:
    """Run a module in a process whose disk can fail, and return its output. Fails if the process does."""
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
    """Mount a small disk, if this process may do that."""
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
    """Write a file until no space is left."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue
    return path
