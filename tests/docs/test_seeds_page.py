"""The page that maps what the project started from to the API and to tests: every name on it exists."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any, get_origin, get_overloads, get_type_hints

import pytest
import typer

import limpet
from limpet.cli.commands import command
from limpet.events import KINDS
from limpet.service.operation import operations_of

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d+ \|", line)
]
LATER = {"13", "130"}
"""Rows whose rest later work brings: a dashboard, commands over HTTP and MCP, shared records, telemetry."""
GROUP: Any = typer.main.get_command(command)
OWNERS: dict[str, Any] = {"app": limpet.App, "run": limpet.Run, "limpet": limpet}


def parameters(fn: Any) -> set[str]:
    """Return the names of all parameters of a function or class, also those in `**options`."""
    found = set[str]()
    versions: list[Any] = [fn, *get_overloads(fn)] if inspect.isfunction(fn) else [fn]
    for each in versions:
        for name, parameter in inspect.signature(each).parameters.items():
            options = (
                getattr(get_type_hints(each).get(name), "__args__", ())
                if parameter.kind is parameter.VAR_KEYWORD
                else ()
            )
            found |= {name, *(option for typed in options for option in get_type_hints(get_origin(typed) or typed))}
    if fn is limpet.tool:
        with pytest.raises(limpet.DefinitionError) as refused:
            limpet.tool(effect="none", name="seeds_page", no_option=1)
        found |= set(re.findall(r"\w+", str(refused.value).partition("allowed: ")[2]))
    operation = operations_of(limpet.App).get(getattr(fn, "__name__", ""))
    return found | (set(operation.parameters) if operation is not None else set())


def exists(name: str) -> bool:
    """Return whether a name on the page exists: a command, a kind of event, a member, or a parameter of one."""
    if name.startswith("limpet "):
        _, verb, *options = name.split()
        found = GROUP.commands.get(verb)
        return found is not None and set(options) <= {each for taken in found.params for each in taken.opts}
    if name in {kind.name for kind in KINDS}:
        return True
    path, _, parameter = name.rstrip("=)").partition("(")
    owner, *members = path.split(".")
    found = OWNERS[owner]
    for member in members:
        if not hasattr(found, member):
            return member in get_type_hints(found) or bool(re.search(rf"self\.{member}\b", inspect.getsource(found)))
        found = getattr(found, member)
    return not parameter or parameter in parameters(found)


def test_there_is_one_row_for_each_point() -> None:
    assert [row[0] for row in ROWS] == [str(n) for n in range(1, 162)]
    assert all(len(row) == 4 and all(row) for row in ROWS)


def test_only_the_known_rows_are_incomplete() -> None:
    assert {row[0] for row in ROWS if "later" in row[2]} == LATER
    assert not [row for row in ROWS if re.search(r"\b(open|partly|missing)\b", re.sub(r"`[^`]*`", "", row[2]))]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_name_of_a_row_exists(row: list[str]) -> None:
    names = re.findall(r"`([^`]+)`", row[2])
    assert names
    assert [name for name in names if not exists(name)] == []
    path, _, test = row[3].strip("`").partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    assert test in {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(
    "name", ["app.no_method", "run.patch(no_part=)", "limpet.NoName", "limpet state --no-option", "limpet.Fact.colour"]
)
def test_a_name_that_does_not_exist_is_found(name: str) -> None:
    assert not exists(name)
