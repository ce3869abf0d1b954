"""Read-only commands: about one run (show, log, state, diff, compare), and across runs (search, errors, stats …)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import run_with_app, run_with_time, worker_command
from limpet.cli.options import STORE, AgentName, Json, Last, RunId, Since, Url
from limpet.cli.output import TableLayout, about, clean, print_json, print_table, print_text
from limpet.cli.pages import print_report, print_runs
from limpet.cli.watch import print_log, watch, while_read
from limpet.clock import format_time
from limpet.engine.execution.views import EventView, Status
from limpet.redaction import hide_secrets_in
from limpet.service import App
from limpet.service.moments import Comparison, Diff, Moment
from limpet.service.queries import CallInfo, DecisionInfo, ErrorInfo
from limpet.service.report import Report
from limpet.service.resolve import find_run
from limpet.service.views import one_line
from limpet.service.workers import AgentInfo, Stats, WorkerInfo

__all__ = ["print_found"]

T = TypeVar("T")
# Maximum length of shown arguments; the JSON has all.
LONGEST = 200
STATUSES = get_args(Status)
FOUND = TableLayout(narrow={"content": 20}, left_out=("age", "event"), wraps=("content",))
DECISIONS = TableLayout(
    narrow={"because": 20, "question": 10, "chosen": 8, "agent": 8},
    left_out=("agent", "age", "question"),
    wraps=("because", "question", "chosen"),
)
ERRORS = TableLayout(narrow={"error": 24, "step": 10}, left_out=("age", "handled"), wraps=("error", "step"))
CALLS = TableLayout(
    narrow={"because": 18, "call": 18, "run": 12},
    left_out=("step", "age"),
    wraps=("because", "call"),
)
COUNTS = TableLayout(narrow={"agent": 8}, left_out=("cancelled", "pending"))
AGENTS = TableLayout(narrow={"gives": 6, "takes": 6}, left_out=("gives", "takes"))
WORKERS = TableLayout(narrow={"serves": 10}, left_out=("started", "lease"), wraps=("serves",))


@command.command(epilog=example('limpet search "arrived broken" --since 7d', "limpet search o-7 --kind step.completed"))
def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text to search for, ignoring case.", show_default=False)],
    *,
    kind: Annotated[str | None, typer.Option(help="Only events of this kind.", show_default=False)] = None,
    since: Since = None,
    last: Last = 20,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Search the events of all runs and conversations for text, newest first."""

    def row(each: EventView, now: int) -> dict[str, str]:
        return {
            "run": each.run,
            "event": str(each.seq),
            "age": about(now - each.time),
            "kind": each.kind,
            "content": one_line(each.body),
        }

    found, now = run_with_time(url, lambda app: app.search(text, kind=kind, since=since, last=last))
    print_found(found, FOUND, lambda each: row(each, now), none="no matching events", json=json)


@command.command(epilog=example("limpet decisions refund --since 7d", "limpet decisions --agent support"))
def decisions(
    text: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="Text that the decision contains.", show_default=False)
    ] = "",
    *,
    agent: AgentName = None,
    since: Since = None,
    last: Last = 20,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """List the decisions of agents with their reasons, newest first."""

    def row(each: DecisionInfo, now: int) -> dict[str, str]:
        return {
            "run": each.run,
            "agent": each.agent,
            "age": about(now - each.time),
            "question": each.question,
            "chosen": str(each.chosen),
            "because": each.because,
        }

    found, now = run_with_time(url, lambda app: app.decisions(text, agent=agent, since=since, last=last))
    print_found(found, DECISIONS, lambda each: row(each, now), none="no decisions", json=json)


@command.command(epilog=example("limpet errors --since 1d", "limpet errors --agent support --json | jq '.[].type'"))
def errors(
    *, agent: AgentName = None, since: Since = None, last: Last = 20, url: Url = STORE, json: Json = False
) -> None:
    """List the errors of all runs and how each was handled, newest first."""

    def row(each: ErrorInfo, now: int) -> dict[str, str]:
        tries = f", attempt {each.attempt}" if (each.attempt or 1) > 1 else ""
        return {
            "run": each.run,
            "age": about(now - each.time),
            "step": f"{each.name}{tries}",
            "error": f"{each.type}: {each.message}",
            "handled": each.handled,
        }

    found, now = run_with_time(url, lambda app: app.errors(agent=agent, since=since, last=last))
    print_found(found, ERRORS, lambda each: row(each, now), none="no errors", json=json)


