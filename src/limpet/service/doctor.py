"""What may hurt, or does already: a look at a store, its clock, its runs and workers, and at an app's code.

Every finding says what was looked at, how bad it is, and what to do about it.
"""

import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from limpet.clock import SECOND, Clock
from limpet.engine.definitions.tools import registered_tools
from limpet.errors import LimpetError
from limpet.events import KINDS
from limpet.service.views import LIVE
from limpet.service.workers import served_by
from limpet.stores import RunFilter, RunRow, Store

__all__ = ["CheckOptions", "Finding", "Level", "run_checks", "without_risk"]

Level = Literal["ok", "warn", "bad"]
# Clocks may differ by so much; from the second on, leases are not what they seem.
SKEW, FAR = 2 * SECOND, 10 * SECOND
# Bytes that are free.
LITTLE, NONE = 1024**3, 100 * 1024**2
# How many runs of a kind are looked at, and how many are named.
MANY, NAMED = 1000, 3
PAUSED = "operator:paused"
FULL = "See if workers are full: limpet workers; let them have more: limpet worker --concurrency."
SERVE = "Start a worker that serves it: limpet worker MODULE:ATTRIBUTE."


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that was looked at."""

    what: str
    """The part: store, database, schema, clock, runs, workers, agents, rows, disk, tools."""
    level: Level
    message: str
    hint: str = ""
    """What to do about it; nothing if all is well."""

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}".strip() if self.hint else self.message


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What is to be looked at, and what to do about it."""

    last: int = 100
    """How many of the newest runs are held against their logs."""
    stuck: int = 600 * SECOND
    """A run that is ready for longer than that, in microseconds, though it is served, is stuck."""
    fix: bool = False
    """Make rows and counters anew that do not fit."""
    needed: bool = True
    """Whether there has to be a store at all."""


async def run_checks(store: Store, clock: Clock, wanted: CheckOptions) -> list[Finding]:
    """Look at a store, which is opened and closed; one that is not there is not made."""
    try:
        if not await store.is_there():
            return [_none("bad" if wanted.needed else "warn")]
        async with store:
            checks = {
                "store": _opened(store),
                "clock": _clock(store, clock),
                "runs": _runs(store, wanted.stuck),
                "workers": _workers(store),
                "agents": _agents(store),
                "rows": _rows(store, wanted),
                "disk": _disk(store),
            }
            return [each for what, check in checks.items() for each in await _all(what, check)]
    except LimpetError as error:
        return [_refused("store", error)]


def without_risk() -> Iterator[Finding]:
    """Effects that nobody is ever asked about, because their tools say no risk."""
    for tool in sorted(registered_tools(), key=lambda each: each.name):
        if tool.traits.effect != "none" and tool.traits.risk is None:
            message = f"{tool.name} has the effect {tool.traits.effect!r} and no risk: nobody is asked before it runs"
            hint = "Say risk= on the tool, and approvals= on the agent."
            yield Finding(what="tools", level="warn", message=message, hint=hint)


async def _all(what: str, check: AsyncIterator[Finding]) -> list[Finding]:
    """What a check finds; that it cannot be made is a finding, too."""
    found: list[Finding] = []
    try:
        found += [each async for each in check]
    except LimpetError as error:
        found.append(_refused(what, error))
    return found


def _none(level: Level) -> Finding:
    hint = "Say where it is with --url or LIMPET_URL; a worker makes a new one."
    return Finding(what="store", level=level, message="there is none", hint=hint)


def _refused(what: str, error: LimpetError) -> Finding:
    message = f"{error.summary.removesuffix('.')} [{error.code}]"
    return Finding(what=what, level="bad", message=message, hint=error.hint)


async def _opened(store: Store) -> AsyncIterator[Finding]:
    about = await store.about()
    yield Finding(what="store", level="ok", message="it can be opened, and is ours")
    yield Finding(what="database", level="ok", message=about.database)
    if about.schema:
        yield Finding(what="schema", level="ok", message=f"{about.schema}, the newest that is known here")


async def _clock(store: Store, clock: Clock) -> AsyncIterator[Finding]:
    """Of a server, its own clock; of a file, what others wrote into it."""
    now = clock.now()
    apart = await store.now() - now
    newest = (await store.recent([each.name for each in KINDS], scan=MANY)).events
    ahead = max((event.time - now for event in newest), default=0)
    off = apart if abs(apart) > SKEW else max(ahead, 0)
    if abs(off) > SKEW:
        what = "the store's clock" if off == apart else "the newest event"
        message = f"{what} is {abs(off) / SECOND:.0f} s {'ahead of' if off > 0 else 'behind'} this machine's clock"
        hint = "Let all machines keep their time with NTP: leases and waits go by it."
        yield Finding(what="clock", level="bad" if abs(off) > FAR else "warn", message=message, hint=hint)
    else:
        yield Finding(what="clock", level="ok", message="it is as this machine's")


