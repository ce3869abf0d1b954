"""Disk failures: after a failed write, the store reopens its file, verifies it and continues.

The failures are the kernel's own: the descriptor of the write-ahead log is replaced by /dev/full, on which every write
fails with ENOSPC, or by /dev/null, which cannot be synced.
"""

import asyncio
import os
from pathlib import Path

import apsw
import pytest

from limpet import open_store
from limpet.errors import StoreUnavailable
from limpet.events import inline
from limpet.journal import verify_run
from limpet.stores import Appended, Store
from limpet.stores.conformance import Harness, World
from limpet.stores.conformance.suite import created, started
from limpet.stores.sqlite import SqliteBackend

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's /proc")


def exchange(path: Path, device: str) -> None:
    """Replace every descriptor of this file in this process by a device."""
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except FileNotFoundError:
            continue
        if target == str(path):
            broken = os.open(device, os.O_RDWR)
            os.dup2(broken, int(entry))
            os.close(broken)


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
async def test_the_store_recovers_from_a_disk_failure(tmp_path: Path, device: str) -> None:
    """The fsync fails, or no space is left: the store reopens its file, and the append is written once."""
    path = tmp_path / "limpet.db"
    async with World(Harness(backend=lambda clock: SqliteBackend(path, clock))) as world:
        owner = await world.own()
        await owner.append(started(1))
        exchange(path.with_name("limpet.db-wal"), device)
        leg = owner.extend(started(2))
        assert isinstance(await owner.send(leg), Appended)
        assert isinstance(await owner.send(leg), Appended)
        assert await verify_run(world.store, "r1") == owner.head
        assert world.store.failure is None


async def test_every_caller_of_a_failed_batch_gets_its_result(tmp_path: Path) -> None:
    """Two hundred callers share the batch; each learns that its run is new."""
    path = tmp_path / "limpet.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.create("r0", created(), actor="test")
        exchange(path.with_name("limpet.db-wal"), "/dev/full")
        creating = (store.create(f"r{place}", created(), actor="test") for place in range(1, 201))
        assert all(fresh for _, fresh in await asyncio.gather(*creating))
        assert await store.count() == 201


async def test_reopening_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """A row that does not match its log is found before the store accepts work again."""
    path = tmp_path / "limpet.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.create("r1", created(), actor="test")
        await store.reopen()
        db = apsw.Connection(str(path))
        db.execute("UPDATE limpet_streams SET hash = zeroblob(32)")
        db.close()
        with pytest.raises(StoreUnavailable, match="r1 does not match its log"):
            await store.reopen()


async def test_damaged_pages_are_refused(tmp_path: Path) -> None:
    """The changed bytes are found when the file is reopened."""
    path = tmp_path / "limpet.db"
    async with open_store(f"sqlite:///{path}") as store:
        for place in range(50):
            await store.create(f"r{place}", created(input=inline("x" * 500)), actor="test")
    data = bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 12] = os.urandom(4096 * 9)
    path.write_bytes(data)
    async with Store(SqliteBackend(path)) as store:
        with pytest.raises(StoreUnavailable):
            await store.reopen()


async def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    """No folder is created."""
    with pytest.raises(StoreUnavailable, match="does not exist"):
        await open_store(f"sqlite:///{tmp_path / 'nowhere' / 'limpet.db'}").open()


async def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    """The file stays unchanged."""
    path = tmp_path / "limpet.db"
    path.write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(StoreUnavailable, match="not a database"):
        await open_store(f"sqlite:///{path}").open()
    assert path.read_bytes().startswith(b"Dear diary")


async def test_a_closed_store_refuses_work(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'limpet.db'}").open()
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.create("r1", created(), actor="test")


def test_syncing_dev_null_fails_on_this_machine() -> None:
    """The test above depends on it."""
    file = os.open("/dev/null", os.O_RDWR)
    with pytest.raises(OSError, match="Invalid argument"):
        os.fdatasync(file)
    os.close(file)
