"""One scenario through Python, the command line, HTTP and remote clients: the same calls have the same results and the
same errors.
"""

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, Protocol

import httpx
import msgspec

import limpet
from limpet import sync
from limpet.service.json_values import as_json, error_json
from limpet.service.operation import Operation, operations_of
from tests.interfaces.cli.run_cli import LIMPET, ROOT
from tests.interfaces.cli.run_cli import limpet as in_process
from tests.interfaces.cli.shop import both
from tests.interfaces.http_and_mcp.clients import serving
from tests.servers.preloaded import PipedProgram

OPERATIONS = operations_of(limpet.App)
# Fields that differ from one run of the scenario to another: elapsed times, and the sender of a command.
DIFFERENT = ("spent", "elapsed_ms", "by", "via", "seconds")
Answer = Any


class Interface(Protocol):
    """A way to use operations. The result is plain JSON: `error` in it is the code of an error."""

    def __call__(self, operation: str, /, **given: Any) -> Answer: ...


def arguments_of(operation: Operation, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a method, by position and by name. Ann sends every command."""
    by_position = [value for each, value in given.items() if operation.is_positional(each)]
    by_name = {each: value for each, value in given.items() if not operation.is_positional(each)}
    return by_position, {**by_name, **({"by": "ann"} if "by" in operation.parameters else {})}


class InPython:
    """Calls methods of the app: of one with a store, or of a remote one."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url, self._token = url, token

    def __call__(self, operation: str, /, **given: Any) -> Answer:
        about = OPERATIONS[operation]
        by_position, by_name = arguments_of(about, given)
        with sync.open(self._url, worker=False, token=self._token) as app:
            try:
                found = getattr(app, about.function.__name__)(*by_position, **by_name)
                if about.result_type is limpet.RunInfo:  # Python returns a handle, or nothing
                    found = app.info(given["run"] if found is None else found.id)
                return as_json(found)
            except limpet.LimpetError as error:
                return _error(error_json(error))


class InAsyncPython(InPython):
    """Awaits methods of the app."""

    def __call__(self, operation: str, /, **given: Any) -> Answer:
        about = OPERATIONS[operation]
        by_position, by_name = arguments_of(about, given)

        async def call() -> Answer:
            async with limpet.open(self._url, worker=False, token=self._token) as app:
                try:
                    found = await getattr(app, about.function.__name__)(*by_position, **by_name)
                    if about.result_type is limpet.RunInfo:
                        found = await app.info(given["run"] if found is None else found.id)
                    return as_json(found)
                except limpet.LimpetError as error:
                    return _error(error_json(error))

        return asyncio.run(call())


class OnTheCommandLine:
    """Runs commands with --json."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, operation: str, /, **given: Any) -> Answer:
        words, about = [operation], OPERATIONS[operation]
        for name, value in given.items():
            text = value if isinstance(value, str) else json.dumps(value)
            if (about.is_positional(name) and name != "input") or about.parameters[name].about.is_argument:
                words.append(text)
            elif isinstance(value, dict):
                words += [f"--{name}={key}={each}" for key, each in value.items()]
            else:
                words.append(f"--{name}={text}")
        if "by" in about.parameters:
            words.append("--by=ann")
        done = in_process(*words, "--json", LIMPET_URL=self._url)
        if done.exit_code != 0:
            return _error(json.loads(done.stderr))
        if operation == "log":  # one event per line, so that it can be followed
            return {"items": [json.loads(line) for line in done.stdout.splitlines()], "next": None}
        return json.loads(done.stdout)


class OverHttp:
    """Sends requests to a server, with the token of ann."""

    def __init__(self, client: httpx.Client, token: str) -> None:
        self._client, self._headers = client, {"authorization": f"Bearer {token}"}

    def __call__(self, operation: str, /, **given: Any) -> Answer:
        about = OPERATIONS[operation]
        path = "/v1" + (about.path or "").format(**given)
        rest = {name: value for name, value in given.items() if name not in about.in_path}
        more: Any = {"json": rest} if about.is_command else {"params": rest}
        answer = self._client.request(about.http_method, path, headers=self._headers, **more)
        return answer.json() if answer.is_success else _error({**answer.json(), "message": answer.json()["detail"]})


def _error(told: Answer) -> Answer:
    """Return an error. To the hint, the command line adds an id that was possibly meant."""
    hint = told["hint"].partition(" Did you mean ")[0]
    return {"error": told["code"], "message": told["message"], "facts": told["facts"], "hint": hint}


@contextmanager
def interface(name: str, url: str) -> Iterator[Interface]:
    """Yield an interface to a store."""
    if name == "python":
        yield InPython(url)
    elif name == "cli":
        yield OnTheCommandLine(url)
    else:
        with sync.open(url, worker=False) as app:
            made = app.create_token("ann", roles=["operator", "approver"], groups=["sales"])
        with serving(url) as client:
            address = str(client.base_url)
            remote = {"remote": InPython, "awaited": InAsyncPython}.get(name)
            yield OverHttp(client, made.token) if remote is None else remote(address, made.token)


@contextmanager
def worker(folder: Path, url: str) -> Iterator[PipedProgram]:
    """Run a worker of the shop as a process."""
    env = {**os.environ, "LIMPET_URL": url, "SHOP": str(folder)}
    words = [LIMPET, "worker", "tests.interfaces.cli.parked_shop:app"]
    with PipedProgram(words, cwd=ROOT, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


async def save_contracts(url: str) -> None:
    """Save the contracts of the shop's agents in the store."""
    async with limpet.open(url, agents=both, worker=False):
        pass


async def until(url: str, run: str, kind: str, after: str = "run.created") -> None:
    """Wait for an event of a run, after another one."""
    kinds = set()
    async with limpet.open(url, worker=False) as app:
        async for event in app.events(run):
            kinds.add(event.kind)
            if event.kind == kind and after in kinds:
                return


def scenario(ask: Interface, folder: Path, url: str) -> Iterator[Answer]:
    """Start, kill the worker in a step, resume, decide, inspect, fork, extend and cancel, with errors on the way."""
    yield ask("start", agent="order", input="book", id="o-1")
    yield ask("start", agent="order", input="book", id="o-1")
    yield ask("start", agent="order", input="lamp", id="o-1")
    yield ask("start", agent="nothing", input="book")
    kill_in_a_step(folder, url)
    yield ask("log", run="o-1")
    (folder / "go").touch()
    with worker(folder, url):
        asyncio.run(until(url, "o-1", "run.waiting"))
        yield from decide(ask, url)
    yield from inspect(ask)
    yield from end(ask)
    yield ask("runs")
    yield (folder / "traces").read_text(encoding="utf-8")


def kill_in_a_step(folder: Path, url: str) -> None:
    """Let a worker begin to charge, and kill it."""
    with worker(folder, url) as first:
        while not (folder / "traces").exists():
            assert first.poll() is None
            Event().wait(0.01)
        first.send_signal(signal.SIGKILL)


def decide(ask: Interface, url: str) -> Iterator[Answer]:
    """Pause and resume the run, and decide its request."""
    inbox = ask("inbox")
    yield inbox
    [request] = [each["id"] for each in inbox["items"]]
    yield ask("pause", run="o-1")
    resumed = ask("resume", run="o-1")
    assert resumed["status"] in ("pending", "running", "waiting")  # its worker may have claimed it already
    yield resumed["id"]
    asyncio.run(until(url, "o-1", "run.waiting", after="resume.requested"))
    yield ask("answer", request=request, answer={"charged": True})
    yield ask("answer", request=request, answer={"applied": "R-9"})
    asyncio.run(until(url, "o-1", "run.completed"))
    yield ask("answer", request=request, answer={"applied": "R-8"})
    yield ask("answer", request="nothing", answer={"applied": "R-8"})
    yield ask("request", request=request)


def inspect(ask: Interface) -> Iterator[Answer]:
    """Look at the run after its end."""
    yield ask("info", run="o-1")
    yield [each["kind"] for each in ask("log", run="o-1")["items"]]
    yield ask("state", run="o-1", before=2)
    yield ask("state", run="o-1", after=2)
    yield ask("state", run="o-1", after=99)
    yield ask("diff", run="o-1", step=1)
    yield ask("diff", run="o-2", step=1)
    yield ask("info", run="o-2")


def end(ask: Interface) -> Iterator[Answer]:
    """Fork, extend and cancel runs while no worker runs."""
    yield ask("fork", run="o-1", at=2, id="o-1.fork")["id"]
    yield ask("fork", run="o-1", at=99)
    yield ask("info", run="o-1.fork")
    yield ask("cancel", run="o-1.fork", reason="that will do")
    yield ask("cancel", run="o-1", reason="too late")
    yield ask("start", agent="letter", input="bob", id="l-1", budget={"max_steps": 5})
    yield ask("extend", run="l-1", budget={"max_steps": 9})
    yield ask("extend", run="l-1", budget={"max_steps": 2})
    yield ask("extend", run="o-1", budget={"max_steps": 99})


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


ERRORS = [
    *("id_conflict", "not_found"),
    *("invalid_answer", "already_answered", "not_found"),
    *("not_found", "not_found", "not_found"),
    *("not_found", "wrong_state", "invalid_argument", "invalid_argument"),
]
"""The errors of the scenario, in their order."""


def test_python_the_command_line_http_and_remote_clients_give_the_same_results(tmp_path: Path, full: bool) -> None:
    """The effect that the kill interrupted is not repeated, and each error is the same error everywhere.

    Without --full, the remote client is the blocking one, which calls the other.
    """
    results: dict[str, list[Answer]] = {}
    for name in ("python", "cli", "http", "remote", *(["awaited"] if full else [])):
        folder = tmp_path / name
        folder.mkdir()
        url = f"sqlite:///{folder}/limpet.db"
        asyncio.run(save_contracts(url))
        with interface(name, url) as ask:
            results[name] = [normalised(each) for each in scenario(ask, folder, url)]
    for answers in zip(*results.values(), strict=True):
        for name, answer in zip(results, answers, strict=True):
            assert answer == answers[0], name
    found = [each["error"] for each in results["python"] if isinstance(each, dict) and "facts" in each]
    assert found == ERRORS
    assert results["python"][-1] == "charge begins\nmail\n"
