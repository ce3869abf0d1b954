"""A Secret: used by code, and never written down."""

import copy
import gc
import json
import pickle  # noqa: TID251 - to see it refused
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, SecretStr

from limpet import DefinitionError, InvalidValue, Secret, SecretWithheld
from limpet.engine.definitions.types import codec_of
from limpet.redaction import hide_secrets
from limpet.secret import hidden


class Login(BaseModel):
    """pydantic's."""

    key: Secret
    theirs: SecretStr = SecretStr("by default")


@dataclass
class Plain:
    """Ours."""

    key: Secret


def test_it_gives_what_it_holds_to_whoever_asks() -> None:
    """Text or bytes."""
    assert Secret("open sesame").reveal() == "open sesame"
    assert Secret(b"open sesame").reveal() == b"open sesame"
    with pytest.raises(TypeError, match="str or bytes"):
        Secret(7)  # type: ignore[type-var]


def test_it_shows_nothing_of_itself() -> None:
    """However it is printed."""
    secret = Secret("open sesame")
    said = [repr(secret), str(secret), f"{secret}", f"{secret!r:>12}", f"{secret!s}", "%s" % secret, f"{[secret]}"]  # noqa: UP031
    assert not any("sesame" in each for each in said)
    assert repr(Plain(secret)) == "Plain(key=[secret])"
    assert "sesame" not in repr(Login(key=secret))
    assert json.dumps({"a": secret}, default=str) == '{"a": "[secret]"}'


@pytest.mark.parametrize(
    "write",
    [
        pickle.dumps,
        json.dumps,
        msgspec.json.encode,
        msgspec.msgpack.encode,
        lambda it: it.__getstate__(),
        lambda it: it.__reduce__(),
    ],
)
def test_it_cannot_be_written(write: Any) -> None:
    """By nobody's hand."""
    with pytest.raises(TypeError):
        write(Secret("open sesame"))


def test_it_is_compared_without_saying_more() -> None:
    """Equal ones are equal, all have one hash, and one that is withheld is like no other."""
    one, same, other = Secret("open sesame"), Secret("open sesame"), Secret("sesame open")
    withheld, again = Secret.loaded("[secret]"), Secret.loaded("[secret]")
    assert one == same != other
    assert {one, same, other} == {one, other}
    assert hash(one) == hash(other)
    assert Secret(b"open sesame") != one != "open sesame"
    assert {withheld, withheld, again} == {again, withheld}
    assert withheld != again
    assert sorted([one, other]) == [one, other]


def test_a_copy_is_the_same_one() -> None:
    """It does not change, and has one place in memory."""
    secret = Secret("open sesame")
    assert copy.copy(secret) is copy.deepcopy(secret) is asdict(Plain(secret))["key"] is secret


def test_from_json_it_is_withheld_unless_somebody_typed_it() -> None:
    """The error says what to do."""
    withheld = Secret.loaded("[secret]")
    assert withheld.is_withheld
    with pytest.raises(SecretWithheld, match="inside the tool"):
        withheld.reveal()
    assert Secret.loaded("typed by ann").reveal() == "typed by ann"
    with pytest.raises(TypeError):
        Secret.loaded(7)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Secret, Secret("open sesame")),
        (Secret[bytes], Secret(b"open sesame")),
        (Secret | None, Secret("open sesame")),
        (Secret | int, Secret("open sesame")),
        (list[Secret], [Secret("open sesame")]),
        (Plain, Plain(Secret("open sesame"))),
        (Login, Login(key=Secret("open sesame"))),
    ],
    ids=str,
)
def test_a_shape_says_that_there_is_one_and_loads_it_without(hint: Any, value: Any) -> None:
    """Whatever it is a part of."""
    plain = codec_of(hint).dump(value)
    assert "[secret]" in str(plain)
    assert "sesame" not in str(plain)
    assert "[secret]" in str(codec_of(hint).load(plain))
    assert "writeOnly" in str(codec_of(hint).schema())


def test_pydantics_secrets_are_marked_too() -> None:
    """Its stars would come back as if they were the value; what only looks like them is left alone."""
    given = Login(key=Secret("open sesame"), theirs=SecretStr("close sesame"))
    assert codec_of(Login).dump(given) == {"key": "[secret]", "theirs": "[secret]"}
    assert codec_of(Any).dump(given) == {"key": "[secret]", "theirs": "[secret]"}
    assert codec_of(Login).load({"key": "[secret]", "theirs": "[secret]"}).theirs == SecretStr("[secret]")
    assert codec_of(SecretStr).dump(SecretStr("open sesame")) == "[secret]"

    class Starry(BaseModel):
        text: str
        theirs: dict[str, list[SecretStr]]

    given_stars = Starry(text="*" * 10, theirs={"a": [SecretStr("open sesame")]})
    assert codec_of(Starry).dump(given_stars) == {"text": "*" * 10, "theirs": {"a": ["[secret]"]}}


def test_what_nobody_declared_is_looked_through() -> None:
    """In lists and dicts, however deep; what is no JSON is refused as before."""
    assert codec_of(Any).dump({"a": [Secret("open sesame")]}) == {"a": ["[secret]"]}
    assert hidden({Secret("open sesame"): 1}) == {"[secret]": 1}
    with pytest.raises(InvalidValue) as refused:
        codec_of(Any).dump({"a": (Secret("open sesame"),)})
    assert "sesame" not in str(refused.value)


def test_a_secret_is_no_default() -> None:
    """It would stand in the code, and in the contract of its agent."""

    @dataclass
    class Wrong:
        key: Secret = field(default=Secret("open sesame"))

    with pytest.raises(DefinitionError, match="default factory"):
        codec_of(Wrong).schema()


def test_an_error_does_not_repeat_what_was_given() -> None:
    """pydantic would."""

    class Strict(BaseModel):
        key: Secret
        number: int

    with pytest.raises(InvalidValue) as refused:
        codec_of(Strict).load({"key": "open sesame", "number": "open sesame"})
    assert "sesame" not in str(refused.value)
    assert "$.number" in refused.value.reason


@pytest.fixture
def thresholds() -> Iterator[None]:
    """The garbage collector's own settings come back."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("thresholds")
def test_secrets_that_the_collector_finds_at_any_moment_disturb_nobody() -> None:
    """A finaliser runs in the middle of whatever looks for secrets; what lives is still found."""
    alive = [Secret(f"long lived {n:04}") for n in range(50)]
    for n in range(2_000):
        gc.set_threshold(1 + n % 20)  # it runs at another allocation each time
        cycle: list[Any] = [Secret(f"short lived {n:04}")]
        cycle.append(cycle)
        del cycle
        assert hide_secrets(f"a long lived {n % 50:04}!") == "a [secret]!", alive
    gc.collect()
    assert hide_secrets("short lived 0007") == "short lived 0007"
