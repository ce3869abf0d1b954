"""User data is strict JSON: values are read back unchanged, and their bytes never change."""

import hashlib
from collections import OrderedDict
from datetime import date
from decimal import Decimal
from enum import IntEnum, StrEnum
from pathlib import PurePath
from typing import Any

import msgspec
import pytest

from limpet.errors import InvalidValue
from limpet.events import START, Limits, Payload, Spent, canonical, digest, inline, parse, seal
from limpet.events import bodies as b

BIGGEST = 2**2048 - 1


class Colour(StrEnum):
    """A str enum."""

    RED = "red"


class Level(IntEnum):
    """An int enum."""

    LOW = 1


class Many(list[int]):
    """A subclass of list."""


class Half(float):
    """A subclass of float."""


class Point(msgspec.Struct):
    """A struct, which msgspec could encode but would decode as a dict."""

    x: int


def nested(depth: int, innermost: Any = ()) -> Any:
    """Return this many nested lists."""
    value: Any = list(innermost)
    for _ in range(depth - 1):
        value = [value]
    return value


def nested_objects(depth: int) -> Any:
    """Return this many nested objects."""
    value: Any = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


# Frozen: these pairs are the format. A release that changes one of them changes the hash of every log.
VECTORS: list[tuple[Any, bytes]] = [
    (None, b"null"),
    (True, b"true"),
    (False, b"false"),
    (0, b"0"),
    (-1, b"-1"),
    (2**53 + 1, b"9007199254740993"),
    (2**63, b"9223372036854775808"),
    (-(2**63) - 1, b"-9223372036854775809"),
    (2**64, b"18446744073709551616"),
    (10**30, b"1000000000000000000000000000000"),
    (0.0, b"0.0"),
    (-0.0, b"-0.0"),
    (1.0, b"1.0"),
    (0.1, b"0.1"),
    (1e-5, b"0.00001"),
    (1e-7, b"1e-7"),
    (1e15, b"1000000000000000.0"),
    (1e16, b"1e16"),
    (1e22, b"1e22"),
    (5e-324, b"5e-324"),
    (1.7976931348623157e308, b"1.7976931348623157e308"),
    (0.30000000000000004, b"0.30000000000000004"),
    ("", b'""'),
    ("limpet", b'"limpet"'),
    ('"\\/', b'"\\"\\\\/"'),
    ("\b\f\n\r\t", b'"\\b\\f\\n\\r\\t"'),
    ("\x00\x1f\x7f", b'"\\u0000\\u001f\x7f"'),
    ("é", b'"\xc3\xa9"'),
    ("e\u0301", b'"e\xcc\x81"'),
    ("\u2028\ufeff", b'"\xe2\x80\xa8\xef\xbb\xbf"'),
    ("😀", b'"\xf0\x9f\x98\x80"'),
    ("</script>", b'"</script>"'),
    ([], b"[]"),
    ([1, [2, []], None], b"[1,[2,[]],null]"),
    ({}, b"{}"),
    ({"b": 1, "a": 2}, b'{"a":2,"b":1}'),
    ({"a": {"d": 1, "c": [{"f": 1, "e": 2}]}}, b'{"a":{"c":[{"e":2,"f":1}],"d":1}}'),
    ({"10": 1, "9": 2, "Z": 3, "a": 4, "": 5}, b'{"":5,"10":1,"9":2,"Z":3,"a":4}'),
    ({"é": 1, "z": 2, "\uffff": 3, "😀": 4}, b'{"z":2,"\xc3\xa9":1,"\xef\xbf\xbf":3,"\xf0\x9f\x98\x80":4}'),
    ({"\n": "\n"}, b'{"\\n":"\\n"}'),
]

EDGES: list[Any] = [
    BIGGEST,
    -BIGGEST,
    -5e-324,
    2.2250738585072014e-308,
    "\ud7ff\ue000\U0010ffff",
    "\x00",
    "a" * 100_000,
    nested(64),
    nested_objects(64),
    {"": ""},
    {"\x00": None},
    [[], {}, "", 0, 0.0, False, None],
]

