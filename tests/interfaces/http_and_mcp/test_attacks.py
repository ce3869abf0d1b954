"""Attacks on the real server, over sockets. A legitimate caller is served meanwhile, and afterwards."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

import limpet
from limpet.web import server as server_module
from limpet.web.server import ServerOptions, serve
from tests.interfaces.http_and_mcp.clients import TOKEN

GOOD = {"authorization": f"Bearer {TOKEN}"}
AUTH = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def served(url: str) -> AsyncIterator[int]:
    """Run a server in this process, and yield its port."""
    where = asyncio.get_running_loop().create_future()
    options = ServerOptions(host="127.0.0.1", port=0, token=TOKEN, also={})
    serving = asyncio.ensure_future(serve({"main": limpet.open(url, worker=False)}, options, where.set_result))
    await asyncio.wait((serving, where), return_when=asyncio.FIRST_COMPLETED)
    try:
        yield int(where.result().rpartition(":")[2])
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def check_served(port: int, times: int = 3) -> None:
    """Check that a caller with a token is served, on a new connection each time."""
    for _ in range(times):
        where = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=where, headers=GOOD, timeout=30, verify=False) as client:
            assert (await client.get("/v1/stats")).status_code == 200


async def connect(port: int, said: str = "") -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said.encode("latin-1"))
    return reader, writer


async def answers(port: int, said: bytes) -> bytes:
    """Send bytes, and return all that the server replies until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        writer.write(said)
        writer.write_eof()
        await writer.drain()
    heard = b""
    with suppress(ConnectionError):
        heard = await reader.read()
    writer.close()
    return heard


async def close(many: Sequence[Streams]) -> None:
    for reader, writer in many:
        with suppress(ConnectionError):
            await reader.read()  # until the server has closed it
        writer.close()


