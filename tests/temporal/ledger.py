"""A file outside Limpet in which tools record their effects, and gates at which they wait."""

import os
from collections import Counter
from pathlib import Path

from limpet.clock import SystemClock

__all__ = ["FOLDER", "Ledger", "is_open", "pass_gate", "record"]

FOLDER = "TEMPORAL_TESTS_FOLDER"
GLANCE = 10_000


def record(what: str) -> None:
    """Append a line in one write."""
    with (Path(os.environ[FOLDER]) / "ledger").open("ab", buffering=0) as file:
        file.write(f"{what}\n".encode())


def is_open(gate: str) -> bool:
    """Return whether a test has opened a gate."""
    return (Path(os.environ[FOLDER]) / f"{gate}.open").exists()


async def pass_gate(gate: str) -> None:
    """Wait until a test opens a gate."""
    while not is_open(gate):
        await SystemClock().sleep(GLANCE)


class Ledger:
    """The effects of a test, and its gates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def lines(self) -> list[str]:
        """Return all effects, in their order."""
        path = self.folder / "ledger"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def count(self, prefix: str = "") -> Counter[str]:
        """Return how often each effect happened."""
        return Counter(line for line in self.lines() if line.startswith(prefix))

    def open_gate(self, gate: str) -> None:
        """Let tools pass a gate."""
        (self.folder / f"{gate}.open").touch()
