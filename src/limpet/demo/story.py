"""The plot of the demo. Everything shown is read from the store or from the service's counters when it is shown."""

import asyncio
import getpass
import json
import signal
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from rich.console import Console

import limpet
from limpet.clock import Duration
from limpet.demo.folder import DEFAULT, Folder, fresh
from limpet.demo.service import FACTS, Service, serving
from limpet.demo.stage import Stage, has_keyboard
from limpet.demo.ticket_agent import PLAN, RUN, VICTIM, support
from limpet.demo.words import args_of, words
from limpet.demo.worker_processes import DemoBroken, WorkerProcess, worker
from limpet.service.json_body import yes_or_no

__all__ = ["DemoOptions", "play"]

PATIENCE = "15s"
CHOICES = ("approve", "reject")
OTHERWISE = {"voucher": 1000}
ACTIONS = tuple(item for item in PLAN if item not in FACTS)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoOptions(Struct, frozen=True, kw_only=True):
    """Options of the demo."""

    folder: Path = DEFAULT
    slow: bool = False
    """Play slowly, for an audience."""
    yes: bool = False
    """Approve automatically, without a keyboard."""
    pause: Duration | None = None
    """Pause between lines, if not the default."""

    json: bool = False
    """Print only the outcome, as JSON."""

    def pause_on(self, console: Console) -> Duration:
        """Pause between lines, in microseconds."""
        if self.pause is not None:
            return self.pause
        return "1200ms" if self.slow else "200ms" if console.is_terminal else 0


def play(options: DemoOptions, console: Console | None = None) -> int:
    """Play the demo, and return the exit code. An interrupt prints one line, and leaves no process behind."""
    console = console or Console(highlight=False, quiet=options.json)
    try:
        stage = Stage(console, options.pause_on(console))
        with fresh(options.folder) as folder:
            return asyncio.run(_interruptible(_Story(options, folder, stage), console))
    except KeyboardInterrupt:
        return _interrupted(console, signal.SIGINT)


async def _interruptible(story: "_Story", console: Console) -> int:
    """Play until the end or a signal; on a signal, clean up first."""
    caught: list[signal.Signals] = []
    telling = asyncio.create_task(story.tell())

    def stop(number: signal.Signals) -> None:
        if not caught:
            telling.cancel()
        caught.append(number)

    for each in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(each, stop, each)
    try:
        return await telling
    except asyncio.CancelledError:
        if not caught:
            raise
        return _interrupted(console, caught[0])
    except DemoBroken as error:
        Console(stderr=True, highlight=False).print(f"error: {error}; the demo ends here", markup=False)
        return 1


def _interrupted(console: Console, number: signal.Signals) -> int:
    console.print(f"\ninterrupted by {number.name}: nothing is left running")
    return 128 + number


