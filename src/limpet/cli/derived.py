"""Commands made from the table of operations: parse the arguments, call the app, print the result."""

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import run_with_time
from limpet.cli.options import (
    STORE,
    By,
    Json,
    Url,
    complete_agent,
    complete_conversation,
    complete_request,
    complete_run,
    input_of,
    json_object,
    pair_of,
    sender,
)
from limpet.cli.output import print_data, print_text
from limpet.cli.renderers import DETAILS, RENDERERS
from limpet.service.app import App
from limpet.service.operation import Operation, Parameter, Resource, operations_of
from limpet.service.page import Page

__all__ = ["OWN", "add_operations"]

# Operations whose commands need something of their own: prompts, live views, files, the user's code.
OWN = frozenset(
    {
        "runs", "log", "answer", "fork", "verify", "prune", "artifact", "prompt", "say", "compact", "doctor",
        "audit", "scores",
    }
)  # fmt: skip
COMPLETIONS = {
    "run": complete_run,
    "request": complete_request,
    "conversation": complete_conversation,
    "agent": complete_agent,
}
PREFIX = " A unique prefix is enough."


def add_operations(group: typer.Typer, operations: Mapping[str, Operation]) -> None:
    """Add a command for each operation of the command line that has none of its own."""
    for each in operations.values():
        if "cli" in each.doors and each.name not in OWN:
            name = each.name.replace("_", "-")
            shown = example(f"limpet {name} {each.example}".rstrip())
            made = group.command(name, help=each.description, epilog=shown, rich_help_panel=each.topic)
            made(_command(each))


def _command(operation: Operation) -> Callable[..., None]:
    def run(*, url: str, json: bool, **given: Any) -> None:
        arguments = {name: _parsed(operation, name, value) for name, value in given.items() if value is not None}

        async def call(app: App) -> Any:
            for name, value in arguments.items():
                arguments[name] = await _whole_id(app, operation.resource(name), value)
            if "by" in operation.parameters:
                arguments["by"] = await sender(app, arguments.get("by"))
            found = await operation.call(app, arguments)
            return found, None if json or operation.name not in DETAILS else await DETAILS[operation.name](app, found)

        (found, detail), now = run_with_time(url, call)
        if json:
            print_data(operation.to_json(found))
        else:
            _render(operation, found if detail is None else detail, now, arguments)

    run.__signature__ = inspect.Signature([*_parameters(operation), *_LAST])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in run.__signature__.parameters.values()}  # type: ignore[attr-defined]
    return run


def _render(operation: Operation, found: Any, now: datetime, arguments: Mapping[str, Any]) -> None:
    render = RENDERERS.get(operation.name)
    if render is not None:
        render(found, now, arguments)
    elif found is None:
        print_text("Done.")
    elif isinstance(found, Page):
        for each in found:
            print_data(operation.to_json(each))
    else:
        print_data(operation.to_json(found))


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


_LAST = (_keyword("url", Url, STORE), _keyword("json", Json, False))


def _parameters(operation: Operation) -> list[inspect.Parameter]:
    return [_parameter(operation, each) for each in operation.parameters.values()]


def _parameter(operation: Operation, each: Parameter) -> inspect.Parameter:
    name, kind, resource = each.name, _kind_of(each.type), each.resource
    limits = {key: value for key, value in (("min", each.about.ge), ("max", each.about.le)) if value is not None}
    more: dict[str, Any] = {
        "help": f"{each.about.description}{_help_of(each)}",
        "autocompletion": None if resource is None else COMPLETIONS[resource.kind],
        "show_default": not each.is_required and each.default not in (None, "", [], False),
        **(limits if kind is int else {}),
    }
    if _is_pairs(each.type):
        more["metavar"] = "NAME=VALUE"
    default: Any = inspect.Parameter.empty if each.is_required else each.default
    flag = [f"--{each.about.flag or name.replace('_', '-')}"]
    if each.about.is_argument or (
        each.about.flag is None and (operation.is_positional(name) or name in operation.in_path)
    ):
        metavar = name.upper() if each.is_required else f"[{name.upper()}]"
        hint = kind if each.is_required else kind | None
        return _keyword(name, Annotated[hint, typer.Argument(metavar=metavar, **more)], default)
    if name == "by" and operation.is_command:
        return _keyword(name, By, inspect.Parameter.empty)
    if kind is bool:
        return _keyword(name, Annotated[bool, typer.Option(*flag, **more)], default)
    if kind is list:
        return _keyword(name, Annotated[list[str] | None, typer.Option(*flag, **more)], None)
    hint = kind if each.is_required else kind | None
    return _keyword(name, Annotated[hint, typer.Option(*flag, **more)], default)


def _help_of(each: Parameter) -> str:
    """Return the help that an argument of this kind has on the command line."""
    if each.resource is not None and each.resource.kind != "agent":
        return PREFIX
    if _is_pairs(each.type):
        return " Repeatable."
    return " @FILE reads a file, - reads stdin." if each.type is Any else ""


def _kind_of(hint: Any) -> Any:
    """Return the type of a command line argument: JSON is passed as text."""
    is_union = get_origin(hint) in (Union, UnionType)
    kinds = [each for each in get_args(hint) if each is not NoneType] if is_union else [hint]
    kind = kinds[0]
    origin = get_origin(kind)
    if origin is Annotated:
        return _kind_of(get_args(kind)[0])
    if origin is Literal:
        return kind
    if origin is list or _is_pairs(hint):
        return list
    return kind if kind in (int, bool, float) and len(kinds) == 1 else str


def _is_pairs(hint: Any) -> bool:
    """Return whether a type holds simple values by name, which the command line takes as NAME=VALUE."""
    mappings = [each for each in (hint, *get_args(hint)) if get_origin(each) is dict]
    return any(Any not in get_args(each) and get_args(each)[0] is str for each in mappings)


def _parsed(operation: Operation, name: str, value: Any) -> Any:
    """Return an argument as the operation takes it: an object or any value is JSON."""
    hint = operation.parameters[name].type
    if _is_pairs(hint):
        return dict(map(pair_of, value))
    if any(get_origin(each) is dict for each in (hint, *get_args(hint))):
        return json_object(value, f"--{name}")
    return input_of(value, f"The {name}") if hint is Any and isinstance(value, str) else value


async def _whole_id(app: App, resource: Resource | None, value: Any) -> Any:
    """Return the id that a unique prefix stands for."""
    return value if resource is None or resource.kind == "agent" else await app.find(resource.kind, value)


add_operations(command, operations_of(App))
