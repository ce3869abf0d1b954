"""Laws of patches: a diff leads from one state to the other, and a refused patch changes nothing."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from limpet.errors import InvalidPatch
from limpet.events import Artifact, Fact, PlanItem, Revision, StatePatch
from limpet.events.values import encode
from limpet.state import AgentState, apply, describe_patch, diff
from limpet.state.patch import Working
from tests.laws.values import agent_states, law_settings, of_type

some = law_settings(100)
many = law_settings(250)

_keys = st.lists(st.sampled_from(["a", "b", "c", "d", ""]), max_size=3).map(tuple)

wild_patches = st.builds(
    StatePatch,
    goal=of_type(str) | of_type(msgspec.UnsetType),
    plan=st.just(msgspec.UNSET) | st.lists(st.builds(PlanItem, item=st.just("x")), max_size=2).map(tuple),
    revise=st.lists(st.builds(Revision, index=st.integers(-1, 3), status=st.just("done")), max_size=1).map(tuple),
    facts=_keys.map(lambda keys: tuple(Fact(key=key, value=msgspec.Raw(b"1")) for key in keys)),
    retract=_keys,
    questions=_keys,
    answered=st.dictionaries(st.sampled_from("abc"), st.just("so"), max_size=2),
    artifacts=_keys.map(lambda keys: tuple(Artifact(artifact_id=key, type="t", summary="s", bytes=0) for key in keys)),
    discard=_keys,
    flags=_keys,
    lower=_keys,
)
"""Patches of which some are valid and most are not."""


@many
@given(agent_states(), agent_states())
def test_applying_a_diff_gives_the_other_state(a: AgentState, b: AgentState) -> None:
    """apply(a, diff(a, b)) == b."""
    assert apply(a, diff(a, b)) == b


@some
@given(agent_states())
def test_the_diff_of_equal_states_is_empty(a: AgentState) -> None:
    """diff(a, a) is the empty patch, and the empty patch changes nothing."""
    assert diff(a, a) == StatePatch()
    assert apply(a, StatePatch()) == a


@some
@given(agent_states(), agent_states(), agent_states())
def test_patches_applied_in_place_give_the_same_state(a: AgentState, b: AgentState, c: AgentState) -> None:
    """One mutable state, as in the fold, gives the same as separate applications."""
    working = Working(a)
    working.apply(diff(a, b))
    working.apply(diff(b, c))
    assert working.freeze() == c


@some
@given(agent_states(), agent_states())
def test_a_patch_is_decoded_unchanged(a: AgentState, b: AgentState) -> None:
    """Null and unset stay different."""
    stored = msgspec.json.decode(encode(diff(a, b)), type=StatePatch)
    assert apply(a, stored) == b


@some
@given(agent_states())
def test_every_state_survives_json(a: AgentState) -> None:
    """AgentState.from_json(a.to_json()) == a."""
    assert AgentState.from_json(a.to_json()) == a


@many
@given(agent_states(), wild_patches)
def test_a_patch_is_applied_as_a_whole_or_not_at_all(a: AgentState, patch: StatePatch) -> None:
    """A refused patch changes nothing."""
    working = Working(a)
    try:
        working.apply(patch)
    except InvalidPatch:
        assert working.freeze() == a
    else:
        assert working.freeze() == apply(a, patch)


@many
@given(agent_states(), wild_patches)
def test_a_patch_leads_to_a_valid_state(a: AgentState, patch: StatePatch) -> None:
    """Every result of a patch can be encoded and decoded."""
    try:
        after = apply(a, patch)
    except InvalidPatch:
        return
    assert AgentState.from_json(after.to_json()) == after


@some
@given(agent_states(), agent_states())
def test_a_patch_has_a_description_exactly_if_it_has_parts(a: AgentState, b: AgentState) -> None:
    """Every change is described, and nothing else."""
    patch = diff(a, b)
    assert bool(describe_patch(a, patch)) == (patch != StatePatch())
