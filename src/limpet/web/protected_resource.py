"""Metadata of a protected resource (RFC 9728): clients that log in by OAuth find the issuer of the server's tokens.

A request without a valid token gets the address of the metadata in `WWW-Authenticate`. The metadata needs no token.
"""

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from limpet.errors import DefinitionError, LimpetError
from limpet.web.callers import Auth
from limpet.web.guard import Places, marked
from limpet.web.oidc import is_safe
from limpet.web.replies import answered, refused

__all__ = ["ProtectedResource", "issuer_of"]

WELL_KNOWN = "/.well-known/oauth-protected-resource"


def issuer_of(auth: Auth | None) -> str | None:
    """Return the issuer of the tokens that `auth` accepts, its attribute `issuer`; None if it names none."""
    issuer = getattr(auth, "issuer", None)
    if issuer is not None and (not isinstance(issuer, str) or not is_safe(issuer)):
        raise DefinitionError(what="auth", reason=f"its issuer must be https://…, not {issuer!r}")
    return issuer


class ProtectedResource:
    """Serves the metadata of some paths, and names it in refusals there. It passes all other requests on."""

    def __init__(self, inside: ASGIApp, *, paths: Collection[str], issuer: str, places: Places) -> None:
        self._inside, self._paths, self._issuer, self._places = inside, frozenset(paths), issuer, places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for metadata, or pass a request on."""
        path = "" if scope["type"] != "http" else scope["path"].removeprefix(scope.get("root_path", ""))
        if path in self._paths:
            await self._inside(scope, receive, self._named(scope, path, send))
        elif path.startswith(WELL_KNOWN) and path[len(WELL_KNOWN) :] in self._paths and _is_read(scope):
            await self._tell(scope, receive, send, path[len(WELL_KNOWN) :])
        else:
            await self._inside(scope, receive, send)

    async def _tell(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        headers, origin = Headers(scope=scope), None
        try:
            self._places.check_host(headers)
            origin = self._places.check_origin(scope, headers)
        except LimpetError as error:
            await refused(error)(scope, receive, marked(send))
            return
        found = {
            "resource": f"{self._root(scope)}{path}",
            "authorization_servers": [self._issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": "Limpet",
        }
        await answered(found)(scope, receive, marked(send, origin))

    def _root(self, scope: Scope) -> str:
        """Return the server's address as its callers see it."""
        seen = f"{scope['scheme']}://{Headers(scope=scope).get('host', '').lower()}"
        return f"{self._places.public_url or seen}{scope.get('root_path', '')}"

    def _named(self, scope: Scope, path: str, send: Send) -> Send:
        """Return a `send` that names the metadata if the request has no valid token."""

        async def name(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:
                found = f'Bearer resource_metadata="{self._root(scope)}{WELL_KNOWN}{path}"'
                MutableHeaders(scope=message)["www-authenticate"] = found
            await send(message)

        return name


def _is_read(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD")
