"""Strategies for strict values, working states, and event bodies of every kind."""

from functools import cache
from itertools import permutations, product
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw, Struct, UnsetType

from limpet.events import KINDS, Artifact, Constraints, Fact, Limits, Payload, canonical, inline
from limpet.state import AgentState

__all__ = ["agent_states", "bodies", "characters", "json_values", "law_settings", "of_type", "payloads"]


def law_settings(examples: int) -> settings:
    """Return the settings of a law with so many examples with --full, and otherwise with a fourth, but at least 20."""
    count = examples if settings.get_current_profile_name() == "full" else max(examples // 4, 20)
    return settings(deadline=None, derandomize=True, max_examples=count)


characters = st.characters(exclude_categories=["Cs"])
"""All that `st.text()` would use. That encodes every character first, which takes seconds."""
_leaves: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-(2**2048) + 1, 2**2048 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(characters),
)

json_values: st.SearchStrategy[Any] = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(characters), inner, max_size=4),
    max_leaves=12,
)

_raw = json_values.map(lambda value: Raw(canonical(value)))
payloads = st.one_of(
    json_values.map(inline), st.builds(Payload, blob=st.text(characters, min_size=1), bytes=st.integers(0, 2**40))
)


@cache
def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a field of this type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return st.one_of([of_type(arg) for arg in args])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(of_type(args[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(of_type(args[0]), of_type(args[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, Struct) and hint is not Payload:
        return st.builds(hint, **{name: of_type(each) for name, each in get_type_hints(hint).items()})
    return _SIMPLE[hint]


_SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    Any: st.sampled_from([None, 1, "é", [True, {"a": 0.5}]]),
    NoneType: st.none(),
    UnsetType: st.just(UNSET),
    Raw: _raw,
    Payload: payloads,
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(characters, max_size=8),
}

bodies: st.SearchStrategy[Any] = st.one_of([of_type(kind.body) for kind in KINDS])

# A working state needs few draws from few names, so that states are cheap and two of them have much in common.

_lists = st.sampled_from([keys for size in range(5) for keys in permutations("abcdef", size)])
_lines = list(product("xy", ("pending", "doing", "done")))
_plans = st.sampled_from([plan for size in range(4) for plan in product(_lines, repeat=size)])
_raws = [Raw(b"0"), Raw(b"null"), Raw(b'{"a":[1,2.5]}'), Raw('"é"'.encode())]
_datas: list[Raw | UnsetType] = [UNSET, *_raws]
_details = st.integers(0, 63)
_constraints = st.sampled_from([None, Constraints(), Constraints(human_in_the_loop={}), Constraints(region="eu")])
_budgets = st.sampled_from([None, Limits(), Limits(max_steps=0), Limits(max_cost=0.5, exhausted="ask")])


@st.composite
def agent_states(draw: st.DrawFn) -> AgentState:
    """Draw a working state that patches can lead to."""
    plan, detail = draw(_plans), draw(_details)
    statuses: Any = tuple(status for _, status in plan)
    return AgentState(
        goal=draw(st.sampled_from(["", "settle", "deploy"])),
        constraints=draw(_constraints),
        budget=draw(_budgets),
        plan=tuple(item for item, _ in plan),
        plan_status=statuses if set(statuses) - {"pending"} else (),
        known_facts=tuple(
            Fact(key=key, value=_raws[(detail + ord(key)) % 4], source="user" * (detail // 32)) for key in draw(_lists)
        ),
        open_questions=(questions := draw(_lists)),
        question_steps={each: detail for each in questions if (detail >> ord(each) % 4) & 1},
        artifacts=tuple(
            Artifact(artifact_id=key, type="t", summary="s", bytes=(detail >> place) & 1)
            for place, key in enumerate(draw(_lists))
        ),
        risk_flags=(flags := draw(_lists)),
        risk_details={each: "why" for each in flags if (detail >> ord(each) % 4) & 1},
        data=draw(st.sampled_from(_datas)),
    )
