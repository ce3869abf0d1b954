"""The access log: who asked for what, with which result, and none of the data."""

import logging

import httpx
import pytest

import limpet
from limpet.web import asgi
from tests.interfaces.http_and_mcp.clients import TOKEN

HIDDEN = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"


async def test_each_request_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Values of parameters, tokens and bodies are not in it; a credential in the path is hidden."""
    caplog.set_level(logging.INFO, logger="limpet.access")
    async with limpet.open("memory:", worker=False) as app:
        transport = httpx.ASGITransport(asgi(app, auth=TOKEN), client=("10.0.0.9", 4711))
        good = {"authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await client.get("/v1/runs", params={"user": "ann", "last": 3}, headers=good)
            await client.get(f"/v1/runs/{HIDDEN}", headers=good)
            await client.post("/v1/runs", json={"agent": "secret-agent", "input": "a letter"}, headers=good)
            await client.get("/v1/runs", headers={"authorization": f"Bearer {TOKEN[:-1]}"})
            await client.get("/v1/%1b[2Jx%0a%0dy", headers=good)
    lines = [each for each in caplog.records if each.name == "limpet.access"]
    found = [vars(each)["request"] for each in lines]
    assert [(each["status"], each.get("operation"), each.get("who"), each.get("code")) for each in found] == [
        (200, "runs", "env", None),
        (404, "show", "env", "not_found"),
        (404, "start", "env", "not_found"),
        (401, None, None, "not_authenticated"),
        (404, None, "env", None),
    ]
    assert found[0]["parameters"] == ["last", "user"]
    assert {each["address"] for each in found} == {"10.0.0.9"}
    assert all(each["milliseconds"] >= 0 and each["bytes"] > 0 for each in found)
    whole = "\n".join(f"{each.getMessage()} {vars(each)['request']}" for each in lines)
    for hidden in (TOKEN, TOKEN[:-1], HIDDEN, "secret-agent", "letter", "ann", "\x1b"):
        assert hidden not in whole
    assert len(whole.splitlines()) == 5
