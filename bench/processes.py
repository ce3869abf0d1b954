"""Processes of the measured systems: ask one for the figures of a workload, or measure a takeover between two."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["LIMPET", "PEERS", "Failed", "Program", "figures_in", "takeover"]

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".bench"
# Seconds that one measurement may take.
LIMIT = 420


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
        try:
            done = subprocess.run(
                self._command(workload, arguments), **_OPTIONS, stdin=subprocess.DEVNULL, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired as late:
            raise Failed(f"took longer than {LIMIT} s") from late
        if done.returncode:
            raise Failed(_last_line(done.stderr) or f"exit code {done.returncode}")
        return figures_in(done.stdout)

    def start(self, workload: str, **arguments: Any) -> "subprocess.Popen[str]":
        """Start a process that runs until it is killed."""
        return subprocess.Popen(self._command(workload, arguments), **_OPTIONS, stdin=subprocess.DEVNULL)

    def _command(self, workload: str, arguments: Mapping[str, Any]) -> list[str]:
        return [str(self.python), "-m", self.module, workload, json.dumps(arguments)]


_OPTIONS: dict[str, Any] = {
    "cwd": ROOT,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "text": True,
    "env": {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "LANGSMITH_TRACING": "false"},
}

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
            server = _first_line(_child(children, program, "serve", url=url))
        first = _child(children, program, "stand_by", url=server, lease=lease, start=True)
        _steps_until(first, 5)
        second = _child(children, program, "stand_by", url=server, lease=lease, start=False)
        _line(second, "ready")
        _steps_until(first, 10)
        killed = time.monotonic()
        first.kill()
        return {"takeover": _step_at(second) - killed, "lease": lease}


def _child(children: ExitStack, program: Program, workload: str, **arguments: Any) -> "subprocess.Popen[str]":
    child = program.start(workload, **arguments)

    def end() -> None:
        child.terminate() if workload == "serve" else child.kill()
        child.communicate()

    children.callback(end)
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
