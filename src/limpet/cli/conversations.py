"""Commands about conversations and prompts: sessions, conversations, messages, context, artifact, prompt."""

from collections.abc import Iterator
from typing import Annotated

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import idle_app, run_in_app, run_with_app, run_with_time
from limpet.cli.options import STORE, ConversationId, Json, OwnUrl, RunId, Url
from limpet.cli.output import TableLayout, about, print_json, print_text
from limpet.cli.queries import print_found
from limpet.context.slice import ContextSlice, SliceMessage
from limpet.engine.run.conversation import Message
from limpet.events import Fact
from limpet.service import App
from limpet.service.artifacts import DEFAULT_PIECE, ArtifactPiece, find_artifact, piece_of
from limpet.service.conversations import ConversationInfo, SessionInfo
from limpet.service.prompts import PromptView
from limpet.service.resolve import find_conversation, find_run

__all__: list[str] = []

SESSIONS = TableLayout(narrow={}, left_out=("conversations",))
CONVERSATIONS = TableLayout(
    narrow={"fork of": 8, "session": 8, "user": 6}, left_out=("fork of", "age", "user", "session")
)


@command.command(epilog=example("limpet sessions"))
def sessions(url: Url = STORE, json: Json = False) -> None:
    """List the newest sessions."""

    found, now = run_with_time(url, lambda app: app.sessions())

    def row(each: SessionInfo) -> dict[str, str]:
        return {
            "session": each.id,
            "runs": str(each.runs),
            "conversations": str(each.conversations),
            "age": about(now - each.updated),
        }

    print_found(found, SESSIONS, row, none="no sessions", json=json)


@command.command(epilog=example("limpet conversations --session ann-1"))
def conversations(
    session: Annotated[str | None, typer.Option(help="Only conversations of this session.", show_default=False)] = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """List the newest conversations."""

    found, now = run_with_time(url, lambda app: app.conversations(session=session))

    def row(each: ConversationInfo) -> dict[str, str]:
        return {
            "conversation": each.id,
            "messages": str(each.messages),
            "age": about(now - each.updated),
            "session": each.session or "",
            "user": each.user or "",
            "fork of": each.fork_of or "",
        }

    print_found(found, CONVERSATIONS, row, none="no conversations", json=json)


@command.command(epilog=example("limpet messages chat-7 --last 10"))
def messages(
    conversation: ConversationId,
    last: Annotated[
        int | None, typer.Option(min=1, help="Number of newest messages. Default: all.", show_default=False)
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Show the messages that summaries replace.")] = False,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Print the messages of a conversation, oldest first."""

    async def look(app: App) -> list[Message]:
        found = await find_conversation(app.store, conversation)
        return await app.messages(found, last=last, whole=whole)

    found = run_with_app(url, look)
    if json:
        print_json(found)
    for each in () if json else found:
        print_text(f"{each.seq}  {f'summary: {each.text}' if each.is_summary else _message(each.spoken())}")


@command.command(epilog=example("limpet context ticket-42 --max-tokens 2000", "limpet context ticket-42 --before 6"))
def context(  # noqa: PLR0913 - all by name, and few at a time
    run: RunId,
    *,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum size in tokens.", show_default=False)] = None,
    max_bytes: Annotated[int | None, typer.Option(min=1, help="Maximum size in bytes.", show_default=False)] = None,
    before: Annotated[int | None, typer.Option(help="Context just before this step.")] = None,
    after: Annotated[int | None, typer.Option(help="Context just after this step had its result.")] = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Show the most important state and messages of a run that fit into a limit."""

    async def look(app: App) -> ContextSlice:
        found = (await find_run(app.store, run)).id
        return await app.context(found, before=before, after=after, max_tokens=max_tokens, max_bytes=max_bytes)

    found = run_with_app(url, look)
    print_json(found) if json else print_text("\n".join(_lines(found)) or "no state yet")


@command.command(epilog=example("limpet artifact ticket-42 01hx… > report.txt"))
def artifact(
    run: RunId,
    artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="Artifact id, or a unique prefix.")],
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Print the content of an artifact, verbatim. With --json, print its first part and where the next one starts."""

    async def look(app: App) -> ArtifactPiece | bytes:
        found = (await find_run(app.store, run)).id
        id = await find_artifact(app.store, found, artifact)
        return await (piece_of(app.store, found, id, start=0, limit=DEFAULT_PIECE) if json else app.artifact(found, id))

    found = run_with_app(url, look)
    typer.echo(found, nl=False) if isinstance(found, bytes) else print_json(found)


@command.command(epilog=example("limpet prompt ticket-42 3"))
def prompt(
    run: RunId,
    step: Annotated[int, typer.Argument(metavar="STEP", help="Step number.", show_default=False)],
    code: Annotated[
        str | None,
        typer.Option(
            "--app", metavar="MODULE:ATTRIBUTE", help="App to load. Needed only if the agent builds its own context."
        ),
    ] = None,
    url: OwnUrl = None,
    json: Json = False,
) -> None:
    """Show the exact prompt of a model call, rebuilt from the log, and why each part was included."""

    async def look(app: App) -> PromptView:
        return await app.prompt((await find_run(app.store, run)).id, step=step)

    found = run_with_app(url, look) if code is None else run_in_app(idle_app(code, url), look)
    print_json(found) if json else print_text(str(found))


def _lines(found: ContextSlice) -> Iterator[str]:
    if found.goal:
        yield f"goal: {found.goal}"
    if found.status:
        yield f"status: {found.status}"
    if found.current_step:
        yield f"at: {found.current_step}"
    if found.plan:
        yield f"plan: {', '.join(found.plan)}"
    yield from map(_fact, found.facts)
    yield from (f"artifact {each.artifact_id}: {each.type}, {each.summary}" for each in found.artifacts)
    yield from (f"open question: {each}" for each in found.open_questions)
    yield from (f"flag: {each}" for each in found.risk_flags)
    yield from map(_message, found.messages)
    if found.left_out:
        yield f"left out: {', '.join(f'{count} {name}' for name, count in found.left_out.items())}"


def _message(message: SliceMessage) -> str:
    called = f" [calls {', '.join(message.calls)}]" if message.calls else ""
    return f"{message.role}{f' {message.tool}' if message.tool else ''}: {message.text}{called}"


def _fact(fact: Fact) -> str:
    since = "" if fact.step is None else f" (step {fact.step})"
    return f"fact {fact.key} = {bytes(fact.value).decode()}{since}"
