"""Retries: whether a failed attempt is repeated, and after which delay."""

from typing import Any

import pytest

from limpet.errors import DefinitionError, InvalidArgument
from limpet.policy.retry import Again, Attempt, GiveUp, Retry, decide

STEADY = Retry(9, first="1s", factor=2, cap="1m", jitter=False)


def attempt(number: int = 1, error: BaseException | None = None, **more: Any) -> Attempt:
    """Return a failed attempt."""
    return Attempt(number=number, error=error or ValueError("boom"), **more)


def test_permanent_errors_are_not_retried() -> None:
    assert decide(STEADY, attempt(permanent=True), 1.0) == GiveUp("the tool raised Permanent")


def test_an_unlisted_error_is_not_retried() -> None:
    """The reason names the error."""
    retry = Retry(9, on=(OSError,))
    assert decide(retry, attempt(error=ValueError()), 1.0) == GiveUp("ValueError is not retried")


def test_a_subclass_of_a_listed_error_is_retried() -> None:
    retry = Retry(9, on=(OSError,), jitter=False)
    assert decide(retry, attempt(error=TimeoutError()), 1.0) == Again(1_000_000)


def test_a_base_exception_is_not_retried_by_default() -> None:
    assert decide(STEADY, attempt(error=KeyboardInterrupt()), 1.0) == GiveUp("KeyboardInterrupt is not retried")


@pytest.mark.parametrize(("number", "decision"), [(2, Again(2_000_000)), (3, GiveUp("3 of 3 attempts were made"))])
def test_the_first_attempt_counts(number: int, decision: Again | GiveUp) -> None:
    assert decide(Retry(3, jitter=False), attempt(number), 1.0) == decision


def test_one_attempt_means_no_retry() -> None:
    assert decide(Retry(1), attempt(), 1.0) == GiveUp("1 of 1 attempts were made")


def test_the_servers_retry_after_is_used() -> None:
    """The delay of the server replaces the back-off."""
    assert decide(STEADY, attempt(retry_after=123), 0.0) == Again(123)


def test_a_retry_after_of_zero_retries_immediately() -> None:
    assert decide(STEADY, attempt(retry_after=0), 1.0) == Again(0)


def test_retry_after_does_not_add_attempts() -> None:
    assert decide(Retry(2), attempt(2, retry_after=5), 1.0) == GiveUp("2 of 2 attempts were made")


def test_delays_grow_by_the_factor_up_to_the_cap() -> None:
    """The delays are 1 s, 2 s, 4 s, … 1 min."""
    waits = [decide(STEADY, attempt(number), 1.0) for number in range(1, 9)]
    assert waits == [Again(seconds * 10**6) for seconds in (1, 2, 4, 8, 16, 32, 60, 60)]


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 0), (0.25, 500_000), (1.0, 2_000_000)])
def test_jitter_covers_the_whole_delay(chance: float, wait: int) -> None:
    """Runs that fail together are not retried together."""
    assert decide(Retry(9), attempt(2), chance) == Again(wait)


@pytest.mark.parametrize(
    ("retry", "number", "wait"),
    [
        (Retry(10**9, factor=1e6, jitter=False), 10**6, 60_000_000),
        (Retry(10**9, factor=10**400, jitter=False), 2, 60_000_000),
        (Retry(10**9, factor=2, jitter=False), 10**8, 60_000_000),
        (Retry(10**9, first=0, factor=2, jitter=False), 10**6, 0),
        (Retry(10**9, factor=1, jitter=False), 10**6, 1_000_000),
        (Retry(10**9, factor=1.01, jitter=False), 1000, 60_000_000),
        (Retry(10**9, first="2m", jitter=False), 1, 60_000_000),
    ],
)
def test_large_factors_and_attempt_numbers_give_the_cap(retry: Retry, number: int, wait: int) -> None:
    """The cap applies where a float would overflow, and with a factor close to 1."""
    assert decide(retry, attempt(number), 1.0) == Again(wait)


@pytest.mark.parametrize(
    "given",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": float("inf")},
    ],
    ids=str,
)
def test_an_invalid_retry_is_refused_at_its_definition(given: dict[str, Any]) -> None:
    """The error comes at the definition, not at the first failure."""
    with pytest.raises(DefinitionError, match=r"at least 1 attempt|finite number"):
        Retry(**given)


@pytest.mark.parametrize("given", [{"first": "soon"}, {"cap": -1}], ids=str)
def test_invalid_durations_are_refused_at_the_definition(given: dict[str, Any]) -> None:
    """The error comes at the definition, not at the first failure."""
    with pytest.raises(InvalidArgument):
        Retry(**given)


def test_the_defaults_of_retry_never_change() -> None:
    """The defaults of `Retry()` are part of the API."""
    retry = Retry()
    assert (retry.attempts, retry.first, retry.factor, retry.cap, retry.jitter, retry.on) == (
        3,
        "1s",
        2,
        "1m",
        True,
        (Exception,),
    )