class _Story:
    """One performance of the demo."""

    def __init__(self, options: DemoOptions, folder: Folder, stage: Stage) -> None:
        self._options, self._folder, self._stage = options, folder, stage
        self._held = asyncio.Event()
        self._seen = 0

    async def tell(self) -> int:
        """Play all parts, and print commands for inspecting the result."""
        loop = asyncio.get_running_loop()
        with serving(lambda: loop.call_soon_threadsafe(self._held.set)) as (service, port):
            async with limpet.open(self._folder.url, agents=[support], worker=False) as app:
                handle = await app.start(support, RUN, id=RUN)
                async with worker(self._folder.url, port) as first:
                    await first.during(self._begin(handle, first))
                    await first.during(self._decide(app))
                    step = await first.during(self._until_held(handle))
                    killed = await self._kill(app, first, service, step)
                async with worker(self._folder.url, port) as second:
                    await second.during(self._go_on(handle, second))
                    await self._count(service)
                    await self._look_back(app, step)
                    fork = await second.during(self._fork(app, service, step))
                    await second.end()
                await self._verify(app)
        self._close(step, fork)
        if self._options.json:
            told = {"run": RUN, "fork": fork, "step": step, "killed": killed, "url": self._folder.url}
            print(json.dumps(told | {"done": {name: service.done[name] for name in ACTIONS}}))  # noqa: T201
        return 0 if _is_true(service) else 1

    # The run

    async def _begin(self, handle: limpet.Handle[str], first: WorkerProcess) -> None:
        self._stage.chapter(f"A worker process starts a run of {len(PLAN)} steps against a flaky service.")
        self._stage.line(f"run {handle.id}, executed by process {first.pid}", "dim")
        await self._follow(handle, lambda event: event.kind == "run.waiting")

    async def _decide(self, app: limpet.App) -> None:
        """Approve as the person at the keyboard, or automatically."""
        self._stage.chapter("The agent asks a person.")
        info = await app.info(RUN)
        self._stage.line(f"status: {info.status}, {info.position}", "dim")
        [request] = await app.inbox(run=RUN)
        self._stage.line(f"{request.question} {request.tool}({args_of(request.args)})", "bold")
        assert request.context is not None
        rows = [("to", ", ".join(request.to)), ("why", request.context.why)]
        rows += [("chose", f"{made.chosen}, because {made.because}") for made in request.context.decisions]
        rows += [(choice.answer, choice.effect) for choice in request.context.choices if choice.answer in CHOICES]
        self._stage.pairs(rows)
        said = await self._answer()
        if said is None:
            await app.approve(request, by="limpet demo")
        elif said[0]:
            await app.approve(request, by=getpass.getuser())
        else:
            await app.reject(request, by=getpass.getuser(), because=said[1] or "no reason was given")

    async def _answer(self) -> tuple[bool, str] | None:
        """Read a decision and its reason from the keyboard; return None after a timeout."""
        if self._options.yes or not has_keyboard():
            why = "--yes" if self._options.yes else "no keyboard"
            self._stage.line(f"{why}: approved automatically", "dim")
            return None
        self._stage.line(f"Enter approves · n and a reason reject · automatic after {PATIENCE}", "magenta")
        while (typed := await self._stage.typed(PATIENCE)) is not None:
            if (said := yes_or_no(typed.strip() or "yes")) is not None:
                return said
            self._stage.line("Type yes, or no and a reason.", "magenta")
        return None

    async def _until_held(self, handle: limpet.Handle[str]) -> int:
        """Wait until the service has applied the step's effect but not replied; return the step's number."""
        found = await self._follow(handle, lambda event: event.body.get("tool") == VICTIM)
        await self._held.wait()
        return int(found.body["number"])

    async def _kill(self, app: limpet.App, first: WorkerProcess, service: Service, step: int) -> int:
        self._stage.chapter(f"The process is killed in the middle of step {step}.")
        self._stage.line(f"the service has sent {service.done[VICTIM]} mail, but has not replied yet")
        await self._stage.rest(3)
        status = await first.kill()
        service.killed.set()
        self._stage.line(f"kill -9 {first.pid}: exited with {status} ({signal.Signals(-status).name})", "bold red")
        info = await app.info(RUN)
        self._stage.line(f"status: {info.status}, {info.position}")
        await self._stage.rest(3)
        return status

    async def _go_on(self, handle: limpet.Handle[str], second: WorkerProcess) -> None:
        self._stage.chapter("Another process continues from there.")
        self._stage.line(f"run {handle.id}, executed by process {second.pid}", "dim")
        await self._follow(handle, lambda event: event.kind == "run.completed")

    async def _follow(self, handle: limpet.Handle[str], wanted: Callable[[limpet.EventView], bool]) -> limpet.EventView:
        """Print events as they happen, until one matches."""
        with self._stage.bar(len(PLAN)):
            async for event in handle.events(after=self._seen):
                self._seen = event.seq
                text, style, more = words(event, len(PLAN))
                if event.kind == "step.started":
                    self._stage.at(event.body["number"])
                if text:
                    self._stage.line(text, style, more)
                    await self._stage.rest()
                if wanted(event):
                    return event
        raise DemoBroken(f"{handle.id} ended as {(await handle.info()).status}")

    # The inspection afterwards

    async def _count(self, service: Service) -> None:
        self._stage.chapter("What was really done? Counters of the service:")
        rows = [
            [name, *(str(each[name]) for each in (service.asked, service.refused, service.done))] for name in ACTIONS
        ]
        self._stage.table(["action", "requests", "refused", "applied"], rows)
        asked, refused = sum(service.asked.values()), sum(service.refused.values())
        self._stage.line(f"{asked} requests in all, with reads; {refused} of them refused", "dim")
        await self._stage.rest(4)

    async def _look_back(self, app: limpet.App, step: int) -> None:
        self._stage.chapter(f"The state before step {step}, and what changed after it:")
        self._stage.lines(await app.state(RUN, before=step))
        changed = await app.diff(RUN, since=limpet.Point(before=step), until=limpet.Point(before=step + 1))
        self._stage.line(f"changed before step {step + 1}:", "dim")
        self._stage.lines(changed, "green")
        await self._stage.rest(4)

    async def _fork(self, app: limpet.App, service: Service, step: int) -> str:
        """Fork before the step with another fact, with stubbed effects."""
        facts = ", ".join(f"{name} = {value}" for name, value in OTHERWISE.items())
        self._stage.chapter(f"What if? A fork before step {step} with {facts}, and stubbed effects:")
        asked = service.asked.total()
        fork = await app.fork(RUN, at=step, patch={"facts": OTHERWISE}, effects="stub")
        self._stage.line(f"{fork.id}: {await fork.result()}")
        self._stage.lines(await app.compare(RUN, fork.id), "dim")
        self._stage.line(f"requests to the service during the fork: {service.asked.total() - asked}", "green")
        await self._stage.rest(4)
        return fork.id

    async def _verify(self, app: limpet.App) -> None:
        self._stage.chapter("Is the log intact?")
        self._stage.line(str(await app.verify()), "green")

    def _close(self, step: int, fork: str) -> None:
        self._stage.chapter("Inspect it yourself:")
        for text in (*self._folder.preparations(), *(f"limpet {each}" for each in _commands(step, fork))):
            self._stage.command(text)
        self._stage.console.print(f"\n{self._stage.seconds:.1f} s", style="dim")


def _commands(step: int, fork: str) -> tuple[str, ...]:
    return (
        "runs",
        f"show {RUN}",
        f"log {RUN}",
        f"state {RUN} --before {step}",
        f"compare {RUN} {fork}",
        f"replay {RUN} --to {step}",
        "verify",
    )


def _is_true(service: Service) -> bool:
    """Return whether the service applied each effect exactly once, and rejected ones never."""
    wanted = {name: int(service.asked[name] > 0) for name in ACTIONS}
    return service.done[VICTIM] == 1 and all(service.done[name] == often for name, often in wanted.items())
