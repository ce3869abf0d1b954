"""Laws of values: what is stored comes back, in bytes that depend on the value alone."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.errors import DamagedEvent, InvalidValue, NewerVersion
from limpet.events import KINDS, VOCABULARY, canonical, inline, parse
from limpet.events.values import encode
from tests.laws.values import bodies, json_values

some = settings(deadline=None, derandomize=True, max_examples=100)
many = settings(deadline=None, derandomize=True, max_examples=200)

_without_floats = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**2048) + 1, 2**2048 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
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


def reordered(value: Any, reverse: bool) -> Any:
    """An equal value in which every object lists its members in another order."""
    if isinstance(value, dict):
        return {key: reordered(value[key], reverse) for key in sorted(value, reverse=reverse)}
    return [reordered(item, reverse) for item in value] if isinstance(value, list) else value


@many
@given(json_values)
def test_every_strict_value_comes_back_equal(value: Any) -> None:
    """decode(encode(x)) == x."""
    assert parse(canonical(value)) == value


@many
@given(json_values)
def test_every_strict_value_comes_back_of_the_same_type(value: Any) -> None:
    """What came back has the very same bytes, so 1 is not 1.0 and a zero keeps its sign."""
    assert canonical(parse(canonical(value))) == canonical(value)


@some
@given(json_values)
def test_every_strict_value_can_be_read_with_other_tools(value: Any) -> None:
    """The standard library reads the same value."""
    assert json.loads(canonical(value)) == value


@some
@given(json_values)
def test_the_bytes_do_not_depend_on_the_order_of_keys(value: Any) -> None:
    """Equal values have equal bytes, at every depth."""
    assert canonical(reordered(value, reverse=True)) == canonical(reordered(value, reverse=False)) == canonical(value)


@some
@given(_without_floats)
def test_the_bytes_are_those_of_the_standard_library(value: Any) -> None:
    """Sorted keys, no spaces, UTF-8: without floats, json.dumps writes the same."""
    expected = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    assert canonical(value) == expected


@many
@given(_anything)
def test_whatever_is_given_comes_back_or_is_refused(value: Any) -> None:
    """There is no third way: nothing is turned into something else in silence."""
    try:
        data = canonical(value)
    except InvalidValue:
        return
    assert parse(data) == value


@some
@given(json_values)
def test_every_payload_gives_its_value_back(value: Any) -> None:
    """The wrapper adds nothing and takes nothing away."""
    assert inline(value).value() == value


@some
@given(st.binary(max_size=30) | st.text(st.sampled_from('[]{}",:0123456789.-+eE\\u tfn'), max_size=30))
def test_any_text_is_a_value_or_refused(data: bytes | str) -> None:
    """No input raises anything but the one typed error."""
    try:
        value = parse(data)
    except InvalidValue:
        return
    assert parse(canonical(value)) == value


@many
@given(bodies)
def test_every_body_of_every_kind_comes_back_from_its_bytes(body: Any) -> None:
    """decode(encode(body)) == body, and its bytes are the same once more."""
    kind, data = VOCABULARY.kind_of(body), encode(body)
    back = VOCABULARY.decode(kind.name, kind.version, data)
    assert (back, encode(back)) == (body, data)


@some
@given(st.sampled_from(KINDS), st.binary(max_size=30) | json_values.map(canonical))
def test_any_bytes_are_a_body_or_stop(kind: Any, data: bytes) -> None:
    """No input raises anything but the one typed error."""
    try:
        body = VOCABULARY.decode(kind.name, 1, data)
    except (NewerVersion, DamagedEvent):
        return
    assert isinstance(body, kind.body)


@pytest.mark.parametrize("depth", [1, 63, 64])
def test_depth_is_counted_alike_on_both_ways(depth: int) -> None:
    """What can be written can be read."""
    text = b"[" * depth + b"]" * depth
    assert canonical(parse(text)) == text
