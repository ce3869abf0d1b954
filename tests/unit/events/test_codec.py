"""Codecs: bytes are stored plain or compressed, and unknown codecs are refused."""

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


def test_a_plain_codec_stores_bytes_unchanged() -> None:
    """This applies to compressible bytes, too."""
    assert PLAIN.pack(TEXT, "event:r1:1") == Packed("", "", TEXT)
    assert PLAIN.unpack(Packed("", "", TEXT), "event:r1:1") == TEXT
    assert not PLAIN.is_private


@pytest.mark.parametrize("codec", [Plain(), Plain(compress=True)], ids=["asked for", "always"])
def test_compression_is_used_only_if_it_saves_space(codec: Plain) -> None:
    """Noise and small values are stored unchanged."""
    packed = codec.pack(TEXT, "blob:x:0", deflate=True)
    assert (packed.codec, packed.key_id) == ("z", "")
    assert len(packed.data) < len(TEXT) // 4
    assert codec.unpack(packed, "blob:x:0") == TEXT
    for data in (NOISE, b"", b"a", b"a" * (SMALLEST_DEFLATED - 1)):
        assert codec.pack(data, "blob:x:0", deflate=True) == Packed("", "", data)


def test_a_compressing_codec_compresses_by_default() -> None:
    """Every codec can read the result."""
    packed = Plain(compress=True).pack(TEXT, "event:r1:1")
    assert packed.codec == "z"
    assert PLAIN.unpack(packed, "event:r1:1") == TEXT


def test_savings_below_a_sixteenth_are_not_compressed() -> None:
    """Reading would cost more than the space saved."""
    half = NOISE + bytes(100)
    assert len(zlib.compress(half, 1)) < len(half)
    assert deflated(half) is None
    assert deflated(NOISE + bytes(2_000)) is not None


@pytest.mark.parametrize("name", ["zstd", "zlib+zlib", "z+z", "ZLIB", " "])
def test_an_unknown_codec_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown codec"):
        inflated(name, TEXT)


def test_zlib_frames_of_older_versions_are_read() -> None:
    """Older versions stored zlib frames."""
    assert inflated("zlib", zlib.compress(TEXT)) == TEXT


@pytest.mark.parametrize("data", [b"", b"not zlib", zlib.compress(TEXT)[:-3], zlib.compress(TEXT)[2:-7]])
@pytest.mark.parametrize("name", ["z", "zlib"])
def test_damaged_compressed_data_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(ValueError, match="decompressed"):
        inflated(name, data)


def test_encrypted_data_cannot_be_read_without_its_key() -> None:
    """A store without keys raises WrongKeys."""
    with pytest.raises(WrongKeys) as error:
        PLAIN.unpack(Packed("aes-256-gcm-siv", "k1", b"x"), "event:r1:1")
    assert "'k1'" in error.value.reason


def test_blobs_are_named_by_sha_256() -> None:
    hasher = PLAIN.hasher()
    hasher.update(TEXT[:10])
    hasher.update(TEXT[10:])
    assert hasher.hexdigest() == sha256(TEXT).hexdigest()


def test_a_plain_codec_does_not_hide_text() -> None:
    assert PLAIN.hide("refund", "goal:r1") == PLAIN.hide("refund", "label", findable=True) == "refund"
    assert PLAIN.reveal("refund", "goal:r1") == "refund"


def test_a_compressed_event_can_be_verified_and_read() -> None:
    """The hash covers the codec's name."""
    body = b.ValueRecorded(name="v#1", value=inline("again " * 500))
    event = seal(START, "r1", body, time=1, fence=1, actor="w", codec=Plain(compress=True)).event
    assert event.codec == "json+z"
    assert len(event.body) < 500
    assert event.decode() == body
    assert verify([event]) == event.head


@pytest.mark.parametrize("codec", ["json+zstd", "json+zlib", "json+z"])
def test_an_event_that_cannot_be_unpacked_raises_tampered(codec: str) -> None:
    """The error has the run and the sequence."""
    event = seal(START, "r1", b.ValueRecorded(name="v#1", value=inline(1)), time=1, fence=1, actor="w").event
    with pytest.raises(Tampered) as error:
        _with_codec(event, codec).decode()
    assert (error.value.run, error.value.seq) == ("r1", 1)


def test_an_event_in_an_unknown_encoding_raises_newer_version() -> None:
    """A newer version may have written it."""
    event = seal(START, "r1", b.ValueRecorded(name="v#1", value=inline(1)), time=1, fence=1, actor="w").event
    with pytest.raises(NewerVersion, match="cbor"):
        _with_codec(event, "cbor").decode()


def _with_codec(event: Event, codec: str) -> Event:
    return replace(event, codec=codec)
