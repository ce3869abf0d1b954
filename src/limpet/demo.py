"""`make demo`: a run's log is written by one process, which is killed, and read and continued by another.

Both processes are real, and so is the SIGKILL. No key, no network.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import Raw
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from limpet import open_store
from limpet.clock import SystemClock
from limpet.events import AnyBody, PlanItem, StatePatch, canonical, inline
from limpet.events import bodies as b
from limpet.events.parts import Fact
from limpet.ids import RandomIds
from limpet.journal import Journal, load, verify_run
from limpet.stores import Store, WorkerRow

STEPS = (
    ("fetch_ticket", {"order": "o-1", "text": "It arrived broken."}),
    ("fetch_order", {"order": "o-1", "cents": 4900}),
    ("fetch_customer", {"name": "Ann", "email": "ann@example.org"}),
    ("check_policy", {"refund": "allowed"}),
    ("refund", {"receipt": "R-7"}),
    ("send_mail", {"sent": True}),
    ("update_crm", {"case": "closed"}),
    ("notify_team", {"channel": "support"}),
    ("archive", {"kept": "7 years"}),
)
KILLED_AT = 6
RUN = "ticket-42"
console = Console(highlight=False)


def main() -> None:
    """Tell the story, or play one of its processes."""
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory(prefix="limpet-demo-") as folder:
        url = f"sqlite:///{Path(folder) / 'limpet.db'}"
        console.print("\n[bold]1. One process begins a run of nine steps.[/]")
        play(url, kill_at=KILLED_AT)
        console.print("\n[bold]2. Another process takes the run over and goes on from its step.[/]")
        play(url)
        console.print("\n[bold]3. What the log says.[/]")
        asyncio.run(show(url))


def play(url: str, kill_at: int | None = None) -> None:
    """Start a worker process, and kill it while it is in a step."""
    command = [sys.executable, "-m", "limpet.demo", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ourselves
        assert process.stdout is not None
        console.print(f"   process {process.pid} is working")
        for line in process.stdout:
            console.print(f"   {escape(line.rstrip())}")
            if kill_at is not None and line.startswith(f"step {kill_at} started"):
                os.kill(process.pid, signal.SIGKILL)
                console.print(f"   [red]kill -9 {process.pid}[/]")
    if kill_at is None and process.returncode != 0:
        raise SystemExit(f"the worker ended with {process.returncode}")


async def work(url: str) -> None:
    """A worker: create the run unless it exists, claim it, and do what is left to do."""
    clock = SystemClock()
    worker = f"worker-{RandomIds(clock).new()}"
    async with open_store(url) as store:
        body = b.RunCreated(agent="support", agent_version="1", input=inline({"ticket": 42}), steps=len(STEPS))
        await store.create(RUN, body, actor=worker)
        await store.register(WorkerRow(id=worker, agents={"support": ("1",)}), lease=10_000_000)
        [claimed] = await store.claim(worker, limit=1)
        journal = await Journal.open(store, claimed, clock.now)
        say(f"claimed {RUN} under fence {journal.fence}, at {journal.state.position}")
        await go_on(store, journal)
        await store.retire(worker)


async def go_on(store: Store, journal: Journal) -> None:
    """Every step that has no recorded result: intent first, then the effect, then the result."""
    done = {body.number async for body in completed(store)}
    if not done:
        plan = tuple(PlanItem(item=tool) for tool, _ in STEPS)
        await journal.append(b.StatePatched(name="patch#1", patch=StatePatch(goal="settle ticket 42", plan=plan)))
    for number, (tool, output) in enumerate(STEPS, 1):
        if number in done:
            say(f"step {number} {tool}: recorded, not done again")
            continue
        await do(journal, number, tool, output)
    await journal.append_if_current(b.RunCompleted(output=inline("R-7")), heard=journal.heard)
    say(f"completed: {journal.state.position}, {journal.state.counters.steps_completed} steps")


async def do(journal: Journal, number: int, tool: str, output: object) -> None:
    """One step, with its intent durable before anything leaves the process."""
    await journal.append(
        b.StepStarted(
            name=f"{tool}#1", tool=tool, number=number, attempt=1, asked="", args=inline({}), effect="idempotent"
        )
    )
    say(f"step {number} started: {tool}")
    if number == KILLED_AT and journal.fence == 1:
        await asyncio.Event().wait()  # the effect hangs here, until the process is killed
    fact = Fact(key=tool, value=Raw(canonical(output)), source=tool, step=number)
    journal.add(b.StepCompleted(name=f"{tool}#1", number=number, attempt=1, output=inline(output)))
    await journal.append(b.StatePatched(name=f"patch#{number + 1}", patch=StatePatch(facts=(fact,))))
    say(f"step {number} completed: {tool}")


async def completed(store: Store) -> AsyncIterator[b.StepCompleted]:
    """The recorded results."""
    async for event in store.log(RUN):
        body = store.decode(event)
        if isinstance(body, b.StepCompleted):
            yield body


async def show(url: str) -> None:
    """The log as a table, the state that it folds to, and whether its chain is intact."""
    async with open_store(url) as store:
        table = Table("event", "kind", "fence", "says", box=None, pad_edge=False, padding=(0, 2))
        async for event in store.log(RUN):
            table.add_row(str(event.seq), event.kind, str(event.fence), escape(gist(store.decode(event))))
        console.print(table)
        state = await load(store, RUN)
        head = await verify_run(store, RUN)
    console.print(f"\n   {RUN} is [green]{state.status}[/]; it knows {len(state.working.known_facts)} facts.")
    console.print(f"   Each step completed once: {state.counters.steps_completed} of {len(STEPS)}.")
    console.print(f"   The chain of {head.seq} events is intact, head {head.hash.hex()[:16]}…\n")


def gist(said: AnyBody) -> str:
    """A few words on an event."""
    match said:
        case b.RunClaimed() as body:
            return "taken from a dead worker" if body.died else "a worker has it"
        case b.StepStarted() as body:
            return f"step {body.number}: {body.tool}"
        case b.StepCompleted() as body:
            return f"step {body.number}: {body.output.value() if body.output else None}"
        case b.StatePatched() as body:
            return ", ".join(fact.key for fact in body.patch.facts) or f"goal: {body.patch.goal}"
        case _:
            return ""


def say(text: str) -> None:
    """A line to the process that watches."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
