"""Hostile payloads, and the types that agents declare against them."""

from collections import ChainMap, Counter, OrderedDict, UserDict, UserString, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from functools import partial
from pathlib import PurePosixPath
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, NotRequired

import msgspec
from pydantic import BaseModel, ConfigDict, field_validator
from typing_extensions import TypedDict

__all__ = ["OWN", "PAYLOADS", "TARGETS", "Payload", "is_same", "is_well_formed", "payloads_of"]

# Types that agents declare


class ModelPlace(BaseModel):
    """A pydantic model inside a pydantic model."""

    street: str


class ModelOrder(BaseModel):
    """An order as a pydantic model. Its validator refuses one id and fails with a bug for another."""

    id: str
    count: int
    price: float
    tags: list[str]
    place: ModelPlace
    note: str | None = None

    @field_validator("id")
    @classmethod
    def is_wanted(cls, value: str) -> str:
        if value == "unwanted":
            raise ValueError("nobody wants this")
        if value == "broken":
            raise KeyError("a validator with a bug")
        return value


class ClosedOrder(ModelOrder):
    """The same model without extra fields."""

    model_config = ConfigDict(extra="forbid")


@dataclass
class DataPlace:
    street: str


@dataclass
class DataOrder:
    """An order as a dataclass."""

    id: str
    count: int
    price: float
    tags: list[str]
    place: DataPlace
    note: str | None = None

    def __post_init__(self) -> None:
        if self.id == "unwanted":
            raise ValueError("nobody wants this")
        if self.id == "broken":
            raise KeyError("a __post_init__ with a bug")


class StructPlace(msgspec.Struct):
    street: str


class StructOrder(msgspec.Struct, forbid_unknown_fields=True):
    """An order as a msgspec struct without extra fields."""

    id: str
    count: int
    price: float
    tags: list[str]
    place: StructPlace
    note: str | None = None


class DictPlace(TypedDict):
    street: str


class DictOrder(TypedDict):
    """An order as a TypedDict."""

    id: str
    count: int
    price: float
    tags: list[str]
    place: DictPlace
    note: NotRequired[str | None]


TARGETS: dict[str, Any] = {
    "pydantic": ModelOrder,
    "closed": ClosedOrder,
    "dataclass": DataOrder,
    "msgspec": StructOrder,
    "typeddict": DictOrder,
    "json": Any,
}
CLOSED = ("closed", "msgspec")
FIELDS = {"id": str, "count": int, "price": float, "tags": list, "place": object, "note": str | None}


def is_well_formed(target: str, value: Any) -> bool:
    """Return whether a value has the declared type, down to every field."""
    if target == "json":
        return _is_json(value)
    if target == "typeddict":
        if type(value) is not dict or not {"id", "count", "price", "tags", "place"} <= set(value) <= set(FIELDS):
            return False
        value = SimpleNamespace(**{"note": None, **value, "place": SimpleNamespace(**value["place"])})
    elif type(value) is not TARGETS[target]:
        return False
    kinds = {"id": (str,), "count": (int,), "price": (float, int), "tags": (list,), "note": (str, type(None))}
    fits = all(type(getattr(value, name)) in kind for name, kind in kinds.items())
    return fits and all(type(tag) is str for tag in value.tags) and type(value.place.street) is str


def _is_json(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _is_json(each) for key, each in value.items())
    if type(value) is list:
        return all(map(_is_json, value))
    return value is None or type(value) in (str, int, float, bool)


def is_same(sent: Any, got: Any) -> bool:
    """Return whether a received value equals the sent one: the same values of the same types, in fields or members.

    Unknown members may be left out, and defaults may be added.
    """
    if isinstance(sent, bool) or isinstance(got, bool):
        return sent is got
    if isinstance(sent, list | tuple):
        return isinstance(got, list) and len(sent) == len(got) and all(map(is_same, sent, got))
    one, other = _members(sent), _members(got)
    if one is not None and other is not None:
        whole = type(got) is dict and type(sent) is dict and set(got) - set(FIELDS) == set(sent) - set(FIELDS)
        known = set(other) if not whole else set(one) | set(other)
        return all(is_same(one.get(name), other.get(name)) for name in known)
    return one is None and other is None and isinstance(got, str) == isinstance(sent, str) and bool(sent == got)


