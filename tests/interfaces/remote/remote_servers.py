"""Servers for tests of the remote client: in this event loop, in a thread, and behind a proxy that loses replies."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import limpet
from limpet.web.server import ServerOptions, serve
from tests.interfaces.http_and_mcp.clients import TOKEN
from tests.servers.parking import parking

RATE = 1e9
"""Requests a second: tests send many."""


@asynccontextmanager
async def listening(apps: Mapping[str, limpet.App], *, port: int = 0, **more: Any) -> AsyncIterator[str]:
    """Serve open apps of tenants in this event loop, and yield the address."""
    where = asyncio.get_running_loop().create_future()
    options = ServerOptions(host="127.0.0.1", port=port, token=TOKEN, rate=RATE, ui=True, **{"also": {}, **more})
    task = asyncio.ensure_future(serve(apps, options, where.set_result))
    try:
        await asyncio.wait([where, task], return_when=asyncio.FIRST_COMPLETED)
        yield where.result() if where.done() else task.result()  # type: ignore[misc]
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def served_app(
    url: str = "memory:", agents: Sequence[limpet.Agent[Any, Any]] = (), **how: Any
) -> AsyncIterator[tuple[limpet.App, str]]:
    """Yield an app with a worker, and the address of a server over it."""
    async with parking(limpet.open(url, agents=agents, **how)) as app, listening({"main": app}) as address:
        yield app, address


@contextmanager
def served_in_thread(url: str, name: str) -> Iterator[tuple[str, str]]:
    """Serve a store from a thread; yield the address, and a token of a person with all roles."""
    found: list[tuple[str, str]] = []
    ready, stop = threading.Event(), threading.Event()

    async def main() -> None:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        threading.Thread(target=lambda: (stop.wait(), loop.call_soon_threadsafe(stopped.set)), daemon=True).start()
        async with limpet.open(url, worker=False) as app:
            made = await app.create_token(name, roles=ALL, rights=["raw"], groups=["sales"])
            async with listening({"main": app}) as address:
                found.append((address, made.token))
                ready.set()
                await stopped.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="server")
    thread.start()
    try:
        assert ready.wait(30)
        yield found[0]
    finally:
        stop.set()
        thread.join()


ALL: Any = ("operator", "approver", "auditor", "admin")
"""The roles of a person who may do everything."""


class LosingProxy:
    """Passes connections on to a server, and loses some replies: the server has done what was asked."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.lose: set[bytes] = set()
        """Beginnings of requests whose next reply is lost."""
        self.requests: list[bytes] = []
        """First line of each request."""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen, and yield the address."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, asks = await asyncio.open_connection("127.0.0.1", self._port)
        lost = asyncio.Event()
        both = [
            asyncio.ensure_future(self._forward(reader, asks, lost)),
            asyncio.ensure_future(self._back(answers, writer, lost)),
        ]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        asks.close()
        writer.close()

    async def _forward(self, reader: asyncio.StreamReader, asks: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        while data := await reader.read(1 << 16):
            line = data.partition(b"\r\n")[0]
            if b"HTTP/1.1" in line:
                self.requests.append(line)
                if found := next((each for each in self.lose if line.startswith(each)), None):
                    self.lose.discard(found)
                    lost.set()
            asks.write(data)

    async def _back(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        while data := await answers.read(1 << 16):
            if lost.is_set():
                break
            writer.write(data)
