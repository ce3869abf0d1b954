"""Cost of conversations: bytes on disk per byte of messages, and the time to show the end of a long one.

Bytes are the same on every machine. The model here replies immediately; a reply that takes seconds is recorded about
once per second as it grows. For comparison: LangGraph's SqliteSaver with the same conversation, run by the Python in
LANGGRAPH_PYTHON; `make bench` installs one.
"""

import asyncio
import base64
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import apsw

import limpet
from limpet.clock import SystemClock
from limpet.events import bodies as b
from limpet.events import inline
from limpet.ids import RandomIds
from limpet.journal import ConversationWriter
from limpet.llm.model import Prompt
from limpet.service.settings import Settings
from limpet.stores.blobs import MESSAGE_INLINE as IN_ITS_EVENT
from limpet.testing import ScriptedModel, calls

MESSAGE_BYTES = 1024
TURNS, MANY = 200, 5_000
LONG, PAGE = 5_000, 40
# Lengths of conversations, in messages, and the number of newest ones that no summary replaces.
LENGTHS, UNSUMMARISED = (10, 500, 5_000), 60


def text(what: str) -> str:
    """Return 1 KB that hardly compresses, the same for the same seed."""
    digests = b"".join(sha256(f"{what} {n}".encode()).digest() for n in range(MESSAGE_BYTES // 32))
    return base64.b64encode(digests).decode()[:MESSAGE_BYTES]


def prose(what: str) -> str:
    """Return 1 KB of prose from our docs, the same for the same seed."""
    pages = _pages()
    start = int.from_bytes(sha256(what.encode()).digest()[:6]) % (len(pages) - MESSAGE_BYTES)
    return pages[start : start + MESSAGE_BYTES]


@cache
def _pages() -> str:
    docs = Path(__file__).parents[1] / "docs"
    return (
        "".join(page.read_text(encoding="utf-8") for page in sorted(docs.glob("*.md")))
        .encode("ascii", "ignore")
        .decode()
    )


def talker(say: Callable[[str], str] = text, **more: Any) -> limpet.Agent[str, str]:
    """Return an agent whose model replies 1 KB; summaries are short."""

    def says(request: Prompt) -> str:
        if request.messages[0].text.startswith("Summarise"):
            return "They went on talking."
        return say(f"reply to {sha256(request.messages[-1].text.encode()).hexdigest()}")

    return limpet.llm_agent("bench_talker", model=ScriptedModel(says), instructions="Talk.", **more)


async def stored(
    file: Path,
    turns: Iterable[int],
    *,
    say: Callable[[str], str] = text,
    agent: limpet.Agent[str, str] | None = None,
) -> list[int]:
    """Return the bytes of a conversation after some turns, each a run of an LLM agent, less those of an empty store."""
    agent, done, found = agent or talker(say), 0, list[int]()
    async with _app(file, agent):
        pass
    empty = size(file)
    for upto in turns:
        async with _app(file, agent) as app:
            for number in range(done, upto):
                handle = await app.start(agent, say(f"message {number}"), conversation="c", session="s")
                await handle.result()
        done = upto
        found.append(size(file) - empty)
    return found


def _app(file: Path, agent: limpet.Agent[str, str]) -> limpet.App:
    clock = SystemClock()
    return limpet.App(Settings(limpet.open_store(f"sqlite:////{file}"), clock, RandomIds(clock)), [agent])


def size(file: Path) -> int:
    """Return the size of a database, after everything is in its file."""
    db = apsw.Connection(str(file))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    return file.stat().st_size


def parts(file: Path) -> dict[str, int]:
    """Return the bytes of each table and index."""
    db = apsw.Connection(str(file))
    rows: list[Any] = db.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC").fetchall()
    db.close()
    return dict(rows)


async def fill(store: limpet.Store, messages: int, *, summarised: int = 0) -> None:
    """Write a conversation of some messages of 1 KB, and a summary of the first ones."""
    talk = ConversationWriter(store, "c", SystemClock().now, "bench", b.ConversationCreated())
    roles: Any = ("user", "assistant")
    for start in range(0, messages, 500):
        numbers = range(start, min(start + 500, messages))
        some = [(n, *store.pack(text(f"message {n}"), inline=IN_ITS_EVENT)) for n in numbers]
        added = [b.MessageAdded(message=f"m{n}", role=roles[n % 2], content=said) for n, said, _ in some]
        await talk.append(*added, blobs=[blob for _, _, blobs in some for blob in blobs])
    if summarised > 0:
        await talk.append(b.ConversationCompacted(first=2, last=summarised + 1, summary=inline("They talked.")))


class TurnFigures(NamedTuple):
    """Milliseconds of CPU time of a turn, in all threads of the process."""

    turn: float
    """One of many runs in one conversation, a turn each; the mean, with the summaries that are made in between."""
    after_restart: float
    """The first turn of a process that has not read the conversation before, with opening the store."""
    in_one_run: float
    """A turn of one long run: a reply with a tool call, and its result."""


def turn_figures(turns: int = 60) -> dict[int, TurnFigures]:
    """Return the cost of a turn of an LLM agent, 1 KB each way, by the number of messages in the conversation."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name:
        return {length: asyncio.run(_turns(Path(name) / f"{length}.db", length, turns)) for length in LENGTHS}


async def _turns(file: Path, length: int, turns: int) -> TurnFigures:
    agent = talker()
    texts = [text(f"new {n}") for n in range(turns + 6)]

    async def turn(app: limpet.App, said: str) -> None:
        await (await app.start(agent, said, conversation="c", session="s")).result()

    async with _app(file, agent) as app:
        await fill(app.store, length, summarised=length - UNSUMMARISED)
        for said in texts[:5]:
            await turn(app, said)
        begun = time.process_time()
        for said in texts[5:-1]:
            await turn(app, said)
        each = (time.process_time() - begun) / turns
    begun = time.process_time()
    async with _app(file, agent) as app:
        await turn(app, texts[-1])
        restarted = time.process_time() - begun
    return TurnFigures(each * 1e3, restarted * 1e3, await _long_run(file, turns) * 1e3)


async def _long_run(file: Path, turns: int) -> float:
    """Return seconds of CPU time of a turn in one run: a reply of 1 KB with a tool call, and a result of 1 KB."""
    times: list[float] = []
    results = [text(f"result {n}") for n in range(turns + 1)]

    @limpet.tool(effect="none", name="bench_look")
    async def look(number: int) -> str:
        return results[number]

    def says(prompt: Prompt) -> Any:
        if prompt.messages[0].text.startswith("Summarise"):
            return "They went on talking."
        times.append(time.process_time())
        number = len(times) - 1
        return (results[number], calls("bench_look", number=number)) if number < turns else "done"

    looker = limpet.llm_agent(
        "bench_looker", model=ScriptedModel(says), instructions="Look.", tools=[look], max_turns=2 * turns
    )
    async with _app(file, looker) as app:
        await (await app.start(looker, "go", conversation="c", session="s")).result()
    return (times[-1] - times[5]) / (len(times) - 6)


async def last_page(folder: Path) -> tuple[float, float]:
    """Return milliseconds to show the last page of a long conversation: the first time, and the median."""
    url = f"sqlite:////{folder}/long.db"
    async with limpet.open(url) as app:
        await fill(app.store, LONG)
    taken = []
    async with limpet.open(url) as app:
        for _ in range(21):
            begun = time.perf_counter()
            assert len(await app.messages("c", last=PAGE)) == PAGE
            taken.append((time.perf_counter() - begun) * 1e3)
    return taken[0], statistics.median(taken)


def langgraph(folder: Path, turns: int) -> int | None:
    """Return the bytes of the same conversation with LangGraph's SqliteSaver, or None if it is not installed."""
    python = os.environ.get("LANGGRAPH_PYTHON", sys.executable)
    script = Path(__file__).with_name("langgraph_conversation.py")
    done = subprocess.run(
        [python, script, folder / f"langgraph-{turns}.db", str(turns)], capture_output=True, text=True, check=False
    )
    return int(done.stdout) if done.returncode == 0 else None


def report() -> None:
    """Print all figures."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        print("\nA conversation, a message and a reply of 1 KB a turn, bytes of the SQLite file")
        some, many = asyncio.run(stored(folder / "talk.db", (TURNS, MANY)))
        _line(f"an agent of a model, noise, {TURNS} turns", some, TURNS, "aim: at most 3×")
        _line(f"the same, {MANY:,} turns", many, MANY, "growth must be linear")
        for table, held in list(parts(folder / "talk.db").items())[:4]:
            print(f"    {table:42} {held / MANY:>13,.0f} bytes a turn")
        [packed] = asyncio.run(stored(folder / "prose.db", (TURNS,), say=prose))
        _line(f"the same of prose, {TURNS} turns", packed, TURNS, "aim: at most 3×")
        for turns in (TURNS // 2, TURNS):
            found = langgraph(folder, turns)
            if found is None:
                print("  LangGraph's SqliteSaver: LANGGRAPH_PYTHON names no Python that has it; `make bench` makes one")
                break
            _line(f"LangGraph's SqliteSaver, {turns} turns", found, turns, "")
        first, median = asyncio.run(last_page(folder))
        title = f"the last {PAGE} of {LONG:,} messages"
        print(f"  {title:44} {median:>10.1f} ms   the first time {first:.1f} ms (aim: 10 ms)")


def report_turns() -> None:
    """Print the cost of a turn."""
    print("\nCPU time of a turn of an LLM agent, 1 KB each way")
    for length, found in turn_figures().items():
        title = f"in a conversation of {length:,} messages"
        print(
            f"  {title:44} {found.turn:>10.1f} ms   after a restart {found.after_restart:.1f} ms, "
            f"in one run, with a tool call, {found.in_one_run:.1f} ms   (aim: 5 ms)"
        )


def _line(title: str, held: int, turns: int, aim: str) -> None:
    ratio = held / (turns * 2 * MESSAGE_BYTES)
    print(f"  {title:44} {held:>13,} bytes   {ratio:.2f}× what was said, {held / turns:,.0f} a turn   {aim}")


if __name__ == "__main__":
    report_turns()
    report()
