"""Access tokens: make one, read one, and find the caller that it stands for.

A token is `lp_<tenant>_<id>_<secret>_<checksum>`. The tenant selects a store before any lookup, the id finds the row
there, and the checksum refuses a mistyped or cut token without a lookup. The store has only a hash of the whole token;
the secret has 260 random bits, so that a fast hash is enough.
"""

import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Literal, NamedTuple, cast, get_args
from zlib import crc32

from msgspec.structs import replace

from limpet.engine.execution.principal import Principal, Right, Role
from limpet.errors import IdConflict, InvalidArgument
from limpet.ids import ALPHABET, Ids, encode_bits
from limpet.stores import Store, TokenRow
from limpet.times import to_datetime, to_datetime_or_none
from limpet.view import View

__all__ = [
    "TENANT",
    "CallerInfo",
    "NewToken",
    "ParsedToken",
    "TokenInfo",
    "check_caller",
    "create_token",
    "find_caller",
    "find_token",
    "is_tenant",
    "make_token",
    "newest_token",
    "parse_token",
    "principal_of_token",
    "token_id",
    "token_info",
]

TENANT = "main"
"""The tenant of a server with one store."""
ID_LENGTH = 12
SECRET_LENGTH = 52
# No token is longer; longer text is not examined.
LONGEST = 200
LONGEST_NAME = 200
MOST_GROUPS = 100
_TENANT = re.compile(r"[a-z0-9-]{1,40}")
_TOKEN = re.compile(
    rf"(lp_({_TENANT.pattern})_([{ALPHABET}]{{{ID_LENGTH}}})_[{ALPHABET}]{{{SECRET_LENGTH}}})_([0-9a-f]{{8}})"
)
_NO_DIGEST = bytes(32)
REPEATED = (
    "The token was created, and its text cannot be shown again. Revoke it, and create another one with another key or "
    "command id."
)


class CallerInfo(View, frozen=True, kw_only=True):
    """Who calls, and what they may do."""

    name: str
    """Name of the caller, which is recorded; empty on the same machine, where it is given with each command."""
    kind: Literal["person", "service", "agent"]
    """Kind of the caller."""
    roles: tuple[Role, ...]
    """Roles of the caller."""
    rights: tuple[Right, ...]
    """Rights beyond the roles."""
    groups: tuple[str, ...]
    """Groups of the caller, for requests to a group."""
    tenant: str
    """Tenant whose runs the caller sees."""
    time: datetime
    """Current time by the store's clock."""


class ParsedToken(NamedTuple):
    """The public parts of a token whose form and checksum are right. It may still be unknown."""

    tenant: str
    id: str


class TokenInfo(View, frozen=True, kw_only=True):
    """An access token, without its secret."""

    id: str
    """Id of the token, which is a part of its text."""
    name: str
    """Name of the caller, which is recorded as the sender of commands."""
    kind: Literal["person", "service"]
    """Who the caller is."""
    roles: tuple[str, ...]
    """Roles of the caller."""
    rights: tuple[str, ...]
    """Rights beyond the roles."""
    groups: tuple[str, ...]
    """Groups of the caller, for requests to a group."""
    status: Literal["valid", "expired", "revoked"]
    """Whether it is accepted now."""
    created: datetime
    """When it was created."""
    created_by: str
    """Who created it."""
    expires: datetime | None
    """When it expires; null for never."""
    revoked: datetime | None
    """When it was revoked."""
    revoked_by: str
    """Who revoked it."""
    last_used: datetime | None
    """Time of the last recorded use; a use within a minute after it is not recorded."""


@dataclass(frozen=True, kw_only=True)
class NewToken:
    """A new access token. Its text is shown once, and is stored nowhere."""

    token: str = field(repr=False)
    """The whole token."""
    info: TokenInfo
    """The stored part of it."""


def parse_token(text: str) -> ParsedToken | None:
    """Return the tenant and the id of a token, or None for text that is no token."""
    found = _TOKEN.fullmatch(text) if len(text) <= LONGEST else None
    if found is None or _checksum(found[1]) != found[4]:
        return None
    return ParsedToken(found[2], found[3])


def is_tenant(text: str) -> bool:
    """Return whether a text can be the name of a tenant."""
    return _TENANT.fullmatch(text) is not None


def token_id(given: str) -> str:
    """Return the id of a token, from its id or its whole text."""
    parsed = parse_token(given)
    return given if parsed is None else parsed.id


async def find_caller(store: Store, text: str) -> Principal | None:
    """Return the caller that a token stands for, or None if the token is unknown, expired or revoked."""
    parsed, row = parse_token(text), await find_token(store, text, "token")
    return None if parsed is None or row is None else principal_of_token(row, parsed.tenant, "http")


async def find_token(store: Store, text: str, purpose: Literal["token", "session", "login"]) -> TokenRow | None:
    """Return the row of a token with this purpose, or None if the token is unknown, expired or revoked."""
    parsed = parse_token(text)
    if parsed is None:
        return None
    row = await store.token(parsed.id)
    is_known = hmac.compare_digest(_digest(text), _NO_DIGEST if row is None else row.digest)
    if row is None or not is_known or row.purpose != purpose or row.revoked is not None:
        return None
    return row if row.expires is None or row.expires > await store.now() else None


