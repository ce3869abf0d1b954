"""Encryption at rest: no readable data on the disk, moved data cannot be decrypted, and keys can be rotated."""

import asyncio
import base64
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import shake_256
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec import Raw
from msgspec.structs import replace

from limpet import open_store
from limpet.errors import BlobDamaged, InvalidAppend, Tampered, Unsupported, WrongKeys
from limpet.events import Fact, Failure, Packed, Payload, StatePatch, canonical, inline
from limpet.events import bodies as b
from limpet.events.codec import PLAIN
from limpet.stores import Create, RunFilter, Store
from limpet.stores.blobs import CHUNK, pack_blob
from limpet.stores.cipher import CIPHER, NONCE_BYTES, Cipher, MasterKeys, rotated
from limpet.stores.conformance import Harness, World
from limpet.stores.conformance.suite import (
    Owner,
    answered,
    asked,
    completed,
    contract,
    created,
    gave,
    signalled,
    started,
)
from limpet.stores.memory import MemoryBackend
from limpet.stores.rows import KeyRow
from limpet.stores.sqlite import SqliteBackend

ONE, TWO, THREE = (bytes([number]) * 32 for number in (1, 2, 3))
TEXT = b"the same words again " * 100
MARKER = "xyzzy-plugh"


def masters(*keys: bytes) -> MasterKeys:
    """Return these master keys; the first one wraps."""
    return MasterKeys(lambda: keys)


def cipher(rows: Sequence[KeyRow] | None = None, **more: Any) -> Cipher:
    """Return a codec with new keys, or with these."""
    found = rotated((), masters(ONE), 1) if rows is None else rows
    return Cipher(masters(ONE), lambda: found, **more)


def sqlite(path: Path, keys: MasterKeys | None = None, *, compress: bool = False) -> Store:
    """Return a store in a file."""
    return Store(SqliteBackend(path), keys=keys, compress=compress)


def encrypted(path: Path) -> World:
    """Return a world with an encrypted store."""
    return World(Harness(backend=lambda clock: SqliteBackend(path, clock), keys=masters(ONE)))


def change(path: Path, *statements: str) -> None:
    """Execute statements on the file, outside the store."""
    db = apsw.Connection(str(path))
    for statement in statements:
        db.execute(statement)
    db.close()


# The cipher


def test_packed_data_is_unpacked_unchanged() -> None:
    """The packed data is unreadable, and has the id of its key."""
    codec = cipher()
    packed = codec.pack(TEXT, "event:r1:1")
    assert packed.codec == CIPHER
    assert packed.key_id
    assert b"same words" not in packed.data
    assert codec.unpack(packed, "event:r1:1") == TEXT
    assert codec.is_private


def test_equal_bytes_are_encrypted_differently() -> None:
    """Each value has its own nonce."""
    codec = cipher()
    packed = [codec.pack(TEXT, "event:r1:1").data for _ in range(100)]
    assert len(set(packed)) == len({data[:NONCE_BYTES] for data in packed}) == 100


@pytest.mark.parametrize("about", ["event:r1:2", "event:r2:1", "snapshot:r1:1", "event:r1:1 ", ""])
def test_moved_data_cannot_be_decrypted(about: str) -> None:
    """The data is bound to its place."""
    codec = cipher()
    with pytest.raises(ValueError, match="from another place"):
        codec.unpack(codec.pack(TEXT, "event:r1:1"), about)


@pytest.mark.parametrize("place", [0, NONCE_BYTES, -1])
def test_one_changed_bit_is_found(place: int) -> None:
    """This applies to the nonce, the text and the tag."""
    codec = cipher()
    packed = codec.pack(TEXT, "event:r1:1")
    data = bytearray(packed.data)
    data[place] ^= 1
    with pytest.raises(ValueError, match="changed"):
        codec.unpack(packed._replace(data=bytes(data)), "event:r1:1")


