"""The file under us: a store whose database or log is deleted or replaced stops for good, and says so."""

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
    """Somebody cleans up."""
    path.unlink()


def replace(path: Path, other: Path) -> None:
    """Somebody puts a backup in its place."""
    os.replace(other.with_name(path.name), path)


harmed = pytest.mark.parametrize("harm", [delete, replace])
each_file = pytest.mark.parametrize("name", ["limpet.db", "limpet.db-wal"])


async def make_other(folder: Path) -> Path:
    """Another store of the same name, with a log."""
    other = folder / "other" / "limpet.db"
    other.parent.mkdir()
    async with open_store(f"sqlite:///{other}") as store:
        await store.create("other", created(), actor="test")
    other.with_name("limpet.db-wal").touch()
    return other


@harmed
@each_file
async def test_nothing_is_acknowledged_that_is_in_no_file(
    tmp_path: Path, harm: Callable[[Path, Path], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch under way and all after it raise, whoever writes or reads; nothing heals it."""
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


async def test_what_was_put_in_its_place_is_left_alone(tmp_path: Path) -> None:
    """A backup is restored under a running store: who opens it then finds the backup, and nothing else."""
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
    """Waits for ever."""
    await run.receive("word", int)
    return 1


async def test_whoever_waits_for_a_run_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever for a result that cannot come."""
    monkeypatch.setattr("limpet.stores.sqlite.file_identity.EVERY", 0.0)
    async with limpet.open(f"sqlite:///{tmp_path}/limpet.db", agents=[waits]) as app:
        handle = await app.start(waits, 1)
        waiting = asyncio.ensure_future(handle.result())
        (tmp_path / "limpet.db").unlink()
        with pytest.raises(StoreReplaced):
            await waiting
