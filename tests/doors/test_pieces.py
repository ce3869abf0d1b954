"""An artifact in pieces: no character is cut, nothing is lost, and what is no text comes as base64."""

from base64 import b64decode

import pytest

from limpet.service.artifacts import PIECE, piece_of


def whole(data: bytes) -> tuple[bytes, list[bool]]:
    """All pieces put together, and whether each was text."""
    found, texts, start = b"", list[bool](), 0
    while True:
        piece = piece_of("a", data, start)
        assert (piece.bytes, piece.start) == (len(data), start)
        assert (piece.text is None) != (piece.base64 is None)
        found += b64decode(piece.base64 or "") if piece.text is None else piece.text.encode()
        texts.append(piece.text is not None)
        if piece.next is None:
            return found, texts
        assert piece.next > start
        start = piece.next


@pytest.mark.parametrize("shift", range(5))
@pytest.mark.parametrize("character", ["x", "ß", "€", "🐚"])
def test_text_stays_text(character: str, shift: int) -> None:
    """Wherever a piece ends."""
    data = ("." * shift + character * (2 * PIECE // len(character.encode()) + 3)).encode()
    assert whole(data) == (data, [True] * 3)


def test_no_text() -> None:
    """Bytes of every kind; text that ends in half a character; nothing at all; behind its end."""
    for data in (bytes(range(256)) * 1000, b"\xff" * (PIECE + 1), b"\x80", "€".encode()[:2]):
        found, texts = whole(data)
        assert (found, any(texts)) == (data, False)
    assert whole(b"x" * PIECE + b"\xe2\x82") == (b"x" * PIECE + b"\xe2\x82", [True, False])
    assert piece_of("a", b"", 0).text == ""
    behind = piece_of("a", b"abc", 7)
    assert (behind.text, behind.next) == ("", None)