@pytest.mark.parametrize("length", [0, 5, NONCE_BYTES, NONCE_BYTES + 3])
def test_truncated_data_is_refused(length: int) -> None:
    codec = cipher()
    packed = codec.pack(TEXT, "x")
    with pytest.raises(ValueError, match="cannot be decrypted"):
        codec.unpack(packed._replace(data=packed.data[:length]), "x")


def test_data_is_compressed_before_encryption_and_bound_to_the_codec() -> None:
    """A reader cannot be made to decompress data that was not compressed."""
    codec = cipher()
    packed = codec.pack(TEXT, "x", deflate=True)
    assert packed.codec == f"z+{CIPHER}"
    assert len(packed.data) < len(TEXT) // 4
    assert codec.unpack(packed, "x") == TEXT
    with pytest.raises(ValueError, match="cannot be decrypted"):
        codec.unpack(packed._replace(codec=CIPHER), "x")
    assert cipher(compress=True).pack(TEXT, "x").codec == f"z+{CIPHER}"


@pytest.mark.parametrize("packed", [Packed("", "", TEXT), Packed("z", "", TEXT), Packed("", "k1", TEXT)])
def test_plain_data_in_an_encrypted_store_is_refused(packed: Packed) -> None:
    """Plain data in an encrypted store was not written by Limpet."""
    with pytest.raises(ValueError, match="not encrypted"):
        cipher().unpack(packed, "x")


def test_a_missing_key_is_named() -> None:
    """The keys are read again first, since another process may have added one."""
    codec, other = cipher(), cipher()
    packed = other.pack(TEXT, "x")
    with pytest.raises(WrongKeys) as error:
        codec.unpack(packed, "x")
    assert repr(packed.key_id) in error.value.reason


def test_hidden_text_is_revealed_unchanged_and_differs_each_time() -> None:
    """Equal goals look different, in one run or in two."""
    codec = cipher()
    hidden = {codec.hide("refund", "goal:r1") for _ in range(20)}
    assert len(hidden) == 20
    assert {codec.reveal(each, "goal:r1") for each in hidden} == {"refund"}
    assert not any("refund" in each for each in hidden)
    with pytest.raises(ValueError, match="from another place"):
        codec.reveal(hidden.pop(), "goal:r2")


def test_findable_text_always_has_the_same_hidden_form() -> None:
    """This holds across stores with the same keys and after a rotation, but not for another field."""
    rows = rotated((), masters(ONE), 1)
    later = rotated(rows, masters(ONE), 2)
    word = cipher(rows).hide("north", "label:team", findable=True)
    assert cipher(later).hide("north", "label:team", findable=True) == word
    assert cipher(rows).hide("north", "label:area", findable=True) != word
    assert cipher(rows).hide("south", "label:team", findable=True) != word
    assert cipher(later).reveal(word, "label:team") == "north"


@pytest.mark.parametrize("hidden", ["refund", "", "."])
def test_text_that_was_not_hidden_is_refused(hidden: str) -> None:
    """Plain text in an encrypted store was not written by Limpet."""
    with pytest.raises((ValueError, WrongKeys)):
        cipher().reveal(hidden, "goal:r1")


def test_names_of_blobs_do_not_reveal_their_content() -> None:
    """The name is keyed, unlike a plain SHA-256, and stays the same after a rotation."""
    rows = rotated((), masters(ONE), 1)
    one, two = cipher(rows), cipher(rotated(rows, masters(ONE), 2))
    name = pack_blob(one, TEXT).id
    assert name == pack_blob(two, TEXT).id
    assert len({name, pack_blob(PLAIN, TEXT).id, pack_blob(cipher(), TEXT).id}) == 3


# Sources of master keys


@pytest.mark.parametrize("write", [bytes.hex, lambda key: base64.b64encode(key).decode()], ids=["hex", "base64"])
def test_master_keys_are_hex_or_base64(write: Callable[[bytes], str]) -> None:
    """Several keys are separated by commas or white space; the first one wraps, all unwrap."""
    for separator in (",", " ", "\n", ", \n"):
        keys = MasterKeys.from_text(separator.join(write(key) for key in (ONE, TWO)))
        id, current = keys.current()
        assert current == ONE
        assert keys.find(id) == ONE
        assert keys.find(masters(TWO).current()[0]) == TWO
        assert keys.find("missing") is None


