"""Select the messages that a model sees: as many as fit, the newest first. Pure.

A tool call and its result are selected together or not at all. Omissions are marked, so that a model does not mistake a
part for the whole.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from limpet.events import Limits

__all__ = [
    "EACH",
    "Item",
    "Selected",
    "bound_results",
    "has_outgrown",
    "oldest",
    "ranges_of",
    "select",
    "short",
    "tokens",
    "tokens_of",
    "units",
]

# Bytes of text per token. This is low, so that an estimate is rather too high than too low.
BYTES = 3
# Tokens of a message besides its text.
EACH = 8
# Maximum size of the mark in place of omitted text, in bytes, and the least that a text can be cut to, in tokens.
MARK = 64
LEAST = 30


def tokens(text: str) -> int:
    """Estimate the number of tokens of a text, rather too high than too low."""
    return tokens_of(len(text.encode(errors="replace")))


def tokens_of(bytes: int) -> int:
    """Estimate the number of tokens of this many bytes of text."""
    return -(-bytes // BYTES)


def short(text: str, room: int) -> str:
    """Cut the middle out of a text that is too long, and mark the cut."""
    data = text.encode(errors="replace")
    if len(data) <= max(room, 0) * BYTES:
        return text
    if room * BYTES <= MARK:
        return "[…]"[: max(room, 0)]
    half = (room * BYTES - MARK) // 2
    first = data[:half].decode(errors="ignore")
    last = data[len(data) - half :].decode(errors="ignore")
    return f"{first}\n[… {len(text) - len(first) - len(last)} characters are left out …]\n{last}"


def bound_results(messages: Sequence[tuple[str, str]], limits: Limits | None) -> list[str]:
    """Return the texts of messages, given as role and text.

    Tool results are cut so that all of them together have at most the bytes that the budget allows, apart from marks:
    the newest stay whole as long as they fit, and older ones give way.
    """
    left = None if limits is None else limits.max_artifact_bytes_in_context
    found: list[str] = []
    for role, text in reversed(messages):
        if left is None or role != "tool":
            found.append(text)
            continue
        size = len(text.encode(errors="replace"))
        found.append(text if size <= left else _cut_to_bytes(text, left, size))
        left -= min(size, left)
    return found[::-1]


def _cut_to_bytes(text: str, most: int, size: int) -> str:
    return short(text, most // BYTES) if most > MARK + BYTES else f"[{size} bytes are left out]"


class Item(NamedTuple):
    """A message, with what its selection depends on."""

    seq: int
    role: str
    size: int
    """Size in tokens."""
    calls: tuple[str, ...] = ()
    """Ids of the tool calls that it requests."""
    call: str = ""
    """The tool call whose result it is."""
    pinned: bool = False
    least: int | None = None
    """Least size in tokens that it can be cut to; None if it cannot be cut."""


_SIZE = attrgetter("size")


class Selected(NamedTuple):
    """The messages that a model sees."""

    places: tuple[int, ...]
    """Their indices in the given list."""
    seqs: tuple[int, ...]
    left_out: int
    """Number of messages that the model does not see."""
    size: int
    limit: int | None = None
    """Size in tokens that each message is cut to, if they do not fit uncut."""

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Their sequences in the conversation, as ranges."""
        return ranges_of(self.seqs)


