"""Commands for people: what waits for them, and what they say."""

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from limpet.cli.commands import command, example
from limpet.cli.completion import complete_run
from limpet.cli.connect import ask, ask_when
from limpet.cli.inbox_prompt import prompt_for
from limpet.cli.inputs import input_of, json_object
from limpet.cli.options import STORE, By, Json, RequestId, Url
from limpet.cli.output import print_json, print_text
from limpet.cli.pages import print_inbox
from limpet.cli.report import print_unserved
from limpet.engine.execution.views import Request, RunInfo
from limpet.service import App
from limpet.service.resolve import find_request, find_run, open_request
from limpet.service.views import waits_for_operator

__all__: list[str] = []


@command.command(epilog=example("limpet inbox --to finance --older-than 2h"))
def inbox(
    *,
    to: Annotated[str | None, typer.Option(help="Only what was asked of this person or group.")] = None,
    run: Annotated[str | None, typer.Option(help="Only of this run.", autocompletion=complete_run)] = None,
    risk: Annotated[str | None, typer.Option(help="Only of this risk.")] = None,
    older_than: Annotated[str | None, typer.Option(help="Only what waits for longer, such as 2h.")] = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """List what waits for a person, the oldest first, with what led to it and what each answer causes."""

    async def look(app: App) -> list[Request]:
        wanted = None if run is None else (await find_run(app.store, run)).id
        return await app.inbox(to=to, run=wanted, risk=risk, older_than=older_than)

    found, now = ask_when(url, look)
    print_json(found) if json else print_inbox(found, now)


@command.command(epilog=example("""limpet approve 01j9x --args '{"cents": 900}'"""))
def approve(
    request: RequestId,
    by: By,
    args: Annotated[str | None, typer.Option(help="Other arguments for the tool, as JSON.")] = None,
    standing: Annotated[bool, typer.Option("--standing", help="And every further call of it in this run.")] = False,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Say yes to a request."""
    edited = None if args is None else json_object(args, "--args")
    decided = _decide(url, request, lambda app, which: app.approve(which, by=by, args=edited, standing=standing))
    more = ", with every further call of its tool in this run" * standing
    _print(*decided, "approved", by, json=json, more=more)


@command.command(epilog=example('limpet reject 01j9x --because "too much for one day"'))
def reject(
    request: RequestId,
    by: By,
    because: Annotated[str, typer.Option(help="Why.", show_default=False)],
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Say no to a request, and why."""
    decided = _decide(url, request, lambda app, which: app.reject(which, by=by, because=because))
    _print(*decided, "rejected", by, json=json)


@command.command(epilog=example("limpet answer 01j9x", "limpet answer 01j9x red"))
def answer(
    request: RequestId,
    by: By,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="[ANSWER]", help="JSON; what is none is text. @FILE and - work too. Without it you are asked."
        ),
    ] = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Answer a request; without an answer, you are asked for it, as the request wants it."""
    plain = _asked(url, request) if value is None else input_of(value, "The answer")
    decided = _decide(url, request, lambda app, which: app.answer(which, plain, by=by))
    _print(*decided, "answered", by, json=json)


def _asked(url: str, request: str) -> Any:
    """What the person at the terminal says."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"there is no terminal to ask on: limpet answer {request} ANSWER")

    async def look(app: App) -> Request:
        return await open_request(app.store, (await find_request(app.store, request)).id)

    return prompt_for(ask(url, look))


def _decide(url: str, request: str, act: Callable[[App, str], Awaitable[object]]) -> tuple[str, RunInfo]:
    """The request that was decided, and its run."""

    async def do(app: App) -> tuple[str, RunInfo]:
        found = await find_request(app.store, request)
        await act(app, found.id)
        return found.id, await app.info(found.run)

    return ask(url, do)


def _print(request: str, run: RunInfo, decision: str, by: str, *, json: bool, more: str = "") -> None:
    if json:
        print_json({"request": request, "decision": decision, "by": by})
        return
    print_text(f"{request} is {decision} by {by}{more}")
    if waits_for_operator(run):
        print_text(f"{run.id} does not go on by itself: it waits for {run.waits_for}\nnext: limpet resume {run.id}")
    print_unserved(run)
