"""Forms made from schemas: the fields of a value, and the value of the fields."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.errors import InvalidArgument
from limpet.web.ui.schema_forms import fields_of, value_of

ORDER = {
    "$defs": {
        "Order": {
            "properties": {
                "cents": {"default": 5, "type": "integer", "minimum": 1},
                "how": {"default": "card", "enum": ["card", "cash"]},
                "id": {"type": "string"},
                "lines": {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}], "default": None},
                "urgent": {"default": False, "type": "boolean"},
                "rate": {"type": "number"},
            },
            "required": ["id"],
            "type": "object",
        }
    },
    "$ref": "#/$defs/Order",
}


def form_of(schema: Any, value: Any) -> dict[str, str]:
    """Return what a browser sends if a form is not changed."""
    fields = fields_of(schema, value, prefix="in")
    return {
        each.name: each.value if each.kind != "boolean" else "on"
        for each in fields
        if each.kind != "boolean" or each.value == "true"
    }


def test_an_object_has_a_field_per_property_the_required_ones_first() -> None:
    """With its default, its choices and what may be typed."""
    fields = fields_of(ORDER, prefix="in")
    assert [(each.name, each.kind, each.value, each.is_required) for each in fields] == [
        ("in.id", "text", "", True),
        ("in.cents", "integer", "5", False),
        ("in.how", "choice", "card", False),
        ("in.lines", "json", "", False),
        ("in.urgent", "boolean", "false", False),
        ("in.rate", "number", "", False),
    ]
    by_name = {each.label: each for each in fields}
    assert by_name["cents"].hint == "a whole number, at least 1"
    assert by_name["how"].choices == ("card", "cash")
    assert by_name["lines"].hint == "as JSON, a list of strings"


def test_the_value_has_what_was_typed() -> None:
    """Fields that are left empty are left out; a checkbox that is not checked is false."""
    form = {"in.id": "o-1", "in.cents": " 7 ", "in.how": "cash", "in.lines": '["a"]', "in.urgent": "on", "in.rate": ""}
    found = value_of(ORDER, form, prefix="in")
    assert found == {"id": "o-1", "cents": 7, "how": "cash", "lines": ["a"], "urgent": True}
    assert value_of(ORDER, {"in.id": "o-1"}, prefix="in")["urgent"] is False


@pytest.mark.parametrize(
    ("form", "path", "reason"),
    [
        ({"in.id": "x", "in.cents": "49,00"}, "cents", "'49,00' is not a whole number"),
        ({"in.id": "x", "in.cents": "true"}, "cents", "'true' is not a number"),
        ({"in.id": "x", "in.lines": "[1"}, "lines", "not JSON"),
        ({"in.id": "x", "in.lines": '{"a": 1, "a": 2}'}, "lines", "duplicate"),
    ],
)
def test_a_fault_names_its_field(form: dict[str, str], path: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason) as caught:
        value_of(ORDER, form, prefix="in")
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "integer"}, "3", 3),
        ({"type": "string"}, "3", "3"),
        ({"type": "null"}, "", None),
        ({"type": "boolean"}, "on", True),
        ({}, '{"a": [1]}', {"a": [1]}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"a": 1}', {"a": 1}),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, '"3"', "3"),
    ],
)
def test_a_value_that_is_no_object_has_one_field(schema: Any, text: str, expected: Any) -> None:
    [field] = fields_of(schema, prefix="in")
    assert field.label == ""
    assert value_of(schema, {"in": text}, prefix="in") == expected


VALUES: Any = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(alphabet=st.characters(exclude_characters="\r", exclude_categories=["Cs"]), min_size=1),
    ),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.text("ab", min_size=1), inner, min_size=1)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), VALUES, min_size=1, max_size=4))
def test_a_form_that_is_not_changed_gives_the_same_value(value: dict[str, Any]) -> None:
    """Facts have no schema: their types are those of their values."""
    again = value_of({}, form_of({}, value), prefix="in", value=value)
    assert json.dumps(again, sort_keys=True) == json.dumps(value, sort_keys=True)


def test_a_reference_to_itself_ends() -> None:
    schema = {"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}
    assert [each.kind for each in fields_of(schema, prefix="in")] == ["json"]
