"""Whether a failed attempt is made again, and when."""

from typing import Any

import pytest

from limpet.errors import DefinitionError, InvalidArgument
from limpet.policy.retry import Again, Attempt, GiveUp, Retry, decide

STEADY = Retry(9, first="1s", factor=2, cap="1m", jitter=False)


def attempt(number: int = 1, error: BaseException | None = None, **more: Any) -> Attempt:
    """An attempt that went wrong."""
    return Attempt(number=number, error=error or ValueError("boom"), **more)


def test_a_permanent_error_is_not_tried_again() -> None:
    """Its author said that no retry helps."""
    assert decide(STEADY, attempt(permanent=True), 1.0) == GiveUp("the tool raised Permanent")


def test_an_error_that_is_not_listed_is_not_tried_again() -> None:
    """The reason names it."""
    retry = Retry(9, on=(OSError,))
    assert decide(retry, attempt(error=ValueError()), 1.0) == GiveUp("ValueError is not retried")


def test_an_error_that_is_listed_by_its_base_is_tried_again() -> None:
    """Classes, as `except` would catch them."""
    retry = Retry(9, on=(OSError,), jitter=False)
    assert decide(retry, attempt(error=TimeoutError()), 1.0) == Again(1_000_000)


def test_whatever_is_no_exception_is_not_tried_again_by_default() -> None:
    """A cancelled task is not an error to repeat."""
    assert decide(STEADY, attempt(error=KeyboardInterrupt()), 1.0) == GiveUp("KeyboardInterrupt is not retried")


@pytest.mark.parametrize(("number", "decision"), [(2, Again(2_000_000)), (3, GiveUp("3 of 3 attempts were made"))])
def test_attempts_are_counted_all_together(number: int, decision: Again | GiveUp) -> None:
    """The first is among them."""
    assert decide(Retry(3, jitter=False), attempt(number), 1.0) == decision


def test_one_attempt_means_no_retry() -> None:
    """It was made."""
    assert decide(Retry(1), attempt(), 1.0) == GiveUp("1 of 1 attempts were made")


def test_a_server_that_says_when_is_heeded() -> None:
    """Its word counts, not ours."""
    assert decide(STEADY, attempt(retry_after=123), 0.0) == Again(123)


def test_a_server_may_say_at_once() -> None:
    """Nothing is a time too."""
    assert decide(STEADY, attempt(retry_after=0), 1.0) == Again(0)


def test_a_server_does_not_get_more_attempts_than_there_are() -> None:
    """The number of attempts counts first."""
    assert decide(Retry(2), attempt(2, retry_after=5), 1.0) == GiveUp("2 of 2 attempts were made")


def test_waiting_grows_by_the_factor_up_to_the_cap() -> None:
    """1 s, 2 s, 4 s, … 1 min."""
    waits = [decide(STEADY, attempt(number), 1.0) for number in range(1, 9)]
    assert waits == [Again(seconds * 10**6) for seconds in (1, 2, 4, 8, 16, 32, 60, 60)]


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 0), (0.25, 500_000), (1.0, 2_000_000)])
def test_jitter_spreads_over_the_whole_wait(chance: float, wait: int) -> None:
    """Many runs that fail together do not come back together."""
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
def test_no_factor_and_no_number_of_attempts_is_too_big(retry: Retry, number: int, wait: int) -> None:
    """The cap holds where a float would overflow, and is reached however slowly it is approached."""
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
def test_a_retry_that_makes_no_sense_is_refused_at_once(given: dict[str, Any]) -> None:
    """When it is written, and not when the first error comes."""
    with pytest.raises(DefinitionError, match=r"at least 1 attempt|finite number"):
        Retry(**given)


@pytest.mark.parametrize("given", [{"first": "soon"}, {"cap": -1}], ids=str)
def test_durations_that_cannot_be_read_are_refused_at_once(given: dict[str, Any]) -> None:
    """When it is written, and not when the first error comes."""
    with pytest.raises(InvalidArgument):
        Retry(**given)


def test_three_attempts_are_made_unless_told_otherwise() -> None:
    """What `Retry()` means is part of the API."""
    retry = Retry()
    assert (retry.attempts, retry.first, retry.factor, retry.cap, retry.jitter, retry.on) == (
        3,
        "1s",
        2,
        "1m",
        True,
        (Exception,),
    )
