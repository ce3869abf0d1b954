"""Properties that a tool declares: above all its effect, that is, what repeating it means."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from limpet.events import Spent
from limpet.policy.retry import Retry

__all__ = ["EFFECTS", "Effect", "Traits"]

Effect = Literal["none", "idempotent", "once", "transaction"]
EFFECTS: Mapping[str, str] = {
    "none": "a read or a computation, which may be repeated",
    "idempotent": "safe to repeat with the same key",
    "once": "not safe to repeat",
    "transaction": "writes that commit together with the event",
}


class Traits(Struct, frozen=True, kw_only=True):
    """Declared properties of a tool."""

    effect: Effect
    risk: str | None = None
    retry: Retry | None = None
    timeout: int | None = None
    """Timeout of one attempt, in microseconds."""
    not_applied: tuple[type[BaseException], ...] = ()
    """Error classes that mean that nothing was applied."""
    irreversible: bool = False
    max_spend: Spent | None = None
    """Maximum tokens and cost of one attempt, reserved before it starts."""
    fresh: tuple[str, ...] = ()
    """External sources that the run must have read, and whose data must not have expired, when the step starts."""
    invalidates: tuple[str, ...] = ()
    """External sources whose data is out of date after the step."""
