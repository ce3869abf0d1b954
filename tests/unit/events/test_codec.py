"""How bytes are stored: as they are, or smaller; and what was stored otherwise is refused, never guessed."""

import zlib
from hashlib import sha256, shake_256

import pytest
from msgspec.structs import replace

from limpet.errors import NewerVersion, Tampered, WrongKeys
from limpet.events import PLAIN, START, Event, Packed, Plain, inline, seal, verify
from limpet.events import bodies as b
from limpet.events.codec import SMALLEST_DEFLATED, deflated, inflated

TEXT = b"the same words again " * 100
NOISE = shake_256(b"limpet").digest(2_000)


def test_plain_bytes_are_stored_as_they_are() -> None:
    """However well they would compress."""
    assert PLAIN.pack(TEXT, "event:r1:1") == Packed("", "", TEXT)
    assert PLAIN.unpack(Packed("", "", TEXT), "event:r1:1") == TEXT
    assert not PLAIN.is_private


@pytest.mark.parametrize("codec", [Plain(), Plain(compress=True)], ids=["asked for", "always"])
def test_compression_is_used_where_it_pays(codec: Plain) -> None:
    """Asked for once, or for everything; noise and small things stay as they are."""
    packed = codec.pack(TEXT, "blob:x:0", deflate=True)
    assert (packed.codec, packed.key_id) == ("z", "")
    assert len(packed.data) < len(TEXT) // 4
    assert codec.unpack(packed, "blob:x:0") == TEXT
    for data in (NOISE, b"", b"a", b"a" * (SMALLEST_DEFLATED - 1)):
        assert codec.pack(data, "blob:x:0", deflate=True) == Packed("", "", data)


def test_a_compressing_codec_compresses_without_being_asked() -> None:
    """And anybody can read what it wrote."""
    packed = Plain(compress=True).pack(TEXT, "event:r1:1")
    assert packed.codec == "z"
    assert PLAIN.unpack(packed, "event:r1:1") == TEXT


def test_what_saves_less_than_a_sixteenth_is_not_compressed() -> None:
    """Reading it would cost more than it saved."""
    half = NOISE + bytes(100)
    assert len(zlib.compress(half, 1)) < len(half)
    assert deflated(half) is None
    assert deflated(NOISE + bytes(2_000)) is not None


@pytest.mark.parametrize("name", ["zstd", "zlib+zlib", "z+z", "ZLIB", " "])
def test_an_unknown_codec_is_refused(name: str) -> None:
    """Its bytes are not taken for what they are not."""
    with pytest.raises(ValueError, match="unknown codec"):
        inflated(name, TEXT)


def test_what_was_compressed_in_a_frame_is_read() -> None:
    """As it was at first."""
    assert inflated("zlib", zlib.compress(TEXT)) == TEXT


@pytest.mark.parametrize("data", [b"", b"not zlib", zlib.compress(TEXT)[:-3], zlib.compress(TEXT)[2:-7]])
@pytest.mark.parametrize("name", ["z", "zlib"])
def test_damaged_compression_is_refused(name: str, data: bytes) -> None:
    """Half of it is not the whole."""
    with pytest.raises(ValueError, match="decompressed"):
        inflated(name, data)


def test_what_was_encrypted_needs_its_key() -> None:
    """A store without keys does not show cipher text for text."""
    with pytest.raises(WrongKeys) as error:
        PLAIN.unpack(Packed("aes-256-gcm-siv", "k1", b"x"), "event:r1:1")
    assert "'k1'" in error.value.reason


def test_blobs_are_named_by_sha_256() -> None:
    """Whoever has the content can check the name."""
    hasher = PLAIN.hasher()
    hasher.update(TEXT[:10])
    hasher.update(TEXT[10:])
    assert hasher.hexdigest() == sha256(TEXT).hexdigest()


def test_words_are_not_hidden_in_a_plain_store() -> None:
    """Hiding and revealing change nothing."""
    assert PLAIN.hide("refund", "goal:r1") == PLAIN.hide("refund", "label", findable=True) == "refund"
    assert PLAIN.reveal("refund", "goal:r1") == "refund"


def test_a_compressed_event_is_chained_and_read_like_any_other() -> None:
    """Its codec is part of what is hashed."""
    body = b.ValueRecorded(name="v#1", value=inline("again " * 500))
    event = seal(START, "r1", body, time=1, fence=1, actor="w", codec=Plain(compress=True)).event
    assert event.codec == "json+z"
    assert len(event.body) < 500
    assert event.decode() == body
    assert verify([event]) == event.head


@pytest.mark.parametrize("codec", ["json+zstd", "json+zlib", "json+z"])
def test_an_event_that_cannot_be_unpacked_is_tampered_with(codec: str) -> None:
    """It names its run and place."""
    event = seal(START, "r1", b.ValueRecorded(name="v#1", value=inline(1)), time=1, fence=1, actor="w").event
    with pytest.raises(Tampered) as error:
        _with_codec(event, codec).decode()
    assert (error.value.run, error.value.seq) == ("r1", 1)


def test_an_event_of_another_base_is_unknown() -> None:
    """A newer version may have written it."""
    event = seal(START, "r1", b.ValueRecorded(name="v#1", value=inline(1)), time=1, fence=1, actor="w").event
    with pytest.raises(NewerVersion, match="cbor"):
        _with_codec(event, "cbor").decode()


def _with_codec(event: Event, codec: str) -> Event:
    return replace(event, codec=codec)
