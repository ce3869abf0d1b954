"""Values by annotation: a value is read back unchanged as its declared type, or refused."""

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID  # noqa: TID251 - none is made

import msgspec
import pytest
from hypothesis import given
from pydantic import BaseModel

from limpet.engine.definitions.types import codec_of
from limpet.errors import InvalidValue
from limpet.events import canonical, parse
from tests.laws.values import json_values, law_settings

T = TypeVar("T")


class Colour(Enum):
    """An enum."""

    RED = "red"


class Model(BaseModel):
    """A pydantic model."""

    id: str
    cents: int = 0


class Page(BaseModel, Generic[T]):
    """A generic pydantic model."""

    items: list[T]


class Struct(msgspec.Struct):
    """A msgspec struct."""

    id: str
    when: datetime


class Typed(TypedDict):
    """A typed dictionary."""

    id: str
    n: int


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: str


@dataclass
class Record:
    """A dataclass that contains another."""

    id: str
    tags: tuple[str, ...] = ()
    inner: "Record | None" = None


@dataclass
class Mixed:
    """A dataclass that contains a pydantic model."""

    model: Model
    many: list[Model]


NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
VALUES: list[tuple[Any, Any]] = [
    (None, None),
    (bool, True),
    (int, 2**60),
    (float, 1.5),
    (str, "ä\0"),
    (list[int], [1, 2]),
    (dict[str, list[int]], {"a": [1]}),
    (dict[int, str], {1: "a"}),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (int | None, None),
    (int | str, "a"),
    (Literal["a", "b"], "b"),
    (Colour, Colour.RED),
    (datetime, NOW),
    (timedelta, timedelta(seconds=90)),
    (UUID, UUID(int=5)),
    (Decimal, Decimal("1.10")),
    (Typed, {"id": "x", "n": 1}),
    (Pair, Pair(1, "a")),
    (Record, Record("x", ("a",), Record("y"))),
    (Struct, Struct("x", NOW)),
    (Model, Model(id="x", cents=5)),
    (list[Model], [Model(id="x")]),
    (dict[str, Model | None], {"a": Model(id="x"), "b": None}),
    (Page[Model], Page[Model](items=[Model(id="x")])),
    (Mixed, Mixed(Model(id="x"), [Model(id="y", cents=2)])),
]


@pytest.mark.parametrize(("hint", "value"), VALUES, ids=lambda each: str(each)[:40])
def test_a_value_is_read_back_as_its_declared_type(hint: Any, value: Any) -> None:
    """The value is encoded to the stored bytes and decoded again."""
    back = codec_of(hint).load(parse(canonical(codec_of(hint).dump(value))))
    assert back == value
    assert type(back) is type(value)


@given(json_values)
def test_undeclared_json_is_read_back_unchanged(value: Any) -> None:
    assert codec_of(Any).load(codec_of(Any).dump(value)) == value


@pytest.mark.parametrize(
    "value", [Model(id="x", cents=5), Record("x"), Struct("x", NOW)], ids=lambda v: type(v).__name__
)
def test_an_undeclared_record_is_read_back_as_json(value: Any) -> None:
    """The stored data has no type."""
    plain = codec_of(Any).dump(value)
    assert plain["id"] == "x"
    assert codec_of(Any).load(plain) == plain


@pytest.mark.parametrize("value", [b"x", {1, 2}, (1, 2), {1: 2}, float("nan"), object(), "\ud800", Colour.RED, [NOW]])
def test_undeclared_values_that_are_not_json_are_refused(value: Any) -> None:
    """The value would be read back as another type."""
    with pytest.raises(InvalidValue):
        codec_of(Any).dump(value)


@pytest.mark.parametrize(("hint", "value"), [(list[float], [float("inf")]), (bytes, b"x"), (Record, object())])
def test_declared_values_that_are_not_json_are_refused(hint: Any, value: Any) -> None:
    """This applies to NaN, bytes and arbitrary objects."""
    with pytest.raises(InvalidValue):
        codec_of(hint).dump(value)


@pytest.mark.parametrize(
    ("hint", "plain"),
    [(int, "5"), (Record, {"tags": []}), (Model, {"id": "x", "cents": "many"}), (Colour, "blue"), (Typed, {"id": 1})],
)
def test_json_of_another_type_is_refused_with_a_reason(hint: Any, plain: Any) -> None:
    """The reason is that of the library, in one line."""
    with pytest.raises(InvalidValue) as raised:
        codec_of(hint).load(plain)
    assert raised.value.reason
    assert "\n" not in raised.value.reason


def test_an_unhashable_annotation_has_a_schema() -> None:
    """The schema is only not cached."""
    hint = Literal["a"] | list[Literal["b"]]
    assert codec_of(hint).load(["b"]) == ["b"]
    assert codec_of(dict[str, Any] | None).load({"a": [1]}) == {"a": [1]}


def test_a_set_has_the_same_encoding_in_every_process() -> None:
    """The order does not depend on this process's string hashes, since a digest must not change on resume."""
    assert codec_of(set[str]).dump({"c", "a", "b"}) == ["a", "b", "c"]


def test_pydantic_is_imported_only_for_its_own_types() -> None:
    """The import takes a third of a second."""
    program = (
        "import sys; from limpet.engine.definitions.types import codec_of; codec_of(dict[str, int]).dump({'a': 1}); "
    )
    subprocess.run([sys.executable, "-c", f"{program} assert 'pydantic' not in sys.modules"], check=True)


@pytest.mark.parametrize("hint", [Any, dict, dict[str, Any], list[Any], Record | None], ids=str)
@law_settings(100)
@given(value=json_values)
def test_what_is_json_already_is_recorded_as_it_is(hint: Any, value: Any) -> None:
    """Whatever the annotation is."""
    codec = codec_of(hint)
    assert codec.plain(value) == codec.dump(value) == value
    assert codec.encode(value) == canonical(value)
