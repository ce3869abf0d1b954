"""One-line summaries of events."""

from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.service.views import MAX_LINE, one_line


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ({"name": "flaky#1", "number": 3, "attempt": 2, "tool": "flaky"}, "step 3, attempt 2 tool=flaky name=flaky#1"),
        ({"retry_at": 1_700_000_000_000_000, "key": "r:step_1"}, "retry_at=2023-11-14 22:13:20 UTC"),
        ({"patch": {"facts": [{"key": "name", "value": "x y"}]}}, "patch={facts: [{key: name, value: 'x y'}]}"),
        ({"options": {"json": ["none", "in full", 3]}}, "options=[none, 'in full', 3]"),
        ({"args": {"json": {"wake": 7, "digest": "d", "schema": 1}}}, "args={wake: 7, digest: d, schema: 1}"),
        ({"failure": {"type": "E", "mro": ["E"], "traceback": "…"}}, "failure={type: E}"),
        ({"failure": {"type": "E", "message": "m", "code": "c", "facts": {"a": 1}}}, "failure={type: E, message: m}"),
        ({"via": "cli", "by": "ann", "decision": "rejected"}, "decision=rejected by=ann via=cli"),
        ({"output": {"blob": "ab", "bytes": 12}}, "output=(12 bytes)"),
        ({"digest": "d", "because": "", "pinned": False}, ""),
    ],
)
def test_an_event_is_summarised_in_one_line(body: dict[str, Any], line: str) -> None:
    """Times are readable, user data is complete, and long or internal fields are omitted."""
    assert one_line(body) == line


def test_a_long_summary_is_truncated() -> None:
    assert len(one_line({"text": "x" * 5000})) == MAX_LINE + 1


async def test_a_report_summarises_input_and_output() -> None:
    """The report shows text verbatim, other values abbreviated, and large ones by size."""

    @limpet.agent(name="brief_echo")
    async def echo(run: limpet.Run, given: Any) -> Any:
        return given

    async with testing.app(echo) as app:
        for number, (given, shown) in enumerate(
            [("as it is", "as it is"), ({"a": [1, "b c"]}, "{a: [1, 'b c']}"), (None, ""), ("x" * 900, f"{'x' * 300}…")]
        ):
            await app.run(echo, given, id=f"r{number}")
            found = await app.show(f"r{number}")
            assert (found.input, found.output) == (shown, shown)
        await app.run(echo, ["x" * 90_000], id="big")
        assert (await app.show("big")).output == "(90004 bytes)"
