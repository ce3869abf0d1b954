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
from typing import Any

import apsw

import limpet
from limpet.clock import SystemClock
from limpet.events import bodies as b
from limpet.ids import RandomIds
from limpet.journal import ConversationWriter
from limpet.llm.model import Prompt
from limpet.service.settings import Settings
from limpet.stores.blobs import MESSAGE_INLINE as IN_ITS_EVENT
from limpet.testing import ScriptedModel

MESSAGE_BYTES = 1024
TURNS, MANY = 200, 5_000
LONG, PAGE = 5_000, 40


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


async def last_page(folder: Path) -> tuple[float, float]:
    """Return milliseconds to show the last page of a long conversation: the first time, and the median."""
    url = f"sqlite:////{folder}/long.db"
    async with limpet.open(url) as app:
        talk = ConversationWriter(app.store, "c", SystemClock().now, "bench", b.ConversationCreated())
        for start in range(0, LONG, 500):
            some = [
                (f"m{n}", *app.store.pack(text(f"message {n}"), inline=IN_ITS_EVENT)) for n in range(start, start + 500)
            ]
            added = [b.MessageAdded(message=id, role="user", content=said) for id, said, _ in some]
            await talk.append(*added, blobs=[blob for _, _, blobs in some for blob in blobs])
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


def _line(title: str, held: int, turns: int, aim: str) -> None:
    ratio = held / (turns * 2 * MESSAGE_BYTES)
    print(f"  {title:44} {held:>13,} bytes   {ratio:.2f}× what was said, {held / turns:,.0f} a turn   {aim}")


if __name__ == "__main__":
    report()
