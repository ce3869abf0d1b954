"""The work of a turn of an LLM agent does not depend on the length of its conversation."""

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.clock import SystemClock
from limpet.context import window
from limpet.engine.definitions import call_context
from limpet.events import Event, inline
from limpet.events import bodies as b
from limpet.journal import ConversationWriter
from limpet.llm import model
from limpet.llm.model import Prompt
from limpet.stores import Store
from limpet.stores import blobs as stored_blobs
from limpet.stores.api import payloads
from limpet.testing import ScriptedModel, calls

KILOBYTE = "a message of one kilobyte, more or less " * 25
# Messages that no summary replaces.
NEWEST = 60


def says(prompt: Prompt) -> str:
    """Answer every prompt."""
    return KILOBYTE if prompt.messages[-1].role == "user" else "so it is"


talker = limpet.llm_agent("turn_costs_talker", model=ScriptedModel(says), instructions="Talk.")


@limpet.tool(effect="none", name="turn_costs_look")
async def look(number: int) -> str:
    """Return one kilobyte."""
    return f"{number} {KILOBYTE}"


def looks(prompt: Prompt) -> Any:
    """Call the tool until the conversation has many results, then answer."""
    number = sum(each.role == "tool" for each in prompt.messages)
    return calls("turn_costs_look", number=number) if number < 40 else "done"


looker = limpet.llm_agent("turn_costs_looker", model=ScriptedModel(looks), instructions="Look.", tools=[look])


async def fill(store: Store, count: int) -> None:
    """Write a conversation of this many messages, of which a summary replaces all but the newest."""
    talk = ConversationWriter(store, "c", SystemClock().now, "test", b.ConversationCreated())
    packed, blobs = store.pack(KILOBYTE, inline=256)
    roles: Any = ("user", "assistant")
    messages = [b.MessageAdded(message=f"m{n}", role=roles[n % 2], content=packed) for n in range(count)]
    for start in range(0, count, 500):
        await talk.append(*messages[start : start + 500], blobs=blobs)
    if count > NEWEST:
        await talk.append(b.ConversationCompacted(first=2, last=count - NEWEST + 1, summary=inline("in short")))


@contextmanager
def counted(store: Store) -> Iterator[Counter[str]]:
    """Count appends, compressed blobs and inspected functions, and the work on the conversation: queries, rows read,
    events decoded, and texts whose tokens are counted.
    """
    found: Counter[str] = Counter()
    read, decode, tokens, append = store._backend.read, Event.decode, window.tokens, store.append
    get, pack_blob, signature = store._backend.get, stored_blobs.pack_blob, inspect.signature

    def reading(run: str, *args: Any) -> Any:
        rows = read(run, *args)
        found["queries"] += run == "c"
        found["rows"] += len(rows) if run == "c" else 0
        return rows

    def decoding(event: Event, *args: Any) -> Any:
        found["decoded"] += event.kind == "message.added"
        return decode(event, *args)

    def counting(text: str) -> int:
        found["counted"] += len(text) > 500
        return tokens(text)

    async def appending(*legs: Any, **more: Any) -> Any:
        found["appends"] += 1
        return await append(*legs, **more)

    def getting(run: str) -> Any:
        found["queries"] += run == "c"
        return get(run)

    def packing(*args: Any) -> Any:
        found["packed"] += 1
        return pack_blob(*args)

    def inspecting(fn: Any, **more: Any) -> Any:
        found["inspected"] += 1
        return signature(fn, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "append", appending)
        patched.setattr(store._backend, "get", getting)
        patched.setattr(payloads, "pack_blob", packing)
        patched.setattr(inspect, "signature", inspecting)
        patched.setattr(store._backend, "read", reading)
        patched.setattr(Event, "decode", decoding)
        patched.setattr(model, "tokens", counting)
        yield found


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[limpet.App]:
    """Open an app with the agents of this module."""
    async with limpet.open(url, agents=[talker, looker]) as app:
        yield app


async def turn(app: limpet.App, said: str = KILOBYTE) -> Counter[str]:
    """Execute a turn, and return the work that it took."""
    with counted(app.store) as found:
        handle = await app.start(talker, said, conversation="c")
        assert await handle.result() == KILOBYTE
    return found


async def test_a_turn_reads_decodes_and_counts_only_new_messages(tmp_path: Path) -> None:
    """A user's message and the reply before it, in a conversation of 100 and of 5,000 messages."""
    for count in (100, 5_000):
        async with opened(f"sqlite:///{tmp_path}/{count}.db") as app:
            await fill(app.store, count)
            await turn(app)
            for _ in range(3):
                found = await turn(app)
                # The row of the last known message is read again, to check that it is the same conversation. The text
                # of the prompt that is sent counts once more, without its messages.
                assert (found["rows"], found["decoded"]) == (3, 2)
                assert found["counted"] == 2


async def test_a_turn_has_two_appends_and_one_query(tmp_path: Path) -> None:
    """Appends: the run with the user's message; the reply with its message and the end. The query reads the end of
    the conversation and the new messages together. Only the user's message and a new reply are compressed, although
    each is recorded several times, and the function of a model call is not inspected again.
    """
    for count in (10, 500):
        async with opened(f"sqlite:///{tmp_path}/{count}.db") as app:
            await fill(app.store, count)
            await turn(app)
            for number in range(3):
                found = await turn(app, f"{number} {KILOBYTE}")
                assert (found["appends"], found["queries"]) == (2, 1)
                assert (found["packed"], found["inspected"]) == (1, 0)


async def test_the_first_turn_after_a_restart_reads_as_much_in_a_long_conversation(tmp_path: Path) -> None:
    """The newest messages, up to the summary of the older ones."""
    work = []
    for count in (100, 5_000):
        url = f"sqlite:///{tmp_path}/{count}.db"
        async with opened(url) as app:
            await fill(app.store, count)
            await turn(app)
        async with opened(url) as app:
            work.append(await turn(app))
    assert work[0] == work[1]
    assert work[1]["rows"] <= 3 * NEWEST + 10
    assert work[1]["counted"] <= NEWEST + 4


async def test_a_turn_of_a_long_run_has_three_appends_and_reads_only_new_messages(tmp_path: Path) -> None:
    """Appends: the model's reply with its message, the result of the tool, and its message. The start of a turn is
    stored with the first of them. A turn reads the two messages, and the last known one.
    """
    async with opened(f"sqlite:///{tmp_path}/limpet.db") as app:
        with counted(app.store) as found:
            handle = await app.start(looker, "go", conversation="c")
            assert await handle.result() == "done"
    turns = 41
    assert found["appends"] <= turns * 3 + 2
    assert found["rows"] <= turns * 3 + 5
    assert found["decoded"] <= turns * 2 + 5
    assert found["counted"] <= turns


async def test_a_reply_in_many_pieces_is_packed_once_for_each_record(tmp_path: Path) -> None:
    """Not once for each piece: that would cost the square of the length of the reply."""
    words = "word " * 500
    packed = list[Any]()

    def packing(value: Any) -> Any:
        packed.append(value)
        return inline(value)

    agent = limpet.llm_agent("turn_costs_streamer", model=ScriptedModel(words), instructions="Talk.")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(call_context, "inline", packing)
        async with limpet.open(f"sqlite:///{tmp_path}/limpet.db", agents=[agent]) as app:
            assert await app.run(agent, "go") == words
    assert len(packed) <= 2
