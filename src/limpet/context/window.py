"""Which messages a model sees: as many as fit, the newest first. Pure.

What belongs together stays together: a call of a tool and its result are both there or both not. What is left out is
said, so that a model does not take a part for the whole.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

__all__ = ["Item", "Selected", "select", "short", "tokens", "tokens_of", "units"]

# How many bytes of text are a token, so that an estimate is rather too high than too low.
BYTES = 3
# What a message costs beside its text.
EACH = 8
# What is said in the place of what is left out of a text, in bytes at most, and what a text can be cut down to.
MARK = 64
LEAST = 30


def tokens(text: str) -> int:
    """About how many tokens a text has, rather too many than too few."""
    return tokens_of(len(text.encode(errors="replace")))


def tokens_of(bytes: int) -> int:
    """About how many tokens so many bytes of text have."""
    return -(-bytes // BYTES)


def short(text: str, room: int) -> str:
    """A text without its middle, if it is too long: that is said."""
    data = text.encode(errors="replace")
    if len(data) <= max(room, 0) * BYTES:
        return text
    if room * BYTES <= MARK:
        return "[…]"[: max(room, 0)]
    half = (room * BYTES - MARK) // 2
    first = data[:half].decode(errors="ignore")
    last = data[len(data) - half :].decode(errors="ignore")
    return f"{first}\n[… {len(text) - len(first) - len(last)} characters are left out …]\n{last}"


class Item(NamedTuple):
    """A message, as far as its choice goes."""

    seq: int
    role: str
    size: int
    """In tokens."""
    calls: tuple[str, ...] = ()
    """What it wants called, by id."""
    call: str = ""
    """The call whose result it is."""
    pinned: bool = False
    least: int | None = None
    """What it can be cut down to, in tokens; none if it cannot."""


class Selected(NamedTuple):
    """Which messages a model sees."""

    places: tuple[int, ...]
    """Where they stand among those that there are."""
    seqs: tuple[int, ...]
    left_out: int
    """How many others it does not see."""
    size: int
    limit: int | None = None
    """What each of them is cut down to, in tokens, if they do not fit otherwise."""

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Their places in the conversation, as ranges."""
        found: list[list[int]] = []
        for seq in sorted({*self.seqs} - {0}):
            if found and seq == found[-1][1] + 1:
                found[-1][1] = seq
            else:
                found.append([seq, seq])
        return tuple((first, last) for first, last in found)


def units(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Messages that belong together, in order: what wants calls, and the results of those."""
    unit: list[Item] = []
    open_: set[str] = set()
    for item in items:
        if unit and not (item.call and item.call in open_):
            yield unit
            unit = []
            open_ = set()
        unit.append(item)
        open_ |= set(item.calls)
    if unit:
        yield unit


def select(items: Sequence[Item], room: int) -> Selected:
    """The newest messages that fit, whole units; the last one and those that are pinned first of all, cut if need be.

    Nothing is chosen where even the last unit does not fit, cut down as far as it can be.
    """
    all_units = list(_placed(items))
    chosen = _wanted(all_units, room)
    size = sum(_size(all_units[place]) for place in chosen)
    if size > room:
        return _selected(items, all_units, chosen, _level(all_units, chosen, room))
    for place in reversed(range(len(all_units))):
        if place in chosen:
            continue
        more = _size(all_units[place])
        if size + more > room:
            break
        chosen.add(place)
        size += more
    return _selected(items, all_units, chosen, None)


Unit = list[tuple[int, Item]]


def _placed(items: Sequence[Item]) -> Iterator[Unit]:
    """Units, with where each message stands."""
    place = 0
    for unit in units(items):
        yield [(place + number, item) for number, item in enumerate(unit)]
        place += len(unit)


def _wanted(all_units: Sequence[Unit], room: int) -> set[int]:
    """The last unit, and those that are pinned, the newest first: as many as fit if they are cut."""
    pinned = [place for place, unit in enumerate(all_units) if any(item.pinned for _, item in unit)]
    last = len(all_units) - 1
    found: set[int] = set()
    used = 0
    for place in (last, *(each for each in reversed(pinned) if each != last)):
        more = sum(_least(item) + EACH for _, item in all_units[place]) if place >= 0 else 0
        if place < 0 or used + more > room:
            break
        found.add(place)
        used += more
    return found


def _level(all_units: Sequence[Unit], chosen: set[int], room: int) -> int:
    """What each message may have at most, so that all of them fit: the small ones are whole."""
    items = [item for place in chosen for _, item in all_units[place]]
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
    """Its size, if it is cut down to so much, as far as it can be."""
    return max(_least(item), min(item.size, limit))


def _selected(items: Sequence[Item], all_units: Sequence[Unit], chosen: set[int], limit: int | None) -> Selected:
    seen = [each for place in sorted(chosen) for each in all_units[place]]
    size = sum((item.size if limit is None else _cut_to(item, limit)) + EACH for _, item in seen)
    places, seqs = tuple(place for place, _ in seen), tuple(item.seq for _, item in seen)
    return Selected(places, seqs, len(items) - len(seen), size, limit)


def _size(unit: Iterable[tuple[int, Item]]) -> int:
    return sum(item.size + EACH for _, item in unit)