def ranges_of(seqs: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return sequences as ranges, without those of messages that are not stored (0)."""
    found: list[list[int]] = []
    for seq in sorted({*seqs} - {0}):
        if found and seq == found[-1][1] + 1:
            found[-1][1] = seq
        else:
            found.append([seq, seq])
    return tuple((first, last) for first, last in found)


class Unit(NamedTuple):
    """Messages that belong together: a message with tool calls, and their results."""

    places: range
    size: int
    """Size in tokens."""
    pinned: bool


def units(items: Sequence[Item]) -> list[Unit]:
    """Group messages that belong together, in order."""
    found: list[Unit] = []
    start, size, pinned, open_ = 0, 0, False, set[str]()
    for place, item in enumerate(items):
        if place > start and not (item.call and item.call in open_):
            found.append(Unit(range(start, place), size, pinned))
            start, size, pinned = place, 0, False
            open_.clear()
        size += item.size + EACH
        pinned = pinned or item.pinned
        if item.calls:
            open_.update(item.calls)
    if items:
        found.append(Unit(range(start, len(items)), size, pinned))
    return found


def select(items: Sequence[Item], room: int) -> Selected:
    """Select the newest messages that fit, in whole units.

    The last unit and pinned units come first, and are cut if needed. Nothing is selected if even the last unit does not
    fit when cut as far as possible.
    """
    whole = sum(map(_SIZE, items)) + EACH * len(items)
    if whole <= room:  # the usual case
        return Selected(tuple(range(len(items))), tuple(item.seq for item in items), 0, whole)
    return _select_part(items, room)


def _select_part(items: Sequence[Item], room: int) -> Selected:
    found = units(items)
    chosen = _wanted(items, found, room)
    size = sum(found[number].size for number in chosen)
    limit = None
    if size > room:
        cut = [items[place] for number in chosen for place in found[number].places]
        limit = _level(cut, room)
        size = sum(_cut_to(item, limit) + EACH for item in cut)
    else:
        for number in reversed(range(len(found))):
            if number in chosen:
                continue
            if size + found[number].size > room:
                break
            chosen.add(number)
            size += found[number].size
    places = tuple(place for number in sorted(chosen) for place in found[number].places)
    return Selected(places, tuple(items[place].seq for place in places), len(items) - len(places), size, limit)


def oldest(items: Sequence[Item], sizes: Sequence[int], keep: int, room: int) -> list[int]:
    """Return the places of the messages to summarise: those before the newest `keep` tokens, as many as fit into
    `room` tokens. `sizes` are the sizes of the messages in the text to summarise.

    A message with tool calls and their results are taken together or not at all. Excludes pinned messages, and calls
    whose result is among the newest messages or still missing.
    """
    newest = select([item._replace(pinned=False) for item in items], keep)
    first = newest.places[0] if newest.places else len(items)
    since = min((item.seq for item in items[first:] if item.seq), default=1 << 62)
    found: list[int] = []
    used = 0
    for unit in units(items):
        begin, members = unit.places.start, [items[place] for place in unit.places]
        used += sum(sizes[place] for place in unit.places)
        if begin >= first or members[0].seq > since or (found and used > room):
            break
        if not unit.pinned and all(0 < item.seq < since for item in members) and _is_complete(members):
            found += unit.places
    return found


def _is_complete(unit: Sequence[Item]) -> bool:
    """Return whether every call has its result."""
    return {call for item in unit for call in item.calls} <= {item.call for item in unit}


def has_outgrown(sizes: Sequence[int], above: int, tried_at: int | None) -> bool:
    """Return whether messages exceed `above` tokens and are to be summarised now.

    After a failed attempt, `tried_at` is the place of the last message before it. Then they are to be summarised again
    only each time they have grown by another quarter of `above`.
    """
    size = sum(sizes)
    if size <= above or tried_at is None:
        return size > above
    quarter = max(above // 4, 1)
    return (size - above) // quarter > (sum(sizes[:tried_at]) - above) // quarter


def _wanted(items: Sequence[Item], found: Sequence[Unit], room: int) -> set[int]:
    """Return the numbers of the last unit and the pinned ones, newest first, as many as fit when cut."""
    last = len(found) - 1
    pinned = [number for number, unit in enumerate(found[:-1]) if unit.pinned]
    wanted: set[int] = set()
    used = 0
    for number in (last, *reversed(pinned)) if found else ():
        used += sum(_least(items[place]) + EACH for place in found[number].places)
        if used > room:
            break
        wanted.add(number)
    return wanted


def _level(items: Sequence[Item], room: int) -> int:
    """Return the size limit per message with which all of them fit; smaller messages stay whole."""
    low, high = 0, max((item.size for item in items), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(_cut_to(item, middle) + EACH for item in items) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def _least(item: Item) -> int:
    return item.size if item.least is None else min(item.least, item.size)


def _cut_to(item: Item, limit: int) -> int:
    """Return the size of a message that is cut to a limit, as far as it can be cut."""
    return max(_least(item), min(item.size, limit))
