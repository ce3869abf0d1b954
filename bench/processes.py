"""Processes of the measured systems: ask one for the figures of a workload, or measure a takeover between two."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

__all__ = ["LIMPET", "PEERS", "Failed", "Program", "figures_in", "takeover"]

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".bench"
# Seconds that one measurement may take, and a takeover.
LIMIT, LATE = 420, 90


class Failed(Exception):
    """A measurement that gave no figures, with the last line of its error."""


class Program(NamedTuple):
    """A Python module that measures one system, and the Python that has this system installed."""

    name: str
    module: str
    python: Path

    @property
    def is_installed(self) -> bool:
        return self.python.exists()

    def measure(self, workload: str, **arguments: Any) -> dict[str, Any]:
        """Run a workload in a new process, and return its figures. Raises Failed."""
        with self.started(workload, **arguments) as child:
            try:
                output, errors = child.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired as late:
                raise Failed(f"took longer than {LIMIT} s") from late
        if child.returncode:
            raise Failed(_last_line(errors) or f"exit code {child.returncode}")
        return figures_in(output)

    @contextmanager
    def started(self, workload: str, **arguments: Any) -> "Iterator[subprocess.Popen[str]]":
        """Start a process, and kill it in the end with all its children."""
        child = subprocess.Popen(
            [str(self.python), "-m", self.module, workload, json.dumps(arguments)],
            cwd=ROOT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", "LANGSMITH_TRACING": "false"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield child
        finally:
            _kill(child)
            child.communicate()


def _kill(child: "subprocess.Popen[str]") -> None:
    """Kill a process and its children."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


LIMPET = Program("Limpet", "bench.workloads", Path(sys.executable))
PEERS = {
    name: Program(name, f"bench.peers.{name.lower()}", ENVIRONMENTS / name.lower() / "bin" / "python")
    for name in ("LangGraph", "DBOS", "Absurd", "Temporal")
}


def figures_in(output: str) -> dict[str, Any]:
    """Return the figures in the output of a program: its last line. Raises Failed if that is no JSON object."""
    line = _last_line(output)
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Failed(f"no figures in the output: {line[:200]!r}")
    return found


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def takeover(program: Program, url: str, lease: float) -> dict[str, float]:
    """Kill a worker in the middle of a run, and return the seconds until another one runs a step of it.

    The second worker is there before the kill.
    """
    with ExitStack() as children:
        server = url
        if program.name == "Temporal":
            server = _first_line(_started(children, program, "serve", url=url))
        first = _started(children, program, "stand_by", url=server, lease=lease, start=True)
        _steps_until(first, 5)
        second = _started(children, program, "stand_by", url=server, lease=lease, start=False)
        _line(second, "ready")
        _steps_until(first, 10)
        killed = time.monotonic()
        _kill(first)
        return {"takeover": _step_at(second) - killed, "lease": lease}


def _started(children: ExitStack, program: Program, workload: str, **arguments: Any) -> "subprocess.Popen[str]":
    """Start a process that is killed when it is late, which ends every wait for its output."""
    child = children.enter_context(program.started(workload, **arguments))
    late = Timer(LATE, _kill, [child])
    children.callback(late.cancel)
    late.start()
    return child


def _steps_until(child: "subprocess.Popen[str]", count: int) -> None:
    """Wait until a worker has reported some steps."""
    for _ in range(count):
        _step_at(child)


def _step_at(child: "subprocess.Popen[str]") -> float:
    """Return when a worker ran its next step."""
    while not (line := _first_line(child)).startswith("{"):
        pass
    at: float = json.loads(line)["at"]
    return at


def _line(child: "subprocess.Popen[str]", expected: str) -> None:
    while _first_line(child) != expected:
        pass


def _first_line(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        assert child.stderr is not None
        raise Failed(_last_line(child.stderr.read()) or "a process ended")
    return line.strip()
