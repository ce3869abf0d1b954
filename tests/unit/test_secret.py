"""Secret: a value for code that is never written or shown."""

import copy
import gc
import json
import pickle  # noqa: TID251 - to test that it is refused
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
    """A pydantic model with secrets."""

    key: Secret
    theirs: SecretStr = SecretStr("by default")


@dataclass
class Plain:
    """A dataclass with a secret."""

    key: Secret


def test_reveal_returns_text_or_bytes() -> None:
    assert Secret("open sesame").reveal() == "open sesame"
    assert Secret(b"open sesame").reveal() == b"open sesame"
    with pytest.raises(TypeError, match="str or bytes"):
        Secret(7)  # type: ignore[type-var]


def test_a_secret_is_never_printed() -> None:
    secret = Secret("open sesame")
    printed = [repr(secret), str(secret), f"{secret}", f"{secret!r:>12}", f"{secret!s}", "%s" % secret, f"{[secret]}"]  # noqa: UP031
    assert not any("sesame" in each for each in printed)
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
def test_a_secret_cannot_be_serialised(write: Any) -> None:
    with pytest.raises(TypeError):
        write(Secret("open sesame"))


def test_comparing_secrets_reveals_nothing_else() -> None:
    """Equal values are equal, all hashes are the same, and a withheld secret equals only itself."""
    one, same, other = Secret("open sesame"), Secret("open sesame"), Secret("sesame open")
    withheld, again = Secret.loaded("[secret]"), Secret.loaded("[secret]")
    assert one == same != other
    assert {one, same, other} == {one, other}
    assert hash(one) == hash(other)
    assert Secret(b"open sesame") != one != "open sesame"
    assert {withheld, withheld, again} == {again, withheld}
    assert withheld != again
    assert sorted([one, other]) == [one, other]


def test_copying_a_secret_returns_the_same_object() -> None:
    """A Secret is immutable and is stored once in memory."""
    secret = Secret("open sesame")
    assert copy.copy(secret) is copy.deepcopy(secret) is asdict(Plain(secret))["key"] is secret


def test_a_secret_from_json_is_withheld_unless_it_has_a_value() -> None:
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
def test_a_codec_dumps_and_loads_secrets_as_a_marker(hint: Any, value: Any) -> None:
    """This holds for secrets inside other types."""
    plain = codec_of(hint).dump(value)
    assert "[secret]" in str(plain)
    assert "sesame" not in str(plain)
    assert "[secret]" in str(codec_of(hint).load(plain))
    assert "writeOnly" in str(codec_of(hint).schema())


def test_secrets_of_pydantic_are_dumped_as_a_marker() -> None:
    """The stars that pydantic shows would be loaded as the value; other text of stars is not changed."""
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


def test_secrets_in_undeclared_values_are_found() -> None:
    """Lists and dicts are searched at any depth; values that are not JSON are refused."""
    assert codec_of(Any).dump({"a": [Secret("open sesame")]}) == {"a": ["[secret]"]}
    assert hidden({Secret("open sesame"): 1}) == {"[secret]": 1}
    with pytest.raises(InvalidValue) as refused:
        codec_of(Any).dump({"a": (Secret("open sesame"),)})
    assert "sesame" not in str(refused.value)


def test_a_secret_as_a_default_is_refused() -> None:
    """The value would be in the code and in the agent's contract."""

    @dataclass
    class Wrong:
        key: Secret = field(default=Secret("open sesame"))

    with pytest.raises(DefinitionError, match="default factory"):
        codec_of(Wrong).schema()


def test_a_validation_error_does_not_show_the_value() -> None:
    """pydantic's own errors do."""

    class Strict(BaseModel):
        key: Secret
        number: int

    with pytest.raises(InvalidValue) as refused:
        codec_of(Strict).load({"key": "open sesame", "number": "open sesame"})
    assert "sesame" not in str(refused.value)
    assert refused.value.at("value") == "number: expected int, got str"


@pytest.fixture
def thresholds() -> Iterator[None]:
    """Restore the settings of the garbage collector."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("thresholds")
def test_garbage_collection_of_secrets_does_not_disturb_the_search() -> None:
    """A finaliser runs during the search, and live secrets are still found."""
    alive = [Secret(f"long lived {n:04}") for n in range(50)]
    for n in range(2_000):
        gc.set_threshold(1 + n % 20)  # so that it runs at a different allocation each time
        cycle: list[Any] = [Secret(f"short lived {n:04}")]
        cycle.append(cycle)
        del cycle
        assert hide_secrets(f"a long lived {n % 50:04}!") == "a [secret]!", alive
    gc.collect()
    assert hide_secrets("short lived 0007") == "short lived 0007"
