"""Authentication: every request passes the guard before it reaches an application.

A request must name an accepted host, come from no page of another origin, and carry a token. This applies to every
path, also unknown ones, and also on localhost: browser pages and other users' processes can reach local ports.
"""

import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from hashlib import sha256
from inspect import isawaitable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from limpet.engine.execution.principal import Principal
from limpet.errors import AuthUnavailable, DefinitionError, LimpetError, NotAuthenticated, WrongHost, WrongOrigin
from limpet.service.access import PRINCIPAL
from limpet.web.replies import refused

__all__ = ["LOCAL", "Auth", "Guard"]

log = logging.getLogger("limpet")
LOCAL = ("localhost", "127.0.0.1", "::1")
SHORTEST = 20
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+?)\.?)(?::[0-9]{1,5})?")
# Replies must not be cached, framed or embedded.
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

Auth = str | Sequence[str] | Callable[[str], Principal | Awaitable[Principal | None] | None]
"""A token, several tokens, or a function that returns whose token it is, None if it is not valid."""
ENV = Principal(name="env", kind="service", roles=("operator",), door="http")
"""The caller with a token from LIMPET_TOKEN, or one that is passed as text."""


class Guard:
    """Passes authenticated requests on to an application."""

    def __init__(self, inside: ASGIApp, *, auth: Auth, hosts: Collection[str]) -> None:
        self._inside = inside
        self._find = auth if callable(auth) else _one_of([auth] if isinstance(auth, str) else auth)
        self._hosts = frozenset(map(_named, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._inside(scope, receive, send)
        elif scope["type"] == "http":
            await self._guarded(scope, receive, _marked(send))
        else:
            await send({"type": "websocket.close", "code": 1008})  # WebSockets are not supported

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope[PRINCIPAL] = await self._admit(Headers(scope=scope))
        except LimpetError as error:
            await refused(error)(scope, receive, send)
        else:
            await self._inside(scope, receive, send)

    async def _admit(self, headers: Headers) -> Principal:
        """Return the caller of a request. Raises the reason for which the request is refused."""
        host, origins = _only(headers, "host"), headers.getlist("origin")
        if host is None or _name_of(host) not in self._hosts:
            raise WrongHost(
                host=host or "", fix="" if host else "Send exactly one Host header, with the server's name."
            )
        if origins and (len(origins) > 1 or _place_of(origins[0]) != host.lower()):
            raise WrongOrigin(origin=", ".join(origins))
        scheme, _, token = (_only(headers, "authorization") or "").partition(" ")
        who = await self._owner(token.strip()) if scheme.lower() == "bearer" else None
        if who is None:
            raise NotAuthenticated
        return who

    async def _owner(self, token: str) -> Principal | None:
        """Return whose token it is."""
        try:
            found = self._find(token)
            return await found if isawaitable(found) else found
        except Exception as error:
            log.exception("auth: the function that checks tokens failed")
            raise AuthUnavailable from error  # its text is not for callers that have not authenticated


def _one_of(tokens: Sequence[str]) -> Callable[[str], Principal | None]:
    """Return a function that checks a token in constant time."""
    if not tokens:
        raise DefinitionError(what="auth", reason="no token was given, so no client could authenticate")
    for each in tokens:
        if not each.isascii() or not each.isprintable() or " " in each:
            raise DefinitionError(what="auth", reason="a token may contain only visible ASCII characters")
        if len(each) < SHORTEST:
            reason = f"a token in auth= or LIMPET_TOKEN has {len(each)} characters; use at least {SHORTEST} random ones"
            raise DefinitionError(what="auth", reason=reason)
    known = [_hash(each) for each in tokens]

    def find(token: str) -> Principal | None:
        given = _hash(token)
        return ENV if sum(hmac.compare_digest(given, each) for each in known) else None  # constant time: with all

    return find


def _hash(token: str) -> bytes:
    return sha256(token.encode(errors="surrogateescape")).digest()


def _only(headers: Headers, name: str) -> str | None:
    """Return the value of a header, or "" if it is missing or repeated."""
    found = headers.getlist(name)
    return found[0] if len(found) == 1 else None


def _named(host: str) -> str:
    """Return a host name in lower case; an IPv6 address may come without brackets."""
    name = _name_of(host) or _name_of(f"[{host}]")
    if name is None:
        raise DefinitionError(what="hosts", reason=f"{host!r} is not a host name; pass one such as runs.example.com")
    return name


def _place_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _name_of(host: str) -> str | None:
    """Return a host without its port, or None if it is malformed."""
    found = _HOST.fullmatch(host.lower())
    return found and (found["address"] or found["name"])


def _marked(send: Send) -> Send:
    """Return a `send` that adds headers against caching, framing and sniffing."""

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return marked
