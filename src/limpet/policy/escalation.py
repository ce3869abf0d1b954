"""When a person is asked instead of a failure, or before a doubtful choice stands."""

from collections.abc import Iterable

from limpet.arguments import defining
from limpet.clock import Duration, microseconds
from limpet.errors import DefinitionError, is_named
from limpet.events import Failure

__all__ = ["Escalate"]


@defining
class Escalate:
    """What makes an agent ask: errors of these classes, attempts that are used up, a budget that is nearly used up, an
    effect that nobody knows the outcome of, a decision that is less sure than this."""

    def __init__(
        self,
        *errors: type[BaseException] | str,
        retries: bool = False,
        budget: bool = False,
        unknown: bool = False,
        confidence: float | None = None,
        to: str | Iterable[str] = "anyone",
        expires: Duration | None = None,
    ) -> None:
        if not (errors or retries or budget or unknown or confidence is not None):
            raise DefinitionError(what="Escalate", reason="say when: an error class, retries=True, budget=True …")
        if confidence is not None and not 0 <= confidence <= 1:
            raise DefinitionError(what="Escalate", reason=f"confidence={confidence} is not between 0 and 1")
        self.errors, self.retries, self.budget, self.unknown = errors, retries, budget, unknown
        self.confidence = confidence
        self.to = (to,) if isinstance(to, str) else tuple(to)
        self.expires = None if expires is None else microseconds(expires)

    def asks_after(self, failure: Failure, attempts: int) -> bool:
        """Whether a step that has failed for good, after so many attempts, goes to a person."""
        names = (failure.type, *failure.mro)
        return (self.retries and attempts > 1) or any(is_named(names, each) for each in self.errors)

    def asks_about(self, confidence: float | None) -> bool:
        """Whether a choice as sure as this goes to a person."""
        return self.confidence is not None and confidence is not None and confidence < self.confidence
