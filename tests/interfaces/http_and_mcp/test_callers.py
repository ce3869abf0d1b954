"""Tokens in the store, over HTTP: tenants, revocation within a second, and no lookup for guesses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import limpet
from limpet.clock import FrozenClock
from limpet.stores import Store
from limpet.web import asgi, callers
from limpet.web.callers import Callers


class Lookups:
    """Counts the lookups of tokens in stores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.fails = 0, False
        found = Store.token

        async def token(store: Store, id: str) -> Any:
            self.count += 1
            if self.fails:
                raise limpet.StoreUnavailable(reason="no disk at /var/lib/limpet")
            return await found(store, id)

        monkeypatch.setattr(Store, "token", token)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> Lookups:
    return Lookups(monkeypatch)


@pytest.fixture
async def app() -> AsyncIterator[limpet.App]:
    async with limpet.open("memory:", worker=False) as app:
        yield app


def a_guess(number: int) -> str:
    """Return a well-formed token that no store knows."""
    from limpet.service.tokens import _checksum  # noqa: PLC0415 - as an attacker computes it

    start = f"lp_main_{number:012d}_{'0' * 52}"
    return f"{start}_{_checksum(start)}"


async def test_a_token_is_looked_up_once_a_second(app: limpet.App, lookups: Lookups) -> None:
    """A revoked one is refused within a second, and many requests at the same time are one lookup."""
    clock, made = FrozenClock(), await app.create_token("ann", roles=["viewer"], groups=["sales"])
    found = Callers({"main": app}, None, clock)
    many = await asyncio.gather(*(found.find(made.token, "10.0.0.1") for _ in range(100)))
    assert {each and (each.name, each.groups, each.roles, each.tenant) for each in many} == {
        ("ann", ("sales",), ("viewer",), "main")
    }
    assert lookups.count == 1
    await app.revoke_token(made.info.id)
    clock.advance("999ms")
    assert await found.find(made.token, "10.0.0.1") is not None
    clock.advance("1ms")
    assert await found.find(made.token, "10.0.0.1") is None


async def test_the_use_of_a_token_is_recorded_once_a_minute(app: limpet.App, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, made = FrozenClock(), await app.create_token("ann", roles=["viewer"])
    used, record = asyncio.Queue[str](), Store.use_token

    async def use(store: Store, id: str) -> bool:
        done = await record(store, id)
        await used.put(id)
        return done

    monkeypatch.setattr(Store, "use_token", use)
    found = Callers({"main": app}, None, clock)
    for _ in range(30):
        await found.find(made.token, "10.0.0.1")
        clock.advance("1s")
    assert await used.get() == made.info.id
    assert (await app.tokens())[0].last_used is not None
    clock.advance("60s")
    await found.find(made.token, "10.0.0.1")
    await used.get()
    assert used.empty()


async def test_guesses_reach_the_store_only_sometimes(app: limpet.App, lookups: Lookups) -> None:
    """A repeated guess is remembered, and each address may try only some; a known caller there is still served."""
    clock, made = FrozenClock(), await app.create_token("ann", roles=["viewer"])
    found = Callers({"main": app}, None, clock)
    assert await found.find(made.token, "10.0.0.1") is not None
    for _ in range(100):
        assert await found.find(a_guess(0), "10.0.0.1") is None
    assert lookups.count == 2
    for number in range(1, int(callers.BURST)):
        assert await found.find(a_guess(number), "10.0.0.1") is None
    with pytest.raises(limpet.TooManyRequests, match=r"10\.0\.0\.1"):
        await found.find(a_guess(1000), "10.0.0.1")
    assert lookups.count == 1 + callers.BURST
    assert await found.find(a_guess(1001), "10.0.0.2") is None  # another address
    clock.advance("2s")
    assert await found.find(made.token, "10.0.0.1") is not None
    for text in ("", "x" * 10_000, "lp_", "lp_main_a_b_c", made.token[:-1], f"{made.token}0", made.token.upper()):
        before = lookups.count
        assert await found.find(text, "10.0.0.3") is None
        assert lookups.count == before, "a malformed token was looked up"


async def test_an_unavailable_store_is_not_taken_for_an_unknown_token(app: limpet.App, lookups: Lookups) -> None:
    """The error names no path, and the token works as soon as the store does."""
    clock, made = FrozenClock(), await app.create_token("ann", roles=["viewer"])
    found = Callers({"main": app}, None, clock)
    lookups.fails = True
    with pytest.raises(limpet.AuthUnavailable) as refused:
        await found.find(made.token, "10.0.0.1")
    assert "/var" not in str(refused.value)
    lookups.fails = False
    assert await found.find(made.token, "10.0.0.1") is not None


@asynccontextmanager
async def two_tenants(folder: Path) -> AsyncIterator[tuple[dict[str, limpet.App], httpx.AsyncClient]]:
    """Yield the apps of two tenants, each with a run, and a client of their server."""
    async with AsyncExitStack() as stack:
        apps = {
            name: await stack.enter_async_context(limpet.open(f"sqlite:///{folder}/{name}.db", agents=[own]))
            for name in ("main", "acme")
        }
        for name, app in apps.items():
            await app.run(own, name, id=f"run-of-{name}")
        inside = asgi(apps["main"], auth="0123456789abcdef0123", tenants=apps)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(inside), base_url="http://localhost")
        yield apps, await stack.enter_async_context(client)