def test_url_safe_base64_is_accepted() -> None:
    key = bytes(range(224, 256))
    assert MasterKeys.from_text(base64.urlsafe_b64encode(key).decode()).current()[1] == key
    assert MasterKeys.from_text(base64.b64encode(key).decode()).current()[1] == key


def test_master_keys_come_from_a_file(tmp_path: Path) -> None:
    """The file is read whenever keys are needed, so that it can be changed while a process runs."""
    file = tmp_path / "keys"
    file.write_text(f"{ONE.hex()}\n")
    keys = MasterKeys.from_file(file)
    assert keys.current()[1] == ONE
    file.write_text(f"{TWO.hex()}\n{ONE.hex()}\n")
    assert keys.current()[1] == TWO
    file.unlink()
    with pytest.raises(WrongKeys, match="cannot be read"):
        keys.current()


def test_master_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is read whenever keys are needed."""
    keys = MasterKeys.from_env("SOME_KEYS")
    with pytest.raises(WrongKeys, match="no master key"):
        keys.current()
    monkeypatch.setenv("SOME_KEYS", TWO.hex())
    assert keys.current()[1] == TWO


def test_master_keys_come_from_a_callable() -> None:
    """The callable returns one key or several."""
    assert MasterKeys(lambda: ONE).current()[1] == ONE
    assert MasterKeys(lambda: [TWO, ONE]).current()[1] == TWO
    with pytest.raises(WrongKeys, match="no master key"):
        MasterKeys(list).current()


@pytest.mark.parametrize("text", ["", "x", "ab" * 31, base64.b64encode(bytes(31)).decode(), "é" * 64, "zz" * 32])
def test_an_invalid_master_key_is_refused(text: str) -> None:
    """The key is too short, too long or malformed; the error does not show it."""
    with pytest.raises(WrongKeys) as error:
        MasterKeys.from_text(text).current()
    assert not text or text not in str(error.value).split()


# Opening


async def test_an_encrypted_store_does_not_open_without_keys(tmp_path: Path) -> None:
    """Another master key is refused, too."""
    path = tmp_path / "limpet.db"
    async with sqlite(path, masters(ONE)) as store:
        await store.create("r1", created(), actor="test")
    with pytest.raises(WrongKeys, match="no keys were given"):
        await sqlite(path).open()
    with pytest.raises(WrongKeys, match="which was not given"):
        await sqlite(path, masters(TWO)).open()
    async with sqlite(path, masters(TWO, ONE)) as store:
        assert (await store.get("r1")).id == "r1"


async def test_a_plain_store_does_not_open_with_keys(tmp_path: Path) -> None:
    """Encryption is decided when a store is created, even if it is empty, since other processes may write to it."""
    path = tmp_path / "limpet.db"
    async with sqlite(path) as store:
        with pytest.raises(WrongKeys, match="without encryption"):
            await sqlite(path, masters(ONE)).open()
        await store.create("r1", created(), actor="test")
    with pytest.raises(WrongKeys, match="without encryption"):
        await sqlite(path, masters(ONE)).open()
    async with sqlite(path) as store:
        assert await store.count() == 1


async def test_a_store_without_a_record_of_encryption_is_plain(tmp_path: Path) -> None:
    """An older file does not record it, but has runs."""
    path = tmp_path / "limpet.db"
    async with sqlite(path) as store:
        await store.create("r1", created(), actor="test")
    apsw.Connection(str(path)).execute("DELETE FROM limpet_meta WHERE name = 'encrypted'")
    with pytest.raises(WrongKeys, match="without encryption"):
        await sqlite(path, masters(ONE)).open()


def test_an_empty_key_variable_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty variable does not create an unencrypted store."""
    monkeypatch.setenv("LIMPET_KEYS", "")
    with pytest.raises(WrongKeys, match="no master key"):
        asyncio.run(open_store(f"sqlite:///{tmp_path / 'limpet.db'}").open())


