"""`make demo`: an agent of nine steps and a flaky service; killed at step 6, and gone on with by another process.

The service, both workers and the SIGKILL are real. No key, no network beyond this machine. The mail of step 6 was sent
when the process died, and nobody had heard: the next process finds that out, and the service's counters prove that
nothing was done twice.
"""

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast

from rich.console import Console
from rich.table import Table

import limpet

RUN = "ticket-42"
PLAN = ["ticket", "order", "customer", "policy", "refund", "mail", "crm", "team", "archive"]
ANSWERS: dict[str, Any] = {
    "ticket": {"order": "o-1", "text": "It arrived broken."},
    "order": {"id": "o-1", "cents": 4900, "email": "ann@example.org"},
    "customer": {"name": "Ann", "since": 2019},
    "policy": {"refund": "allowed", "because": "broken on arrival"},
}
console = Console(highlight=False)


# The agent


def call(path: str, key: str = "", **body: Any) -> Any:
    """One request to the service; what it cannot do now, it says before it has done anything."""
    connection = http.client.HTTPConnection("127.0.0.1", int(os.environ["LIMPET_DEMO_PORT"]), timeout=30)
    connection.request("POST", f"/{path}", json.dumps(body), {"Idempotency-Key": key})
    answer = connection.getresponse()
    data = json.loads(answer.read())
    connection.close()
    if answer.status == 503:
        raise limpet.NotApplied("the service is busy")
    return data


@limpet.tool(effect="none", retry=limpet.Retry(5, first="50ms"))
def fetch(what: str) -> dict[str, Any]:
    """A read: repeat it as you like."""
    return cast("dict[str, Any]", call(what))


@limpet.tool(effect="idempotent", retry=limpet.Retry(5, first="50ms"))
def refund(order: str, cents: int) -> str:
    """An action with a key: the service does it once for each key."""
    return str(call("refund", limpet.idempotency_key(), order=order, cents=cents)["receipt"])


@limpet.tool(effect="once", retry=limpet.Retry(5, first="50ms"))
def mail(to: str, text: str) -> str:
    """An action without a key …"""
    return str(call("mail", to=to, text=text)["id"])


@mail.verify
def was_mailed(to: str, text: str) -> limpet.Done[str] | None:
    """… so this says how to find out whether it was done."""
    found = call("sent", to=to, text=text)["id"]
    return limpet.Done(found) if found else None


@limpet.tool(effect="idempotent", retry=limpet.Retry(5, first="50ms"))
def note(where: str, text: str) -> str:
    """An entry somewhere, with a key."""
    return str(call(where, limpet.idempotency_key(), text=text)["id"])


@limpet.agent(steps=9)
async def support(run: limpet.Run, ticket: str) -> str:
    """Settle a ticket: look, decide, refund, tell everybody."""
    await run.patch(goal=f"settle {ticket}")
    facts = [await run.step(fetch.options(name=what), what) for what in PLAN[:4]]
    order = facts[1]
    await run.decide("refund?", choose="full", over=["none", "full"], because=facts[3]["because"])
    receipt = await run.step(refund, order["id"], order["cents"])
    await run.step(mail, order["email"], f"Refunded: {receipt}")
    for where in PLAN[6:]:
        await run.step(note.options(name=where), where, f"{ticket}: {receipt}")
    return receipt


# The service


