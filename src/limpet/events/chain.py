"""The hash chain of a log: number, seal and verify events.

An event's hash covers the previous hash, its envelope and its stored bytes. Any change, swap, insertion or deletion
inside a log is therefore detected. The hash covers the run's public id, not its number in a store, which changes when a
run is loaded into another store.
"""

from collections.abc import Iterable
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import astuple

from limpet.errors import InvalidValue, NewerVersion, Tampered
from limpet.events.codec import PLAIN, Codec, Packed
from limpet.events.values import encode
from limpet.events.vocabulary import VOCABULARY, AnyBody

__all__ = ["GENESIS", "START", "Event", "Head", "Sealed", "seal", "seal_all", "verify"]

GENESIS = bytes(32)
_DOMAIN = b"limpet.event.1\0"
_BASE = "json"


class Head(Struct, frozen=True, gc=False):
    """The end of a log: sequence, hash and time of its last event. The next event is sealed to it."""

    seq: int
    hash: bytes
    time: int


START = Head(0, GENESIS, 0)


class Event(Struct, frozen=True, gc=False):
    """An immutable event, as stored."""

    run: str
    seq: int
    time: int
    """Appender's estimate of the store's clock, in microseconds; never before the previous event. No decision depends
    on it.
    """
    kind: str
    version: int
    fence: int
    actor: str
    codec: str
    """How `body` was made from JSON: `json` is unchanged, `json+z` is compressed."""
    key_id: str
    """The key that the body is encrypted with, or ""."""
    body: bytes
    hash: bytes

    @property
    def head(self) -> Head:
        """The log's head if this event is its last."""
        return Head(self.seq, self.hash, self.time)

    def decode(self, codec: Codec = PLAIN) -> AnyBody:
        """Return the body, in the newest version of its kind."""
        if codec is PLAIN and self.codec == _BASE and not self.key_id:  # The most common case.
            return VOCABULARY.decode(self.kind, self.version, self.body)
        base, _, how = self.codec.partition("+")
        if base != _BASE:
            raise NewerVersion(
                what=f"event {self.kind!r} version {self.version}", reason=f"unknown codec {self.codec!r}"
            )
        try:
            data = codec.unpack(Packed(how, self.key_id, self.body), _about(self.run, self.seq))
        except ValueError as error:
            raise Tampered(run=self.run, seq=self.seq, reason=str(error)) from error
        return VOCABULARY.decode(self.kind, self.version, data)


class Sealed(Struct, frozen=True, gc=False):
    """An event on its way to a store, with its decoded body."""

    event: Event
    body: AnyBody


def seal(  # noqa: PLR0913 - the parts of an envelope
    head: Head, run: str, body: AnyBody, *, time: int, fence: int, actor: str, codec: Codec = PLAIN
) -> Sealed:
    """Number, pack and hash a body as the event after `head`."""
    [sealed] = seal_all(head, run, (body,), time=time, fence=fence, actor=actor, codec=codec)
    return sealed


def seal_all(  # noqa: PLR0913
    head: Head, run: str, bodies: Iterable[AnyBody], *, time: int, fence: int, actor: str, codec: Codec = PLAIN
) -> tuple[Sealed, ...]:
    """Number, pack and hash bodies as the events after `head`, in order."""
    seq, hash, time = head.seq, head.hash, max(time, head.time)
    sealed: list[Sealed] = []
    for body in bodies:
        kind, seq = VOCABULARY.kind_of(body), seq + 1
        try:
            data, how, key_id = encode(body), _BASE, ""
        except UnicodeEncodeError as error:
            raise InvalidValue(path=f"$ of {kind.name}", reason="contains a lone surrogate") from error
        if codec is not PLAIN:
            packing, key_id, data = codec.pack(data, _about(run, seq))
            how = f"{_BASE}+{packing}" if packing else _BASE
        envelope = (run, seq, time, kind.name, kind.version, fence, actor, how, key_id)
        hash = _hash(hash, envelope, data)
        sealed.append(Sealed(Event(*envelope, data, hash), body))
    return tuple(sealed)


def verify(events: Iterable[Event], after: Head = START, fence: int = 0) -> Head:
    """Check sequence, time, fence and hash of each event after a head; return the last head. Raises Tampered."""
    for event in events:
        if event.seq != after.seq + 1:
            raise Tampered(run=event.run, seq=event.seq, reason=f"follows event {after.seq}")
        if event.hash != _hash(after.hash, astuple(event)[:9], event.body):
            raise Tampered(run=event.run, seq=event.seq, reason="the hash does not match")
        if event.time < after.time or event.fence < fence:
            raise Tampered(
                run=event.run, seq=event.seq, reason="the time or fence is before that of the previous event"
            )
        after, fence = event.head, event.fence
    return after


def _about(run: str, seq: int) -> str:
    return f"event:{run}:{seq}"


def _hash(before: bytes, envelope: tuple[str | int | bytes, ...], body: bytes) -> bytes:
    """Return the hash of an event. The envelope is its fields up to `key_id`, in order."""
    return sha256(b"".join((_DOMAIN, before, encode(envelope), b"\0", body))).digest()
