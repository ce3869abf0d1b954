"""What many commands take."""

import getpass
from typing import Annotated

import typer

import limpet
from limpet.cli.completion import complete_agent, complete_conversation, complete_request, complete_run

__all__ = [
    "STORE",
    "AgentName",
    "By",
    "Code",
    "ConversationId",
    "Json",
    "Last",
    "OwnUrl",
    "RequestId",
    "RunId",
    "Since",
    "Url",
]

STORE = limpet.DEFAULT_URL
Url = Annotated[str, typer.Option(envvar="LIMPET_URL", help="The store: sqlite:///file.db or postgresql://…")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; errors too.")]
RunId = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Its id, or the beginning of it.", show_default=False, autocompletion=complete_run
    ),
]
RequestId = Annotated[
    str,
    typer.Argument(
        metavar="REQUEST",
        help="Its id, as `limpet inbox` says, or the beginning of it.",
        show_default=False,
        autocompletion=complete_request,
    ),
]
ConversationId = Annotated[
    str,
    typer.Argument(
        metavar="CONVERSATION",
        help="Its id, or the beginning of it.",
        show_default=False,
        autocompletion=complete_conversation,
    ),
]
AgentName = Annotated[
    str | None, typer.Option("--agent", help="Only of this agent.", show_default=False, autocompletion=complete_agent)
]
Since = Annotated[str | None, typer.Option(help="Only of so long, such as 7d.", show_default=False)]
Last = Annotated[int, typer.Option(min=1, max=1000, help="How many.")]
Code = Annotated[
    str | None,
    typer.Option("--app", envvar="LIMPET_APP", help="MODULE:ATTRIBUTE, else [tool.limpet] app in pyproject.toml."),
]
OwnUrl = Annotated[
    str | None, typer.Option(envvar="LIMPET_URL", help="The store, if not the app's own.", show_default=False)
]
By = Annotated[str, typer.Option(help="Who decides.", default_factory=getpass.getuser, show_default="you")]
