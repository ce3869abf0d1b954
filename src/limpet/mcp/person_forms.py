"""Forms in which the person at a client decides a request. The model that called the tool cannot fill them in."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import mcp_types as t
import msgspec

from limpet.clock import to_microseconds
from limpet.engine.definitions.schema_check import resolved
from limpet.engine.execution.views import Request
from limpet.errors import FormOutdated, NeedsPerson
from limpet.mcp.offer import McpCall
from limpet.redaction import hide_secrets_in
from limpet.service.answers import is_question
from limpet.service.decision_links import LinkMint
from limpet.service.json_values import error_json
from limpet.service.resolve import open_request
from limpet.service.tokens import TENANT

__all__ = ["FormReply", "PersonForm", "Proposed", "form_of", "how_to_decide", "key_of", "reply_of", "send_decision"]

# Longest text of a form, in characters. More cannot be judged there.
LONGEST = 6_000
NOTE: dict[str, Any] = {"type": "string", "title": "Note", "maxLength": 1_000}
DECISION: dict[str, Any] = {"decision": {"type": "string", "title": "Decision", "enum": ["approve", "deny"]}}
TYPES = ("string", "number", "integer", "boolean")
OURS = ("decision", "answer", "note")
"""Names of the fields of forms that are not those of an answer."""
NO_REASON = "Rejected in the MCP client, without a reason."


class PersonForm(NamedTuple):
    """A form for a request."""

    request: Request
    shown: t.ElicitRequest


class Proposed(NamedTuple):
    """A command that a model wants to send, and that the person confirms."""

    operation: str
    arguments: Mapping[str, Any]


class FormReply(NamedTuple):
    """The person's reply to a form. `fields` is an answer with a field for each of its properties."""

    decision: Literal["approve", "deny", "answer", "fields", "none"]
    note: str = ""
    answer: Any = None


def key_of(request: Request) -> str:
    """Return a name for what a request shows now: a changed request has another one."""
    return f"{request.id}.{sha256(request.digest.encode()).hexdigest()[:16]}"


def form_of(request: Request, proposed: Proposed | None = None) -> PersonForm | None:
    """Return a form in which a person decides a request, or confirms a command; None if a form cannot show it."""
    if proposed is not None and hide_secrets_in(dict(proposed.arguments)) != dict(proposed.arguments):
        return None  # the person would approve values that the form hides
    message = _message(request, proposed)
    fields = DECISION if proposed is not None else _field(request)
    if len(message) > LONGEST or fields is None:
        return None
    schema = {"type": "object", "properties": {**fields, "note": NOTE}, "required": list(fields)}
    params = t.ElicitRequestFormParams(message=message, requested_schema=schema)
    return PersonForm(request, t.ElicitRequest(params=params))


def _field(request: Request) -> dict[str, Any] | None:
    """Return the field that the person fills in: a decision, or an answer. None if a form has no such field."""
    is_yes_or_no = request.kind in ("approval", "compensation") or not is_question(request.kind, request.schema)
    if is_yes_or_no and request.kind in ("approval", "compensation", "ask"):
        return DECISION
    if request.kind != "ask":
        return None
    if request.options and all(isinstance(each, str) for each in request.options):
        return {"answer": {"type": "string", "title": "Answer", "enum": list(request.options)}}
    if fields := _fields(request):
        return fields
    kind = "string" if not request.schema else request.schema.get("type")
    return {"answer": {"type": kind, "title": "Answer"}} if kind in TYPES and not request.options else None


def _fields(request: Request) -> dict[str, Any] | None:
    """Return a field for each property of an answer that is an object of plain values; None for another answer."""
    if request.kind != "ask" or request.options or not request.schema:
        return None
    schema = resolved(request.schema, request.schema) or {}
    found: dict[str, Any] = schema.get("properties", {})
    is_plain = all(each.get("type") in TYPES and name not in OURS for name, each in found.items())
    if not found or not is_plain or set(schema.get("required", ())) != set(found):
        return None
    return {name: {"type": each["type"], "title": name} for name, each in found.items()}