def _members(value: Any) -> dict[str, Any] | None:
    if isinstance(value, dict):
        return dict(dict.items(value))  # the real content, whatever its methods return
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, BaseModel | DataOrder | DataPlace):
        return dict(vars(value))
    return None


# Payloads


class Payload(NamedTuple):
    """Something to send, whether it is JSON, and whether it matches the declared types."""

    name: str
    make: Callable[[], Any]
    is_json: bool = False
    fits: bool = False
    is_extra: bool = False
    """Whether it matches only types that allow extra fields."""

    def arrives(self, target: str) -> bool:
        """Return whether it matches this agent's type."""
        return self.is_json if target == "json" else self.fits and not (self.is_extra and target in CLOSED)


def order(**other: Any) -> dict[str, Any]:
    """Return a valid order with some members replaced."""
    return {"id": "o-1", "count": 2, "price": 1.5, "tags": ["a", "b"], "place": {"street": "Main"}, **other}


def _identity(value: Any) -> Any:
    return value


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in order().items() if key != name}


def nested(depth: int, kind: type = list) -> Any:
    found: Any = "x"
    for _ in range(depth):
        found = [found] if kind is list else {"a": found}
    return found


class Text(str):
    """A str that encodes as something else."""

    __slots__ = ()

    def encode(self, *_: Any, **__: Any) -> bytes:
        return b"something else"

    def __str__(self) -> str:
        return "something else"


class Whole(int):
    def __str__(self) -> str:
        return "7"

    def __index__(self) -> int:
        return 7


class Real(float):
    def __repr__(self) -> str:
        return "7.0"


class Members(dict[str, Any]):
    """A dict whose methods disagree about its content."""

    def items(self) -> Any:
        return [("id", 7)]

    def keys(self) -> Any:
        return ["id"]

    def __iter__(self) -> Iterator[str]:
        return iter(["evil"])


class Endless:
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 1

    def __len__(self) -> int:
        return 1


