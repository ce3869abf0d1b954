"""What a model sees: as much as fits of what the agent knows and of what was said, the newest first. Pure.

What belongs together stays together: a call of a tool and its result are both there or both not. What is left out is
said, so that a model does not take a part for the whole.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from limpet.state import AgentState

__all__ = ["Item", "Selected", "describe", "select", "tokens", "units"]

# How many bytes of text are a token, so that an estimate is rather too high than too low.
BYTES = 3
# What a message costs beside its text.
EACH = 8
SHOWN_FACT = 600


def tokens(text: str) -> int:
    """About how many tokens a text has, rather too many than too few."""
    return -(-len(text.encode(errors="replace")) // BYTES)


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


class Selected(NamedTuple):
    """Which messages a model sees."""

    seqs: tuple[int, ...]
    left_out: int
    """How many before them it does not see."""
    size: int

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The same, as ranges."""
        found: list[list[int]] = []
        for seq in self.seqs:
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
    """The newest messages that fit, whole units; those that are pinned, first of all."""
    all_units = list(units(items))
    chosen = {place for place, unit in enumerate(all_units) if any(item.pinned for item in unit)}
    size = sum(_size(all_units[place]) for place in chosen)
    for place in reversed(range(len(all_units))):
        if place in chosen:
            continue
        more = _size(all_units[place])
        if size + more > room:
            break
        chosen.add(place)
        size += more
    seen = [item for place in sorted(chosen) for item in all_units[place]]
    return Selected(tuple(item.seq for item in seen), len(items) - len(seen), size)


def _size(unit: Iterable[Item]) -> int:
    return sum(item.size + EACH for item in unit)


def describe(state: AgentState, *, step: int | None, room: int) -> tuple[str, int]:
    """What the agent knows, in words that fit, and how many things were left out.

    Goal and plan come first, then artifacts of this step, the newest facts, open questions and flags.
    """
    lines, left = list[str](), 0
    used = 0
    for line in _lines(state, step):
        more = tokens(line) + 1
        if used + more > room:
            left += 1
            continue
        lines.append(line)
        used += more
    if left:
        lines.append(f"({left} more are not shown)")
    return "\n".join(lines), left


def _lines(state: AgentState, step: int | None) -> Iterator[str]:
    if state.goal:
        yield f"Goal: {state.goal}"
    for number, item in enumerate(state.items, 1):
        yield f"Plan {number}: {item.item} ({item.status})"
    mine = [each for each in state.artifacts if each.step == step]
    others = [each for each in reversed(state.artifacts) if each.step != step]
    for artifact in (*mine, *others):
        yield f"Artifact {artifact.artifact_id}: {artifact.type}, {artifact.bytes} bytes: {artifact.summary}"
    for fact in reversed(state.known_facts):
        value = bytes(fact.value).decode()
        shown = value if len(value) <= SHOWN_FACT else f"{value[:SHOWN_FACT]}… ({len(value)} characters)"
        since = f", as of step {fact.step}" if fact.step is not None else ""
        origin = f" (from {fact.source}{since})" if fact.source else ""
        yield f"Fact {fact.key} = {shown}{origin}"
    yield from (f"Open question: {question}" for question in state.open_questions)
    yield from (f"Flag: {flag}" for flag in state.risk_flags)
