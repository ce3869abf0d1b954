"""The names and shapes of events are frozen; what cannot be read stops, and nothing is dropped.

`kinds.txt` is the frozen list: one line for each kind of event, `name version writer field:type=default,…`, and one for
each part that events are made of. A kind that is to change gets a new version, an upcast and a new line there.
"""

from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec import NODEFAULT, Raw, Struct, UnsetType

from limpet.errors import DamagedEvent, InvalidArgument, NewerVersion
from limpet.events import KINDS, VOCABULARY, AnyBody, Kind, Vocabulary, Writer, inline
from limpet.events import bodies as b
from limpet.events.values import Payload
from limpet.events.vocabulary import UPCASTS

FROZEN = Path(__file__).with_name("kinds.txt")
BY_NAME = {NoneType: "null", UnsetType: "unset"}
Upcast = Callable[[dict[str, Any]], dict[str, Any]]


def type_name(hint: Any) -> str:
    """A type in a notation of its own, which no version of Python changes: `T|null`, `[T]`, `{K:V}`, `"a"|"b"`."""
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
    """What a field that is left out means: with `omit_defaults`, a part of the format."""
    if field.default is not NODEFAULT:
        return f"={'unset' if field.default is msgspec.UNSET else msgspec.json.encode(field.default).decode()}"
    if field.default_factory is not NODEFAULT:
        return f"={msgspec.json.encode(field.default_factory()).decode()}"
    return ""


def shape(struct: type[Struct]) -> str:
    """The fields of a struct, in their order."""
    hints = get_type_hints(struct)
    return ",".join(f"{f.name}:{type_name(hints[f.name])}{default(f)}" for f in msgspec.structs.fields(struct))


def parts(struct: type[Struct], found: dict[str, type[Struct]]) -> None:
    """Collect the structs that a struct is made of."""
    waiting = list(get_type_hints(struct).values())
    while waiting:
        hint = waiting.pop()
        waiting += get_args(hint)
        if isinstance(hint, type) and issubclass(hint, Struct) and hint.__name__ not in found:
            found[hint.__name__] = hint
            parts(hint, found)


def lines(kinds: tuple[Kind, ...]) -> list[str]:
    """What `kinds.txt` must hold."""
    found: dict[str, type[Struct]] = {}
    for kind in kinds:
        parts(kind.body, found)
    return [
        *(f"{kind.name} {kind.version} {kind.writer.value} {shape(kind.body)}" for kind in kinds),
        *(f"{name} - part {shape(struct)}" for name, struct in sorted(found.items())),
    ]


def changes(frozen: list[str], now: list[str]) -> list[str]:
    """What differs between two lists, each change in words."""
    before = {line.split(" ")[0]: line for line in frozen}
    after = {line.split(" ")[0]: line for line in now}
    said = [f"{name} is gone" for name in before if name not in after]
    said += [f"{name} is new" for name in after if name not in before]
    for name in (name for name in after if name in before and after[name] != before[name]):
        old, new = before[name].split(" ", 3)[1:], after[name].split(" ", 3)[1:]
        if old[:2] != new[:2]:
            said.append(f"{name}: {' '.join(old[:2])} is now {' '.join(new[:2])}")
        said += [f"{name}: {field} is gone" for field in old[2].split(",") if field not in new[2].split(",")]
        said += [f"{name}: {field} is new" for field in new[2].split(",") if field not in old[2].split(",")]
        if sorted(old[2].split(",")) == sorted(new[2].split(",")) and old[2] != new[2]:
            said.append(f"{name}: the order of its fields changed")
    return said


# A vocabulary with a past: version 1 of the step's end had no attempt, version 2 called its number `step`.


def completed_v1_to_v2(body: dict[str, Any]) -> dict[str, Any]:
    """Every step of that time had one attempt."""
    return body | {"attempt": 1}


def completed_v2_to_v3(body: dict[str, Any]) -> dict[str, Any]:
    """`step` is called `number` now."""
    return {name: value for name, value in body.items() if name != "step"} | {"number": body["step"]}


def turn_v1_to_v2(body: dict[str, Any]) -> dict[str, Any]:
    """There was only one loop then."""
    return body | {"loop": "turns#1"}


WITH_A_PAST = Vocabulary(
    [
        Kind("step.completed", 3, b.StepCompleted, Writer.OWNER),
        Kind("turn.started", 2, b.TurnStarted, Writer.OWNER),
        Kind("run.released", 2, b.RunReleased, Writer.STORE),
    ],
    {
        ("step.completed", 1): completed_v1_to_v2,
        ("step.completed", 2): completed_v2_to_v3,
        ("turn.started", 1): turn_v1_to_v2,
    },
)
COMPLETED = b.StepCompleted(name="look#1", number=7, attempt=1, output=inline({"b": [2**70, "é"], "a": -0.0}))


def test_the_kinds_and_their_fields_are_frozen() -> None:
    """Whoever adds or changes a kind, a field or a default is told here which: give it a version and an upcast."""
    assert changes(FROZEN.read_text().splitlines(), lines(KINDS)) == []


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (["a.b 1 owner x:int"], []),
        (["a.b 1 owner x:int", "a.c 1 owner y:int"], ["a.c is new"]),
        ([], ["a.b is gone"]),
        (["a.b 2 command x:int"], ["a.b: 1 owner is now 2 command"]),
        (["a.b 1 owner x:int,y:str"], ["a.b: y:str is new"]),
        (["a.b 1 owner x:int=0"], ["a.b: x:int is gone", "a.b: x:int=0 is new"]),
    ],
)
def test_a_change_of_the_frozen_list_is_named(now: list[str], said: list[str]) -> None:
    """The failure names the kind and the field, not two long lists."""
    assert changes(["a.b 1 owner x:int"], now) == said


