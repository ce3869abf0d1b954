"""Rules that the bodies of all kinds of events obey."""

import inspect
from typing import Any

import msgspec
import pytest

from limpet.events import KINDS, Kind
from limpet.events import bodies as b
from limpet.events.parts import Part

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
every_part = pytest.mark.parametrize("part", [*Part.__subclasses__(), *(kind.body for kind in KINDS)])


def required(struct: type[msgspec.Struct]) -> list[str]:
    """Return the fields without a default."""
    return [field.name for field in msgspec.structs.fields(struct) if field.required]


@every_part
def test_stored_structs_are_frozen_and_strict(part: type[Part]) -> None:
    """Structs are immutable, take keywords only, refuse unknown fields and omit defaults."""
    config = part.__struct_config__
    assert (config.frozen, config.forbid_unknown_fields, config.omit_defaults, config.tag) == (True, True, True, None)
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in inspect.signature(part).parameters.values())


@every_kind
def test_a_body_with_an_unknown_field_is_refused(kind: Kind) -> None:
    """A new field needs a new version; an unknown field is never ignored."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `surprise`"):
        msgspec.json.decode(b'{"surprise":1}', type=kind.body)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if required(kind.body)], ids=lambda kind: kind.name)
def test_a_body_without_a_required_field_is_refused(kind: Kind) -> None:
    with pytest.raises(msgspec.ValidationError, match="missing required field"):
        msgspec.json.decode(b"{}", type=kind.body)


def test_only_conversation_created_has_no_required_fields() -> None:
    assert [kind.name for kind in KINDS if not required(kind.body)] == ["conversation.created"]


@every_kind
def test_the_name_of_a_kind_matches_its_class(kind: Kind) -> None:
    """For example, StepCompleted is stored as `step.completed`."""
    thing, verb = kind.name.split(".")
    assert kind.body.__name__ == thing.capitalize() + verb.capitalize()


@every_kind
def test_every_body_has_a_docstring(kind: Kind) -> None:
    assert (vars(kind.body)["__doc__"] or "").strip().endswith(".")


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (b.RunClaimed(worker="w"), b'{"worker":"w"}'),
        (b.RunClaimed(worker="w", died=True), b'{"worker":"w","died":true}'),
        (b.ConversationCreated(), b"{}"),
        (b.ConversationCompacted(first=1, last=2, summary=None), b'{"first":1,"last":2,"summary":null}'),
        (b.CancelRequested(command="c", reason="r"), b'{"command":"c","reason":"r"}'),
    ],
)
def test_a_body_omits_defaults(body: Any, data: bytes) -> None:
    """Defaults are part of the format."""
    assert msgspec.json.encode(body) == data
