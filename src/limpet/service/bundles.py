"""Runs in files: written here, read by people, taken in anywhere."""

from pathlib import Path

from limpet.stores import RunRow, Store

__all__ = ["export_run", "load_run"]


async def export_run(store: Store, run: str, path: Path) -> None:
    """Write a run to a file."""
    raise NotImplementedError


async def load_run(store: Store, path: Path) -> RunRow:
    """Take a run from a file."""
    raise NotImplementedError
