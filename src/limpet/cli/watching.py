"""Views that stay: the log of a run as it grows, and runs as they change. Ctrl-C ends them."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from limpet.cli.output import clean, console, print_line
from limpet.cli.pages import runs_table
from limpet.cli.times import moment
from limpet.engine.views import Event, RunInfo
from limpet.service import App
from limpet.service.watching import watch_runs

__all__ = ["follow_log", "print_log", "watch", "words"]

# Of an event's text; all of it is in the JSON.
LONGEST = 400
# What tells nobody anything at a glance.
QUIET = frozenset(
    {"asked", "command", "contract", "digest", "key", "mro", "number", "attempt", "schema", "traceback", "versions"}
)


async def print_log(app: App, run: str, after: int, *, json: bool) -> None:
    """The events that there are."""
    await _print(app.events(run, after, follow=False), json=json)


async def follow_log(app: App, run: str, after: int, *, json: bool) -> None:
    """The events that there are, and those that come, until the run has ended."""
    await _print(app.events(run, after), json=json)


async def _print(events: AsyncIterator[Event], *, json: bool) -> None:
    out = console()
    async for event in events:
        if json:
            print_line(event)
        else:
            line = clean(f"{event.seq:>4}  {moment(event.time)}  {event.kind:<18}  {words(event.body)}".rstrip())
            out.print(line, overflow="ellipsis", no_wrap=True)


def words(body: Mapping[str, Any]) -> str:
    """What an event says, in brief."""
    words = " ".join(_members(body))
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}…"


def _members(body: Mapping[str, Any]) -> Iterator[str]:
    if "number" in body and body["number"] is not None:
        tries = f"/{body['attempt']}" if body.get("attempt", 1) > 1 else ""
        yield f"step {body['number']}{tries}"
    for name, value in body.items():
        if name not in QUIET and value not in (None, "", {}, [], False):
            yield f"{name}={_brief(value)}"


def _brief(value: Any) -> str:
    if isinstance(value, dict) and "json" in value:
        return _brief(value["json"])
    if isinstance(value, dict) and "blob" in value:
        return f"({value.get('bytes', 0)} bytes)"
    if isinstance(value, dict):
        shown = {name: each for name, each in value.items() if name not in QUIET and each not in (None, "", {}, [])}
        return "{" + ", ".join(f"{name}: {_brief(each)}" for name, each in shown.items()) + "}"
    return repr(value) if isinstance(value, str) and " " in value else str(value)


async def watch(app: App, *, status: str | None, agent: str | None, last: int, json: bool) -> None:
    """Runs as they change: a table that stays where there is a terminal; else a line for each change."""
    out = console()
    async with aclosing(watch_runs(app, status=status, agent=agent, last=last)) as looks:
        if json or not out.is_terminal or out.is_dumb_terminal:
            await _print_changes(looks, json=json)
        else:
            await _keep_table(app, looks)


async def _print_changes(looks: AsyncIterator[list[RunInfo]], *, json: bool) -> None:
    known: dict[str, RunInfo] = {}
    async for found in looks:
        for run in sorted(found, key=lambda each: (each.updated, each.created)):
            if known.get(run.id) != run:
                print_line(run) if json else console().print(_line(run))
        known = {run.id: run for run in found}


def _line(run: RunInfo) -> str:
    waits = f"waits for {run.waits_for}" if run.waits_for else ""
    told = (moment(run.updated), run.id, f"{run.agent} {run.version}", run.status, run.position, waits, run.goal)
    return "  ".join(clean(each) for each in told if each)


async def _keep_table(app: App, looks: AsyncIterator[list[RunInfo]]) -> None:
    from rich.live import Live  # noqa: PLC0415 - it takes long, and few need it

    out = console()
    with Live(console=out, auto_refresh=False, screen=False) as live:
        async for found in looks:
            fit = found[: max(out.height - 3, 1)]  # what does not fit could not be drawn over
            live.update(runs_table(fit, await app.store.now(), out.width) if fit else "no runs", refresh=True)
