"""What follows when an attempt did not give a result. Pure.

An effect that started and has no answer is *unknown*, unless its error says that nothing was applied. It is repeated
only if its author declared that safe: an idempotent one with its key. A `once` effect is never repeated blindly: its
`verify` is asked, then a person.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from limpet.clock import Duration, microseconds
from limpet.engine.traits import Traits
from limpet.policy.retry import Again, Attempt, Retry, decide

__all__ = ["Ask", "Happened", "NotApplied", "Over", "Permanent", "Repeat", "RetryAfter", "Verdict", "judge"]

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


class Happened(NamedTuple):
    """How an attempt ended without a result."""

    how: Literal["raised", "timeout", "died", "cancelled", "lost"]
    attempt: int
    """Counted from 1; deaths do not count."""
    error: BaseException | None = None


@dataclass(frozen=True)
class Repeat:
    """Try it again, with the same key."""

    after: int
    """Microseconds."""
    counts: bool = True
    """Whether it counts as another attempt; a death says nothing about the step."""


@dataclass(frozen=True)
class Ask:
    """Nobody knows whether it was applied, and repeating is not safe: ask its `verify`, then a person."""


@dataclass(frozen=True)
class Over:
    """The step has failed; perhaps it was applied all the same."""

    reason: str
    unknown: bool


Verdict = Repeat | Ask | Over


def judge(traits: Traits, happened: Happened, chance: float) -> Verdict:
    """What follows; `chance` is a number from 0 to 1 that the caller drew."""
    nothing_applied = traits.effect in LEAVES_NOTHING or says_nothing_applied(traits, happened.error)
    if happened.how in ("died", "cancelled", "lost"):
        return Ask() if traits.effect == "once" else Repeat(0, counts=False)
    if traits.effect == "once" and not nothing_applied:
        return Ask()
    again = decide(traits.retry or NO_RETRY, _attempt(happened), chance)
    if isinstance(again, Again):
        return Repeat(again.after)
    return Over(again.reason, unknown=not nothing_applied)


def says_nothing_applied(traits: Traits, error: BaseException | None) -> bool:
    """Whether an error says so, whatever the effect is."""
    return isinstance(error, (Permanent, NotApplied, RetryAfter, *traits.not_applied))


def _attempt(happened: Happened) -> Attempt:
    error = happened.error or TimeoutError("it took too long")
    return Attempt(
        number=happened.attempt,
        error=error,
        permanent=isinstance(error, Permanent),
        retry_after=error.after if isinstance(error, RetryAfter) else None,
    )