async def newest_token(store: Store, name: str, role: Role | None = None) -> TokenRow | None:
    """Return the newest valid token of a caller, with a role if one is given; None if there is none."""
    now, before = await store.now(), None
    while rows := await store.tokens(before=before):
        for row in rows:
            is_theirs = row.name == name and (role is None or (row.kind == "person" and role in row.roles))
            if is_theirs and token_info(row, now).status == "valid":
                return row
        before = rows[-1].created, rows[-1].id
    return None


def principal_of_token(row: TokenRow, tenant: str, door: str) -> Principal:
    """Return the caller that a token stands for."""
    return Principal(
        name=row.name,
        kind=row.kind,
        groups=row.groups,
        door=door,
        roles=tuple(cast("Role", role) for role in row.roles if role in get_args(Role)),
        rights=tuple(cast("Right", right) for right in row.rights if right in get_args(Right)),
        tenant=tenant,
    )


async def create_token(
    store: Store, ids: Ids, who: Principal, *, expires: int | None = None, by: str = "", command: str | None = None
) -> NewToken:
    """Store a token for a caller, and return its text, which cannot be returned again.

    The id follows from a command's id: a repeated command raises IdConflict, and creates no second token. Raises
    InvalidArgument for a caller that a token cannot stand for.
    """
    check_caller(who)
    if expires is not None and expires <= await store.now():
        raise InvalidArgument(path="expires", reason="is not in the future")
    assert who.kind != "agent"
    row = TokenRow(
        id="" if command is None else encode_bits(_bits_of(command), ID_LENGTH),
        name=who.name,
        kind=who.kind,
        groups=_unique(who.groups),
        roles=_unique(who.roles),
        rights=_unique(who.rights),
        digest=b"",
        created_by=by,
        expires=expires,
    )
    text, row = make_token(ids, row, who.tenant)
    try:
        stored = await store.add_token(row)
    except IdConflict as error:
        raise IdConflict(
            what="token", id=row.id, reason=error.reason, fix="" if command is None else REPEATED
        ) from None
    return NewToken(token=text, info=token_info(stored, stored.created))


def make_token(ids: Ids, row: TokenRow, tenant: str) -> tuple[str, TokenRow]:
    """Return the text of a new token, and its row with the digest; an empty id is replaced by a random one."""
    id = row.id or encode_bits(ids.bits(5 * ID_LENGTH), ID_LENGTH)
    start = f"lp_{tenant}_{id}_{encode_bits(ids.bits(5 * SECRET_LENGTH), SECRET_LENGTH)}"
    text = f"{start}_{_checksum(start)}"
    return text, replace(row, id=id, digest=_digest(text))


def check_caller(who: Principal) -> None:
    """Raise InvalidArgument unless a token can stand for a caller."""
    if _TENANT.fullmatch(who.tenant) is None:
        raise InvalidArgument(path="tenant", reason="must have 1 to 40 characters of a-z, 0-9 and -")
    _check_text("name", who.name)
    if who.kind not in ("person", "service"):
        raise InvalidArgument(path="kind", reason="must be person or service")
    _check_words("roles", who.roles, get_args(Role))
    _check_words("rights", who.rights, get_args(Right))
    if not who.roles:
        raise InvalidArgument(path="roles", reason="pass at least one role; without a role, a token permits nothing")
    if who.kind == "person" and "approve-by-agent" in who.rights:
        reason = "approve-by-agent is a right of services; a person decides with the role approver"
        raise InvalidArgument(path="rights", reason=reason)
    if len(who.groups) > MOST_GROUPS:
        raise InvalidArgument(path="groups", reason=f"must be at most {MOST_GROUPS}")
    for group in who.groups:
        _check_text("groups", group)


def token_info(row: TokenRow, now: int) -> TokenInfo:
    """Return a token as lists show it, at a time of the store."""
    is_expired = row.expires is not None and row.expires <= now
    return TokenInfo(
        id=row.id,
        name=row.name,
        kind=row.kind,
        roles=row.roles,
        rights=row.rights,
        groups=row.groups,
        status="revoked" if row.revoked is not None else "expired" if is_expired else "valid",
        created=to_datetime(row.created),
        created_by=row.created_by,
        expires=to_datetime_or_none(row.expires),
        revoked=to_datetime_or_none(row.revoked),
        revoked_by=row.revoked_by,
        last_used=to_datetime_or_none(row.last_used),
    )


def _check_text(path: str, text: str) -> None:
    if not 1 <= len(text) <= LONGEST_NAME or not text.isprintable():
        raise InvalidArgument(path=path, reason=f"must have 1 to {LONGEST_NAME} visible characters")


def _check_words(path: str, given: Sequence[str], known: Sequence[str]) -> None:
    for word in given:
        if word not in known:
            raise InvalidArgument(path=path, reason=f"{word[:40]!r} is none of {', '.join(known)}")


def _unique(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def _checksum(start: str) -> str:
    return f"{crc32(start.encode()):08x}"


def _digest(text: str) -> bytes:
    return sha256(text.encode()).digest()


def _bits_of(command: str) -> int:
    return int.from_bytes(sha256(f"token:{command}".encode(errors="surrogatepass")).digest())
