"""Contents of artifacts: as a whole, or piece by piece for clients that cannot receive a file."""

from base64 import b64encode
from dataclasses import dataclass

from msgspec import UnsetType

from limpet.errors import NotFound
from limpet.events import Payload
from limpet.events import bodies as b
from limpet.service.resolve import suggest
from limpet.stores import Store

__all__ = ["DEFAULT_PIECE", "MAX_CHARACTER", "ArtifactPiece", "content_of", "find_artifact", "piece_of"]

DEFAULT_PIECE = 12_000
MAX_CHARACTER = 4
"""Maximum length of a character in UTF-8, in bytes."""


@dataclass(frozen=True, kw_only=True)
class ArtifactPiece:
    """A piece of an artifact."""

    artifact_id: str
    bytes: int
    """Size of the whole artifact."""
    start: int
    text: str | None
    """The piece, if it is text; otherwise it is in `base64`."""
    base64: str | None
    next: int | None
    """Offset of the next piece; None at the end."""


async def content_of(store: Store, run: str, artifact: str) -> Payload:
    """Return the content of an artifact of a run, or of one that its caller passed along."""
    known = await _contents(store, run)
    if artifact not in known:
        raise suggest(NotFound(what="artifact", id=artifact), [*known])
    return known[artifact]


async def find_artifact(store: Store, run: str, given: str) -> str:
    """Return the id of the artifact with this id or unique prefix."""
    known = await _contents(store, run)
    found = [given] if given in known else [each for each in known if each.startswith(given)]
    if len(found) == 1:
        return found[0]
    raise suggest(NotFound(what="artifact", id=given), found or [*known])


async def _contents(store: Store, run: str) -> dict[str, Payload]:
    found: dict[str, Payload] = {}
    async for event in store.log(run):
        if event.kind in ("run.created", "artifact.stored"):
            body = store.decode(event)
            if isinstance(body, b.ArtifactStored):
                found[body.artifact_id] = body.content
            elif isinstance(body, b.RunCreated):
                found.update(body.artifacts)
    return found


async def piece_of(store: Store, run: str, artifact: str, *, start: int, limit: int) -> ArtifactPiece:
    """Return up to `limit` bytes of an artifact from an offset, without cutting a character of a text.

    The whole blob is read to check its hash, but only the piece is kept in memory.
    """
    content = await content_of(store, run, artifact)
    assert not isinstance(content.blob, UnsetType)
    piece, size = bytearray(), 0
    async for part in store.read_blob(content.blob):
        piece += part[max(start - size, 0) : max(start + limit - size, 0)]
        size += len(part)
    return _shown(artifact, bytes(piece), start, size)


def _shown(artifact: str, piece: bytes, start: int, size: int) -> ArtifactPiece:
    text = _text(piece, is_last=start + len(piece) >= size)
    read = start + len(piece if text is None else text.encode())
    return ArtifactPiece(
        artifact_id=artifact,
        bytes=size,
        start=start,
        text=text,
        base64=b64encode(piece).decode() if text is None else None,
        next=read if read < size else None,
    )


def _text(piece: bytes, *, is_last: bool) -> str | None:
    """Decode a piece up to its last whole character. Returns None if it is not text."""
    try:
        return piece.decode()
    except UnicodeDecodeError as error:
        is_cut = not is_last and error.start > 0 and len(piece) - error.start < MAX_CHARACTER
        return piece[: error.start].decode() if is_cut else None
