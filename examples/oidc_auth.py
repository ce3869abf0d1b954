"""Accept the tokens of your identity provider (OpenID Connect), beside those of the store.

    pip install 'limpet[server]' 'pyjwt[crypto]'
    OIDC_ISSUER=https://login.example.com OIDC_AUDIENCE=limpet uvicorn examples.oidc_auth:service --factory

The provider's groups become roles. A token that is not valid gives 401, and an outage of the provider 503.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.request import urlopen

import jwt
from starlette.types import ASGIApp

import limpet
from limpet import web

ALGORITHMS = ["RS256", "ES256"]  # signatures with a public key only: never `none`, never a shared secret
ROLES: Mapping[str, tuple[Any, ...]] = {
    "limpet-operators": ("operator",),
    "limpet-approvers": ("approver",),
    "limpet-admins": ("admin", "auditor"),
}


class Oidc:
    """Checks tokens of one issuer. Its keys are cached for five minutes, and fetched for an unknown key."""

    def __init__(self, issuer: str, audience: str) -> None:
        self.issuer, self._audience = issuer.rstrip("/"), audience
        self._keys: jwt.PyJWKClient | None = None
        self._discovery = asyncio.Lock()

    async def __call__(self, token: str) -> limpet.Principal | None:
        """Return whose token it is, None if it is not valid. Raises if the issuer cannot be reached."""
        async with self._discovery:  # once, also for many requests at the same time
            if self._keys is None:
                self._keys = await asyncio.to_thread(self._discovered)
        return await asyncio.to_thread(self._principal, token, self._keys)

    def _discovered(self) -> jwt.PyJWKClient:
        with urlopen(f"{self.issuer}/.well-known/openid-configuration", timeout=10) as reply:
            found = json.load(reply)
        if found["issuer"].rstrip("/") != self.issuer:
            raise ValueError(f"{self.issuer} says that it is {found['issuer']}")
        return jwt.PyJWKClient(found["jwks_uri"], lifespan=300, timeout=10)

    def _principal(self, token: str, keys: jwt.PyJWKClient) -> limpet.Principal | None:
        try:
            key = keys.get_signing_key_from_jwt(token)
            claims = jwt.decode(
                token,
                key,
                ALGORITHMS,
                audience=self._audience,
                issuer=self.issuer,
                leeway=30,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWKClientConnectionError:
            raise  # an outage says nothing about the token
        except (jwt.PyJWTError, ValueError):
            return None
        groups = tuple(str(each) for each in claims.get("groups", ()))
        roles = tuple(role for group in groups for role in ROLES.get(group, ()))
        return limpet.Principal(name=claims["sub"], groups=groups, roles=roles)


def service() -> ASGIApp:
    """Return the ASGI application. It opens and closes the store with the server."""
    app = limpet.open(worker=False)
    return web.asgi(app, auth=Oidc(os.environ["OIDC_ISSUER"], os.environ["OIDC_AUDIENCE"]))
