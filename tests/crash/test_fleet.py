"""Two agents in a fleet of processes on one SQLite file, and whoever is in it is killed: nothing is stuck or doubled.

At once: two `limpet worker`, a script that starts runs, `limpet runs --watch` as JSON and as a table on a terminal, and
a person who answers with `limpet answer` and `limpet approve`. `LIMPET_SEED=7` chooses who is killed when.
"""

import asyncio
import json
import os
import random  # noqa: TID251 - who is killed when
import signal
import sys
from asyncio import TaskGroup
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Condition
from typing import Any

import limpet
from limpet.clock import SystemClock
from tests.crash.counting_service import Service
from tests.interfaces.cli.run_cli import LIMPET, ROOT, Terminal, terminal
from tests.interfaces.demo.demo_process import env_of, left_behind, plain

SEED = os.environ.get("LIMPET_SEED")
# Seconds after which nothing comes any more.
PATIENCE = 120
# Of a worker: only if its death is seen does anybody go on before the test is given up.
LEASE = "1h"
ENDED = ("completed", "failed", "cancelled")
WATCH = ("runs", "--watch", "--last", "1000")
# What is killed, in ten kills.
VICTIMS = ("first", "first", "first", "second", "second", "second", "starter", "starter", "watcher", "person")
# What is started for each kill: one of them asks.
ORDERS = (("clerk", "ask"), ("buyer", "free")), (("clerk", "free"), ("buyer", "approve"))
# Microseconds, at most, that somebody lives on after a run has come so far.
MOMENT = 150_000


class Member:
    """A process of the fleet, which is started again after it was killed; its lines are read as they come."""

    def __init__(self, group: TaskGroup, env: dict[str, str], *words: str) -> None:
        self._group, self._env, self._words = group, env, words
        self.lines: list[str] = []
        self._heard = asyncio.Condition()
        self.process: Process | None = None

    async def start(self) -> None:
        """Begin, or begin again."""
        self.lines = []
        self.process = process = await asyncio.create_subprocess_exec(
            *self._words, cwd=ROOT, env=self._env, stdin=PIPE, stdout=PIPE, stderr=STDOUT
        )
        self._reading = self._group.create_task(self._read(process, self.lines))

    async def end(self, how: int) -> int:
        """Send it a signal; how it ended."""
        assert self.process is not None
        send(self.process, how)
        return await self.ended()

    async def ended(self) -> int:
        """How it ended, with everything read that it said."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            await self._reading
            return await self.process.wait()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, which its lines tell."""
        async with asyncio.timeout(PATIENCE), self._heard:
            await self._heard.wait_for(is_so)

    async def _read(self, process: Process, lines: list[str]) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):  # it may be killed in the middle of one
                async with self._heard:
                    lines.append(line.decode().rstrip("\n"))
                    self.take(lines)
                    self._heard.notify_all()

    def take(self, lines: list[str]) -> None:
        """A line has come."""


class Worker(Member):
    """A `limpet worker`: it logs nothing that is worse than news."""

    def take(self, lines: list[str]) -> None:
        """It must not complain."""
        assert " INFO " in lines[-1], "\n".join(lines)


class Starter(Member):
    """The script that starts runs: what it did not acknowledge is ordered again from the next."""

    def __init__(self, group: TaskGroup, env: dict[str, str]) -> None:
        super().__init__(group, env, sys.executable, "-m", "tests.crash.fleet")
        self.acknowledged: list[str] = []
        self._ordered: dict[str, str] = {}

    async def start(self) -> None:
        """Begin, with what nobody knows of."""
        await super().start()
        self._send(run for run in self._ordered if run not in self.acknowledged)

    def order(self, agent: str, way: str, run: str) -> None:
        """Let it start a run."""
        self._ordered[run] = f"{agent} {way} {run}\n"
        self._send([run])

    def _send(self, runs: Iterable[str]) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write("".join(self._ordered[run] for run in runs).encode())

    def take(self, lines: list[str]) -> None:
        """A run is stored."""
        if lines[-1] != "ready":
            assert lines[-1] in self._ordered, "\n".join(lines)
            self.acknowledged.append(lines[-1])


