"""Health checks: they need no token, and notice a store that cannot be used."""

import asyncio
from pathlib import Path

import httpx
import pytest

import limpet
from limpet.clock import FrozenClock
from limpet.service.app import App
from limpet.stores import Store
from limpet.web import asgi
from limpet.web.health import Health
from tests.interfaces.http_and_mcp.clients import TOKEN


def client_of(inside: object, host: str = "10.0.0.7:8700") -> httpx.AsyncClient:
    """Return a client that names an address of the machine, as probes do."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(inside), base_url=f"http://{host}")  # type: ignore[arg-type]


async def test_a_server_is_alive_and_ready(tmp_path: Path) -> None:
    """Without a token, and by any host name. Before the app is open, the server is alive and not ready."""
    app = limpet.open(f"sqlite:///{tmp_path}/limpet.db", worker=False)
    async with client_of(asgi(app, auth=TOKEN)) as client:
        assert (await client.get("/healthz")).json() == {"status": "alive"}
        assert (await client.get("/readyz")).status_code == 503
    async with app, client_of(asgi(app, auth=TOKEN)) as client:
        ready = (await client.get("/readyz")).json()
        schema = (await app.store.about()).schema
        assert ready == {"status": "ready", "stores": 1, "unavailable": 0, "schema": schema}
        assert (await client.get("/healthz/")).status_code == 421  # everything else is behind the guard


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_deleted_or_replaced_file_is_noticed(
    tmp_path: Path, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply does not name the path."""
    monkeypatch.setattr("limpet.stores.sqlite.file_identity.EVERY", 0.0)
    monkeypatch.setattr("limpet.web.health.FRESH", 0)
    app = limpet.open(f"sqlite:///{tmp_path}/limpet.db", worker=False)
    async with app, client_of(asgi(app, auth=TOKEN)) as client:
        assert (await client.get("/readyz")).status_code == 200
        (tmp_path / "limpet.db").unlink()
        if replaced:
            (tmp_path / "limpet.db").touch()
        found = await client.get("/readyz")
        assert (found.status_code, found.json()["code"]) == (503, "store_unavailable")
        assert str(tmp_path) not in found.text
        assert (await client.get("/healthz")).status_code == 200


async def test_many_probes_are_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a check is returned for a second."""
    checks, about = 0, Store.about

    async def counted(store: Store) -> object:
        nonlocal checks
        checks += 1
        return await about(store)

    monkeypatch.setattr(Store, "about", counted)
    clock, stopping = FrozenClock(), asyncio.Event()
    app = limpet.open("memory:", worker=False)
    async with app, client_of(Health(asgi(app, auth=TOKEN), {"main": app}, clock, stopping)) as client:
        found = await asyncio.gather(*(client.get("/readyz") for _ in range(50)))
        assert ({each.status_code for each in found}, checks) == ({200}, 1)
        clock.advance("1s")
        await client.get("/readyz")
        assert checks == 2
        stopping.set()  # the server finishes what runs, and gets no more
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200


async def test_tenants_do_not_affect_each_other(tmp_path: Path) -> None:
    """The server is ready while one store is."""
    apps: dict[str, App] = {"acme": limpet.open(f"sqlite:///{tmp_path}/acme.db", worker=False)}
    async with limpet.open("memory:", worker=False) as app, client_of(asgi(app, auth=TOKEN, tenants=apps)) as client:
        ready = (await client.get("/readyz")).json()
        assert (ready["stores"], ready["unavailable"]) == (1, 1)
