"""Errors as data: recorded whatever they do, and asked about from the record alone."""

import pytest

from limpet.engine.execution.failures import MAX_MESSAGE, MAX_TRACEBACK, failure_of, was
from limpet.errors import NotFound
from limpet.events import canonical
from limpet.events.values import encode
from tests.unit.credentials import EVERY, Credential


class Hostile(Exception):
    """It fails whenever it is asked something."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    def __repr__(self) -> str:
        raise SystemExit


class Late(TimeoutError):
    """An error with bases."""


def raised(error: BaseException) -> BaseException:
    """The error, with a traceback."""
    try:
        raise error  # noqa: TRY301 - for its traceback
    except BaseException as caught:  # noqa: BLE001 - that is the point
        return caught


def test_an_error_is_its_class_its_words_and_its_traceback() -> None:
    """Enough to branch on it, to show it and to explain it."""
    failure = failure_of(raised(Late("too late")))
    assert failure.type == f"{__name__}.Late"
    assert failure.mro[:3] == (f"{__name__}.Late", "builtins.TimeoutError", "builtins.OSError")
    assert (failure.message, failure.code, failure.facts) == ("too late", "", None)
    assert failure.traceback.endswith("Late: too late\n")


@pytest.mark.parametrize("kind", [Late, TimeoutError, OSError, "Late", "TimeoutError", "builtins.TimeoutError"])
def test_what_it_was_is_answered_from_the_record(kind: type[BaseException] | str) -> None:
    """By its class, a base of it, or a name."""
    assert was(failure_of(Late("x")), kind)


@pytest.mark.parametrize("kind", [ValueError, "Timeout", "Error", "other.TimeoutError"])
def test_what_it_was_not(kind: type[BaseException] | str) -> None:
    """Part of a name is not a name."""
    assert not was(failure_of(Late("x")), kind)


def test_an_error_of_ours_keeps_its_code_and_facts() -> None:
    """The same on every surface; what is no JSON is shown."""
    failure = failure_of(NotFound(what="run", id="r1"), facts={"more": {1, 2}})
    assert failure.code == "not_found"
    assert failure.facts is not None
    assert failure.facts.value() == {"what": "run", "id": "r1", "more": "{1, 2}"}


@pytest.mark.parametrize(
    "error",
    [
        Hostile(),
        ExceptionGroup("many", [ValueError(1), Hostile()]),
        ValueError("\ud800 half a character"),
        ValueError("x" * 10**6),
        type("Odd", (Exception,), {"__module__": None})("x"),
        RecursionError("deep"),
    ],
    ids=lambda error: type(error).__name__[:10],
)
def test_whatever_it_does_it_is_recorded_within_bounds(error: Exception) -> None:
    """And what is recorded can be stored."""
    failure = failure_of(raised(error), facts={"hostile": Hostile(), "\ud800": float("nan")})
    assert len(failure.message) <= MAX_MESSAGE
    assert len(failure.traceback) <= MAX_TRACEBACK
    assert encode(failure)
    assert failure.facts is not None
    assert canonical(failure.facts.value())


def test_a_circle_of_causes_ends() -> None:
    """Each is told once."""
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert "one" in failure_of(one).traceback


@pytest.mark.parametrize("given", EVERY, ids=lambda given: given.name)
def test_what_looks_like_a_secret_is_not_recorded(given: Credential) -> None:
    """In the message, the facts, a note of several lines, a cause."""
    error = ValueError(given.text)
    error.add_note(given.text)
    error.__cause__ = NotFound(what="key", id=given.text)
    assert given.hides not in str(encode(failure_of(raised(error), facts={"it": [given.text]})))


def test_half_a_secret_is_not_recorded_either() -> None:
    """It is taken out before the text is cut."""
    [given] = [each for each in EVERY if each.name == "anthropic"]
    for before in range(MAX_MESSAGE - len(given.text), MAX_MESSAGE, 7):
        failure = failure_of(raised(ValueError("x" * before + " " + given.text)))
        assert given.hides[:12] not in str(encode(failure))
