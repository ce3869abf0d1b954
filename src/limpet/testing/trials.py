"""Drive a test run to its end: answer its requests, and let the time that it waits for pass immediately."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from inspect import getclosurevars
from typing import Any

from limpet.engine.definitions.agents import Agent
from limpet.engine.execution.views import Request
from limpet.errors import RunCancelled, RunFailed, TrialStuck
from limpet.state import ENDED
from limpet.stores import RunRow
from limpet.testing.app import TestApp

__all__ = ["related_agents", "run_to_end"]


def related_agents(agent: Agent[Any, Any]) -> list[Agent[Any, Any]]:
    """Return an agent and the agents that its code may call: those in its module and in enclosing functions."""
    named = (*agent.fn.__globals__.values(), *getclosurevars(agent.fn).nonlocals.values(), *agent.calls, agent)
    return list({(each.name, each.version): each for each in named if isinstance(each, Agent)}.values())


async def run_to_end(app: TestApp, run: str, answers: Mapping[str, Any]) -> list[Any]:
    """Answer requests and let time pass until a run has ended, and return how it ended. Raises TrialStuck if it never
    will.
    """
    while True:
        await app.settle()
        row = await app.store.get(run)
        if row.status in ENDED:
            return await _end(app, run)
        requests = await app.inbox()
        for request in requests:
            if await _answer(app, request, answers):
                break
        else:
            await _let_time_pass(app, row, requests)


async def _end(app: TestApp, run: str) -> list[Any]:
    try:
        return ["completed", (await app.result(run, None)).value]
    except RunFailed as failed:
        return ["failed", failed.error_type]
    except RunCancelled:
        return ["cancelled"]


async def _let_time_pass(app: TestApp, row: RunRow, requests: Sequence[Request]) -> None:
    if requests:
        asks = "; ".join(f"{each.question!r}, of kind {each.kind}" for each in requests)
        raise TrialStuck(agent=row.agent, reason=f"no answer to {asks}", asks=True)
    now, wake = await app.store.now(), await app._next_wake()
    if wake is None or wake <= now:
        flags = [each.body.get("detail", "") for each in await app.log(row.id) if each.kind == "risk.flagged"]
        raise TrialStuck(agent=row.agent, reason="; ".join([f"waiting for {', '.join(row.waits)}", *flags[-1:]]))
    await app.advance(timedelta(microseconds=wake - now))


async def _answer(app: TestApp, request: Request, answers: Mapping[str, Any]) -> bool:
    """Answer a request by tool, by question or by "*". Returns False if there is no answer."""
    answer = next((answers[key] for key in (request.tool or "", request.question, "*") if key in answers), None)
    if request.kind == "unknown" and (answer is None or isinstance(answer, bool)):
        answer = app._test_settings.stubs.effect_log.answer(await _key(app, request))
    if answer is None:
        return False
    if request.kind != "approval":
        await app.answer(request, answer, by="trial")
    elif answer is False:
        await app.reject(request, by="trial", because="rejected by answers=")
    else:
        await app.approve(request, by="trial", args=answer if isinstance(answer, Mapping) else None)
    return True


async def _key(app: TestApp, request: Request) -> str:
    """Return the idempotency key of the step that a request is about."""
    log = [each.body for each in await app.log(request.run)]
    number = next(each["number"] for each in log if each.get("request") == request.id)
    return str(next(each["key"] for each in log if "key" in each and each["number"] == number))
