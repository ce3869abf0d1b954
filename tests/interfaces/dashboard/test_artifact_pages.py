"""Artifacts from the dashboard: bytes that an agent chose, as files that no browser executes."""

import gc
import re
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

import limpet
from limpet.web.ui.artifact_pages import PIECE, image_type
from tests.interfaces.dashboard.test_dashboard import Browser, browser
from tests.interfaces.remote.remote_servers import served_app

TOKEN = "ghp_" + "a1" * 20
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
SCRIPT = b"<script>alert(1)</script>"
ARTIFACTS: dict[str, tuple[str | bytes, str]] = {
    "text": (f"a letter with {TOKEN}", "text/plain"),
    "svg": ('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', "image/svg+xml"),
    "html": ("<!doctype html><script>alert(1)</script>", "text/html"),
    "png": (PNG, "text/html"),
    "jpeg": (b"\xff\xd8\xff\xe0" + SCRIPT + b"\xff", "image/jpeg"),
    "gif": (b"GIF89a/*" + SCRIPT + b"*/=1;alert(1)\xff", "text/javascript"),
    "webp": (b"RIFF\x00\x01\x02\xffWEBP" + SCRIPT, "image/webp"),
    "late": (SCRIPT + PNG, "image/png"),
    "pdf": (b"%PDF-1.7\xff" + SCRIPT, "application/pdf"),
    "escapes": ("\x01" * 1_000_000 + "ä", "text/plain"),
    "empty": ("", "text/plain"),
}
SHOWN = {"png": "image/png", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}


@limpet.agent(name="ui_artifacts")
async def keeper(run: limpet.Run, size: int) -> dict[str, str]:
    """Keep artifacts, and return their ids."""
    if size:
        large = await run.artifact(bytes(range(1, 256)) * (size // 255), type="text/html", summary="large")
        return {"large": large.artifact_id}
    return {
        name: (await run.artifact(content, type=kind, summary=name)).artifact_id
        for name, (content, kind) in ARTIFACTS.items()
    }


@asynccontextmanager
async def kept(size: int, *rights: Any, url: str = "memory:") -> AsyncIterator[tuple[Browser, dict[str, str]]]:
    """Yield a browser of ann with these rights, and the paths of artifacts by name."""
    async with served_app(url, agents=[keeper]) as (app, address), browser(address) as ann:
        ids = await app.run(keeper, size, id="ticket:7")
        token = (await app.create_token("ann", roles=["operator"], rights=rights)).token
        await ann.client.post("/ui/login", data={"token": token}, headers={"sec-fetch-site": "same-origin"})
        yield ann, {name: f"/ui/runs/ticket:7/artifacts/{id}" for name, id in ids.items()}


def is_safe(reply: httpx.Response) -> bool:
    """Return whether no browser executes a reply, or shows it in a frame."""
    policy = reply.headers["content-security-policy"]
    return (
        policy == "sandbox; default-src 'none'; frame-ancestors 'none'"
        and reply.headers["x-content-type-options"] == "nosniff"
        and reply.headers["cross-origin-resource-policy"] == "same-origin"
        and "html" not in reply.headers["content-type"]
        and "svg" not in reply.headers["content-type"]
        and re.search(
            r'; filename="ticket-7-[0-9A-Za-z-]+\.(txt|bin|png|jpg|gif|webp)"$', reply.headers["content-disposition"]
        )
        is not None
    )


async def test_artifacts_are_attachments_and_only_images_are_shown() -> None:
    """Whatever the agent calls them; each byte arrives unchanged, to a person who may read them so."""
    async with kept(0, "raw") as (ann, paths):
        for name, path in paths.items():
            content = ARTIFACTS[name][0]
            data = content.encode() if isinstance(content, str) else content
            for query in ("raw=1", "inline=1", "inline=1&raw=0"):
                reply = await ann.client.get(f"{path}?{query}")
                assert (reply.status_code, reply.content == data, is_safe(reply)) == (200, True, True), (name, query)
                is_shown = reply.headers["content-disposition"].startswith("inline;")
                assert is_shown == (name in SHOWN and "inline" in query)
                assert not is_shown or reply.headers["content-type"] == SHOWN[name]
                head = await ann.client.head(f"{path}?{query}")
                assert (head.headers["content-length"], head.content) == (str(len(data)), b"")
            plain = await ann.client.get(path)
            assert plain.headers["content-disposition"].startswith("attachment;")
            assert (TOKEN in plain.text) is False


async def test_without_the_right_only_redacted_text_is_sent() -> None:
    async with kept(0) as (ann, paths):
        for name, path in paths.items():
            content = ARTIFACTS[name][0]
            reply = await ann.client.get(path)
            if isinstance(content, bytes):
                assert (reply.status_code, "right `raw`" in reply.text) == (403, True), name
                assert "attachment" not in reply.headers.get("content-disposition", "")
            else:
                assert (reply.status_code, is_safe(reply)) == (200, True)
                assert reply.text == content.replace(TOKEN, "[redacted: github token]")
                assert reply.headers["content-type"] == "text/plain; charset=utf-8"
            for query in ("raw=1", "inline=1"):
                assert (await ann.client.get(f"{path}?{query}")).status_code == 403
        other = paths["text"].rpartition("/")[0]
        assert (await ann.client.get(f"{other}/nothing")).status_code == 404
        assert (await ann.client.get("/ui/runs/nothing/artifacts/x")).status_code == 404


async def test_a_large_artifact_is_sent_piece_by_piece(tmp_path: Path, full: bool) -> None:
    """50 MB arrive unchanged, and are never in memory as a whole. With --full."""
    if not full:
        pytest.skip("slow; --full")
    size = 50_000_000 // 255 * 255
    async with kept(size, "raw", url=f"sqlite:///{tmp_path}/limpet.db") as (ann, paths):
        got, read = sha256(), 0
        gc.collect()
        tracemalloc.start()
        try:
            async with ann.client.stream("GET", paths["large"]) as reply:
                assert reply.headers["content-length"] == str(size)
                async for piece in reply.aiter_raw():
                    got.update(piece)
                    read += len(piece)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert read == size
        assert got.digest() == sha256(bytes(range(1, 256)) * (size // 255)).digest()
        assert peak < 14 * PIECE < size


@pytest.mark.parametrize(
    "start", [b"", b"\x89PNG", b"GIF88a", b"RIFF0000WEBM", b" GIF89a", b"<svg", b"BM", b"\x00\x00\x01\x00"]
)
def test_only_known_first_bytes_are_an_image(start: bytes) -> None:
    assert image_type(start) is None