class Raising:
    """Raises in every method."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[Any]:
        raise ZeroDivisionError

    def __bool__(self) -> bool:
        raise ZeroDivisionError

    def __len__(self) -> int:
        raise ZeroDivisionError


class Unprintable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


class Equal:
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


class Liar(BaseModel):
    """A model that dumps invalid data."""

    id: int = 7

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return order(count="many")


class Undumpable(BaseModel):
    """A model whose dump raises."""

    id: int = 7

    def model_dump(self, **_: Any) -> dict[str, Any]:
        raise ZeroDivisionError


class FakeModel:
    """A class that only looks like a model."""

    __pydantic_validator__ = None

    def model_dump(self, **_: Any) -> dict[str, Any]:
        raise ZeroDivisionError


@dataclass
class FakeOrder:
    """A dataclass with the right fields and wrong values."""

    id: Any = "o-1"
    count: Any = 2
    price: Any = 1.5
    tags: Any = field(default_factory=lambda: ["a"])
    place: Any = field(default_factory=lambda: {"street": "Main"})


class Triple(NamedTuple):
    id: str = "o-1"
    number: int = 2


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


def circle() -> Any:
    found: dict[str, Any] = order()
    found["place"] = found
    return found


def ring() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


def _json(name: str, make: Callable[[], Any], *, fits: bool = False, extra: bool = False) -> Payload:
    return Payload(name, make, is_json=True, fits=fits, is_extra=extra)


def _cases() -> Iterator[Payload]:
    yield _json("well-formed", order, fits=True)
    yield _json("with a note", lambda: order(note="x"), fits=True)
    yield _json("with no note", lambda: order(note=None), fits=True)
    yield from (_json(f"without {name}", partial(without, name)) for name in order())
    yield from (_json(f"{name} is null", partial(order, **{name: None})) for name in order())
    yield from (_json(f"{name} is a list in a list", partial(order, **{name: [[]]})) for name in order())
    yield from (_json(f"{name} is an object", partial(order, **{name: {"x": 1}})) for name in order())
    wholes: list[Any] = [None, True, 0, 1.5, "", "o-1", [], {}, [order()], {"order": order()}]
    yield from (_json(f"all of it is {whole!r}"[:40], partial(_identity, whole)) for whole in wholes)
    misfits: tuple[tuple[str, Any], ...] = (
        ("count", "2"),
        ("count", "two"),
        ("count", True),
        ("count", 2.5),
        ("count", "0x10"),
        ("price", "1.5"),
        ("price", "NaN"),
        ("price", True),
        ("id", 1),
        ("id", True),
        ("tags", "ab"),
        ("tags", {"0": "a"}),
        ("tags", ["a", 1]),
        ("tags", ["a", None]),
        ("place", "Main"),
        ("place", [["street", "Main"]]),
        ("place", {"Street": "Main"}),
        ("place", {"street": 1}),
        ("note", 1),
        ("note", []),
    )
    for name, value in misfits:
        yield _json(f"{name} is {value!r}", partial(order, **{name: value}))
    yield from (_json(f"count is {bits} bits", partial(order, count=1 << bits), fits=True) for bits in BITS)
    oddities: tuple[tuple[str, Any], ...] = (
        ("id", ""),
        ("id", "\0"),
        ("id", "\u202e\ufeff\ufffd\U0001f4a9"),
        ("id", "é e\u0301"),
        ("id", '{"id": 1}'),
        ("id", "x" * 10_000_000),
        ("count", -1),
        ("count", -(2**63)),
        ("price", -0.0),
        ("price", 5e-324),
        ("price", 1.7976931348623157e308),
        ("price", 2),
        ("tags", []),
        ("tags", ["x"] * 20_000),
        ("note", "null"),
    )
    for name, value in oddities:
        shown = f"{value!r}"[:30]
        yield _json(f"{name} is {shown}", partial(order, **{name: value}), fits=True)
    markers: tuple[tuple[str, Any], ...] = (
        ("__class__", "os.system"),
        ("__reduce__", ["os.system", ["true"]]),
        ("__proto__", {"admin": True}),
        ("lc", 1),
        ("$type", "System.Diagnostics.Process"),
        ("$ref", "#/id"),
        ("py/object", "os.system"),
        ("type", "constructor"),
        ("json", {"blob": "x"}),
        ("blob", "0" * 64),
        ("model_config", {}),
        ("__dict__", {}),
        ("ID", "o-2"),
        ("id ", "o-2"),
        ("ｉｄ", "o-2"),
        ("i\u200bd", "o-2"),
        ("", "nothing"),
        ("id\0", "o-2"),
    )
    for key, value in markers:
        yield _json(f"has {key!r} too", partial(order, **{key: value}), fits=True, extra=True)
    yield _json("60 levels deep", lambda: nested(60))
    yield _json("60 levels of objects", lambda: nested(60, dict))
    yield from _not_json()


BITS = (31, 53, 63, 64, 100, 1000, 2047)


def _not_json() -> Iterator[Payload]:
    whole: dict[str, Callable[[], Any]] = {
        "65 levels deep": lambda: nested(65),
        "65 levels of objects": lambda: nested(65, dict),
        "100,000 levels deep": lambda: nested(100_000),
        "a list in itself": ring,
        "a dict in itself": circle,
        "bytes of JSON": lambda: b'{"id": "o-1"}',
        "a generator": lambda: (each for each in "ab"),
        "a function": lambda: order,
        "a class": lambda: ModelOrder,
        "an object": object,
        "endless": Endless,
        "raising": Raising,
        "unprintable": Unprintable,
        "equal to everything": Equal,
        "posing as a model": FakeModel,
        "a model that does not dump": Undumpable,
        "a dict of its own kind": lambda: Members(order()),
        "an ordered dict": lambda: OrderedDict(order()),
        "a default dict": lambda: defaultdict(str, order()),
        "a counter": lambda: Counter("ab"),
        "a proxy of a dict": lambda: MappingProxyType(order()),
        "a user's dict": lambda: UserDict(order()),
        "a chain of dicts": lambda: ChainMap(order()),
        "a namespace": lambda: SimpleNamespace(**order()),
        "a named tuple": Triple,
        "an error": lambda: ValueError("x"),
        "not implemented": lambda: NotImplemented,
        "an ellipsis": lambda: ...,
    }
    yield from (Payload(name, make) for name, make in whole.items())
    members: tuple[tuple[str, Any], ...] = (
        ("price", float("nan")),
        ("price", float("inf")),
        ("price", float("-inf")),
        ("price", Decimal("1.5")),
        ("price", Fraction(3, 2)),
        ("price", Real(1.5)),
        ("price", 1j),
        ("count", 1 << 2048),
        ("count", -(1 << 100_000)),
        ("count", Whole(2)),
        ("count", Level.LOW),
        ("count", Decimal(2)),
        ("id", "\ud800"),
        ("id", "ok \udfff"),
        ("id", b"o-1"),
        ("id", bytearray(b"o-1")),
        ("id", memoryview(b"o-1")),
        ("id", Text("o-1")),
        ("id", UserString("o-1")),
        ("id", Word.YES),
        ("id", Colour.RED),
        ("id", datetime(2026, 1, 1, tzinfo=UTC)),
        ("id", date(2026, 1, 1)),
        ("id", timedelta(1)),
        ("id", PurePosixPath("o-1")),
        ("id", Equal()),
        ("id", Raising()),
        ("tags", {"a", "b"}),
        ("tags", frozenset("ab")),
        ("tags", deque(["a", "b"])),
        ("tags", iter(["a", "b"])),
        ("tags", range(2)),
        ("tags", Endless()),
        ("tags", [["a"], {"b"}]),
        ("tags", ["a", "\ud800"]),
        ("tags", ["a", b"b"]),
        ("tags", ["a", float("nan")]),
        ("place", {1: "Main"}),
        ("place", {"street": "Main", None: 1}),
        ("place", {("street",): "Main"}),
        ("place", {"street": "Main", "\ud800": 1}),
        ("place", {"street": "Main", Text("x"): 1}),
        ("place", {Unprintable(): "Main"}),
        ("place", {"street": "Main", "more": Raising()}),
        ("place", {"street": "Main", "more": Undumpable()}),
    )
    for number, (name, value) in enumerate(members):
        shown = type(value).__name__
        yield Payload(f"{name} is a {shown} ({number})", partial(order, **{name: value}))


PAYLOADS = tuple(_cases())

# Objects of the declared types with invalid fields


def _valid(target: str) -> Any:
    place = {"pydantic": ModelPlace, "closed": ModelPlace, "dataclass": DataPlace, "msgspec": StructPlace}[target]
    return TARGETS[target](**order(place=place(street="Main")))


def _corrupted(target: str, name: str, value: Any) -> Any:
    found = _valid(target)
    setattr(found, name, value)
    return found


def _own(target: str) -> Iterator[Payload]:
    yield _json("its own", lambda: _valid(target), fits=True)
    spoils: tuple[tuple[str, Any], ...] = (
        ("id", 7),
        ("id", None),
        ("id", b"o-1"),
        ("id", "\ud800"),
        ("count", "2"),
        ("count", "many"),
        ("count", None),
        ("count", 1 << 5000),
        ("price", "x"),
        ("price", float("nan")),
        ("price", float("inf")),
        ("tags", "ab"),
        ("tags", [1]),
        ("tags", [None]),
        ("tags", {"a"}),
        ("place", None),
        ("place", "Main"),
        ("place", Raising()),
        ("place", Undumpable()),
    )
    for number, (name, value) in enumerate(spoils):
        shown = f"its own with {name} {type(value).__name__} ({number})"
        yield Payload(shown, partial(_corrupted, target, name, value))
    for other in ("pydantic", "dataclass", "msgspec"):
        if other != target:
            yield Payload(f"that of {other} with a bad count", partial(_corrupted, other, "count", "many"))
    yield Payload("a sly one", lambda: FakeOrder(count=[object()]))
    yield Payload("its class", lambda: TARGETS[target])


OWN = {target: tuple(_own(target)) for target in ("pydantic", "closed", "dataclass", "msgspec")}


def payloads_of(target: str) -> tuple[Payload, ...]:
    """Return everything that is sent to one kind of agent."""
    own = OWN.get(target, ())
    if target in ("pydantic", "closed", "dataclass"):
        own = (*own, _json("refused by its validator", lambda: order(id="unwanted")))
        own = (*own, _json("refused by a validator with a bug", lambda: order(id="broken")))
    return (*PAYLOADS, *own)
