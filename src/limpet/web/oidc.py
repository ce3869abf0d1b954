"""Log in with an identity provider (OpenID Connect): what the operator declares, and what is asked of the provider.

The authorization code flow with PKCE. The ID token is verified with the provider's keys: its signature, issuer,
audience, expiry and nonce. Roles and groups come only from claims that the operator mapped to them.
"""

import asyncio
import base64
import hmac
import importlib
import json
import logging
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, get_args
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit

from limpet.arguments import defining
from limpet.engine.execution.principal import Principal, Role
from limpet.errors import AuthUnavailable, DefinitionError, ExtraMissing, FileFailed, InvalidArgument, LoginRefused
from limpet.service.tokens import TENANT, check_caller, is_tenant

__all__ = ["Oidc", "OidcClient", "OneLogin", "is_safe"]

log = logging.getLogger("limpet")
T = TypeVar("T")

# Signatures with a public key only: never `none`, never a shared secret.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
# Seconds that the provider may take, that its clock may differ, and that its keys are remembered.
TIMEOUT, LEEWAY, KEYS_LAST = 10, 30, 300
# Longest reply of the provider, in bytes.
LONGEST_REPLY = 1024 * 1024
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
OPTIONS = ("issuer", "client_id", "label", "name_claim", "roles_claim", "roles", "groups", "scopes", "tenant")


@defining
@dataclass(frozen=True, kw_only=True)
class Oidc:
    """An identity provider, and what its claims mean. A person without a mapped role cannot log in."""

    issuer: str
    """Address of the provider, exactly as its tokens have it."""
    client_id: str
    """The id of this server at the provider."""
    roles: Mapping[str, Sequence[Role]]
    """Roles by the value of the claim `roles_claim`."""
    client_secret: str = field(default="", repr=False)
    """The secret of this server at the provider; empty for a public client."""
    label: str = ""
    """Name of the provider on the button; the default is its host."""
    name_claim: str = "email"
    """Claim with the person's name, which is recorded with each decision. It must be unique at the provider."""
    roles_claim: str = "groups"
    """Claim whose values are mapped to roles and groups."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Groups of Limpet by the value of the same claim."""
    scopes: Sequence[str] = ("openid", "email", "profile")
    """Scopes to ask for."""
    tenant: str = TENANT
    """The tenant whose store the people belong to."""

    def __post_init__(self) -> None:
        if not is_safe(self.issuer) or "?" in self.issuer or "#" in self.issuer:
            raise _invalid("issuer must be https://…, without a query")
        if not self.client_id or not self.roles:
            raise _invalid("client_id and roles are needed")
        known = get_args(Role)
        for value, roles in self.roles.items():
            if isinstance(roles, str) or not set(roles) <= set(known):
                raise _invalid(f"the roles of {value!r} must be a list of some of {', '.join(known)}")
        if "openid" not in self.scopes or isinstance(self.scopes, str):
            raise _invalid("scopes must be a list with openid")
        if not is_tenant(self.tenant):
            raise _invalid(f"{self.tenant!r} is not a tenant")

    @classmethod
    def from_file(cls, path: Path) -> "Oidc":
        """Read a TOML file with these fields. The secret is in LIMPET_OIDC_SECRET, not in the file."""
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise FileFailed(path=str(path), reason=error.strerror or str(error)) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise _invalid(f"{path.name} is not TOML: {error}") from None
        if unknown := sorted(set(found) - set(OPTIONS)):
            raise _invalid(f"{path.name} has {', '.join(unknown)}; known are {', '.join(OPTIONS)}")
        if missing := [each for each in ("issuer", "client_id", "roles") if each not in found]:
            raise _invalid(f"{path.name} has no {', '.join(missing)}")
        return cls(**found, client_secret=os.environ.get("LIMPET_OIDC_SECRET", "").strip())

    @property
    def shown(self) -> str:
        """Name of the provider for people."""
        return self.label or urlsplit(self.issuer).hostname or self.issuer