class Watcher(Member):
    """A `limpet runs --watch --json`: what it shows of a run goes forward, and ends once."""

    def __init__(self, group: TaskGroup, env: dict[str, str]) -> None:
        super().__init__(group, env, LIMPET, *WATCH, "--json")
        self.shown: dict[str, dict[str, Any]] = {}
        self.changes: set[tuple[str, str]] = set()
        """Statuses that followed each other before its eyes."""

    async def start(self) -> None:
        """Begin, and know nothing."""
        self.shown = {}
        await super().start()

    def take(self, lines: list[str]) -> None:
        """A run has changed."""
        run = json.loads(lines[-1])
        before = self.shown.get(run["id"])
        if before is not None:
            assert before["status"] not in ENDED, lines[-1]
            assert before["updated"] <= run["updated"], lines[-1]
            self.changes.add((before["status"], run["status"]))
        self.shown[run["id"]] = run


class Person:
    """Answers whatever is asked, each with a command; one that is killed is typed again."""

    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._typing: Process | None = None
        self._began = asyncio.Condition()
        self.answers = 0

    async def answer_all(self) -> None:
        """For ever."""
        with self._fleet.app.store.watch() as watch:
            while True:
                requests = await self._fleet.app.inbox()
                for request in requests:
                    await self._answer(request)
                if not requests:
                    await watch.changed()

    async def kill(self, moment: int) -> bool:
        """Kill the command that is being typed, or the next one; whether it was still there."""
        async with asyncio.timeout(PATIENCE), self._began:
            await self._began.wait_for(lambda: self._typing is not None)
            typing = self._typing
        assert typing is not None
        await SystemClock().sleep(moment)
        await kill(typing)
        return typing.returncode == -signal.SIGKILL

    async def _answer(self, request: limpet.Request) -> None:
        words = [*await self._say(request), "--by", "ann", "--json"]
        env = self._fleet.env
        process = await asyncio.create_subprocess_exec(LIMPET, *words, cwd=ROOT, env=env, stdout=PIPE, stderr=PIPE)
        async with self._began:
            self._typing = process
            self._began.notify_all()
        try:
            out, error = await process.communicate()
        finally:
            await kill(process)
            self._typing = None
        if process.returncode == -signal.SIGKILL:
            return
        assert (process.returncode, error) == (0, b""), (words, error)
        assert json.loads(out)["request"] == request.id
        self.answers += 1

    async def _say(self, request: limpet.Request) -> list[str]:
        """What they type; whether something was done, they ask the service."""
        if request.kind == "approval":
            return ["approve", request.id]
        if request.kind == "ask":
            return ["answer", request.id, "ours"]
        assert (request.kind, request.tool) == ("unknown", "fleet_ship"), request
        service = self._fleet.service
        await asyncio.to_thread(service.settle)
        times = service.applied[f"/once/{request.run}/ship"]
        return ["answer", request.id, json.dumps({"applied": times}) if times else "not_applied"]


