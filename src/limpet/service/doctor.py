"""Checks of a store, its clock, runs and workers, and of an app's tools.

Each finding names what was checked, how severe it is, and what to do.
"""

import shutil
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from limpet.clock import SECOND, Clock
from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.tools import Tool, registered_tools
from limpet.engine.worker.engine import Engine
from limpet.errors import LimpetError, NoStore
from limpet.events import KINDS
from limpet.service.engine_check import check_engine
from limpet.service.findings import MANY, NAMED, Finding, Level, count_of, names_of, some_rows
from limpet.service.views import LIVE
from limpet.service.wait_notices import operator_wait
from limpet.service.workers import live_workers
from limpet.stores import RunRow, Store
from limpet.times import format_time

__all__ = ["CheckOptions", "check_code", "check_store", "run_checks"]

# Tolerated difference of clocks, and the difference from which leases are unreliable.
SKEW, FAR = 2 * SECOND, 10 * SECOND
# Free disk space in bytes: low, and critical.
LITTLE, NONE = 1024**3, 100 * 1024**2
# Maximum length of the reason why a run waits for an operator.
MAX_REASON = 200
# A duty is overdue after this many of its intervals.
LATE = 3
PAUSED = "operator:paused"
SWEEP = "-sweep"
"""End of the names of sweeps; see `EngineSweep`."""
FULL = "Run `limpet workers` to see whether workers are full. Start another, or raise `limpet worker --concurrency`."
SERVE = "Start a worker that serves it: `limpet worker MODULE:ATTRIBUTE`."


class CheckOptions(Struct, frozen=True, kw_only=True):
    """Options of the checks."""

    last: int = 100
    """Number of the newest runs whose rows are compared with their logs."""
    stuck: int = 600 * SECOND
    """A served run that has been ready for longer than this is stuck, in microseconds."""
    fix: bool = False
    """Whether to rebuild wrong rows and counters."""
    needed: bool = True
    """Whether a missing store is an error."""
    url: str = ""
    """Address of the store."""
    engine: Engine | None = None
    """The engine that has some of the runs driven."""


async def run_checks(store: Store, clock: Clock, options: CheckOptions) -> list[Finding]:
    """Check a store, which is opened for it and closed. A missing store is not created."""
    try:
        if not await store.exists():
            return [_no_store(options)]
        async with store:
            return await check_store(store, clock, options)
    except LimpetError as error:
        return [_failed("store", error)]


async def check_store(store: Store, clock: Clock, options: CheckOptions) -> list[Finding]:
    """Check an open store."""
    checks = {
        "store": _opened(store),
        "clock": _clock(store, clock),
        "runs": _runs(store, options.stuck),
        "workers": _workers(store),
        "agents": _agents(store),
        "duties": _duties(store),
        "engine": check_engine(store, options.engine),
        "rows": _rows(store, options),
        "disk": _disk(store),
    }
    return [each for what, check in checks.items() for each in await _all(what, check)]


def check_code(agents: Sequence[Agent[Any, Any]]) -> Iterator[Finding]:
    """Yield what the agents and the registered tools leave open, with the code to add; or that there is nothing."""
    open_points = [*map(_of_agent, agents), *map(_of_tool, sorted(registered_tools(), key=lambda each: each.name))]
    found = [each for each in open_points if each is not None]
    yield from found or [Finding(what="tools", level="ok", message="all tools and agents declare their limits")]


def _of_agent(agent: Agent[Any, Any]) -> Finding | None:
    if agent.rules.deadline is not None:
        return None
    message = f"agent {agent.name} has no deadline, so a run may never end"
    return Finding(what="agents", level="warn", message=message, hint='Add deadline="1h" to it.')


def _of_tool(tool: Tool[..., Any, Any]) -> Finding | None:
    traits, hooks = tool.traits, tool.hooks
    is_effect = traits.effect != "none"
    missing = {
        "timeout": (traits.timeout is None, 'timeout="30s"'),
        "risk": (is_effect and traits.risk is None, 'risk="external_action"'),
        "retry": (traits.effect == "idempotent" and traits.retry is None, "retry=3"),
        "verify": (traits.effect == "once" and hooks.verify is None, f"@{tool.name}.verify"),
        "compensation": (
            is_effect and hooks.compensate is None and not traits.irreversible,
            f"@{tool.name}.compensate or irreversible=True",
        ),
    }
    names = [name for name, (is_missing, _) in missing.items() if is_missing]
    if not names:
        return None
    message = f"tool {tool.name} (effect {traits.effect!r}) has no {', no '.join(names)}"
    return Finding(
        what="tools", level="warn", message=message, hint=f"Add {'; '.join(missing[each][1] for each in names)}."
    )


