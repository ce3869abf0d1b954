"""The httpx adapter: real clients send the step's idempotency key."""

import subprocess
import sys
from typing import Any

import httpx
import pytest

import limpet
from limpet import testing
from limpet.adapters.httpx import async_hooks, hooks

seen: list[str | None] = []


def bank(request: httpx.Request) -> httpx.Response:
    """Record the key of each request. Only the first request fails."""
    seen.append(request.headers.get("Idempotency-Key"))
    return httpx.Response(503 if len(seen) == 1 else 200, json="R-1")


transport = httpx.MockTransport(bank)
client = httpx.Client(transport=transport, event_hooks=hooks(), base_url="https://bank.example")
async_client = httpx.AsyncClient(transport=transport, event_hooks=async_hooks(), base_url="https://bank.example")


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@limpet.tool(effect="idempotent", retry=limpet.Retry(3))
def httpx_pay(cents: int) -> str:
    return str(client.post("/pay", json=cents).raise_for_status().json())


@limpet.tool(effect="idempotent", retry=limpet.Retry(3))
async def httpx_pay_async(cents: int) -> str:
    return str((await async_client.post("/pay", json=cents)).raise_for_status().json())


@limpet.tool(effect="idempotent")
async def httpx_pay_own(cents: int) -> str:
    answer = await async_client.post("/pay", json=cents, headers={"idempotency-key": "mine"})
    return str(answer.status_code)


@limpet.tool(effect="none")
async def httpx_look() -> int:
    return (await async_client.get("/balance")).status_code


@limpet.agent()
async def pays(run: limpet.Run, how: str) -> str:
    tools: dict[str, limpet.Tool[[int], str, Any]] = {"sync": httpx_pay, "async": httpx_pay_async, "own": httpx_pay_own}
    await run.step(tools[how], 5)
    await run.step(httpx_look)
    return run.id


@pytest.mark.parametrize(("how", "tool"), [("sync", "httpx_pay"), ("async", "httpx_pay_async")])
async def test_every_attempt_sends_the_same_idempotency_key(how: str, tool: str) -> None:
    """The key is the same on every attempt of the step. A read sends no key."""
    async with testing.app(pays) as app:
        id = await app.run(pays, how)
    first, second, read = seen
    assert first is not None
    assert first.startswith(f"{id}:step_1:{tool}:")
    assert second == first
    assert read is None


async def test_a_key_set_on_the_request_is_kept() -> None:
    async with testing.app(pays) as app:
        await app.run(pays, "own")
    assert seen == ["mine", None]


async def test_no_key_is_sent_outside_a_step() -> None:
    client.post("/pay")
    await async_client.post("/pay")
    assert seen == [None, None]


def test_importing_the_adapter_does_not_import_httpx() -> None:
    """httpx need not be installed."""
    code = "import sys, limpet.adapters.httpx; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
