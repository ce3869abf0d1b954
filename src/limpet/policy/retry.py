"""Decide whether and when a failed attempt is retried."""

from dataclasses import KW_ONLY, dataclass
from math import inf

from msgspec import Struct

from limpet.arguments import defining
from limpet.clock import Duration, microseconds
from limpet.errors import DefinitionError

__all__ = ["READ_RETRY", "Again", "Attempt", "GiveUp", "Retry", "as_retry", "decide"]


@defining
@dataclass(frozen=True)
class Retry:
    """How often and with which delays a step is retried: exponential backoff with a cap and full jitter."""

    attempts: int = 3
    """Maximum number of attempts, including the first."""
    _: KW_ONLY
    first: Duration = "1s"
    factor: float = 2
    cap: Duration = "1m"
    jitter: bool = True
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.attempts < 1 or not 1 <= self.factor < inf:
            reason = "needs at least 1 attempt and a finite factor of at least 1"
            raise DefinitionError(what=repr(self), reason=reason)
        microseconds(self.first)
        microseconds(self.cap)


READ_RETRY = Retry(3)
"""How often a read is tried, unless it says otherwise: repeating it is safe."""


def as_retry(retry: Retry | int | None) -> Retry | None:
    """Return a tool's `retry` as a Retry; an int is the number of attempts."""
    return Retry(retry) if isinstance(retry, int) else retry


class Attempt(Struct, frozen=True, kw_only=True):
    """A failed attempt."""

    number: int
    """Number of the attempt, from 1."""
    error: BaseException
    permanent: bool = False
    """Whether the tool raised Permanent."""
    retry_after: int | None = None
    """Delay that the server asked for, in microseconds."""


class Again(Struct, frozen=True):
    """Retry after this many microseconds."""

    after: int


class GiveUp(Struct, frozen=True):
    """The step has failed."""

    reason: str


def decide(retry: Retry, attempt: Attempt, chance: float) -> Again | GiveUp:
    """Decide what follows a failed attempt; `chance` is a random number from 0 to 1 that the caller drew."""
    if attempt.permanent:
        return GiveUp("the tool raised Permanent")
    if not isinstance(attempt.error, retry.on):
        return GiveUp(f"{type(attempt.error).__qualname__} is not retried")
    if attempt.number >= retry.attempts:
        return GiveUp(f"{attempt.number} of {retry.attempts} attempts were made")
    if attempt.retry_after is not None:
        return Again(attempt.retry_after)
    return Again(_backoff(retry, attempt.number, chance))


def _backoff(retry: Retry, attempt: int, chance: float) -> int:
    first, cap = microseconds(retry.first), microseconds(retry.cap)
    try:
        longest = min(cap, first * float(retry.factor) ** (attempt - 1))
    except OverflowError:
        longest = cap if first else 0
    return round(longest * chance if retry.jitter else longest)
