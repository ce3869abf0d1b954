"""References to blobs are found by type: wherever a kind of event can hold a payload, a blob there is found."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import NODEFAULT, Raw, Struct, UnsetType
from msgspec.structs import fields

from limpet.events import KINDS, VOCABULARY, Failure, Payload, blobs_of, inline
from limpet.events import bodies as b
from limpet.events.values import encode

BLOB = Payload(blob="b-1", bytes=9)
SIMPLE: dict[Any, Any] = {str: "x", int: 1, float: 1.0, bool: True, Raw: Raw(b"1"), Payload: inline(1)}


def least(hint: Any) -> Any:
    """Some value of a type, with no blob in it."""
    if hint in SIMPLE:
        return SIMPLE[hint]
    origin, given = get_origin(hint), get_args(hint)
    if origin is Literal:
        return given[0]
    if origin in (Union, UnionType):
        return None if NoneType in given else least(next(each for each in given if each is not UnsetType))
    if origin in (dict, tuple):
        return origin()
    return make(hint)


def make(kind: type[Struct], **given: Any) -> Any:
    """A struct with the least that it needs, and what is given."""
    hints = get_type_hints(kind)
    needed = [each.name for each in fields(kind) if each.default is each.default_factory is NODEFAULT]
    return kind(**{name: least(hints[name]) for name in needed} | given)


def with_payload(hint: Any, payload: Payload) -> Iterator[tuple[str, Any]]:
    """Every way in which a value of a type can hold a payload, each with the path to it."""
    if hint is Payload:
        yield "", payload
    elif isinstance(hint, type) and issubclass(hint, Struct):
        for name, each in get_type_hints(hint).items():
            for path, value in with_payload(each, payload):
                yield f".{name}{path}", make(hint, **{name: value})
    else:
        for each in get_args(hint):
            for path, value in with_payload(each, payload):
                yield contained(get_origin(hint), path, value)


def contained(origin: Any, path: str, value: Any) -> tuple[str, Any]:
    """A value inside a mapping or tuple, or as it is."""
    if origin is dict:
        return f"[]{path}", {"k": value}
    return (f"[]{path}", (value,)) if origin is tuple else (path, value)


SLOTS = [(f"{kind.name}{path}", body) for kind in KINDS for path, body in with_payload(kind.body, BLOB)]


@pytest.mark.parametrize("body", [body for _, body in SLOTS], ids=[path for path, _ in SLOTS])
def test_a_blob_is_found_wherever_a_payload_can_be(body: Any) -> None:
    """In every kind, directly, in a mapping, or inside a failure; and after a way through bytes."""
    assert blobs_of(body) == ["b-1"]
    kind = VOCABULARY.kind_of(body)
    assert blobs_of(VOCABULARY.decode(kind.name, kind.version, encode(body))) == ["b-1"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_is_inline_refers_to_nothing(kind: Any) -> None:
    """An event with the least that it needs has no blob."""
    assert blobs_of(make(kind.body)) == []
    for _, body in with_payload(kind.body, inline({"blob": "b-1", "bytes": 9})):
        assert blobs_of(body) == []


def test_the_slots_are_not_forgotten() -> None:
    """What the law looks at: a result, an input, a failure's facts, replaced results, a message."""
    found = {path for path, _ in SLOTS}
    assert found >= {
        "run.created.input",
        "run.forked.results[]",
        "run.failed.failure.facts",
        "step.completed.output",
        "step.completed.unavailable.facts",
        "request.opened.context",
        "request.answered.args",
        "agent.returned.output",
        "signal.received.value",
        "message.added.content",
        "conversation.compacted.summary",
        "artifact.stored.content",
    }


def test_each_blob_is_named_once_in_order() -> None:
    """However many fields have it."""
    one, two = Payload(blob="b-1"), Payload(blob="b-2")
    failure = Failure(type="x", facts=one)
    body = b.RunForked(run="r", at=1, step=0, effects="ask", input=two, results={"1": one, "2": two, "3": inline(1)})
    assert blobs_of(body) == ["b-2", "b-1"]
    assert blobs_of(b.StepResolved(name="t", number=1, attempt=1, how="late", outcome="applied", output=one)) == ["b-1"]
    assert blobs_of(b.RunFailed(failure=failure)) == ["b-1"]


def test_words_of_the_user_are_never_references() -> None:
    """User data that looks like a payload is data."""
    assert blobs_of(b.RunCompleted(output=inline({"blob": "b-1"}))) == []
