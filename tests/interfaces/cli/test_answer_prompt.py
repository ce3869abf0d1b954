"""`limpet answer` without an answer prompts for one that fits the request."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest

import limpet as limpet_
from limpet import sync, testing
from limpet.cli.options import json_or_text
from limpet.service.answers import answer_from_text
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
    assert "Invalid answer: answer: expected at least 5" in shown


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


@limpet_.agent(name="prompt_asks")
async def asks(run: limpet_.Run, how: str) -> Any:
    """Ask for what the input names."""
    kinds: dict[str, dict[str, Any]] = {
        "bool": {},
        "choice": {"options": ["yes", "No", "true", "5"]},
        "str": {"answer": str},
        "int": {"answer": int},
    }
    return await run.ask("Well?", **kinds[how])


TYPED = [
    *(("bool", word, True) for word in ("yes", "y", "true", "YES", "ok")),
    *(("bool", word, False) for word in ("no", "n", "false", "No")),
    *(("bool", word, limpet_.InvalidAnswer) for word in ("1", "maybe", "no, too much", '"yes"')),
    *(("choice", word, word) for word in ("yes", "No", "true", "5")),
    *(("choice", word, found) for word, found in (("YES", "yes"), ("no", "No"), ('"yes"', "yes"))),
    *(("choice", word, limpet_.InvalidAnswer) for word in ("y", "6")),
    *(("str", word, word) for word in ("yes", "42", "true", "two words")),
    ("str", '"quoted"', "quoted"),
    ("int", "42", 42),
    *(("int", word, limpet_.InvalidAnswer) for word in ("4.0", '"42"', "yes", "true")),
]


async def test_a_typed_answer_has_the_form_that_the_request_asks_for() -> None:
    """Yes and no for a bool, an option in any case, and a text that looks like JSON. Other types are refused."""
    async with testing.app(asks) as app:
        for how, typed, expected in TYPED:
            handle = await app.start(asks, how)
            await app.settle()
            [request] = [each for each in await app.inbox() if each.run == handle.id]
            plain = answer_from_text(request, typed, json_or_text(typed))
            if expected is limpet_.InvalidAnswer:
                with pytest.raises(limpet_.InvalidAnswer):
                    await app.answer(request, plain, by="ann")
            else:
                await app.answer(request, plain, by="ann")
                found = await handle.result()
                assert (type(found), found) == (type(expected), expected), (how, typed)


def test_yes_answers_a_yes_or_no_question_on_the_command_line(url: str) -> None:
    """Also from a file, and repeated with the same command id."""
    with sync.open(url, agents=[asks]) as app:
        handle = app.start(asks, "bool", id="asks-1")
        while not (found := limpet_json("inbox", "--run", "asks-1")):
            pass
        [request] = found
        wrong = limpet("answer", request["id"], "perhaps")
        assert (wrong.exit_code, "answer: expected bool, got str" in wrong.stderr) == (1, True)
        for _ in range(2):
            assert limpet("answer", request["id"], "yes", "--by", "ann", "--command-id", "c-1").exit_code == 0
        assert handle.result() is True
