"""Access over HTTP: every request needs a known host, no foreign origin, and a token, on every path."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import product
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp, Message

import limpet
from limpet.mcp import over_http
from limpet.service.operation import operations_of
from limpet.web import asgi
from limpet.web import server as server_module
from limpet.web.guard import HEADERS
from limpet.web.server import ServerOptions, serve
from tests.interfaces.http_and_mcp.clients import TOKEN

OPERATIONS = {name: each for name, each in operations_of(limpet.App).items() if "http" in each.doors}

GOOD = {"authorization": f"Bearer {TOKEN}"}
PATHS = [
    *(f"/v1{each.path}" for each in OPERATIONS.values()),
    "/openapi.json",
    "/mcp",
    "/",
    "/v1",
    "/docs",
    "/v1/../etc",
]
UNSAFE = ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]
# Each host and origin that a request can name, and the status of the answer.
CALLERS: list[tuple[str, str | None, int]] = [
    ("localhost:8700", None, 200),
    ("LOCALHOST:8700", None, 200),
    ("localhost.:8700", None, 200),
    ("localhost", None, 200),
    ("127.0.0.1:1", None, 200),
    ("[::1]:8700", None, 200),
    ("[::1]", None, 200),
    ("runs.example.com", None, 200),
    ("localhost:8700", "http://localhost:8700", 200),
    ("runs.example.com", "http://runs.example.com", 200),
    ("runs.example.com", "https://runs.example.com", 403),
    ("localhost:8700", "http://localhost:3000", 403),
    ("localhost:8700", "http://evil.example", 403),
    ("localhost:8700", "http://localhost:8700.evil.example", 403),
    ("localhost:8700", "http://evil@localhost:8700", 403),
    ("localhost:8700", "null", 403),
    ("localhost:8700", "", 403),
    ("localhost:8700", "localhost:8700", 403),
    ("localhost:8700", "http://[", 403),
    ("localhost:8700", "http://[::1", 403),
    ("evil.example", None, 421),
    ("evil.example:8700", "http://evil.example:8700", 421),
    ("localhost.evil.example", None, 421),
    ("localhost:8700:8700", None, 421),
    ("localhost:evil", None, 421),
    ("evil@localhost", None, 421),
    ("[::1].evil.example", None, 421),
    ("xn--localhost", None, 421),
    ("", None, 421),
]


@pytest.fixture
async def app() -> AsyncIterator[limpet.App]:
    """An open app in memory."""
    async with limpet.open("memory:", worker=False) as app:
        yield app


@asynccontextmanager
async def client_of(inside: ASGIApp, host: str = "localhost:8700") -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client without a token."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(inside), base_url=f"http://{host}") as client:
        yield client


@asynccontextmanager
async def server_of(url: str) -> AsyncIterator[int]:
    """Run a server in this process, and yield its port."""
    where = asyncio.get_running_loop().create_future()
    options = ServerOptions(host="127.0.0.1", port=0, token=TOKEN, also={})
    serving = asyncio.ensure_future(serve({"main": limpet.open(url, worker=False)}, options, where.set_result))
    try:
        yield int((await where).rpartition(":")[2])
    finally:
        serving.cancel()
        await asyncio.wait([serving])


@pytest.mark.parametrize("path", PATHS)
async def test_a_request_without_a_valid_token_is_refused(app: limpet.App, path: str) -> None:
    """Also on unknown paths. The response has the security headers."""
    refused: list[dict[str, str]] = [
        {},
        {"authorization": "Bearer "},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": f"Bearer {TOKEN} {TOKEN}"},
        {"authorization": f"Bearer {TOKEN}, Bearer {TOKEN}"},
        {"x-authorization": f"Bearer {TOKEN}"},
        {"cookie": f"token={TOKEN}; authorization=Bearer {TOKEN}"},
    ]
    also = {"/mcp": over_http({"main": app})}
    async with client_of(asgi(app, auth=TOKEN, also=also)) as client:
        for headers, method in product(refused, ["GET", "POST", "DELETE"]):
            answer = await client.request(method, path, headers=headers, params={"token": TOKEN, "access_token": TOKEN})
            assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in answer.text
            assert HEADERS.items() <= dict(answer.headers.raw).items()
        twice = [("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")]
        assert (await client.get(path, headers=twice)).status_code == 401


async def test_unknown_hosts_and_foreign_origins_are_refused(app: limpet.App) -> None:
    """A page of another server and a DNS-rebound name are refused, even with a token."""
    hosts = ["localhost", "127.0.0.1", "::1", "runs.example.com"]
    async with client_of(asgi(app, auth=TOKEN, hosts=hosts, also={"/mcp": over_http({"main": app})})) as client:
        for host, origin, status in CALLERS:
            headers = [("host", host), *([("origin", origin)] if origin is not None else [])]
            for path in ("/v1/stats", "/openapi.json"):
                answer = await client.get(path, headers=[*headers, *GOOD.items()])
                assert answer.status_code == status, (host, origin)
                without = await client.get(path, headers=headers)
                assert without.status_code == (401 if status == 200 else status), (host, origin)
            if status != 200:
                answer = await client.post("/mcp", headers=[*headers, *GOOD.items()])
                assert answer.status_code == status, (host, origin)
            two = [*headers, ("host", "localhost"), *GOOD.items()]
            assert (await client.get("/v1/stats", headers=two)).status_code == 421, (host, origin)


async def test_only_the_methods_of_a_path_are_allowed(app: limpet.App) -> None:
    allowed: dict[str, set[str]] = {}
    for each in OPERATIONS.values():
        allowed.setdefault(f"/v1{each.path}", set()).update({"POST"} if each.is_command else {"GET", "HEAD"})
    async with client_of(asgi(app, auth=TOKEN)) as client:
        for path, method in product(allowed, ["GET", *UNSAFE]):
            if method in allowed[path]:
                continue
            answer = await client.request(method, path, headers=GOOD)
            assert (answer.status_code, answer.json()["code"]) == (405, "not_found"), (method, path)
            assert set(answer.headers["allow"].split(", ")) == allowed[path]


def test_head_has_the_headers_of_get_and_no_body(server: httpx.Client) -> None:
    for path in ("/v1/runs/refund-50", "/v1/runs/refund-51", "/openapi.json"):
        head, get = server.head(path), server.get(path)
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert head.headers["content-length"] == get.headers["content-length"] == str(len(get.content))
    assert server.get("/v1/stats").status_code == 200  # the connection is still in step


async def test_replies_are_sent_without_delay(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nagle's algorithm would hold the second packet of a reply back for 40 ms."""
    delayed, accept = list[bool](), server_module._Connection.connection_made

    def accepted(self: Any, transport: Any) -> None:
        delayed.append(not transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        accept(self, transport)

    monkeypatch.setattr(server_module._Connection, "connection_made", accepted)
    async with server_of(url) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=GOOD) as client:
        assert (await client.get("/v1/stats")).status_code == 200
    assert delayed == [False]


