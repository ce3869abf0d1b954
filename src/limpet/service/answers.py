"""What a person may answer: checked before the answer is taken."""

from collections.abc import Mapping
from typing import Any

import msgspec

from limpet.engine.permits import OUTCOMES
from limpet.engine.shapes import shape
from limpet.engine.tools import find_tool
from limpet.engine.views import Request
from limpet.errors import InvalidAnswer, InvalidValue
from limpet.events import Limits
from limpet.service.schema import faults

__all__ = ["answer_of", "check_args", "check_rejectable"]


def answer_of(request: Request, answer: object) -> Any:
    """The answer as JSON, if the request allows it; raises InvalidAnswer."""
    plain = shape(type(answer)).dump(answer)
    wrong = _fault(request, plain)
    if wrong is not None:
        raise InvalidAnswer(request=request.id, reason=wrong)
    return plain


def _are_limits(plain: Any, names: list[str]) -> bool:
    if not isinstance(plain, dict) or not plain or not set(plain) <= set(names):
        return False
    try:
        msgspec.convert(plain, Limits, strict=True)
    except msgspec.ValidationError:
        return False
    return all(value is not None and value >= 0 for value in plain.values())


def check_args(request: Request, args: Mapping[str, Any]) -> None:
    """Refuse arguments that the tool does not take, where the tool is known."""
    tool = find_tool(request.tool) if request.tool is not None else None
    if tool is None:
        return
    try:
        tool.unbind(args)
    except (InvalidValue, TypeError, KeyError) as error:
        raise InvalidAnswer(
            request=request.id, reason=f"{request.tool} does not take these arguments: {error}"
        ) from error


def check_rejectable(request: Request) -> None:
    """A question that is not yes or no is answered."""
    if request.kind == "ask" and request.schema != {"type": "boolean"}:
        raise InvalidAnswer(request=request.id, reason="it is answered, not rejected")


def _fault(request: Request, plain: Any) -> str | None:
    match request.kind:
        case "approval":
            return "it is approved or rejected, not answered"
        case "unknown":
            fits = plain in OUTCOMES or (isinstance(plain, dict) and set(plain) == {"applied"})
            return None if fits else f'say one of {", ".join(OUTCOMES)}, or {{"applied": its result}}'
        case "budget":
            names = sorted(set(Limits.__struct_fields__) - {"exhausted"})
            return None if _are_limits(plain, names) else f"say new limits, {{'max_steps': 50}}, of {', '.join(names)}"
        case _:
            if request.options:
                return None if plain in request.options else f"say one of {', '.join(map(str, request.options))}"
            found = faults(plain, request.schema or {})
            return "; ".join(found) or None
