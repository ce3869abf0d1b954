"""Derived facts: which facts depend on a fact, and which depend on something that has changed since."""

from collections.abc import Mapping

from limpet.events import Fact
from limpet.state.agent import AgentState

__all__ = ["derived", "outdated"]


def derived(state: AgentState, key: str) -> tuple[Fact, ...]:
    """Return the facts derived from a fact, directly or through others. The fact itself may have been retracted."""
    found, rests = list[Fact](), {key}
    while more := [fact for fact in state.known_facts if fact.key not in rests and rests & set(fact.derived_from)]:
        found += more
        rests |= {fact.key for fact in more}
    return tuple(fact for fact in state.known_facts if fact in found)


def outdated(state: AgentState) -> Mapping[str, tuple[str, ...]]:
    """Return the facts that depend on one that was retracted or replaced since, each with the keys of those.

    A replaced fact moves to the end of the list, so facts after a derived one are newer.
    """
    places = {fact.key: place for place, fact in enumerate(state.known_facts)}
    found: dict[str, tuple[str, ...]] = {}
    for fact in state.known_facts:
        changed = tuple(
            key for key in fact.derived_from if places.get(key, len(places)) > places[fact.key] or key in found
        )
        if changed:
            found[fact.key] = changed
    return found
