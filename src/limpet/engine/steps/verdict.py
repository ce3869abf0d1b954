"""The decision after an attempt without a result. Pure.

If an effect started and has no outcome, it is unknown whether it was applied, unless its error means that nothing was.
Limpet repeats it only if that is declared safe: an idempotent effect, with its key. Limpet never repeats a `once`
effect without asking: first its `verify`, then a person.
"""

from msgspec import Struct

from limpet.clock import Duration, microseconds
from limpet.engine.definitions.traits import Traits
from limpet.engine.execution.failures import was
from limpet.errors import WrongCall
from limpet.events import Failure
from limpet.policy.retry import Again, Attempt, Retry, decide

__all__ = [
    "FailStep",
    "FindOut",
    "NotApplied",
    "Permanent",
    "RetryAfter",
    "TryAgain",
    "attempt_of",
    "judge",
    "may_help",
]

NO_RETRY = Retry(1)
# Effects of which a failed attempt leaves nothing: reads, and transactions, which are rolled back.
LEAVES_NOTHING = ("none", "transaction")


class Permanent(Exception):
    """Raised by a tool: nothing was applied, and a retry would not help."""

    __module__ = "limpet"  # stored under its public name


class NotApplied(Exception):
    """Raised by a tool: nothing was applied, and a retry may help."""

    __module__ = "limpet"


class RetryAfter(Exception):
    """Raised by a tool: nothing was applied, and a retry may help after this duration."""

    __module__ = "limpet"

    def __init__(self, how_long: Duration, message: str = "") -> None:
        super().__init__(message or f"retry after {how_long}")
        self.after = microseconds(how_long)


# Errors that mean that nothing was applied, for every effect.
NOTHING_APPLIED = (Permanent, NotApplied, RetryAfter)


class TryAgain(Struct, frozen=True):
    """Retry with the same key."""

    after: int
    """Delay in microseconds."""


class FindOut(Struct, frozen=True):
    """Unknown whether the effect was applied, and not safe to repeat: ask its `verify`, then a person."""


class FailStep(Struct, frozen=True):
    """The step has failed. `unknown`: it may have been applied nevertheless."""

    unknown: bool


def judge(traits: Traits, attempt: int, error: BaseException | None, chance: float) -> TryAgain | FindOut | FailStep:
    """Decide what follows attempt number `attempt`, which raised `error`. None means that its worker died.

    A death does not count as an attempt. `chance` is a random number from 0 to 1, drawn by the caller.
    """
    if error is None:
        return FindOut() if traits.effect == "once" else TryAgain(0)
    nothing_applied = traits.effect in LEAVES_NOTHING or isinstance(error, (*NOTHING_APPLIED, *traits.not_applied))
    if traits.effect == "once" and not nothing_applied:
        return FindOut()
    again = decide(traits.retry or NO_RETRY, attempt_of(attempt, error), chance)
    return TryAgain(again.after) if isinstance(again, Again) else FailStep(unknown=not nothing_applied)


def may_help(retry: Retry, failure: Failure) -> bool:
    """Return whether a retry may help after this recorded failure. It does not after a mistake in the code."""
    return any(was(failure, kind) for kind in retry.on) and not was(failure, WrongCall)


def attempt_of(number: int, error: BaseException) -> Attempt:
    """Return a failed attempt in the form that the retry policy takes."""
    return Attempt(
        number=number,
        error=error,
        permanent=isinstance(error, Permanent | WrongCall),
        retry_after=error.after if isinstance(error, RetryAfter) else None,
    )
