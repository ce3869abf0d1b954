"""Artifacts read in pieces: no character is split, no byte is lost, and binary data comes as base64."""

from base64 import b64decode

import pytest

import limpet
from limpet.service.artifacts import piece_of
from limpet.stores.blobs import CHUNK

PIECE = 1_000


async def pieces(data: bytes, limit: int = PIECE) -> tuple[bytes, list[bool]]:
    """Store an artifact, read it in pieces, and return its bytes and whether each piece was text."""

    @limpet.agent(name="pieces_keeper")
    async def keeper(run: limpet.Run, _: None) -> str:
        return (await run.artifact(data, type="any", summary="")).artifact_id

    async with limpet.open("memory:", agents=[keeper]) as app:
        artifact = await app.run(keeper, id="r")
        return await read_all(app, artifact, data, limit)


async def read_all(app: limpet.App, artifact: str, data: bytes, limit: int) -> tuple[bytes, list[bool]]:
    """Read an existing artifact in pieces."""
    found, texts, start = b"", list[bool](), 0
    while True:
        piece = await piece_of(app.store, "r", artifact, start=start, limit=limit, raw=True)
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
async def test_a_piece_never_splits_a_character(character: str, shift: int) -> None:
    data = ("." * shift + character * (2 * PIECE // len(character.encode()) + 3)).encode()
    assert await pieces(data) == (data, [True] * 3)


async def test_the_smallest_piece_contains_one_character() -> None:
    text = "a🐚ß€🐚"
    assert await pieces(text.encode(), limit=4) == (text.encode(), [True] * 5)


async def test_a_piece_may_span_stored_chunks() -> None:
    data = bytes(range(256)) * (CHUNK // 128)
    assert (await pieces(data, limit=CHUNK - 7))[0] == data


async def test_binary_data_is_returned_as_base64() -> None:
    """Also text that ends in half a character. An empty artifact is text."""
    for data in (bytes(range(128, 256)) * 30, b"\xff" * (PIECE + 1), b"\x80", "€".encode()[:2]):
        found, texts = await pieces(data)
        assert (found, any(texts)) == (data, False)
    half = b"x" * PIECE + b"\xe2\x82"
    assert await pieces(half) == (half, [True, False])
    assert await pieces(b"") == (b"", [True])
