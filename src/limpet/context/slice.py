"""The part of an agent's state that fits into a model's window, a page or another program. Pure.

The most important parts come first: the goal and the plan, artifacts of the current plan item or step, open questions
and risk flags, then facts and other artifacts, the newest first. Omitted entries are counted, so that a part is not
mistaken for the whole. Artifacts appear with their descriptions, not their content, which is read separately. Sizes are
those of the output: the JSON of a slice, or the lines of a description.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, json, structs

from limpet.context.window import BYTES, LEAST, bound_results, short, tokens
from limpet.events import Artifact, Fact, Limits
from limpet.events.values import encode
from limpet.state import AgentState, outdated
from limpet.view import View

__all__ = ["ContextSlice", "Known", "SliceMessage", "describe", "slice_of"]

SHOWN_FACT = 600
# Tokens of the line "n more are not shown", and the divisor of the space that state and messages share.
MORE = 12
SHARE = 2


class SliceMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message, as shown in a slice."""

    role: str
    """Who said it."""
    text: str
    """Text of the message."""
    seq: int = 0
    """Sequence in the conversation."""
    calls: tuple[str, ...] = ()
    """Tool calls that the message requests, as text."""
    tool: str = ""
    """The tool whose result this is."""


class ContextSlice(View, frozen=True, kw_only=True):
    """The part of an agent's state that fits."""

    goal: str = ""
    """The goal; if none was set, the run's input."""
    status: str = ""
    """Status of the run."""
    current_step: str = ""
    """Current item of the plan, or the number of the step."""
    plan: tuple[str, ...] = ()
    """Items of the plan."""
    facts: tuple[Fact, ...] = ()
    """Newest first."""
    artifacts: tuple[Artifact, ...] = ()
    """Artifacts, the newest first; those of the current plan item or step come before the others."""
    open_questions: tuple[str, ...] = ()
    """Questions that are not answered."""
    risk_flags: tuple[str, ...] = ()
    """Risk flags."""
    messages: tuple[SliceMessage, ...] = ()
    """The newest messages, in order."""
    left_out: dict[str, int] = {}
    """Number of omitted entries, by part."""

    def as_json(self) -> dict[str, Any]:
        """Return the slice as plain data."""
        plain: dict[str, Any] = json.decode(encode(self))
        return plain


class Known(NamedTuple):
    """The state of a run, from which a slice is taken."""

    state: AgentState
    step: int | None = None
    """Number of the last step."""
    since: int | None = None
    """Artifacts of this step and later ones are current: the first step of the current plan item, or the last step."""
    status: str = ""
    task: str = ""
    """The run's input, if that is text."""


class _Piece(NamedTuple):
    """One candidate for a slice: its part, its value and its line of text."""

    part: str
    what: Any
    line: str

    @property
    def bytes(self) -> int:
        """Size in JSON, with the comma."""
        return len(encode(self.what)) + 1

    @property
    def tokens(self) -> int:
        """Size of the line, with its end."""
        return tokens(self.line) + 1


