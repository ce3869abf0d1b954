"""How much of a conversation there was when something happened to a run that is in it."""

from collections.abc import AsyncIterable

from limpet.errors import NotFound
from limpet.events import Event
from limpet.events import bodies as b
from limpet.service.moments import Point, point
from limpet.stores import Store

__all__ = ["said_until"]


async def said_until(store: Store, run: str, seq: int, conversation: str) -> int:
    """The last message there was at an event of a run, 0 if there was none: by the time, which may go wrong.

    So it is all that the run had said itself, and nothing that it said later.
    """
    [event] = await store.read(run, after=seq - 1, limit=1)
    try:
        upto = await point(store, conversation, Point(at=event.time))
    except NotFound:
        upto = 0
    earlier = await _first(store, _back(store, run, seq), conversation)
    later = await _first(store, store.log(run, after=seq), conversation)
    if earlier is not None:
        upto = max(upto, earlier.message + earlier.count - 1)
    return upto if later is None else min(upto, later.message - 1)


async def _first(store: Store, events: AsyncIterable[Event], conversation: str) -> b.MessageSaid | None:
    """The first of some events that says something in a conversation."""
    async for event in events:
        body = store.decode(event) if event.kind == "message.said" else None
        if isinstance(body, b.MessageSaid) and body.conversation == conversation:
            return body
    return None


async def _back(store: Store, run: str, seq: int) -> AsyncIterable[Event]:
    """The events of a run up to one, the newest first."""
    before: int | None = seq + 1
    while page := await store.read(run, before=before, backwards=True):
        for event in page:
            yield event
        before = page[-1].seq
