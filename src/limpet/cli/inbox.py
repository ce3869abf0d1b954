"""Commands that decide requests, also interactively."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import run_with_app
from limpet.cli.options import STORE, By, CommandId, Json, RequestId, Url, json_or_text, sender, text_of
from limpet.cli.output import clean, print_json
from limpet.cli.pages import question_of
from limpet.cli.renderers import print_decided, run_after
from limpet.engine.execution.views import Request, RunInfo
from limpet.errors import AlreadyAnswered, InvalidAnswer
from limpet.service.answers import answer_from_text, validate_answer
from limpet.service.app import App
from limpet.service.inbox import Decided
from limpet.service.json_body import yes_or_no

__all__ = ["prompt_for"]


@command.command(epilog=example("limpet answer 01j9x", "limpet answer 01j9x red"))
def answer(
    request: RequestId,
    by: By,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="[ANSWER]",
            help="yes or no, an option, JSON, or plain text. @FILE reads a file, - reads stdin.",
        ),
    ] = None,
    command_id: CommandId = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Answer a request.

    Without ANSWER, prompts for it according to the request's options or schema.
    """
    asked, text = (_asked(url, request), "") if value is None else (None, text_of(value, "The answer"))

    async def decide(app: App) -> tuple[Decided, RunInfo | None]:
        id = await app.find("request", request)
        plain = asked if value is None else await _typed_answer(app, id, text)
        done = await app.answer(id, plain, by=await sender(app, by), command_id=command_id)
        return await run_after(app, done)

    done, run = run_with_app(url, decide)
    print_json(done) if json else print_decided(done, run)


async def _typed_answer(app: App, request: str, text: str) -> Any:
    """Return an answer that was typed as text: in the form that the request asks for, or else as JSON or text."""
    return answer_from_text(await app.request(request), text, json_or_text(text, "The answer"))


def _asked(url: str, request: str) -> Any:
    """Prompt for the answer on the terminal."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"no terminal to prompt on; pass the answer: limpet answer {request} ANSWER")

    async def look(app: App) -> Request:
        found = await app.request(await app.find("request", request))
        if found.decision.status not in ("open", "expired"):
            by = found.decision.by or "the run itself"
            raise AlreadyAnswered(request=found.id, status=found.decision.status, by=by)
        return found

    return prompt_for(run_with_app(url, look))


Schema = Mapping[str, Any]


def prompt_for(request: Request) -> Any:
    """Prompt for an answer until it fits the request, printing the reason each time it does not."""
    _say(question_of(request))
    while True:
        given = _any(request)
        try:
            return validate_answer(request, given)
        except InvalidAnswer as error:
            if request.kind == "approval":
                raise
            _say(f"Invalid answer: {error.reason}")


def _any(request: Request) -> Any:
    if request.options:
        return _choice("", request.options, free=request.kind in ("unknown", "escalation"))
    if request.kind == "ask" and request.schema:
        return _value("", request.schema, request.schema)
    for each in request.context.choices if request.context is not None else ():
        _say(f"  {each.answer}: {each.effect}")
    return _json("")


def _value(name: str, schema: Schema, root: Schema) -> Any:
    """Prompt for a value of a schema; types that are not plain are entered as JSON."""
    schema = _resolved(schema, root)
    if "const" in schema:
        return schema["const"]
    if (inner := _optional(schema)) is not None:
        return _value(name, inner, root) if _boolean(f"{name or 'an answer'}: provide one?") else None
    return _choice(name, schema["enum"]) if "enum" in schema else _typed(name, schema, root)


def _typed(name: str, schema: Schema, root: Schema) -> Any:
    match schema.get("type"):
        case "boolean":
            return _boolean(name)
        case "integer" | "number":
            return _number(name, schema)
        case "string":
            return _line(f"{name or 'text'}{_hint(schema)}: ")
        case "null":
            return None
        case "object" if schema.get("properties"):
            return _object(name, schema, root)
        case "array":
            return _array(name, schema, root)
        case _:
            return _json(name)


def _resolved(schema: Schema, root: Schema) -> Schema:
    """Return the schema that a local $ref refers to, or the schema itself."""
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    found: Schema = root.get("$defs", {}).get(name, {}) if name else schema
    return found


def _optional(schema: Schema) -> Schema | None:
    """Return the other alternative of a schema that is nullable, or None if it is not."""
    parts = schema.get("anyOf", ())
    others = [each for each in parts if each.get("type") != "null"]
    return others[0] if len(others) == 1 and len(parts) == 2 else None


def _object(name: str, schema: Schema, root: Schema) -> dict[str, Any]:
    found = {}
    for field, member in schema["properties"].items():
        path = f"{name}.{field}" if name else field
        if field in schema.get("required", ()) or _boolean(f"{path}{_default(member)}: set it?"):
            found[field] = _value(path, member, root)
    return found


def _array(name: str, schema: Schema, root: Schema) -> list[Any]:
    found: list[Any] = []
    while _boolean(f"{name or 'list'}: {'another' if found else 'an'} item?"):
        found.append(_value(f"{name}[{len(found)}]", schema.get("items", {}), root))
    return found


def _boolean(name: str) -> bool:
    while True:
        said = yes_or_no(_line(f"{name or 'yes or no'} [y/n]: "))
        if said is not None and not said[1]:
            return said[0]
        _say("Enter y or n.")


def _number(name: str, schema: Schema) -> int | float:
    kind = int if schema["type"] == "integer" else float
    while True:
        given = _line(f"{name or schema['type']}{_hint(schema)}: ").strip()
        try:
            return kind(given)
        except ValueError:
            _say(f"{given!r} is not a valid {schema['type']}.")


def _choice(name: str, options: Sequence[Any], *, free: bool = False) -> Any:
    """Prompt for one of the options, by number or value; `free` also accepts other JSON."""
    for number, each in enumerate(options, 1):
        _say(f"  {number}  {each}")
    while True:
        given = _line(f"{name or 'which'} [1-{len(options)}]: ").strip()
        if (same := _same(given, options)) is not None:  # first: an option may be a number
            return options[same]
        if given.isdecimal() and 1 <= int(given) <= len(options):
            return options[int(given) - 1]
        if free:
            return json_or_text(given)
        _say(f"Enter a number from 1 to {len(options)}.")


def _same(given: str, options: Iterable[Any]) -> int | None:
    return next((place for place, each in enumerate(options) if str(each) == given), None)


def _json(name: str) -> Any:
    while True:
        try:
            return json_or_text(_line(f"{name or 'answer'} (JSON, or text): "))
        except typer.BadParameter as error:
            _say(error.message)


def _hint(schema: Schema) -> str:
    told = [str(schema[each]) for each in ("description", "format") if each in schema]
    return f" ({clean(', '.join(told))})" if told else ""


def _default(schema: Schema) -> str:
    return f" (default {schema['default']!r})" if "default" in schema else ""


def _say(text: str) -> None:
    typer.echo(clean(text), err=True)


def _line(prompt: str) -> str:
    """Read a line from the terminal. If stdout is redirected, the prompt goes to stderr."""
    try:
        if sys.stdout.isatty():
            return input(clean(prompt))
        typer.echo(clean(prompt), nl=False, err=True)
        return input()
    except EOFError:
        typer.echo(err=True)
        raise typer.BadParameter("no answer was entered; the request is still open") from None
