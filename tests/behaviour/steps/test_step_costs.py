"""The costs of a plain step, in counts that do not depend on the machine: calls, wake-ups, rows, statements, memory.

A limit is a little above what is measured. Lower it when a change makes a step cheaper.
"""

from pathlib import Path

import pytest

from bench import counts

# The limit of a plain read, and of a plain effect.
LIMITS = {
    "Python calls on the loop": (117, 183),
    "C calls on the loop": (98, 148),
    "Python calls in the writer": (0, 0),
    "C calls in the writer": (0, 0),
    "loop turns": (0, 0),
    "thread wake-ups": (0, 0),
    "SHA-256 digests": (3, 3),
    "SQL statements": (5, 8),
    "frames down to the SQL": (13, 13),
    "files on the way": (38, 39),
    "event rows": (2, 2),
    "blocks kept": (1, 1),
    "bytes kept": (80, 80),
}


@pytest.mark.parametrize(("kind", "column"), [("read", 0), ("effect", 1)])
def test_a_plain_step_costs_no_more_than_its_limits(tmp_path: Path, kind: str, column: int) -> None:
    """In one run on SQLite, after its first steps; a count is the lowest decile of 200 steps."""
    found = counts.counts_of(tmp_path, kind)
    limits = {name: limit[column] for name, limit in LIMITS.items()}
    assert found.keys() == limits.keys()
    assert {name: value for name, value in found.items() if value > limits[name]} == {}


def test_the_counts_see_what_a_step_does(tmp_path: Path) -> None:
    """A step that is not counted would meet every limit."""
    found = counts.counts_of(tmp_path, "effect", steps=20)
    assert found["event rows"] == 2
    assert found["SQL statements"] >= 3
    assert found["SHA-256 digests"] >= 2
    assert found["Python calls on the loop"] > 20
    assert 3 <= found["frames down to the SQL"] < 100
    assert 3 <= found["files on the way"] < 200