@dataclass(frozen=True)
class OneLogin:
    """One attempt to log in. All of its values follow from a secret that only the person's browser has."""

    secret: str = field(repr=False)

    @property
    def state(self) -> str:
        """Value that the provider returns, to bind its reply to this browser."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """Value that the ID token repeats."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """PKCE verifier, which only this server sends with the code."""
        return self._derived("verifier")

    @property
    def challenge(self) -> str:
        """PKCE challenge."""
        return _encoded(sha256(self.verifier.encode()).digest())

    def _derived(self, use: str) -> str:
        return _encoded(hmac.digest(self.secret.encode(), f"limpet oidc {use}".encode(), "sha256"))


class OidcClient:
    """Asks the provider."""

    def __init__(self, oidc: Oidc) -> None:
        if find_spec("jwt") is None or find_spec("cryptography") is None:
            raise ExtraMissing(extra="oidc")
        self.oidc = oidc
        self._lock = asyncio.Lock()
        self._found: Mapping[str, Any] | None = None
        self._keys: Any = None

    async def address(self, login: OneLogin, redirect: str) -> str:
        """Return where a browser logs in. Raises AuthUnavailable."""
        found = await self._discovered()
        query = {
            "response_type": "code",
            "client_id": self.oidc.client_id,
            "redirect_uri": redirect,
            "scope": " ".join(self.oidc.scopes),
            "state": login.state,
            "nonce": login.nonce,
            "code_challenge": login.challenge,
            "code_challenge_method": "S256",
        }
        joint = "&" if urlsplit(found["authorization_endpoint"]).query else "?"
        return f"{found['authorization_endpoint']}{joint}{urlencode(query)}"

    async def person(self, login: OneLogin, code: str, redirect: str) -> Principal:
        """Return who has logged in. Raises LoginRefused and AuthUnavailable."""
        found = await self._discovered()
        token = await _logged(lambda: self._exchanged(found, login, code, redirect))
        claims = await _logged(lambda: self._verified(token))
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), login.nonce.encode()):
            raise LoginRefused(reason="the ID token belongs to another login")
        return _person(self.oidc, claims)

    async def _discovered(self) -> Mapping[str, Any]:
        """Return the provider's description of itself, which is read once."""
        async with self._lock:
            if self._found is None:
                found = await _logged(self._discover)
                jwt = importlib.import_module("jwt")
                self._keys = jwt.PyJWKClient(found["jwks_uri"], lifespan=KEYS_LAST, timeout=TIMEOUT)
                self._found = found
            return self._found

    def _discover(self) -> Mapping[str, Any]:
        found = _fetch(f"{self.oidc.issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != self.oidc.issuer:
            raise AuthUnavailable from ValueError(f"{self.oidc.issuer} says that it is {found.get('issuer')!r}")
        for name in ENDPOINTS:
            if not is_safe(str(found.get(name, ""))):
                raise AuthUnavailable from ValueError(f"{self.oidc.issuer} has no {name} that is https")
        return found

    def _exchanged(self, found: Mapping[str, Any], login: OneLogin, code: str, redirect: str) -> str:
        """Return the ID token for a code."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "client_id": self.oidc.client_id,
            "code_verifier": login.verifier,
        }
        headers = {"accept": "application/json"}
        if self.oidc.client_secret:
            methods = found.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
            if "client_secret_basic" in methods:
                pair = f"{quote(self.oidc.client_id, safe='')}:{quote(self.oidc.client_secret, safe='')}"
                headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            else:
                form["client_secret"] = self.oidc.client_secret
        reply = _fetch(found["token_endpoint"], form, headers)
        token = reply.get("id_token")
        if not isinstance(token, str):
            raise LoginRefused(reason="the provider sent no ID token")
        return token

    def _key_of(self, jwt: Any, token: str) -> Any:
        """Return the provider's key for a token. A token without the id of a key needs a provider with one key."""
        id = jwt.get_unverified_header(token).get("kid")
        for is_again in (False, True):  # a key that is not known may be new
            keys = [each for each in self._keys.get_jwk_set(is_again).keys if each.public_key_use in (None, "sig")]
            found = [each.key for each in keys if id is None or each.key_id == id]
            if len(found) == 1:
                return found[0]
        raise LoginRefused(reason="the ID token is signed with a key that the provider does not have")

    def _verified(self, token: str) -> Mapping[str, Any]:
        """Return the claims of an ID token."""
        jwt = importlib.import_module("jwt")
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                self._key_of(jwt, token),
                [*ALGORITHMS],
                audience=self.oidc.client_id,
                issuer=self.oidc.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except jwt.PyJWKClientConnectionError as error:
            raise AuthUnavailable from error  # an outage says nothing about the token
        except (jwt.PyJWTError, ValueError) as error:
            raise LoginRefused(reason=f"the ID token is not valid ({type(error).__name__})") from error
        several = not isinstance(claims["aud"], str) and len(claims["aud"]) > 1
        if claims.get("azp", self.oidc.client_id if not several else None) != self.oidc.client_id:
            raise LoginRefused(reason="the ID token was made for another server")
        return claims


async def _logged(ask: Callable[[], T]) -> T:
    """Ask the provider in a thread. The cause of an outage is for the log, not for a person who has not logged in."""
    try:
        return await asyncio.to_thread(ask)
    except AuthUnavailable as error:
        log.warning("oidc: %s", error.__cause__)
        raise


def _fetch(
    url: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    """Return a JSON object from the provider. Raises LoginRefused if it refuses a form, else AuthUnavailable."""
    from urllib import request as http  # noqa: PLC0415 - slow to import

    class NoRedirects(http.HTTPRedirectHandler):
        """Follows no redirects: a code or a secret must not go elsewhere."""

        def redirect_request(self, *_: Any, **__: Any) -> None:
            """Follow none."""

    data = None if form is None else urlencode(form).encode()
    asked = http.Request(url, data, dict(headers or {}))  # noqa: S310 - `is_safe` has checked it
    try:
        with http.build_opener(NoRedirects).open(asked, timeout=TIMEOUT) as reply:
            found = json.loads(reply.read(LONGEST_REPLY))
    except HTTPError as error:
        with error:
            if 400 <= error.code < 500 and form is not None:
                raise LoginRefused(reason=f"the provider refused the code with {error.code}") from None
            raise AuthUnavailable from error
    except (URLError, OSError, ValueError) as error:
        raise AuthUnavailable from error
    if not isinstance(found, dict):
        raise AuthUnavailable from ValueError("the provider sent no JSON object")
    return found


def _person(oidc: Oidc, claims: Mapping[str, Any]) -> Principal:
    """Return the person of some claims. Raises LoginRefused without a name, or a role."""
    name = claims.get(oidc.name_claim)
    if not isinstance(name, str) or not name:
        raise LoginRefused(reason=f"the ID token has no claim {oidc.name_claim!r}")
    if oidc.name_claim == "email" and claims.get("email_verified", True) is not True:
        raise LoginRefused(reason="the provider has not verified the e-mail address")
    given = claims.get(oidc.roles_claim, [])
    values = [given] if isinstance(given, str) else [str(each) for each in given] if isinstance(given, list) else []
    roles = dict.fromkeys(role for value in values for role in oidc.roles.get(value, ()))
    if not roles:
        raise LoginRefused(reason=f"none of the values of {oidc.roles_claim!r} gives a role")
    groups = dict.fromkeys(oidc.groups[value] for value in values if value in oidc.groups)
    who = Principal(name=name, roles=tuple(roles), groups=tuple(groups), tenant=oidc.tenant)
    try:
        check_caller(who)
    except InvalidArgument as error:
        raise LoginRefused(reason=f"the claims cannot be used: {error.reason}") from None
    return who


def is_safe(url: str) -> bool:
    """Return whether the connection to an address is encrypted, or stays on this machine."""
    parts = urlsplit(url)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and is_local))


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _invalid(reason: str) -> DefinitionError:
    return DefinitionError(what="a login with OpenID Connect", reason=reason)
