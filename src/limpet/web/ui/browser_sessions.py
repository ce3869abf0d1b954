"""Whose session a browser has: a cookie, which is looked up at most once a second."""

import hmac
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from ipaddress import ip_address

from msgspec import Struct
from msgspec.structs import replace
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

from limpet.clock import SECOND, Clock
from limpet.engine.execution.principal import Principal
from limpet.errors import LimpetError
from limpet.service.app import App
from limpet.service.sessions import find_session
from limpet.service.tokens import parse_token

__all__ = ["STREAM_TRUSTED", "BrowserSession", "BrowserSessions", "is_loopback"]

# How long a session is trusted without a lookup, in microseconds, and the number that is remembered.
TRUSTED, REMEMBERED = SECOND, 4096
# How long it is trusted for a stream, which looks once a second: several of one browser share a lookup.
STREAM_TRUSTED = SECOND // 10


class BrowserSession(Struct, frozen=True, kw_only=True):
    """A person who has logged in."""

    who: Principal
    text: str
    """The cookie."""

    @property
    def form_token(self) -> str:
        """The text that each form of this session contains: another page cannot know it."""
        return sha256(f"form:{self.text}".encode()).hexdigest()

    def has_sent(self, form_token: str) -> bool:
        """Return whether a form is one of this session."""
        return hmac.compare_digest(self.form_token, form_token)


class BrowserSessions:
    """Finds sessions by their cookie. The cookie's name contains the store: cookies do not know ports."""

    def __init__(self, apps: Mapping[str, App], key: str, clock: Clock) -> None:
        self._apps, self._key, self._clock = apps, key, clock
        self._seen: OrderedDict[bytes, tuple[Principal | None, int]] = OrderedDict()

    def cookie_name(self, scope: Scope, headers: Headers) -> str | None:
        """Return the name of the cookie, or None if the connection is neither encrypted nor on the same machine."""
        if scope["scheme"] == "https":
            return f"__Host-limpet-{self._key}"
        return f"limpet-{self._key}" if is_loopback(headers.get("host", "")) else None

    async def find(self, scope: Scope, headers: Headers, trusted: int = TRUSTED) -> BrowserSession | None:
        """Return the session of a request, or None. A lookup is trusted for some microseconds."""
        name = self.cookie_name(scope, headers)
        text = None if name is None else cookie_parser(headers.get("cookie", "")).get(name)
        if text is None:
            return None
        who = await self._who(text, trusted)
        if who is None:
            return None
        address = str(scope["client"][0]) if scope.get("client") else ""
        return BrowserSession(who=replace(who, address=address), text=text)

    async def _who(self, text: str, trusted: int) -> Principal | None:
        key, now = sha256(text.encode()).digest(), self._clock.ticks()
        seen = self._seen.get(key)
        if seen is not None and now - seen[1] < trusted:
            return seen[0]
        parsed = parse_token(text)
        app = None if parsed is None else self._apps.get(parsed.tenant)
        try:
            who = None if app is None or not app.is_open else await find_session(app.store, text)
        except LimpetError:
            if seen is not None:
                return seen[0]  # a person who is logged in sees that the store is away
            raise
        self._seen[key] = who, now
        self._seen.move_to_end(key)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return who

    def forget(self, text: str) -> None:
        """Look a session up again at its next request."""
        self._seen.pop(sha256(text.encode()).digest(), None)


def is_loopback(host: str) -> bool:
    """Return whether a Host header names this machine."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name.rstrip(".").lower() == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
