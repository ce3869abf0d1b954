"""Decide when a person is asked, instead of failing or before an uncertain decision is final."""

from collections.abc import Iterable

from limpet.arguments import defining
from limpet.clock import Duration, microseconds
from limpet.errors import DefinitionError, is_named
from limpet.events import Failure

__all__ = ["Escalate"]


@defining
class Escalate:
    """When an agent asks a person: after errors of these classes, when all retries are used, when the budget is nearly
    used, when the outcome of an effect is unknown, or when a decision's confidence is below this value.
    """

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
            raise DefinitionError(
                what="Escalate", reason="pass a condition: an error class, retries=True, budget=True …"
            )
        if confidence is not None and not 0 <= confidence <= 1:
            raise DefinitionError(what="Escalate", reason=f"confidence must be between 0 and 1, not {confidence}")
        self.errors, self.retries, self.budget, self.unknown = errors, retries, budget, unknown
        self.confidence = confidence
        self.to = (to,) if isinstance(to, str) else tuple(to)
        self.expires = None if expires is None else microseconds(expires)

    def asks_after(self, failure: Failure, attempts: int) -> bool:
        """Return whether a step that has finally failed, after this many attempts, is escalated."""
        names = (failure.type, *failure.mro)
        return (self.retries and attempts > 1) or any(is_named(names, each) for each in self.errors)

    def asks_about(self, confidence: float | None) -> bool:
        """Return whether a decision with this confidence is escalated."""
        return self.confidence is not None and confidence is not None and confidence < self.confidence
