"""A server of streams in a process of its own, and viewers that go on after each cut."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NamedTuple

import limpet
from limpet.clock import SystemClock
from limpet.web.server import ServerOptions, serve

__all__ = ["TOKEN", "Seen", "serve_until_killed", "view"]

TOKEN = "limpet_" + "7b" * 32


class Seen(NamedTuple):
    """The messages that a viewer got, and how often it was cut off."""

    ids: list[str]
    data: list[bytes]
    cuts: int


async def serve_until_killed(pipe: Connection, url: str, port: int) -> None:
    """Serve a store whose runs other processes drive."""
    options = ServerOptions(host="127.0.0.1", port=port, token=TOKEN, also={})
    await serve({"main": limpet.open(url, worker=False)}, options, lambda _: pipe.send("ready"))


async def view(port: int, path: str, is_last: Callable[[bytes], bool]) -> Seen:
    """Read a stream to its last message, reconnecting after each cut."""
    clock, ids, data, cuts = SystemClock(), list[str](), list[bytes](), 0
    while True:
        with suppress(OSError):  # the server is not there yet, or was killed
            async for id, text in _messages(port, path, ids[-1] if ids else ""):
                ids.append(id)
                data.append(text)
                if is_last(text):
                    return Seen(ids, data, cuts)
            cuts += 1
        await clock.sleep(20_000)


async def _messages(port: int, path: str, after: str) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the messages of a stream until it is cut; one counts only with the empty line after it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        resuming = f"last-event-id: {after}\r\n" if after else ""
        ask = f"GET /v1/streams/{path} HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n{resuming}\r\n"
        writer.write(ask.encode())
        fields: dict[bytes, bytes] = {}
        while (line := await reader.readline()).endswith(b"\n"):
            name, _, value = line.rstrip(b"\r\n").partition(b": ")
            fields[name] = value
            if not name and b"id" in fields and b"data" in fields:
                yield fields[b"id"].decode(), fields[b"data"]
            if not name:
                fields = {}
    finally:
        writer.close()
