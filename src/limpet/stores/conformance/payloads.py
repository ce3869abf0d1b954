"""Hostile payloads: each comes back identical, or is refused with a typed error before anything is written."""

from collections.abc import Awaitable, Callable

from limpet.errors import InvalidValue
from limpet.events import StatePatch, canonical
from limpet.events import bodies as b
from limpet.stores.conformance.suite import World, behaviour, completed, expect


def _cycle() -> object:
    value: list[object] = []
    value.append(value)
    return value


def _nested(levels: int, make: Callable[[object], object]) -> object:
    value: object = []
    for _ in range(levels - 1):
        value = make(value)
    return value


SAME: dict[str, object] = {
    "null": None,
    "true": True,
    "false": False,
    "zero": 0,
    "minus-one": -1,
    "the-largest-64-bit-integer": 2**63 - 1,
    "the-smallest-64-bit-integer": -(2**63),
    "an-unsigned-64-bit-integer": 2**64 - 1,
    "an-integer-beyond-64-bits": 2**64,
    "an-integer-of-600-digits": 10**600,
    "a-negative-integer-of-600-digits": -(10**600),
    "a-float-that-is-whole": 1.0,
    "minus-zero": -0.0,
    "the-largest-float": 1.7976931348623157e308,
    "the-smallest-float": 5e-324,
    "a-float-with-17-digits": 0.1 + 0.2,
    "an-empty-string": "",
    "a-nul-character": "a\0b",
    "only-nul": "\0",
    "control-characters": "".join(chr(code) for code in range(32)) + "\x7f",
    "quotes-and-backslashes": '"\'\\"\\u0000',
    "line-separators": "\u2028\u2029\x85\r\n",
    "text-beyond-the-first-plane": "😀𝔘\U0010ffff",
    "combining-characters": "e\u0301 é",
    "right-to-left": "\u202eabc\u202c",
    "a-byte-order-mark": "\ufeffx",
    "noncharacters": "\ufffe\uffff\ufdd0",
    "json-in-a-string": '{"a": [1, null]}',
    "sql-in-a-string": "'); DROP TABLE limpet_events; --",
    "an-empty-list": [],
    "an-empty-object": {},
    "an-empty-key": {"": ""},
    "a-nul-in-a-key": {"a\0b": 1},
    "nested-empties": [[], {}, [[]], {"a": {}}],
    "64-lists-deep": _nested(64, lambda value: [value]),
    "64-objects-deep": _nested(64, lambda value: {"k": value}),
    "prototype-keys": {"__proto__": {"admin": True}, "constructor": 1, "prototype": 2},
    "a-langchain-marker": {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {}},
    "type-markers": {"$type": "os.system", "@type": "x", "__class__": "y", "py/object": "os.system", "!!python": 1},
    "our-own-wrapper": {"json": 1, "blob": "sha256:00", "bytes": 5},
    "keys-that-differ-in-case": {"a": 1, "A": 2, "á": 3, "a\u0301": 4},
    "keys-out-of-order": {"b": 1, "a": 2, "10": 3, "9": 4},
    "ten-thousand-keys": {f"key-{place}": place for place in range(10_000)},
    "ten-megabytes": "x" * 10_000_000,
    "ten-megabytes-of-numbers": list(range(1_300_000)),
}

REFUSED: dict[str, object] = {
    "not-a-number": float("nan"),
    "infinity": float("inf"),
    "minus-infinity": float("-inf"),
    "a-number-inside": {"a": [1, {"b": float("nan")}]},
    "a-lone-high-surrogate": "a\ud800",
    "a-lone-low-surrogate": "\udfffb",
    "a-surrogate-in-a-key": {"\ud83d": 1},
    "bytes": b"abc",
    "a-bytearray": bytearray(b"abc"),
    "an-integer-key": {1: "a"},
    "a-boolean-key": {True: "a"},
    "a-null-key": {None: "a"},
    "a-tuple": (1, 2),
    "a-set": {1, 2},
    "an-object": object(),
    "a-function": canonical,
    "65-levels": _nested(65, lambda value: [value]),
    "a-cycle": _cycle(),
    "an-integer-of-100000-bits": 2**100_000,
}


def _is_read_back(value: object) -> Callable[[World], Awaitable[None]]:
    async def check(world: World) -> None:
        owner = await world.own(input=value)
        await owner.append(completed(output=value))
        first, *_, last = [world.store.decode(event) for event in await world.log()]
        assert isinstance(first, b.RunCreated)
        assert isinstance(last, b.StepCompleted)
        assert last.output is not None
        for found in (first.input.value(), last.output.value()):
            assert _same(found, value)

    return check


def _is_refused(value: object) -> Callable[[World], Awaitable[None]]:
    async def check(world: World) -> None:
        owner = await world.own()

        async def offer() -> None:
            await owner.append(completed(output=value))

        error = await expect(InvalidValue, offer())
        assert error.path.startswith("$")
        assert (await owner.row()).head == owner.head

    return check


for _name, _value in SAME.items():
    behaviour(name=_name, summary=f"{_name} is read back unchanged, as input and output.")(_is_read_back(_value))
for _name, _value in REFUSED.items():
    behaviour(name=f"refused-{_name}", summary=f"{_name} is refused before anything is written.")(_is_refused(_value))


@behaviour()
async def labels_users_and_goals_may_be_any_text(world: World) -> None:
    """Labels, users and goals may be any text, come back unchanged, and find their run."""
    text = "ü\0'\"\\;--%_\u2028😀"
    row = await world.create(user=text, session=text, labels={text: text}, initial=StatePatch(goal=text))
    assert (row.user, row.session, row.labels, row.goal) == (text, text, {text: text}, text)


def _same(found: object, value: object) -> bool:
    """Return whether values are equal, with the same types and the same sign of zero."""
    return canonical(found) == canonical(value) and found == value
