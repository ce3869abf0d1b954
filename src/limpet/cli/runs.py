"""Commands that steer: they start a run, stop it, let it go on, and tell it something."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from limpet.cli.commands import command, example
from limpet.cli.load_app import run_with_app
from limpet.cli.options import STORE, Json, RunId, Url, complete_agent, input_of, pair_of
from limpet.cli.output import clean, print_json, print_text
from limpet.cli.pages import next_commands, print_unserved
from limpet.engine.execution.views import RunInfo
from limpet.errors import NotFound
from limpet.service import App
from limpet.service.report import Report, report
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
        typer.Argument(metavar="AGENT", help="Its name.", show_default=False, autocompletion=complete_agent),
    ],
    *,
    input: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE|-", help="What it is given; what is no JSON is text.")
    ] = None,
    id: Annotated[str | None, typer.Option(help="The run's id: the same id and input are the same run.")] = None,
    session: Annotated[str | None, typer.Option(help="The session that it belongs to.")] = None,
    user: Annotated[str | None, typer.Option(help="Whose it is.")] = None,
    conversation: Annotated[str | None, typer.Option(help="The conversation that it is part of.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="As often as you like.")] = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Start a run of an agent that the store knows; a worker drives it, wherever its code is."""
    plain = None if input is None else input_of(input)
    labels = dict(map(pair_of, label or ()))
    about = {"id": id, "session": session, "user": user, "conversation": conversation, "labels": labels}

    async def begin(app: App) -> Report:
        try:
            made = await app.start(agent, plain, **about)  # type: ignore[arg-type]
        except NotFound as error:
            raise (await suggest_agent(app.store, error) if error.what == "agent" else error) from None
        return await report(app, made.id)

    found = run_with_app(url, begin)
    if json:
        print_json(found.info)
        return
    print_text(f"{found.info.id} is {found.info.status}")
    if waits_for_worker(found.info):
        print_text(f"no live worker serves {found.info.agent} {found.info.version}: it begins when one does")
    for each in (*next_commands(found), f"limpet show {found.info.id}"):
        print_text(f"next: {each}")


def _print(run: RunInfo, said: str, *, json: bool) -> None:
    """How a run is now; for people, what was done, and whether it needs a worker to go on."""
    if json:
        print_json(run)
        return
    print_text(f"{run.id} {said}")
    print_unserved(run)


def _steer(url: str, run: str, act: Callable[[App, str], Awaitable[object]]) -> RunInfo:
    """Do something to a run; how it is then."""

    async def do(app: App) -> RunInfo:
        found = (await find_run(app.store, run)).id
        await act(app, found)
        return await app.info(found)

    return run_with_app(url, do)


@command.command(epilog=example("limpet resume ticket-42"))
def resume(run: RunId, url: Url = STORE, json: Json = False) -> None:
    """Let a failed or paused run go on."""
    found = _steer(url, run, lambda app, which: app.resume(which))
    _print(found, "is completed, and stays so" if found.status == "completed" else "goes on", json=json)


@command.command(epilog=example("limpet pause ticket-42"))
def pause(run: RunId, url: Url = STORE, json: Json = False) -> None:
    """Let a run wait until it is resumed; effects under way finish first."""
    found = _steer(url, run, lambda app, which: app.pause(which))
    said = f"{found.id} is to wait; effects under way finish first\nnext: limpet resume {found.id}"
    print_json(found) if json else print_text(said)


@command.command(epilog=example('limpet cancel ticket-42 --reason "the customer withdrew it"'))
def cancel(
    run: RunId,
    reason: Annotated[str, typer.Option(help="Why.", show_default=False)],
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Stop a run for good, and the runs it called: effects under way finish, and what can be undone is."""
    found = _steer(url, run, lambda app, which: app.cancel(which, reason=reason))
    how = "is to stop; effects under way finish, and what can be undone is"
    print_json(found) if json else print_text(f"{found.id} {how}\nnext: limpet log {found.id} --follow")


@command.command(epilog=example("""limpet signal ticket-42 paid '{"cents": 900}'"""))
def signal(
    run: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the signal.", show_default=False)],
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="JSON; what is none is text. @FILE and - work too.")
    ] = "null",
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Send a run something that it receives: in order, each once."""
    plain = input_of(value, "The value")
    found = _steer(url, run, lambda app, which: app.signal(which, name, plain))
    _print(found, f"has the signal {clean(name)}", json=json)


@command.command(epilog=example('limpet say chat-7 "and the other one?" --interrupt'))
def say(
    conversation: Annotated[str, typer.Argument(metavar="CONVERSATION", help="Its id.", show_default=False)],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is said.", show_default=False)],
    *,
    interrupt: Annotated[bool, typer.Option("--interrupt", help="A model ends its turn after the step.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Begin a conversation of this id.")] = False,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Say something in a conversation: the run that goes on there receives it; else it is kept for the next."""

    async def do(app: App) -> tuple[str, str | None]:
        found = conversation if new else await find_conversation(app.store, conversation)
        return found, await app.say(found, text, interrupt=interrupt)

    found, hears = run_with_app(url, do)
    kept = "; no run goes on there: it is kept for the next" if hears is None else ""
    print_json({"conversation": found}) if json else print_text(f"said in {found}{kept}")
