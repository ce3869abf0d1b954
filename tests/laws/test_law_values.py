"""Laws of values: values are decoded unchanged, and their bytes depend only on the value."""

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