async def _runs(store: Store, stuck_after: int) -> AsyncIterator[Finding]:
    now = await store.now()
    served = await served_by(store, now)
    living = {each.id for each in await store.workers() if each.lease_until > now}
    running = [row for row in await _some(store, "running") if row.worker not in living]
    late = now - stuck_after
    ready = [row for row in await _some(store, "pending") if row.ready_at is not None and row.ready_at < late]
    still = [row for row in ready if row.agent_version in served.get(row.agent, ())]
    parked = [row for row in await _some(store, "waiting") if _operator(row)]
    found = [
        _stuck(running, "running, and the worker that had it does not live", SERVE),
        _stuck(still, "ready for long, and no worker takes it", FULL),
        *(
            _stuck([row for row in parked if _operator(row) == why], f"waiting for you: {why}", _look(parked, why))
            for why in sorted({_operator(row) for row in parked})
        ),
    ]
    stuck = [each for each in found if each is not None]
    for each in stuck or [Finding(what="runs", level="ok", message="none is stuck")]:
        yield each


def _operator(row: RunRow) -> str:
    """Why a run waits for somebody to look; nothing if it does not, or if it was paused on purpose."""
    waits = [each for each in row.waits if each.startswith("operator:") and each != PAUSED]
    return waits[0].removeprefix("operator:") if waits else ""


def _look(parked: Sequence[RunRow], why: str) -> str:
    first = next(row.id for row in parked if _operator(row) == why)
    return f"See why: limpet show {first}; when it is mended: limpet resume {first}."


def _stuck(rows: Sequence[RunRow], how: str, hint: str) -> Finding | None:
    if not rows:
        return None
    message = (
        f"{_count(len(rows), 'run')} {'is' if len(rows) == 1 else 'are'} {how}: {_names([row.id for row in rows])}"
    )
    return Finding(what="runs", level="bad", message=message, hint=hint)


async def _workers(store: Store) -> AsyncIterator[Finding]:
    now = await store.now()
    known = await store.workers()
    dead = [each.id for each in known if each.lease_until <= now]
    if dead:
        message = f"{_count(len(dead), 'worker')} ended without a word, and the lease is over: {_names(dead)}"
        hint = "Start a worker: it clears them away, and goes on with what they had."
        yield Finding(what="workers", level="warn", message=message, hint=hint)
    living = len(known) - len(dead)
    if living or not dead:
        message = f"{_count(living, 'worker')} live" if living else "there is none"
        yield Finding(what="workers", level="ok", message=message)


async def _agents(store: Store) -> AsyncIterator[Finding]:
    served = await served_by(store, await store.now())
    live = [row for status in LIVE for row in await _some(store, status)]
    lonely = sorted(
        {f"{row.agent} {row.agent_version}" for row in live if row.agent_version not in served.get(row.agent, ())}
    )
    if lonely:
        message = f"there are runs that go on, and no live worker serves {', '.join(lonely)}"
        yield Finding(what="agents", level="warn", message=message, hint=SERVE)
    else:
        yield Finding(what="agents", level="ok", message="all that have runs are served")


async def _rows(store: Store, wanted: CheckOptions) -> AsyncIterator[Finding]:
    """Counters against rows, and rows against logs: what does not fit is made anew, if that is wanted."""
    miscounted = await store.check_counts()
    rows = (await store.runs(limit=min(wanted.last, MANY))).rows
    unlike = {row.id: found for row in rows if (found := await store.check_rows(row.id))}
    if wanted.fix:
        for run in unlike:
            await store.rebuild(run)
        if miscounted or unlike:
            await store.recount()
    if miscounted:
        yield _unfit(f"counters are wrong: {'; '.join(miscounted[:NAMED])}", wanted)
    if unlike:
        first, message = next(iter(unlike.items()))
        do = "does" if len(unlike) == 1 else "do"
        yield _unfit(f"{_count(len(unlike), 'row')} {do} not fit the log: {first}: {message[0]}", wanted)
    if not miscounted and not unlike:
        yield Finding(
            what="rows", level="ok", message=f"counters, and {_count(len(rows), 'row')} of the newest runs, fit"
        )


def _unfit(message: str, wanted: CheckOptions) -> Finding:
    if wanted.fix:
        return Finding(what="rows", level="warn", message=f"{message}; rebuilt", hint="Look again: limpet doctor.")
    return Finding(what="rows", level="bad", message=message, hint="Make them anew from the logs: limpet doctor --fix.")


async def _disk(store: Store) -> AsyncIterator[Finding]:
    file = (await store.about()).file
    if file is None:
        return
    free, size = shutil.disk_usage(file.parent).free, file.stat().st_size
    level: Level = "bad" if free < NONE else "warn" if free < max(LITTLE, size) else "ok"
    hint = "" if level == "ok" else "Make room, or let old runs go: limpet prune --older-than 30d --delete."
    message = f"{free / 1024**3:.1f} GiB are free beside a file of {size / 1024**2:.1f} MiB"
    yield Finding(what="disk", level=level, message=message, hint=hint)


async def _some(store: Store, status: str) -> Sequence[RunRow]:
    return (await store.runs(RunFilter(status=(status,)), limit=MANY)).rows


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number}{'+' if number >= MANY else ''} {what}s"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
