"""The next action after an attempt without a result, by effect and error."""

import pytest

from limpet.engine.definitions.traits import Effect, Traits
from limpet.engine.steps.verdict import FailStep, FindOut, NotApplied, Permanent, RetryAfter, TryAgain, judge
from limpet.errors import InvalidArgument
from limpet.policy.retry import Retry

CALM = Retry(3, jitter=False)


def traits(effect: Effect, *, retry: Retry | None = CALM) -> Traits:
    """Return the traits of a tool with this effect."""
    return Traits(effect=effect, retry=retry, not_applied=(ConnectionRefusedError,))


def test_a_worker_death_costs_no_attempt() -> None:
    """Reads, idempotent steps and transactions are repeated; a `once` effect is verified."""
    assert judge(traits("none"), 3, None, 0.5) == TryAgain(0)
    assert judge(traits("idempotent"), 3, None, 0.5) == TryAgain(0)
    assert judge(traits("transaction"), 3, None, 0.5) == TryAgain(0)
    assert judge(traits("once"), 3, None, 0.5) == FindOut()


def test_an_error_is_retried_as_the_tool_declares() -> None:
    """After retries of 1 s and 2 s the step fails. A read or transaction had no effect; for other effects, the outcome
    is unknown.
    """
    for effect, unknown in (("none", False), ("idempotent", True), ("transaction", False)):
        verdicts = [judge(traits(effect), n, ValueError(), 1.0) for n in (1, 2, 3)]  # type: ignore[arg-type]
        assert verdicts[:2] == [TryAgain(1_000_000), TryAgain(2_000_000)]
        assert isinstance(verdicts[2], FailStep)
        assert verdicts[2].unknown is unknown


def test_a_tool_without_retry_is_not_retried() -> None:
    for effect in ("none", "idempotent"):
        assert isinstance(judge(traits(effect, retry=None), 1, ValueError(), 0.5), FailStep)


def test_a_once_effect_is_not_repeated_after_an_unclear_error() -> None:
    """The step is repeated only if the error means that nothing was applied."""
    for raised in (ValueError(), TimeoutError()):
        assert judge(traits("once"), 1, raised, 0.5) == FindOut()
    for error in (NotApplied("x"), ConnectionRefusedError("x")):
        assert judge(traits("once"), 1, error, 1.0) == TryAgain(1_000_000)


def test_a_not_applied_error_fails_the_step_with_a_known_outcome() -> None:
    for error in (NotApplied("x"), ConnectionRefusedError("x"), RetryAfter("5s"), Permanent("x")):
        over = judge(traits("once"), 3, error, 0.5)
        assert isinstance(over, FailStep)
        assert not over.unknown


def test_a_permanent_error_is_not_retried() -> None:
    assert isinstance(judge(traits("idempotent"), 1, Permanent("422"), 0.5), FailStep)


def test_retry_after_sets_the_delay() -> None:
    """The delay is exact, whatever the back-off."""
    assert judge(traits("idempotent"), 1, RetryAfter("1m"), 0.5) == TryAgain(60_000_000)
    assert str(RetryAfter("1m")) == "retry after 1m"
    with pytest.raises(InvalidArgument):
        RetryAfter("soon")


def test_a_timeout_is_retried_like_other_errors() -> None:
    """A timeout is retried if the tool retries TimeoutError."""
    assert judge(traits("idempotent"), 1, TimeoutError(), 1.0) == TryAgain(1_000_000)
    picky = Traits(effect="idempotent", retry=Retry(3, on=(ValueError,)))
    over = judge(picky, 1, TimeoutError(), 1.0)
    assert isinstance(over, FailStep)
    assert over.unknown
