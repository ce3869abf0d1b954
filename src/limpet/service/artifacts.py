"""What is in an artifact, piece by piece, for whoever cannot take it as a file."""

from base64 import b64encode
from dataclasses import dataclass

__all__ = ["ArtifactPiece", "piece_of"]

PIECE = 64_000
# A character is no longer than that in UTF-8.
LONGEST = 4


@dataclass(frozen=True, kw_only=True)
class ArtifactPiece:
    """As much of an artifact as fits."""

    artifact_id: str
    bytes: int
    """Of all of it."""
    start: int
    text: str | None
    """What is there, if it is text; else `base64` has it."""
    base64: str | None
    next: int | None
    """Where to go on; none at its end."""


def piece_of(artifact: str, data: bytes, start: int) -> ArtifactPiece:
    """What an artifact holds from a byte on; no character of a text is cut."""
    piece = data[start : start + PIECE]
    text = _text(piece, is_last=start + PIECE >= len(data))
    read = start + len(piece if text is None else text.encode())
    return ArtifactPiece(
        artifact_id=artifact,
        bytes=len(data),
        start=start,
        text=text,
        base64=b64encode(piece).decode() if text is None else None,
        next=read if read < len(data) else None,
    )


def _text(piece: bytes, *, is_last: bool) -> str | None:
    """The text that it is, up to where its last character is cut; none, if it is no text."""
    try:
        return piece.decode()
    except UnicodeDecodeError as error:
        is_cut = not is_last and len(piece) - error.start < LONGEST
        return piece[: error.start].decode() if is_cut else None
