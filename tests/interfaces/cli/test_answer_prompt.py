"""`limpet answer` without an answer prompts for one that fits the request."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from limpet import sync
from tests.interfaces.cli.run_cli import LIMPET, limpet, limpet_json, terminal

ASK = """
import json, sys
from datetime import UTC, datetime
from limpet.cli.inbox import prompt_for
from limpet.engine.execution.views import Request
given = json.loads(sys.argv[1])
print("got " + json.dumps(prompt_for(
    Request(id="q", run="r", question="What?", to=("ann",), opened=datetime.now(UTC), **given))) + " end")
"""
ADDRESS = {
    "type": "object",
    "required": ["street", "kind"],
    "properties": {
        "street": {"type": "string"},
        "kind": {"$ref": "#/$defs/Kind"},
        "number": {"type": "integer", "default": 1},
    },
    "$defs": {"Kind": {"enum": ["home", "work"]}},
}


def prompted(typed: Sequence[str], **given: Any) -> tuple[Any, str]:
    """Type these lines at the prompt, and return the answer and the output."""
    given = {"kind": "ask", **given}
    with terminal(sys.executable, "-c", ASK, json.dumps(given)) as screen:
        for line in typed:
            screen.type(f"{line}\n")
        shown = screen.until(" end")
    return json.loads(shown.rpartition("got ")[2].removesuffix(" end")), shown


@pytest.mark.parametrize(
    ("typed", "given", "expected"),
    [
        (["maybe", "y"], {"schema": {"type": "boolean"}}, True),
        (["No"], {"schema": {"type": "boolean"}}, False),
        (["many", "4.5", "7"], {"schema": {"type": "integer"}}, 7),
        (["4.5"], {"schema": {"type": "number"}}, 4.5),
        (["3", "7"], {"schema": {"type": "integer", "minimum": 5}}, 7),
        (["two words"], {"schema": {"type": "string"}}, "two words"),
        (["9", "2"], {"options": ["red", "blue"]}, "blue"),
        (["red"], {"options": ["red", "blue"]}, "red"),
        (["Elm St", "2", "n"], {"schema": ADDRESS}, {"street": "Elm St", "kind": "work"}),
        (["Elm St", "home", "y", "12"], {"schema": ADDRESS}, {"street": "Elm St", "kind": "home", "number": 12}),
        (["y", "1", "y", "2", "n"], {"schema": {"type": "array", "items": {"type": "integer"}}}, [1, 2]),
        (["n"], {"schema": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, None),
        (["y", "x"], {"schema": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "x"),
        (['{"a": ', '{"a": 1}'], {"schema": {"type": "object"}}, {"a": 1}),
        (["perhaps", "not_applied"], {"kind": "unknown", "tool": "t"}, "not_applied"),
        (["3"], {"kind": "unknown", "tool": "t", "options": ["applied", "not_applied", "unknown"]}, "unknown"),
    ],
)
def test_answer_prompts_for_a_value_of_the_schema(typed: list[str], given: dict[str, Any], expected: Any) -> None:
    """An invalid value is asked for again."""
    found, shown = prompted(typed, **given)
    assert (found, type(found)) == (expected, type(expected))
    assert shown.startswith("What?") or "What?" in shown


def test_an_invalid_answer_is_refused_with_the_reason() -> None:
    _, shown = prompted(["3", "7"], schema={"type": "integer", "minimum": 5})
    assert "Invalid answer: $ is out of bounds" in shown


def test_a_request_is_answered_at_a_terminal(url: str) -> None:
    """A prefix of the request id is enough. The answer is recorded once."""
    [request] = limpet_json("inbox")
    with terminal(LIMPET, "answer", request["id"][:-2], "--by", "ann", LIMPET_URL=url) as screen:
        screen.until("which [1-2]: ")
        screen.type("1\n")
        shown, code = screen.end()
    assert (code, f"Request {request['id']} answered by ann" in shown) == (0, True)
    with sync.open(url) as app:
        [answered] = [each for each in app.log("letter-1") if each.kind == "request.answered"]
    assert answered.body["answer"] == {"json": "red"}
    with terminal(LIMPET, "answer", request["id"], LIMPET_URL=url) as screen:
        shown, code = screen.end()
    assert (code, "[already_answered]" in shown) == (1, True)


@pytest.mark.parametrize(("key", "code"), [("\x03", 130), ("\x04", 2)], ids=["ctrl-c", "ctrl-d"])
def test_an_aborted_prompt_leaves_the_request_open(url: str, key: str, code: int) -> None:
    """Ctrl-C and Ctrl-D end the command and change nothing."""
    [request] = limpet_json("inbox")
    with terminal(LIMPET, "answer", request["id"], LIMPET_URL=url) as screen:
        screen.until("which [1-2]: ")
        screen.type(key)
        shown, found = screen.end(impatient=key)  # a signal just before the wait is handled late
    assert (found, "Traceback" in shown) == (code, False)
    assert [each["id"] for each in limpet_json("inbox")] == [request["id"]]


def test_answer_without_a_terminal_or_argument_is_refused(url: str) -> None:
    """The error shows the command to type."""
    [request] = limpet_json("inbox")
    done = limpet("answer", request["id"])
    assert done.exit_code == 2
    assert f"no terminal to prompt on; pass the answer: limpet answer {request['id']} ANSWER" in done.stderr
    assert limpet_json("answer", request["id"], '"red"', "--by", "ann") == {
        "request": request["id"],
        "run": "letter-1",
        "decision": "answered",
        "by": "ann",
    }
