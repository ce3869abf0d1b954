"""The guard: every request passes it before it reaches an application.

A request must name an accepted host, come from no page of another origin, and carry a token. This applies to every
path, also unknown ones, and also on localhost: browser pages and other users' processes can reach local ports.
"""

import re
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from msgspec.structs import replace
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from limpet.engine.execution.principal import Principal
from limpet.errors import DefinitionError, InvalidArgument, LimpetError, NotAuthenticated, WrongHost, WrongOrigin
from limpet.service.access import PRINCIPAL, RECHECK
from limpet.service.app import App
from limpet.service.tokens import TENANT
from limpet.web.access_log import note
from limpet.web.callers import Callers
from limpet.web.replies import refused

__all__ = ["LOCAL", "Guard", "Places", "identified", "marked"]

# Longest path and query, in bytes.
LONGEST = 16_384
LOCAL = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+?)\.?)(?::[0-9]{1,5})?")
# Replies must not be cached, framed or embedded.
HEADERS = {
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
}
# What pages of allowed origins may send, and read.
PREFLIGHT = {
    "access-control-allow-methods": "GET, HEAD, POST",
    "access-control-allow-headers": "authorization, content-type, idempotency-key, last-event-id, prefer",
    "access-control-max-age": "600",
}
EXPOSED = "location, retry-after"


class Places:
    """The host names of a server, and the origins whose pages may call it.

    `public_url` is the server's own address as its callers see it, where that is not the address it listens on.
    """

    def __init__(self, hosts: Collection[str], origins: Collection[str] = (), public_url: str | None = None) -> None:
        self.public_url = None if public_url is None else _public(public_url)
        known = hosts if self.public_url is None else [*hosts, urlsplit(self.public_url).netloc]
        self._hosts = frozenset(map(_named, known))
        self._origins = frozenset(_origin(each) for each in origins)

    def check_host(self, headers: Headers) -> None:
        """Raise WrongHost unless a request names one accepted host."""
        host = _only(headers, "host")
        if host is None or _name_of(host) not in self._hosts:
            fix = "" if host else "Send exactly one Host header, with the server's name."
            raise WrongHost(host=host or "", fix=fix)

    def check_origin(self, scope: Scope, headers: Headers) -> str | None:
        """Return the other origin whose page sends a request, if it is allowed. Raises WrongOrigin if it is not."""
        origins = headers.getlist("origin")
        if not origins:
            return None
        own = self.public_url or f"{scope['scheme']}://{headers.get('host', '').lower()}"
        if len(origins) == 1 and origins[0].lower() == own:
            return None
        if len(origins) == 1 and origins[0] in self._origins:
            return origins[0]
        raise WrongOrigin(origin=", ".join(origins))


class Guard:
    """Passes authenticated requests on to an application."""

    def __init__(self, inside: ASGIApp, *, callers: Callers, places: Places, apps: Mapping[str, App]) -> None:
        self._inside, self._callers, self._places, self._apps = inside, callers, places, apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._inside(scope, receive, send)
        elif scope["type"] == "http":
            await self._guarded(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})  # WebSockets are not supported

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, origin = Headers(scope=scope), None
        if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > LONGEST:
            error = InvalidArgument(path="URL", reason=f"longer than {LONGEST} characters", fix="Narrow the query.")
            await refused(error, 414)(scope, receive, marked(send))
            return
        try:
            self._places.check_host(headers)
            origin = self._places.check_origin(scope, headers)
            if origin is not None and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await Response(status_code=204, headers=PREFLIGHT)(scope, receive, marked(send, origin))
                return
            scope[PRINCIPAL] = await self._caller(scope, headers)
        except LimpetError as error:
            note(scope, code=error.code)
            if self._apps[TENANT].is_open:
                self._apps[TENANT].audit_trail.record_refusal(error.code, address_of(scope))
            await refused(error)(scope, receive, marked(send, origin))
        else:
            await self._inside(scope, receive, marked(send, origin))

    async def _caller(self, scope: Scope, headers: Headers) -> Principal:
        scheme, _, token = (_only(headers, "authorization") or "").partition(" ")
        address = address_of(scope)
        who = await self._callers.find(token.strip(), address) if scheme.lower() == "bearer" else None
        if who is None:
            raise NotAuthenticated

        async def recheck() -> Principal | None:
            found = await self._callers.find(token.strip(), address)
            return None if found is None else _at_door(scope, found)

        scope[RECHECK] = recheck
        return identified(scope, who, self._apps[who.tenant or TENANT])


def address_of(scope: Scope) -> str:
    """Return the network address from which a request came."""
    return str(scope["client"][0]) if scope.get("client") else ""


def identified(scope: Scope, who: Principal, app: App) -> Principal:
    """Return the caller of a request with their address, and record that they have authenticated."""
    found = _at_door(scope, who)
    note(scope, who=found.name, tenant=found.tenant)
    if app.is_open:
        app.audit_trail.record_login(found)
    return found


def _at_door(scope: Scope, who: Principal) -> Principal:
    """Return a caller with the interface and the address of a request."""
    return replace(who, door=who.door or "http", address=address_of(scope))


def marked(send: Send, origin: str | None = None) -> Send:
    """Return a `send` that adds headers against caching, framing and sniffing, and lets pages of an origin read."""

    async def mark(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *(each for each in message.get("headers", ()) if each[0] not in HEADERS),
                *HEADERS.items(),
            ]
            if origin is not None:
                headers = MutableHeaders(scope=message)
                headers["access-control-allow-origin"] = origin
                headers["access-control-expose-headers"] = EXPOSED
                headers["vary"] = "origin"
        await send(message)

    return mark


def _only(headers: Headers, name: str) -> str | None:
    """Return the value of a header, or None if it is missing or repeated."""
    found = headers.getlist(name)
    return found[0] if len(found) == 1 else None


def _named(host: str) -> str:
    """Return a host name in lower case; an IPv6 address may come without brackets."""
    name = _name_of(host) or _name_of(f"[{host}]")
    if name is None:
        raise DefinitionError(what="hosts", reason=f"{host!r} is not a host name; pass one such as runs.example.com")
    return name


def _name_of(host: str) -> str | None:
    """Return a host without its port, or None if it is malformed."""
    found = _HOST.fullmatch(host.lower())
    return found and (found["address"] or found["name"])


def _origin(text: str) -> str:
    """Return an origin. Raises DefinitionError unless it is a scheme and a host, as browsers send it."""
    parts = urlsplit(text)
    is_whole = parts.scheme in ("http", "https") and text == f"{parts.scheme}://{parts.netloc}"
    if not is_whole or not _name_of(parts.netloc):
        reason = f"{text!r} is not an origin; pass one such as https://app.example.com, without a path"
        raise DefinitionError(what="origins", reason=reason)
    return text


def _public(url: str) -> str:
    try:
        return _origin(url.rstrip("/").lower())
    except DefinitionError:
        reason = f"{url!r} must have a scheme and a host, and no path, such as https://runs.example.com"
        raise DefinitionError(what="public_url", reason=reason) from None