def _message(request: Request, proposed: Proposed | None) -> str:
    """Return what a form shows. Text of the run comes last, each line marked, so that it cannot pass as ours."""
    sent = {} if proposed is None else {name: each for name, each in proposed.arguments.items() if name != "request"}
    shown = hide_secrets_in({"args": dict(request.args), "proposed": sent})
    lines = [f"Request {request.id} of run {request.run}"]
    if request.tool is not None:
        lines += [f"Tool: {request.tool}", f"Arguments: {_json(shown['args'])}"]
    if request.risk is not None:
        lines.append(f"Risk: {request.risk}")
    if shown["proposed"]:
        lines.append(f"The model proposes: {_json(shown['proposed'])}")
    why = request.context.why if request.context is not None else ""
    for title, text in (("The run asks:", request.question), ("Why it stopped:", why)):
        if text:
            lines += [title, *(f"> {line}" for line in hide_secrets_in(text).splitlines())]
    return "\n".join(_printable(line) for line in lines)


def reply_of(result: object) -> FormReply:
    """Return what the person did with a form. Anything but a filled-in form decides nothing."""
    if not isinstance(result, t.ElicitResult) or result.action != "accept" or result.content is None:
        return FormReply("none")
    note = result.content.get("note")
    note = note if isinstance(note, str) else ""
    match result.content:
        case {"decision": "approve"}:
            return FormReply("approve", note)
        case {"decision": "deny"}:
            return FormReply("deny", note)
        case {"answer": answer}:
            return FormReply("answer", note, answer)
        case {} if result.content.keys() - {"note"}:
            return FormReply("fields", note, {name: each for name, each in result.content.items() if name != "note"})
        case _:
            return FormReply("none")


async def send_decision(call: McpCall, key: str, reply: FormReply, proposed: Proposed | None = None) -> Any:
    """Record the decision that the person at the client made in the form of a request. Returns it as JSON.

    `proposed` is what runs if the person approves; the default approves the request. Raises LimpetError: FormOutdated
    if the request shows something else than the form did.
    """
    request = key.partition(".")[0]
    shown = await open_request(call.app.store, request)
    if key_of(shown) != key:
        raise FormOutdated(request=request)
    sent, given = call.confirmed(), {"request": request}
    command = f"form-{sha256(f'{key}:{call.who.name}:{reply.decision}'.encode()).hexdigest()[:40]}"
    is_answer = proposed is not None and proposed.operation not in ("approve", "reject")
    match reply.decision:
        case "approve" if proposed is not None and proposed.operation != "reject":
            return await sent.run(proposed.operation, proposed.arguments, command_id=command)
        case "approve":
            return await sent.run("approve", given, command_id=command)
        case "deny" if not is_answer:
            return await sent.run("reject", {**given, "because": reply.note or NO_REASON}, command_id=command)
        case "answer":
            return await sent.run("answer", {**given, "answer": reply.answer}, command_id=command)
        case "fields" if proposed is None and (fields := _fields(shown)) and fields.keys() <= reply.answer.keys():
            answer = {name: reply.answer[name] for name in fields}
            return await sent.run("answer", {**given, "answer": answer}, command_id=command)
        case _:
            fix = "The person did not agree. Do not ask again unless they want to."
            raise NeedsPerson(request=request, by=call.who.name, fix=fix)


async def how_to_decide(call: McpCall, request: Request) -> dict[str, Any]:
    """Return the error for a client that shows no forms, as JSON: it says where the person decides.

    The link names no person, so that it is never enough without a login: a model can open links.
    """
    fix, link = "", ""
    if call.public_url and call.link_keys is not None:
        mint = LinkMint(keys=call.link_keys, public_url=call.public_url, tenant=call.who.tenant or TENANT)
        expires = None if request.expires is None else to_microseconds(request.expires, "expires")
        now = await call.app.store.now()
        link = mint.mint(request=request.id, digest=request.digest, person="", expires=expires, now=now)
        fix = "Give the person `link`, where they log in and decide."
    elif call.public_url:
        fix = f"Tell the person to decide request {request.id} in {call.public_url}/ui/inbox"
    error = error_json(NeedsPerson(request=request.id, by=call.who.name, fix=fix))
    return {**error, "link": link} if link else error


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _printable(line: str) -> str:
    """Replace characters that change how a text looks, such as those that reverse its direction."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)
