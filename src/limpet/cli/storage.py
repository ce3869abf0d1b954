"""Commands that maintain stored runs: verify, export, load, prune."""

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

import limpet
from limpet.cli.command_group import command, example, print_error
from limpet.cli.load_app import named_app, run_in_app, run_with_app
from limpet.cli.options import STORE, By, Code, Json, OwnUrl, RunId, Url, ages, complete_run, sender
from limpet.cli.output import bar, print_json, print_text
from limpet.compose import is_server
from limpet.engine.execution.views import RunInfo
from limpet.errors import LimpetError, NotRemote
from limpet.service.app import App
from limpet.service.archives import MAX_BYTES
from limpet.service.audit import verify_audit
from limpet.service.bundles import verify_bundle
from limpet.service.prune import Pruned
from limpet.service.task_import import ImportedTasks
from limpet.service.verify import Verified, verify_all

__all__: list[str] = []

MaxBytes = Annotated[int, typer.Option(help="Maximum unpacked size of a file, in bytes.", show_default="1 GiB")]


@command.command(epilog=example("limpet verify --heads heads.jsonl", "limpet verify ticket-42"))
def verify(  # noqa: PLR0913 - all by name, and few at a time
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|FILE]",
            help="Run id, or a file of `limpet export` or `limpet audit --export`. Default: the whole store.",
            autocompletion=complete_run,
        ),
    ] = None,
    *,
    heads: Annotated[
        Path | None,
        typer.Option(help="File written by --save-heads earlier; detects logs that were cut off or rewritten."),
    ] = None,
    pruned: Annotated[
        Path | None, typer.Option(help="List of runs pruned since then: pruned.jsonl of the archive.")
    ] = None,
    save_heads: Annotated[
        Path | None, typer.Option(help="Write the current head of every log to this file, to keep elsewhere.")
    ] = None,
    max_bytes: MaxBytes = MAX_BYTES,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Check stored logs for changes, truncation and rewriting.

    Lists every problem, and exits with 1 if there is one.
    """
    if run is not None and run.endswith(".zip") and Path(run).is_file():
        done = asyncio.run(verify_bundle(Path(run), max_bytes))
        print_json(done) if json else print_text(str(done))
        return
    if run is not None and run.endswith(".jsonl") and Path(run).is_file():
        done = verify_audit(Path(run))
        print_json(done) if json else print_text(str(done))
        return
    bad: list[LimpetError] = []

    async def look(app: App) -> Verified:
        if run is not None:
            return await app.verify(await app.find("run", run))
        if is_server(url):
            raise NotRemote(what="verifying a whole store")
        with bar("verify"):
            found = await verify_all(app.store, heads, pruned=pruned, bad=bad.append)
        if save_heads is not None and not bad:
            await app.save_heads(save_heads)
        return found

    found = run_with_app(url, look)
    for error in bad:
        print_error(error)
    print_json(found) if json else print_text(str(found))
    raise typer.Exit(bool(bad))


@command.command(epilog=example("limpet export ticket-42 ticket-42.zip"))
def export(
    run: RunId,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Zip file to write.", show_default=False)],
    *,
    with_handoffs: Annotated[
        bool, typer.Option("--with-handoffs", help="Include the runs that it called or handed over to.")
    ] = False,
    by: By,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Export a run to a zip file: its log as JSON lines, its blobs and its conversation."""

    async def write(app: App) -> str:
        found = await app.find("run", run)
        with bar("export"):
            await app.export(found, path, with_handoffs=with_handoffs, by=await sender(app, by))
        return found

    found = run_with_app(url, write)
    print_json({"id": found, "path": str(path)}) if json else print_text(f"Exported {found} to {path}.")


@command.command(epilog=example("limpet load ticket-42.zip --url sqlite:///other.db"))
def load(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File written by `limpet export`.", show_default=False)],
    *,
    max_bytes: MaxBytes = MAX_BYTES,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Load an exported run into this store. A run that has not ended waits to be resumed."""

    async def read(app: App) -> RunInfo:
        with bar("load"):
            return await app.info((await app.load(path, max_bytes=max_bytes)).id)

    found = run_with_app(url, read, creates_store=True)
    print_json(found) if json else print_text(f"Loaded {found.id}.")


@command.command("import", epilog=example("limpet import tasks tasks.json --agent support"))
def import_(  # noqa: PLR0913 - all by name, and few at a time
    what: Annotated[Literal["tasks"], typer.Argument(metavar="tasks", help="What to import.", show_default=False)],
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL",
            help="tasks.json, or a SQLite file or database URL with a table agent_tasks.",
            show_default=False,
        ),
    ],
    *,
    agent: Annotated[str, typer.Option(help="Agent that the runs belong to.", show_default=False)],
    running: Annotated[
        Literal["pending", "failed"], typer.Option(help="What a task becomes that was running.")
    ] = "pending",
    by: By,
    code: Code = None,
    url: OwnUrl = None,
    json: Json = False,
) -> None:
    """Turn the tasks of another program into runs. Importing again changes nothing.

    The agent must be known to the store, from a worker that served it, or to the app (--app).
    """
    del what  # only tasks so far

    async def write(app: App) -> ImportedTasks:
        with bar("import"):
            return await app.import_tasks(source, agent=agent, running=running, by=await sender(app, by))

    app = named_app(code, url) or limpet.open(url, worker=False)
    found = run_in_app(app, write, creates_store=True)
    print_json(found) if json else print_text(str(found))


@command.command(epilog=example("limpet prune --older-than 30d --status failed=90d --archive old --delete"))
def prune(  # noqa: PLR0913 - all by name, and few at a time
    older_than: Annotated[str, typer.Option(help="Age since the end of a run, such as 30d.", show_default=False)],
    *,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete. Without this flag, only report what would be deleted.")
    ] = False,
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS=AGE",
            help="Another age for a status: failed=90d, or failed=forever to keep them. Repeatable.",
        ),
    ] = None,
    agent: Annotated[
        list[str] | None, typer.Option(metavar="AGENT=AGE", help="Another age for an agent. Repeatable.")
    ] = None,
    archive: Annotated[Path | None, typer.Option(help="Folder to export each run to before deleting it.")] = None,
    snapshots: Annotated[int | None, typer.Option(min=1, help="Number of snapshots to keep per run.")] = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Delete runs that ended long ago. Without --delete, only list them.

    Related runs (a fork and its origin, a caller and the agents it called) are deleted together or kept together.
    """

    async def go(app: App) -> Pruned:
        with bar("prune"):
            return await app.prune(
                older_than=older_than,
                dry_run=not delete,
                by_status=ages(status or []),
                by_agent=ages(agent or []),
                archive=archive,
                snapshots=snapshots,
            )

    found = run_with_app(url, go)
    print_json(found) if json else print_text(str(found))
