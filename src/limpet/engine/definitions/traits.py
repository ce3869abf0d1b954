"""What a tool says about itself: above all, what repeating it means."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from limpet.events import Spent
from limpet.policy.retry import Retry

__all__ = ["EFFECTS", "Effect", "Traits"]

Effect = Literal["none", "idempotent", "once", "transaction"]
EFFECTS: Mapping[str, str] = {
    "none": "a read or a computation: repeat it as you like",
    "idempotent": "repeating it with the same key is safe",
    "once": "never repeat it blindly",
    "transaction": "its writes commit with the event",
}


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a tool says about itself."""

    effect: Effect
    risk: str | None = None
    retry: Retry | None = None
    timeout: int | None = None
    """Microseconds for one attempt."""
    not_applied: tuple[type[BaseException], ...] = ()
    """Errors after which nothing was done."""
    irreversible: bool = False
    most: Spent | None = None
    """What one attempt uses up at most: put aside before it begins."""
    fresh: tuple[str, ...] = ()
    """Sources outside that must have been read, and still hold, when it starts."""
    invalidates: tuple[str, ...] = ()
    """Sources outside that say something else when it is done."""
