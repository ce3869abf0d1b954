"""The message cache returns what the store has, and reads only what is new."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet import open_store
from limpet.events import bodies as b
from limpet.events import inline
from limpet.journal import ConversationWriter, Summary, replaced
from limpet.llm import message_cache
from limpet.llm.message_cache import MessageCache, ReadMessages, cache_of, read_messages
from limpet.stores import Store

WINDOW = 2_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty SQLite store."""
    async with open_store(f"sqlite:///{tmp_path}/cache.db") as opened:
        yield opened


class Talk:
    """A conversation to write to, and the number of its rows that were read."""

    def __init__(self, store: Store, id: str = "c") -> None:
        self.store, self.id = store, id
        self.writer = ConversationWriter(store, id, lambda: 1, "test", b.ConversationCreated())
        self.rows = 0
        backend: Any = store._backend
        read = backend.read

        def counting(*args: Any) -> Any:
            found = read(*args)
            self.rows += len(found)
            return found

        backend.read = counting

    @property
    def head(self) -> int:
        """Sequence of the last event."""
        return self.writer.next - 1

    async def say(self, text: Any, role: Any = "user", **more: Any) -> None:
        """Append a message."""
        packed, blobs = self.store.pack(text, inline=256)
        body = b.MessageAdded(message=f"{self.head}", role=role, content=packed, **more)
        await self.writer.append(body, blobs=blobs)
        await self.writer.look_again()

    async def summarise(self, known: ReadMessages) -> None:
        """Let a summary replace the older half of the messages that were read."""
        seqs = [each.entry.seq for each in known.entries if each.said is not None]
        summaries = [each.entry for each in known.entries if isinstance(each.entry, Summary)]
        await self.writer.append(replaced(seqs[: len(seqs) // 2 + 1], seqs, summaries, inline("in short")))
        await self.writer.look_again()

    async def rows_of(self, cache: MessageCache, upto: int | None = None) -> int:
        """Read the conversation, and return the number of rows that this took."""
        before = self.rows
        await cache.read(self.store, self.id, upto=self.head if upto is None else upto, most=WINDOW)
        return self.rows - before


def shown(read: ReadMessages) -> Any:
    """Return everything that a prompt is built from."""
    return (
        [(each.entry, each.size, each.said, each.text, each.reply) for each in read.entries],
        (read.head, read.has_older),
    )


MESSAGE = st.tuples(
    st.sampled_from((1, 40, 700, 5_000)),
    st.sampled_from(("user", "assistant", "call", "pinned")),
)
TURN = st.tuples(st.lists(MESSAGE, max_size=3), st.integers(0, 4), st.booleans())


@given(st.lists(TURN, min_size=1, max_size=25))
@settings(max_examples=40, deadline=None)
async def test_cached_messages_equal_those_that_the_store_has(turns: list[tuple[list[Any], int, bool]]) -> None:
    """After messages of any size, calls and their results, pinned messages and summaries, also at older positions."""
    async with open_store("memory:") as store:
        talk, cache = Talk(store), MessageCache()
        await talk.say("first")
        for messages, back, is_summarised in turns:
            for size, kind in messages:
                if kind == "call":
                    call = {"id": f"call-{talk.head}", "name": "look", "args": "{}"}
                    await talk.say({"text": "x" * size, "calls": [call]}, "assistant")
                    await talk.say("x" * size, "tool", call=call["id"])
                else:
                    await talk.say("x" * size, "user" if kind == "pinned" else kind, pinned=kind == "pinned")
            upto = max(talk.head - back, 2)
            newest = await cache.read_newest(store, "c", most=WINDOW)
            assert newest is None or shown(newest) == shown(
                await read_messages(store, "c", upto=talk.head, most=WINDOW)
            )
            found = await cache.read(store, "c", upto=upto, most=WINDOW)
            assert shown(found) == shown(await read_messages(store, "c", upto=upto, most=WINDOW))
            if upto == talk.head and len(found.entries) > 4 and is_summarised:
                await talk.summarise(found)


async def test_a_later_turn_reads_only_new_events_and_the_last_known_one(store: Store) -> None:
    """However long the conversation is."""
    talk, cache = Talk(store), MessageCache()
    for length in (50, 400):
        while talk.head < length:
            await talk.say(f"message {talk.head}")
        await talk.rows_of(cache)
        await talk.say("one")
        await talk.say("two")
        assert await talk.rows_of(cache) == 3


async def test_an_earlier_position_is_read_from_the_store_and_changes_nothing(store: Store) -> None:
    """Such as in a replay, while other runs have continued the conversation."""
    talk, cache = Talk(store), MessageCache()
    for number in range(20):
        await talk.say(f"message {number}")
    await talk.rows_of(cache)
    earlier = await cache.read(store, "c", upto=10, most=WINDOW)
    assert shown(earlier) == shown(await read_messages(store, "c", upto=10, most=WINDOW))
    assert await talk.rows_of(cache) == 1


async def test_another_conversation_with_the_same_id_is_read_anew(tmp_path: Path) -> None:
    """The hash of the last known event differs."""
    cache, found = MessageCache(), []
    for name in ("one", "other"):
        async with open_store(f"sqlite:///{tmp_path}/{name}.db") as store:
            talk = Talk(store)
            for number in range(3):
                await talk.say(f"{name} {number}")
            read = await cache.read(store, "c", upto=talk.head, most=WINDOW)
            found.append([each.said.message.text for each in read.entries if each.said is not None])
    assert found == [["one 0", "one 1", "one 2"], ["other 0", "other 1", "other 2"]]


async def test_the_newest_messages_need_one_query_if_they_follow_known_ones(store: Store) -> None:
    """Not if the conversation is unknown, has a new summary, or many more messages."""
    talk, cache = Talk(store), MessageCache()
    await talk.say("first")
    assert await cache.read_newest(store, "c", most=WINDOW) is None
    await talk.rows_of(cache)
    await talk.say("second")
    newest = await cache.read_newest(store, "c", most=WINDOW)
    assert newest is not None
    assert (newest.head.seq, len(newest.entries)) == (talk.head, 2)
    assert newest.head == talk.writer.head
    await talk.summarise(newest)
    assert await cache.read_newest(store, "c", most=WINDOW) is None
    await talk.rows_of(cache)
    for number in range(message_cache.MOST_NEW):
        await talk.say(f"more {number}")
    assert await cache.read_newest(store, "c", most=WINDOW) is None


async def test_the_least_recently_used_conversations_are_dropped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cached messages together have a maximum size."""
    monkeypatch.setattr(message_cache, "MOST_BYTES", 10_000)
    cache, talks = MessageCache(), [Talk(store, f"c{number}") for number in range(4)]
    for talk in talks:
        await talk.say("x" * 3_000)
        await talk.rows_of(cache)
    assert cache._bytes == sum(each.bytes for each in cache._read.values()) <= 10_000
    assert [id for id, _ in cache._read] == ["c1", "c2", "c3"]


async def test_a_store_has_one_cache_for_all_runs(store: Store) -> None:
    assert cache_of(store) is cache_of(store)
    assert cache_of(store) is not cache_of(open_store("memory:"))
