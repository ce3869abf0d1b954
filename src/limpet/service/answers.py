"""What a person may answer: checked before the answer is taken."""

from typing import Any

from limpet.engine.permits import OUTCOMES
from limpet.engine.shapes import shape
from limpet.engine.views import Request
from limpet.errors import InvalidAnswer
from limpet.events import Limits
from limpet.service.schema import faults

__all__ = ["answer_of"]


def answer_of(request: Request, answer: object) -> Any:
    """The answer as JSON, if the request allows it; raises InvalidAnswer."""
    plain = shape(type(answer)).dump(answer)
    wrong = _fault(request, plain)
    if wrong is not None:
        raise InvalidAnswer(request=request.id, reason=wrong)
    return plain


def _fault(request: Request, plain: Any) -> str | None:
    match request.kind:
        case "approval":
            return "it is approved or rejected, not answered"
        case "unknown":
            fits = plain in OUTCOMES or (isinstance(plain, dict) and set(plain) == {"applied"})
            return None if fits else f'say one of {", ".join(OUTCOMES)}, or {{"applied": its result}}'
        case "budget":
            names = set(Limits.__struct_fields__) - {"exhausted"}
            fits = isinstance(plain, dict) and bool(plain) and set(plain) <= names
            return None if fits else f"say new limits, such as {{'max_steps': 50}}, of {', '.join(sorted(names))}"
        case _:
            if request.options:
                return None if plain in request.options else f"say one of {', '.join(map(str, request.options))}"
            found = faults(plain, request.schema or {})
            return "; ".join(found) or None
