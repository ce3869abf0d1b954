"""Every promise has tests, and they exist."""

import ast
from pathlib import Path

import pytest

from tests.guarantees.manifest import PROMISES, Promise

ROOT = Path(__file__).parents[2]


def functions(path: str) -> set[str]:
    """The tests of a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.id)
def test_a_promise_has_tests(promise: Promise) -> None:
    """Each of them is there."""
    assert promise.tests
    for test in promise.tests:
        path, name = test.split("::")
        assert name in functions(path), test


def test_ids_are_unique() -> None:
    """They are for ever."""
    assert len({promise.id for promise in PROMISES}) == len(PROMISES) == 12
