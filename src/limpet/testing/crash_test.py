"""`crash_everywhere`: kill an agent's process before and after every commit, and compare the effects."""

import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from limpet.clock import SystemClock
from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.types import codec_of
from limpet.errors import DefinitionError, TrialStuck
from limpet.ids import RandomIds
from limpet.testing.crash_points import When

__all__ = ["CrashReport", "crash_everywhere"]

In = TypeVar("In")
HELPER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from limpet.testing import crash_child; crash_child.main()"
)


@dataclass
class CrashReport:
    """Result of `crash_everywhere`. Each entry names the crash point and the difference."""

    points: int = 0
    """Number of crash points."""
    lost: list[str] = field(default_factory=list)
    """Effects that happened less often than without a crash."""
    doubled: list[str] = field(default_factory=list)
    """Effects that happened more often than without a crash."""
    failed: list[str] = field(default_factory=list)
    """Runs that ended differently than without a crash (completed, cancelled, or failed with the same type of error).
    """


async def crash_everywhere(
    agent: Agent[In, Any],
    input: In,
    *,
    answers: Mapping[str, Any] = {},
    effects: Callable[[], Mapping[str, int]],
) -> CrashReport:
    """Kill (SIGKILL) a process that drives an agent, before and after every commit, and let another process continue.

    `effects` returns how often each effect has happened so far, as counted by the external system. Leave out reads,
    which may be repeated. `answers` answers requests, by tool name, by question, or "*" for all: True approves, False
    rejects, anything else is the answer. Requests about unknown outcomes are answered truthfully, unless `answers` has
    a value for them. Time that a run waits for passes immediately. Requires an agent at the top level of a module, and
    a POSIX system.
    """
    said = {key: codec_of(type(value)).dump(value) for key, value in answers.items()}
    opening = {**_import_path(agent), "input": agent.dump_input(input), "answers": said}
    async with _helper(agent.name, opening) as helper:
        report, trials = CrashReport(), _Trials(helper, effects)
        await trials.begin()
        for nth in count(1):
            if not await trials.kill("before", nth, report):
                break
            await trials.kill("after", nth, report)
    return report


class _Helper:
    """The process that has imported the agent. It forks a process for each life of a run."""

    def __init__(self, agent: str, process: Process) -> None:
        self._agent, self._process = agent, process

    async def ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message to the process and return its answer. Raises TrialStuck."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        line = await self._process.stdout.readline()
        said: dict[str, Any] = json.loads(line or '{"error": "the process that drives the run has died"}')
        if "error" in said:
            raise TrialStuck(agent=self._agent, reason=said["error"])
        return said


class _Trials:
    """Test runs, one after the other, each in its own store."""

    def __init__(self, helper: _Helper, effects: Callable[[], Mapping[str, int]]) -> None:
        self._helper, self._effects, self._ids = helper, effects, RandomIds(SystemClock())
        self._counted: Mapping[str, int] = {}
        self._end = ""

    async def begin(self) -> None:
        """Run once without a crash, as the reference."""
        before = dict(self._effects())
        self._end = (await self._helper.ask({"run": self._ids.new()}))["ended"]
        self._counted = self._since(before)

    async def kill(self, when: When, nth: int, report: CrashReport) -> bool:
        """Kill the process of a run at a point, let another one continue, and report. Returns False if the point does
        not exist.
        """
        before, run = dict(self._effects()), self._ids.new()
        said = await self._helper.ask({"run": run, "when": when, "nth": nth})
        if "killed" not in said:
            return False
        where = f"Killed {when} commit {nth} ({said['killed']})"
        end = (await self._helper.ask({"run": run, "where": where}))["ended"]
        report.points += 1
        if end != self._end:
            report.failed.append(f"{where}: the run {end}; without a crash, it {self._end}.")
        counted = self._since(before)
        for name in sorted(counted.keys() | self._counted.keys()):
            times, usual = counted.get(name, 0), self._counted.get(name, 0)
            if times != usual:
                entries = report.lost if times < usual else report.doubled
                entries.append(f"{where}: {name} happened {times} times; without a crash, {usual} times.")
        return True

    def _since(self, before: Mapping[str, int]) -> Mapping[str, int]:
        return {name: times - before.get(name, 0) for name, times in self._effects().items()}


@asynccontextmanager
async def _helper(agent: str, opening: Mapping[str, Any]) -> AsyncIterator[_Helper]:
    """Start the process. In the end, it, its children and its files are removed."""
    command = (sys.executable, "-c", HELPER, json.dumps(sys.path))
    with TemporaryDirectory(prefix="limpet-crash-") as folder:
        process = await create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)
        try:
            helper = _Helper(agent, process)
            await helper.ask({**opening, "folder": folder})
            yield helper
        finally:
            with suppress(ProcessLookupError, PermissionError):  # The process has ended, or is a zombie.
                os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()


def _import_path(agent: Agent[Any, Any]) -> dict[str, Any]:
    """Return where another process can import an agent from: a module's top level, by name or file."""
    for names in (agent.fn.__globals__, *(vars(module) for module in list(sys.modules.values()))):
        for name, value in list(names.items()):
            if value is agent and (names["__name__"] != "__main__" or "__file__" in names):
                return {"module": names["__name__"], "file": names.get("__file__"), "name": name}
    reason = "another process must be able to import the agent; define it at the top level of a module"
    raise DefinitionError(what=f"the crash test of {agent.name}", reason=reason)
