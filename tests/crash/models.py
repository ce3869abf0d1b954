"""LLM agents over HTTP, the replies of their model, and the processes that run them and are killed."""

import asyncio
import importlib
import os
import re
import signal
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Self

from pydantic import BaseModel

import limpet
from tests.crash.agents import ProcessState, found, install_kill, post
from tests.servers.openai_server import Answer, call

__all__ = ["DISK", "SUPPORT", "ProcessForker", "Report", "agents_of", "fork_processes", "scripted_answer"]

OFTEN = 0.005
"""Seconds between two polls of the process that forks others."""


class Report(BaseModel):
    """The output of the disk agent."""

    fixed: bool
    what: str


@limpet.tool(effect="none")
def models_check_disk(run: str) -> str:
    """Check current disk usage."""
    post("models_check_disk", f"/read/{run}/disk")
    return "95 %"


@limpet.tool(effect="idempotent")
def models_clean_logs(run: str, older_than_days: int) -> str:
    """Delete old logs to free space."""
    post("models_clean_logs", f"/keyed/{run}/clean", limpet.idempotency_key())
    return f"deleted what was older than {older_than_days} days"


@limpet.tool(effect="none")
async def models_order(run: str) -> str:
    """Look at the order."""
    await asyncio.to_thread(post, "models_order", f"/read/{run}/order")
    return "order o1: 12 euros, it arrived broken"


@limpet.tool(effect="none")
def models_customer(run: str) -> str:
    """Look at the customer."""
    post("models_customer", f"/read/{run}/customer")
    return "ann, since 2019"


@limpet.tool(effect="idempotent", risk="external_action")
async def models_refund(run: str, cents: int) -> str:
    """Give money back."""
    await asyncio.to_thread(post, "models_refund", f"/keyed/{run}/refund", limpet.idempotency_key())
    return f"gave {cents} back"


@limpet.tool(effect="once")
def models_mail(run: str, text: str) -> str:
    """Write to the customer."""
    post("models_mail", f"/once/{run}/mail")
    return "sent"


@models_mail.verify
def was_sent(run: str, text: str) -> limpet.Done[str] | None:
    return limpet.Done("sent") if found(run, "mail") else None


async def check(run: limpet.Run, order: str) -> str:
    """Check an order."""
    await run.step(models_order, order)
    return f"{order} is fine"


DISK: Sequence[Any] = (
    ("I look first.", [("models_check_disk", {})]),
    ("Too full.", [("models_clean_logs", {"older_than_days": 30})]),
    ('{"fixed": true, "what": "cleaned the logs"}', []),
)
SUPPORT: Sequence[Any] = (
    ("First the order.", [("models_order", {})]),
    ("", [("models_customer", {}), ("models_order", {})]),
    ("", [("set_plan", {"items": ["look", "refund", "tell"]})]),
    ("", [("note_fact", {"key": "customer", "value": "ann"}), ("note_question", {"question": "how much?"})]),
    ("", [("models_refund", {"cents": 1200})]),
    ("", [("ask_person", {"question": "Is that enough?"})]),
    ("", [("note_question", {"question": "how much?", "answer": "1200"})]),
    ("", [("models_checker", {"input": "RUN"})]),
    ("", [("models_mail", {"text": "sorry"}), ("models_customer", {})]),
    ("", [("models_order", {})]),
    ("", [("models_fly", {})]),
    ("All is settled.", []),
)


def scripted_answer(request: dict[str, Any]) -> Answer:
    """Choose the reply by the run's kind and its turn."""
    texts = [each["content"] for each in request["messages"] if each["role"] == "user"]
    match = re.match(r"(\S+) \((disk|support)\)", texts[0])
    assert match is not None
    run, kind = match.groups()
    turn = sum(each["role"] == "assistant" for each in request["messages"])
    text, wanted = (DISK if kind == "disk" else SUPPORT)[turn]
    calls = [call(name, _args(name, args, run)) for name, args in wanted]
    return Answer(text=text, calls=calls)


def _args(name: str, args: dict[str, Any], run: str) -> dict[str, Any]:
    """Add the run to the arguments of this module's tools."""
    plain = {key: run if value == "RUN" else value for key, value in args.items()}
    is_ours = name.startswith("models_") and name != "models_checker"
    return {"run": run, **plain} if is_ours else plain


def agents_of(kind: str, run: str) -> list[limpet.Agent[Any, Any]]:
    """Return an agent and its children with the run's id as their version, so that processes of other runs do not claim
    them.
    """
    model = "openai:scripted-1"
    if kind == "disk":
        tools: list[Any] = [models_check_disk, models_clean_logs]
        instructions = "You are an autonomous DevOps agent."
        made = limpet.llm_agent(
            "models_disk", model=model, instructions=instructions, output=Report, tools=tools, version=run
        )
        return [made]
    checker = limpet.agent(name="models_checker", version=run)(check)
    support = limpet.llm_agent(
        "models_support",
        model=model,
        instructions="You help customers.",
        tools=[models_order, models_customer, models_refund, models_mail, checker],
        approvals=limpet.Approvals("external_action", to=["parent"]),
        version=run,
    )
    return [support, checker]


# Process functions


async def run_agent(url: str, port: int, server: str, kind: str, run: str, where: str) -> None:
    """Run an agent to its end, or until this process reaches the place where it is killed."""
    ProcessState.port, os.environ["OPENAI_BASE_URL"] = port, server
    agent, *others = agents_of(kind, run)
    install_kill(where)
    async with limpet.open(url, agents=[agent, *others], worker=limpet.Worker(lease="1h")) as app:
        await app.run(agent, f"{run} ({kind}): please help", id=run)


def fork_processes(pipe: Connection) -> None:
    """Fork processes from this one, which has imported everything, and report their exit codes."""
    importlib.import_module("openai.resources.chat.completions")
    pipe.send("ready")
    children: dict[int, int] = {}
    while True:
        while pipe.poll(OFTEN):
            order = pipe.recv()
            if order is None:
                for pid in children:
                    os.kill(pid, signal.SIGKILL)
                return
            pid = os.fork()
            if not pid:
                _run_child(order[1:])
            children[pid] = order[0]
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pipe.send((children.pop(ended[0]), os.waitstatus_to_exitcode(ended[1])))


def _run_child(order: Sequence[Any]) -> None:
    code = 1
    try:
        asyncio.run(run_agent(*order))
        code = 0
    finally:
        os._exit(code)


class ProcessForker:
    """The process that forks others, as tests see it. Use as `with`."""

    def __enter__(self) -> Self:
        context = get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=fork_processes, args=(theirs,))
        self._process.start()
        theirs.close()
        assert self._pipe.recv() == "ready"
        self._waiting: dict[int, Future[int]] = {}
        self._number = 0
        self._listening = Thread(target=self._listen, name="forker", daemon=True)
        self._listening.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._pipe.send(None)
        self._process.join()
        self._listening.join()
        self._pipe.close()

    async def ended(self, *order: Any) -> int:
        """Run a process and return its exit code."""
        self._number += 1
        self._waiting[self._number] = ended = Future[int]()
        self._pipe.send((self._number, *order))
        async with asyncio.timeout(60):
            return await asyncio.wrap_future(ended)

    def _listen(self) -> None:
        with suppress(EOFError):
            while True:
                number, code = self._pipe.recv()
                self._waiting.pop(number).set_result(code)
