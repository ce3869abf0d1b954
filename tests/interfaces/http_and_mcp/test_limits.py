"""Limits of the server: large work apart from small, a bounded queue, and requests of each caller."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import limpet
from limpet.clock import FrozenClock
from limpet.web import asgi, limits
from limpet.web.limits import Buckets, RequestLimits

OPERATOR = limpet.Principal(name="ann", roles=("operator",))


@asynccontextmanager
async def served() -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client whose token is its name."""
    people = {name: limpet.Principal(name=name, roles=("operator",)) for name in ("ann", "bob")}
    async with limpet.open("memory:", worker=False) as app:
        transport = httpx.ASGITransport(asgi(app, auth=people.get))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client


def ask(client: httpx.AsyncClient, path: str, name: str = "ann") -> "asyncio.Task[httpx.Response]":
    return asyncio.ensure_future(client.get(path, headers={"authorization": f"Bearer {name}"}))


class Held:
    """An operation that lasts until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
        self.begun, self.go = asyncio.Semaphore(0), asyncio.Event()
        monkeypatch.setattr(limpet.App, operation, self._work)

    async def _work(self, *_: Any, **__: Any) -> Any:
        self.begun.release()
        await self.go.wait()
        raise limpet.NotFound(what="run", id="r")

    async def began(self, times: int) -> None:
        """Wait until it was called this often."""
        for _ in range(times):
            await self.begun.acquire()


async def test_large_work_holds_up_no_small_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """More large requests than run at once wait in a lane of their own."""
    held = Held(monkeypatch, "show")
    async with served() as client:
        large = [ask(client, "/v1/runs/r") for _ in range(3 * limits.LARGE)]
        await held.began(limits.LARGE)
        for path in ("/v1/stats", "/v1/runs", "/v1/agents"):
            assert (await ask(client, path)).status_code == 200
        assert held.begun.locked()  # no further one has begun
        held.go.set()
        assert [(await each).status_code for each in large] == [404] * len(large)


async def test_time_in_the_queue_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is told when to retry. Afterwards, everything is served again."""
    monkeypatch.setattr(limits, "QUEUE", 0.01)
    held = Held(monkeypatch, "show")
    async with served() as client:
        large = [ask(client, "/v1/runs/r") for _ in range(limits.LARGE)]
        await held.began(limits.LARGE)
        late = await ask(client, "/v1/runs/r")
        assert (late.status_code, late.json()["code"], late.headers["retry-after"]) == (503, "server_busy", "1")
        held.go.set()
        assert [(await each).status_code for each in large] == [404] * len(large)
        assert (await ask(client, "/v1/runs/r")).status_code == 404


async def test_one_caller_cannot_use_up_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests beyond a limit are refused; other callers are served."""
    monkeypatch.setattr(limits, "AT_ONCE", 2)
    held = Held(monkeypatch, "show")
    async with served() as client:
        two = [ask(client, "/v1/runs/r") for _ in range(2)]
        await held.began(2)
        third = await ask(client, "/v1/stats")
        assert (third.status_code, third.json()["code"]) == (429, "too_many_requests")
        assert third.headers["retry-after"] == "1"
        assert (await ask(client, "/v1/stats", "bob")).status_code == 200
        held.go.set()
        await asyncio.gather(*two)
        assert (await ask(client, "/v1/stats")).status_code == 200


async def test_requests_of_a_caller_are_counted() -> None:
    """The same name in another tenant is another caller."""
    clock = FrozenClock()
    limit = RequestLimits(clock)
    for _ in range(int(2 * limits.RATE)):
        async with limit.admitted(OPERATOR):
            pass
    with pytest.raises(limpet.TooManyRequests, match="200 a second"):
        async with limit.admitted(OPERATOR):
            pass
    async with limit.admitted(limpet.Principal(name="ann", tenant="acme")):
        pass
    clock.advance("1s")
    for _ in range(int(limits.RATE)):
        async with limit.admitted(OPERATOR):
            pass
    with pytest.raises(limpet.TooManyRequests):
        async with limit.admitted(OPERATOR):
            pass


def test_a_bucket_is_refilled_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FrozenClock()
    buckets = Buckets(clock, rate=2, burst=3)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.take("b") == 0
    clock.advance("500ms")
    assert [buckets.take("a") for _ in range(2)] == [0, 0.5]
    buckets.give_back("a")
    assert buckets.take("a") == 0
    clock.advance("1d")
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    monkeypatch.setattr(limits, "KEYS", 10)
    for number in range(100):
        buckets.take(number)
    assert len(buckets._left) <= 11  # only some keys are remembered


class HeldMount:
    """Another application, whose requests last until they are let go."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.set()
        await self.go.wait()
        await Response(status_code=204)(scope, receive, send)


async def test_other_applications_have_the_limits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """MCP is one: a caller cannot send more there."""
    monkeypatch.setattr(limits, "AT_ONCE", 1)
    held = HeldMount()
    async with limpet.open("memory:", worker=False) as app:
        inside = asgi(app, auth=lambda _: OPERATOR, also={"/held": (held, nullcontext)})
        transport = httpx.ASGITransport(inside)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"authorization": "Bearer x"}
            first = asyncio.ensure_future(client.post("/held", headers=headers))
            await held.begun.wait()
            for second in (await client.post("/held", headers=headers), await client.get("/v1/runs", headers=headers)):
                assert (second.status_code, second.json()["code"]) == (429, "too_many_requests")
            held.go.set()
            assert (await first).status_code == 204
            assert (await client.post("/held", headers=headers)).status_code == 204