class Service(ThreadingHTTPServer):
    """It counts, it is busy for every third request, and its answer to the first mail does not get through."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = 0
        self.applied = Counter[str]()
        self.by_key: dict[str, Any] = {}
        self.mails: dict[str, str] = {}
        self.mailed, self.killed = Event(), Event()

    def answer(self, path: str, key: str, body: dict[str, Any]) -> Any:
        """What a request gets; nothing if the service is busy."""
        if path == "sent":
            return {"id": self.mails.get(body["text"])}
        self.requests += 1
        if self.requests % 3 == 0:
            return None
        if path in ANSWERS:
            return ANSWERS[path]
        if path == "mail":
            self.applied["mail"] += 1
            self.mails[body["text"]] = f"m-{self.applied['mail']}"
            self.mailed.set()
            self.killed.wait(20)
            return {"id": self.mails[body["text"]]}
        if key not in self.by_key:
            self.applied[path] += 1
            self.by_key[key] = {"receipt": "R-7", "id": f"{path}-{self.applied[path]}"}
        return self.by_key[key]


class Handler(BaseHTTPRequestHandler):
    """JSON in, JSON out."""

    def do_POST(self) -> None:
        """Answer one request."""
        service = cast("Service", self.server)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        answer = service.answer(self.path[1:], self.headers["Idempotency-Key"], body)
        data = json.dumps(answer or {}).encode()
        try:
            self.send_response(503 if answer is None else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            return  # whoever asked was killed

    def log_message(self, *_: object) -> None:
        """Quiet."""


# The story


async def work(url: str) -> None:
    """One worker process, until the run has ended."""
    async with limpet.open(url, agents=[support]) as app:
        await app.run(support, RUN, id=RUN)


async def tell(url: str, after: int = 0, until: str = "run.completed") -> int:
    """Show what happens, as it happens; the last event that was shown."""
    async with limpet.open(url, worker=False) as app:
        while not await app.runs():
            await asyncio.wait_for(asyncio.to_thread(Event().wait, 0.02), 5)
        async for event in (await app.get(RUN)).events(after=after):
            after = event.seq
            if line := words(event):
                console.print(f"   {line}")
            if event.kind == until and event.body.get("number", 6) == 6:
                break
    return after


def words(event: limpet.Event) -> str:
    """One event, for people; nothing for most."""
    body = event.body
    match event.kind:
        case "run.claimed":
            died = "; the worker before it died" if body.get("died") else ""
            return f"[dim]claimed by worker …{body['worker'][-4:]}{died}[/]"
        case "step.started":
            again = f", attempt {body['attempt']}" if body["attempt"] > 1 else ""
            return f"step {body['number']} of 9  {body['name'].split('#')[0]}{again}"
        case "step.failed":
            return f"            [yellow]{body['failure']['message']}: tried again[/]"
        case "step.unknown":
            return "            [yellow]it started, and nobody heard what came of it: unknown[/]"
        case "step.resolved":
            return f"            [green]asked the service: {body['outcome'].replace('_', ' ')}; not sent again[/]"
        case "decision.made":
            return f"[cyan]decided: {body['chosen']['json']}, because {body['because']}[/]"
        case "run.completed":
            return f"[green]completed: {body['output']['json']}[/]"
        case _:
            return ""


def play(url: str) -> "subprocess.Popen[bytes]":
    """A worker process of its own."""
    return subprocess.Popen([sys.executable, "-m", "limpet.demo", url])  # noqa: S603 - ourselves


def main() -> None:
    """Tell the story, or be one of its processes."""
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1]))
        return
    service = Service()
    os.environ["LIMPET_DEMO_PORT"] = str(service.server_address[1])
    Thread(target=service.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="limpet-demo-") as folder:
        url = f"sqlite:///{Path(folder) / 'limpet.db'}"
        console.print("\n[bold]1. One process begins a run of nine steps, on a flaky service.[/]")
        worker = play(url)
        seen = asyncio.run(tell(url, until="step.started"))
        service.mailed.wait(20)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        service.killed.set()
        console.print("   [red]killed with SIGKILL: the mail has left, and its answer was not heard[/]")
        console.print("\n[bold]2. Another process takes the run over, and goes on from its step.[/]")
        worker = play(url)
        asyncio.run(tell(url, after=seen))
        worker.wait()
        console.print("\n[bold]3. What the service has done, by its own counters.[/]")
        show(service)
    sys.exit(0 if set(service.applied.values()) == {1} else 1)


def show(service: Service) -> None:
    """The counters."""
    table = Table(box=None, pad_edge=False)
    table.add_column("   action")
    table.add_column("done", justify="right")
    for action in ("refund", "mail", *PLAN[6:]):
        table.add_row(f"   {action}", str(service.applied[action]))
    console.print(table)
    console.print(f"\n   {service.requests} requests, every third one refused; nothing was done twice.\n")


if __name__ == "__main__":
    main()
