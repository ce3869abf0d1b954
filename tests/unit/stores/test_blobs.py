"""Damaged blobs, and uploads that never finished."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import pytest

from limpet import open_store
from limpet.errors import BlobDamaged, NotFound
from limpet.events import PLAIN, Payload, inline
from limpet.stores import Store
from limpet.stores.blobs import CHUNK, INLINE, is_name, pack_blob
from limpet.stores.conformance import Harness, World
from limpet.stores.conformance.suite import gave
from limpet.stores.sqlite import SqliteBackend


def test_a_blob_is_named_by_its_content() -> None:
    """The name is the SHA-256 in hex, independent of chunks and compression."""
    data = bytes(3 * CHUNK)
    blob = pack_blob(PLAIN, data)
    assert (blob.id, blob.size, len(blob.chunks)) == (sha256(data).hexdigest(), len(data), 3)


@pytest.mark.parametrize(("length", "inlined"), [(INLINE - 2, True), (INLINE - 1, False)])
def test_values_over_the_inline_limit_become_blobs(length: int, inlined: bool) -> None:
    """The limit is 8,192 bytes of JSON, including quotes."""
    payload, blobs = open_store("memory:").pack("x" * length)
    assert (payload == inline("x" * length), len(blobs)) == (inlined, int(not inlined))


def test_the_inline_limit_can_be_zero() -> None:
    payload, [blob] = open_store("memory:").pack(1, inline=0)
    assert payload == Payload(blob=blob.id, bytes=1)


def test_the_name_of_an_upload_is_not_a_blob_name() -> None:
    assert is_name(pack_blob(PLAIN, b"x").id)
    assert not is_name(f"upload:{pack_blob(PLAIN, b'x').id}")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE limpet_chunks SET data = x'00' WHERE place = 1",
        "UPDATE limpet_chunks SET codec = 'zstd' WHERE place = 1",
        "UPDATE limpet_chunks SET codec = '' WHERE place = 1",
        "DELETE FROM limpet_chunks WHERE place = 2",
        "UPDATE limpet_chunks SET place = place + 10 WHERE place = 0; UPDATE limpet_chunks SET place = place - 1",
    ],
)
async def test_reading_a_damaged_blob_raises(tmp_path: Path, damage: str) -> None:
    """Changed, truncated or reordered chunks raise, at the latest at the end."""
    path = tmp_path / "limpet.db"
    async with Store(SqliteBackend(path)) as store:
        payload = await store.put_blob(b"a" * CHUNK + b"b" * CHUNK + b"c")
        assert isinstance(payload.blob, str)
        execute(path, damage)
        with pytest.raises((BlobDamaged, NotFound)) as error:
            [part async for part in store.read_blob(payload.blob)]
        assert payload.blob in str(error.value)


async def test_an_unfinished_upload_can_be_neither_read_nor_referred_to(tmp_path: Path) -> None:
    """This holds even with the name of the upload."""
    path = tmp_path / "limpet.db"
    async with World(Harness(backend=lambda clock: SqliteBackend(path, clock))) as world:
        with pytest.raises(ConnectionResetError):
            await world.store.put_blob(breaks())
        [(name,)] = execute(path, "SELECT id FROM limpet_blobs")
        assert isinstance(name, str)
        assert name.startswith("upload:")
        owner = await world.own()
        with pytest.raises(NotFound):
            await owner.append(gave(Payload(blob=name)))
        with pytest.raises(NotFound):
            [part async for part in world.store.read_blob(name)]
        world.advance("2h")
        assert await world.store.collect_blobs() == 1
        assert execute(path, "SELECT * FROM limpet_chunks") == []


async def test_a_collected_blob_leaves_no_chunk(tmp_path: Path) -> None:
    path = tmp_path / "limpet.db"
    async with World(Harness(backend=lambda clock: SqliteBackend(path, clock))) as world:
        await world.store.put_blob(bytes(3 * CHUNK))
        assert len(execute(path, "SELECT place FROM limpet_chunks")) == 3
        world.advance("2h")
        await world.store.collect_blobs()
        assert execute(path, "SELECT place FROM limpet_chunks") == []


async def test_shared_content_is_stored_once_in_the_file(tmp_path: Path) -> None:
    """The number of references and of puts does not matter."""
    path = tmp_path / "limpet.db"
    async with World(Harness(backend=lambda clock: SqliteBackend(path, clock))) as world:
        payload, blobs = world.store.pack("x" * 20_000)
        for place in range(10):
            owner = await world.own(f"r{place}")
            await owner.append(gave(payload), gave(payload, 2), blobs=blobs)
        for table, count in (("limpet_blobs", 1), ("limpet_chunks", 1), ("limpet_blob_refs", 10)):
            assert execute(path, f"SELECT count(*) FROM {table}") == [(count,)]


async def breaks() -> AsyncIterator[bytes]:
    """Yield one chunk, and then fail."""
    yield bytes(CHUNK + 1)
    raise ConnectionResetError


def execute(path: Path, statement: str) -> list[Any]:
    """Execute a statement on the file, outside the store."""
    db = apsw.Connection(str(path))
    found = db.execute(statement).fetchall()
    db.close()
    return found