def slice_of(
    known: Known, *, messages: Sequence[SliceMessage] = (), max_tokens: int | None = None, max_bytes: int | None = None
) -> ContextSlice:
    """Return the part of an agent's state and messages that fits; half of the space is for messages.

    As JSON it has at most `max_bytes` bytes and about `max_tokens` tokens. Only an empty slice, of 200 bytes, may be
    larger.
    """
    empty = ContextSlice(status=known.status, current_step=_current(known.state, known.step))
    rooms = [each for each in (max_bytes, None if max_tokens is None else max_tokens * BYTES) if each is not None]
    room = min(rooms) - len(encode(empty)) if rooms else None
    half = None if room is None else room // SHARE if messages else room
    state = known.state if known.state.goal else structs.replace(known.state, goal=known.task)
    messages = _bounded(messages, state.budget)
    pieces = _pieces(state, known.since, None if half is None else half // BYTES)
    taken, left, used = _fitting(pieces, half, lambda piece: piece.bytes)
    rest = None if room is None else room - used
    said = _said(_cut(reversed(messages), rest))
    spoken, silent, _ = _fitting(said, rest, lambda piece: piece.bytes, gaps=False)
    taken, left = [*taken, *spoken], [*left, *silent]
    found = _slice(empty, taken, left)
    while rooms and taken and len(encode(found)) > min(rooms):  # Counting what is left out takes space, too.
        left.append(taken.pop())
        found = _slice(empty, taken, left)
    return found


def _bounded(messages: Sequence[SliceMessage], limits: Limits | None) -> Sequence[SliceMessage]:
    """Cut tool results so that all of them together have at most the bytes that the budget allows."""
    texts = bound_results([(each.role, each.text) for each in messages], limits)
    return [structs.replace(each, text=text) for each, text in zip(messages, texts, strict=True)]


def _slice(empty: ContextSlice, taken: Sequence[_Piece], left: Sequence[_Piece]) -> ContextSlice:
    by_part = _grouped(taken)
    [goal] = by_part.pop("goal", ("",))
    messages = tuple(reversed(by_part.pop("messages", ())))
    return structs.replace(empty, goal=goal, messages=messages, left_out=_counted(left), **by_part)


def describe(state: AgentState, *, since: int | None, room: int) -> str:
    """Describe the agent's state in text of at most `room` tokens. Artifacts since this step are current."""
    taken, left, _ = _fitting(_pieces(state, since, room), room - MORE, lambda piece: piece.tokens)
    lines = [piece.line for piece in taken]
    if left:
        lines.append(f"({len(left)} more are not shown)")
    return "\n".join(lines)


def _fitting(
    pieces: Iterable[_Piece], room: int | None, size: Callable[[_Piece], int], *, gaps: bool = True
) -> tuple[list[_Piece], list[_Piece], int]:
    """Return the pieces that fit, in order, those that do not, and the size of the first.

    Without `gaps`, no piece after one that does not fit is taken.
    """
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


def _cut(messages: Iterable[SliceMessage], room: int | None) -> Iterable[SliceMessage]:
    """Cut the middle out of messages that would take most of the space alone."""
    if room is None:
        return messages
    limit = max(room // BYTES // 4, LEAST)
    return (structs.replace(each, text=short(each.text, limit)) for each in messages)


def _said(messages: Iterable[SliceMessage]) -> Iterator[_Piece]:
    return (_Piece("messages", each, f"{each.role}: {each.text}") for each in messages)


def _pieces(state: AgentState, since: int | None, room: int | None) -> Iterator[_Piece]:
    """Yield all of the state, the most important first."""
    if state.goal:
        goal = state.goal if room is None else short(state.goal, max(room // 4, LEAST))
        yield _Piece("goal", goal, f"Goal: {goal}")
    for number, item in enumerate(state.items, 1):
        yield _Piece("plan", item.item, f"Plan {number}: {item.item} ({item.status})")
    newest = state.artifacts[::-1]
    current = [each for each in newest if since is not None and each.step is not None and each.step >= since]
    yield from _all("artifacts", _artifact, current)
    yield from _all("open_questions", "Open question: {}".format, state.open_questions)
    yield from _all("risk_flags", "Flag: {}".format, state.risk_flags)
    old = outdated(state)
    for fact in reversed(state.known_facts):
        yield _Piece("facts", fact, _fact(fact, old.get(fact.key, ())))
    yield from _all("artifacts", _artifact, (each for each in newest if each not in current))


def _all(part: str, say: Callable[[Any], str], found: Iterable[Any]) -> Iterator[_Piece]:
    return (_Piece(part, each, say(each)) for each in found)


def _artifact(artifact: Artifact) -> str:
    since = f", from step {artifact.step}" if artifact.step is not None else ""
    return f"Artifact {artifact.artifact_id}: {artifact.type}, {artifact.bytes} bytes{since}: {artifact.summary}"


def _fact(fact: Fact, changed: Sequence[str]) -> str:
    value = bytes(fact.value).decode()
    shown = value if len(value) <= SHOWN_FACT else f"{value[:SHOWN_FACT]}… ({len(value)} characters)"
    since = f"as of step {fact.step}" if fact.step is not None else ""
    origin = ", ".join(filter(None, (fact.source and f"from {fact.source}", since)))
    doubt = f"; concluded from {', '.join(changed)}, which changed since" if changed else ""
    return f"Fact {fact.key} = {shown}{f' ({origin}{doubt})' if origin or doubt else ''}"