async def _all(what: str, check: AsyncIterator[Finding]) -> list[Finding]:
    """Return the findings of a check, including the error if it fails."""
    found: list[Finding] = []
    try:
        found += [each async for each in check]
    except LimpetError as error:
        found.append(_failed(what, error))
    return found


def _no_store(options: CheckOptions) -> Finding:
    error = NoStore(url=options.url)
    level: Level = "bad" if options.needed else "warn"
    return Finding(what="store", level=level, message=f"no store at {error.facts['url']}", hint=error.hint)


def _failed(what: str, error: LimpetError) -> Finding:
    message = f"{error.summary.removesuffix('.')} [{error.code}]"
    return Finding(what=what, level="bad", message=message, hint=error.hint)


async def _opened(store: Store) -> AsyncIterator[Finding]:
    about = await store.about()
    why = store.read_only
    yield Finding(what="store", level="ok", message="can be opened" if why is None else f"read-only: {why.reason}")
    yield Finding(what="database", level="ok", message=about.database)
    if about.schema:
        yield Finding(what="schema", level="ok", message=f"{about.schema}, up to date")


async def _clock(store: Store, clock: Clock) -> AsyncIterator[Finding]:
    """Compare clocks: a server's clock, or for a file the times that other processes wrote."""
    now = clock.now()
    apart = await store.now() - now
    newest = (await store.recent([each.name for each in KINDS], scan=MANY)).events
    ahead = max((event.time - now for event in newest), default=0)
    off = apart if abs(apart) > SKEW else max(ahead, 0)
    if abs(off) > SKEW:
        what = "the store's clock" if off == apart else "the newest event"
        message = f"{what} is {abs(off) / SECOND:.0f} s {'ahead of' if off > 0 else 'behind'} this machine's clock"
        hint = "Synchronise all machines with NTP: leases and waits depend on the time."
        yield Finding(what="clock", level="bad" if abs(off) > FAR else "warn", message=message, hint=hint)
    else:
        yield Finding(what="clock", level="ok", message="agrees with this machine's clock")


async def _runs(store: Store, stuck_after: int) -> AsyncIterator[Finding]:
    now = await store.now()
    fleet = await live_workers(store, now)
    running = [row for row in await some_rows(store, "running") if row.worker not in fleet.ids]
    late = now - stuck_after
    ready = [row for row in await some_rows(store, "pending") if row.ready_at is not None and row.ready_at < late]
    still = [row for row in ready if fleet.serve(row)]
    holders = await store.slot_holders([row.id for row in still if fleet.may_queue(row)])
    parked = [row for row in await some_rows(store, "waiting") if _operator(row)]
    keys = sorted({_operator(row) for row in parked})
    found = [
        _stuck(running, "running on a dead worker", SERVE),
        _stuck([row for row in still if row.id not in holders], "ready for long without being claimed", FULL),
        _queued(holders),
        *[await _parked(store, [row for row in parked if _operator(row) == key], key) for key in keys],
    ]
    stuck = [each for each in found if each is not None]
    for each in stuck or [Finding(what="runs", level="ok", message="none stuck")]:
        yield each


def _operator(row: RunRow) -> str:
    """Return why a run waits for an operator, or "" if it does not. A paused run does not count."""
    waits = [each for each in row.waits if each.startswith("operator:") and each != PAUSED]
    return waits[0].removeprefix("operator:") if waits else ""


async def _parked(store: Store, rows: Sequence[RunRow], key: str) -> Finding | None:
    """Return the finding for runs that wait for an operator for the same reason; the first is described."""
    first, wake = rows[0].id, rows[0].ready_at
    wait = await operator_wait(store, first, key)
    text = wait.text(first, most=MAX_REASON)
    retried = "" if wake is None else f" A worker retries it at {format_time(wake)}."
    end = "" if text.endswith((".", "…")) else "."
    hint = f"{text}{end}{retried} After fixing the cause, run `limpet resume {first}`; `limpet show {first}` has more."
    return _stuck(rows, f"waiting for an operator: {key}", hint)


def _stuck(rows: Sequence[RunRow], how: str, hint: str) -> Finding | None:
    if not rows:
        return None
    message = (
        f"{count_of(len(rows), 'run')} {'is' if len(rows) == 1 else 'are'} {how}: {names_of([row.id for row in rows])}"
    )
    return Finding(what="runs", level="bad", message=message, hint=hint)