@command.command(epilog=example("limpet calls refund --where 'cents>100' --since 7d", "limpet calls --agent support"))
def calls(  # noqa: PLR0913 - all by name, and few at a time
    tool: Annotated[
        str | None, typer.Argument(metavar="[TOOL]", help="Only calls of this tool.", show_default=False)
    ] = None,
    *,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Condition on an argument: cents>100, order.id=o-1, to~example. Repeatable; all must match.",
        ),
    ] = None,
    agent: AgentName = None,
    since: Since = None,
    last: Last = 20,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """List tool calls, each with the decision before it, newest first."""

    def row(each: CallInfo, now: int) -> dict[str, str]:
        made = each.decision
        return {
            "run": each.run,
            "step": str(each.step.number),
            "age": about(now - each.step.started),
            "call": _call(each),
            "status": each.step.status,
            "because": "" if made is None else f"{made.question} {made.chosen}: {made.because}",
        }

    found, now = run_with_time(
        url, lambda app: app.tool_calls(tool, where=where or (), agent=agent, since=since, last=last)
    )
    print_found(found, CALLS, lambda each: row(each, now), none="no matching calls", json=json)


@command.command(epilog=example("limpet stats"))
def stats(url: Url = STORE, json: Json = False) -> None:
    """Count runs, open requests and workers."""
    found = run_with_app(url, lambda app: app.stats())
    if json:
        print_json(found)
        return
    print_table(_counts(found), COUNTS, none="no runs")
    print_text(f"\nopen requests: {found.requests}, live workers: {found.workers}")
    if found.unserved:
        print_text(f"No live worker serves {', '.join(found.unserved)}.\nnext: {worker_command()}")


@command.command(epilog=example("limpet agents"))
def agents(url: Url = STORE, json: Json = False) -> None:
    """List the agents that are registered in the store."""

    def row(each: AgentInfo) -> dict[str, str]:
        return {
            "agent": each.name,
            "version": each.version,
            "served": "yes" if each.is_served else "no",
            "takes": _form(each.contract.get("input")),
            "gives": _form(each.contract.get("output")),
        }

    found = run_with_app(url, lambda app: app.agents())
    print_found(found, AGENTS, row, none="no agents", json=json)


@command.command(epilog=example("limpet workers"))
def workers(url: Url = STORE, json: Json = False) -> None:
    """List the workers: which agents each serves, and whether it is alive."""

    def row(each: WorkerInfo, now: int) -> dict[str, str]:
        return {
            "worker": each.id,
            "state": "live" if each.is_live else "dead",
            "started": about(now - each.started),
            "lease": format_time(each.lease_until),
            "serves": ", ".join(f"{name} {' '.join(versions)}" for name, versions in each.agents.items()),
        }

    found, now = run_with_time(url, lambda app: app.workers())
    print_found(found, WORKERS, lambda each: row(each, now), none="no workers", json=json)


def print_found(
    found: Sequence[T], shape: TableLayout, row: Callable[[T], Mapping[str, str]], *, none: str, json: bool
) -> None:
    """Print results as JSON or as a table."""
    print_json(found) if json else print_table([row(each) for each in found], shape, none=none)


def _call(call: CallInfo) -> str:
    """Describe a call in one line: a model by its name, a tool with its arguments."""
    step = call.step
    args = hide_secrets_in(step.args)
    if step.kind == "model" and isinstance(args, dict) and isinstance(args.get("reference"), dict):
        args = args["reference"].get("model", "")
    shown = ", ".join(f"{name}={value!r}" for name, value in args.items()) if isinstance(args, dict) else str(args)
    return clean(f"{step.tool}({shown if len(shown) <= LONGEST else f'{shown[:LONGEST]}…'})")


