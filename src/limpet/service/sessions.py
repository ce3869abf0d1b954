"""Sessions of browsers, and the login links that begin them.

A link has a code of 260 random bits, which is used once and expires after ten minutes; the store has only its hash. A
session is a token with a parent: it is valid only while the token of the person who logged in is.
"""

from dataclasses import dataclass, field

from limpet.clock import SECOND
from limpet.engine.execution.principal import Principal
from limpet.ids import Ids
from limpet.service.tokens import find_token, make_token, parse_token, principal_of_token
from limpet.stores import Store, TokenRow

__all__ = [
    "LOGIN_LASTS",
    "SESSION_LASTS",
    "NewLogin",
    "NewSession",
    "create_login",
    "find_session",
    "log_in",
    "log_in_with_token",
    "log_out",
    "login_of",
]

LOGIN_LASTS = 600 * SECOND
SESSION_LASTS = 12 * 3600 * SECOND
# How long an expired session is kept.
KEPT = 24 * 3600 * SECOND


@dataclass(frozen=True, kw_only=True)
class NewLogin:
    """A login link that was created. Its code is shown once, and is stored nowhere."""

    code: str = field(repr=False)
    """The code, which the link contains: /ui/login?code=…"""
    name: str
    """Who logs in with it."""


@dataclass(frozen=True, kw_only=True)
class NewSession:
    """A session that has begun."""

    token: str = field(repr=False)
    """The text for the browser's cookie."""
    who: Principal
    """The person who logged in."""
    expires: int
    """When it ends, in microseconds."""


async def create_login(store: Store, ids: Ids, parent: TokenRow, tenant: str) -> str:
    """Return a new code that logs the owner of a token in, once."""
    row = TokenRow(
        id="", name=parent.name, digest=b"", purpose="login", parent=parent.id, expires=await store.now() + LOGIN_LASTS
    )
    text, row = make_token(ids, row, tenant)
    await store.add_token(row)
    return text


async def login_of(store: Store, code: str) -> Principal | None:
    """Return who a code logs in, without using it; None if it is unknown, used or expired."""
    row = await find_token(store, code, "login")
    parent = None if row is None else await _valid_parent(store, row)
    return None if parent is None else _person(parent, code)


async def log_in(store: Store, ids: Ids, code: str) -> NewSession | None:
    """Use a code, and begin a session. Of several calls with one code, one gets a session, and the others None."""
    row = await find_token(store, code, "login")
    parent = None if row is None else await _valid_parent(store, row)
    if row is None or parent is None or not await store.revoke_token(row.id, parent.name):
        return None
    return await _begin(store, ids, parent, _person(parent, code))


async def log_in_with_token(store: Store, ids: Ids, token: str) -> NewSession | None:
    """Begin a session of the owner of an access token; None if the token is not valid."""
    parent = await find_token(store, token, "token")
    return None if parent is None else await _begin(store, ids, parent, _person(parent, token))


async def _begin(store: Store, ids: Ids, parent: TokenRow, who: Principal) -> NewSession:
    now = await store.now()
    expires = min(now + SESSION_LASTS, parent.expires or now + SESSION_LASTS)
    session = TokenRow(
        id="",
        name=parent.name,
        kind=parent.kind,
        groups=parent.groups,
        roles=parent.roles,
        rights=parent.rights,
        digest=b"",
        expires=expires,
        purpose="session",
        parent=parent.id,
        created_by=parent.name,
    )
    text, session = make_token(ids, session, who.tenant)
    await store.add_token(session)
    await store.drop_sessions(now - KEPT)
    return NewSession(token=text, who=who, expires=expires)


async def find_session(store: Store, text: str) -> Principal | None:
    """Return whose session it is; None if it has ended, or the token of that person is not valid any more."""
    row = await find_token(store, text, "session")
    parent = None if row is None else await _valid_parent(store, row)
    return None if parent is None else _person(parent, text)


async def log_out(store: Store, text: str) -> None:
    """End a session."""
    row = await find_token(store, text, "session")
    if row is not None:
        await store.revoke_token(row.id, row.name)


async def _valid_parent(store: Store, row: TokenRow) -> TokenRow | None:
    parent = await store.token(row.parent)
    if parent is None or parent.purpose != "token" or parent.revoked is not None:
        return None
    return parent if parent.expires is None or parent.expires > await store.now() else None


def _person(parent: TokenRow, text: str) -> Principal:
    parsed = parse_token(text)
    assert parsed is not None
    return principal_of_token(parent, parsed.tenant, "ui")