async def test_only_the_documented_paths_exist(app: limpet.App) -> None:
    """There is no browser page for the API, because it would load code from elsewhere."""
    async with client_of(asgi(app, auth=TOKEN)) as client:
        described = (await client.get("/openapi.json", headers=GOOD)).json()
        found = [(path, method.upper()) for path, methods in described["paths"].items() for method in methods]
        assert sorted(found) == sorted((f"/v1{each.path}", each.http_method) for each in OPERATIONS.values())
        for path in ("/", "/docs", "/redoc", "/docs/oauth2-redirect", "/v1", "/v1/", "/v1/runs/", "/v2/runs", "/mcp"):
            answer = await client.get(path, headers=GOOD)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path


async def test_a_websocket_is_refused(app: limpet.App) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/v1/runs", "headers": [(b"authorization", f"Bearer {TOKEN}".encode())]}
    await asgi(app, auth=TOKEN)(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_tokens_come_from_a_string_a_list_a_function_or_the_environment(
    app: limpet.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No token, or a short one, is refused when the app is made."""

    def whose(token: str) -> limpet.Principal | None:
        return limpet.Principal(name="ann", roles=("viewer",)) if token == TOKEN else None

    async def asked(token: str) -> limpet.Principal | None:
        await asyncio.sleep(0)  # noqa: TID251 - another service is asked
        return whose(token)

    async def is_accepted(inside: ASGIApp, token: str = TOKEN) -> bool:
        async with client_of(inside) as client:
            answer = await client.get("/v1/stats", headers={"authorization": f"bearer  {token}"})
            return answer.status_code == 200

    other = "another-token-of-mine"
    for auth in (TOKEN, [other, TOKEN], (TOKEN,), asked, whose):
        assert await is_accepted(asgi(app, auth=auth))
        assert not await is_accepted(asgi(app, auth=auth), "x" * 30)
    assert await is_accepted(asgi(app, auth=[other, TOKEN]), other)
    monkeypatch.delenv("LIMPET_TOKEN", raising=False)
    for bad in ("", [], "short", [TOKEN, "short"], f"{TOKEN} ", f"ü{TOKEN}", f"{TOKEN}\n"):
        with pytest.raises(limpet.DefinitionError):
            asgi(app, auth=bad)
    monkeypatch.setenv("LIMPET_TOKEN", f"{TOKEN}\n")
    assert await is_accepted(asgi(app))
    with pytest.raises(limpet.DefinitionError):  # all tokens were revoked
        asgi(app, auth=[])
    for host in ("https://runs.example.com", "*", "a b", ""):
        with pytest.raises(limpet.DefinitionError, match="is not a host name"):
            asgi(app, hosts=[host])

    def broken(token: str) -> limpet.Principal:
        raise RuntimeError(f"no answer about {token}")

    async with client_of(asgi(app, auth=broken)) as client:
        answer = await client.get("/v1/stats", headers=GOOD)
        assert (answer.status_code, answer.json()["code"]) == (503, "auth_unavailable")
        assert "no answer" not in answer.text
        assert HEADERS.items() <= dict(answer.headers.raw).items()


async def test_the_server_opens_and_closes_an_app_that_is_not_open(url: str) -> None:
    """An open app stays open."""

    async def served(app: limpet.App) -> list[str]:
        inside, said = asgi(app, auth=TOKEN), asyncio.Queue[Message]()
        heard: list[Message] = []
        await said.put({"type": "lifespan.startup"})

        async def send(message: Message) -> None:
            heard.append(message)
            async with client_of(inside) as client:
                assert (await client.get("/v1/stats", headers=GOOD)).status_code == (200 if app.is_open else 503)
            await said.put({"type": "lifespan.shutdown"})

        await inside({"type": "lifespan"}, said.get, send)
        return [each["type"] for each in heard]

    both = ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    app = limpet.open(url, worker=False)
    assert await served(app) == both
    assert not app.is_open
    async with limpet.open(url, worker=False) as opened:
        assert await served(opened) == both
        assert opened.is_open


async def test_errors_have_their_http_status_and_hide_secrets(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error is logged, and the response does not contain its text."""

    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("password=hunter2222")

    async def changed(*_: Any, **__: Any) -> Any:
        raise limpet.Tampered(run="refund-50", seq=2, reason="its hash")

    async with limpet.open(url, worker=False) as app, client_of(asgi(app, auth=TOKEN)) as client:
        missing = await client.get("/v1/runs/refund-51", headers=GOOD)
        assert (missing.status_code, missing.json()["facts"]) == (404, {"what": "run", "id": "refund-51"})
        monkeypatch.setattr(limpet.App, "verify", changed)
        assert (await client.get("/v1/runs/refund-50/verify", headers=GOOD)).status_code == 409
        monkeypatch.setattr(limpet.App, "stats", broken)
        answer = await client.get("/v1/stats", headers=GOOD)
        assert (answer.status_code, answer.json()["code"]) == (500, "unexpected")
        assert "hunter" not in answer.text


async def test_the_api_can_be_mounted_in_another_application(url: str) -> None:
    """A closed app returns 503."""
    runs = limpet.open(url, worker=False)
    service = FastAPI()
    service.mount("/limpet", asgi(runs, auth=TOKEN))
    async with client_of(service) as client:
        closed = await client.get("/limpet/v1/runs", headers=GOOD)
        assert (closed.status_code, "not open" in closed.json()["detail"]) == (503, True)
        async with runs:
            assert (await client.get("/limpet/v1/runs/refund-50", headers=GOOD)).json()["run"]["id"] == "refund-50"
            assert (await client.get("/limpet/v1/runs/refund-50")).status_code == 401
            described = (await client.get("/limpet/openapi.json", headers=GOOD)).json()
            assert described["servers"] == [{"url": "/limpet"}]


async def test_silent_and_excess_connections_are_closed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incomplete head or body times out, and other clients are served meanwhile."""
    monkeypatch.setattr("limpet.web.server.HEADERS", 0.5)
    monkeypatch.setattr("limpet.web.server.BODY", 0.5)
    monkeypatch.setattr("limpet.web.server.STRANGERS", 6)
    async with server_of(url) as port:
        await check_silent_and_excess_connections(port)


async def check_silent_and_excess_connections(port: int) -> None:
    post = f"POST /v1/stats HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\nx"
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    for (_, writer), said in zip(silent, ("", "GET /v1/stats HTTP/1.1\r\nHost: loc", post), strict=True):
        writer.write(said.encode())
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=GOOD) as client:
        assert (await client.get("/v1/stats")).status_code == 200
    for reader, writer in silent:
        with suppress(ConnectionResetError):
            await reader.read()  # until the server closes it
        writer.close()
    many = [await asyncio.open_connection("127.0.0.1", port) for _ in range(9)]
    for reader, writer in many:
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_a_query_is_cancelled_when_its_client_disconnects(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(*_: Any, **__: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(limpet.App, "stats", endless)
    async with limpet.open(url, worker=False) as app:
        said: list[Message] = []

        async def receive() -> Message:
            await begun.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            said.append(message)

        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKEN}".encode())]
        scope = {"type": "http", "method": "GET", "path": "/v1/stats", "query_string": b"", "headers": headers}
        await asgi(app, auth=TOKEN)(scope, receive, send)
        await ended.wait()
