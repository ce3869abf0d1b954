"""The commands. Each takes `--url` and, where it shows something, `--json`; docs/cli.md says what that holds.

Exit codes: 0 done, 1 an error, whose text and cure are on stderr, 2 wrong usage.
"""

import asyncio
import getpass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from limpet.cli.asking import ask, json_object, reported
from limpet.cli.health import without_risk
from limpet.cli.output import print_json, print_text
from limpet.cli.pages import print_inbox, print_report, print_runs
from limpet.cli.working import serve, worker_of
from limpet.engine.duty import Worker
from limpet.engine.views import Request, RunInfo
from limpet.errors import Tampered
from limpet.service import App
from limpet.service.bundles import verify_bundle
from limpet.service.finding import find_run
from limpet.service.report import Report
from limpet.service.report import report as report_on
from limpet.service.travel import Comparison, Diff, Moment
from limpet.service.trust import Verified, verify_all

__all__ = ["command"]

command = typer.Typer(
    help="Durable runs of AI agents: drive them, look at them, decide for them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Url = Annotated[str, typer.Option(envvar="LIMPET_URL", help="The store: sqlite:///file.db or postgresql://…")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Its id, or the beginning of it.", show_default=False)]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="Its id, as `limpet show` says.", show_default=False)]
By = Annotated[str, typer.Option(help="Who decides.", default_factory=getpass.getuser, show_default="you")]
Status = Literal["pending", "running", "waiting", "completed", "failed", "cancelled"]
STORE = "sqlite:///limpet.db"


@command.command()
def worker(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:ATTRIBUTE", help="An app, an agent or a list of agents.", show_default=False),
    ],
    url: Annotated[str | None, typer.Option(help="The store, if not the app's own or LIMPET_URL.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="How many runs at once.")] = 100,
    lease: Annotated[str, typer.Option(help="How long its runs stay its own without a sign of life.")] = "10s",
    grace: Annotated[str, typer.Option(help="How long effects under way may take when it stops.")] = "10s",
) -> None:
    """Drive runs, until SIGTERM or Ctrl-C.

    Then effects under way finish within the grace, and the runs are given back; a second signal does not wait.
    """
    with reported():
        app = worker_of(target, url, Worker(concurrency=concurrency, lease=lease, grace=grace))
        asyncio.run(serve(app))


@command.command()
def doctor(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:ATTRIBUTE", help="An app, an agent or a list of agents.", show_default=False),
    ],
    json: Json = False,
) -> None:
    """Look for what may hurt later: effects that no person is ever asked about. Ends with 1 if there is any."""
    with reported():
        worker_of(target, None, Worker())
    found = list(without_risk())
    if json:
        print_json(found)
    else:
        cure = "cure: say risk= on the tool, and approvals= on the agent"
        print_text("\n".join([*found, cure]) if found else "all is well")
    raise typer.Exit(bool(found))


@command.command()
def runs(  # noqa: PLR0913 - all by name, and few at a time
    *,
    url: Url = STORE,
    status: Annotated[Status | None, typer.Option(help="Only these.", show_default=False)] = None,
    agent: Annotated[str | None, typer.Option(help="Only of this agent.", show_default=False)] = None,
    failed: Annotated[bool, typer.Option("--failed", help="The same as --status failed.")] = False,
    waiting: Annotated[bool, typer.Option("--waiting", help="The same as --status waiting.")] = False,
    last: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    json: Json = False,
) -> None:
    """List the newest runs."""
    wanted = {each for each in (status, "failed" if failed else None, "waiting" if waiting else None) if each}
    if len(wanted) > 1:
        raise typer.BadParameter(f"a run is not {' and '.join(sorted(wanted))} at once")

    async def look(app: App) -> tuple[list[RunInfo], int]:
        found = await app.runs(status=next(iter(wanted), None), agent=agent, last=last)
        return found, await app.store.now()

    found, now = ask(url, look)
    print_json(found) if json else print_runs(found, now)


@command.command()
def show(run: RunId, url: Url = STORE, json: Json = False) -> None:
    """Show a run on one page, and what to type next."""

    async def look(app: App) -> Report:
        return await report_on(app, (await find_run(app.store, run)).id)

    found = ask(url, look)
    print_json(found.as_json()) if json else print_report(found)


@command.command()
def state(
    run: RunId,
    *,
    before: Annotated[int | None, typer.Option(help="Just before this step.")] = None,
    after: Annotated[int | None, typer.Option(help="Just after this step.")] = None,
    seq: Annotated[int | None, typer.Option(help="After this event.")] = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Show what a run knew: before or after a step, after an event, or now."""

    async def look(app: App) -> Moment:
        found = (await find_run(app.store, run)).id
        return await app.state(found, before=before, after=after, seq=seq)

    found = ask(url, look)
    print_json(found.as_json()) if json else print_text(str(found))


@command.command()
def diff(
    run: RunId,
    step: Annotated[int, typer.Argument(metavar="STEP", help="Its number.", show_default=False)],
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Show what a step changed in what a run knows."""

    async def look(app: App) -> Diff:
        return await app.diff((await find_run(app.store, run)).id, step=step)

    found = ask(url, look)
    print_json(found) if json else print_text(str(found))


@command.command()
def compare(one: RunId, other: RunId, url: Url = STORE, json: Json = False) -> None:
    """Show where two runs went apart, and how they differ."""

    async def look(app: App) -> Comparison:
        first, second = [(await find_run(app.store, each)).id for each in (one, other)]
        return await app.compare(first, second)

    found = ask(url, look)
    print_json(found) if json else print_text(str(found))


@command.command()
def verify(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN|FILE]", help="One run, or a file that `limpet export` wrote; else all."),
    ] = None,
    *,
    heads: Annotated[Path | None, typer.Option(help="Where logs ended, as --save-heads wrote it earlier.")] = None,
    pruned: Annotated[Path | None, typer.Option(help="What was pruned since: pruned.jsonl of the archive.")] = None,
    save_heads: Annotated[Path | None, typer.Option(help="Write where every log ends now, to keep elsewhere.")] = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Check that nothing stored was changed, cut off or written anew. Names all that was, and ends with 1."""
    if run is not None and run.endswith(".zip") and Path(run).is_file():
        with reported():
            done = asyncio.run(verify_bundle(Path(run)))
        print_json(done) if json else print_text(str(done))
        return
    bad: list[Tampered] = []

    async def look(app: App) -> Verified:
        if run is not None:
            return await app.verify((await find_run(app.store, run)).id)
        found = await verify_all(app.store, heads, bad=bad.append, pruned=pruned)
        if save_heads is not None and not bad:
            await app.save_heads(save_heads)
        return found

    found = ask(url, look)
    for error in bad:
        typer.echo(f"error: {error}", err=True)
    print_json(found) if json else print_text(str(found))
    raise typer.Exit(bool(bad))


@command.command()
def export(
    run: RunId,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; a zip.", show_default=False)],
    url: Url = STORE,
) -> None:
    """Write a run to a file: its log as JSON lines, and what it refers to."""

    async def write(app: App) -> str:
        found = (await find_run(app.store, run)).id
        await app.export(found, path)
        return found

    typer.echo(f"{ask(url, write)} is in {path}")


@command.command()
def load(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="What `limpet export` wrote.", show_default=False)],
    url: Url = STORE,
) -> None:
    """Take a run from a file into this store; one that has not ended waits to be resumed."""

    async def read(app: App) -> str:
        return (await app.load(path)).id

    typer.echo(f"{ask(url, read, makes=True)} is here")


@command.command()
def resume(run: RunId, url: Url = STORE) -> None:
    """Let a failed or paused run go on."""

    async def go_on(app: App) -> str:
        return (await app.resume((await find_run(app.store, run)).id)).id

    typer.echo(f"{ask(url, go_on)} goes on, when a worker serves it")


@command.command()
def inbox(
    *,
    to: Annotated[str | None, typer.Option(help="Only what was asked of this person or group.")] = None,
    run: Annotated[str | None, typer.Option(help="Only of this run.")] = None,
    risk: Annotated[str | None, typer.Option(help="Only of this risk.")] = None,
    older_than: Annotated[str | None, typer.Option(help="Only what waits for longer, such as 2h.")] = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """List what waits for a person, the oldest first, with what led to it and what each answer causes."""

    async def look(app: App) -> tuple[list[Request], int]:
        wanted = None if run is None else (await find_run(app.store, run)).id
        found = await app.inbox(to=to, run=wanted, risk=risk, older_than=older_than)
        return found, await app.store.now()

    found, now = ask(url, look)
    print_json(found) if json else print_inbox(found, now)


@command.command()
def approve(
    request: RequestId,
    by: By,
    args: Annotated[str | None, typer.Option(help="Other arguments for the tool, as JSON.")] = None,
    standing: Annotated[bool, typer.Option("--standing", help="And every further call of it in this run.")] = False,
    url: Url = STORE,
) -> None:
    """Say yes to a request."""
    edited = None if args is None else json_object(args)
    ask(url, lambda app: app.approve(request, by=by, args=edited, standing=standing))
    typer.echo(f"{request} is approved by {by}" + (", with every further call of its tool in this run" * standing))


@command.command()
def reject(
    request: RequestId,
    by: By,
    because: Annotated[str, typer.Option(help="Why.", show_default=False)],
    url: Url = STORE,
) -> None:
    """Say no to a request, and why."""
    ask(url, lambda app: app.reject(request, by=by, because=because))
    typer.echo(f"{request} is rejected by {by}")


@command.command()
def answer(
    request: RequestId,
    value: Annotated[str, typer.Argument(metavar="ANSWER", help="JSON; what is none is text.", show_default=False)],
    by: By,
    url: Url = STORE,
) -> None:
    """Answer a request."""
    try:
        plain = msgspec.json.decode(value)
    except msgspec.DecodeError:
        plain = value
    ask(url, lambda app: app.answer(request, plain, by=by))
    typer.echo(f"{request} is answered by {by}")
