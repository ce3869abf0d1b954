"""The slice of what an agent knows that fits: into a model's window, a page, another program. Pure.

What matters most comes first: the goal and where it stands, artifacts of this step, the newest facts, open questions.
What is left out is counted, so that nobody takes a part for the whole. Artifacts are there as what they are, not as
what they hold: that is opened where it is needed. What is measured is what is handed over: the JSON of a slice, the
lines of a description.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, json, structs

from limpet.context.window import BYTES, LEAST, short, tokens
from limpet.events import Artifact, Fact
from limpet.events.values import encode
from limpet.state import AgentState, outdated

__all__ = ["ContextSlice", "Known", "Spoken", "describe", "slice_of"]

SHOWN_FACT = 600
# What "so many more are not shown" costs, and what messages leave for the rest at least, of a slice with both.
MORE = 12
SHARE = 2


class Spoken(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message, as a slice shows it."""

    role: str
    text: str
    seq: int = 0
    """Its place in the conversation."""
    calls: tuple[str, ...] = ()
    """What it wants called, in words."""
    tool: str = ""
    """Of a result: whose it is."""


class ContextSlice(Struct, frozen=True, kw_only=True):
    """What an agent knows, as much as fits."""

    goal: str = ""
    """What it is about; where nobody set one, what the run was asked."""
    status: str = ""
    """Of the run."""
    current_step: str = ""
    """The item of the plan that it is at, or the number of its step."""
    plan: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    """The newest first."""
    artifacts: tuple[Artifact, ...] = ()
    """Those of this step first."""
    open_questions: tuple[str, ...] = ()
    risk_flags: tuple[str, ...] = ()
    messages: tuple[Spoken, ...] = ()
    """The newest of what was said, in order."""
    left_out: dict[str, int] = {}
    """How many of each there are that do not fit."""

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        plain: dict[str, Any] = json.decode(encode(self))
        return plain


class Known(NamedTuple):
    """What is known of a run, of which a slice is taken."""

    state: AgentState
    step: int | None = None
    status: str = ""
    task: str = ""
    """What the run was asked, if that is text."""


class _Piece(NamedTuple):
    """Something that may be in a slice: in which list, and how it is said."""

    part: str
    what: Any
    line: str

    @property
    def bytes(self) -> int:
        """Its size in JSON, with the comma."""
        return len(encode(self.what)) + 1

    @property
    def tokens(self) -> int:
        """The size of its line, with the end of it."""
        return tokens(self.line) + 1


