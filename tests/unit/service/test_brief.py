"""What an event says, in a line for people."""

from typing import Any

import pytest

from limpet.service.views import LONGEST, in_brief


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ({"name": "flaky#1", "number": 3, "attempt": 2, "tool": "flaky"}, "step 3/2 name=flaky#1 tool=flaky"),
        ({"retry_at": 1_700_000_000_000_000, "key": "r:step_1"}, "retry_at=2023-11-14 22:13:20 UTC"),
        ({"patch": {"facts": [{"key": "name", "value": "x y"}]}}, "patch={facts: [{key: name, value: 'x y'}]}"),
        ({"options": {"json": ["none", "in full", 3]}}, "options=[none, 'in full', 3]"),
        ({"args": {"json": {"wake": 7, "digest": "d", "schema": 1}}}, "args={wake: 7, digest: d, schema: 1}"),
        ({"failure": {"type": "E", "mro": ["E"], "traceback": "…"}}, "failure={type: E}"),
        ({"output": {"blob": "ab", "bytes": 12}}, "output=(12 bytes)"),
        ({"digest": "d", "because": "", "pinned": False}, ""),
    ],
)
def test_a_line(body: dict[str, Any], line: str) -> None:
    """Times are times, what users say is whole, what is long or for machines is not there."""
    assert in_brief(body) == line


def test_it_is_one_line() -> None:
    assert len(in_brief({"text": "x" * 5000})) == LONGEST + 1
