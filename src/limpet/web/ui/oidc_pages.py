"""Log in with an identity provider: send the browser there, and begin a session when it comes back.

One cookie holds the secret of an attempt, from which its state, nonce and PKCE verifier follow. So a reply of the
provider counts only in the browser that asked, any server of the store can take it, and it counts once.
"""

import hmac
from collections import OrderedDict
from collections.abc import Mapping
from math import ceil

from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response

from limpet.clock import Clock
from limpet.engine.execution.principal import Principal
from limpet.errors import LimpetError, LoginRefused, TooManyRequests
from limpet.ids import Ids
from limpet.service.app import App
from limpet.service.audit import AuditEvent
from limpet.service.sessions import SESSION_LASTS, NewSession, log_in_with_token
from limpet.service.tokens import create_token
from limpet.web.access_log import note
from limpet.web.callers import BURST, TRIES
from limpet.web.guard import address_of
from limpet.web.limits import Buckets
from limpet.web.oidc import OidcClient, OneLogin
from limpet.web.ui.login_pages import begun_reply

__all__ = ["OidcPages"]

LASTS = 600
"""How long a login may take, in seconds."""
# Attempts that are remembered, so that none is used twice.
REMEMBERED = 10_000
BITS = 256


class OidcPages:
    """Begins and ends logins with one provider."""

    def __init__(self, client: OidcClient, apps: Mapping[str, App], ids: Ids, clock: Clock) -> None:
        self._client, self._ids = client, ids
        self._app = apps[client.oidc.tenant]
        self._used: OrderedDict[str, None] = OrderedDict()
        self._tries = Buckets(clock, rate=TRIES, burst=BURST)

    @property
    def provider(self) -> str:
        """Name of the provider for people."""
        return self._client.oidc.shown

    async def begin(self, *, cookie: str, here: str) -> Response:
        """Send a browser to the provider. `here` is the address at which it comes back."""
        login = OneLogin(f"{self._ids.bits(BITS):064x}")
        reply = RedirectResponse(await self._client.address(login, here), 303)
        reply.set_cookie(
            _name(cookie),
            login.secret,
            max_age=LASTS,
            path="/",
            secure=cookie.startswith("__Host-"),
            httponly=True,
            samesite="lax",
        )
        return reply

    async def finish(self, request: Request, *, cookie: str, root: str, here: str) -> Response:
        """Begin a session for the person whom the provider names. Raises LoginRefused, which the audit log records."""
        try:
            self._count(request)
            who = await self._person(request, cookie, here)
            begun = await self._begun(who)
        except LimpetError as error:
            if self._app.is_open:
                self._app.audit_trail.record_refusal(error.code, address_of(request.scope))
            raise
        note(request.scope, who=who.name, tenant=who.tenant)
        reply = begun_reply(self._app, begun, request, cookie=cookie, root=root)
        is_secure = cookie.startswith("__Host-")
        reply.delete_cookie(_name(cookie), path="/", secure=is_secure, httponly=True, samesite="lax")
        return reply

    async def _person(self, request: Request, cookie: str, here: str) -> Principal:
        query = request.query_params
        login = OneLogin(cookie_parser(request.headers.get("cookie", "")).get(_name(cookie), ""))
        if not login.secret or not hmac.compare_digest(query.get("state", "").encode(), login.state.encode()):
            raise LoginRefused(reason="this browser did not begin it, or it took too long")
        if login.state in self._used:
            raise LoginRefused(reason="it was used before")
        self._used[login.state] = None
        if len(self._used) > REMEMBERED:
            self._used.popitem(last=False)
        if query.get("iss", self._client.oidc.issuer) != self._client.oidc.issuer:
            raise LoginRefused(reason="the reply comes from another provider")
        if "code" not in query:
            raise LoginRefused(reason=f"the provider said {query.get('error', 'nothing')[:60]!r}")
        return await self._client.person(login, query["code"], here)

    async def _begun(self, who: Principal) -> NewSession:
        """Begin a session below a token of its own, which an admin can revoke. Its text is shown to no one."""
        store, by = self._app.store, f"oidc:{self.provider}"
        expires = await store.now() + SESSION_LASTS
        made = await create_token(store, self._ids, who, expires=expires, by=by)
        await self._app.audit_log.record(AuditEvent(action="token.created", who=who, subject=made.info.id))
        begun = await log_in_with_token(store, self._ids, made.token)
        assert begun is not None
        return begun

    def _count(self, request: Request) -> None:
        address = address_of(request.scope)
        if wait := self._tries.take(address):
            raise TooManyRequests(reason=f"{address} tried too many logins", seconds=ceil(wait))


def _name(cookie: str) -> str:
    return f"{cookie}-oidc"
