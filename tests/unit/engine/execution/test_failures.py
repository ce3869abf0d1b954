"""Errors as data: every error can be recorded, and is classified from its record alone."""

import pytest

from limpet.engine.execution.failures import MAX_MESSAGE, MAX_TRACEBACK, failure_of, reason_of, was
from limpet.errors import NotFound
from limpet.events import canonical
from limpet.events.values import encode
from tests.unit.credentials import EVERY, Credential


class Hostile(Exception):
    """An error whose methods raise."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    def __repr__(self) -> str:
        raise SystemExit


class Late(TimeoutError):
    """An error with several base classes."""


def raised(error: BaseException) -> BaseException:
    """Return the error with a traceback."""
    try:
        raise error  # noqa: TRY301 - for its traceback
    except BaseException as caught:  # noqa: BLE001 - any exception
        return caught


def test_a_failure_has_the_class_message_and_traceback() -> None:
    failure = failure_of(raised(Late("too late")))
    assert failure.type == f"{__name__}.Late"
    assert failure.mro[:3] == (f"{__name__}.Late", "builtins.TimeoutError", "builtins.OSError")
    assert (failure.message, failure.code, failure.facts) == ("too late", "", None)
    assert failure.traceback.endswith("Late: too late\n")


@pytest.mark.parametrize("kind", [Late, TimeoutError, OSError, "Late", "TimeoutError", "builtins.TimeoutError"])
def test_a_failure_matches_its_classes_and_their_names(kind: type[BaseException] | str) -> None:
    """A failure matches its class, a base class, and the name of either."""
    assert was(failure_of(Late("x")), kind)


@pytest.mark.parametrize("kind", [ValueError, "Timeout", "Error", "other.TimeoutError"])
def test_a_failure_does_not_match_other_classes(kind: type[BaseException] | str) -> None:
    """Part of a name does not match."""
    assert not was(failure_of(Late("x")), kind)


def test_a_limpet_errors_code_and_fields_are_recorded() -> None:
    """A field that is not JSON is recorded as its repr."""
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
def test_any_error_is_recorded_within_the_size_limits(error: Exception) -> None:
    """The record can be encoded."""
    failure = failure_of(raised(error), facts={"hostile": Hostile(), "\ud800": float("nan")})
    assert len(failure.message) <= MAX_MESSAGE
    assert len(failure.traceback) <= MAX_TRACEBACK
    assert encode(failure)
    assert failure.facts is not None
    assert canonical(failure.facts.value())


def test_a_group_has_the_texts_of_its_errors_and_the_code_of_the_first_that_has_one() -> None:
    """Also of those in groups inside, and if one of them cannot be read."""
    missing = NotFound(what="run", id="r-1")
    inner = ExceptionGroup("inner", [Hostile(), missing])
    failure = failure_of(raised(ExceptionGroup("outer", [ValueError("no"), inner])))
    assert failure.message == (
        "outer (2 sub-exceptions): builtins.ValueError: no; "
        f"{__name__}.Hostile: <{__name__}.Hostile without readable text>; limpet.NotFound: {missing.summary}"
    )
    assert (failure.type, failure.code) == ("builtins.ExceptionGroup", "not_found")
    assert failure.facts is not None
    assert failure.facts.value() == {"what": "run", "id": "r-1"}


def test_a_deep_group_is_recorded() -> None:
    error: Exception = NotFound(what="run", id="r-1")
    for _ in range(5_000):
        error = ExceptionGroup("deeper", [error])
    assert failure_of(error).type == "builtins.ExceptionGroup"
    assert reason_of(error) is error


def test_a_cycle_of_causes_is_recorded() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert "one" in failure_of(one).traceback


@pytest.mark.parametrize("given", EVERY, ids=lambda given: given.name)
def test_credentials_in_an_error_are_not_recorded(given: Credential) -> None:
    """This applies to the message, the fields, a note of several lines and a cause."""
    error = ValueError(given.text)
    error.add_note(given.text)
    error.__cause__ = NotFound(what="key", id=given.text)
    assert given.hides not in str(encode(failure_of(raised(error), facts={"it": [given.text]})))


def test_a_truncated_credential_is_not_recorded() -> None:
    """Redaction comes before truncation."""
    [given] = [each for each in EVERY if each.name == "anthropic"]
    for before in range(MAX_MESSAGE - len(given.text), MAX_MESSAGE, 7):
        failure = failure_of(raised(ValueError("x" * before + " " + given.text)))
        assert given.hides[:12] not in str(encode(failure))
