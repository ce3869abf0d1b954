"""Laws of values: values are decoded unchanged, and their bytes depend only on the value."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.errors import DamagedEvent, InvalidValue, NewerVersion
from limpet.events import KINDS, VOCABULARY, canonical, inline, parse
from limpet.events import values as values_module
from limpet.events.values import (
    _check_whole,
    _is_strict_by_depth,
    _is_strict_each,
    canonical_if_json,
    decode,
    encode,
)
from tests.laws.values import bodies, characters, json_values, law_settings

some = law_settings(100)
many = law_settings(200)

_without_floats = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**2048) + 1, 2**2048 - 1) | st.text(characters),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(characters), inner, max_size=4),
    max_leaves=12,
)

_characters = st.characters(categories=["L", "Nd", "Cc", "Cs"])
_anything: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        json_values,
        st.floats(),
        st.binary(max_size=4),
        st.text(_characters, max_size=4),
        st.integers(-(2**2050), 2**2050),
        st.dates(),
        st.complex_numbers(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.dictionaries(st.text(_characters, max_size=2) | st.integers() | st.booleans(), inner, max_size=3),
    ),
    max_leaves=6,
)


class Text(str):
    """A text of another type."""

    __slots__ = ()


class Number(int):
    """An integer of another type."""


class Share(float):
    """A float of another type."""


class Members(dict[Any, Any]):
    """A dict of another type."""


class Items(list[Any]):
    """A list of another type."""


class Level(IntEnum):
    """An integer with a name."""

    LOW = 1


class Pair(NamedTuple):
    """A tuple with names."""

    left: int
    right: int


class SimpleThing:
    """An object with one attribute."""

    def __init__(self, content: Any) -> None:
        self.content = content


_BAD: list[Any] = [
    float("nan"),
    float("inf"),
    -float("inf"),
    2**2048,
    -(2**2048),
    2**9999,
    "\ud800",
    Text("a"),
    Number(1),
    Share(0.5),
    Members(a=1),
    Items([1]),
    Level.LOW,
    Pair(1, 2),
    b"bytes",
    bytearray(b"bytes"),
    (1, "a"),
    {1, 2},
    1j,
    Decimal("1.5"),
    datetime(2026, 1, 1, tzinfo=UTC),
    object(),
    ...,
    {1: "a"},
    {True: "a"},
    {None: "a"},
    {1.5: "a"},
    {Text("a"): 1},
    {"a": 1, Text("b"): 1},
    {"\ud800": 1},
    {(1, 2): "a"},
]
# Dicts whose keys are, or were, of several types.
_ODD: list[Any] = [{"a": 1, 2: 3}, {"a": {"b": 2, 2: "a"}}]
_GOOD: list[Any] = [
    0.0,
    -0.0,
    1.0,
    1,
    True,
    False,
    None,
    "null",
    '"null"',
    "a" * 700,
    "1" * 700,
    2**2048 - 1,
    2**64,
    [],
    {},
    "",
]


@st.composite
def _mixed(draw: st.DrawFn) -> Any:
    """Draw a value with many scalars, and perhaps with something that JSON cannot represent, at any depth."""
    leaves = st.sampled_from([*_GOOD, *_BAD, *_ODD] if draw(st.booleans()) else _GOOD) | json_values
    value = draw(st.lists(leaves, min_size=1, max_size=12))
    for _ in range(draw(st.sampled_from([0, 1, 2, 3, 60, 61, 62, 63, 64, 65, 80]))):
        value = draw(st.sampled_from([[value], {"a": value}, {"a": 1, "b": value}, [0.5, value]]))
    return value


def outcome(check: Any, value: Any) -> Any:
    """Return how a check ends: None, or the place and reason of what is wrong."""
    try:
        check(value)
    except InvalidValue as error:
        return error.path, error.reason
    return None


@pytest.mark.parametrize("large", [0, 1 << 30], ids=["by_depth", "each"])
@law_settings(300)
@given(value=_mixed())
def test_the_fast_checks_refuse_what_the_walk_refuses(large: int, value: Any) -> None:
    """With the same place and reason."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(values_module, "LARGE", large)
        assert outcome(canonical, value) == outcome(_check_whole, value)


@many
@given(json_values | _mixed())
def test_the_fast_checks_accept_what_the_walk_accepts(value: Any) -> None:
    """So that the walk is seldom needed."""
    if outcome(canonical, value) is None and not isinstance(value, str | int | float | None):
        assert _is_strict_by_depth(value, has_null=True)
        assert _is_strict_by_depth(value, has_null=False)
        assert _is_strict_each(value, values_module._SCALARS)


