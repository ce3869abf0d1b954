"""Values that were packed or read last are not read again."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from limpet import MasterKeys, NotFound, open_store
from limpet.events import PLAIN, Payload
from limpet.events import bodies as b
from limpet.journal import ConversationWriter
from limpet.stores import Store
from limpet.stores.blobs import pack_blob
from limpet.stores.recent_values import LARGEST, MOST, MOST_PACKED, RecentValues

VALUE = {"text": "so much of it " * 2_000}
KEYS = MasterKeys(lambda: bytes(32))


def test_the_oldest_values_are_dropped_when_there_are_too_many() -> None:
    """A value that is used again stays, and a large one is not kept."""
    values = RecentValues()
    values.keep_stored("large", bytes(LARGEST + 1))
    for number in range(MOST // LARGEST):
        values.keep_stored(f"{number}", bytes(LARGEST))
    assert values.get("0") is not None
    values.keep_stored("new", bytes(LARGEST))
    assert [name for name in ("large", "0", "1", "2", "new") if values.get(name) is not None] == ["0", "2", "new"]


async def test_a_value_that_is_packed_again_is_not_compressed_again() -> None:
    """Unless it is encrypted: the key with which it was encrypted may have been deleted since."""
    for keys, is_same in ((None, True), (KEYS, False)):
        async with open_store("memory:", keys=keys) as store:
            (_, [first]), (_, [again]) = store.pack(VALUE), store.pack(VALUE)
            assert (first.id, first.size) == (again.id, again.size)
            assert (first is again) is is_same


def test_few_packed_blobs_are_kept() -> None:
    """The ones that were packed last, and no large ones."""
    values, data = RecentValues(), [bytes([number]) * LARGEST for number in range(MOST_PACKED // LARGEST + 1)]
    for each in (*data, bytes(LARGEST + 1)):
        values.keep_packed(pack_blob(PLAIN, each), each, is_private=False)
    assert [values.blob_of(each) is not None for each in data] == [False, *[True] * (len(data) - 1)]
    assert values.blob_of(bytes(LARGEST + 1)) is None


async def test_a_value_that_was_packed_and_never_stored_is_not_found(tmp_path: Path) -> None:
    """Such as the result of an append that was refused."""
    async with open_store(f"sqlite:///{tmp_path}/limpet.db") as store:
        payload, _ = store.pack(VALUE)
        with pytest.raises(NotFound):
            await store.unpack(payload)


def reads_of(store: Store) -> list[str]:
    """Return a list that grows with each question about blobs."""
    asked: list[str] = []

    def counting(name: str) -> Any:
        ask = getattr(store._backend, name)

        def counted(*args: Any) -> Any:
            asked.append(name)
            return ask(*args)

        return counted

    for name in ("blob", "chunk", "small_blobs"):
        setattr(store._backend, name, counting(name))
    return asked


async def saved(store: Store, value: Any) -> Payload:
    """Store a value in a conversation."""
    payload, blobs = store.pack(value)
    talk = ConversationWriter(store, "c", lambda: 1, "test", b.ConversationCreated())
    await talk.append(b.MessageAdded(message="m", role="user", content=payload), blobs=blobs)
    return payload


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
async def test_a_value_is_read_at_most_once(tmp_path: Path, keys: MasterKeys | None) -> None:
    """Not at all by the process that packed it, and by another one with a single question."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    async with open_store(url, keys=keys) as store:
        asked = reads_of(store)
        payload = await saved(store, VALUE)
        assert (await store.unpack(payload), await store.unpack_all([payload]), asked) == (VALUE, [VALUE], [])
    async with open_store(url, keys=keys) as store:
        asked = reads_of(store)
        assert (await store.unpack(payload), await store.unpack_all([payload])) == (VALUE, [VALUE])
        assert asked == ["small_blobs"]


async def test_a_value_of_several_chunks_is_read_each_time(tmp_path: Path) -> None:
    """It is too large to be kept."""
    async with open_store(f"sqlite:///{tmp_path}/limpet.db") as store:
        asked = reads_of(store)
        payload = await saved(store, "x" * 2_500_000)
        for _ in range(2):
            assert len(await store.unpack(payload)) == 2_500_000
        assert asked == ["blob", "chunk", "chunk", "chunk"] * 2


async def test_a_collected_value_is_not_found_in_memory(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/limpet.db") as store:
        payload = await store.put_blob(msgspec.json.encode(VALUE))
        assert await store.unpack(payload) == VALUE
        assert await store.collect_blobs(grace=0) == 1
        with pytest.raises(NotFound):
            await store.unpack(payload)
