"""What follows when an attempt did not give a result. Pure.

An effect that started and has no answer is *unknown*, unless its error says that nothing was applied. It is repeated
only if its author declared that safe: an idempotent one with its key. A `once` effect is never repeated blindly: its
`verify` is asked, then a person.
"""

from dataclasses import dataclass

from limpet.clock import Duration, microseconds
from limpet.engine.definitions.traits import Traits
from limpet.policy.retry import Again, Attempt, Retry, decide

__all__ = ["FailStep", "FindOut", "NotApplied", "Permanent", "RetryAfter", "TryAgain", "attempt_of", "judge"]

NO_RETRY = Retry(1)
# Reads, and what was undone with its transaction.
LEAVES_NOTHING = ("none", "transaction")


class Permanent(Exception):
    """A tool raises this: nothing was applied, and no retry helps."""

    __module__ = "limpet"  # its stored name is the public one


class NotApplied(Exception):
    """A tool raises this: nothing was applied, and trying again may help."""

    __module__ = "limpet"


class RetryAfter(Exception):
    """A tool raises this: nothing was applied, and it may be tried again after a time."""

    __module__ = "limpet"

    def __init__(self, how_long: Duration, message: str = "") -> None:
        super().__init__(message or f"try again after {how_long}")
        self.after = microseconds(how_long)


# Errors that say so, whatever the effect is.
NOTHING_APPLIED = (Permanent, NotApplied, RetryAfter)


@dataclass(frozen=True)
class TryAgain:
    """Try it again, with the same key."""

    after: int
    """Microseconds."""


@dataclass(frozen=True)
class FindOut:
    """Nobody knows whether it was applied, and repeating is not safe: ask its `verify`, then a person."""


@dataclass(frozen=True)
class FailStep:
    """The step has failed; perhaps it was applied all the same."""

    unknown: bool


def judge(traits: Traits, attempt: int, error: BaseException | None, chance: float) -> TryAgain | FindOut | FailStep:
    """What follows an attempt, counted from 1, that raised this; without an error its worker died, which counts none.

    `chance` is a number from 0 to 1 that the caller drew.
    """
    if error is None:
        return FindOut() if traits.effect == "once" else TryAgain(0)
    nothing_applied = traits.effect in LEAVES_NOTHING or isinstance(error, (*NOTHING_APPLIED, *traits.not_applied))
    if traits.effect == "once" and not nothing_applied:
        return FindOut()
    again = decide(traits.retry or NO_RETRY, attempt_of(attempt, error), chance)
    return TryAgain(again.after) if isinstance(again, Again) else FailStep(unknown=not nothing_applied)


def attempt_of(number: int, error: BaseException) -> Attempt:
    """An attempt that raised, as its retry is decided."""
    return Attempt(
        number=number,
        error=error,
        permanent=isinstance(error, Permanent),
        retry_after=error.after if isinstance(error, RetryAfter) else None,
    )
