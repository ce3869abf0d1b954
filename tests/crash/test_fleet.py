"""A fleet of processes on one SQLite file, whose members are killed: no run gets stuck, no effect happens twice.

Concurrently: two `limpet worker`, a script that starts runs, `limpet runs --watch` as JSON and on a terminal, and a
person who uses `limpet answer` and `limpet approve`. `LIMPET_SEED=7` selects who is killed when.
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
# Seconds without progress after which the test fails.
PATIENCE = 120
# Lease of a worker: longer than the test, so that runs continue only if the worker's death is detected.
LEASE = "1h"
ENDED = ("completed", "failed", "cancelled")
WATCH = ("runs", "--watch", "--last", "1000")
# Members killed in ten kills.
VICTIMS = ("first", "first", "first", "second", "second", "second", "starter", "starter", "watcher", "person")
# Runs started for each kill; one of them asks a person.
ORDERS = (("clerk", "ask"), ("buyer", "free")), (("clerk", "free"), ("buyer", "approve"))
# Maximum delay of a kill after a run has made progress, in microseconds.
MOMENT = 150_000


class Member:
    """A process of the fleet that is restarted after it was killed. Its lines are read as they are printed."""

    def __init__(self, group: TaskGroup, env: dict[str, str], *words: str) -> None:
        self._group, self._env, self._words = group, env, words
        self.lines: list[str] = []
        self._heard = asyncio.Condition()
        self.process: Process | None = None

    async def start(self) -> None:
        """Start the process, or start it again."""
        self.lines = []
        self.process = process = await asyncio.create_subprocess_exec(
            *self._words, cwd=ROOT, env=self._env, stdin=PIPE, stdout=PIPE, stderr=STDOUT
        )
        self._reading = self._group.create_task(self._read(process, self.lines))

    async def end(self, how: int) -> int:
        """Send a signal, and return the exit code."""
        assert self.process is not None
        send(self.process, how)
        return await self.ended()

    async def ended(self) -> int:
        """Read all output, and return the exit code."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            await self._reading
            return await self.process.wait()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition holds that depends on its lines."""
        async with asyncio.timeout(PATIENCE), self._heard:
            await self._heard.wait_for(is_so)

    async def _read(self, process: Process, lines: list[str]) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):  # it may be killed in the middle of a line
                async with self._heard:
                    lines.append(line.decode().rstrip("\n"))
                    self.take(lines)
                    self._heard.notify_all()

    def take(self, lines: list[str]) -> None:
        """Handle a new line."""


class Worker(Member):
    """A `limpet worker` that must log nothing above INFO."""

    def take(self, lines: list[str]) -> None:
        """Check the level of the line."""
        assert " INFO " in lines[-1], "\n".join(lines)


class Starter(Member):
    """The script that starts runs. Unacknowledged runs are ordered again after a restart."""

    def __init__(self, group: TaskGroup, env: dict[str, str]) -> None:
        super().__init__(group, env, sys.executable, "-m", "tests.crash.fleet")
        self.acknowledged: list[str] = []
        self._ordered: dict[str, str] = {}

    async def start(self) -> None:
        """Start, and order all unacknowledged runs again."""
        await super().start()
        self._send(run for run in self._ordered if run not in self.acknowledged)

    def order(self, agent: str, way: str, run: str) -> None:
        """Order a run."""
        self._ordered[run] = f"{agent} {way} {run}\n"
        self._send([run])

    def _send(self, runs: Iterable[str]) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write("".join(self._ordered[run] for run in runs).encode())

    def take(self, lines: list[str]) -> None:
        """Record an acknowledged run."""
        if lines[-1] != "ready":
            assert lines[-1] in self._ordered, "\n".join(lines)
            self.acknowledged.append(lines[-1])


class Watcher(Member):
    """A `limpet runs --watch --json`: a run never goes back, and ends once."""

    def __init__(self, group: TaskGroup, env: dict[str, str]) -> None:
        super().__init__(group, env, LIMPET, *WATCH, "--json")
        self.shown: dict[str, dict[str, Any]] = {}
        self.changes: set[tuple[str, str]] = set()
        """Pairs of consecutive statuses that it has shown."""

    async def start(self) -> None:
        """Start without any known runs."""
        self.shown = {}
        await super().start()

    def take(self, lines: list[str]) -> None:
        """Check and record a changed run."""
        run = json.loads(lines[-1])
        before = self.shown.get(run["id"])
        if before is not None:
            assert before["status"] not in ENDED, lines[-1]
            assert before["updated"] <= run["updated"], lines[-1]
            self.changes.add((before["status"], run["status"]))
        self.shown[run["id"]] = run


class Person:
    """Answers every request with a command; a killed command is repeated."""

    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._typing: Process | None = None
        self._began = asyncio.Condition()
        self.answers = 0

    async def answer_all(self) -> None:
        """Answer requests forever."""
        with self._fleet.app.store.watch() as watch:
            while True:
                requests = await self._fleet.app.inbox()
                for request in requests:
                    await self._answer(request)
                if not requests:
                    await watch.changed()

    async def kill(self, moment: int) -> bool:
        """Kill the current or next command; return whether it was still running."""
        async with asyncio.timeout(PATIENCE), self._began:
            await self._began.wait_for(lambda: self._typing is not None)
            typing = self._typing
        assert typing is not None
        await SystemClock().sleep(moment)
        await kill(typing)
        return typing.returncode == -signal.SIGKILL

    async def _answer(self, request: limpet.Request) -> None:
        words = [*await self._command_for(request), "--by", "ann", "--json"]
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

    async def _command_for(self, request: limpet.Request) -> list[str]:
        """Return the command for a request. The service knows whether an effect was applied."""
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
    """Send a signal unless the process has ended. (Process.send_signal would poll, and take the exit code from its
    waiter.)
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, how)


