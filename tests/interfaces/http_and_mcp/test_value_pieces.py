"""Large values and artifacts over HTTP: redacted as a whole and then cut; raw only with the right to it."""

import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from mcp import Client
from msgspec.structs import replace

import limpet
from limpet.mcp import server_of
from limpet.service import pieces
from limpet.web import asgi
from tests.interfaces.http_and_mcp.clients import call_json

SECRET = "sk-" + "a1B2" * 10
TEXT = f"größer {SECRET}, " * 1_000
CALLERS = {
    "operator": limpet.Principal(name="op", roles=("operator",)),
    "raw": limpet.Principal(name="forensics", roles=("operator",), rights=("raw",)),
    "viewer": limpet.Principal(name="viewer", roles=("viewer",), rights=("raw",)),
}


@limpet.tool(effect="none", name="pieces_read")
async def read() -> dict[str, str]:
    return {"text": TEXT, "password": "hunter2"}


@limpet.agent(name="pieces_agent")
async def agent(run: limpet.Run) -> list[str]:
    await run.step(read)
    kept = [await run.artifact(data, type="any", summary="") for data in (TEXT, bytes(range(256)) * 10)]
    return [each.artifact_id for each in kept]


class Doors:
    """An app with one finished run, and its HTTP API."""

    def __init__(self, app: limpet.App, http: httpx.AsyncClient, artifacts: list[str], blob: str) -> None:
        self.app, self.http, self.artifacts, self.blob = app, http, artifacts, blob

    async def get(self, path: str, caller: str = "operator", **query: Any) -> httpx.Response:
        """Send a query below /v1/runs."""
        headers = {"authorization": f"Bearer {caller}"}
        return await self.http.get(f"/v1/runs/{path}", params=query, headers=headers)

    async def whole(self, path: str, **query: Any) -> str:
        """Read all pieces."""
        found, start = "", 0
        while True:
            piece = (await self.get(path, start=start, **query)).json()
            found += str(piece["text"])
            if (start := piece["next"]) is None:
                assert len(found.encode()) == piece["bytes"]
                return found


@asynccontextmanager
async def doors() -> AsyncIterator[Doors]:
    async with limpet.open("memory:", agents=[agent]) as app:
        artifacts = await app.run(agent, id="r")
        [step] = await app.steps("r")
        transport = httpx.ASGITransport(asgi(app, auth=CALLERS.get))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            yield Doors(app, http, artifacts, step.result["blob"])


async def test_pieces_fit_together_and_hide_credentials() -> None:
    """They are cut from the redacted whole."""
    async with doors() as at:
        whole = json.loads(await at.whole(f"r/values/{at.blob}", limit=1_000))
        assert whole.keys() == {"text", "password"}
        assert ("a1B2" in str(whole), "hunter2" in str(whole)) == (False, False)
        assert await at.whole(f"r/artifacts/{at.artifacts[0]}", limit=1_000) == whole["text"]


async def test_no_border_of_a_piece_shows_part_of_a_credential() -> None:
    """Also where pieces are shorter than a credential."""
    async with doors() as at:
        found, start = "", 0
        while len(found) < 200:
            piece = (await at.get(f"r/values/{at.blob}", start=start, limit=7)).json()
            found, start = found + piece["text"], piece["next"]
        assert ("größer" in found, "a1B2" in found) == (True, False)


async def test_raw_pieces_need_the_right() -> None:
    """A role is not enough, and the right alone is not either."""
    async with doors() as at:
        for path in (f"r/values/{at.blob}", f"r/artifacts/{at.artifacts[0]}"):
            refused = await at.get(path, raw=True)
            assert (refused.status_code, refused.json()["code"]) == (403, "not_permitted")
            assert "right `raw`" in refused.json()["hint"]
            assert (await at.get(path, "viewer", raw=True)).status_code == 403
            shown = await at.get(path, "raw", raw=True)
            assert shown.status_code == 200
            assert SECRET in shown.json()["text"]
            assert (await at.get(path, raw=False)).status_code == 200


async def test_binary_content_is_only_raw() -> None:
    """It cannot be redacted: a byte that is not text would hide a credential from the patterns."""
    async with doors() as at:
        path = f"r/artifacts/{at.artifacts[1]}"
        refused = await at.get(path)
        assert (refused.status_code, "binary content" in refused.json()["detail"]) == (422, True)
        piece = (await at.get(path, "raw", raw=True)).json()
        assert b64decode(piece["base64"]) == bytes(range(256)) * 10


async def test_content_that_is_too_large_to_redact_is_only_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    async with doors() as at:
        monkeypatch.setattr(pieces, "MAX_REDACTED", 1_000)
        refused = await at.get(f"r/values/{at.blob}")
        assert (refused.status_code, "cannot be redacted" in refused.json()["detail"]) == (422, True)
        assert (await at.get(f"r/values/{at.blob}", "raw", raw=True)).status_code == 200


async def test_a_value_is_found_only_through_its_run() -> None:
    """Or through a fork of it. An id of another run's value is unknown."""
    async with doors() as at:
        await (await at.app.fork("r", seq=1, id="fork")).result()
        await at.app.run(agent, id="other", labels={"a": "b"})
        assert (await at.get(f"fork/values/{at.blob}")).status_code == 200
        for path in (f"r/values/{'0' * 64}", "r/values/upload:1", f"none/values/{at.blob}"):
            assert (await at.get(path)).status_code == 404, path


async def test_an_offset_inside_a_character_is_refused() -> None:
    async with doors() as at:
        text = (await at.get(f"r/values/{at.blob}", limit=100)).json()["text"]
        inside = len(text[: text.index("ö")].encode()) + 1
        refused = await at.get(f"r/values/{at.blob}", start=inside)
        assert (refused.status_code, refused.json()["facts"]["path"]) == (422, "start")
        beyond = (await at.get(f"r/values/{at.blob}", start=10**9)).json()
        assert (beyond["text"], beyond["next"]) == ("", None)


async def test_a_local_client_needs_the_right_too() -> None:
    """A model reads what MCP over pipes returns."""
    auditor = limpet.Principal(name="ann", door="mcp", roles=("auditor",))
    async with doors() as at:
        for who, is_shown in ((auditor, False), (replace(auditor, rights=("raw",)), True)):
            async with Client(server_of({"main": at.app}, local=who)) as client:
                raw = await call_json(client, "value", run="r", blob=at.blob, raw=True)
                assert (SECRET in raw.get("text", "")) == is_shown
                assert (raw.get("code") == "not_permitted") != is_shown
                assert SECRET not in (await call_json(client, "value", run="r", blob=at.blob))["text"]