def _counts(found: Stats) -> list[dict[str, str]]:
    """Return a row for each agent, and a total if there are several."""
    rows = [{"agent": agent, **{each: str(of.get(each, 0)) for each in STATUSES}} for agent, of in found.agents.items()]
    total = {"agent": "all", **{each: str(found.runs.get(each, 0)) for each in STATUSES}}
    return [*rows, total] if len(rows) > 1 else rows


def _form(schema: Any) -> str:
    """Return the title or type of a JSON Schema."""
    if not isinstance(schema, Mapping):
        return ""
    return str(schema.get("title") or schema.get("type") or "anything")


@command.command(epilog=example("limpet runs --failed --last 5", "limpet runs --watch"))
def runs(  # noqa: PLR0913 - all by name, and few at a time
    *,
    status: Annotated[Status | None, typer.Option(help="Only runs with this status.", show_default=False)] = None,
    agent: AgentName = None,
    failed: Annotated[bool, typer.Option("--failed", help="Same as --status failed.")] = False,
    waiting: Annotated[bool, typer.Option("--waiting", help="Same as --status waiting.")] = False,
    last: Last = 20,
    live: Annotated[bool, typer.Option("--watch", help="Keep showing changes until Ctrl-C.")] = False,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """List the newest runs."""
    wanted = {each for each in (status, "failed" if failed else None, "waiting" if waiting else None) if each}
    if len(wanted) > 1:
        raise typer.BadParameter(f"pass only one of {' and '.join(sorted(wanted))}")
    only = next(iter(wanted), None)
    if live:
        run_with_app(url, lambda app: while_read(watch(app, status=only, agent=agent, last=last, json=json)))
        return

    found, now = run_with_time(url, lambda app: app.runs(status=only, agent=agent, last=last))
    print_json(found) if json else print_runs(found, now)


@command.command(epilog=example("limpet show ticket-42"))
def show(run: RunId, url: Url = STORE, json: Json = False) -> None:
    """Summarise a run: status, steps, waits, errors, and the next command to type."""

    async def look(app: App) -> Report:
        return await app.show((await find_run(app.store, run)).id)

    found, now = run_with_time(url, look)
    print_json(found) if json else print_report(found, now)


@command.command(epilog=example("limpet log ticket-42 --follow", "limpet log ticket-42 --json | jq .kind"))
def log(
    run: RunId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the run has ended.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only events after this sequence number.")] = 0,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Print the events of a run; with --json, one object per line."""

    async def look(app: App) -> None:
        found = (await find_run(app.store, run)).id
        await while_read(print_log(app.events(found, after, follow=follow), json=json))

    run_with_app(url, look)


@command.command(epilog=example("limpet state ticket-42 --before 6"))
def state(
    run: RunId,
    *,
    before: Annotated[int | None, typer.Option(help="State just before this step.")] = None,
    after: Annotated[int | None, typer.Option(help="State just after this step had its result.")] = None,
    seq: Annotated[int | None, typer.Option(help="State after this event.")] = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Show the state of a run: before or after a step, after an event, or now."""

    async def look(app: App) -> Moment:
        found = (await find_run(app.store, run)).id
        return await app.state(found, before=before, after=after, seq=seq)

    found = run_with_app(url, look)
    print_json(found) if json else print_text(str(found))


@command.command(epilog=example("limpet diff ticket-42 6"))
def diff(
    run: RunId,
    step: Annotated[int, typer.Argument(metavar="STEP", help="Step number.", show_default=False)],
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Show what a step changed in the state of a run."""

    async def look(app: App) -> Diff:
        return await app.diff((await find_run(app.store, run)).id, step=step)

    found = run_with_app(url, look)
    print_json(found) if json else print_text(str(found))


@command.command(epilog=example("limpet compare ticket-42 ticket-42.1"))
def compare(one: RunId, other: RunId, url: Url = STORE, json: Json = False) -> None:
    """Show where two runs diverged, and how they differ."""

    async def look(app: App) -> Comparison:
        first, second = [(await find_run(app.store, each)).id for each in (one, other)]
        return await app.compare(first, second)

    found = run_with_app(url, look)
    print_json(found) if json else print_text(str(found))