async def test_a_failing_key_source_is_reported(tmp_path: Path) -> None:
    """The error of the source is in the WrongKeys error."""

    def fails() -> bytes:
        raise ConnectionError("no vault today")

    with pytest.raises(WrongKeys, match="no vault today"):
        await sqlite(tmp_path / "limpet.db", MasterKeys(fails)).open()


async def test_a_damaged_key_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "limpet.db"
    async with sqlite(path, masters(ONE)):
        pass
    change(path, "UPDATE limpet_keys SET wrapped = zeroblob(60) WHERE purpose = 'data'")
    with pytest.raises(WrongKeys, match="is damaged"):
        await sqlite(path, masters(ONE)).open()


async def test_swapped_keys_cannot_be_unwrapped(tmp_path: Path) -> None:
    """A wrapped key is bound to its name and purpose."""
    path = tmp_path / "limpet.db"
    async with sqlite(path, masters(ONE)):
        pass
    swap(path, "limpet_keys", "wrapped", "purpose = 'data'", "purpose = 'index'")
    with pytest.raises(WrongKeys, match="is damaged"):
        await sqlite(path, masters(ONE)).open()


async def test_stores_that_open_a_new_file_concurrently_share_its_keys(tmp_path: Path) -> None:
    """Of several first keys one set is stored, and every store can read the others' runs."""
    stores = [sqlite(tmp_path / "limpet.db", masters(ONE)) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    for place, store in enumerate(stores):
        await store.create(f"r{place}", created(labels={"team": "north"}), actor="test")
    for store in stores:
        assert await store.count(RunFilter(labels={"team": "north"})) == 5
        assert [store.decode(event) for event in await store.read("r3")] == [created(labels={"team": "north"})]
        await store.close()


# Moved, changed and foreign data


def swap(path: Path, table: str, column: str, one: str, two: str) -> None:
    """Swap a column of two rows."""
    db = apsw.Connection(str(path))
    [(first,)] = db.execute(f"SELECT {column} FROM {table} WHERE {one}").fetchall()
    [(second,)] = db.execute(f"SELECT {column} FROM {table} WHERE {two}").fetchall()
    db.execute(f"UPDATE {table} SET {column} = ? WHERE {one}", (second,))
    db.execute(f"UPDATE {table} SET {column} = ? WHERE {two}", (first,))
    db.close()


async def test_swapped_events_cannot_be_decrypted(tmp_path: Path) -> None:
    """The events are in one log, or in two."""
    path = tmp_path / "limpet.db"
    async with encrypted(path) as world:
        for run in ("r1", "r2"):
            owner = await world.own(run)
            await owner.append(completed(1, output="one"), completed(2, output="two"))
        mine = "run = 1 AND seq = 3"
        for other in ("run = 1 AND seq = 4", "run = 2 AND seq = 3"):
            swap(path, "limpet_events", "body", mine, other)
            with pytest.raises(Tampered, match="from another place"):
                await world.bodies("r1")
            swap(path, "limpet_events", "body", mine, other)
            assert (await world.bodies("r1"))[2] == completed(1, output="one")


async def test_swapped_chunks_cannot_be_decrypted(tmp_path: Path) -> None:
    """The chunks are of one blob, or of two."""
    path = tmp_path / "limpet.db"
    async with sqlite(path, masters(ONE)) as store:
        one = await store.put_blob(b"a" * CHUNK + b"b" * CHUNK)
        two = await store.put_blob(b"c" * 10_000)
        assert isinstance(one.blob, str)
        for places in (("blob = 1 AND place = 0", "blob = 1 AND place = 1"), ("blob = 1 AND place = 0", "blob = 2")):
            swap(path, "limpet_chunks", "data", *places)
            with pytest.raises(BlobDamaged, match="from another place"):
                [part async for part in store.read_blob(one.blob)]
            swap(path, "limpet_chunks", "data", *places)
        assert await content(store, one) == b"a" * CHUNK + b"b" * CHUNK
        assert await content(store, two) == b"c" * 10_000


async def test_swapped_goals_cannot_be_decrypted(tmp_path: Path) -> None:
    """The text of a row is bound to its run."""
    path = tmp_path / "limpet.db"
    async with encrypted(path) as world:
        for run in ("r1", "r2"):
            await world.create(run, initial=StatePatch(goal=f"the goal of {run}"))
        swap(path, "limpet_streams", "goal", "id = 'r1'", "id = 'r2'")
        with pytest.raises(Tampered, match="the row cannot be read"):
            await world.store.get("r1")
        await world.store.rebuild("r1")
        assert (await world.store.get("r1")).goal == "the goal of r1"


async def test_an_undecryptable_row_does_not_block_claims(tmp_path: Path) -> None:
    """A claim skips it, reading it raises, and a rebuild makes it claimable again."""
    path = tmp_path / "limpet.db"
    async with encrypted(path) as world:
        for run in ("r1", "r2"):
            await world.create(run, initial=StatePatch(goal="x"))
        change(path, "UPDATE limpet_streams SET goal = 'readable' WHERE id = 'r1'")
        await world.worker()
        assert [claimed.row.id for claimed in await world.claim()] == ["r2"]
        with pytest.raises(Tampered):
            await world.store.get("r1")
        await world.store.rebuild("r1")
        assert [claimed.row.id for claimed in await world.claim()] == ["r1"]


async def test_a_swapped_snapshot_is_ignored(tmp_path: Path) -> None:
    """A snapshot is a cache: the log is folded instead."""
    path = tmp_path / "limpet.db"
    async with encrypted(path) as world:
        for run in ("r1", "r2"):
            owner = await world.own(run)
            await world.store.save_snapshot(run, owner.head, run.encode())
        swap(path, "limpet_snapshots", "data", "run = 1", "run = 2")
        assert await world.store.snapshot("r1") is None


async def test_a_swapped_contract_is_refused(tmp_path: Path) -> None:
    """The contracts differ in agent or version, or have names that are equal when joined."""
    rows = [contract("a"), contract("b"), contract("a", "2"), contract("a:2", "1"), contract("a", "2:1")]
    for column in ("contract", "hash"):
        path = tmp_path / f"{column}.db"
        async with encrypted(path) as world:
            await world.store.save_contracts(rows)
            for one, two in ((1, 2), (1, 3), (4, 5)):
                swap(path, "limpet_contracts", column, f"rowid = {one}", f"rowid = {two}")
                with pytest.raises(Tampered, match="contract"):
                    await world.store.contracts("a")
                swap(path, "limpet_contracts", column, f"rowid = {one}", f"rowid = {two}")
            assert len(await world.store.contracts()) == 5


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE limpet_contracts SET codec = '', key_id = '', contract = '{}'",
        "UPDATE limpet_contracts SET hash = 'readable'",
        "UPDATE limpet_events SET codec = 'json', key_id = '', body = '{}' WHERE seq = 1",
        "UPDATE limpet_streams SET goal = 'readable'",
        """UPDATE limpet_streams SET labels = '{"team":"north"}'""",
    ],
)
async def test_readable_rows_in_an_encrypted_store_are_refused(tmp_path: Path, statement: str) -> None:
    """No text can be added without the key."""
    path = tmp_path / "limpet.db"
    async with encrypted(path) as world:
        await world.create()
        await world.store.save_contracts([contract()])
        change(path, statement.replace("'{}'", "x'7b7d'"))
        with pytest.raises(Tampered):
            await asyncio.gather(world.bodies(), world.store.get("r1"), world.store.contracts())


