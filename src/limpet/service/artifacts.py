"""Contents of artifacts: as a whole, or piece by piece for clients that cannot receive a file."""

from base64 import b64encode

from msgspec import UnsetType

from limpet.errors import NotFound
from limpet.events import Payload
from limpet.events import bodies as b
from limpet.service.pieces import RawPart, cut_text, read_part, read_text, whole_characters
from limpet.service.resolve import suggest
from limpet.stores import Store
from limpet.view import View

__all__ = ["ArtifactPiece", "content_of", "find_artifact", "piece_of"]


class ArtifactPiece(View, frozen=True, kw_only=True):
    """A piece of an artifact."""

    artifact_id: str
    """Artifact id."""
    bytes: int
    """Size of the whole artifact: as it is shown, without credentials, or raw."""
    start: int
    """Offset of this piece."""
    text: str | None
    """The piece, if it is text; otherwise it is in `base64`."""
    base64: str | None
    """The piece, if it is binary."""
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


async def piece_of(
    store: Store, run: str, artifact: str, *, start: int, limit: int, raw: bool = False
) -> ArtifactPiece:
    """Return up to `limit` bytes of an artifact from an offset, without cutting a character of a text.

    The artifact is redacted as a whole, and then cut. With `raw`, it is unchanged: then the whole blob is read to check
    its hash, but only the piece is kept in memory, and binary data is possible.
    """
    content = await content_of(store, run, artifact)
    assert not isinstance(content.blob, UnsetType)
    if raw:
        return _raw(artifact, await read_part(store, content.blob, start, limit), start)
    cut = cut_text(await read_text(store, content.blob), start, limit)
    return ArtifactPiece(artifact_id=artifact, bytes=cut.bytes, start=start, text=cut.text, base64=None, next=cut.next)


def _raw(artifact: str, part: RawPart, start: int) -> ArtifactPiece:
    piece, size = part
    text = whole_characters(piece, is_last=start + len(piece) >= size)
    read = start + len(piece if text is None else text.encode())
    return ArtifactPiece(
        artifact_id=artifact,
        bytes=size,
        start=start,
        text=text,
        base64=b64encode(piece).decode() if text is None else None,
        next=read if read < size else None,
    )
