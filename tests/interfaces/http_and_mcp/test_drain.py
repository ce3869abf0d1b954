"""A server that is stopped finishes what it serves."""

import threading
from pathlib import Path

import httpx

import limpet
from tests.interfaces.http_and_mcp.clients import TOKEN, serving


@limpet.agent(name="drain_waiter")
async def waiter(run: limpet.Run) -> int:
    return await run.receive("go", int)


async def test_a_caller_that_waits_gets_its_reply_when_the_server_stops(tmp_path: Path) -> None:
    """It waits for a run that no worker drives, and gets the run as it is. The server exits normally."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    async with limpet.open(url, agents=[waiter]) as app:
        await app.stats()
    found: list[httpx.Response] = []
    async with limpet.open(url, worker=False) as app:
        with serving(url) as client:

            def start() -> None:
                body = {"agent": "drain_waiter", "id": "r"}
                headers = {"authorization": f"Bearer {TOKEN}", "prefer": "wait=60"}
                found.append(httpx.post(f"{client.base_url}/v1/runs", json=body, headers=headers, timeout=90))

            thread = threading.Thread(target=start)
            thread.start()
            while not [each for each in await app.audit() if each.action == "start"]:
                pass
        thread.join()
    assert [(each.status_code, each.json()["status"]) for each in found] == [(201, "pending")]
