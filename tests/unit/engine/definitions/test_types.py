"""Values by annotation: what goes in comes back, and what cannot is refused."""

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
from tests.laws.values import json_values

T = TypeVar("T")


class Colour(Enum):
    """Some."""

    RED = "red"


class Model(BaseModel):
    """pydantic's."""

    id: str
    cents: int = 0


class Page(BaseModel, Generic[T]):
    """A generic of pydantic's."""

    items: list[T]


class Struct(msgspec.Struct):
    """msgspec's."""

    id: str
    when: datetime


class Typed(TypedDict):
    """A dictionary with names."""

    id: str
    n: int


class Pair(NamedTuple):
    """A tuple with names."""

    left: int
    right: str


@dataclass
class Record:
    """Plain, with a plain one inside."""

    id: str
    tags: tuple[str, ...] = ()
    inner: "Record | None" = None


@dataclass
class Mixed:
    """Plain, with one of pydantic's inside."""

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
def test_a_value_comes_back_as_its_declared_type(hint: Any, value: Any) -> None:
    """Through the very bytes that are stored."""
    back = codec_of(hint).load(parse(canonical(codec_of(hint).dump(value))))
    assert back == value
    assert type(back) is type(value)


@given(json_values)
def test_plain_json_needs_no_declaration(value: Any) -> None:
    """It comes back as it is."""
    assert codec_of(Any).load(codec_of(Any).dump(value)) == value


@pytest.mark.parametrize(
    "value", [Model(id="x", cents=5), Record("x"), Struct("x", NOW)], ids=lambda v: type(v).__name__
)
def test_a_record_that_nobody_declared_comes_back_as_json(value: Any) -> None:
    """Nothing in the data says what it was."""
    plain = codec_of(Any).dump(value)
    assert plain["id"] == "x"
    assert codec_of(Any).load(plain) == plain


@pytest.mark.parametrize("value", [b"x", {1, 2}, (1, 2), {1: 2}, float("nan"), object(), "\ud800", Colour.RED, [NOW]])
def test_what_nobody_declared_and_json_cannot_carry_is_refused(value: Any) -> None:
    """It would come back as something else."""
    with pytest.raises(InvalidValue):
        codec_of(Any).dump(value)


@pytest.mark.parametrize(("hint", "value"), [(list[float], [float("inf")]), (bytes, b"x"), (Record, object())])
def test_what_json_cannot_carry_is_refused_where_it_is_declared_too(hint: Any, value: Any) -> None:
    """Numbers without a value, bytes, foreign objects."""
    with pytest.raises(InvalidValue):
        codec_of(hint).dump(value)


@pytest.mark.parametrize(
    ("hint", "plain"),
    [(int, "5"), (Record, {"tags": []}), (Model, {"id": "x", "cents": "many"}), (Colour, "blue"), (Typed, {"id": 1})],
)
def test_json_of_another_type_is_refused_with_a_reason(hint: Any, plain: Any) -> None:
    """As the library says it, in one line."""
    with pytest.raises(InvalidValue) as raised:
        codec_of(hint).load(plain)
    assert raised.value.reason
    assert "\n" not in raised.value.reason


def test_an_annotation_without_a_hash_has_a_shape() -> None:
    """It is only not remembered."""
    hint = Literal["a"] | list[Literal["b"]]
    assert codec_of(hint).load(["b"]) == ["b"]
    assert codec_of(dict[str, Any] | None).load({"a": [1]}) == {"a": [1]}


def test_a_set_is_the_same_in_every_process() -> None:
    """Its order does not depend on how this process hashes text: a digest of it must not change on resume."""
    assert codec_of(set[str]).dump({"c", "a", "b"}) == ["a", "b", "c"]


def test_pydantic_is_imported_only_for_its_own() -> None:
    """It costs a third of a second."""
    program = (
        "import sys; from limpet.engine.definitions.types import codec_of; codec_of(dict[str, int]).dump({'a': 1}); "
    )
    subprocess.run([sys.executable, "-c", f"{program} assert 'pydantic' not in sys.modules"], check=True)
