"""Values and files: packed into events, or stored as blobs that events refer to."""

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Any

from msgspec import DecodeError, Raw, UnsetType

from limpet.clock import Duration, microseconds
from limpet.errors import BlobDamaged, InvalidValue, NotFound
from limpet.events import Packed, Payload, canonical
from limpet.secret import hidden
from limpet.stores import writes
from limpet.stores.api.base import StoreBase
from limpet.stores.blobs import (
    CHUNK,
    INLINE,
    Blob,
    is_name,
    pack_blob,
    pack_chunk,
    unpack_chunk,
    whole_blob,
)

__all__ = ["Payloads"]


class Payloads(StoreBase):
    """Values and blobs of a store."""

    def pack(self, value: object, *, inline: int = INLINE) -> tuple[Payload, tuple[Blob, ...]]:
        """Return a value as a payload: inline if it is small, else with the blob to pass to the append."""
        return self.pack_canonical(self.encode(value), inline=inline)

    def encode(self, value: object) -> bytes:
        """Return a value as it is recorded: as canonical JSON, without what redaction hides."""
        return canonical(self.redaction.value(hidden(value)))

    def pack_canonical(self, data: bytes, *, inline: int = INLINE) -> tuple[Payload, tuple[Blob, ...]]:
        """Return an encoded value as a payload, with its blob if the value is large."""
        if len(data) <= inline:
            return Payload(json=Raw(data)), ()
        blob = self._recent_values.blob_of(data)
        if blob is None:
            blob = pack_blob(self.codec, data)
            self._recent_values.keep_packed(blob, data, is_private=self.codec.is_private)
        return Payload(blob=blob.id, bytes=blob.size), (blob,)

    async def unpack(self, payload: Payload) -> Any:
        """Return the value of a payload, inline or in a blob."""
        if isinstance(payload.blob, UnsetType):
            return payload.value()
        there = await self._small_values([payload])
        if payload.blob in there:
            return _value(payload.blob, there[payload.blob])
        return _value(payload.blob, b"".join([part async for part in self.read_blob(payload.blob)]))

    async def unpack_all(self, payloads: Sequence[Payload]) -> list[Any]:
        """Return the values of some payloads; those in small blobs are read together."""
        there = await self._small_values(payloads)
        return [
            _value(each.blob, there[each.blob]) if each.blob in there else await self.unpack(each) for each in payloads
        ]

    async def _small_values(self, payloads: Sequence[Payload]) -> dict[object, bytes]:
        """Return the contents of blobs of one chunk, by name: from memory, or else read together."""
        names = {each.blob for each in payloads if isinstance(each.blob, str) and each.size <= CHUNK}
        there: dict[object, bytes] = {
            name: data for name in names if (data := self._recent_values.get(name)) is not None
        }
        wanted = [name for name in names if name not in there and is_name(name)]
        for row, chunk in await self._ask(lambda: self._backend.small_blobs(wanted)) if wanted else ():
            there[row.id] = data = whole_blob(self.codec, row, chunk)
            self._recent_values.keep_stored(row.id, data)
        return there

    async def put_blob(self, data: bytes | AsyncIterable[bytes]) -> Payload:
        """Store content before the event that will refer to it. Without a reference it is collected after an hour."""
        if isinstance(data, bytes):
            blob = pack_blob(self.codec, data)
            await self._upload(blob)
            return Payload(blob=blob.id, bytes=blob.size)
        upload, hasher, size, place = self._ids.new(), self.codec.hasher(), 0, 0
        async for part in _chunks(data):
            hasher.update(part)
            size += len(part)
            chunk = pack_chunk(self.codec, upload, place, part)
            await self._submit(writes.PutChunk(upload=upload, place=place, chunk=chunk))
            place += 1
        name = hasher.hexdigest()
        await self._submit(writes.EndUpload(upload=upload, blob=name, size=size, chunks=place))
        return Payload(blob=name, bytes=size)

    async def read_blob(self, blob: str) -> AsyncIterator[bytes]:
        """Yield a blob's content, chunk by chunk. Raises BlobDamaged, at the end at the latest, if it is not intact."""
        row = await self._ask(lambda: self._backend.blob(blob)) if is_name(blob) else None
        if row is None:
            raise NotFound(what="blob", id=blob)
        hasher, size = self.codec.hasher(), 0
        for place in range(row.chunks):
            data = unpack_chunk(self.codec, row, place, await self._chunk(blob, place))
            hasher.update(data)
            size += len(data)
            yield data
        if hasher.hexdigest() != blob:
            raise BlobDamaged(blob=blob, reason="the content does not match its name")
        if size != row.size:
            raise BlobDamaged(blob=blob, reason=f"has {size} bytes, but its row says {row.size}")

    async def read_ends(self, blob: str, most: int) -> tuple[bytes, bytes]:
        """Return the first and the last bytes of a blob's content, at most `most` of each; they do not overlap.

        Only the chunks at both ends are read, so the hash of the whole is not checked. Raises NotFound.
        """
        row = await self._ask(lambda: self._backend.blob(blob)) if is_name(blob) else None
        if row is None:
            raise NotFound(what="blob", id=blob)

        async def chunk(place: int) -> bytes:
            return unpack_chunk(self.codec, row, place, await self._chunk(blob, place))

        first = (await chunk(0))[:most] if row.chunks else b""
        last, place = b"", row.chunks
        while len(last) < most and place > 0:
            place -= 1
            last = await chunk(place) + last
        return first, last[-min(most, row.size - len(first)) :] if row.size > len(first) else b""

    async def collect_blobs(self, *, grace: Duration = "1h") -> int:
        """Delete the blobs that have had no references for this long; return their number."""
        collected, limit = 0, 500
        self._recent_values.clear()
        while True:
            found = await self._submit(writes.Collect(grace=microseconds(grace), limit=limit))
            collected += found
            if found < limit:
                return collected

    async def _small(self, blobs: Sequence[Blob]) -> tuple[Blob, ...]:
        """Upload large blobs; return the small ones, each once, which are sent with what refers to them."""
        for blob in blobs:
            if len(blob.chunks) > 1:
                await self._upload(blob)
        return tuple({blob.id: blob for blob in blobs if len(blob.chunks) == 1}.values())

    async def _upload(self, blob: Blob) -> None:
        for place, chunk in enumerate(blob.chunks):
            await self._submit(writes.PutChunk(upload=blob.id, place=place, chunk=chunk))
        chunks = len(blob.chunks)
        await self._submit(writes.EndUpload(upload=blob.id, blob=blob.id, size=blob.size, chunks=chunks))

    async def _chunk(self, blob: str, place: int) -> Packed:
        found = await self._ask(lambda: self._backend.chunk(blob, place))
        if found is None:
            raise NotFound(what="blob", id=blob)
        return found


def _value(blob: object, data: bytes) -> Any:
    """Return a blob's content, if it is JSON."""
    try:
        return Payload(json=Raw(data)).value()
    except DecodeError as error:
        raise InvalidValue(path="$", reason=f"blob {blob} is not JSON") from error


async def _chunks(parts: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the same bytes in parts of one size, at least one part."""
    gathered = bytearray()
    async for part in parts:
        gathered += part
        while len(gathered) > CHUNK:
            yield bytes(gathered[:CHUNK])
            del gathered[:CHUNK]
    yield bytes(gathered)