async def test_a_readable_chunk_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "limpet.db"
    async with sqlite(path, masters(ONE)) as store:
        payload = await store.put_blob(TEXT)
        change(path, "UPDATE limpet_chunks SET codec = '', key_id = '', data = x'00'")
        with pytest.raises(BlobDamaged, match="not encrypted"):
            await content(store, payload)


async def test_events_sealed_by_another_codec_are_refused(tmp_path: Path) -> None:
    """An encrypted store refuses plain events, and a plain one encrypted events, in the log and as late results."""
    async with encrypted(tmp_path / "one.db") as private, _plain(tmp_path / "two.db") as plain:
        for world, other in ((private, plain), (plain, private)):
            owner = await world.own()
            codec, world.store.codec = world.store.codec, other.store.codec
            leg = owner.extend(started())
            world.store.codec = codec
            with pytest.raises(InvalidAppend, match="codec"):
                await world.store.append(leg)
            with pytest.raises(InvalidAppend, match="codec"):
                await world.store.keep_late(leg.events)
            assert len(await world.log()) == 2
            assert await world.store.late("r1") == []


# Rotation


async def test_after_a_rotation_old_data_is_readable_and_new_data_uses_the_new_key(tmp_path: Path) -> None:
    """Stored data is not written again."""
    async with encrypted(tmp_path / "limpet.db") as world:
        owner = await world.own(labels={"team": "north"}, initial=StatePatch(goal="old goal"))
        payload, blobs = world.store.pack("x" * 20_000)
        await owner.append(gave(payload), blobs=blobs)
        before = await world.log()
        await world.store.rotate_keys()
        await owner.append(completed(2, output="new"))
        log = await world.log()
        assert log[:-1] == before
        assert log[-1].key_id not in {event.key_id for event in before}
        assert (await world.bodies())[-1] == completed(2, output="new")
        assert (await world.store.get("r1")).goal == "old goal"
        assert await world.store.count(RunFilter(labels={"team": "north"})) == 1
        assert await world.store.unpack(payload) == "x" * 20_000
        assert world.store.pack("x" * 20_000)[0] == payload
        assert await world.store.check_rows("r1") == []


