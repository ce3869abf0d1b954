"""The messages of a conversation that may be in a prompt, read once: a later turn reads only what was added since.

Events never change, and the hash of an event covers those before it. So messages that were read up to an event are
still the same if the store has that event with the same hash. After a summary, everything is read again.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from msgspec import Struct

from limpet.context.window import BYTES, EACH, tokens_of
from limpet.engine.run.conversation import text_of
from limpet.events import Event, Head, Payload
from limpet.events import bodies as b
from limpet.journal import Entry, Summary, entries
from limpet.llm.transcript import StoredMessage, message_of
from limpet.stores import Store

__all__ = ["MessageCache", "ReadEntry", "ReadMessages", "cache_of", "read_messages"]

# Maximum number of events that a cached conversation is extended by; after more of them, it is read from its end.
MOST_NEW = 100
# Position in a conversation that does not exist.
NOWHERE = Head(0, b"", 0)
# Maximum size of all cached messages of a store, in bytes of text.
MOST_BYTES = 32_000_000


class ReadEntry(Struct):
    """A message or a summary with its content."""

    entry: Entry | Summary
    size: int
    """Approximate size in tokens; 0 for a summary."""
    said: StoredMessage | None = None
    """The message; None for a summary."""
    reply: Payload | None = None
    """The recorded reply of the message, which has its reasoning data."""
    text: str = ""
    """Text of a summary."""
    reasoned: StoredMessage | None = None
    """The message with its reasoning data, once that was read."""

    @property
    def is_result(self) -> bool:
        """Whether it is the result of a tool call."""
        return isinstance(self.entry, Entry) and self.entry.message.role == "tool"


class ReadMessages(NamedTuple):
    """The newest messages of a conversation up to an event, in order."""

    head: Head
    """Position of the event."""
    entries: tuple[ReadEntry, ...]
    size: int
    """Approximate size of all entries in tokens."""
    has_older: bool
    """Whether there are older messages that were not read."""

    @property
    def bytes(self) -> int:
        """Approximate size of the text."""
        return self.size * BYTES


async def read_messages(store: Store, conversation: str, *, upto: int, most: int) -> ReadMessages:
    """Read a conversation backwards from a position, until there are more than `most` tokens."""
    found: list[ReadEntry] = []
    size = 0
    async for each in entries(store, conversation, upto=upto):
        found.append(_unread(each))
        if size > most:
            break
        size += found[-1].size
    kept, size, is_cut = _newest(found[::-1], most)
    read = await _with_contents(store, kept, ())
    [last] = await store.read(conversation, after=upto - 1, limit=1) if upto else [None]
    return ReadMessages(NOWHERE if last is None else last.head, read, size, is_cut)


class MessageCache:
    """The messages of some conversations of a store, as they were last read."""

    def __init__(self) -> None:
        self._read: OrderedDict[tuple[str, int], ReadMessages] = OrderedDict()
        self._bytes = 0

    async def read(self, store: Store, conversation: str, *, upto: int, most: int) -> ReadMessages:
        """Return the same as `read_messages`; read only new events if possible."""
        key = conversation, most
        known = self._read.get(key)
        found = None
        if known is not None and known.head.seq <= upto < known.head.seq + MOST_NEW:
            found = await _extended(store, conversation, known, upto, most)
        if found is None:
            found = await read_messages(store, conversation, upto=upto, most=most)
        if known is None or known.head.seq <= upto:
            self._keep(key, found)
        return found

    async def read_newest(self, store: Store, conversation: str, *, most: int) -> ReadMessages | None:
        """Return the messages up to the current end, with one query; None if too few of them are known."""
        key = conversation, most
        known = self._read.get(key)
        if known is None or not known.head.seq:
            return None
        read = await store.read(conversation, after=known.head.seq - 1, limit=MOST_NEW + 1)
        if not read or len(read) > MOST_NEW:
            return None
        found = await _extended_by(store, known, read, most)
        if found is not None:
            self._keep(key, found)
        return found

    def _keep(self, key: tuple[str, int], found: ReadMessages) -> None:
        before = self._read.pop(key, None)
        self._bytes += found.bytes - (before.bytes if before is not None else 0)
        self._read[key] = found
        while self._bytes > MOST_BYTES:
            self._bytes -= self._read.popitem(last=False)[1].bytes


_CACHES: WeakKeyDictionary[Store, MessageCache] = WeakKeyDictionary()


def cache_of(store: Store) -> MessageCache:
    """Return the cache of a store, which all runs of this process share."""
    return _CACHES.setdefault(store, MessageCache())


async def _extended(store: Store, conversation: str, known: ReadMessages, upto: int, most: int) -> ReadMessages | None:
    """Return known messages with those that were added up to a position.

    Return None if they are to be read again: a summary was added, or it is another conversation by now.
    """
    read = await store.read(conversation, after=known.head.seq - 1, before=upto + 1)
    return await _extended_by(store, known, read, most) if known.head.seq + len(read) - 1 == upto else None


async def _extended_by(store: Store, known: ReadMessages, read: Sequence[Event], most: int) -> ReadMessages | None:
    """Return known messages with those in the events from the last known one on."""
    if read[0].hash != known.head.hash:
        return None
    new = read[1:]
    added: list[ReadEntry] = []
    for event in new:
        body = store.decode(event)
        if isinstance(body, b.ConversationCompacted):
            return None
        if isinstance(body, b.MessageAdded):
            added.append(_unread(Entry(event.seq, event.time, body)))
    kept, size, is_cut = _newest([*known.entries, *await _with_contents(store, added, known.entries)], most)
    return ReadMessages(read[-1].head, tuple(kept), size, known.has_older or is_cut)


def _unread(entry: Entry | Summary) -> ReadEntry:
    if isinstance(entry, Summary):
        return ReadEntry(entry, 0)
    return ReadEntry(entry, tokens_of(entry.content.size) + EACH, reply=entry.message.reply)


def _newest(found: Sequence[ReadEntry], most: int) -> tuple[Sequence[ReadEntry], int, bool]:
    """Return the newest entries, until there are more than `most` tokens, their size, and whether older ones were left
    out.

    They do not begin with results, whose calls are left out.
    """
    size, first = sum(each.size for each in found), 0
    while first < len(found) and size - found[first].size > most:
        size -= found[first].size
        first += 1
    is_cut = first > 0
    while is_cut and first < len(found) and found[first].is_result:
        size -= found[first].size
        first += 1
    return found[first:], size, is_cut


async def _with_contents(
    store: Store, found: Sequence[ReadEntry], before: Sequence[ReadEntry]
) -> tuple[ReadEntry, ...]:
    """Read the contents of entries. `before` are the entries before them, which may have the calls of results."""
    contents = await store.unpack_all([each.entry.content for each in found])
    for each, content in zip(found, contents, strict=True):
        if isinstance(each.entry, Summary):
            each.text = text_of(content)
        else:
            added = each.entry.message
            message = message_of(added.role, content, added.call or "")
            each.said = StoredMessage(each.entry.seq, message, added.pinned, added.run or "", added.repaired)
    if any(each.is_result for each in found):
        _name_tools(found, dict(_calls([*before, *found])))
    return tuple(found)


def _calls(found: Sequence[ReadEntry]) -> Iterator[tuple[str, str]]:
    """Yield the id and the tool of each call."""
    return ((call.id, call.name) for each in found if each.said is not None for call in each.said.message.calls)


def _name_tools(found: Sequence[ReadEntry], tools: dict[str, str]) -> None:
    """Add the name of its tool to each result, which some providers need."""
    for each in found:
        if each.said is not None and each.said.message.call in tools:
            each.said = each.said.with_message(tool=tools[each.said.message.call])
