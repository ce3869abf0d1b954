"""Stub results: the simplest value that fits a schema."""

from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta
from pydantic import BaseModel, Field

from limpet.engine.definitions.types import codec_of
from limpet.engine.steps.stub_results import sample


class Order(BaseModel):
    id: str = Field(min_length=3)
    cents: int = Field(gt=5)
    when: datetime
    lines: list[str] = Field(min_length=2)
    note: str | None = None


class Tree(BaseModel):
    name: str
    left: "Tree | None"


@dataclass
class Point:
    x: float
    kind: Literal["a", "b"]


@pytest.mark.parametrize(
    "hint",
    [
        None,
        str,
        int,
        float,
        bool,
        date,
        Order,
        Tree,
        Point,
        list[Order],
        dict[str, int],
        tuple[int, str],
        Order | None,
        int | str,
        Literal["x", "y"],
        Annotated[int, Meta(ge=3)],
        Annotated[int, Meta(lt=-3)],
        Annotated[str, Meta(min_length=4)],
        Annotated[list[int], Meta(min_length=2)],
    ],
    ids=str,
)
def test_a_sample_fits_its_type(hint: Any) -> None:
    """The sample loads as the declared type, and is the same each time."""
    declared = codec_of(hint)
    made = sample(declared.schema())
    declared.load(made)
    assert made == sample(declared.schema())


def test_a_recursive_schema_gives_a_finite_sample() -> None:
    assert sample(codec_of(Tree).schema())["name"] == ""
    assert sample({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}) is None


def test_an_empty_schema_gives_none() -> None:
    assert sample({}) is None
    assert sample(codec_of(Any).schema()) is None