REFUSED: list[Any] = [
    float("nan"),
    float("inf"),
    float("-inf"),
    b"bytes",
    bytearray(b"bytes"),
    memoryview(b"bytes"),
    (),
    (1, 2),
    set(),
    frozenset({1}),
    1j,
    Decimal(1),
    date.min,
    PurePath("a"),
    object(),
    Ellipsis,
    Colour.RED,
    Level.LOW,
    Half(0.5),
    Many([1]),
    OrderedDict(a=1),
    Point(1),
    msgspec.UNSET,
    msgspec.Raw(b"1"),
    BIGGEST + 1,
    -BIGGEST - 1,
    "\ud800",
    "a\udfffb",
    {1: 1},
    {None: 1},
    {True: 1},
    {1.0: 1},
    {b"a": 1},
    {("a",): 1},
    {Colour.RED: 1},
    {Level.LOW: 1},
    {"\udc80": 1},
    nested(65),
    nested_objects(65),
]


@pytest.mark.parametrize(("value", "expected"), VECTORS)
def test_the_canonical_bytes_of_a_value_never_change(value: Any, expected: bytes) -> None:
    """Hashes of logs, idempotency keys and digests of approvals depend on these bytes."""
    assert canonical(value) == expected


@pytest.mark.parametrize("value", [value for value, _ in VECTORS] + EDGES)
def test_a_value_is_decoded_unchanged(value: Any) -> None:
    assert parse(canonical(value)) == value


@pytest.mark.parametrize("value", [True, 1, 1.0, -0.0, "1"])
def test_a_value_is_decoded_with_its_type(value: Any) -> None:
    """1, 1.0 and True are different values, although Python considers them equal."""
    back = parse(canonical(value))
    assert (type(back), repr(back)) == (type(value), repr(value))


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_values_that_are_not_json_are_refused(value: Any) -> None:
    """NaN, bytes, tuples, sets, user classes, keys that are not text, lone surrogates and deep nesting are refused."""
    with pytest.raises(InvalidValue):
        canonical(value)


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_nested_values_that_are_not_json_are_refused(value: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        canonical({"a": [0, {"b": value}]})
    assert caught.value.path.startswith("$.a[1].b")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (b"", "$"),
        ([1, b""], "$[1]"),
        ({"a": b""}, "$.a"),
        ({"a": [{"b.c": [0, 0, b""]}]}, "$.a[0].'b.c'[2]"),
        ({"a": {7: 1}}, "$.a.7"),
        ({"it's": b""}, '$."it\'s"'),
        ({"\ud800": 1}, "$.'\\ud800'"),
    ],
)
def test_the_error_has_the_path_of_the_invalid_value(value: Any, path: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        canonical(value)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "builtins.bytes is not a JSON type; decode it to str, or store it with `run.artifact`"),
        (Decimal(1), "decimal.Decimal is not a JSON type"),
        (float("nan"), "nan is not a JSON number"),
        (float("-inf"), "-inf is not a JSON number"),
        (BIGGEST + 1, "the integer has more than 2048 bits"),
        ({7: 1}, "the key is not a str"),
        ("\ud800", "contains a lone surrogate"),
        (nested(65), "nested more than 64 levels deep"),
    ],
)
def test_the_error_has_the_reason(value: Any, reason: str) -> None:
    """Each rule has its own reason."""
    with pytest.raises(InvalidValue) as caught:
        canonical(value)
    assert caught.value.reason == reason