async def test_a_master_key_can_be_replaced_and_dropped(tmp_path: Path) -> None:
    """Open with the new key first and rotate; then the old key is no longer needed."""
    path = tmp_path / "limpet.db"
    async with sqlite(path, masters(ONE)) as store:
        await store.create("r1", created(input=inline("old")), actor="test")
    async with sqlite(path, masters(TWO, ONE)) as store:
        await store.rotate_keys()
        await store.create("r2", created(input=inline("new")), actor="test")
    async with sqlite(path, masters(TWO)) as store:
        found = [store.decode(event) for run in ("r1", "r2") for event in await store.read(run)]
        assert found == [created(input=inline("old")), created(input=inline("new"))]
    with pytest.raises(WrongKeys):
        await sqlite(path, masters(ONE)).open()


async def test_concurrent_rotations_lose_no_key(tmp_path: Path) -> None:
    """Each rotation builds on the previous one."""
    path = tmp_path / "limpet.db"
    stores = [await sqlite(path, masters(ONE)).open() for _ in range(3)]
    for place, store in enumerate(stores):
        await store.create(f"r{place}", created(), actor="test")
    await asyncio.gather(*(store.rotate_keys() for store in stores for _ in range(3)))
    for place, store in enumerate(stores):
        await store.create(f"s{place}", created(), actor="test")
    db = apsw.Connection(str(path))
    assert db.execute("SELECT count(*) FROM limpet_keys").fetchall() == [(1 + 1 + 9,)]
    db.close()
    for store in stores:
        for place in range(3):
            for run in (f"r{place}", f"s{place}"):
                assert [store.decode(event) for event in await store.read(run)] == [created()]
        await store.close()


