"""Commands `token create`, `token list` and `token revoke`: the callers that may use the store over HTTP."""

from typing import Annotated, Any, Literal, cast, get_args

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import run_with_app, run_with_time
from limpet.cli.options import STORE, By, CommandId, Cursor, Json, Url, sender
from limpet.cli.output import TableLayout, about, clean, print_data, print_json, print_table, print_text
from limpet.engine.execution.principal import Right, Role
from limpet.service.app import App
from limpet.service.json_values import as_json
from limpet.service.page import Page
from limpet.service.sessions import NewLogin
from limpet.service.tokens import TENANT, NewToken, TokenInfo
from limpet.times import format_time

__all__: list[str] = []

token = typer.Typer(help="Create, list and revoke the access tokens of a store.", rich_markup_mode=None)
command.add_typer(token, name="token", rich_help_panel="Manage tokens")
LAYOUT = TableLayout(narrow={"name": 8, "groups": 8, "roles": 8}, left_out=("kind", "groups", "expires"))


def _any_of(words: Any) -> str:
    return ", ".join(get_args(words))


@token.command(epilog=example("limpet token create ann --role operator --role approver --group finance --expires 90d"))
def create(  # noqa: PLR0913 - all by name, and few at a time
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Who the token is for; recorded as the sender.", show_default=False)
    ],
    *,
    role: Annotated[
        list[str], typer.Option(help=f"Role of the caller: {_any_of(Role)}. Repeatable.", show_default=False)
    ],
    group: Annotated[list[str] | None, typer.Option(help="Group of the caller. Repeatable.")] = None,
    kind: Annotated[Literal["person", "service"], typer.Option(help="Who the caller is.")] = "person",
    right: Annotated[
        list[str] | None, typer.Option(help=f"Right beyond the roles: {_any_of(Right)}. Repeatable.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="When it expires, counted from now, such as 90d.", show_default="never")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Name of this store on the server.")] = TENANT,
    by: By,
    command_id: CommandId = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Create an access token, and print it once: only a hash of it is stored."""

    async def do(app: App) -> NewToken:
        return await app.create_token(
            name,
            roles=cast("list[Role]", role),  # checked there
            groups=group or [],
            kind=kind,
            rights=cast("list[Right]", right or []),
            expires=expires,
            tenant=None if tenant == TENANT else tenant,
            by=await sender(app, by),
            command_id=command_id,
        )

    made = run_with_app(url, do, creates_store=True)
    if json:
        print_data(as_json(made))
        return
    until = "It does not expire." if made.info.expires is None else f"It expires at {format_time(made.info.expires)}."
    typer.echo(clean(f"Token {made.info.id} for {name}. {until} It is not shown again:"), err=True)
    typer.echo(made.token)  # alone on stdout, for scripts


@command.command(
    rich_help_panel="Manage tokens", epilog=example("limpet login ann --role operator --role approver --group finance")
)
def login(  # noqa: PLR0913 - all by name, and few at a time
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Who logs in; recorded as the sender.", show_default=False)
    ],
    *,
    role: Annotated[
        list[str] | None,
        typer.Option(help=f"Role of the session: {_any_of(Role)}. Repeatable. Default: those of NAME's newest token."),
    ] = None,
    group: Annotated[list[str] | None, typer.Option(help="Group of the person. Repeatable.")] = None,
    server: Annotated[str, typer.Option(help="Address of `limpet serve`.")] = "http://127.0.0.1:8700",
    tenant: Annotated[str, typer.Option(help="Name of this store on the server.")] = TENANT,
    by: By,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Print a link that logs a person in to the dashboard, once and within ten minutes."""

    async def do(app: App) -> NewLogin:
        who = await sender(app, by)
        roles = cast("list[Role]", role or [])  # checked there
        return await app.create_login(name, roles=roles, groups=group or [], tenant=tenant, by=who)

    link = f"{server.rstrip('/')}/ui/login?code={run_with_app(url, do, creates_store=True).code}"
    print_data({"link": link, "name": name}) if json else typer.echo(link)


@token.command("list", epilog=example("limpet token list"))
def list_(
    *,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of tokens.")] = 50,
    cursor: Cursor = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """List the access tokens, the newest first, also expired and revoked ones."""

    async def look(app: App) -> Page[TokenInfo]:
        return await app.tokens(limit=limit, cursor=cursor)

    found, now = run_with_time(url, look)
    if json:
        print_json(found)
        return
    rows = [
        {
            "id": each.id,
            "name": each.name,
            "kind": each.kind,
            "roles": " ".join((*each.roles, *each.rights)),
            "groups": " ".join(each.groups),
            "status": each.status,
            "expires": "" if each.expires is None else f"{each.expires:%Y-%m-%d}",
            "last used": "" if each.last_used is None else f"{about(now - each.last_used)} ago",
        }
        for each in found
    ]
    print_table(rows, LAYOUT, none="No tokens. Create one: limpet token create NAME --role operator")
    if found.next is not None:
        print_text(f"more: --cursor {found.next}")


@token.command(epilog=example("limpet token revoke 4hq2vx0k7m3c"))
def revoke(
    given: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the token, or the whole token.", show_default=False)
    ],
    *,
    by: By,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Revoke an access token, from now on."""

    async def do(app: App) -> TokenInfo:
        return await app.revoke_token(given, by=await sender(app, by))

    found = run_with_app(url, do)
    print_json(found) if json else print_text(f"Revoked token {found.id} of {found.name}.")
