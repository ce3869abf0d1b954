"""Conflicts of patches: the parts of a state that a patch touches, and those that a run has changed meanwhile."""

from collections.abc import Iterator
from typing import Any

from msgspec import UnsetType

from limpet.events import StatePatch
from limpet.state.agent import AgentState

__all__ = ["changed_parts", "touched_parts"]


def touched_parts(patch: StatePatch) -> set[str]:
    """Return the parts of a state that a patch changes, and those that its facts were derived from.

    A part is the goal, the whole plan, one fact, one question or one flag, such as `facts.cents`.
    """
    found = {name for name in ("goal", "plan") if not isinstance(getattr(patch, name), UnsetType)}
    found |= {f"facts.{each}" for each in patch.retract}
    for fact in patch.facts:
        found |= {f"facts.{each}" for each in (fact.key, *fact.derived_from)}
    found |= {f"questions.{each}" for each in (*patch.questions, *patch.answered)}
    return found | {f"flags.{each}" for each in (*patch.flags, *patch.lower)}


def changed_parts(before: AgentState, after: AgentState) -> set[str]:
    """Return the parts that differ between two states of a run."""
    one, other = dict(_parts(before)), dict(_parts(after))
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def _parts(state: AgentState) -> Iterator[tuple[str, Any]]:
    yield "goal", state.goal
    yield "plan", state.items
    for fact in state.known_facts:
        yield f"facts.{fact.key}", fact
    for question in state.questions:
        yield f"questions.{question.question}", question
    for flag in state.flags:
        yield f"flags.{flag.flag}", flag
