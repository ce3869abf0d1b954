"""Commands `say` and `compact`: a prefix names a conversation, unless `say` creates one; a model may summarise."""

from typing import Annotated

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import run_with_app
from limpet.cli.options import STORE, By, CommandId, ConversationId, Json, Url, sender
from limpet.cli.output import print_json, print_text
from limpet.cli.renderers import print_compaction
from limpet.compose import summarise_with
from limpet.service.app import App
from limpet.service.conversations import CompactionInfo

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
        found = conversation if new else await app.find("conversation", conversation)
        who = await sender(app, by)
        return found, await app.say(found, text, interrupt=interrupt, by=who, command_id=command_id)

    found, receiver = run_with_app(url, do)
    kept = " No run is active there; the next one receives it." if receiver is None else ""
    print_json({"conversation": found}) if json else print_text(f"Sent to {found}.{kept}")


@command.command(
    epilog=example(
        'limpet compact chat-7 "Ann wants a refund for o-1."', "limpet compact chat-7 --model openai:gpt-5-mini"
    )
)
def compact(  # noqa: PLR0913 - all by name, and few at a time
    conversation: ConversationId,
    summary: Annotated[
        str | None, typer.Argument(metavar="[SUMMARY]", help="Text of the summary.", show_default=False)
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option(help="Let this model write it, such as openai:gpt-5-mini.", show_default=False)
    ] = None,
    keep: Annotated[int, typer.Option(min=0, help="The newest tokens that stay.")] = 2_000,
    by: By,
    command_id: CommandId = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Let a summary replace the older messages of a conversation. The originals are kept: `limpet messages --whole`."""
    if (summary is None) == (model is None):
        raise typer.BadParameter("pass a summary, or --model NAME to let a model write it")
    made = summary if model is None else summarise_with(model)

    async def do(app: App) -> CompactionInfo | None:
        found = await app.find("conversation", conversation)
        assert made is not None
        return await app.compact(found, made, keep=keep, by=await sender(app, by), command_id=command_id)

    found = run_with_app(url, do)
    print_json(found) if json else print_compaction(found)