@limpet.agent(name="callers_own")
async def own(run: limpet.Run, name: str) -> str:
    return name


async def test_a_cursor_is_valid_only_for_its_tenant(tmp_path: Path) -> None:
    """It names its tenant, unless that is the default one."""
    async with two_tenants(tmp_path) as (apps, client):
        heads, cursors = {}, {}
        for name, app in apps.items():
            await app.start(own, "more", id=f"more-of-{name}")
            token = (await app.create_token("ann", roles=["operator"], tenant=name)).token
            heads[name] = {"authorization": f"Bearer {token}"}
            cursors[name] = (await client.get("/v1/runs?last=1", headers=heads[name])).json()["next"]
        assert (cursors["main"].count("~"), cursors["acme"].startswith("acme~")) == (0, True)
        for name, head in heads.items():
            for of, cursor in cursors.items():
                reply = await client.get("/v1/runs", params={"last": 1, "cursor": cursor}, headers=head)
                assert reply.status_code == (200 if of == name else 422)
                if of != name:
                    assert (reply.json()["code"], reply.json()["facts"]["path"]) == ("invalid_argument", "cursor")


async def test_a_token_shows_only_its_own_tenant(tmp_path: Path) -> None:
    """Runs, keys and tokens of one tenant do not exist for another. A token of an unknown tenant is refused."""
    async with two_tenants(tmp_path) as (apps, client):
        tokens = {
            name: (await app.create_token("ann", roles=["operator", "admin"], tenant=name)).token
            for name, app in apps.items()
        }
        lost = (await apps["acme"].create_token("ann", roles=["operator"], tenant="lost")).token
        swapped = (await apps["acme"].create_token("ann", roles=["operator"], tenant="main")).token
        for token in (lost, swapped):
            assert (await client.get("/v1/runs", headers={"authorization": f"Bearer {token}"})).status_code == 401
        for name, other in (("main", "acme"), ("acme", "main")):
            mine = {"authorization": f"Bearer {tokens[name]}"}
            seen = (await client.get("/v1/runs", headers=mine)).json()["items"]
            assert [each["id"] for each in seen] == [f"run-of-{name}"]
            assert (await client.get(f"/v1/runs/run-of-{other}", headers=mine)).status_code == 404
            made = await client.post(
                "/v1/runs", json={"agent": "callers_own", "input": "x"}, headers={**mine, "idempotency-key": "k"}
            )
            assert made.status_code == 201
            assert len((await client.get("/v1/tokens", headers=mine)).json()["items"]) == (3 if name == "acme" else 1)
        ids = {name: {row.id for row in await app.runs()} for name, app in apps.items()}
        assert ids["main"].isdisjoint(ids["acme"])
