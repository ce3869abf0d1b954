"""A process that looks at a store which it cannot write: `python -m tests.interfaces.read_only.child URL WHAT`."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import limpet
from limpet.redaction import hide_secrets_in
from limpet.service.json_values import as_json
from tests.interfaces.cli.run_cli import limpet as command_line
from tests.interfaces.http_and_mcp.test_same_answers import QUERIES, run_command
from tests.servers import preloaded

# Queries that are also typed; all of them are called in Python.
TYPED = ("runs", "show", "log", "state", "diff", "verify", "inbox")
# All queries but one: a finding of `doctor` says that the store is read-only.
ASKED = tuple(name for name in QUERIES if name != "doctor")
COMMANDS = [
    ["start", "doors_letter", "--input", '"bob"'],
    ["cancel", "letter-1", "--reason", "no"],
    ["pause", "letter-1"],
    ["resume", "refund-950"],
    ["fork", "refund-50", "--at", "1"],
    ["say", "chat-7", "hello"],
    ["signal", "letter-1", "go"],
    ["prune", "--older-than", "0s", "--delete"],
]


def look(url: str) -> dict[str, Any]:
    """Return the results of every query in Python and on the command line, and of commands."""

    async def ask() -> dict[str, Any]:
        async with limpet.open(url, worker=False) as app:
            return {name: hide_secrets_in(as_json(await QUERIES[name][0](app))) for name in ASKED}

    typed = {name: run_command(url, name, QUERIES[name][1]) for name in TYPED}
    return {"python": asyncio.run(ask()), "typed": typed}


def refuse(url: str) -> dict[str, Any]:
    """Return what the command line prints for commands, and for a worker."""
    found = {}
    [request] = json.loads(command_line("inbox", "--url", url, "--json").stdout)["items"]
    for words in [["answer", request["id"], "red"], *COMMANDS]:
        done = command_line(*words, "--url", url, "--json")
        found[words[0]] = (done.exit_code, (done.stdout + done.stderr).strip())
    done = command_line("worker", "tests.interfaces.http_and_mcp.clients:support", "--url", url)
    return {**found, "worker": (done.exit_code, str(done.exception or "") + done.stderr)}


def say(url: str) -> dict[str, Any]:
    """Return the error of a query as people see it."""
    done = command_line("runs", "--url", url)
    return {"exit_code": done.exit_code, "text": done.stdout + done.stderr}


def follow(url: str) -> dict[str, Any]:
    """Print a line when the store is open, and return the kinds of events of a run until its end."""

    async def events() -> list[str]:
        async with limpet.open(url, worker=False) as app:
            await app.info("letter-1")
            print("ready", flush=True)
            return [event.kind async for event in app.events("letter-1")]

    return {"kinds": asyncio.run(events())}


def run(url: str, what: str) -> dict[str, Any]:
    """Run this process, and return what it found."""
    done = preloaded.run([sys.executable, "-m", __name__, url, what], cwd=preloaded.ROOT, also=(__name__,))
    assert done.returncode == 0, done.stderr
    return result(done.stdout)


@contextmanager
def following(url: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """Follow a run in this process; the function that is yielded returns what it found when the run has ended."""
    read, write = os.pipe()
    command = [sys.executable, "-m", __name__, url, "follow"]
    with (
        open(read, encoding="utf-8") as output,
        preloaded.Program(command, streams=(0, write, 2), cwd=preloaded.ROOT, also=(__name__,)) as process,
    ):
        os.close(write)
        try:
            assert output.readline() == "ready\n"
            yield lambda: result(output.read())
        finally:
            process.kill()


def result(output: str) -> dict[str, Any]:
    """Return what the process found, from the last line of its output."""
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps({"look": look, "refuse": refuse, "say": say, "follow": follow}[sys.argv[2]](sys.argv[1])))
