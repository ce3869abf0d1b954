"""Artifacts as downloads. An agent chose their bytes, so no browser may execute them.

Every artifact is an attachment with a name that is made here. Only raster images are shown, and they are recognised by
their first bytes, not by what the agent calls them.
"""

import re
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import Response, StreamingResponse

from limpet.errors import InvalidArgument, NotPermitted
from limpet.web.ui.page_context import PageContext

__all__ = ["POLICY", "artifact_page", "file_name", "image_type"]

# Bytes of a piece: base64 adds a third, and a result has at most 4 MB.
PIECE = 2_900_000
POLICY = "sandbox; default-src 'none'; frame-ancestors 'none'"
TEXT, BINARY = "text/plain; charset=utf-8", "application/octet-stream"
# First bytes of images, their types and the ends of their names.
_IMAGES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png", "png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg", "jpg"),
    (re.compile(rb"GIF8[79]a"), "image/gif", "gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp", "webp"),
)
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
LONGEST_NAME = 100


def image_type(start: bytes) -> tuple[str, str] | None:
    """Return the type of a raster image and the end of its name, by its first bytes; None for anything else."""
    return next(((kind, end) for magic, kind, end in _IMAGES if magic.match(start)), None)


def file_name(text: str, end: str) -> str:
    """Return a name of a file that is safe everywhere."""
    return f"{_UNSAFE.sub('-', text)[:LONGEST_NAME]}.{end}"


async def artifact_page(page: PageContext) -> Response:
    """Send an artifact as a file: redacted text; or its unchanged bytes, to a person with the right `raw` who asks for
    them with `raw=1`, or if they cannot be redacted.

    With `inline=1`, which implies `raw`, an image is shown instead. Only one piece is in memory.
    """
    run, artifact = page.ids
    query = page.request.query_params
    wants_image = query.get("inline") == "1"
    reading = _Reading(page, run, artifact, raw=wants_image or query.get("raw") == "1")
    first, size = await reading.first()
    image = image_type(first) if reading.raw else None
    kind, end = image or ((TEXT, "txt") if reading.is_text else (BINARY, "bin"))
    name = file_name(f"{run}-{artifact}", end)
    is_shown = wants_image and image is not None
    headers = {
        "content-type": kind if is_shown or image is None else BINARY,
        "content-disposition": f'{"inline" if is_shown else "attachment"}; filename="{name}"',
        "content-length": str(size),
        "content-security-policy": POLICY,
    }
    if page.request.method == "HEAD":
        return Response(headers=headers)
    return StreamingResponse(reading.rest(first), headers=headers)


class _Reading:
    """Reads an artifact piece by piece, as the person may see it."""

    def __init__(self, page: PageContext, run: str, artifact: str, *, raw: bool) -> None:
        self._page, self._run, self._artifact, self.raw = page, run, artifact, raw
        self._limit = PIECE
        self._next: int | None = 0
        self.is_text = True
        """Whether the first piece is text."""

    async def first(self) -> tuple[bytes, int]:
        """Return the first piece, and the size of all. Raises NotPermitted if it is not text, or too much to redact."""
        try:
            found = await self._ask()
        except InvalidArgument as error:
            if error.path != "raw":
                raise
            who = self._page.session.who
            if "raw" not in who.rights:
                fix = f"{error.reason.partition(';')[0].capitalize()}. A token with the right `raw` reads it unchanged."
                raise NotPermitted(operation="artifact without raw", by=who.name, roles=(), fix=fix) from None
            self.raw = True
            found = await self._ask()
        self.is_text = found["text"] is not None
        return _bytes_of(found), found["bytes"]

    async def rest(self, first: bytes) -> AsyncIterator[bytes]:
        """Yield the pieces."""
        yield first
        while self._next is not None:
            yield _bytes_of(await self._ask())

    async def _ask(self) -> Mapping[str, Any]:
        """Return the next piece. Text with many escapes is larger as JSON: a piece of it that was cut is read again."""
        while True:
            found: Mapping[str, Any] = await self._page.ask(
                "artifact",
                run=self._run,
                artifact=self._artifact,
                start=self._next,
                limit=self._limit,
                raw=self.raw or None,
            )
            if "truncated" not in found:
                self._next = found["next"]
                return found
            self._limit //= 4


def _bytes_of(piece: Mapping[str, Any]) -> bytes:
    return b64decode(piece["base64"]) if piece["text"] is None else piece["text"].encode()
