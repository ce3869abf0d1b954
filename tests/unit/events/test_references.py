"""References to blobs are found by type: in every field that can hold a payload."""

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
    """Return a minimal value of a type, without a blob."""
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
    """Return a struct with minimal values for required fields, and the given fields."""
    hints = get_type_hints(kind)
    needed = [each.name for each in fields(kind) if each.default is each.default_factory is NODEFAULT]
    return kind(**{name: least(hints[name]) for name in needed} | given)


def with_payload(hint: Any, payload: Payload) -> Iterator[tuple[str, Any]]:
    """Yield every way in which a type can hold a payload, each with its path."""
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
    """Put a value into the mapping or tuple that the type wants."""
    if origin is dict:
        return f"[]{path}", {"k": value}
    return (f"[]{path}", (value,)) if origin is tuple else (path, value)


SLOTS = [(f"{kind.name}{path}", body) for kind in KINDS for path, body in with_payload(kind.body, BLOB)]


@pytest.mark.parametrize("body", [body for _, body in SLOTS], ids=[path for path, _ in SLOTS])
def test_a_blob_is_found_in_every_payload_field(body: Any) -> None:
    """This applies to every kind, directly, in a mapping or inside a failure, also after encoding and decoding."""
    assert blobs_of(body) == ["b-1"]
    kind = VOCABULARY.kind_of(body)
    assert blobs_of(VOCABULARY.decode(kind.name, kind.version, encode(body))) == ["b-1"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_inline_payloads_have_no_blob(kind: Any) -> None:
    assert blobs_of(make(kind.body)) == []
    for _, body in with_payload(kind.body, inline({"blob": "b-1", "bytes": 9})):
        assert blobs_of(body) == []


def test_the_payload_fields_are_all_tested() -> None:
    """The parametrisation above covers results, inputs, failures, overridden results and messages."""
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


def test_each_blob_is_listed_once_in_order() -> None:
    one, two = Payload(blob="b-1"), Payload(blob="b-2")
    failure = Failure(type="x", facts=one)
    body = b.RunForked(run="r", at=1, step=0, effects="ask", input=two, results={"1": one, "2": two, "3": inline(1)})
    assert blobs_of(body) == ["b-2", "b-1"]
    assert blobs_of(b.StepResolved(name="t", number=1, attempt=1, how="late", outcome="applied", output=one)) == ["b-1"]
    assert blobs_of(b.RunFailed(failure=failure)) == ["b-1"]


def test_user_data_that_looks_like_a_payload_is_not_a_reference() -> None:
    assert blobs_of(b.RunCompleted(output=inline({"blob": "b-1"}))) == []