def slice_of(
    known: Known, *, messages: Sequence[Spoken] = (), max_tokens: int | None = None, max_bytes: int | None = None
) -> ContextSlice:
    """What fits of what an agent knows and of what was said; half of it is for messages.

    As JSON it has at most so many bytes, and about so many tokens; only an empty one, of 200 bytes, may have more.
    """
    empty = ContextSlice(status=known.status, current_step=_current(known.state, known.step))
    rooms = [each for each in (max_bytes, None if max_tokens is None else max_tokens * BYTES) if each is not None]
    room = min(rooms) - len(encode(empty)) if rooms else None
    half = None if room is None else room // SHARE if messages else room
    state = known.state if known.state.goal else structs.replace(known.state, goal=known.task)
    pieces = _pieces(state, known.step, None if half is None else half // BYTES)
    taken, left, used = _fitting(pieces, half, lambda piece: piece.bytes)
    rest = None if room is None else room - used
    said = _said(_cut(reversed(messages), rest))
    spoken, silent, _ = _fitting(said, rest, lambda piece: piece.bytes, gaps=False)
    taken, left = [*taken, *spoken], [*left, *silent]
    found = _slice(empty, taken, left)
    while rooms and taken and len(encode(found)) > min(rooms):  # to say what is left out takes room, too
        left.append(taken.pop())
        found = _slice(empty, taken, left)
    return found


def _slice(empty: ContextSlice, taken: Sequence[_Piece], left: Sequence[_Piece]) -> ContextSlice:
    by_part = _grouped(taken)
    [goal] = by_part.pop("goal", ("",))
    messages = tuple(reversed(by_part.pop("messages", ())))
    return structs.replace(empty, goal=goal, messages=messages, left_out=_counted(left), **by_part)


def describe(state: AgentState, *, step: int | None, room: int) -> str:
    """What the agent knows, in words that fit."""
    taken, left, _ = _fitting(_pieces(state, step, room), room - MORE, lambda piece: piece.tokens)
    lines = [piece.line for piece in taken]
    if left:
        lines.append(f"({len(left)} more are not shown)")
    return "\n".join(lines)


def _fitting(
    pieces: Iterable[_Piece], room: int | None, size: Callable[[_Piece], int], *, gaps: bool = True
) -> tuple[list[_Piece], list[_Piece], int]:
    """Those that fit, in order, those that do not, and what the first take; without gaps none behind one of those."""
    taken, left, used = list[_Piece](), list[_Piece](), 0
    for piece in pieces:
        more = size(piece)
        if room is not None and (used + more > room or (left and not gaps)):
            left.append(piece)
            continue
        taken.append(piece)
        used += more
    return taken, left, used


def _grouped(pieces: Iterable[_Piece]) -> dict[str, tuple[Any, ...]]:
    found: dict[str, list[Any]] = {}
    for piece in pieces:
        found.setdefault(piece.part, []).append(piece.what)
    return {part: tuple(each) for part, each in found.items()}


def _counted(pieces: Iterable[_Piece]) -> dict[str, int]:
    return {part: len(each) for part, each in _grouped(pieces).items()}


def _current(state: AgentState, step: int | None) -> str:
    place = state.position
    if place is not None:
        return state.plan[place]
    return f"step {step}" if step else ""


def _cut(messages: Iterable[Spoken], room: int | None) -> Iterable[Spoken]:
    """The same without the middle of those that would take most of the room alone."""
    if room is None:
        return messages
    limit = max(room // BYTES // 4, LEAST)
    return (structs.replace(each, text=short(each.text, limit)) for each in messages)


def _said(messages: Iterable[Spoken]) -> Iterator[_Piece]:
    return (_Piece("messages", each, f"{each.role}: {each.text}") for each in messages)


def _pieces(state: AgentState, step: int | None, room: int | None) -> Iterator[_Piece]:
    """All that is known, what matters most first."""
    if state.goal:
        goal = state.goal if room is None else short(state.goal, max(room // 4, LEAST))
        yield _Piece("goal", goal, f"Goal: {goal}")
    for number, item in enumerate(state.items, 1):
        yield _Piece("plan", item.item, f"Plan {number}: {item.item} ({item.status})")
    yield from _all("artifacts", _artifact, (each for each in state.artifacts if each.step == step))
    old = outdated(state)
    for fact in reversed(state.known_facts):
        yield _Piece("facts", fact, _fact(fact, old.get(fact.key, ())))
    yield from _all("open_questions", "Open question: {}".format, state.open_questions)
    yield from _all("risk_flags", "Flag: {}".format, state.risk_flags)
    yield from _all("artifacts", _artifact, (each for each in reversed(state.artifacts) if each.step != step))


def _all(part: str, say: Callable[[Any], str], found: Iterable[Any]) -> Iterator[_Piece]:
    return (_Piece(part, each, say(each)) for each in found)


def _artifact(artifact: Artifact) -> str:
    return f"Artifact {artifact.artifact_id}: {artifact.type}, {artifact.bytes} bytes: {artifact.summary}"


def _fact(fact: Fact, changed: Sequence[str]) -> str:
    value = bytes(fact.value).decode()
    shown = value if len(value) <= SHOWN_FACT else f"{value[:SHOWN_FACT]}… ({len(value)} characters)"
    since = f"as of step {fact.step}" if fact.step is not None else ""
    origin = ", ".join(filter(None, (fact.source and f"from {fact.source}", since)))
    doubt = f"; concluded from {', '.join(changed)}, which changed since" if changed else ""
    return f"Fact {fact.key} = {shown}{f' ({origin}{doubt})' if origin or doubt else ''}"