@pytest.mark.parametrize(
    "said",
    [
        "",
        "GET /v1/stats HTTP/1.1\r\nHost: localhost\r\nX-A: ",
        "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["silent", "half a head", "half a body"],
)
async def test_slow_connections_shut_no_caller_out(url: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the server holds; the oldest are dropped for new ones, and the others after some time."""
    monkeypatch.setattr(server_module, "HEADERS", 0.4)
    monkeypatch.setattr(server_module, "BODY", 0.4)
    monkeypatch.setattr(server_module, "STRANGERS", 16)
    async with served(url) as port:
        slow = []
        for _ in range(2):
            slow += [await connect(port, said) for _ in range(2 * server_module.STRANGERS)]
            await check_served(port)
        await close(slow)
        await check_served(port)


async def test_a_connection_in_use_is_not_dropped_for_strangers(url: str) -> None:
    """Also while its first request is being answered, and when it is idle after that."""
    async with (
        served(url) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=GOOD, timeout=30) as client,
    ):
        assert (await client.get("/v1/stats")).status_code == 200
        strangers = [await connect(port) for _ in range(2 * server_module.STRANGERS)]
        opened = client._transport._pool.connections  # type: ignore[attr-defined] # the same connection is used
        assert (await client.get("/v1/stats")).status_code == 200
        assert client._transport._pool.connections == opened  # type: ignore[attr-defined]
        for _, writer in strangers:
            writer.close()


async def test_a_flood_without_a_token_shuts_no_caller_out(url: str) -> None:
    async with served(url) as port:

        async def flood(number: int) -> None:
            for _ in range(10):
                said = f"GET /v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer guess-{number}\r\n\r\n"
                assert (await answers(port, said.encode()))[:12] in (b"", b"HTTP/1.1 401")

        floods = [asyncio.ensure_future(flood(number)) for number in range(20)]
        await check_served(port, 10)
        await asyncio.gather(*floods)
        await check_served(port)


def deep(levels: int) -> bytes:
    return b'{"agent": "a", "input": ' + b"[" * levels + b"]" * levels + b"}"


def posted(body: bytes, *headers: str) -> bytes:
    head = ["POST /v1/runs HTTP/1.1", "Host: localhost", f"Authorization: Bearer {TOKEN}", *headers]
    return "\r\n".join([*head, "Content-Type: application/json", "Connection: close", "", ""]).encode() + body


def sized(body: bytes) -> bytes:
    return posted(body, f"Content-Length: {len(body)}")


def chunked(body: bytes) -> bytes:
    return posted(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), "Transfer-Encoding: chunked")


LARGE = json.dumps({"agent": "a", "input": "x" * 4_200_000}).encode()


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (sized(LARGE), 413),
        (chunked(LARGE), 413),
        (posted(b"{}", "Content-Length: 99999999999"), None),
        (sized(deep(100_000)), 400),
        (sized(deep(600)), 400),
        (sized(b'{"agent": "a", "input": ' + b"9" * 100_000 + b"}"), 400),
        (sized(b'{"agent": "a", "agent": "b"}'), 400),
        (sized(b'{"agent": "\xff"}'), 400),
        (sized(b"\x00" * 1000), 400),
        (f"GET /v1/runs HTTP/1.1\r\n{AUTH}X-A: {'x' * 100_000}\r\n\r\n".encode(), None),
        (f"GET /v1/{'x' * 20_000} HTTP/1.1\r\n{AUTH}\r\n".encode(), 414),
    ],
    ids=["length", "chunks", "promised", "deep", "too deep", "digits", "twice", "no text", "zeros", "header", "path"],
)
async def test_oversized_and_deep_bodies_are_refused(url: str, said: bytes, status: int | None) -> None:
    """A body that never comes, and a header that does not end, end the connection."""
    async with served(url) as port:
        heard = await answers(port, said)
        assert heard.split(b" ", 2)[1:2] in ([[], [b"400"]] if status is None else [[str(status).encode()]]), heard[
            :200
        ]
        assert len(heard) < 10_000
        await check_served(port)


INNER = f"POST /v1/runs/r/cancel HTTP/1.1\r\n{AUTH}Content-Length: 0\r\n\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"
SMUGGLED = {
    "length and chunks": f"Content-Length: 5\r\n{CHUNKED}0\r\n\r\n",
    "two lengths": f"Content-Length: 0\r\nContent-Length: {len(INNER)}\r\n\r\n",
    "a list of lengths": "Content-Length: 0, 9\r\n\r\n",
    "a signed length": "Content-Length: +0\r\n\r\n",
    "other chunks": "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks with a tab": "Transfer-Encoding:\tchunked, identity\r\n\r\n0\r\n\r\n",
    "a space before the colon": "Content-Length : 0\r\n\r\n",
    "a folded header": "X-A: b\r\n Content-Length: 0\r\n\r\n",
    "a bad chunk": f"{CHUNKED}-1\r\n\r\n",
    "an endless chunk size": f"{CHUNKED}{'0' * 400}\r\n",
    "a zero byte": "X-A: \0\r\n\r\n",
    "a bare return": "X-A: b\rContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLED)
async def test_a_request_cannot_hide_in_another(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes a connection with an ambiguous request, and executes no request that is hidden in it."""
    reached: list[str] = []

    async def cancel(*_: Any, **__: Any) -> None:
        reached.append("cancel")
        raise limpet.NotFound(what="run", id="r")

    monkeypatch.setattr(limpet.App, "cancel", cancel)
    async with served(url) as port:
        said = f"POST /v1/runs HTTP/1.1\r\n{AUTH}{SMUGGLED[name]}{INNER}"
        heard = await answers(port, said.encode("latin-1"))
        assert heard.count(b"HTTP/1.1 ") <= 1, heard
        assert not reached
        await check_served(port)


PATHS = [
    "//v1/runs",
    "/v1//runs",
    "/v1/./runs",
    "/v1/../v1/runs",
    "/v1/%2e%2e/v1/runs",
    "/healthz/../v1/runs",
    "/healthz%2f..%2fv1/runs",
    "/healthz/v1/runs",
    "/healthz;/v1/runs",
    "/readyz%00",
    "/V1/runs",
    "/v1/runs%00",
    "/v1/runs/%c0%ae%c0%ae",
    "/v1/runs/..%2f..%2ftokens",
    "http://localhost/v1/runs",
    "http://evil.example/v1/runs",
    "*",
    "/openapi.json/",
]


async def test_no_path_leads_around_the_guard(url: str) -> None:
    """Without a token, a path is refused or malformed, and tells nothing."""
    async with served(url) as port:
        for path in PATHS:
            for host in ("localhost", "evil.example"):
                said = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                heard = await answers(port, said.encode("latin-1"))
                status = int(heard.split(b" ", 2)[1])
                assert status in ((401, 400) if host == "localhost" else (421, 400)), (path, heard[:100])
                assert b"refund" not in heard
        await check_served(port)
