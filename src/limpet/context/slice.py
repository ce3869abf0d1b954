"""The slice of what an agent knows that fits: into a model's window, a page, another program. Pure.

What matters most comes first: the goal and where it stands, artifacts of this step, the newest facts, open questions.
What is left out is counted, so that nobody takes a part for the whole. Artifacts are there as what they are, not as
what they hold: that is opened where it is needed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from limpet.context.window import BYTES, short, tokens
from limpet.events import Artifact, Fact
from limpet.state import AgentState, outdated

__all__ = ["ContextSlice", "Spoken", "describe", "slice_of"]

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


class ContextSlice(Struct, frozen=True, kw_only=True):
    """What an agent knows, as much as fits."""

    goal: str = ""
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


class _Piece(NamedTuple):
    """Something that may be in a slice: in which list, and how it is said."""

    part: str
    what: Any
    line: str


def slice_of(
    state: AgentState,
    *,
    step: int | None = None,
    messages: Sequence[Spoken] = (),
    max_tokens: int | None = None,
    max_bytes: int | None = None,
) -> ContextSlice:
    """What fits of what an agent knows and of what was said, within tokens and bytes; half of it is for messages."""
    rooms = [each for each in (max_tokens, max_bytes // BYTES if max_bytes is not None else None) if each is not None]
    room = min(rooms, default=None)
    half = None if room is None else room // SHARE if messages else room
    taken, left, used = _fitting(_pieces(state, step, half), half)
    spoken, silent, _ = _fitting(_said(reversed(messages)), None if room is None else room - used, gaps=False)
    by_part = _grouped(taken)
    return ContextSlice(
        goal=next((piece.what for piece in taken if piece.part == "goal"), ""),
        current_step=_current(state, step),
        plan=by_part.get("plan", ()),
        facts=by_part.get("facts", ()),
        artifacts=by_part.get("artifacts", ()),
        open_questions=by_part.get("open_questions", ()),
        risk_flags=by_part.get("risk_flags", ()),
        messages=tuple(piece.what for piece in reversed(spoken)),
        left_out=_counted((*left, *silent)),
    )


def describe(state: AgentState, *, step: int | None, room: int) -> str:
    """What the agent knows, in words that fit."""
    taken, left, _ = _fitting(_pieces(state, step, room), room - MORE)
    lines = [piece.line for piece in taken]
    if left:
        lines.append(f"({len(left)} more are not shown)")
    return "\n".join(lines)


def _fitting(
    pieces: Iterable[_Piece], room: int | None, *, gaps: bool = True
) -> tuple[list[_Piece], list[_Piece], int]:
    """Those that fit, in order, those that do not, and what the first take; without gaps none behind one of those."""
    taken, left, used = list[_Piece](), list[_Piece](), 0
    for piece in pieces:
        more = tokens(piece.line) + 1
        if room is not None and (used + more > room or (left and not gaps)):
            left.append(piece)
            continue
        taken.append(piece)
        used += more
    return taken, left, used


def _grouped(pieces: Iterable[_Piece]) -> Mapping[str, tuple[Any, ...]]:
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


def _said(messages: Iterable[Spoken]) -> Iterator[_Piece]:
    return (_Piece("messages", each, f"{each.role}: {each.text}") for each in messages)


def _pieces(state: AgentState, step: int | None, room: int | None) -> Iterator[_Piece]:
    """All that is known, what matters most first."""
    if state.goal:
        goal = state.goal if room is None else short(state.goal, room // 4)
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
