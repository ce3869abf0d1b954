"""Conversations: append by compare-and-set, and read from the end.

Messages are never rewritten. A summary replaces a range of messages when reading, unless it was withdrawn; the messages
themselves stay in the log.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from limpet.errors import NotFound
from limpet.events import AnyBody, Event, Head, Payload, seal_all
from limpet.events import bodies as b
from limpet.stores import Appended, Create, Extend, Leg, Missed, Store, Taken
from limpet.stores.blobs import Blob

__all__ = ["ConversationWriter", "Entry", "OutgoingMessages", "Summary", "entries", "latest", "replaced"]

PAGE = 100


# The heads of conversations to which this process has written, of each store; the newest ones.
_HEADS: WeakKeyDictionary[Store, OrderedDict[str, Head]] = WeakKeyDictionary()
MOST_HEADS = 1_000


class ConversationWriter:
    """A conversation to write to. It learns the current head when an append is refused."""

    def __init__(self, store: Store, id: str, now: Callable[[], int], actor: str, first: b.ConversationCreated) -> None:
        self.id = id
        self._store, self._now, self._actor, self._first = store, now, actor, first
        self.head: Head | None = None
        """The head as far as known; None if the conversation does not exist yet."""
        self._is_known = False

    async def look(self) -> None:
        """Load the head, once."""
        if not self._is_known:
            await self.look_again()

    async def look_again(self) -> Head | None:
        """Load the head, and return it."""
        try:
            self.adopt((await self._store.get(self.id)).head)
        except NotFound:
            self.adopt(None)
        return self.head

    def adopt(self, head: Head | None) -> None:
        """Continue after a head that was just read."""
        self.head, self._is_known = head, True

    def recall(self) -> bool:
        """Continue after the last head that this process wrote, and return whether there is one.

        It may be old: the conversation may have been continued, deleted or created anew since. Then an append is
        refused, and the head must be loaded.
        """
        heads = _HEADS.get(self._store)
        head = None if heads is None else heads.get(self.id)
        if head is not None:
            self.adopt(head)
        return head is not None

    @property
    def next(self) -> int:
        """Sequence of the next message."""
        return self.head.seq + 1 if self.head is not None else 2

    def leg(self, bodies: Sequence[AnyBody]) -> Leg:
        """Return the leg that appends these bodies, or creates the conversation with them."""
        if self.head is None:
            return Create(run=self.id, bodies=(self._first, *bodies), actor=self._actor)
        now, codec = self._now(), self._store.codec
        events = seal_all(self.head, self.id, bodies, time=now, fence=0, actor=self._actor, codec=codec)
        return Extend(run=self.id, after=self.head, fence=None, events=events)

    def hear(self, refused: Missed | Taken) -> bool:
        """Adopt the head that another writer has created, and return whether the append was refused because of that."""
        match refused:
            case Missed() if refused.run == self.id:
                self.head = refused.events[-1].event.head
            case Taken() if refused.row.id == self.id:
                self.head = refused.row.head
            case _:
                return False
        return True

    def landed(self, leg: Leg) -> None:
        """Note that a leg was written."""
        if isinstance(leg, Extend):
            self.head = leg.events[-1].event.head
            heads = _HEADS.setdefault(self._store, OrderedDict())
            heads[self.id] = self.head
            heads.move_to_end(self.id)
            if len(heads) > MOST_HEADS:
                heads.popitem(last=False)
        else:
            self._is_known = False

    async def append(self, *bodies: AnyBody, blobs: Sequence[Blob] = ()) -> int:
        """Append messages, retrying if others write first, and return the sequence of the first one."""
        await self.look()
        while True:
            leg, seq = self.leg(bodies), self.next
            done = await self._store.append(leg, blobs=blobs)
            if isinstance(done, Appended):
                self.landed(leg)
                return seq
            self.hear(done)


class OutgoingMessages(NamedTuple):
    """Messages that a run adds to its conversation."""

    bodies: tuple[AnyBody, ...]
    note: Callable[[int], AnyBody]
    """Makes the event for the run's own log from the sequence of the first message."""


