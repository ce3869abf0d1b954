"""Manage access tokens: create, list, revoke."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal, get_args

from limpet.arguments import checked
from limpet.clock import Duration
from limpet.engine.execution.principal import Principal, Right, Role
from limpet.errors import InvalidArgument, NotFound
from limpet.ids import check_id
from limpet.service.access import LOCAL, Permission
from limpet.service.api.core import AppCore
from limpet.service.audit import AuditEvent
from limpet.service.operation import (
    ALL_DOORS,
    By,
    Caller,
    CommandId,
    Cursor,
    Door,
    InDoors,
    Limit,
    Param,
    command,
    query,
)
from limpet.service.page import Page
from limpet.service.sessions import NewLogin, create_login
from limpet.service.tokens import (
    TENANT,
    CallerInfo,
    NewToken,
    TokenInfo,
    create_token,
    newest_token,
    token_id,
    token_info,
)
from limpet.stores import TokenRow

__all__ = ["AccessTokens"]

# The command line has commands of its own, in a group. A model has no use for tokens.
DOORS: frozenset[Door] = frozenset({"python", "http"})
_CURSOR = re.compile(r"([0-9]{1,18})\.([a-z0-9]{1,200})")


@checked
class AccessTokens(AppCore):
    """Manage access tokens."""

    topic = "Manage tokens"

    @query("/whoami", needs=get_args(Permission), doors=ALL_DOORS - {"mcp"})
    async def whoami(self, *, caller: Caller = None) -> CallerInfo:
        """Show who calls: over HTTP, the owner of the token. On the same machine, a caller may do everything."""
        who = caller or LOCAL
        return CallerInfo(
            name=who.name,
            kind=who.kind,
            roles=who.roles,
            rights=who.rights,
            groups=who.groups,
            tenant=who.tenant or TENANT,
            time=await self.now(),
        )

    @query("/tokens", needs=("maintain", "audit"), doors=DOORS)
    async def tokens(self, *, limit: Limit = 50, cursor: Cursor = None) -> Page[TokenInfo]:
        """List the access tokens, the newest first, also expired and revoked ones. Their secrets are not stored."""
        rows = await self.store.tokens(before=_place_of(cursor), limit=limit + 1)
        now = await self.store.now()
        page = Page.cut(rows, limit, _cursor_of)
        return Page([token_info(row, now) for row in page], page.next)

    @command("/tokens", needs="maintain", doors=DOORS, redacts_itself=True, is_idempotent=False)
    async def create_token(  # noqa: PLR0913 - all by name, and few at a time
        self,
        name: Annotated[str, Param(description="Who the token is for; recorded as the sender.", examples=["ann"])],
        /,
        *,
        roles: Annotated[
            Sequence[Role], Param(description="Roles of the caller.", examples=[["operator"]]), InDoors(list[Role])
        ],
        kind: Annotated[Literal["person", "service"], Param(description="Who the caller is.")] = "person",
        rights: Annotated[
            Sequence[Right],
            Param(description="Rights beyond the roles.", examples=[["raw"]]),
            InDoors(list[Right]),
        ] = (),
        groups: Annotated[
            Sequence[str],
            Param(description="Groups of the caller, for requests to a group.", examples=[["finance"]]),
            InDoors(list[str]),
        ] = (),
        expires: Annotated[
            Duration | datetime | None,
            Param(description="When the token expires: 90d from now, or a time. Default: never.", examples=["90d"]),
            InDoors(str | None),
        ] = None,
        tenant: Annotated[str | None, InDoors(None)] = None,
        by: By = None,
        command_id: CommandId = None,
    ) -> NewToken:
        """Create an access token, and return its text once: only a hash of it is stored.

        A repeated `command_id` creates no second token: it raises IdConflict, since the text cannot be returned again.
        The caller may give any role and right, also those that they do not have themselves.
        """
        who = self._principal(by)
        given = None if command_id is None else self._command_id(command_id)
        until = None if expires is None else await self._time_of(expires, "expires")
        caller = Principal(
            name=str.__str__(name),
            kind=kind,
            groups=tuple(map(str.__str__, groups)),
            roles=tuple(roles),
            rights=tuple(rights),
            tenant=who.tenant or TENANT if tenant is None else tenant,
        )
        made = await create_token(self.store, self._settings.ids, caller, expires=until, by=who.name, command=given)
        await self._audit_token("token.created", made.info.id, who)  # if this fails, the text of the token is lost
        return made

    async def create_login(
        self,
        name: str,
        /,
        *,
        roles: Sequence[Role] = (),
        groups: Sequence[str] = (),
        expires: Duration | datetime | None = "30d",
        tenant: str | None = None,
        by: By = None,
    ) -> NewLogin:
        """Create the code of a link that logs a person in to the dashboard, once and within ten minutes.

        The session has the rights of the person's newest valid token. With `roles`, a token is created for it, which
        can be revoked; its text is not shown to anyone.
        """
        if roles:
            made = await self.create_token(name, roles=roles, groups=groups, expires=expires, tenant=tenant, by=by)
            parent = await self.store.token(made.info.id)
        else:
            parent = await newest_token(self.store, name)
        if parent is None:
            fix = "Pass the roles of the session: `limpet login NAME --role operator`."
            raise NotFound(what="valid token of", id=name, fix=fix)
        who = self._principal(by)
        code = await create_login(self.store, self._settings.ids, parent, tenant or who.tenant or TENANT)
        await self._audit_token("login.created", parent.id, who)
        return NewLogin(code=code, name=name)

    @command("/tokens/{token}/revoke", needs="maintain", doors=DOORS, is_destructive=True)
    async def revoke_token(
        self,
        token: Annotated[str, Param(description="Id of the token, from `tokens`.", examples=["4hq2vx0k7m3c"])],
        /,
        *,
        by: By = None,
    ) -> TokenInfo:
        """Revoke an access token, from now on. Repeating it changes nothing: the first revocation stands."""
        id, who = check_id(token_id(str.__str__(token))), self._principal(by)
        await self.store.revoke_token(id, who.name)
        row = await self.store.token(id)
        if row is None:
            raise NotFound(what="token", id=id, fix="List the tokens of this store: `limpet token list`.")
        await self._audit_token("token.revoked", id, who)
        return token_info(row, await self.store.now())

    async def _audit_token(self, action: str, id: str, who: Principal) -> None:
        await self.audit_log.record(AuditEvent(action=action, who=who, subject=id))


def _cursor_of(row: TokenRow) -> str:
    return f"{row.created}.{row.id}"


def _place_of(cursor: str | None) -> tuple[int, str] | None:
    """Return the time and the id that a cursor stands for. Raises InvalidArgument."""
    if cursor is None:
        return None
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise InvalidArgument(path="cursor", reason=f"{cursor!r} is not a cursor; pass `next` of the page before")
    return int(found[1]), found[2]
