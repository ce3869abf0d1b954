"""Pages in a browser: only those of allowed origins may call the server. A proxy in front changes its address."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

import limpet
from limpet.web import asgi
from tests.interfaces.http_and_mcp.clients import TOKEN

GOOD = {"authorization": f"Bearer {TOKEN}"}
PAGE = "https://app.example.com"


@asynccontextmanager
async def served(url: str = "http://localhost:8700", **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with limpet.open("memory:", worker=False) as app:
        transport = httpx.ASGITransport(asgi(app, auth=TOKEN, **more))
        async with httpx.AsyncClient(transport=transport, base_url=url) as client:
            yield client


async def test_pages_of_an_allowed_origin_may_call_with_a_token() -> None:
    """The browser asks first, without a token. Cookies are never accepted."""
    async with served(origins=[PAGE]) as client:
        asks = {"origin": PAGE, "access-control-request-method": "POST"}
        allowed = await client.options("/v1/runs", headers=asks)
        assert (allowed.status_code, allowed.content) == (204, b"")
        assert allowed.headers["access-control-allow-origin"] == PAGE
        assert "idempotency-key" in allowed.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in allowed.headers
        found = await client.get("/v1/stats", headers={"origin": PAGE, **GOOD})
        assert (found.status_code, found.headers["access-control-allow-origin"]) == (200, PAGE)
        assert found.headers["vary"] == "origin"
        refused = await client.get("/v1/stats", headers={"origin": PAGE})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)
        plain = await client.get("/v1/stats", headers=GOOD)
        assert "access-control-allow-origin" not in plain.headers


@pytest.mark.parametrize(
    "origin",
    [
        "http://app.example.com",
        "https://app.example.com:444",
        "https://APP.example.com",
        "https://app.example.com.evil.example",
        "https://evil.example",
        "null",
        "*",
        "",
    ],
)
async def test_other_origins_are_refused(origin: str) -> None:
    async with served(origins=[PAGE]) as client:
        asks = {"origin": origin, "access-control-request-method": "POST"}
        for answer in (
            await client.options("/v1/runs", headers=asks),
            await client.get("/v1/stats", headers={"origin": origin, **GOOD}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (403, "wrong_origin")
            assert "access-control-allow-origin" not in answer.headers


async def test_no_page_is_allowed_by_default() -> None:
    async with served() as client:
        asks = {"origin": PAGE, "access-control-request-method": "GET"}
        assert (await client.options("/v1/runs", headers=asks)).status_code == 403
        own = {"origin": "http://localhost:8700", "access-control-request-method": "GET"}
        assert (await client.options("/v1/runs", headers=own)).status_code == 401


async def test_the_public_url_fixes_scheme_host_and_links() -> None:
    """A forwarded header of a stranger has no effect."""
    forwarded = {"x-forwarded-host": "evil.example", "x-forwarded-proto": "http", "forwarded": "host=evil.example"}
    async with served("http://runs.example.com", public_url="https://runs.example.com/") as client:
        for origin, status in (
            ("https://runs.example.com", 200),
            ("http://runs.example.com", 403),
            ("https://evil.example", 403),
        ):
            answer = await client.get("/openapi.json", headers={"origin": origin, **GOOD, **forwarded})
            assert answer.status_code == status
            if status == 200:
                assert answer.json()["servers"] == [{"url": "https://runs.example.com"}]
        assert (await client.get("/v1/stats", headers={**GOOD, "host": "evil.example"})).status_code == 421


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("origins", ["*"]),
        ("origins", ["https://app.example.com/"]),
        ("origins", ["app.example.com"]),
        ("origins", ["null"]),
        ("public_url", "runs.example.com"),
        ("public_url", "https://runs.example.com/limpet"),
        ("public_url", "ftp://runs.example.com"),
        ("public_url", "https://ann:pw@runs.example.com"),
    ],
)
async def test_a_bad_address_is_refused_when_the_server_is_made(name: str, given: Any) -> None:
    async with limpet.open("memory:", worker=False) as app:
        with pytest.raises(limpet.DefinitionError) as refused:
            asgi(app, auth=TOKEN, **{name: given})
        assert refused.value.what == name