class Entry(NamedTuple):
    """A message and its position."""

    seq: int
    time: int
    message: b.MessageAdded

    @property
    def content(self) -> Payload:
        """Content of the message."""
        return self.message.content


class Summary(NamedTuple):
    """A summary that replaces a range of messages."""

    seq: int
    time: int
    compacted: b.ConversationCompacted

    @property
    def content(self) -> Payload:
        """Content of the summary."""
        assert self.compacted.summary is not None  # A withdrawn summary is not an entry.
        return self.compacted.summary


async def entries(
    store: Store, conversation: str, *, upto: int | None = None, whole: bool = False
) -> AsyncIterator[Entry | Summary]:
    """Yield a conversation, newest first: messages, and summaries in place of the messages that they replace.

    `whole` yields all messages and no summaries. Only as much is read as the caller consumes: replaced messages are
    skipped, except pinned ones.
    """
    before = None if upto is None else upto + 1
    found = _Found()
    while page := await store.read(conversation, before=before, limit=PAGE, backwards=True):
        for event in page:
            before = event.seq
            summary = None if whole else found.summary_of(event.seq)
            if summary is not None:
                yield summary
                for seq in reversed(summary.compacted.pinned):
                    yield await _entry(store, conversation, seq)
                before = summary.compacted.first
                if summary.compacted.previous is not None:
                    found.learn(*await _at(store, conversation, summary.compacted.previous))
                break
            body = store.decode(event)
            found.learn(event, body)
            if isinstance(body, b.MessageAdded):
                yield Entry(event.seq, event.time, body)


class _Found:
    """Summaries found while reading backwards, and those that were withdrawn since."""

    def __init__(self) -> None:
        self._standing: list[Summary] = []
        self._gone: set[tuple[int, int]] = set()

    def learn(self, event: Event, body: AnyBody) -> None:
        if not isinstance(body, b.ConversationCompacted):
            return
        span = (body.first, body.last)
        if body.summary is None:
            self._gone.add(span)
        elif span not in self._gone and not any(_within(body, each.compacted) for each in self._standing):
            self._standing.append(Summary(event.seq, event.time, body))

    def summary_of(self, seq: int) -> Summary | None:
        """Return the summary that replaces an event, or None."""
        return next((each for each in self._standing if each.compacted.first <= seq <= each.compacted.last), None)


async def _at(store: Store, conversation: str, seq: int) -> tuple[Event, AnyBody]:
    [event] = await store.read(conversation, after=seq - 1, limit=1)
    return event, store.decode(event)


async def _entry(store: Store, conversation: str, seq: int) -> Entry:
    event, body = await _at(store, conversation, seq)
    assert isinstance(body, b.MessageAdded)
    return Entry(event.seq, event.time, body)


def replaced(
    gone: Collection[int], shown: Iterable[int], summaries: Iterable[Summary], summary: Payload
) -> b.ConversationCompacted:
    """Return the event that replaces messages by a summary, also those that earlier summaries have replaced.

    `shown` are all messages that no summary has replaced; those in the range that stay are still shown.
    """
    before = [each.compacted for each in summaries]
    first, last = min([*gone, *(each.first for each in before)]), max([*gone, *(each.last for each in before)])
    return b.ConversationCompacted(
        first=first,
        last=last,
        summary=summary,
        level=max((each.level for each in before), default=0) + 1,
        pinned=tuple(sorted({seq for seq in shown if first <= seq <= last} - set(gone))),
    )


def _within(one: b.ConversationCompacted, other: b.ConversationCompacted) -> bool:
    return other.first <= one.first and one.last <= other.last


async def latest(
    store: Store, conversation: str, *, last: int | None, upto: int | None = None, whole: bool = False
) -> list[Entry | Summary]:
    """Return the newest messages of a conversation, in order, with the summary of the messages before them."""
    found: list[Entry | Summary] = []
    try:
        async for each in entries(store, conversation, upto=upto, whole=whole):
            found.append(each)
            if last is not None and len(found) >= last:
                break
    except NotFound:
        return []
    return found[::-1]