def test_a_cyclic_value_is_refused() -> None:
    """A cycle exceeds the maximum depth."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidValue, match="64 levels"):
        canonical(value)


def test_the_order_of_keys_does_not_matter() -> None:
    """Equal dicts have the same bytes."""
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})


@pytest.mark.parametrize(
    "value",
    [
        {"__proto__": {"polluted": True}},
        {"constructor": {"prototype": {}}},
        {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {}},
        {"$type": "System.Diagnostics.Process", "$ref": "#/a"},
        {"py/object": "os.system", "py/reduce": []},
        {"__class__": "A", "__reduce__": [], "__dict__": {}},
        {"json": 1, "blob": "x", "bytes": 2},
        {"type": "datetime", "value": "2020-01-01T00:00:00Z"},
    ],
)
def test_marker_keys_in_user_data_have_no_meaning(value: dict[str, Any]) -> None:
    """Keys that revive objects in other libraries are keys of plain dicts here."""
    back = inline(value).value()
    assert (type(back), back) == (dict, value)


def test_a_digest_is_the_sha256_of_the_canonical_bytes() -> None:
    assert digest({"b": 1, "a": "é"}) == hashlib.sha256('{"a":"é","b":1}'.encode()).hexdigest()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b' { "b" : 1 ,\n"a" : [ ] } ', {"a": [], "b": 1}),
        ("[1, 1.0, 1e2]", [1, 1.0, 100.0]),
        (rb'"\u00e9\ud83d\ude00\/"', "é😀/"),
        (b"-0", 0),
    ],
)
def test_any_json_text_can_be_parsed(text: bytes | str, value: Any) -> None:
    """White space, escapes and the order of keys are free in the input."""
    assert parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1,]",
        b"1 2",
        b"NaN",
        b"Infinity",
        b"1e400",
        b"'a'",
        b'"\xff"',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        '"\ud800"',
        b"9" * 618,
        b"9" * 5000,
        b"[" * 65 + b"]" * 65,
        b"[" * 100_000 + b"]" * 100_000,
        b"[" * 100_000,
    ],
    ids=lambda text: repr(text)[:20],
)
def test_text_that_is_not_json_is_refused(text: bytes | str) -> None:
    """Every syntax error raises the same typed error."""
    with pytest.raises(InvalidValue):
        parse(text)


def test_an_inline_payload_holds_the_canonical_bytes() -> None:
    payload = inline({"b": 1, "a": 2})
    assert isinstance(payload.json, msgspec.Raw)
    assert bytes(payload.json) == b'{"a":2,"b":1}'


def test_an_inline_payload_is_wrapped() -> None:
    """User data is nested under a key of ours."""
    assert msgspec.json.encode(inline({"blob": "x"})) == b'{"json":{"blob":"x"}}'


def test_null_is_a_value() -> None:
    assert inline(None).value() is None


def test_an_invalid_value_cannot_become_a_payload() -> None:
    with pytest.raises(InvalidValue):
        inline((1, 2))


def test_reading_the_value_of_a_blob_payload_is_refused() -> None:
    """The error names the blob."""
    with pytest.raises(InvalidValue, match="in blob b-1"):
        Payload(blob="b-1", bytes=9).value()


@pytest.mark.parametrize("given", [{}, {"json": msgspec.Raw(b"1"), "blob": "b-1"}])
def test_a_payload_is_either_inline_or_a_blob(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either inline or a blob"):
        Payload(**given)


@pytest.mark.parametrize("data", [b"{}", b'{"json":1,"blob":"b-1"}', b'{"json":1,"more":2}', b'{"bytes":1}'])
def test_a_stored_payload_must_be_either_inline_or_a_blob(data: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(data, type=Payload)


def test_payloads_of_the_same_value_are_equal() -> None:
    """States and bodies can be compared."""
    assert inline({"a": 1, "b": 2}) == inline({"b": 2, "a": 1})
    assert inline(1) != inline(1.0)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_in_event_fields_must_be_finite(number: float) -> None:
    """JSON would encode them as null, and the event could not be decoded."""
    for make in (
        lambda: Spent(cost=number),
        lambda: Limits(max_cost=number),
        lambda: b.BudgetReserved(number=1, cost=number),
        lambda: b.StepProgressed(number=1, attempt=1, fraction=number),
        lambda: b.DecisionMade(
            name="d", question="?", chosen=inline(1), options=inline([1]), because="", confidence=number
        ),
    ):
        with pytest.raises(InvalidValue):
            make()


def test_a_lone_surrogate_in_an_event_field_is_refused() -> None:
    """The error comes before the event is sealed."""
    with pytest.raises(InvalidValue, match=r"run\.cancelled"):
        seal(START, "r1", b.RunCancelled(reason="\ud800"), time=1, fence=1, actor="w")
