"""What follows when an attempt gave no result: a table of effects and ends."""

import pytest

from limpet.engine.definitions.traits import Effect, Traits
from limpet.engine.steps.verdict import FailStep, FindOut, NotApplied, Permanent, RetryAfter, TryAgain, judge
from limpet.errors import InvalidArgument
from limpet.policy.retry import Retry

CALM = Retry(3, jitter=False)


def traits(effect: Effect, *, retry: Retry | None = CALM) -> Traits:
    """A tool with this effect."""
    return Traits(effect=effect, retry=retry, not_applied=(ConnectionRefusedError,))


def test_a_death_says_nothing_about_the_step_and_costs_no_attempt() -> None:
    """A read and an idempotent step are done again; `once` is asked about; a transaction left nothing behind."""
    assert judge(traits("none"), 3, None, 0.5) == TryAgain(0)
    assert judge(traits("idempotent"), 3, None, 0.5) == TryAgain(0)
    assert judge(traits("transaction"), 3, None, 0.5) == TryAgain(0)
    assert judge(traits("once"), 3, None, 0.5) == FindOut()


def test_an_error_is_retried_as_the_tool_says() -> None:
    """1 s, 2 s, and then it is over: nothing happened in a read or a transaction; of others nobody knows."""
    for effect, unknown in (("none", False), ("idempotent", True), ("transaction", False)):
        verdicts = [judge(traits(effect), n, ValueError(), 1.0) for n in (1, 2, 3)]  # type: ignore[arg-type]
        assert verdicts[:2] == [TryAgain(1_000_000), TryAgain(2_000_000)]
        assert isinstance(verdicts[2], FailStep)
        assert verdicts[2].unknown is unknown


def test_without_a_retry_there_is_none() -> None:
    """Nobody said that it should be tried again."""
    for effect in ("none", "idempotent"):
        assert isinstance(judge(traits(effect, retry=None), 1, ValueError(), 0.5), FailStep)


def test_once_is_never_repeated_blindly() -> None:
    """Whatever the retry says, unless the error says that nothing was applied."""
    for raised in (ValueError(), TimeoutError()):
        assert judge(traits("once"), 1, raised, 0.5) == FindOut()
    for error in (NotApplied("x"), ConnectionRefusedError("x")):
        assert judge(traits("once"), 1, error, 1.0) == TryAgain(1_000_000)


def test_what_says_that_nothing_was_applied_is_believed() -> None:
    """Then a step that is given up has failed, and is not unknown."""
    for error in (NotApplied("x"), ConnectionRefusedError("x"), RetryAfter("5s"), Permanent("x")):
        over = judge(traits("once"), 3, error, 0.5)
        assert isinstance(over, FailStep)
        assert not over.unknown


def test_permanent_is_not_retried() -> None:
    """Its author said that no retry helps."""
    assert isinstance(judge(traits("idempotent"), 1, Permanent("422"), 0.5), FailStep)


def test_a_server_that_says_when_is_obeyed() -> None:
    """To the microsecond, whatever the back-off would be."""
    assert judge(traits("idempotent"), 1, RetryAfter("1m"), 0.5) == TryAgain(60_000_000)
    assert str(RetryAfter("1m")) == "retry after 1m"
    with pytest.raises(InvalidArgument):
        RetryAfter("soon")


def test_a_timeout_is_an_error_like_any_other() -> None:
    """It is retried if the tool retries TimeoutError."""
    assert judge(traits("idempotent"), 1, TimeoutError(), 1.0) == TryAgain(1_000_000)
    picky = Traits(effect="idempotent", retry=Retry(3, on=(ValueError,)))
    over = judge(picky, 1, TimeoutError(), 1.0)
    assert isinstance(over, FailStep)
    assert over.unknown
