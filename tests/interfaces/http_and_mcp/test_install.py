"""The API inside another application, which says who its callers are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request

import limpet
from limpet import web
from limpet.web import event_streams

LEFT: set[str] = set()
"""Owners of sessions that have ended."""


async def whose(request: Request) -> limpet.Principal | None:
    """Return the owner of a session cookie."""
    name = request.cookies.get("session")
    if name in LEFT:
        return None
    if name == "broken":
        raise RuntimeError("the database of sessions is away: password=hunter2222")
    return None if name is None else limpet.Principal(name=name, roles=("operator",), tenant=name.partition("@")[2])


@limpet.agent(name="install_echo")
async def echo(run: limpet.Run, text: str) -> str:
    return text


@asynccontextmanager
async def installed(folder: Path) -> AsyncIterator[tuple[limpet.App, httpx.AsyncClient]]:
    """Yield an app that opens with its service, and a client of the service."""
    seen: list[bool] = []

    @asynccontextmanager
    async def own(_: FastAPI) -> AsyncIterator[None]:
        seen.append(app.is_open)  # the service can use the app when it starts
        yield

    app = limpet.open(f"sqlite:///{folder}/limpet.db", agents=[echo])
    service = FastAPI(lifespan=own)
    web.install(service, app, prefix="/agents", principal=whose)

    @service.get("/own")
    async def mine() -> dict[str, bool]:
        return {"mine": True}

    transport = httpx.ASGITransport(service)
    async with (
        service.router.lifespan_context(service),
        httpx.AsyncClient(transport=transport, base_url="https://shop.example.com") as client,
    ):
        yield app, client
    assert (seen, app.is_open) == ([True], False)


async def test_callers_of_the_service_use_the_api(tmp_path: Path) -> None:
    """They are recorded as senders, and errors are problems. The service's own routes stay."""
    async with installed(tmp_path) as (app, client):
        ann = {"cookie": "session=ann"}
        made = await client.post(
            "/agents/v1/runs",
            json={"agent": "install_echo", "input": "hi", "id": "r"},
            headers={**ann, "prefer": "wait=20"},
        )
        assert (made.status_code, made.headers["location"]) == (201, "/agents/v1/runs/r")
        assert made.json()["output"] == "hi"
        assert (await app.log("r"))[0].body["by"] == "ann"
        assert (await client.get("/agents/v1/runs/r", headers=ann)).json()["run"]["id"] == "r"
        assert (await client.get("/agents/openapi.json", headers=ann)).json()["servers"] == [{"url": "/agents"}]
        missing = await client.get("/agents/v1/runs/nothing", headers=ann)
        assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")
        assert (await client.get("/agents/nowhere", headers=ann)).json()["code"] == "not_found"
        assert (await client.get("/own")).json() == {"mine": True}
        assert (await client.get("/nowhere")).json() == {"detail": "Not Found"}


async def test_streams_work_inside_another_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream ends when its caller's session has ended."""
    monkeypatch.setattr(import_module("limpet.web.install"), "EVERY", 0)
    monkeypatch.setattr(event_streams, "RECHECKED", 0.05)
    async with installed(tmp_path) as (app, client):
        ann = {"cookie": "session=ann"}
        await app.run(echo, "hi", id="r")
        whole = (await client.get("/agents/v1/streams/runs/r", headers=ann)).text
        assert whole.count("\nid: ") + 1 == len(await app.log("r"))
        assert whole.endswith("\n\nevent: end\ndata: {}\n\n")
        watching = asyncio.ensure_future(client.get("/agents/v1/streams/runs", headers=ann))
        while not app._feed._viewers:
            await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
        LEFT.add("ann")
        try:
            assert (await watching).text.endswith("\n\nevent: resume\ndata: {}\n\n")
        finally:
            LEFT.clear()


async def test_others_are_refused(tmp_path: Path) -> None:
    """Callers that are not known, of an unknown tenant, or with a page of another site, which has their cookie."""
    async with installed(tmp_path) as (_, client):
        for headers, status, code in (
            ({}, 401, "not_authenticated"),
            ({"cookie": "session=ann@acme"}, 401, "not_authenticated"),
            ({"cookie": "session=broken"}, 503, "auth_unavailable"),
            ({"cookie": "session=ann", "origin": "https://evil.example"}, 403, "wrong_origin"),
            ({"cookie": "session=ann", "origin": "http://shop.example.com"}, 403, "wrong_origin"),
        ):
            answer = await client.post("/agents/v1/runs/r/resume", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (status, code)
            assert "hunter" not in answer.text
            assert answer.headers["cache-control"] == "no-store"
        own = {"cookie": "session=ann", "origin": "https://shop.example.com"}
        assert (await client.get("/agents/v1/stats", headers=own)).status_code == 200


async def test_a_prefix_begins_with_a_slash() -> None:
    for prefix in ("", "/", "agents", "/agents/"):
        with pytest.raises(limpet.DefinitionError, match="prefix"):
            web.install(FastAPI(), limpet.open("memory:"), prefix=prefix, principal=whose)