def send(process: Process, how: int) -> None:
    """A signal, unless it has ended; its own method would look, and take how it ended from whoever waits for that."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, how)


async def kill(process: Process) -> None:
    """Unless it has ended."""
    send(process, signal.SIGKILL)
    await process.wait()


class Fleet:
    """All of them, on one store."""

    def __init__(self, group: TaskGroup, app: limpet.App, service: Service, env: dict[str, str], seed: int) -> None:
        self.app, self.service, self.env = app, service, env
        self._chance = random.Random(seed)
        words = (LIMPET, "worker", "tests.crash.fleet:agents", "--lease", LEASE)
        self.workers = {name: Worker(group, env, *words) for name in ("first", "second")}
        self.starter, self.watcher, self.person = Starter(group, env), Watcher(group, env), Person(self)
        self.kills = 0

    @property
    def members(self) -> dict[str, Member]:
        """By name."""
        return {**self.workers, "starter": self.starter, "watcher": self.watcher}

    async def start(self) -> None:
        """The store knows the agents once a worker serves them."""
        for worker in self.workers.values():
            await worker.start()
        first = self.workers["first"]
        await first.until(lambda: any("serving" in line for line in first.lines))
        await self.starter.start()
        await self.watcher.start()

    async def work(self, kills: int) -> None:
        """Start runs, and kill somebody about them, again and again."""
        whom = VICTIMS if kills >= len(VICTIMS) else sorted(set(VICTIMS))
        victims: list[str] = []
        for number in range(kills):
            if not victims:
                victims = self._chance.sample(whom, len(whom))
            runs = []
            for agent, way in self._chance.choice(ORDERS):
                runs.append((agent, f"{agent}-{number}"))
                self.starter.order(agent, way, runs[-1][1])
            await self._kill(victims.pop(), runs)

    async def _kill(self, victim: str, runs: Sequence[tuple[str, str]]) -> None:
        """Some moment after one of the new runs has come somewhere; or at once, whatever the victim is about."""
        moment, place = self._chance.randrange(MOMENT), self._chance.randrange(len(runs) + 1)
        if victim == "person":
            self.kills += await self.person.kill(moment * 5)
            return
        if place < len(runs):
            agent, run = runs[place]
            if victim == "starter":
                moment //= 20
                await self.starter.until(lambda: run in self.starter.acknowledged)
            else:
                first = f"/keyed/{run}/reserve" if agent == "buyer" else f"/read/{run}/look"
                await asyncio.to_thread(self.service.wait_for, first)
        if victim in self.workers:
            await self._until_none_is_suspect()
        await SystemClock().sleep(moment)
        assert await self.members[victim].end(signal.SIGKILL) == -signal.SIGKILL, self.members[victim].lines
        await self.members[victim].start()
        self.kills += 1

    async def _until_none_is_suspect(self) -> None:
        """Five deaths in a row would be a quarantine, and rightly so: after some, a run must get on with something."""
        async with asyncio.timeout(PATIENCE):
            with self.app.store.watch() as watch:
                while any([(await self.app.store.get(run.id)).deaths > 2 for run in await self._left()]):
                    await watch.changed()

    async def settle(self, runs: int) -> None:
        """Wait until every run has ended, and whoever watches has seen it."""
        await self.starter.until(lambda: len({*self.starter.acknowledged}) == runs)
        with self.app.store.watch() as watch:
            while left := await self._left():
                async with asyncio.timeout(PATIENCE):
                    while await self._left() == left:
                        await watch.changed()
        ids = {each.id for each in await self.app.runs(last=1000)}
        seen = self.watcher.shown
        await self.watcher.until(lambda: {id for id in ids if seen.get(id, {}).get("status") == "completed"} == ids)

    async def _left(self) -> list[limpet.RunInfo]:
        """What has not ended."""
        return [run for run in await self.app.runs(last=1000) if run.status not in ENDED]

    async def stop(self) -> None:
        """As an operator does, and as they end then."""
        assert await self.starter.ended() == 0, self.starter.lines
        assert await self.watcher.end(signal.SIGINT) == 130, self.watcher.lines
        for worker in self.workers.values():
            await worker.until(lambda lines=worker.lines: any("serving" in line for line in lines))  # type: ignore[misc]
            assert await worker.end(signal.SIGTERM) == 0, worker.lines

    async def check(self, service: Service) -> None:
        """What is there in the end, as commands tell it."""
        inbox, verified, runs, found = await asyncio.gather(
            self.told("inbox"),
            self.told("verify"),
            self.told(*WATCH[:1], *WATCH[2:]),
            self.told("doctor", "tests.crash.fleet:agents", *WATCH[2:]),
        )
        assert inbox == []
        assert {each["what"] for each in found if each["level"] != "ok"} <= {"clock", "disk"}, found
        assert {run["id"] for run in runs if run["parent"] is None} == {*self.starter.acknowledged}
        assert {run["status"] for run in runs} == {"completed"}
        assert verified["runs"] == len(runs), verified
        assert {("waiting", "running"), ("running", "completed")} & self.watcher.changes, self.watcher.changes
        check_effects(service, runs)
        deaths = [await self._check_log(run["id"]) for run in runs]
        print(f"{len(runs)} runs, {self.kills} kills, {self.person.answers} answers, {sum(deaths)} taken over")

    async def _check_log(self, run: str) -> int:
        """It agrees with what lists show; how many workers died with the run in their hands."""
        assert await self.app.store.check_rows(run) == []
        return sum(bool(event.body.get("died")) for event in await self.app.log(run) if event.kind == "run.claimed")

    async def kill(self) -> None:
        """Whoever is left."""
        for member in self.members.values():
            if member.process is not None:
                await kill(member.process)

    async def told(self, *words: str) -> Any:
        """The JSON that a command prints."""
        process = await asyncio.create_subprocess_exec(
            LIMPET, *words, "--json", cwd=ROOT, env=self.env, stdout=PIPE, stderr=PIPE
        )
        out, error = await process.communicate()
        assert (process.returncode, error) == (0, b""), (words, out, error)
        return json.loads(out)

    async def complain(self) -> None:
        """What is known when something is stuck."""
        for run in await self._left():
            print(run, *await self.app.log(run.id), sep="\n")
        print(*await self.app.inbox(), sep="\n")
        print(*await self.app.workers(), sep="\n")
        for name, member in self.members.items():
            print(f"{name}:", *member.lines[-20:], sep="\n")


class Screen:
    """A `limpet runs --watch` on a terminal, which somebody looks at all the time."""

    def __init__(self, view: Terminal) -> None:
        self._view = view
        self._shown: dict[str, str] = {}
        self._drawn = Condition()

    def look(self) -> None:
        """Until it is over."""
        with suppress(AssertionError, OSError):  # that is how a terminal says that it has ended
            while True:
                for line in plain(self._view.until("\n")).splitlines():  # the last one of a table has no end
                    self._take(line.split())

    def until_completed(self, runs: Sequence[str]) -> None:
        """Wait until the table says so."""
        with self._drawn:
            done = self._drawn.wait_for(lambda: {self._shown.get(run) for run in runs} == {"completed"}, PATIENCE)
            assert done, self._shown

    def end(self) -> int:
        """Press Ctrl-C; how it ends."""
        self._view.type("\x03")
        return self._view.end()[1]

    def _take(self, words: Sequence[str]) -> None:
        """A line of the table: the run first."""
        status = next((word for word in words if word in (*ENDED, "pending", "running", "waiting")), None)
        if status is not None:
            with self._drawn:
                self._shown[words[0]] = status
                self._drawn.notify_all()


def check_effects(service: Service, runs: Sequence[dict[str, Any]]) -> None:
    """Each run did what its agent does, once; nothing else was done."""
    expected = {"clerk": ("/once/{}/pay", "/keyed/{}/note"), "buyer": ("/keyed/{}/reserve", "/once/{}/ship")}
    wanted = {path.format(run["id"]): 1 for run in runs for path in expected[run["agent"]]}
    assert {path: times for path, times in service.applied.items() if times} == wanted
    assert {path: service.arrived[path] for path in wanted if path.startswith("/once")} == {
        path: 1 for path in wanted if path.startswith("/once")
    }


async def play(folder: Path, seed: int, kills: int) -> None:
    """All of it, for so many kills."""
    url = f"sqlite:///{folder / 'limpet.db'}"
    with Service() as service:
        env = env_of(folder, LIMPET_URL=url, FLEET_PORT=str(service.server_port), NO_COLOR="1")
        async with limpet.open(url, worker=False) as app, TaskGroup() as group:
            fleet = Fleet(group, app, service, env, seed)
            try:
                await fleet.start()
                with terminal(LIMPET, *WATCH[:2], columns=160, **env) as view:
                    await go_on(group, fleet, Screen(view), kills)
                await fleet.check(service)
            except BaseException:
                await fleet.complain()
                raise
            finally:
                await fleet.kill()
    assert left_behind(folder) == []


async def go_on(group: TaskGroup, fleet: Fleet, screen: Screen, kills: int) -> None:
    """Everybody at once, until there is nothing more to do."""
    looking = asyncio.create_task(asyncio.to_thread(screen.look))
    answering = group.create_task(fleet.person.answer_all())
    await fleet.work(kills)
    await fleet.settle(2 * kills)
    await asyncio.to_thread(screen.until_completed, [run.id for run in await fleet.app.runs(last=20)])
    answering.cancel()
    await fleet.stop()
    assert await asyncio.to_thread(screen.end) == 130
    await looking


async def test_nothing_is_stuck(tmp_path: Path, full: bool) -> None:
    """Each of the five is killed, among 15 runs; with --full 100 kills among 300: all complete, each effect once."""
    seed = int(SEED) if SEED else random.randrange(1_000_000)
    print(f"LIMPET_SEED={seed}")
    await play(tmp_path, seed, 100 if full else 5)