def _queued(holders: Mapping[str, str]) -> Finding | None:
    """Return the finding for runs that have long been ready, by the runs that have their slots."""
    if not holders:
        return None
    message = f"long ready, but waiting for a slot: {names_of(list(holders))}"
    run, holder = next(iter(holders.items()))
    return Finding(
        what="runs", level="warn", message=message, hint=f"Run `limpet show {holder}`: it has the slot of {run}."
    )


async def _workers(store: Store) -> AsyncIterator[Finding]:
    now = await store.now()
    known = await store.workers()
    dead = [each.id for each in known if each.lease_until <= now]
    if dead:
        message = f"{count_of(len(dead), 'worker')} died, lease expired: {names_of(dead)}"
        hint = "Start a worker: it removes them and takes over their runs."
        yield Finding(what="workers", level="warn", message=message, hint=hint)
    living = len(known) - len(dead)
    if living or not dead:
        message = f"{count_of(living, 'worker')} alive" if living else "none"
        yield Finding(what="workers", level="ok", message=message)


async def _agents(store: Store) -> AsyncIterator[Finding]:
    fleet = await live_workers(store, await store.now())
    live = [row for status in LIVE for row in await some_rows(store, status)]
    unserved = sorted(
        {
            f"{row.agent} {row.agent_version}" + (f" on {row.engine}" if row.engine else "")
            for row in live
            if not fleet.serve(row)
        }
    )
    if unserved:
        message = f"unfinished runs, but no live worker serves {', '.join(unserved)}"
        yield Finding(what="agents", level="warn", message=message, hint=SERVE)
    else:
        yield Finding(what="agents", level="ok", message="all agents with unfinished runs are served")


async def _duties(store: Store) -> AsyncIterator[Finding]:
    """Report when each duty of the workers was last done, by which worker, and whether it is late or fails."""
    now = await store.now()
    for duty in await store.duties():
        if duty.name.endswith(SWEEP):
            continue  # a sweep lasts as long as its worker
        last = "never done" if duty.done is None else f"last done {format_time(duty.done)} by {duty.done_by}"
        is_running = duty.worker is not None and duty.lease_until > now
        text = f"{duty.name}: {last}" + (f"; running on {duty.worker}" if is_running else "")
        if duty.error:
            hint = "Fix the cause; a worker tries again within a minute."
            yield Finding(what="duties", level="bad", message=f"{text}; failed since: {duty.error}", hint=hint)
        elif not is_running and now - (duty.done or 0) > LATE * duty.every:
            hint = "Start a worker that has it: `limpet worker --keep AGE`, or limpet.Worker(keep=...)."
            yield Finding(what="duties", level="warn", message=f"{text}; overdue", hint=hint)
        else:
            yield Finding(what="duties", level="ok", message=text)


async def _rows(store: Store, options: CheckOptions) -> AsyncIterator[Finding]:
    """Compare counters with rows, and rows with logs; rebuild what differs if asked to."""
    miscounted = await store.check_counts()
    rows = (await store.runs(limit=min(options.last, MANY))).rows
    mismatched = {row.id: found for row in rows if (found := await store.check_rows(row.id))}
    if options.fix:
        for run in mismatched:
            await store.rebuild(run)
        if miscounted or mismatched:
            await store.recount()
    if miscounted:
        yield _mismatch(f"wrong counters: {'; '.join(miscounted[:NAMED])}", options)
    if mismatched:
        first, message = next(iter(mismatched.items()))
        do = "does" if len(mismatched) == 1 else "do"
        yield _mismatch(f"{count_of(len(mismatched), 'row')} {do} not match the log: {first}: {message[0]}", options)
    if not miscounted and not mismatched:
        yield Finding(
            what="rows",
            level="ok",
            message=f"counters, and {count_of(len(rows), 'row')} of the newest runs, match the logs",
        )


def _mismatch(message: str, options: CheckOptions) -> Finding:
    if options.fix:
        return Finding(
            what="rows", level="warn", message=f"{message}; rebuilt", hint="Check again with `limpet doctor`."
        )
    return Finding(
        what="rows", level="bad", message=message, hint="Rebuild them from the logs with `limpet doctor --fix`."
    )


async def _disk(store: Store) -> AsyncIterator[Finding]:
    file = (await store.about()).file
    if file is None:
        return
    free, size = shutil.disk_usage(file.parent).free, file.stat().st_size
    level: Level = "bad" if free < NONE else "warn" if free < max(LITTLE, size) else "ok"
    hint = "" if level == "ok" else "Free disk space, or delete old runs: `limpet prune --older-than 30d --delete`."
    message = f"{free / 1024**3:.1f} GiB free; the store has {size / 1024**2:.1f} MiB"
    yield Finding(what="disk", level=level, message=message, hint=hint)
