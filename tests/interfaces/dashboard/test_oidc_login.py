"""Log in with an identity provider: against a real one, and against one that lies."""

import asyncio
import base64
import importlib
import json
import re
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

import limpet
from limpet.clock import SECOND, SystemClock
from limpet.errors import DefinitionError, FileFailed
from limpet.web import Oidc
from tests.interfaces.dashboard.test_dashboard import ask
from tests.interfaces.dashboard.test_decide_pages import refusals
from tests.interfaces.remote.remote_servers import listening

CLAIMS = {"email": "ann@example.org", "email_verified": True, "groups": ["staff", "acme-finance"]}
MAPPED: dict[str, Any] = {
    "client_id": "limpet",
    "client_secret": "shared",
    "roles": {"staff": ["viewer", "approver"]},
    "groups": {"acme-finance": "finance"},
}


real_provider = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the provider's own libraries


@contextmanager
def providing(people: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Run a real provider in a thread, with these people; yield its issuer."""
    with warnings.catch_warnings():
        importlib.import_module("authlib.deprecate")  # it wants its warnings to be shown
        warnings.simplefilter("ignore")
        oidc_provider_mock: Any = importlib.import_module("oidc_provider_mock")

    users = [oidc_provider_mock.User(sub=sub, claims=claims) for sub, claims in people.items()]
    with oidc_provider_mock.run_server_in_thread(user_claims=users, require_nonce=True) as server:
        yield f"http://localhost:{server.server_port}"


@asynccontextmanager
async def served(issuer: str, **more: Any) -> AsyncIterator[tuple[limpet.App, httpx.AsyncClient]]:
    """Yield an app, and a browser at its server, which trusts a provider."""
    async with (
        limpet.open("memory:", agents=[ask]) as app,
        listening({"main": app}, oidc=Oidc(issuer=issuer, **{**MAPPED, **more})) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as client,
    ):
        yield app, client


async def agreed(client: httpx.AsyncClient, sub: str = "ann") -> str:
    """Begin a login, agree at the provider, and return the address to which it sends the browser back."""
    began = await client.get("/ui/login/oidc")
    assert began.status_code == 303
    reply = await client.post(began.headers["location"], data={"sub": sub})
    assert reply.status_code == 302, reply.text
    return str(reply.headers["location"])


@real_provider
async def test_a_person_logs_in_with_a_provider() -> None:
    """With the roles and groups that the operator declared; revoking the token of the login ends it."""
    with providing({"ann": CLAIMS, "ben": {"email": "ben@example.org", "groups": ["others"]}}) as issuer:
        async with served(issuer, label="Acme") as (app, client):
            assert (await client.get("/ui/inbox")).headers["location"] == "/ui/login"
            assert "Log in with Acme" in (await client.get("/ui/login")).text
            began = urlsplit((await client.get("/ui/login/oidc")).headers["location"])
            asked = dict(parse_qsl(began.query))
            assert (asked["code_challenge_method"], asked["response_type"]) == ("S256", "code")
            assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3
            back = await agreed(client)
            done = await client.get(back)
            assert done.status_code == 303, done.text
            assert done.headers["location"] == "/ui/inbox"
            assert len(client.cookies) == 1
            assert '<span class="who">ann@example.org</span>' in (await client.get("/ui/runs")).text
            [token] = await app.tokens()
            assert (token.name, token.roles, token.groups) == ("ann@example.org", ("viewer", "approver"), ("finance",))
            assert (token.created_by, token.status) == ("oidc:Acme", "valid")
            again = await client.get(back)  # the same reply, in the same browser or with its old cookie
            assert (again.status_code, "not logged in" in again.text) == (403, True)
            refused = await client.get(await agreed(client, "ben"))
            assert (refused.status_code, "gives a role" in refused.text) == (403, True)
            await refusals(app, "login_refused")
            await app.revoke_token(token.id)
            async with asyncio.timeout(10):
                while (await client.get("/ui/runs")).status_code == 200:
                    pass


@real_provider
async def test_a_reply_counts_only_in_the_browser_that_asked_and_once() -> None:
    """Wrong, missing and foreign states, replayed codes, and errors of the provider."""
    with providing({"ann": CLAIMS}) as issuer:
        async with served(issuer) as (app, client), httpx.AsyncClient(base_url=client.base_url) as eve:
            theirs = await agreed(eve)
            wrong = [theirs, re.sub("state=[^&]+", "state=", theirs), re.sub("state=[^&]+", "state=é", theirs)]
            assert (await client.get(theirs)).status_code == 403  # no login was begun here
            own = await agreed(client)
            code = parse_qs(urlsplit(own).query)["code"][0]
            wrong += [re.sub("&?state=[^&]+", "", own)]
            cookies = dict(client.cookies)
            for each in wrong:
                reply = await client.get(each)
                assert (reply.status_code, "did not begin it" in reply.text) == (403, True)
            mixed = await client.get(f"{own}&iss=https://other.example")
            assert (mixed.status_code, "another provider" in mixed.text) == (403, True)
            assert (await client.get(own)).status_code == 403  # that attempt is used
            denied = parse_qs(urlsplit((await client.get("/ui/login/oidc")).headers["location"]).query)["state"][0]
            said = await client.get(f"/ui/login/oidc/callback?error=access_denied&state={denied}")
            assert (said.status_code, "access_denied" in said.text) == (403, True)
            # A code of another attempt: a provider that knows PKCE refuses it, and the nonce shows it here.
            state = parse_qs(urlsplit((await client.get("/ui/login/oidc")).headers["location"]).query)["state"][0]
            replayed = await client.get(f"/ui/login/oidc/callback?code={code}&state={state}")
            assert (replayed.status_code, "another login" in replayed.text) == (403, True)
            assert cookies
            assert await app.tokens() == []
            assert not [each for each in client.cookies if not each.endswith(("-oidc", "-next"))]


def seconds() -> int:
    """Return the time that ID tokens have."""
    return SystemClock().now() // SECOND


KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Liar:
    """A provider whose ID tokens are as a test wants them."""

    def __init__(self) -> None:
        self.issuer = ""
        self.claims: dict[str, Any] = {}
        """Claims that replace the right ones; None removes one."""
        self.key: Any = KEY
        self.algorithm = "RS256"
        self.nonce = ""
        self.status = 200
        self.described: dict[str, Any] = {}
        """Parts of its description that are not right."""

    def description(self) -> dict[str, Any]:
        """Return the description of the provider."""
        paths = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}
        return {"issuer": self.issuer, **{name: self.issuer + path for name, path in paths.items()}, **self.described}

    def token(self) -> str:
        """Return an ID token."""
        now = seconds()
        right = {"iss": self.issuer, "aud": "limpet", "sub": "ann", "iat": now, "exp": now + 60, "nonce": self.nonce}
        whole = {name: value for name, value in {**right, **CLAIMS, **self.claims}.items() if value is not None}
        return jwt.encode(whole, "" if self.algorithm == "none" else self.key, self.algorithm, headers={"kid": "k1"})

    def keys(self) -> dict[str, Any]:
        """Return the public keys."""
        return {"keys": [{**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key())), "kid": "k1"}]}


@contextmanager
def lying() -> Iterator[Liar]:
    """Run such a provider."""
    liar = Liar()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, liar.keys() if self.path == "/keys" else liar.description())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self._send(liar.status, {"id_token": liar.token(), "token_type": "Bearer"})

        def _send(self, status: int, found: Any) -> None:
            self.send_response(status)
            self.send_header("location", f"{liar.issuer}/elsewhere")
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    liar.issuer = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield liar
    finally:
        server.shutdown()
        server.server_close()


def hmac_key() -> bytes:
    """Return the public key as a shared secret: a server that accepts any algorithm would verify it."""
    number = base64.urlsafe_b64decode(Liar().keys()["keys"][0]["n"] + "==")
    return number[:64]


async def test_only_a_right_token_logs_in() -> None:
    """Of this issuer, for this server and this login, signed with the provider's key, in time, and with a role."""
    with lying() as liar:
        async with served(liar.issuer) as (app, client):

            async def came_back(**lie: Any) -> httpx.Response:
                asked = parse_qs(urlsplit((await client.get("/ui/login/oidc")).headers["location"]).query)
                liar.nonce = asked["nonce"][0]
                liar.claims, liar.key, liar.algorithm, liar.status = {}, KEY, "RS256", 200
                for name, value in lie.items():
                    setattr(liar, name, value)
                return await client.get(f"/ui/login/oidc/callback?code=x&state={asked['state'][0]}")

            lies: list[tuple[dict[str, Any], int]] = [
                ({"algorithm": "none"}, 403),
                ({"algorithm": "HS256", "key": hmac_key()}, 403),
                ({"key": OTHER}, 403),
                ({"nonce": "another"}, 403),
                ({"claims": {"nonce": None}}, 403),
                ({"claims": {"aud": "other"}}, 403),
                ({"claims": {"aud": ["limpet", "other"]}}, 403),
                ({"claims": {"azp": "other"}}, 403),
                ({"claims": {"iss": "https://other.example"}}, 403),
                ({"claims": {"iss": f"{liar.issuer}/"}}, 403),
                ({"claims": {"exp": seconds() - 3600}}, 403),
                ({"claims": {"exp": None}}, 403),
                ({"claims": {"iat": seconds() + 3600}}, 403),
                ({"claims": {"sub": None}}, 403),
                ({"claims": {"email": None}}, 403),
                ({"claims": {"email": {"a": 1}}}, 403),
                ({"claims": {"email": "a\nb"}}, 403),
                ({"claims": {"email_verified": False}}, 403),
                ({"claims": {"groups": None}}, 403),
                ({"claims": {"groups": ["admin"]}}, 403),
                ({"claims": {"groups": {"staff": 1}}}, 403),
                ({"status": 400}, 403),
                ({"status": 302}, 503),
                ({"status": 500}, 503),
            ]
            for lie, status in lies:
                client.cookies.clear()
                reply = await came_back(**lie)
                assert reply.status_code == status, lie
                assert not [each for each in client.cookies if not each.endswith(("-oidc", "-next"))], lie
            assert await app.tokens() == []
            assert (await came_back()).status_code == 303
            assert len(await app.tokens()) == 1


@pytest.mark.parametrize(
    "described",
    [
        {"issuer": "https://other.example"},
        {"token_endpoint": "http://other.example/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": None},
    ],
)
async def test_a_provider_that_describes_another_one_is_not_used(described: dict[str, Any]) -> None:
    with lying() as liar:
        liar.described = described
        async with served(liar.issuer) as (_, client):
            assert (await client.get("/ui/login/oidc")).status_code == 503
            liar.described = {}
            assert (await client.get("/ui/login/oidc")).status_code == 303  # it is asked again


def test_the_operator_declares_it_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the secret, which is in the environment."""
    file = tmp_path / "login.toml"
    file.write_text('issuer = "https://login.example.com"\nclient_id = "limpet"\n[roles]\nstaff = ["viewer"]\n')
    monkeypatch.setenv("LIMPET_OIDC_SECRET", "shared")
    found = Oidc.from_file(file)
    assert (found.client_secret, found.shown, "shared" in repr(found)) == ("shared", "login.example.com", False)
    with pytest.raises(FileFailed):
        Oidc.from_file(tmp_path / "nothing.toml")
    for text in ("issuer = 1 2", 'client_secret = "x"', 'issuer = "https://a.example"'):
        file.write_text(text)
        with pytest.raises(DefinitionError):
            Oidc.from_file(file)
    lies: list[dict[str, Any]] = [
        {"issuer": "http://login.example.com"},
        {"issuer": "login.example.com"},
        {"roles": {}},
        {"roles": {"staff": ["king"]}},
        {"roles": {"staff": "viewer"}},
        {"scopes": ["email"]},
        {"tenant": "Not One"},
    ]
    for wrong in lies:
        with pytest.raises(DefinitionError):
            Oidc(**{"issuer": "https://login.example.com", **MAPPED, **wrong})
