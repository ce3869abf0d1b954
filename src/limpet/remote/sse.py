"""Read server-sent events. Only a line feed ends a line: JSON may contain other characters that look like one."""

from collections.abc import AsyncIterator
from typing import NamedTuple

__all__ = ["StreamMessage", "messages_of"]


class StreamMessage(NamedTuple):
    """One message of a stream."""

    event: str
    """Its name; empty for an item."""
    id: str
    """Cursor of the item."""
    data: bytes
    """The item as JSON; empty for a message that only has a cursor: where the stream begins."""


async def messages_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[StreamMessage]:
    """Yield the whole messages in the bytes of a stream. One that was cut off is dropped."""
    parts: list[bytes] = []
    async for chunk in chunks:
        if parts and b"\n" not in chunk:  # a long message, of which this is a part
            parts.append(chunk)
            continue
        *whole, left = b"".join([*parts, chunk]).split(b"\n\n")
        parts = [left]
        for text in whole:
            fields = dict(line.split(b": ", 1) for line in text.split(b"\n") if b": " in line[1:])
            if fields:
                name, id = fields.get(b"event", b"").decode(), fields.get(b"id", b"").decode()
                yield StreamMessage(name, id, fields.get(b"data", b""))