async def test_an_open_store_loads_a_new_key_when_it_reads(tmp_path: Path) -> None:
    """This applies to events, rows, requests, blobs, snapshots, late results and the feed."""
    async with encrypted(tmp_path / "limpet.db") as world:
        for reads in range(7):
            other = await world.another()
            end = await other.feed_end()
            await world.store.rotate_keys()
            run = f"r{reads}"
            owner = await world.own(run, initial=StatePatch(goal="new goal"))
            payload, blobs = world.store.pack([run, "x" * 20_000])
            await owner.append(gave(payload), asked(f"q-{run}", digest="d"), blobs=blobs)
            await world.store.save_snapshot(run, owner.head, b"state")
            await world.store.keep_late(owner.seal(completed(output="late")))
            if reads == 0:
                assert other.decode((await other.read(run))[-1]) == asked("q-r0", digest="d")
            elif reads == 1:
                assert (await other.get(run)).goal == "new goal"
            elif reads == 2:
                assert (await other.requests())[-1].digest == "d"
            elif reads == 3:
                assert (await other.unpack(payload))[0] == run
            elif reads == 4:
                found = await other.snapshot(run)
                assert found is not None
                assert found.data == b"state"
            elif reads == 5:
                assert [other.decode(late.event) for late in await other.late(run)] == [completed(output="late")]
            else:
                assert [other.decode(event) for event in (await other.feed(end)).events] == await world.bodies(run)


async def test_a_rotation_does_not_change_contracts(tmp_path: Path) -> None:
    """The contract is found by its hash, whose hidden form never changes; an open store can read the new one."""
    async with encrypted(tmp_path / "limpet.db") as world:
        other = await world.another()
        await world.store.save_contracts([contract()])
        before = await world.store.contracts()
        await world.store.rotate_keys()
        world.advance("1s")
        await world.store.save_contracts([contract(), contract("b")])
        assert await other.contracts("a") == before
        assert [row.contract for row in await other.contracts("b")] == [contract("b").contract]


async def test_an_open_store_can_write_with_the_old_key(tmp_path: Path) -> None:
    """The store uses the key that it has, which every store can read."""
    async with encrypted(tmp_path / "limpet.db") as world:
        other = await world.another()
        owner = await world.own()
        await other.rotate_keys()
        await owner.append(started())
        await owner.append(completed())
        assert [other.decode(event) for event in await other.read("r1", after=2)] == [started(), completed()]


async def test_rotating_the_keys_of_a_plain_store_is_unsupported() -> None:
    async with Store(MemoryBackend()) as store:
        with pytest.raises(Unsupported) as error:
            await store.rotate_keys()
    assert error.value.what == "keys"


def test_a_rotated_key_is_the_newest_even_if_the_clock_went_back() -> None:
    first = rotated((), masters(ONE), 1_000)
    second = rotated(first, masters(ONE), 5)
    assert [row.purpose for row in second] == ["index", "data", "data"]
    assert second[-1].created > second[-2].created
    assert cipher(second).pack(b"x", "x").key_id == second[-1].id


async def test_the_memory_store_can_be_encrypted() -> None:
    """Keys, codec and rotation do not depend on the database."""
    backend = cache(MemoryBackend)
    async with World(Harness(backend=backend, keys=masters(ONE))) as world:
        owner = await world.own()
        await world.store.rotate_keys()
        await owner.append(started())
        assert all(event.key_id for event in await world.log())
        assert await world.store.check_rows("r1") == []
        with pytest.raises(WrongKeys):
            await Store(backend(world.clock)).open()


# No readable data on the disk


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("compress", [True, False])
async def test_no_user_data_is_readable_on_the_disk(tmp_path: Path, private: bool, compress: bool) -> None:
    """No file of the store has the marker, open or closed; in a plain store, the search finds it."""
    folder = tmp_path / "store"
    folder.mkdir()
    async with sqlite(folder / "limpet.db", masters(ONE) if private else None, compress=compress) as store:
        await write_everywhere(store)
        assert (folder / "limpet.db-wal").stat().st_size > 0
        found = {file.name for file in folder.iterdir() if MARKER.encode() in file.read_bytes()}
        assert bool(found) is not private
        if private:
            assert await store.count(RunFilter(labels={MARKER: MARKER})) == 1
    found = {file.name for file in folder.iterdir() if MARKER.encode() in file.read_bytes()}
    assert bool(found) is not private


