"""Checks of values against a JSON Schema."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel

from limpet.engine.definitions.schema_check import faults
from limpet.engine.definitions.types import codec_of
from limpet.errors import InvalidValue


@dataclass
class Order:
    cents: int
    tags: list[str]


def test_multiple_of_is_checked_for_any_number() -> None:
    """Numbers and schemas of any size are checked without an error, since a model may have written them."""
    for value, of in ((6, 3), (0.3, 0.1), (3 * 10**400, 3)):
        assert faults(value, {"multipleOf": of}) == []
    for value, of in ((7, 3), (0.35, 0.1), (10**400, 3), (10**400, 0.5), (1e308, 1e-10), (1, 0)):
        assert faults(value, {"multipleOf": of}) == [f"value: expected a multiple of {of}"]


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (int, "3", ["answer: expected int, got str"]),
        (int, True, ["answer: expected int, got bool"]),
        (int, 3.0, ["answer: expected int, got float"]),
        (bool, 1, ["answer: expected bool, got int"]),
        (float, 3, []),
        (int | None, "3", ["answer: expected int or None, got str"]),
        (list[int], [1, "2"], ["answer[1]: expected int, got str"]),
        (Order, {"cents": "3", "note": 1}, ["tags: missing", "cents: expected int, got str"]),
        (Order | None, {"cents": "3", "tags": []}, ["cents: expected int, got str"]),
        (dict[str, Order], {"a": {"cents": 1, "tags": [1]}}, ["a.tags[0]: expected str, got int"]),
        (Literal[1, 2], True, ["answer: expected one of [1, 2]"]),
        (Literal[1, 2], 1.0, ["answer: expected one of [1, 2]"]),
        (Literal["a"], "b", ["answer: expected one of ['a']"]),
        (Annotated[int, msgspec.Meta(ge=1, lt=9)], 9, ["answer: expected less than 9"]),
        (Annotated[int, msgspec.Meta(ge=1, lt=9)], 0, ["answer: expected at least 1"]),
    ],
)
def test_a_mismatch_names_its_place_and_both_types(hint: Any, value: Any, expected: list[str]) -> None:
    """Values are not bent: a number as text, a bool as a number or a float as an int does not fit."""
    assert faults(value, codec_of(hint).schema(), "answer") == expected
    assert list(codec_of(hint).faults(value, "answer")) == expected


def test_an_unknown_member_is_refused_with_the_known_ones() -> None:
    schema = {"type": "object", "properties": {"cents": {}, "to": {}}, "additionalProperties": False}
    assert faults({"cent": 1}, schema) == ["cent: unknown; expected cents, to"]


def test_both_libraries_name_places_and_types_alike() -> None:
    """msgspec for dataclasses, and pydantic for its models."""

    class Model(BaseModel):
        cents: int
        tags: list[str]

    for value in ({"cents": "3", "tags": []}, {"cents": 1, "tags": [1]}, {"cents": 1}, {"cents": 1, "tags": "a"}):
        found = []
        for kind in (Order, Model):
            with pytest.raises(InvalidValue) as refused:
                codec_of(kind).load(value)
            found.append(refused.value.at("order"))
        assert found[0] == found[1]
        assert codec_of(Model).faults(value) == codec_of(Order).faults(value) == (found[0],)
