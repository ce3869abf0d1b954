"""Commands that read input from files or stdin: start, signal, say."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import run_with_app
from limpet.cli.options import STORE, Json, RunId, Url, complete_agent, input_of, pair_of
from limpet.cli.output import clean, print_json, print_text
from limpet.cli.pages import next_commands, print_unserved
from limpet.engine.execution.views import RunInfo
from limpet.errors import NotFound
from limpet.service import App
from limpet.service.report import Report
from limpet.service.resolve import find_conversation, find_run, suggest_agent
from limpet.service.views import waits_for_worker

__all__: list[str] = []


@command.command(
    epilog=example(
        """limpet start support --id ticket-42 --input '{"order": "o-7", "text": "it broke"}'""",
        "limpet start support --input @ticket.json --label team=a",
    )
)
def start(  # noqa: PLR0913 - all by name, and few at a time
    agent: Annotated[
        str,
        typer.Argument(
            metavar="AGENT",
            help="Name of the agent. `limpet agents` lists them.",
            show_default=False,
            autocompletion=complete_agent,
        ),
    ],
    *,
    input: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE|-", help="Input: JSON, or plain text if it does not parse.")
    ] = None,
    id: Annotated[str | None, typer.Option(help="Run id. Default: a new one.")] = None,
    session: Annotated[str | None, typer.Option(help="Session that the run belongs to.")] = None,
    user: Annotated[str | None, typer.Option(help="User that the run belongs to.")] = None,
    conversation: Annotated[str | None, typer.Option(help="Conversation that the run takes part in.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Label to attach. Repeatable.")] = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Start a run of a registered agent.

    Any worker that serves the agent executes the run. Starting twice with the same id and input starts one run.
    """
    plain = None if input is None else input_of(input)
    labels = dict(map(pair_of, label or ()))
    about = {"id": id, "session": session, "user": user, "conversation": conversation, "labels": labels}

    async def begin(app: App) -> Report:
        try:
            made = await app.start(agent, plain, **about)  # type: ignore[arg-type]
        except NotFound as error:
            raise (await suggest_agent(app.store, error) if error.what == "agent" else error) from None
        return await app.show(made.id)

    found = run_with_app(url, begin)
    if json:
        print_json(found.run)
        return
    print_text(f"{found.run.id} is {found.run.status}")
    if waits_for_worker(found.run):
        print_text(f"No live worker serves {found.run.agent} {found.run.version}; the run starts when one does.")
    for each in (*next_commands(found), f"limpet show {found.run.id}"):
        print_text(f"next: {each}")


def _print(run: RunInfo, said: str, *, json: bool) -> None:
    """Print a run as JSON, or what was done and whether the run lacks a worker."""
    if json:
        print_json(run)
        return
    print_text(said)
    print_unserved(run)


def _steer(url: str, run: str, act: Callable[[App, str], Awaitable[object]]) -> RunInfo:
    """Run a command on a run, and return the run's state after it."""

    async def do(app: App) -> RunInfo:
        found = (await find_run(app.store, run)).id
        await act(app, found)
        return await app.info(found)

    return run_with_app(url, do)


@command.command(epilog=example("""limpet signal ticket-42 paid '{"cents": 900}'"""))
def signal(
    run: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the signal.", show_default=False)],
    value: Annotated[
        str,
        typer.Argument(
            metavar="VALUE", help="JSON, or plain text if it does not parse. @FILE reads a file, - reads stdin."
        ),
    ] = "null",
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Send a signal to a run. Signals are received in order, each once."""
    plain = input_of(value, "The value")
    found = _steer(url, run, lambda app, which: app.signal(which, name, plain))
    _print(found, f"Sent {clean(name)} to {found.id}.", json=json)


@command.command(epilog=example('limpet say chat-7 "and the other one?" --interrupt'))
def say(
    conversation: Annotated[str, typer.Argument(metavar="CONVERSATION", help="Conversation id.", show_default=False)],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text of the message.", show_default=False)],
    *,
    interrupt: Annotated[
        bool, typer.Option("--interrupt", help="End the model's turn after its current step.")
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="Create a conversation with this id.")] = False,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Send a message to a conversation. Its active run receives the message; without one, the next run does."""

    async def do(app: App) -> tuple[str, str | None]:
        found = conversation if new else await find_conversation(app.store, conversation)
        return found, await app.say(found, text, interrupt=interrupt)

    found, receiver = run_with_app(url, do)
    kept = " No run is active there; the next one receives it." if receiver is None else ""
    print_json({"conversation": found}) if json else print_text(f"Sent to {found}.{kept}")