async def kill(process: Process) -> None:
    """Kill the process unless it has ended."""
    send(process, signal.SIGKILL)
    await process.wait()


class Fleet:
    """All members on one store."""

    def __init__(self, group: TaskGroup, app: limpet.App, service: Service, env: dict[str, str], seed: int) -> None:
        self.app, self.service, self.env = app, service, env
        self._chance = random.Random(seed)
        words = (LIMPET, "worker", "tests.crash.fleet:agents", "--lease", LEASE)
        self.workers = {name: Worker(group, env, *words) for name in ("first", "second")}
        self.starter, self.watcher, self.person = Starter(group, env), Watcher(group, env), Person(self)
        self.kills = 0

    @property
    def members(self) -> dict[str, Member]:
        """Members by name."""
        return {**self.workers, "starter": self.starter, "watcher": self.watcher}

    async def start(self) -> None:
        """Start all members; the first worker saves the agents' contracts."""
        for worker in self.workers.values():
            await worker.start()
        first = self.workers["first"]
        await first.until(lambda: any("serving" in line for line in first.lines))
        await self.starter.start()
        await self.watcher.start()

    async def work(self, kills: int) -> None:
        """Start runs and kill members, repeatedly."""
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
        """Kill a member, at a random moment after one of the new runs has made progress, or immediately."""
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
            await self._until_no_run_is_suspect()
        await SystemClock().sleep(moment)
        assert await self.members[victim].end(signal.SIGKILL) == -signal.SIGKILL, self.members[victim].lines
        await self.members[victim].start()
        self.kills += 1

    async def _until_no_run_is_suspect(self) -> None:
        """Wait until every run has made progress; five consecutive deaths would quarantine one."""
        async with asyncio.timeout(PATIENCE):
            with self.app.store.watch() as watch:
                while any([(await self.app.store.get(run.id)).deaths > 2 for run in await self._unfinished()]):
                    await watch.changed()

    async def settle(self, runs: int) -> None:
        """Wait until every run has ended and the watcher has shown it."""
        await self.starter.until(lambda: len({*self.starter.acknowledged}) == runs)
        with self.app.store.watch() as watch:
            while left := await self._unfinished():
                async with asyncio.timeout(PATIENCE):
                    while await self._unfinished() == left:
                        await watch.changed()
        ids = {each.id for each in await self.app.runs(last=1000)}
        seen = self.watcher.shown
        await self.watcher.until(lambda: {id for id in ids if seen.get(id, {}).get("status") == "completed"} == ids)

    async def _unfinished(self) -> list[limpet.RunInfo]:
        """Return the runs that have not ended."""
        return [run for run in await self.app.runs(last=1000) if run.status not in ENDED]

    async def stop(self) -> None:
        """Stop all members as an operator does, and check their exit codes."""
        assert await self.starter.ended() == 0, self.starter.lines
        assert await self.watcher.end(signal.SIGINT) == 130, self.watcher.lines
        for worker in self.workers.values():
            await worker.until(lambda lines=worker.lines: any("serving" in line for line in lines))  # type: ignore[misc]
            assert await worker.end(signal.SIGTERM) == 0, worker.lines

    async def check(self, service: Service) -> None:
        """Check the final state with commands."""
        inbox, verified, runs, found = await asyncio.gather(
            self.run_json("inbox"),
            self.run_json("verify"),
            self.run_json(*WATCH[:1], *WATCH[2:]),
            self.run_json("doctor", "tests.crash.fleet:agents", *WATCH[2:]),
        )
        runs, found = runs["items"], found["items"]
        assert inbox["items"] == []
        advice = ("tool ", "agent ")  # what the code leaves open
        wrong = {each["what"] for each in found if each["level"] != "ok" and not each["message"].startswith(advice)}
        assert wrong <= {"clock", "disk"}, found
        assert {run["id"] for run in runs if run["parent"] is None} == {*self.starter.acknowledged}
        assert {run["status"] for run in runs} == {"completed"}
        assert verified["runs"] == len(runs), verified
        assert {("waiting", "running"), ("running", "completed")} & self.watcher.changes, self.watcher.changes
        check_effects(service, runs)
        deaths = [await self._check_log(run["id"]) for run in runs]
        print(f"{len(runs)} runs, {self.kills} kills, {self.person.answers} answers, {sum(deaths)} taken over")

    async def _check_log(self, run: str) -> int:
        """Check the rows of a run, and return how many workers died while they held it."""
        assert await self.app.store.check_rows(run) == []
        return sum(bool(event.body.get("died")) for event in await self.app.log(run) if event.kind == "run.claimed")

    async def kill(self) -> None:
        """Kill all running members."""
        for member in self.members.values():
            if member.process is not None:
                await kill(member.process)

    async def run_json(self, *words: str) -> Any:
        """Run a command and return the JSON that it prints."""
        process = await asyncio.create_subprocess_exec(
            LIMPET, *words, "--json", cwd=ROOT, env=self.env, stdout=PIPE, stderr=PIPE
        )
        out, error = await process.communicate()
        assert (process.returncode, error) == (0, b""), (words, out, error)
        return json.loads(out)

    async def print_state(self) -> None:
        """Print everything about unfinished runs."""
        for run in await self._unfinished():
            print(run, *await self.app.log(run.id), sep="\n")
        print(*await self.app.inbox(), sep="\n")
        print(*await self.app.workers(), sep="\n")
        for name, member in self.members.items():
            print(f"{name}:", *member.lines[-20:], sep="\n")


