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
    """The fields that have no default."""
    return [field.name for field in msgspec.structs.fields(struct) if field.required]


@every_part
def test_what_is_stored_is_frozen_and_strict(part: type[Part]) -> None:
    """Immutable, by keyword only, without unknown fields, and without what equals its default."""
    config = part.__struct_config__
    assert (config.frozen, config.forbid_unknown_fields, config.omit_defaults, config.tag) == (True, True, True, None)
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in inspect.signature(part).parameters.values())


@every_kind
def test_a_body_with_an_unknown_field_is_refused(kind: Kind) -> None:
    """A new field is a new version; it is never ignored."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `surprise`"):
        msgspec.json.decode(b'{"surprise":1}', type=kind.body)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if required(kind.body)], ids=lambda kind: kind.name)
def test_a_body_without_what_it_needs_is_refused(kind: Kind) -> None:
    """No field that must be said has a silent default."""
    with pytest.raises(msgspec.ValidationError, match="missing required field"):
        msgspec.json.decode(b"{}", type=kind.body)


def test_only_a_conversation_needs_nothing_to_be_said() -> None:
    """All other bodies have something that must be said."""
    assert [kind.name for kind in KINDS if not required(kind.body)] == ["conversation.created"]


@every_kind
def test_the_name_of_a_kind_is_its_thing_and_its_verb(kind: Kind) -> None:
    """`step.completed` is what StepCompleted is stored as."""
    thing, verb = kind.name.split(".")
    assert kind.body.__name__ == thing.capitalize() + verb.capitalize()


@every_kind
def test_every_body_says_what_it_means(kind: Kind) -> None:
    """One line for each, since the log is read by people."""
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
def test_a_body_holds_only_what_differs_from_its_defaults(body: Any, data: bytes) -> None:
    """Logs stay small, and defaults are part of the format."""
    assert msgspec.json.encode(body) == data
