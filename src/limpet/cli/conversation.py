"""Command `say`: a prefix names a conversation, unless the conversation is new."""

from typing import Annotated

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import run_with_app
from limpet.cli.options import STORE, By, CommandId, Json, Url
from limpet.cli.output import print_json, print_text
from limpet.service import App
from limpet.service.resolve import find_conversation

__all__: list[str] = []


@command.command(epilog=example('limpet say chat-7 "and the other one?" --interrupt'))
def say(  # noqa: PLR0913 - all by name, and few at a time
    conversation: Annotated[str, typer.Argument(metavar="CONVERSATION", help="Conversation id.", show_default=False)],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text of the message.", show_default=False)],
    *,
    interrupt: Annotated[
        bool, typer.Option("--interrupt", help="End the model's turn after its current step.")
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="Create a conversation with this id.")] = False,
    by: By,
    command_id: CommandId = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Send a message to a conversation. Its active run receives the message; without one, the next run does."""

    async def do(app: App) -> tuple[str, str | None]:
        found = conversation if new else await find_conversation(app.store, conversation)
        return found, await app.say(found, text, interrupt=interrupt, by=by, command_id=command_id)

    found, receiver = run_with_app(url, do)
    kept = " No run is active there; the next one receives it." if receiver is None else ""
    print_json({"conversation": found}) if json else print_text(f"Sent to {found}.{kept}")