class Screen:
    """A `limpet runs --watch` on a terminal that is read continuously."""

    def __init__(self, view: Terminal) -> None:
        self._view = view
        self._shown: dict[str, str] = {}
        self._drawn = Condition()

    def read_all(self) -> None:
        """Read until the command ends."""
        with suppress(AssertionError, OSError):  # raised by a terminal that has ended
            while True:
                for line in plain(self._view.until("\n")).splitlines():  # the last line of a table has no end
                    self._take(line.split())

    def until_completed(self, runs: Sequence[str]) -> None:
        """Wait until the table shows these runs as completed."""
        with self._drawn:
            done = self._drawn.wait_for(lambda: {self._shown.get(run) for run in runs} == {"completed"}, PATIENCE)
            assert done, self._shown

    def end(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self._view.type("\x03")
        return self._view.end()[1]

    def _take(self, words: Sequence[str]) -> None:
        """Record a line of the table, which starts with the run."""
        status = next((word for word in words if word in (*ENDED, "pending", "running", "waiting")), None)
        if status is not None:
            with self._drawn:
                self._shown[words[0]] = status
                self._drawn.notify_all()


def check_effects(service: Service, runs: Sequence[dict[str, Any]]) -> None:
    """Check that each run had the effects of its agent once, and that there were no others."""
    expected = {"clerk": ("/once/{}/pay", "/keyed/{}/note"), "buyer": ("/keyed/{}/reserve", "/once/{}/ship")}
    wanted = {path.format(run["id"]): 1 for run in runs for path in expected[run["agent"]]}
    assert {path: times for path, times in service.applied.items() if times} == wanted
    assert {path: service.arrived[path] for path in wanted if path.startswith("/once")} == {
        path: 1 for path in wanted if path.startswith("/once")
    }


async def run_fleet(folder: Path, seed: int, kills: int) -> None:
    """Run the fleet with this many kills."""
    url = f"sqlite:///{folder / 'limpet.db'}"
    with Service() as service:
        env = env_of(folder, LIMPET_URL=url, FLEET_PORT=str(service.server_port), NO_COLOR="1")
        async with limpet.open(url, worker=False) as app, TaskGroup() as group:
            fleet = Fleet(group, app, service, env, seed)
            try:
                await fleet.start()
                with terminal(LIMPET, *WATCH[:2], columns=160, **env) as view:
                    await run_members(group, fleet, Screen(view), kills)
                await fleet.check(service)
            except BaseException:
                await fleet.print_state()
                raise
            finally:
                await fleet.kill()
    assert left_behind(folder) == []


async def run_members(group: TaskGroup, fleet: Fleet, screen: Screen, kills: int) -> None:
    """Run all members concurrently until all runs have ended."""
    looking = asyncio.create_task(asyncio.to_thread(screen.read_all))
    answering = group.create_task(fleet.person.answer_all())
    await fleet.work(kills)
    await fleet.settle(2 * kills)
    await asyncio.to_thread(screen.until_completed, [run.id for run in await fleet.app.runs(last=20)])
    answering.cancel()
    await fleet.stop()
    assert await asyncio.to_thread(screen.end) == 130
    await looking


async def test_all_runs_complete_while_members_of_the_fleet_are_killed(tmp_path: Path, full: bool) -> None:
    """Each of the five members is killed, among 15 runs; 100 kills among 300 runs with --full. Each effect happens
    once.
    """
    seed = int(SEED) if SEED else random.randrange(1_000_000)
    print(f"LIMPET_SEED={seed}")
    await run_fleet(tmp_path, seed, 100 if full else 5)
