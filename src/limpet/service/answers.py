"""Validate answers to requests before they are written."""

from collections.abc import Mapping
from typing import Any

import msgspec

from limpet.arguments import brief
from limpet.engine.approvals.approvals import CHOICES, OUTCOMES
from limpet.engine.definitions.schema_check import faults, resolved
from limpet.engine.definitions.tools import find_tool
from limpet.engine.definitions.types import codec_of
from limpet.engine.execution.views import Request
from limpet.errors import InvalidAnswer, InvalidValue
from limpet.events import Limits
from limpet.service.json_body import yes_or_no

__all__ = ["answer_from_text", "check_approvable", "check_args", "check_rejectable", "validate_answer"]

YES_OR_NO = {"type": "boolean"}


def validate_answer(request: Request, answer: object) -> Any:
    """Return an answer as JSON. Raises InvalidAnswer if it does not match the request."""
    try:
        plain = codec_of(type(answer)).dump(answer)
    except InvalidValue as error:
        raise InvalidAnswer(request=request.id, reason=error.at("answer")) from error
    wrong = _not_json(answer) or _mismatch(request, plain)
    if wrong is not None:
        raise InvalidAnswer(request=request.id, reason=wrong)
    return plain


def answer_from_text(request: Request, text: str, plain: Any) -> Any:
    """Return the answer that a person typed: yes or no, one of the options, or a text, if the request asks for it.

    `plain` is the text as JSON, or else the text itself; it is the answer in every other case.
    """
    typed = text.strip()
    if request.options:
        same = [each for each in request.options if str(each) == typed]
        alike = [each for each in request.options if str(each).casefold() == typed.casefold()]
        return (same or (alike if len(alike) == 1 else ()) or (plain,))[0]
    if request.kind != "ask" or not request.schema:
        return plain
    schema = resolved(request.schema, request.schema) or {}
    if schema.get("type") == "boolean":
        said = yes_or_no(typed)
        return said[0] if said is not None and not said[1] else plain
    return typed if schema.get("type") == "string" and not isinstance(plain, str) else plain


def _not_json(answer: object) -> str | None:
    """Return why JSON cannot represent the answer exactly, or None."""
    if isinstance(answer, set | frozenset):
        return "a set has no order; pass a list"
    if isinstance(answer, Mapping):
        if other := [key for key in answer if not isinstance(key, str)]:
            return f"the key {brief(other[0])} is not a string"
        answer = list(answer.values())
    items = answer if isinstance(answer, list | tuple) else ()
    return next((wrong for each in items if (wrong := _not_json(each)) is not None), None)


def _are_limits(plain: Any, names: list[str]) -> bool:
    if not isinstance(plain, dict) or not plain or not set(plain) <= set(names):
        return False
    try:
        msgspec.convert(plain, Limits, strict=True)
    except msgspec.ValidationError:
        return False
    return all(value is not None and value >= 0 for value in plain.values())


def check_args(request: Request, args: Mapping[str, Any]) -> None:
    """Raise InvalidAnswer if the tool does not accept these arguments."""
    if found := faults(args, request.schema or {}, "arguments"):
        raise InvalidAnswer(
            request=request.id, reason=f"{request.tool} does not accept these arguments: {'; '.join(found)}"
        )
    tool = find_tool(request.tool) if request.tool is not None else None
    if tool is None:
        return
    try:
        tool.unbind(args)
    except (InvalidValue, TypeError, KeyError) as error:
        why = error.at("arguments") if isinstance(error, InvalidValue) else str(error)
        raise InvalidAnswer(
            request=request.id, reason=f"{request.tool} does not accept these arguments: {why}"
        ) from error


def is_question(kind: str, schema: object) -> bool:
    """Return whether a request asks for something else than yes or no."""
    return kind == "ask" and schema != YES_OR_NO


def check_approvable(request: Request, *, standing: bool) -> None:
    """Raise InvalidAnswer if a request needs an answer instead of an approval, or cannot have a standing one."""
    if request.kind in ("unknown", "budget", "escalation") or is_question(request.kind, request.schema):
        reason = f"requests of kind {request.kind!r} take an answer: `limpet answer`"
        raise InvalidAnswer(request=request.id, reason=reason)
    if standing and request.kind != "approval":
        raise InvalidAnswer(request=request.id, reason="only the approval of a tool can be standing")


def check_rejectable(request: Request) -> None:
    """Raise InvalidAnswer if a request needs an answer instead of a rejection."""
    is_choice = request.kind == "escalation" and request.tool is None
    if is_choice or is_question(request.kind, request.schema):
        reason = f"requests of kind {request.kind!r} take an answer: `limpet answer`"
        raise InvalidAnswer(request=request.id, reason=reason)


def _mismatch(request: Request, plain: Any) -> str | None:
    match request.kind:
        case "approval":
            return "requests of kind 'approval' take an approval or a rejection: `limpet approve`, `limpet reject`"
        case "unknown":
            if isinstance(plain, dict) and set(plain) == {"applied"}:
                return _schema_faults(plain["applied"], request)
            return None if plain in OUTCOMES else f'pass one of {", ".join(OUTCOMES)}, or {{"applied": RESULT}}'
        case "escalation" if request.tool is not None:
            if isinstance(plain, dict) and set(plain) == {"result"}:
                return _schema_faults(plain["result"], request)
            fits = plain in CHOICES
            return None if fits else f'pass {" or ".join(CHOICES)}, or {{"result": RESULT}}'
        case "budget":
            names = sorted(set(Limits.__struct_fields__) - {"exhausted"})
            return None if _are_limits(plain, names) else f"pass limits such as {{'max_steps': 50}}: {', '.join(names)}"
        case _:
            if request.options:
                fits = any(type(plain) is type(each) and plain == each for each in request.options)
                return None if fits else f"pass one of {', '.join(map(str, request.options))}"
            return _schema_faults(plain, request)


def _schema_faults(value: Any, request: Request) -> str | None:
    return "; ".join(faults(value, request.schema or {}, "answer")) or None
