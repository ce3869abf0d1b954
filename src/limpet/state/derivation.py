"""What was concluded from what: which facts rest on a fact, and which rest on something that has changed since."""

from collections.abc import Mapping

from limpet.events import Fact
from limpet.state.agent import AgentState

__all__ = ["derived", "outdated"]


def derived(state: AgentState, key: str) -> tuple[Fact, ...]:
    """The facts that were concluded from one, at once or by way of others; it need not be known any more."""
    found, rests = list[Fact](), {key}
    while more := [fact for fact in state.known_facts if fact.key not in rests and rests & set(fact.derived_from)]:
        found += more
        rests |= {fact.key for fact in more}
    return tuple(fact for fact in state.known_facts if fact in found)


def outdated(state: AgentState) -> Mapping[str, tuple[str, ...]]:
    """The facts that rest on one that was retracted, or said anew, since: each with the names of those.

    A fact that is said anew stands at the end, so what stands behind a conclusion is newer.
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
