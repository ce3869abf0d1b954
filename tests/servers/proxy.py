"""A proxy for PostgreSQL that cuts connections at bad moments: around a commit, or in the middle of a message.

It parses the wire protocol only as far as needed to find the end of a transaction. It cuts in four ways:

- `answered`: the server has committed and replied, and the client never gets the reply
- `dropped`: the client has sent a message, and the server never gets it
- `torn`: the server gets half of the message
- `raced`: the server gets the message, but its client is gone: the transaction may outlive the client
"""

import asyncio
import random  # noqa: TID251 - chooses where to cut
import threading
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Literal, Self

from tests.servers.postgres import free_port

__all__ = ["Proxy"]

How = Literal["answered", "dropped", "torn", "raced"]
HOW: tuple[How, ...] = ("answered", "answered", "dropped", "torn", "raced")
"""A lost reply is the hardest case, so it is drawn twice as often."""
REFUSED = {80877103, 80877104}
"""Codes with which a client requests encryption before it starts."""
READY, DONE, IDLE = b"Z", b"C", b"I"
NOT_WRITTEN = (b"BEGIN\0", b"SAVEPOINT\0", b"RELEASE\0", b"ROLLBACK\0")


class Proxy:
    """A port that forwards to another one, in its own thread, as a context manager."""

    def __init__(self, target: int, seed: int = 1) -> None:
        self.port = free_port()
        self.target = target
        self.cuts: Counter[str] = Counter()
        """Number of cut connections, by way."""
        self._wanted = 0
        self._countdown = 0
        self._furthest = 1
        self._chance = random.Random(seed)
        self._open: set[_Line] = set()
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        listening = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listening,), name="proxy", daemon=True)
        self._thread.start()
        listening.wait()
        return self

    def __exit__(self, *exc: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def total(self) -> int:
        """Number of cut connections."""
        return sum(self.cuts.values())

    def cut(self, times: int, *, furthest: int = 120) -> None:
        """Cut this many connections (possibly a few more), each after 1 to `furthest` messages of the client."""
        self._wanted, self._furthest = self.total + times, furthest
        self._countdown = self._chance.randint(1, furthest)

    def lead_to(self, target: int) -> None:
        """Forward to another server from now on, and cut all connections to the old one."""
        self.target = target
        self._call(self._cut_all())

    # In the proxy's thread

    def _run(self, listening: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self._loop.call_soon(listening.set)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _cut_all(self) -> None:
        for line in list(self._open):
            line.close()

    async def _end(self) -> None:
        self._server.close()
        await self._cut_all()
        me = asyncio.current_task()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not me), return_exceptions=True)

    async def _serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            to_client.close()
            return
        line = _Line(to_client, to_server)
        self._open.add(line)
        try:
            await asyncio.gather(self._ask(line, client), self._answer(line, server))
        except (OSError, EOFError):
            pass  # a connection was closed
        finally:
            line.close()
            self._open.discard(line)

    async def _ask(self, line: "_Line", client: StreamReader) -> None:
        """Forward the messages of the client."""
        try:
            await _begin(line, client)
            while sent := await client.read(1 << 16):
                how = self._choose(line)
                if how in ("dropped", "torn"):
                    line.to_server.write(sent[: len(sent) // 2] if how == "torn" else b"")
                    return self._cut(line, how)
                line.asking = True
                line.to_server.write(sent)
                await line.to_server.drain()
                if how == "raced":
                    return self._cut(line, how)
                line.withholding = line.withholding or how == "answered"
        finally:
            line.close()
        return None

    async def _answer(self, line: "_Line", server: StreamReader) -> None:
        """Forward the messages of the server; if the reply to a commit is to be lost, hold it back until it is
        complete.
        """
        held = b""
        try:
            while True:
                head = await server.readexactly(5)
                body = await server.readexactly(int.from_bytes(head[1:]) - 4)
                held += head + body
                line.note(head[:1], body)
                if head[:1] == READY and line.withholding and line.committed:
                    return self._cut(line, "answered")
                if head[:1] == READY:
                    line.next()
                if not (line.withholding and line.asking):
                    line.to_client.write(held)
                    held = b""
                    await line.to_client.drain()
        finally:
            line.close()

    def _choose(self, line: "_Line") -> How | None:
        """Decide whether to cut here; new connections are left alone, so that clients can make progress."""
        if self.total >= self._wanted or line.withholding or line.answers < 2:
            return None
        self._countdown -= 1
        if self._countdown > 0:
            return None
        self._countdown = self._chance.randint(1, self._furthest)
        return self._chance.choice(HOW)

    def _cut(self, line: "_Line", how: str) -> None:
        line.close()
        self.cuts[how] += 1


class _Line:
    """One client and its server connection."""

    def __init__(self, to_client: StreamWriter, to_server: StreamWriter) -> None:
        self.to_client, self.to_server = to_client, to_server
        self.answers = 0
        """Number of complete replies; the first two belong to the startup."""
        self.asking = True
        self.withholding = False
        """Whether the reply to the next commit is to be lost."""
        self.committed = False
        self._idle = False
        self._wrote = False

    def note(self, kind: bytes, body: bytes) -> None:
        """Track where a transaction ends: with COMMIT, or with any statement outside of one."""
        if kind == DONE:
            self.committed = self.committed or body == b"COMMIT\0"
            self._wrote = self._wrote or not body.startswith(NOT_WRITTEN)
        if kind == READY:
            self.committed = self.committed or (self._idle and body == IDLE and self._wrote)
            self._idle = body == IDLE

    def next(self) -> None:
        """Count a complete reply."""
        self.answers += 1
        self.asking = self.committed = self._wrote = False

    def close(self) -> None:
        """Cut both connections."""
        self.to_client.close()
        self.to_server.close()


async def _begin(line: _Line, client: StreamReader) -> None:
    """Forward the startup message, which has its own format; encryption is refused."""
    while True:
        length = await client.readexactly(4)
        rest = await client.readexactly(int.from_bytes(length) - 4)
        if int.from_bytes(rest[:4]) not in REFUSED:
            line.to_server.write(length + rest)
            return
        line.to_client.write(b"N")
