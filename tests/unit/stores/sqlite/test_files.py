"""Replaced files: a store whose database or write-ahead log is deleted or replaced stops permanently."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import limpet
from limpet import open_store
from limpet.errors import StoreReplaced
from limpet.stores.conformance.suite import created


def delete(path: Path, other: Path) -> None:
    """Delete the file."""
    path.unlink()


def replace(path: Path, other: Path) -> None:
    """Replace the file with a backup."""
    os.replace(other.with_name(path.name), path)


harmed = pytest.mark.parametrize("harm", [delete, replace])
each_file = pytest.mark.parametrize("name", ["limpet.db", "limpet.db-wal"])


async def make_other(folder: Path) -> Path:
    """Create another store with the same file name and a write-ahead log."""
    other = folder / "other" / "limpet.db"
    other.parent.mkdir()
    async with open_store(f"sqlite:///{other}") as store:
        await store.create("other", created(), actor="test")
    other.with_name("limpet.db-wal").touch()
    return other


@harmed
@each_file
async def test_no_write_is_acknowledged_after_the_file_was_replaced(
    tmp_path: Path, harm: Callable[[Path, Path], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current batch and all later calls raise, and reopening does not help."""
    monkeypatch.setattr("limpet.stores.sqlite.file_identity.EVERY", 0.0)
    other = await make_other(tmp_path)
    async with open_store(f"sqlite:///{tmp_path}/limpet.db") as store:
        await store.create("r0", created(), actor="test")
        harm(tmp_path / name, other)
        for _ in range(2):
            creating = [store.create(f"r{place}", created(), actor="test") for place in range(1, 20)]
            done = await asyncio.gather(*creating, return_exceptions=True)
            assert {type(each) for each in done} == {StoreReplaced}
        for ask in (store.get("r0"), store.runs(), store.reopen()):
            with pytest.raises(StoreReplaced):
                await ask
        assert isinstance(store.failure, StoreReplaced)


async def test_a_restored_backup_is_not_modified(tmp_path: Path) -> None:
    """After a restore under a running store, the next process finds the backup and nothing else."""
    other = await make_other(tmp_path)
    async with open_store(f"sqlite:///{tmp_path}/limpet.db") as store:
        await store.create("r0", created(), actor="test")
        for name in ("limpet.db-wal", "limpet.db-shm"):
            (tmp_path / name).unlink()
        replace(tmp_path / "limpet.db", other)
        with pytest.raises(StoreReplaced):
            await store.create("r1", created(), actor="test")
    async with open_store(f"sqlite:///{tmp_path}/limpet.db") as store:
        assert [row.id for row in (await store.runs()).rows] == ["other"]
        await store.create("r1", created(), actor="test")
        await store.reopen()


@limpet.agent()
async def waits(run: limpet.Run, _: int) -> int:
    """Wait for a signal that never arrives."""
    await run.receive("word", int)
    return 1


async def test_a_replaced_file_is_reported_to_waiting_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result can never arrive."""
    monkeypatch.setattr("limpet.stores.sqlite.file_identity.EVERY", 0.0)
    async with limpet.open(f"sqlite:///{tmp_path}/limpet.db", agents=[waits]) as app:
        handle = await app.start(waits, 1)
        waiting = asyncio.ensure_future(handle.result())
        (tmp_path / "limpet.db").unlink()
        with pytest.raises(StoreReplaced):
            await waiting
