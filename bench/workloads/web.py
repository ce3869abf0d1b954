"""The HTTP API of a server process: requests a second and their latency, beside a bare FastAPI route."""

import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import limpet

__all__ = ["web"]

# Clients that send at the same time, for the requests a second.
CLIENTS = 8
LIMPET = str(Path(sys.executable).with_name("limpet"))
BARE = """\
import socket
import uvicorn
from fastapi import FastAPI

app = FastAPI()

@app.get("/run")
async def run() -> dict[str, object]:
    return {"id": "r", "status": "completed", "labels": {}, "output": "x" * 500}

listening = socket.create_server(("127.0.0.1", 0))
named = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listening.detach())
print('{"url": "http://127.0.0.1:%d"}' % named.getsockname()[1], flush=True)
config = uvicorn.Config(app, access_log=False, log_level="warning", http="h11")
uvicorn.Server(config).run([named])
"""
Ask = tuple[str, str, bytes]
"""Method, path and body of a request."""


@limpet.agent(name="bench_asked")
async def asked(run: limpet.Run, number: int) -> bool:
    """Waits for a person."""
    return bool(await run.ask(f"May number {number} go on?"))


def web(url: str, what: str, requests: int) -> dict[str, float]:
    """Return requests a second with 8 clients, and the milliseconds of a request of a single one."""
    if what == "bare":
        with _serving([sys.executable, "-c", BARE]) as address:
            return _measured(address, "", requests, lambda _: ("GET", "/run", b""))
    token, waiting = asyncio.run(_filled(url, 2 * requests if what == "answer" else 1))
    with _serving([LIMPET, "serve", "--url", url, "--port", "0", "--json", "--rate", "1000000"]) as address:
        return _measured(address, token, requests, _asks(what, waiting))


def _asks(what: str, waiting: Sequence[str]) -> Callable[[int], Ask]:
    """Return a function that makes the request with a number."""
    if what == "get":
        return lambda _: ("GET", "/v1/runs/r-0/info", b"")
    if what == "start":
        return lambda number: ("POST", "/v1/runs", json.dumps({"agent": "bench_asked", "input": number}).encode())
    return lambda number: ("POST", f"/v1/requests/{waiting[number]}/answer", b'{"answer": true}')


async def _filled(url: str, count: int) -> tuple[str, list[str]]:
    """Let some runs wait for a person. Returns a token, and the ids of their requests."""
    async with limpet.open(url, agents=[asked]) as app:
        for number in range(count):
            await app.start(asked, number, id=f"r-{number}", by="bench")
        while (await app.stats()).requests < count:
            await limpet.clock.SystemClock().sleep(10_000)
        waiting: list[str] = []
        cursor = None
        while len(waiting) < count:
            page = await app.inbox(limit=200, cursor=cursor)
            waiting += [each.id for each in page]
            cursor = page.next
        made = await app.create_token("bench", roles=["operator", "approver"])
    return made.token, waiting


@contextmanager
def _serving(command: Sequence[str]) -> Iterator[str]:
    """Run a server, and yield its address."""
    env = {**os.environ, "LIMPET_TOKEN": "0123456789abcdef0123456789abcdef"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["url"].removeprefix("http://")
        finally:
            server.terminate()


def _measured(address: str, token: str, requests: int, ask: Callable[[int], Ask]) -> dict[str, float]:
    taken = _send(address, token, [ask(number) for number in range(requests)])
    shares = [[ask(requests + number) for number in range(share, requests, CLIENTS)] for share in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as clients:
        begun = time.monotonic()
        for done in [clients.submit(_send, address, token, share) for share in shares]:
            done.result()
        seconds = time.monotonic() - begun
    ordered = sorted(taken)
    return {
        "requests": requests / seconds,
        "p50": statistics.median(ordered) * 1e3,
        "p99": ordered[len(ordered) * 99 // 100] * 1e3,
    }


def _send(address: str, token: str, asks: Sequence[Ask]) -> list[float]:
    """Send requests on one connection, and return the seconds of each."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    taken: list[float] = []
    connection = http.client.HTTPConnection(address, timeout=60)
    for method, path, body in asks:
        begun = time.monotonic()
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        text = answer.read()
        taken.append(time.monotonic() - begun)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]!r}")
    connection.close()
    return taken
