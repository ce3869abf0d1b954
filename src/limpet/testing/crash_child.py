"""The process behind `crash_everywhere`: it imports the agent once, and forks a process for each life of a run.

It reads lines of JSON and answers each with one. It has no threads and no event loop of its own, so forking is safe.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from limpet.clock import FrozenClock, SystemClock
from limpet.engine.definitions.agents import Agent
from limpet.errors import LimpetError, TrialStuck
from limpet.ids import RandomIds
from limpet.stores.sqlite import SqliteBackend
from limpet.testing.app import TestApp, TestSettings
from limpet.testing.crash_points import CrashPoint, events
from limpet.testing.stubs import EffectLog
from limpet.testing.trials import related_agents, run_to_end

__all__ = ["main"]

# Timeouts in seconds, of the import and of one life of a run.
IMPORT_TIMEOUT = 120
LIFE_TIMEOUT = 60
Message = dict[str, Any]


def main() -> None:
    """Answer messages until the input ends. Output of the agent is redirected to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    opening: Message = json.loads(sys.stdin.readline())
    agent: Any = None
    signal.alarm(IMPORT_TIMEOUT)
    try:
        agent, message = find_agent(opening["module"], opening["file"], opening["name"]), Message()
    except Exception as error:  # noqa: BLE001 - an import can raise anything
        message = {"error": f"a new process cannot import the agent: {error!r}"}
    signal.alarm(0)
    print(json.dumps(message), file=answers, flush=True)
    for line in sys.stdin:
        message = _fork(partial(_run_life, agent, {**opening, **json.loads(line)}))
        print(json.dumps(message), file=answers, flush=True)


def find_agent(module: str, file: str | None, name: str) -> Any:
    """Return the agent, from its module, or from its file if another file would be imported by that name."""
    try:
        spec = None if module == "__main__" else find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if file is None or (spec is not None and spec.origin is not None and Path(spec.origin).samefile(file)):
        return getattr(import_module(module), name)
    spec = spec_from_file_location("__mp_main__" if module == "__main__" else module, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, name)


def _fork(live: Callable[[Callable[[Message], object]], None]) -> Message:
    """Fork a process, and return what it reports before it ends or is killed."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(LIFE_TIMEOUT)
        live(lambda message: os.write(theirs, json.dumps(message).encode()))
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        text = pipe.read()
    how = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if how == -signal.SIGALRM:
        return {"error": f"took longer than {LIFE_TIMEOUT} s"}
    message: Message = json.loads(text) if text else {"error": f"the process ended unexpectedly with status {how}"}
    return message


def _run_life(agent: Agent[Any, Any], trial: Mapping[str, Any], report: Callable[[Message], object]) -> None:
    where = trial.get("where", "")
    try:
        loop = asyncio.new_event_loop()  # The process ends right after it, so nothing is cleaned up.
        status, *what = loop.run_until_complete(_drive(agent, trial, report))
        report({"ended": f"failed with {what[0]}" if status == "failed" else status})
    except TrialStuck as stuck:
        is_end = where and not stuck.asks
        report(
            {"ended": f"did not end ({stuck.reason})"} if is_end else {"error": f"{stuck.reason}. {where}".strip(". ")}
        )
    except BaseException as error:  # noqa: BLE001 - the parent must get the error
        report({"error": str(error) if isinstance(error, LimpetError) else repr(error)})


async def _drive(agent: Agent[Any, Any], trial: Mapping[str, Any], report: Callable[[Message], object]) -> list[Any]:
    """Start the run, or find it, and drive it to its end or until this process is killed."""
    path = f"{trial['folder']}/{trial['run']}"
    settings = TestSettings(partial(_Alone, path), FrozenClock(SystemClock().now()))
    settings.ids = RandomIds(settings.clock)
    settings.stubs.effect_log = EffectLog(Path(f"{path}-effects"))

    def die() -> None:
        report({"killed": settings.faulty.died_at})
        os.kill(os.getpid(), signal.SIGKILL)

    settings.faulty.die = die
    if "when" in trial:
        settings.faulty.faults.append(CrashPoint(trial["when"], events("", {}), trial["nth"]))
    app = await TestApp(settings, related_agents(agent)).open()
    await app.start(agent, agent.input_codec.load(trial["input"]), id=trial["run"])
    return await run_to_end(app, trial["run"], trial["answers"])


class _Alone(SqliteBackend):
    """A file that no other process writes to, so nothing polls for changes."""

    capabilities = replace(SqliteBackend.capabilities, processes=False)
