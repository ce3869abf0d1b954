"""Correct user code passes mypy and pyright, both strict; wrong code is refused, line by line.

Pyright comes as basedpyright, which is complete in its wheels, with the rules of pyright's own strict mode.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from limpet import testing

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = sorted(
    path.relative_to(HERE).as_posix() for folder in ("cases", "jobs") for path in (HERE / folder).glob("*.py")
)
Errors = dict[tuple[str, int], str]


def run(*command: str, **more: str) -> str:
    """Return the output of a checker, which may have found errors."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **more},
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy() -> Errors:
    """Return mypy's errors by file and line, with no setting but strict."""
    options = ("--strict", "--config-file=", "--explicit-package-bases", f"--cache-dir={ROOT}/.mypy_cache/typing")
    output = run("mypy", *options, *FILES, MYPYPATH=f"{ROOT}/src:{HERE}/jobs")
    found = re.findall(r"^(\S+?):(\d+): error: (.*)$", output, re.MULTILINE)
    return {
        (Path(file).relative_to(HERE).as_posix() if file[0] == "/" else file, int(n)): why for file, n, why in found
    }


def pyright() -> Errors:
    """Return pyright's errors by file and line."""
    output = json.loads(run("basedpyright", "--pythonpath", sys.executable, "--outputjson"))
    assert output["summary"]["filesAnalyzed"] == len(FILES)
    return {
        (Path(each["file"]).relative_to(HERE).as_posix(), each["range"]["start"]["line"] + 1): each["message"]
        for each in output["generalDiagnostics"]
    }


def marked(mark: str) -> set[tuple[str, int]]:
    """Return the lines that contain a mark."""
    lines = [(file, (HERE / file).read_text(encoding="utf-8").splitlines()) for file in FILES]
    return {(file, number) for file, text in lines for number, line in enumerate(text, 1) if mark in line}


def not_yet(place: tuple[str, int]) -> bool:
    """Return whether a line comes after the first use of `crash_everywhere`, if that does not exist yet."""
    if hasattr(testing, "crash_everywhere"):
        return False
    return any(place[0] == file and place[1] >= number for file, number in marked("crash_everywhere"))


@pytest.mark.parametrize("check", [mypy, pyright])
def test_type_checkers_accept_correct_code_and_refuse_wrong_code(check: Callable[[], Errors], full: bool) -> None:
    """The jobs and the correct cases have no error; the wrong cases have one on every marked line, and on no other."""
    if check is mypy and not full:
        pytest.skip("runs with --full (make chaos); pyright checks the same cases, and mypy those of tests/interfaces")
    found, wanted = check(), marked("  # error") | marked("# must be a type error")
    assert {place: why for place, why in found.items() if place not in wanted and not not_yet(place)} == {}
    assert wanted - found.keys() == set()
