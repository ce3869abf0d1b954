"""What many commands take."""

import getpass
from typing import Annotated, Literal

import typer

from limpet.cli.completing import complete_request, complete_run

__all__ = ["STORE", "By", "Json", "RequestId", "RunId", "Status", "Url"]

STORE = "sqlite:///limpet.db"
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
By = Annotated[str, typer.Option(help="Who decides.", default_factory=getpass.getuser, show_default="you")]
Status = Literal["pending", "running", "waiting", "completed", "failed", "cancelled"]
