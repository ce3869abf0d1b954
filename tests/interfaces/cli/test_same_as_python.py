"""One scenario through Python and through the command line: the same calls have the same results."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, Protocol, TypeVar

import msgspec

import limpet
from limpet.service.json_values import as_json
from tests.interfaces.cli.run_cli import LIMPET, ROOT
from tests.interfaces.cli.run_cli import limpet as in_process
from tests.servers import preloaded
from tests.servers.preloaded import PipedProgram

T = TypeVar("T")
# Fields that differ from one run of the scenario to another: elapsed times, and the sender of a command.
DIFFERENT = ("spent", "elapsed_ms", "by", "via", "seconds")
Answer = Any


class Interface(Protocol):
    """An interface to run the scenario; every result is plain JSON."""

    def start(self, agent: str, input: str, id: str) -> Answer: ...
    def log(self, run: str, *, follow: bool) -> list[Answer]: ...
    def inbox(self) -> list[Answer]: ...
    def pause(self, run: str) -> Answer: ...
    def resume(self, run: str) -> Answer: ...
    def answer(self, request: str, value: Answer) -> None: ...
    def state(self, run: str, **when: int) -> Answer: ...
    def diff(self, run: str, step: int) -> Answer: ...
    def fork(self, run: str, at: int, id: str) -> Answer: ...
    def cancel(self, run: str, reason: str) -> Answer: ...
    def runs(self) -> list[Answer]: ...


class InPython:
    """Calls from Python."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _do(self, work: Callable[[limpet.App], Awaitable[T]]) -> T:
        async def do() -> T:
            async with limpet.open(self._url, worker=False) as app:
                return await work(app)

        return asyncio.run(do())

    def _info(self, work: Callable[[limpet.App], Awaitable[object]], run: str) -> Answer:
        async def do(app: limpet.App) -> Answer:
            await work(app)
            return as_json(await app.info(run))

        return self._do(do)

    def start(self, agent: str, input: str, id: str) -> Answer:
        return self._info(lambda app: app.start(agent, input, id=id), id)

    def log(self, run: str, *, follow: bool) -> list[Answer]:
        async def look(app: limpet.App) -> list[Answer]:
            return [as_json(each) async for each in app.events(run, follow=follow)]

        return self._do(look)

    def inbox(self) -> list[Answer]:
        async def look(app: limpet.App) -> list[Answer]:
            return [as_json(each) for each in await app.inbox()]

        return self._do(look)

    def pause(self, run: str) -> Answer:
        return self._info(lambda app: app.pause(run), run)

    def resume(self, run: str) -> Answer:
        return self._info(lambda app: app.resume(run), run)

    def answer(self, request: str, value: Answer) -> None:
        self._do(lambda app: app.answer(request, value, by="ann"))

    def state(self, run: str, **when: int) -> Answer:
        async def look(app: limpet.App) -> Answer:
            return as_json(await app.state(run, **when))

        return self._do(look)

    def diff(self, run: str, step: int) -> Answer:
        return self._do(lambda app: app.diff(run, step=step))

    def fork(self, run: str, at: int, id: str) -> Answer:
        async def make(app: limpet.App) -> Answer:
            return {"id": (await app.fork(run, at=at, id=id)).id, "fork_of": run}

        return self._do(make)

    def cancel(self, run: str, reason: str) -> Answer:
        return self._info(lambda app: app.cancel(run, reason=reason), run)

    def runs(self) -> list[Answer]:
        async def look(app: limpet.App) -> list[Answer]:
            return [as_json(each) for each in await app.runs()]

        return self._do(look)


