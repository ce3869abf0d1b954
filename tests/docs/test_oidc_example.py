"""The example of OpenID Connect accepts exactly the tokens of its issuer."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import limpet
from examples.oidc_auth import Oidc
from limpet.clock import SystemClock
from limpet.web import asgi

AUDIENCE = "limpet"


class Issuer(ThreadingHTTPServer):
    """An identity provider: it serves its discovery document and its public keys, and signs tokens."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.key = new_key()
        self.asked: list[str] = []

    def page(self, path: str) -> dict[str, Any] | None:
        """Return the document at a path."""
        self.asked.append(path)
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        pages: dict[str, dict[str, Any]] = {
            "/.well-known/openid-configuration": {"issuer": self.url, "jwks_uri": f"{self.url}/keys"},
            "/keys": {"keys": [{**public, "kid": "k1", "use": "sig", "alg": "RS256"}]},
        }
        return pages.get(path)

    def token(self, key: Any = None, algorithm: str = "RS256", kid: str = "k1", **changed: Any) -> str:
        """Return a token of ann, with other claims; None removes a claim."""
        now = SystemClock().now() // 1_000_000
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 600, **changed}
        present = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(present, self.key if key is None else key, algorithm, headers={"kid": kid})


class _Pages(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        found = self.server.page(self.path)
        self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def new_key() -> RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@contextmanager
def issuing() -> Iterator[Issuer]:
    """Run an identity provider on this machine."""
    with Issuer() as issuer:
        thread = threading.Thread(target=issuer.serve_forever)
        thread.start()
        try:
            yield issuer
        finally:
            issuer.shutdown()
            thread.join()


async def statuses(oidc: Oidc, *tokens: str) -> list[int]:
    """Return the status of a request with each token."""
    async with limpet.open("memory:", worker=False) as app:
        transport = httpx.ASGITransport(asgi(app, auth=oidc))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = [{"authorization": f"Bearer {token}"} for token in tokens]
            return [
                (await client.get("/v1/search", params={"text": "x"}, headers=each)).status_code for each in headers
            ]


async def test_groups_become_roles_and_the_keys_are_fetched_once() -> None:
    with issuing() as issuer:
        oidc = Oidc(issuer.url, AUDIENCE)
        tokens = [issuer.token(groups=groups) for groups in (["limpet-operators"], ["limpet-approvers"], ["sales"], [])]
        assert await statuses(oidc, *tokens) == [200, 403, 403, 403]
        assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]
        who = await oidc(issuer.token(groups=["limpet-admins", "finance"]))
        assert who == limpet.Principal(name="ann", groups=("limpet-admins", "finance"), roles=("admin", "auditor"))


async def test_other_tokens_are_refused() -> None:
    """Expired ones, those for another service, of another issuer or key, unsigned ones, and text."""
    with issuing() as issuer:
        public = issuer.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo).hex()
        groups = ["limpet-operators"]
        refused = [
            issuer.token(groups=groups, exp=SystemClock().now() // 1_000_000 - 60),
            issuer.token(groups=groups, exp=None),
            issuer.token(groups=groups, aud="another"),
            issuer.token(groups=groups, aud=None),
            issuer.token(groups=groups, iss="https://login.example.com"),
            issuer.token(groups=groups, sub=None),
            issuer.token(groups=groups, key=new_key()),
            issuer.token(groups=groups, kid="k2"),
            issuer.token(groups=groups, key=public, algorithm="HS256"),
            issuer.token(groups=groups, key="", algorithm="none"),
            issuer.token(groups=groups)[:-4],
            "a-token-of-twenty-characters",
        ]
        found = await statuses(Oidc(issuer.url, AUDIENCE), *refused, issuer.token(groups=groups))
        assert found == [401] * len(refused) + [200]


async def test_an_issuer_that_cannot_be_reached_gives_503(caplog: pytest.LogCaptureFixture) -> None:
    """An outage is not taken for a wrong token."""
    with issuing() as issuer:
        token = issuer.token(groups=["limpet-operators"])
    assert await statuses(Oidc(issuer.url, AUDIENCE), token) == [503]
    assert "the function that checks tokens failed" in caplog.text
