"""Say why a run waits: to a call that waits for its result, in one line on stderr, and in reports.

The lines are not recorded. They are printed by the listener that wakes the call, so there is no timer for each run.
"""

import asyncio
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import partial

from msgspec import Struct

from limpet.engine.execution.local_runs import LocalRun
from limpet.engine.execution.views import Request, WaitsFor
from limpet.engine.worker.change_listener import GONE, ChangeListener, Subscription
from limpet.engine.worker.run_host import RunHost
from limpet.errors import LimpetError
from limpet.events import bodies as b
from limpet.redaction import hide_secrets
from limpet.service.steps import call_text
from limpet.service.views import request_of
from limpet.service.workers import live_workers, waits_of
from limpet.state import ENDED
from limpet.state.fold import PAUSED
from limpet.stores import RequestFilter, Store
from limpet.stores.api.logs import LogPosition
from limpet.times import format_time, to_datetime

__all__ = [
    "OperatorWait",
    "WaitNotices",
    "decision_commands",
    "operator_line",
    "operator_wait",
    "question_line",
    "say_once",
    "worker_line",
]

# Newest events that are searched for the reason of a wait.
SEARCHED = 200
# Maximum length of a question or reason in a line.
MAX_TEXT = 200
# How a run that waits for an operator is described, by the key of its wait.
STATES = {"paused": "is paused", "quarantined": "is quarantined", "diverged": "has diverged"}


class OperatorWait(Struct, frozen=True, kw_only=True):
    """Why and since when a run waits for an operator."""

    key: str
    why: str
    since: datetime | None

    def text(self, run: str, *, most: int | None = None) -> str:
        """Return it as a sentence that begins with the run; with `most`, the reason is shortened."""
        state = STATES.get(self.key, f"waits for an operator ({self.key})")
        since = "" if self.since is None else f" since {format_time(self.since)}"
        why = self.why if most is None else _first_sentences(self.why, most)
        return f"{run} {state}{since}{f': {why}' if why else ''}"


async def operator_wait(store: Store, run: str, key: str) -> OperatorWait:
    """Return why a run waits for an operator. Only the end of its log is read."""
    why, since = "", None
    for event in await store.read(run, limit=SEARCHED, backwards=True):
        body = store.decode(event)
        if since is None and isinstance(body, b.RunWaiting | b.PauseRequested):
            since = to_datetime(event.time)
        if isinstance(body, b.PauseRequested) and key == PAUSED.key:
            why = body.reason
        elif isinstance(body, b.RiskFlagged) and body.flag == key:
            why = body.detail
        if why or isinstance(body, b.RunClaimed):
            break
    return OperatorWait(key=key, why=why, since=since)


def _first_sentences(text: str, most: int) -> str:
    """Return a text, shortened at the end of a sentence if possible."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    head, stop, _ = text[:most].rpartition(". ")
    return f"{head}." if stop else f"{text[:most]}…"


def decision_commands(request: Request) -> Iterator[str]:
    """Yield the commands that decide a request."""
    if request.kind == "approval" or (request.kind == "ask" and request.schema == {"type": "boolean"}):
        yield f"limpet approve {request.id}"
        yield f"limpet reject {request.id} --because …"
    else:
        yield f"limpet answer {request.id}"


def question_line(run: str, request: Request) -> str:
    """Return the line for a run that asks a person."""
    question = _first_sentences(request.question, MAX_TEXT)
    call = f" {call_text(request.tool, dict(request.args))}" if request.tool else ""
    return f'{run} asks "{question}"{call} (request {request.id}): {next(decision_commands(request))}'


def operator_line(run: str, wait: OperatorWait) -> str:
    """Return the line for a run that waits for an operator."""
    advice = "" if wait.key == "paused" else "After fixing the cause: "
    text = wait.text(run, most=MAX_TEXT)
    return f"{text if text.endswith(('.', '…')) else f'{text}.'} {advice}limpet resume {run}"


def worker_line(run: str, agent: str) -> str:
    """Return the line for a run whose agent no worker serves."""
    return f"no live worker serves {agent}, the agent of {run}: limpet worker MODULE:ATTRIBUTE"


def say_once(line: str, local: LocalRun) -> None:
    """Print a line on stderr, unless it was printed for this run."""
    if line not in local.announced:
        local.announced.add(line)
        print(f"limpet: {hide_secrets(line)}", file=sys.stderr, flush=True)  # noqa: T201 - for the person who waits


class WaitNotices:
    """Prints why a run waits, once for each reason, while a call waits for its result."""

    def __init__(self, store: Store, listener: ChangeListener, host: RunHost | None, local: LocalRun) -> None:
        self._store, self._listener, self._host, self._local = store, listener, host, local
        self._seen: dict[str, int] = {}
        """Last sequence at which each run was examined."""
        self._children: list[Subscription] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def notify(self, run: str, place: LogPosition) -> None:
        """Examine a run whose log has grown, unless it is being driven."""
        if place is GONE or place.status in ENDED or self._seen.get(run) == place.seq:
            return
        is_first = run not in self._seen
        self._seen[run] = place.seq
        is_served = self._host is not None and self._host.serves(place.agent, place.version)
        if place.status == "waiting" or (not is_served and (place.status == "pending" or is_first)):
            task = asyncio.create_task(self._examine(run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Stop: the call no longer waits."""
        for each in self._children:
            self._listener.unsubscribe(each)
        for task in self._tasks:
            task.cancel()

    async def _examine(self, run: str) -> None:
        try:
            row = await self._store.get(run)
            workers = await live_workers(self._store, await self._store.now())
            [waits] = await waits_of(self._store, workers, [row])
            for wait in waits:
                await self._announce(run, wait)
        except LimpetError:
            return  # The call that waits gets the error of the store itself.

    async def _announce(self, run: str, wait: WaitsFor) -> None:
        line = await self._line(run, wait)
        if line is not None:
            say_once(line, self._local)

    async def _line(self, run: str, wait: WaitsFor) -> str | None:
        match wait.what:
            case "person":
                return await self._question(run, wait.key)
            case "operator":
                return operator_line(run, await operator_wait(self._store, run, wait.key))
            case "worker":
                return worker_line(run, wait.key)
            case "run":
                self._follow(wait.key)
                return None
            case "signal" | "time" | "slot":
                return None

    async def _question(self, run: str, id: str) -> str | None:
        rows = await self._store.requests(RequestFilter(id=id))
        if not rows:
            return None  # decided meanwhile
        return question_line(run, await request_of(self._store, rows[0]))

    def _follow(self, run: str) -> None:
        """Also say why a run waits that the first one called."""
        if run not in self._seen:
            subscription = Subscription(run, partial(self._known, run), partial(self.notify, run))
            self._children.append(subscription)
            self._listener.subscribe(subscription)

    def _known(self, run: str) -> int | None:
        return None if self._host is not None and self._host.is_driving(run) else 0
