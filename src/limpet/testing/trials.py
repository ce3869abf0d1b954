"""Trials: a run from its start to its end, with people who answer and time that passes as soon as it is waited for."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from inspect import unwrap
from pathlib import Path
from typing import Any

from limpet.engine.agents import Agent
from limpet.engine.views import Request
from limpet.errors import RunCancelled, RunFailed, TrialStuck
from limpet.state import ENDED
from limpet.stores import RunRow
from limpet.testing.app import TestApp

__all__ = ["Witness", "family", "see_through"]

Answers = Mapping[str, Any]


class Witness:
    """What came of effects, by their keys: what a person finds out who is asked. In a file it outlives a process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, list[Any]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._known.update(json.loads(line))

    def note(self, key: str, *result: Any) -> None:
        """An effect began, or gave a result."""
        self._known[key] = [*result]
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({key: result}) + "\n")

    def say(self, key: str) -> Any:
        """What came of it, as a request of kind "unknown" is answered; nothing if that cannot be known."""
        known = self._known.get(key)
        if known is None:
            return "not_applied"
        return {"applied": known[0]} if known else None


def family(agent: Agent[Any, Any]) -> list[Agent[Any, Any]]:
    """An agent, and those that its code may call: whatever agents its module and the function around it name."""
    found: dict[tuple[str, str], Agent[Any, Any]] = {}
    left = [agent]
    while left:
        each = left.pop()
        if found.setdefault((each.name, each.version), each) is each:
            left += [other for other in _named(each) if (other.name, other.version) not in found]
    return list(found.values())


def _named(agent: Agent[Any, Any]) -> Iterator[Agent[Any, Any]]:
    fn = unwrap(agent.fn)
    cells = [cell.cell_contents for cell in fn.__closure__ or () if cell != type(cell)()]
    yield from (value for value in (*fn.__globals__.values(), *cells) if isinstance(value, Agent))


async def see_through(app: TestApp, run: str, answers: Answers) -> list[Any]:
    """Answer what a run asks and let time pass, until it has ended; how it did. Raises TrialStuck if it never will."""
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
        return ["completed", await app.result(run, None)]
    except RunFailed as failed:
        return ["failed", failed.error_type]
    except RunCancelled:
        return ["cancelled"]


async def _let_time_pass(app: TestApp, row: RunRow, requests: Sequence[Request]) -> None:
    if requests:
        asks = "; ".join(f"{each.question!r}, of kind {each.kind}" for each in requests)
        raise TrialStuck(agent=row.agent, reason=f"nobody answers {asks}", asks=True)
    if (ahead := await app.ahead()) is None:
        flags = [each.body.get("detail", "") for each in await app.log(row.id) if each.kind == "risk.flagged"]
        raise TrialStuck(agent=row.agent, reason=" ".join([f"it waits for {', '.join(row.waits)}.", *flags[-1:]]))
    await app.advance(timedelta(microseconds=ahead))


async def _answer(app: TestApp, request: Request, answers: Answers) -> bool:
    """Answer as was said, by tool, by question or for all; false if nothing was."""
    said = next((answers[key] for key in (request.tool, request.question, "*") if key in answers), None)
    if request.kind == "unknown" and (said is None or isinstance(said, bool)):
        said = app.witness.say(await _key(app, request))
    if said is None:
        return False
    if request.kind != "approval":
        await app.answer(request, said, by="trial")
    elif said is False:
        await app.reject(request, by="trial", because="the trial says no")
    else:
        await app.approve(request, by="trial", args=said if isinstance(said, Mapping) else None)
    return True


async def _key(app: TestApp, request: Request) -> str:
    """The idempotency key of the step that a request is about."""
    log = [each.body for each in await app.log(request.run)]
    number = next(each["number"] for each in log if each.get("request") == request.id)
    return str(next(each["key"] for each in log if "asked" in each and each["number"] == number))
