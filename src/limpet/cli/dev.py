"""Commands for whoever begins: the demo, a small project, and a worker that starts again with every change."""

import asyncio
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from limpet.cli.commands import command, example
from limpet.cli.options import Json
from limpet.cli.output import print_json
from limpet.cli.reload import ReloadOptions, develop, snapshot_files
from limpet.errors import FileFailed

__all__ = ["init_project", "starters"]

OTHER_FOLDER = "Pass another folder, or move the existing one away."

starters: dict[str, Callable[..., int]] = {}
"""What other rooms do for a command: the program puts it here, since the doors know nothing of each other."""


@command.command(epilog=example("limpet demo", "limpet demo --yes"))
def demo(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where its store is kept.")] = Path("limpet-demo"),
    *,
    slow: Annotated[bool, typer.Option("--slow", help="For talks.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Approve at once: nobody is at the keyboard.")] = False,
    pause: Annotated[str | None, typer.Option(help="How long each line is there before the next one comes.")] = None,
    json: Json = False,
) -> None:
    """See an agent killed at step 6 of 9, and another process go on: no key, no network, a minute.

    The service that it talks to, the processes and the SIGKILL are real; what is shown is read from the store, or from
    the service's own counters. The store stays, to look around in.
    """
    raise typer.Exit(starters["demo"](folder=folder, slow=slow, yes=yes, pause=pause, json=json))


@command.command(epilog=example("limpet init my-agents", "cd my-agents && python app.py"))
def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to; it is made if it is not there.")] = Path(),
    json: Json = False,
) -> None:
    """Write a small project that runs: an agent on a scripted model, a tool with an effect, a test.

    No key is needed. Nothing is overwritten.
    """
    written = init_project(folder)
    if json:
        print_json({"folder": str(folder), "files": [path.name for path in written]})
        return
    typer.echo(f"{folder} has {', '.join(path.name for path in written)}")
    for each in (*(() if folder == Path() else (f"cd {folder}",)), "python app.py", "pytest", "limpet dev app.py"):
        typer.echo(f"next: {each}")


@command.command(epilog=example("limpet dev app.py", "limpet dev support:app --url sqlite:///dev.db"))
def dev(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|MODULE:ATTRIBUTE",
            help="A file with an app or agents; or an app, an agent or a list of agents.",
            show_default=False,
        ),
    ],
    url: Annotated[str | None, typer.Option(help="The store, if not the app's own or LIMPET_URL.")] = None,
    grace: Annotated[str, typer.Option(help="How long effects under way may take when it starts again.")] = "5s",
    json: Json = False,
) -> None:
    """Drive runs and show them, and start again whenever the code changes, until Ctrl-C.

    Every .py file under the file's folder is watched; of a module, under this one. What cannot be loaded is shown, and
    the next change tries again.
    """
    asyncio.run(develop(ReloadOptions(target=snapshot_files(target), url=url, grace=grace, json=json)))


FILES = {
    "app.py": "app.py.txt",
    "test_app.py": "test_app.py.txt",
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
}
"""What is written, and what it is called here, where no tool should take it for code of ours."""


def init_project(folder: Path) -> list[Path]:
    """Write the project; what it has written. If anything is in the way, nothing is."""
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
    """The folder's, as packages are named."""
    return re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "agents"
