"""Every guarantee names tests that exist."""

import ast
from pathlib import Path

import pytest

from tests.guarantees.manifest import GUARANTEES, Guarantee

ROOT = Path(__file__).parents[2]


def functions_of(path: str) -> set[str]:
    """Return the names of all functions in a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda guarantee: guarantee.id)
def test_every_guarantee_names_existing_tests(guarantee: Guarantee) -> None:
    assert guarantee.tests
    for test in guarantee.tests:
        path, name = test.split("::")
        assert name in functions_of(path), test


def test_guarantee_ids_are_unique() -> None:
    assert len({guarantee.id for guarantee in GUARANTEES}) == len(GUARANTEES) == 12