def test_a_change_of_the_order_of_fields_is_named() -> None:
    """Fields are encoded in their order, so the order is format too."""
    assert changes(["a.b 1 owner x:int,y:str"], ["a.b 1 owner y:str,x:int"]) == ["a.b: the order of its fields changed"]


def test_every_body_has_one_kind_and_every_kind_one_body() -> None:
    """The union that the fold matches on and the list of names are the same list."""
    assert {kind.body for kind in KINDS} == set(get_args(AnyBody))
    assert len({kind.body for kind in KINDS}) == len({kind.name for kind in KINDS}) == len(KINDS)


def test_every_version_of_a_kind_can_be_lifted_to_the_newest() -> None:
    """No step of the way is missing, and no upcast is left over."""
    needed = {(kind.name, old) for kind in KINDS for old in range(1, kind.version)}
    assert set(UPCASTS) == needed


def test_every_command_carries_the_id_it_is_known_by() -> None:
    """Commands are exactly the bodies that can be sent twice and count once."""
    commands = {kind.name for kind in KINDS if kind.writer is Writer.COMMAND}
    assert commands == {kind.name for kind in KINDS if issubclass(kind.body, b.Command)}


def test_the_commands_are_a_closed_list() -> None:
    """These and no others may come from outside."""
    assert {kind.name for kind in KINDS if kind.writer is Writer.COMMAND} == {
        "request.answered",
        "grant.given",
        "grant.revoked",
        "agent.returned",
        "signal.received",
        "budget.extended",
        "cancel.requested",
        "pause.requested",
        "resume.requested",
    }


def test_a_kind_is_found_by_its_body() -> None:
    """Whoever seals a body need not know its name."""
    assert VOCABULARY.kind_of(COMPLETED).name == "step.completed"


def test_a_body_comes_back_from_its_bytes() -> None:
    """Bytes of the newest version are read as they are."""
    assert VOCABULARY.decode("step.completed", 1, msgspec.json.encode(COMPLETED)) == COMPLETED


def test_an_unknown_kind_stops() -> None:
    """It was written by a newer Limpet, and is neither guessed at nor dropped."""
    with pytest.raises(NewerVersion) as caught:
        VOCABULARY.decode("step.teleported", 1, b"{}")
    assert caught.value.facts == {"what": "event 'step.teleported' version 1", "reason": "unknown kind"}


@pytest.mark.parametrize("version", [-1, 0, 2, 99])
def test_a_version_that_is_not_known_stops(version: int) -> None:
    """A newer version may mean something else; there is no version below 1."""
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
def test_a_body_that_does_not_fit_stops(data: bytes) -> None:
    """Malformed, missing, unknown or mistyped: the run stops with the one typed error."""
    with pytest.raises(DamagedEvent, match="the body does not match"):
        VOCABULARY.decode("run.completed", 1, data)


def test_a_body_is_lifted_over_several_versions() -> None:
    """One upcast after the other, from the version that was written to the newest."""
    data = b'{"name":"look#1","step":7,"output":{"json":{"a":-0.0,"b":[1180591620717411303424,"\xc3\xa9"]}}}'
    assert WITH_A_PAST.decode("step.completed", 1, data) == COMPLETED


def test_a_body_is_lifted_from_the_middle() -> None:
    """A body of version 2 meets the upcasts from 2 on only."""
    data = b'{"name":"look#1","step":7,"attempt":4,"output":{"blob":"b-1","bytes":9}}'
    assert WITH_A_PAST.decode("step.completed", 2, data) == b.StepCompleted(
        name="look#1", number=7, attempt=4, output=Payload(blob="b-1", bytes=9)
    )


def test_a_body_of_the_newest_version_is_not_lifted() -> None:
    """Its bytes are read as they are."""
    assert WITH_A_PAST.decode("step.completed", 3, msgspec.json.encode(COMPLETED)) == COMPLETED


def test_kinds_are_lifted_apart() -> None:
    """The version of one kind says nothing of another's."""
    assert WITH_A_PAST.decode("turn.started", 1, b'{"number":2}') == b.TurnStarted(loop="turns#1", number=2)


def test_lifting_leaves_user_data_alone() -> None:
    """The bytes of a payload are the same after an upcast as before."""
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
def test_an_old_body_that_does_not_fit_stops(version: int, data: bytes) -> None:
    """Before, in or after its upcasts: the error is the same."""
    with pytest.raises(DamagedEvent, match="the body does not match"):
        WITH_A_PAST.decode("step.completed", version, data)


def test_a_version_without_its_upcast_stops() -> None:
    """A step of the way that is missing is never skipped."""
    with pytest.raises(DamagedEvent):
        WITH_A_PAST.decode("run.released", 1, b'{"reason":"drain"}')


def example(hint: Any) -> Any:
    """A value of the type of a field."""
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
    """A struct of which every field is said."""
    return struct(**{name: example(hint) for name, hint in get_type_hints(struct).items()})


WRONG = [None, 5, 1.5, True, "\ud800", b"x", {1: 2}, {1, 2}, [5], object(), float("nan"), 1 << 70, ("\ud800",)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_body_that_passes_the_check_decodes_to_itself(kind: Kind) -> None:
    """And one that would not is refused with the name of its field: nothing unreadable can be sealed."""
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
