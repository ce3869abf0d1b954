"""Conversations with an LLM agent: bytes on disk, and the time and CPU of a turn, also after many messages."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import limpet
from bench import conversations
from bench.script import Stopwatch, noise, path_of
from limpet.clock import SystemClock
from limpet.events import bodies as b
from limpet.journal import ConversationWriter
from limpet.stores.blobs import MESSAGE_INLINE

__all__ = ["conversation", "last_page", "turns_at"]

BATCH = 500
# Tokens of the newest messages that no summary replaces.
KEPT = 20_000


async def conversation(url: str, turns: int, prose: bool = False) -> dict[str, float]:
    """Hold a conversation, 1 KB each way, each turn a run of an LLM agent whose model answers immediately."""
    say = conversations.prose if prose else conversations.text
    agent, file = conversations.talker(say), Path(path_of(url))
    async with limpet.open(url, agents=[agent]):
        pass
    empty = conversations.size(file)
    async with limpet.open(url, agents=[agent]) as app:
        watch = Stopwatch()
        await _talk(app, agent, [say(f"message {n}") for n in range(turns)])
        figures = {"turn": watch.seconds / turns * 1e3, "cpu": watch.cpu / turns * 1e3}
    return figures | {"bytes": conversations.size(file) - empty}


async def turns_at(url: str, messages: int, turns: int) -> dict[str, float]:
    """Measure turns in a conversation that already has some messages of 1 KB.

    A summary replaces those that do not fit into the window, as if the agent had held the conversation. Otherwise it
    would summarise them first, as many as fit in each turn: 5,000 messages in 21 turns.
    """
    said = [conversations.text(f"message {n}") for n in range(2 + turns)]
    agent = conversations.prepared(conversations.text(f"reply {n}") for n in range(len(said)))
    await fill(url, messages)
    async with limpet.open(url, agents=[agent]) as app:
        await app.compact("c", "They talked.", keep=KEPT)
        await _talk(app, agent, said[:2])  # Warm up: reads the history once.
        watch = Stopwatch()
        await _talk(app, agent, said[2:])
        return {"turn": watch.seconds / turns * 1e3, "cpu": watch.cpu / turns * 1e3}


async def last_page(url: str, messages: int, page: int, samples: int) -> dict[str, float]:
    """Measure how long it takes to show the end of a long conversation."""
    await fill(url, messages)
    taken = []
    async with limpet.open(url, worker=False) as app:
        for _ in range(samples):
            watch = Stopwatch()
            assert len(await app.messages("c", last=page)) == page
            taken.append(watch.seconds)
    return {"read": statistics.median(taken) * 1e3}


async def fill(url: str, messages: int) -> None:
    """Append messages of both sides to a conversation, without an agent."""
    async with limpet.open(url, worker=False) as app:
        talk = ConversationWriter(app.store, "c", SystemClock().now, "bench", b.ConversationCreated())
        for start in range(0, messages, BATCH):
            packed = [
                (n, *app.store.pack(noise(f"old {n}", conversations.MESSAGE_BYTES), inline=MESSAGE_INLINE))
                for n in range(start, min(start + BATCH, messages))
            ]
            added = [
                b.MessageAdded(message=f"old-{n}", role="assistant" if n % 2 else "user", content=said)
                for n, said, _ in packed
            ]
            await talk.append(*added, blobs=[blob for _, _, blobs in packed for blob in blobs])


async def _talk(app: limpet.App, agent: limpet.Agent[str, str], said: Sequence[str]) -> None:
    for each in said:
        await (await app.start(agent, each, conversation="c", session="s")).result()
