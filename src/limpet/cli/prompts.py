"""Commands `artifact` and `prompt`."""

from typing import Annotated

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import idle_app, run_in_app, run_with_app
from limpet.cli.options import STORE, Json, OwnUrl, RunId, Url
from limpet.cli.output import print_json, print_text
from limpet.service.app import App
from limpet.service.artifacts import ArtifactPiece
from limpet.service.prompts import PromptView

__all__: list[str] = []


@command.command(epilog=example("limpet artifact ticket-42 01hx… > report.txt"))
def artifact(
    run: RunId,
    artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="Artifact id, or a unique prefix.")],
    raw: Annotated[bool, typer.Option("--raw", help="With --json, print it unchanged, with credentials.")] = False,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Print the content of an artifact, verbatim. With --json, print its first part and where the next one starts."""

    async def look(app: App) -> ArtifactPiece | bytes:
        found = await app.find("run", run)
        id = await app.find("artifact", artifact, run=found)
        return await (app.artifact_piece(found, id, raw=raw) if json else app.artifact(found, id))

    found = run_with_app(url, look)
    typer.echo(found, nl=False) if isinstance(found, bytes) else print_json(found)


@command.command(epilog=example("limpet prompt ticket-42 3"))
def prompt(
    run: RunId,
    step: Annotated[int, typer.Argument(metavar="STEP", help="Step number.", show_default=False)],
    code: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="FILE|MODULE:ATTRIBUTE",
            help="App to load. Needed only if the agent builds its own context.",
        ),
    ] = None,
    url: OwnUrl = None,
    json: Json = False,
) -> None:
    """Show the exact prompt of a model call, rebuilt from the log, and why each part was included."""

    async def look(app: App) -> PromptView:
        return await app.prompt(await app.find("run", run), step=step)

    found = run_with_app(url, look) if code is None else run_in_app(idle_app(code, url), look)
    print_json(found) if json else print_text(str(found))