@pytest.mark.parametrize("bad", [*_BAD, *_ODD], ids=lambda bad: f"{type(bad).__name__} {str(bad)[:20]}")
@pytest.mark.parametrize("large", [0, 1 << 30], ids=["by_depth", "each"])
def test_a_bad_value_is_found_anywhere(bad: Any, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a list, as a member, deep inside, and beside equal values that are good."""
    monkeypatch.setattr(values_module, "LARGE", large)
    beside = [1, {"a": 1}, {"a": None}, {"a": bad}]
    for value in (bad, [bad], {"a": bad}, [{"a": 1.5, "b": [bad]}], beside, {"a": [[bad]]}):
        found = outcome(canonical, value)
        assert found is not None
        assert found == outcome(_check_whole, value)


@pytest.mark.parametrize("large", [0, 1 << 30], ids=["by_depth", "each"])
def test_a_cycle_is_refused(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_module, "LARGE", large)
    ring: list[Any] = [1]
    ring.append({"a": ring})
    assert outcome(canonical, ring) == outcome(_check_whole, ring)
    assert outcome(canonical, ring) is not None


@pytest.mark.parametrize("large", [0, 1 << 30], ids=["by_depth", "each"])
def test_a_dict_that_once_had_other_keys_is_accepted(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python stores it in another form."""
    monkeypatch.setattr(values_module, "LARGE", large)
    changed: dict[Any, Any] = {"a": 1, 2: 3}
    del changed[2]
    assert canonical([changed]) == b'[{"a":1}]'


@pytest.mark.parametrize("large", [0, 1 << 30], ids=["by_depth", "each"])
def test_a_long_list_of_fractions_is_not_walked(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its JSON consists of digits, as that of an integer that is too long."""
    fractions = [number / 7 for number in range(1, 1536)]
    monkeypatch.setattr(values_module, "LARGE", large)
    for value in ([*fractions, 10**700], [*fractions, {"a": 2**2048}]):
        assert outcome(canonical, value) == outcome(_check_whole, value) is not None
    monkeypatch.setattr(values_module, "_check_whole", None)
    assert canonical(fractions) == json.dumps(fractions, separators=(",", ":")).encode()


@many
@given(json_values | _anything)
def test_json_is_recognised(value: Any) -> None:
    """`canonical_if_json` returns the same bytes as `canonical`, and None for what `canonical` refuses."""
    found = canonical_if_json(value)
    if outcome(canonical, value) is not None:
        assert found is None
    elif found is not None or len(canonical(value)) < values_module.LONG_INTEGER:  # else perhaps a long integer
        assert found == canonical(value)
        assert decode(found) == value


@pytest.mark.parametrize("bad", [Text("a"), b"bytes", float("nan"), {1: 2}], ids=repr)
@pytest.mark.parametrize("large", [0, 1 << 30], ids=["by_depth", "each"])
def test_the_attributes_of_an_object_are_checked(bad: Any, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may keep the values of such a dict in the object."""
    monkeypatch.setattr(values_module, "LARGE", large)
    thing = SimpleThing(bad)
    assert outcome(canonical, [thing.__dict__]) == outcome(_check_whole, [thing.__dict__])
    assert canonical(SimpleThing(1).__dict__) == b'{"content":1}'


def reordered(value: Any, reverse: bool) -> Any:
    """Return an equal value with the members of every object in another order."""
    if isinstance(value, dict):
        return {key: reordered(value[key], reverse) for key in sorted(value, reverse=reverse)}
    return [reordered(item, reverse) for item in value] if isinstance(value, list) else value


@many
@given(json_values)
def test_every_strict_value_is_decoded_equal(value: Any) -> None:
    """decode(encode(x)) == x."""
    assert parse(canonical(value)) == value


@many
@given(json_values)
def test_every_strict_value_is_decoded_with_its_type(value: Any) -> None:
    """The decoded value has the same bytes, so 1 is not 1.0, and a zero keeps its sign."""
    assert canonical(parse(canonical(value))) == canonical(value)


@some
@given(json_values)
def test_every_strict_value_can_be_read_with_other_tools(value: Any) -> None:
    """The standard library decodes the same value."""
    assert json.loads(canonical(value)) == value


@some
@given(json_values)
def test_the_bytes_do_not_depend_on_the_order_of_keys(value: Any) -> None:
    """Equal values have equal bytes, at every depth."""
    assert canonical(reordered(value, reverse=True)) == canonical(reordered(value, reverse=False)) == canonical(value)


@some
@given(_without_floats)
def test_the_bytes_are_those_of_the_standard_library(value: Any) -> None:
    """Without floats, json.dumps with sorted keys, no spaces and UTF-8 writes the same."""
    expected = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    assert canonical(value) == expected


@many
@given(_anything)
def test_any_value_is_decoded_unchanged_or_refused(value: Any) -> None:
    """No value is converted silently."""
    try:
        data = canonical(value)
    except InvalidValue:
        return
    assert parse(data) == value


@some
@given(json_values)
def test_every_payload_returns_its_value(value: Any) -> None:
    assert inline(value).value() == value


@some
@given(st.binary(max_size=30) | st.text(st.sampled_from('[]{}",:0123456789.-+eE\\u tfn'), max_size=30))
def test_any_text_is_a_value_or_refused(data: bytes | str) -> None:
    """No other error is raised."""
    try:
        value = parse(data)
    except InvalidValue:
        return
    assert parse(canonical(value)) == value


@many
@given(bodies)
def test_every_body_of_every_kind_is_decoded_unchanged(body: Any) -> None:
    """decode(encode(body)) == body, and encoding it again gives the same bytes."""
    kind, data = VOCABULARY.kind_of(body), encode(body)
    back = VOCABULARY.decode(kind.name, kind.version, data)
    assert (back, encode(back)) == (body, data)


@some
@given(st.sampled_from(KINDS), st.binary(max_size=30) | json_values.map(canonical))
def test_any_bytes_are_a_body_or_damaged(kind: Any, data: bytes) -> None:
    """No other error is raised."""
    try:
        body = VOCABULARY.decode(kind.name, 1, data)
    except (NewerVersion, DamagedEvent):
        return
    assert isinstance(body, kind.body)


@pytest.mark.parametrize("depth", [1, 63, 64])
def test_encoding_and_decoding_have_the_same_depth_limit(depth: int) -> None:
    """Everything that can be encoded can be decoded."""
    text = b"[" * depth + b"]" * depth
    assert canonical(parse(text)) == text