PLACES = {
    "limpet_events": "SELECT count(*) FROM limpet_events WHERE instr(body, :bytes)",
    "limpet_streams": "SELECT count(*) FROM limpet_streams WHERE instr(goal || labels, :text)",
    "limpet_labels": "SELECT count(*) FROM limpet_labels WHERE instr(name || value, :text)",
    "limpet_requests": "SELECT count(*) FROM limpet_requests WHERE instr(digest, :text)",
    "limpet_snapshots": "SELECT count(*) FROM limpet_snapshots WHERE instr(data, :bytes)",
    "limpet_late": "SELECT count(*) FROM limpet_late WHERE instr(body, :bytes)",
    "limpet_contracts": "SELECT count(*) FROM limpet_contracts WHERE instr(contract, :bytes)",
    "limpet_chunks": "SELECT count(*) FROM limpet_chunks WHERE instr(data, :bytes)",
}


@pytest.mark.parametrize("table", PLACES)
async def test_every_table_with_user_data_is_searched(tmp_path: Path, table: str) -> None:
    """In a plain store, each of these tables has the marker."""
    for private in (True, False):
        path = tmp_path / f"{private}.db"
        async with sqlite(path, masters(ONE) if private else None) as store:
            await write_everywhere(store)
        db = apsw.Connection(str(path))
        [(found,)] = db.execute(PLACES[table], {"text": MARKER, "bytes": MARKER.encode()}).fetchall()
        assert bool(found) is not private
        db.close()


async def write_everywhere(store: Store) -> None:
    """Write the marker into every field of user data."""
    marked = inline({MARKER: MARKER})
    fact = Fact(key=MARKER, value=Raw(canonical(MARKER)))
    initial = StatePatch(goal=MARKER, facts=(fact,), questions=(MARKER,), data=Raw(canonical(MARKER)))
    labels = {MARKER: MARKER}
    run = created(input=marked, labels=labels, initial=initial)
    await store.create("r1", run, actor="test")
    world = World(Harness(backend=MemoryBackend))
    world.store = store
    await world.worker()
    [claimed] = await world.claim()
    owner = Owner(world, claimed.row)
    failure = Failure(type="builtins.ValueError", message=MARKER, facts=marked, traceback=MARKER)
    payload, blobs = store.pack([MARKER] * 2_000)
    await owner.append(
        started(),
        b.StepFailed(name="t#1", number=1, attempt=1, failure=failure),
        b.StatePatched(name="p#1", patch=StatePatch(goal=f"{MARKER} again", facts=(fact,))),
        b.DecisionMade(name="d#1", question=MARKER, chosen=marked, options=marked, because=MARKER),
        asked("q1", question=MARKER, digest=MARKER, context=marked),
        gave(payload),
        blobs=blobs,
    )
    await store.put_blob(MARKER.encode() + shake_256(b"noise").digest(3 * CHUNK // 2))  # stays open
    answer = replace(answered("q1"), answer=marked, digest=MARKER, because=MARKER)
    await store.send_commands("r1", answer, actor="ann")
    await store.send_commands("r1", signalled(value={MARKER: MARKER}, command="c2"), actor="ann")
    await store.save_snapshot("r1", owner.head, MARKER.encode())
    await store.save_contracts([contract(takes=MARKER)])
    await store.keep_late(owner.seal(completed(output=MARKER)))
    message = b.MessageAdded(message="m1", role="user", content=marked)
    conversation = Create(run="c1", bodies=(b.ConversationCreated(labels=labels), message), actor="test")
    await store.append(conversation)
    assert (await store.get("r1")).goal == f"{MARKER} again"


def _plain(path: Path) -> World:
    return World(Harness(backend=lambda clock: SqliteBackend(path, clock)))


async def content(store: Store, payload: Payload) -> bytes:
    assert isinstance(payload.blob, str)
    return b"".join([part async for part in store.read_blob(payload.blob)])