class OnTheCommandLine:
    """Commands; the first and the following ones run as separate processes."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _in_own_process(self, *words: str) -> str:
        words, env = (LIMPET, *words, "--json"), {**os.environ, "LIMPET_URL": self._url}
        return preloaded.run(words, env=env).stdout

    def _in_this_process(self, *words: str) -> str:
        done = in_process(*words, "--json", LIMPET_URL=self._url)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def start(self, agent: str, input: str, id: str) -> Answer:
        return json.loads(self._in_own_process("start", agent, "--input", input, "--id", id))

    def log(self, run: str, *, follow: bool) -> list[Answer]:
        said = self._in_own_process("log", run, *(["--follow"] * follow))
        return [json.loads(line) for line in said.splitlines()]

    def inbox(self) -> list[Answer]:
        found: list[Answer] = json.loads(self._in_this_process("inbox"))["items"]
        return found

    def pause(self, run: str) -> Answer:
        return json.loads(self._in_this_process("pause", run))

    def resume(self, run: str) -> Answer:
        return json.loads(self._in_this_process("resume", run))

    def answer(self, request: str, value: Answer) -> None:
        self._in_this_process("answer", request, json.dumps(value), "--by", "ann")

    def state(self, run: str, **when: int) -> Answer:
        return json.loads(self._in_this_process("state", run, *(f"--{name}={number}" for name, number in when.items())))

    def diff(self, run: str, step: int) -> Answer:
        return json.loads(self._in_this_process("diff", run, str(step)))

    def fork(self, run: str, at: int, id: str) -> Answer:
        return json.loads(self._in_this_process("fork", run, "--at", str(at), "--id", id))

    def cancel(self, run: str, reason: str) -> Answer:
        return json.loads(self._in_this_process("cancel", run, "--reason", reason))

    def runs(self) -> list[Answer]:
        found: list[Answer] = json.loads(self._in_this_process("runs"))["items"]
        return found


@contextmanager
def worker(folder: Path, url: str) -> Iterator[PipedProgram]:
    """Run a worker of the shop as a process."""
    env = {**os.environ, "LIMPET_URL": url, "SHOP": str(folder)}
    words = [LIMPET, "worker", "tests.interfaces.cli.shop:both"]
    with PipedProgram(words, cwd=ROOT, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def scenario(way: Interface, folder: Path, url: str) -> Iterator[Answer]:
    """Start, watch, kill, ask, pause, resume, answer, inspect, fork and cancel."""
    asyncio.run(save_contracts(url))
    yield way.start("order", "book", "o-1")
    with worker(folder, url) as first:
        while not (folder / "traces").exists():
            assert first.poll() is None
            Event().wait(0.01)
        yield way.log("o-1", follow=False)
        first.send_signal(signal.SIGKILL)
    (folder / "go").touch()
    with worker(folder, url) as second:
        asyncio.run(until_waiting(url, "o-1"))
        assert second.poll() is None
        requests = way.inbox()
        yield requests
        yield way.pause("o-1")
        resumed = way.resume("o-1")
        assert resumed.pop("status") in ("pending", "running")  # its worker may have claimed it already
        yield resumed
        asyncio.run(until_waiting(url, "o-1", after="resume.requested"))
        way.answer(requests[0]["id"], {"applied": "R-9"})
        yield [each["kind"] for each in way.log("o-1", follow=True)][-1]
    yield way.state("o-1", before=2)
    yield way.state("o-1", after=2)
    yield way.diff("o-1", 1)
    yield way.fork("o-1", 2, "o-1.fork")
    yield way.cancel("o-1.fork", "that will do")
    yield way.runs()
    yield (folder / "traces").read_text(encoding="utf-8")


async def save_contracts(url: str) -> None:
    """Save the contracts of the shop's agents in the store."""
    from tests.interfaces.cli.shop import both  # noqa: PLC0415

    async with limpet.open(url, agents=both, worker=False):
        pass


async def until_waiting(url: str, run: str, after: str = "run.created") -> None:
    """Wait until the run is parked after an event of this kind."""
    kinds = set()
    async with limpet.open(url, worker=False) as app:
        async for event in app.events(run):
            kinds.add(event.kind)
            if event.kind == "run.waiting" and after in kinds:
                return


def normalised(answer: Answer) -> Answer:
    """Return the result as JSON without values that differ each time: times, generated ids and worker names."""
    text = json.dumps(_without(json.loads(msgspec.json.encode(answer))), sort_keys=True)
    text = re.sub(r"\b1[0-9]{15}\b|[0-9-]{10}T[0-9:.]{15}Z", "0", text)
    text = re.sub(r"[0-9-]{10} [0-9:]{8} UTC|[0-9.e-]+ s active", "0", text)
    text = re.sub(r"\b(w-)?0[0-9a-z]{25}\b", "id", text)
    return json.loads(re.sub(r"\b[0-9a-f]{64}\b", "hash", text))


def _without(value: Answer) -> Answer:
    """Drop elapsed times, the sender of a command, and waits for a worker whose lease may expire at any moment."""
    if isinstance(value, dict):
        return {name: _without(each) for name, each in value.items() if name not in DIFFERENT}
    if isinstance(value, list):
        return [_without(each) for each in value if not (isinstance(each, dict) and each.get("what") == "worker")]
    return value


def test_python_and_the_command_line_give_the_same_results(tmp_path: Path) -> None:
    results = []
    for name, make in (("python", InPython), ("cli", OnTheCommandLine)):
        folder = tmp_path / name
        folder.mkdir()
        url = f"sqlite:///{folder}/limpet.db"
        results.append([normalised(each) for each in scenario(make(url), folder, url)])
    for one, other in zip(*results, strict=True):
        assert one == other
    assert results[0][-1] == "charge begins\nmail\n"
    assert results[0][5] == "run.completed"
