"""Commands to get started: the demo, a new project, and a worker that restarts when the code changes."""

import asyncio
import re
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from limpet.cli.browser import open_page
from limpet.cli.command_group import command, example
from limpet.cli.options import Json, NoBrowser, new_token
from limpet.cli.output import print_json
from limpet.cli.reload import ReloadOptions, develop
from limpet.cli.target import parse_target
from limpet.errors import FileFailed

__all__ = ["init_project", "starters"]

OTHER_FOLDER = "Pass another folder, or move the existing one away."

starters: dict[str, Callable[..., int]] = {}
"""Functions of other interfaces that commands call; `limpet.main` registers them, so that none imports another."""


@command.command(epilog=example("limpet demo", "limpet demo --yes", "limpet demo --dashboard"))
def demo(  # noqa: PLR0913 - all by name, and few at a time
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder for its store.")] = Path("limpet-demo"),
    *,
    slow: Annotated[bool, typer.Option("--slow", help="Play slowly, for an audience.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Approve automatically instead of prompting.")] = False,
    pause: Annotated[str | None, typer.Option(help="Pause between lines, such as 2s.")] = None,
    dashboard: Annotated[
        bool,
        typer.Option("--dashboard", help="Instead, fill a store with runs in every state, and serve its dashboard."),
    ] = False,
    no_browser: NoBrowser = False,
    json: Json = False,
) -> None:
    """Watch an agent survive a kill at step 6 of 9. Needs no API key and no network; takes a minute.

    The processes, the service and the SIGKILL are real. Everything shown is read from the store or from the service's
    own counters. The store remains, so you can inspect it.

    With --dashboard, runs of several agents are executed until each state has some, and the dashboard is served on a
    free port of this machine until Ctrl-C. Its agents go on: decide, score, fork and resume as you like.
    """
    if dashboard:
        raise typer.Exit(_show_dashboard(folder, opens=not no_browser, json=json))
    raise typer.Exit(starters["demo"](folder=folder, slow=slow, yes=yes, pause=pause, json=json))


def _show_dashboard(folder: Path, *, opens: bool, json: bool) -> int:
    """Fill the store of the demo and serve its dashboard until a signal; return the exit code."""

    def told(address: str, code: str) -> None:
        link = f"{address}/ui/login?code={code}"
        if json:
            typer.echo(msgspec.json.encode({"url": address, "login": link}).decode())
            return
        typer.echo(f"Dashboard: {link}")
        typer.echo("The link logs you in once, within ten minutes. Ctrl-C ends the demo; the store stays.")
        if opens:
            open_page(link)

    if not json:
        typer.echo(f"Preparing runs in {folder} …")
    return starters["demo_dashboard"](folder=folder, token=new_token(), told=told)


@command.command(epilog=example("limpet init my-agents", "cd my-agents && python app.py"))
def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder to create the project in.")] = Path(),
    json: Json = False,
) -> None:
    """Create a small runnable project: an agent with a scripted model, a tool with an effect, and a test.

    Needs no API key. Existing files are never overwritten.
    """
    written = init_project(folder)
    if json:
        print_json({"folder": str(folder), "files": [path.name for path in written]})
        return
    typer.echo(f"Created {', '.join(path.name for path in written)} in {folder}")
    for each in (*(() if folder == Path() else (f"cd {folder}",)), "python app.py", "pytest", "limpet dev app.py"):
        typer.echo(f"next: {each}")


@command.command(epilog=example("limpet dev app.py", "limpet dev support:app --url sqlite:///dev.db"))
def dev(  # noqa: PLR0913 - all by name, and few at a time
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|MODULE:ATTRIBUTE",
            help="File with an app or agents; or an app, agent or list of agents as MODULE:ATTRIBUTE.",
            show_default=False,
        ),
    ],
    *,
    url: Annotated[str | None, typer.Option(help="Store URL; overrides the app's own and LIMPET_URL.")] = None,
    grace: Annotated[str, typer.Option(help="Time that running effects get to finish on a restart.")] = "5s",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the dashboard; 0 picks a free one.")] = 0,
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="Serve no dashboard.")] = False,
    no_browser: NoBrowser = False,
    json: Json = False,
) -> None:
    """Run a worker that restarts when the code changes, show its runs, and serve their dashboard, until Ctrl-C.

    Watches every .py file below the folder of the file or its package, or below the current folder for a module. If the
    code cannot be loaded, prints the error and tries again after the next change.
    """
    opens = not no_browser and not json and sys.stdout.isatty()
    shown = None if no_dashboard else port
    asyncio.run(
        develop(ReloadOptions(target=parse_target(target), url=url, grace=grace, json=json, port=shown, opens=opens))
    )


FILES = {
    "app.py": "app.py.txt",
    "test_app.py": "test_app.py.txt",
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
}
"""Name of each created file, and of its template, which has a suffix that keeps tools from treating it as code."""


def init_project(folder: Path) -> list[Path]:
    """Create the project and return its files. Raises FileFailed, with nothing written, if one of them exists."""
    if folder.exists() and not folder.is_dir():
        raise FileFailed(path=str(folder), reason="not a folder", fix=OTHER_FOLDER)
    for name in FILES:
        if (folder / name).exists():
            raise FileFailed(path=str(folder / name), reason="the file exists. Nothing was written", fix=OTHER_FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    kept = resources.files("limpet.cli") / "project"
    for name, source in FILES.items():
        text = (kept / source).read_text(encoding="utf-8")
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write(text.replace("{name}", _name(folder)))
    return [folder / name for name in FILES]


def _name(folder: Path) -> str:
    """Return the folder's name as a valid package name."""
    return re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "agents"
