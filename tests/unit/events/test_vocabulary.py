"""The names and shapes of events are frozen; an event that cannot be read raises, and is never skipped.

`kinds.txt` is the frozen list: one line for each kind of event, `name version writer field:type=default,…`, and one for
each part that events are made of. To change a kind, give it a new version, an upcast and a new line there.
"""

from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec import NODEFAULT, Raw, Struct, UnsetType

from limpet.errors import DamagedEvent, InvalidArgument, NewerVersion
from limpet.events import KINDS, VOCABULARY, AnyBody, Kind, Vocabulary, WrittenBy, inline
from limpet.events import bodies as b
from limpet.events.values import Payload
from limpet.events.vocabulary import UPCASTS

FROZEN = Path(__file__).with_name("kinds.txt")
BY_NAME = {NoneType: "null", UnsetType: "unset"}
Upcast = Callable[[dict[str, Any]], dict[str, Any]]


def type_name(hint: Any) -> str:
    """Return a type in a notation that no version of Python changes: `T|null`, `[T]`, `{K:V}`, `"a"|"b"`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return "|".join(sorted(type_name(arg) for arg in args))
    if origin is Literal:
        return "|".join(f'"{arg}"' for arg in args)
    if origin is tuple:
        return f"[{type_name(args[0])}]"
    if origin is dict:
        return f"{{{type_name(args[0])}:{type_name(args[1])}}}"
    return BY_NAME.get(hint) or str(hint.__name__)


def default(field: msgspec.structs.FieldInfo) -> str:
    """Return the default of an omitted field, which is part of the format because of `omit_defaults`."""
    if field.default is not NODEFAULT:
        return f"={'unset' if field.default is msgspec.UNSET else msgspec.json.encode(field.default).decode()}"
    if field.default_factory is not NODEFAULT:
        return f"={msgspec.json.encode(field.default_factory()).decode()}"
    return ""


def shape(struct: type[Struct]) -> str:
    """Return the fields of a struct, in their order."""
    hints = get_type_hints(struct)
    return ",".join(f"{f.name}:{type_name(hints[f.name])}{default(f)}" for f in msgspec.structs.fields(struct))


def parts(struct: type[Struct], found: dict[str, type[Struct]]) -> None:
    """Collect the structs that a struct contains."""
    waiting = list(get_type_hints(struct).values())
    while waiting:
        hint = waiting.pop()
        waiting += get_args(hint)
        if isinstance(hint, type) and issubclass(hint, Struct) and hint.__name__ not in found:
            found[hint.__name__] = hint
            parts(hint, found)


def lines(kinds: tuple[Kind, ...]) -> list[str]:
    """Return the expected content of `kinds.txt`."""
    found: dict[str, type[Struct]] = {}
    for kind in kinds:
        parts(kind.body, found)
    return [
        *(f"{kind.name} {kind.version} {kind.writer.value} {shape(kind.body)}" for kind in kinds),
        *(f"{name} - part {shape(struct)}" for name, struct in sorted(found.items())),
    ]


def changes(frozen: list[str], now: list[str]) -> list[str]:
    """Describe each difference between two lists."""
    before = {line.split(" ")[0]: line for line in frozen}
    after = {line.split(" ")[0]: line for line in now}
    found = [f"{name} is gone" for name in before if name not in after]
    found += [f"{name} is new" for name in after if name not in before]
    for name in (name for name in after if name in before and after[name] != before[name]):
        old, new = before[name].split(" ", 3)[1:], after[name].split(" ", 3)[1:]
        if old[:2] != new[:2]:
            found.append(f"{name}: {' '.join(old[:2])} is now {' '.join(new[:2])}")
        found += [f"{name}: {field} is gone" for field in old[2].split(",") if field not in new[2].split(",")]
        found += [f"{name}: {field} is new" for field in new[2].split(",") if field not in old[2].split(",")]
        if sorted(old[2].split(",")) == sorted(new[2].split(",")) and old[2] != new[2]:
            found.append(f"{name}: the order of its fields changed")
    return found


# A vocabulary with older versions: version 1 of the step's end had no attempt, version 2 called its number `step`.


def completed_v1_to_v2(body: dict[str, Any]) -> dict[str, Any]:
    """Add the attempt: every step had one attempt then."""
    return body | {"attempt": 1}


def completed_v2_to_v3(body: dict[str, Any]) -> dict[str, Any]:
    """Rename `step` to `number`."""
    return {name: value for name, value in body.items() if name != "step"} | {"number": body["step"]}


def turn_v1_to_v2(body: dict[str, Any]) -> dict[str, Any]:
    """Add the loop: there was only one loop then."""
    return body | {"loop": "turns#1"}


WITH_A_PAST = Vocabulary(
    [
        Kind("step.completed", 3, b.StepCompleted, WrittenBy.OWNER),
        Kind("turn.started", 2, b.TurnStarted, WrittenBy.OWNER),
        Kind("run.released", 2, b.RunReleased, WrittenBy.STORE),
    ],
    {
        ("step.completed", 1): completed_v1_to_v2,
        ("step.completed", 2): completed_v2_to_v3,
        ("turn.started", 1): turn_v1_to_v2,
    },
)
COMPLETED = b.StepCompleted(name="look#1", number=7, attempt=1, output=inline({"b": [2**70, "é"], "a": -0.0}))


def test_the_kinds_and_their_fields_are_frozen() -> None:
    """If this fails, give the changed kind a new version and an upcast. The failure names the kind and field."""
    assert changes(FROZEN.read_text().splitlines(), lines(KINDS)) == []


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (["a.b 1 owner x:int"], []),
        (["a.b 1 owner x:int", "a.c 1 owner y:int"], ["a.c is new"]),
        ([], ["a.b is gone"]),
        (["a.b 2 command x:int"], ["a.b: 1 owner is now 2 command"]),
        (["a.b 1 owner x:int,y:str"], ["a.b: y:str is new"]),
        (["a.b 1 owner x:int=0"], ["a.b: x:int is gone", "a.b: x:int=0 is new"]),
    ],
)
def test_a_change_of_the_frozen_list_is_named(now: list[str], expected: list[str]) -> None:
    """The failure names the kind and the field, instead of showing two long lists."""
    assert changes(["a.b 1 owner x:int"], now) == expected


def test_a_change_of_the_order_of_fields_is_named() -> None:
    """Fields are encoded in order, so the order is part of the format."""
    assert changes(["a.b 1 owner x:int,y:str"], ["a.b 1 owner y:str,x:int"]) == ["a.b: the order of its fields changed"]


def test_every_body_has_one_kind_and_every_kind_one_body() -> None:
    """The union that the fold matches on has the same members as the list of kinds."""
    assert {kind.body for kind in KINDS} == set(get_args(AnyBody))
    assert len({kind.body for kind in KINDS}) == len({kind.name for kind in KINDS}) == len(KINDS)


def test_every_version_of_a_kind_can_be_upcast_to_the_newest() -> None:
    """No upcast is missing or unused."""
    needed = {(kind.name, old) for kind in KINDS for old in range(1, kind.version)}
    assert set(UPCASTS) == needed


def test_every_command_has_an_id() -> None:
    """Commands are exactly the bodies that are deduplicated by id."""
    commands = {kind.name for kind in KINDS if kind.writer is WrittenBy.COMMAND}
    assert commands == {kind.name for kind in KINDS if issubclass(kind.body, b.Command)}


def test_the_commands_are_a_closed_list() -> None:
    """No other events can be sent by other processes."""
    assert {kind.name for kind in KINDS if kind.writer is WrittenBy.COMMAND} == {
        "request.answered",
        "grant.given",
        "grant.revoked",
        "agent.returned",
        "signal.received",
        "patch.received",
        "run.moved",
        "budget.extended",
        "deadline.extended",
        "cancel.requested",
        "pause.requested",
        "resume.requested",
        "score.given",
        "score.withdrawn",
        "audit.recorded",
        "record.patched",
    }


def test_a_kind_is_found_by_its_body() -> None:
    assert VOCABULARY.kind_of(COMPLETED).name == "step.completed"


def test_a_body_is_decoded_from_its_bytes() -> None:
    """Bytes of the newest version need no upcast."""
    assert VOCABULARY.decode("step.completed", 1, msgspec.json.encode(COMPLETED)) == COMPLETED


def test_an_unknown_kind_raises_newer_version() -> None:
    """A newer Limpet wrote it; it is neither guessed nor skipped."""
    with pytest.raises(NewerVersion) as caught:
        VOCABULARY.decode("step.teleported", 1, b"{}")
    assert caught.value.facts == {"what": "event 'step.teleported' version 1", "reason": "unknown kind"}


@pytest.mark.parametrize("version", [-1, 0, 2, 99])
def test_an_unknown_version_raises_newer_version(version: int) -> None:
    """A newer version may have another meaning; no version is below 1."""
    with pytest.raises(NewerVersion, match="supports up to 1"):
        VOCABULARY.decode("step.completed", version, msgspec.json.encode(COMPLETED))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b"{}",
        b'{"output":1}',
        b'{"output":{}}',
        b'{"output":{"json":1,"blob":"b-1"}}',
        b'{"output":{"json":1},"more":1}',
        b'{"output":{"json":1,"more":1}}',
        b'{"output":{"json":"\\ud800"}}',
        b'{"output":{"blob":"\xff"}}',
        b'{"output":{"json":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    ],
    ids=lambda data: repr(data)[:40],
)
def test_an_invalid_body_raises_damaged_event(data: bytes) -> None:
    """Malformed, missing, unknown and mistyped fields raise the same typed error."""
    with pytest.raises(DamagedEvent, match="the body does not match"):
        VOCABULARY.decode("run.completed", 1, data)


def test_a_body_is_upcast_over_several_versions() -> None:
    """The upcasts run in order, from the stored version to the newest."""
    data = b'{"name":"look#1","step":7,"output":{"json":{"a":-0.0,"b":[1180591620717411303424,"\xc3\xa9"]}}}'
    assert WITH_A_PAST.decode("step.completed", 1, data) == COMPLETED


def test_a_body_is_upcast_from_its_own_version() -> None:
    """Only the upcasts from version 2 on run."""
    data = b'{"name":"look#1","step":7,"attempt":4,"output":{"blob":"b-1","bytes":9}}'
    assert WITH_A_PAST.decode("step.completed", 2, data) == b.StepCompleted(
        name="look#1", number=7, attempt=4, output=Payload(blob="b-1", bytes=9)
    )


def test_a_body_of_the_newest_version_is_not_upcast() -> None:
    assert WITH_A_PAST.decode("step.completed", 3, msgspec.json.encode(COMPLETED)) == COMPLETED


def test_each_kind_has_its_own_versions() -> None:
    assert WITH_A_PAST.decode("turn.started", 1, b'{"number":2}') == b.TurnStarted(loop="turns#1", number=2)


@pytest.mark.parametrize(("name", "voids"), [('"look#1"', ("look#1",)), ("null", ())])
def test_a_failure_of_version_1_voids_the_call_that_failed(name: str, voids: tuple[str, ...]) -> None:
    lifted = VOCABULARY.decode("run.failed", 1, f'{{"failure":{{"type":"E"}},"name":{name}}}'.encode())
    assert isinstance(lifted, b.RunFailed)
    assert lifted.voids == voids


def test_an_upcast_does_not_change_user_data() -> None:
    """The bytes of a payload are the same before and after an upcast."""
    lifted = WITH_A_PAST.decode("step.completed", 1, b'{"name":"x","step":7,"output":{"json":{"b":1,"step":1e16}}}')
    assert isinstance(lifted, b.StepCompleted)
    assert lifted.output == Payload(json=Raw(b'{"b":1,"step":1e16}'))


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (1, b"[]"),
        (1, b"{"),
        (1, b"\xff"),
        (1, b'{"name":"look#1","output":{"json":1}}'),
        (2, b'{"name":"look#1","output":{"json":1}}'),
        (2, b'{"name":"look#1","step":"seven","attempt":1,"output":{"json":1}}'),
        (1, b'{"name":"look#1","step":7,"output":{"json":1},"more":1}'),
    ],
)
def test_an_invalid_old_body_raises_damaged_event(version: int, data: bytes) -> None:
    """The error is the same before, in and after the upcasts."""
    with pytest.raises(DamagedEvent, match="the body does not match"):
        WITH_A_PAST.decode("step.completed", version, data)


def test_a_version_without_an_upcast_raises_damaged_event() -> None:
    with pytest.raises(DamagedEvent):
        WITH_A_PAST.decode("run.released", 1, b'{"reason":"drain"}')


def example(hint: Any) -> Any:
    """Return a value of a field's type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return example(args[0])
    if origin is Literal:
        return args[0]
    if origin in (tuple, dict):
        return origin()
    if hint is Payload:
        return inline({"a": 1})
    if isinstance(hint, type) and issubclass(hint, Struct):
        return made(hint)
    return {Raw: Raw(b"1"), NoneType: None, UnsetType: msgspec.UNSET}.get(hint, hint())


def made(struct: type[Struct]) -> Any:
    """Return a struct with a value for every field."""
    return struct(**{name: example(hint) for name, hint in get_type_hints(struct).items()})


WRONG = [None, 5, 1.5, True, "\ud800", b"x", {1: 2}, {1, 2}, [5], object(), float("nan"), 1 << 70, ("\ud800",)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_body_that_passes_the_check_decodes_to_itself(kind: Kind) -> None:
    """A body that fails the check is refused with the name of its field, so that nothing unreadable can be sealed."""
    good = made(kind.body)
    VOCABULARY.check(good)
    refused: list[tuple[str, str]] = []
    for field in kind.body.__struct_fields__:
        for wrong in WRONG:
            body = made(kind.body)
            msgspec.structs.force_setattr(body, field, wrong)
            try:
                VOCABULARY.check(body)
            except InvalidArgument as error:
                refused.append((field, error.path.partition(".")[0].partition("[")[0]))
            else:
                decoded = VOCABULARY.decode(kind.name, kind.version, msgspec.json.encode(body))
                assert decoded == body
    assert refused
    assert all(field == named for field, named in refused)
