"""Clients that log in by OAuth find the issuer of the server's tokens (RFC 9728)."""

from typing import Any, cast

import httpx
import pytest
from mcp.client.auth.utils import (
    build_protected_resource_metadata_discovery_urls,
    extract_resource_metadata_from_www_auth,
)
from mcp.shared.auth import ProtectedResourceMetadata
from starlette.types import ASGIApp

import limpet
from limpet import testing, web
from limpet.mcp import over_http
from limpet.service.tokens import TENANT

ISSUER = "https://login.example.com/realm"
METADATA = "/.well-known/oauth-protected-resource/mcp"


class Provider:
    """An `auth` function that names its issuer."""

    def __init__(self, issuer: Any = ISSUER) -> None:
        self.issuer = issuer

    def __call__(self, token: str) -> limpet.Principal | None:
        """Know one token."""
        return limpet.Principal(name="ann", roles=("viewer",)) if token == "t" * 20 else None


def served(app: limpet.App, auth: Any, **more: Any) -> ASGIApp:
    return web.asgi(app, auth=auth, also={"/mcp": over_http({TENANT: app})}, **more)


def client(inside: ASGIApp, base: str = "http://localhost:8700", root: str = "") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=inside, root_path=root), base_url=base)


@pytest.mark.parametrize(
    ("public", "root", "address"),
    [
        (None, "", "http://localhost:8700"),
        (None, "/limpet", "http://localhost:8700/limpet"),
        ("https://runs.example.com", "", "https://runs.example.com"),
    ],
)
async def test_a_client_finds_the_issuer(public: str | None, root: str, address: str) -> None:
    """Behind a proxy, at a prefix, and directly; the official client understands it."""
    async with testing.app() as app, client(served(app, Provider(), public_url=public), root=root) as http:
        refused = await http.post(f"{root}/mcp", json={})
        assert refused.status_code == 401
        named = extract_resource_metadata_from_www_auth(cast("Any", refused))
        assert named == f"{address}{METADATA}"
        if not root:
            assert build_protected_resource_metadata_discovery_urls(None, f"{address}/mcp")[0] == named
        found = await http.get(f"{root}{METADATA}")
        assert (found.status_code, found.headers["cache-control"]) == (200, "no-store")
        metadata = ProtectedResourceMetadata.model_validate(found.json())
        assert str(metadata.resource) == f"{address}/mcp"
        assert [str(each) for each in metadata.authorization_servers] == [ISSUER]
        assert (await http.head(f"{root}{METADATA}")).status_code == 200


async def test_the_metadata_is_refused_like_any_other_page() -> None:
    """To other hosts and origins; other paths still need a token, and say nothing about the issuer."""
    async with testing.app() as app, client(served(app, Provider())) as http:
        assert (await http.get(METADATA, headers={"host": "evil.example"})).status_code == 421
        assert (await http.get(METADATA, headers={"origin": "http://evil.example"})).status_code == 403
        assert (await http.post(METADATA)).status_code == 401
        for path in ("/v1/runs", "/.well-known/oauth-protected-resource", f"{METADATA}/x", f"{METADATA}%2f"):
            refused = await http.get(path)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        refused = await http.post("/mcp", json={}, headers={"host": "evil.example"})
        assert (refused.status_code, "www-authenticate" in refused.headers) == (421, False)


async def test_without_an_issuer_there_is_no_metadata() -> None:
    async with testing.app() as app:
        for auth in ("t" * 20, lambda _: None):
            async with client(served(app, auth)) as http:
                assert (await http.get(METADATA)).status_code == 401
                assert (await http.post("/mcp", json={})).headers["www-authenticate"] == "Bearer"
        for wrong in ("http://login.example.com", "login", 7):
            with pytest.raises(limpet.DefinitionError, match="its issuer must be https"):
                served(app, Provider(wrong))
