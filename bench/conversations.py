"""Conversations with an LLM agent, and their bytes on disk.

Bytes are the same on every machine. The model here replies immediately; a reply that takes seconds is recorded about
once per second as it grows.
"""

from collections.abc import Callable, Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw

import limpet
from bench.script import noise
from limpet.clock import SystemClock
from limpet.ids import RandomIds
from limpet.llm.model import Prompt, Reply, Usage
from limpet.service.settings import Settings
from limpet.testing import ScriptedModel

MESSAGE_BYTES = 1024


def text(what: str) -> str:
    """Return 1 KB that hardly compresses, the same for the same seed."""
    return noise(what, MESSAGE_BYTES)


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
    """Return an agent whose model replies 1 KB."""
    return _agent(lambda asked: say(f"reply to {sha256(asked.messages[-1].text.encode()).hexdigest()}"), **more)


def prepared(replies: Iterable[str]) -> limpet.Agent[str, str]:
    """Return an agent whose model has its replies ready, so that only Limpet's own work is measured."""
    usage = Usage(input_tokens=2_000, output_tokens=300)
    ready = iter([Reply(text=each, usage=usage, finish="stop") for each in replies])
    return _agent(lambda _: next(ready))


def _agent(reply: Callable[[Prompt], str | Reply], **more: Any) -> limpet.Agent[str, str]:
    """Return an agent with a model; its summaries are short."""

    def says(asked: Prompt) -> str | Reply:
        return "They went on talking." if asked.messages[0].text.startswith("Summarise") else reply(asked)

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
