"""Every error has its own code, fields that fill its templates, and a place in the documented tree."""

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_type_hints

import pytest

from limpet import errors
from limpet.errors import (
    Divergence,
    InvalidAppend,
    InvalidArgument,
    LimpetError,
    RunFailed,
    StaleServer,
    StepFailed,
    Tampered,
    WrongHost,
)

SAMPLES = {str: "sample", int: 7, float: 0.5, tuple[str, ...]: ("sample",)}
# A hint that starts like this gives nothing to type or change.
BANNED = re.compile(r"(Look|Check|See|Investigate|Try to|Make sure|Be careful|Please|Nothing)\b(?! to do| changed)")


def family(root: type[LimpetError] = LimpetError) -> Iterator[type[LimpetError]]:
    """Return LimpetError and all its subclasses in Limpet."""
    yield root
    for child in root.__subclasses__():
        if child.__module__.split(".")[0] == "limpet":
            yield from family(child)


def sample(error: type[LimpetError]) -> LimpetError:
    """Return an error of the class with a value for every field."""
    hints = get_type_hints(error)
    return error(**{field.name: SAMPLES.get(hints[field.name], "sample") for field in fields(error)})


def drawn() -> dict[str, str]:
    """Return the tree in the module's docstring: the name of each error, and that of its parent."""
    path, found = ["LimpetError"], {}
    for line in (errors.__doc__ or "").splitlines():
        if (match := re.match(r"    ([│ ]*)[├└]── (\w+)  +\S", line)) is not None:
            depth = len(match[1]) // 4
            path[depth + 1 :] = [match[2]]
            found[match[2]] = path[depth]
    return found


every_error = pytest.mark.parametrize("error", list(family()))


def test_every_code_is_used_by_one_class_only() -> None:
    codes = [error.code for error in family()]
    assert sorted(set(codes)) == sorted(codes)


def test_every_error_is_defined_in_one_module() -> None:
    assert all(vars(errors).get(error.__name__) is error and error.__module__ == "limpet" for error in family())


def test_all_errors_and_nothing_else_are_exported() -> None:
    assert sorted(error.__name__ for error in family()) == sorted(errors.__all__)


def test_the_documented_tree_shows_every_error_under_its_parent() -> None:
    """The tree in the docstring of the module matches the classes."""
    bases = {error.__name__: error.__bases__[0].__name__ for error in family() if error is not LimpetError}
    assert drawn() == bases


@every_error
def test_the_code_is_plain_lower_case(error: type[LimpetError]) -> None:
    """Codes can be compared, sent in headers and searched for."""
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", error.code)


@every_error
def test_no_error_inherits_its_code(error: type[LimpetError]) -> None:
    assert "code" in vars(error)


@every_error
def test_every_error_has_a_docstring(error: type[LimpetError]) -> None:
    assert (vars(error)["__doc__"] or "").strip().endswith(".")


@every_error
def test_the_templates_format_with_the_fields(error: type[LimpetError]) -> None:
    """The text contains the summary, the hint and the code, with no placeholder left unfilled."""
    text = str(sample(error))
    assert text.endswith(f"[{error.code}]")
    assert sample(error).hint in text
    assert "{" not in text


@every_error
def test_a_hint_says_what_to_type_or_change(error: type[LimpetError]) -> None:
    """A hint that only sends the reader to look around is refused."""
    assert "_hint" in vars(error), "a hint of its own"
    assert not BANNED.match(error._hint)


def test_a_special_hint_says_what_to_type_or_change() -> None:
    """This applies to every `fix=` in the package."""
    found = [
        f"{path.name}:{node.lineno}: {text.value}"
        for path in Path(errors.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        for text in (keyword.value for keyword in node.keywords if keyword.arg == "fix")
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and BANNED.match(text.value)
    ]
    assert found == []


@every_error
def test_every_field_is_shown_in_the_text(error: type[LimpetError]) -> None:
    templates = error._summary + error._hint
    inherited = {field.name for field in fields(error.__bases__[0])} if error.__bases__[0] is not Exception else set()
    own = [field.name for field in fields(error) if field.name not in inherited and field.default is MISSING]
    assert [name for name in own if f"{{{name}" not in templates] == []


@every_error
def test_a_copied_error_has_the_same_repr(error: type[LimpetError]) -> None:
    """An error can be sent from a process of a pool."""
    assert repr(copy.copy(sample(error))) == repr(sample(error))


def test_facts_returns_the_fields_by_name() -> None:
    """Interfaces render fields, not text."""
    assert Tampered(run="r", seq=3, reason="why").facts == {"run": "r", "seq": 3, "reason": "why"}


def test_the_repr_shows_the_fields() -> None:
    """A traceback shows the fields."""
    assert repr(Tampered(run="r", seq=3, reason="why")) == "Tampered(run='r', seq=3, reason='why')"


def test_braces_in_a_field_are_not_formatted() -> None:
    assert str(InvalidArgument(path="id", reason="{oops}")).startswith("Invalid id: {oops}.")


def test_errors_are_compared_by_identity() -> None:
    assert InvalidArgument(path="x", reason="y") != InvalidArgument(path="x", reason="y")


def test_the_text_of_step_failed_has_the_number_of_attempts() -> None:
    """The singular is used for one attempt, and a full stop is not repeated."""
    failed = StepFailed(tool="t", number=1, attempts=1, error_type="E", message="It is broken.")
    assert failed.summary == "Step 1 (t) failed after 1 attempt: E: It is broken."
    failed.attempts = 2
    assert failed.summary == "Step 1 (t) failed after 2 attempts: E: It is broken."


def test_the_hint_of_run_failed_has_the_resume_command() -> None:
    assert "`limpet resume r`" in RunFailed(run="r", error_type="E", message="m").hint


def test_the_fork_after_a_divergence_can_be_typed() -> None:
    """A fork needs a point."""
    assert "`limpet fork r --at STEP`" in Divergence(run="r", verb="step#1", reason="why").hint


def test_a_write_to_no_run_names_none() -> None:
    """No gap is left where the run would be."""
    assert InvalidAppend(run="", reason="why").summary == "The store refused a write: why."
    assert InvalidAppend(run="r", reason="why").summary == "The store refused a write to r: why."


def test_another_server_is_not_called_behind() -> None:
    """Timelines of two systems cannot be compared."""
    stale = StaleServer(found="timeline 3 of system 7", seen="timeline 2 of system 9")
    assert stale.summary == (
        "The database server is at timeline 3 of system 7, but this process has used timeline 2 of system 9. "
        "It is a former primary, or another database."
    )


def test_the_host_to_allow_can_be_typed() -> None:
    """On the command line and in Python."""
    hint = WrongHost(host="runs.example.com").hint
    assert "`limpet serve --allow-host runs.example.com`" in hint
    assert "hosts=['runs.example.com']" in hint
