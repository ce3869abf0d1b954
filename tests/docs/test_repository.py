"""The documentation is correct: examples run, lists are complete, and counts are right."""

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.events import KINDS
from limpet.service.operation import operations_of
from limpet.state import AgentState
from limpet.stores.conformance import TOPICS, behaviours
from tests.docs.reference import PAGES
from tests.servers import preloaded

OPERATIONS = {name: each for name, each in operations_of(limpet.App).items() if "http" in each.doors}

ROOT = Path(__file__).parents[2]
ALSO = ("fastapi", "httpx", "limpet.adapters.mcp", "limpet.web", "mcp.server")
"""Modules that several examples import."""
PAGES_BY_HAND = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
DOCS = [*PAGES_BY_HAND, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def nodes(words: str) -> Iterator[tuple[Path, ast.AST]]:
    """Yield every node of the syntax trees of those source files that have one of some words, with its file."""
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(rf"\b({words})\b", text):
            yield from ((path, node) for node in ast.walk(ast.parse(text)))


def run(*command: str, cwd: Path) -> str:
    """Return the output of a Python program."""
    done = preloaded.run([sys.executable, *command], cwd=cwd, env={**os.environ, "COLUMNS": "80"}, also=ALSO)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_is_short_and_shows_the_example_that_runs() -> None:
    """It has under 150 lines, and its example is that of the file."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    example = (ROOT / "examples" / "first_agent.py").read_text(encoding="utf-8")
    [snippet] = blocks(ROOT / "README.md", "python")
    assert example.endswith(snippet)


def test_the_first_agent_runs_once(tmp_path: Path) -> None:
    """The second run returns the same result without acting."""
    example = str(ROOT / "examples" / "first_agent.py")
    first = run(example, cwd=tmp_path).splitlines()
    assert (len(first), first[-1]) == (3, "R-7")
    assert run(example, cwd=tmp_path) == "R-7\n"


def test_the_first_log_runs_and_resumes(tmp_path: Path) -> None:
    """The first run does four steps, and the second finds them done."""
    example = str(ROOT / "examples" / "first_log.py")
    expected = "".join(f"step {n}: {name}\n" for n, name in enumerate(("look", "decide", "refund", "tell"), 1))
    assert run(example, cwd=tmp_path) == f"{expected}ticket-42 is completed, 7 events\n"
    assert run(example, cwd=tmp_path) == "ticket-42 is completed, 7 events\n"


@pytest.mark.parametrize("path", PAGES)
def test_the_reference_is_up_to_date(path: str) -> None:
    """`make fix` writes the pages."""
    assert (ROOT / path).read_text(encoding="utf-8") == PAGES[path]()


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_snippets_parse_and_links_exist(page: Path) -> None:
    """This applies to Python and JSON in every page, and to every relative link."""
    for snippet in blocks(page, "python"):
        compile(snippet, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for snippet in blocks(page, "json"):
        assert AgentState.from_json(snippet).goal
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


def test_counts_in_the_docs_are_right() -> None:
    """The numbers are those of behaviours and kinds."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in DOCS)
    assert {int(n) for n in re.findall(r"(\d+) behaviours", text)} == {len(behaviours())}
    assert {int(n) for n in re.findall(r"(\d+) kinds", text)} == {len(KINDS)}
    assert len(behaviours()) >= 120
    assert len({str(each) for each in behaviours()}) == len(behaviours())
    assert all(each.summary for each in behaviours())
    assert {each.topic for each in behaviours()} == {topic.__name__.rpartition(".")[2] for topic in TOPICS}


def test_every_make_target_is_documented() -> None:
    """Every target is in `make help`, and every target named in the docs exists."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+):", makefile, re.MULTILINE)
    assert all(re.search(rf"^{target}:.*## ", makefile, re.MULTILINE) for target in targets)
    assert set(re.findall(r"`make ([a-z]+)`", "\n".join(page.read_text(encoding="utf-8") for page in DOCS))) <= set(
        targets
    )


def test_python_files_contain_no_sql() -> None:
    words = re.compile(
        r"\b(SELECT .* FROM|INSERT INTO|UPDATE \w+ SET|DELETE FROM|CREATE TABLE|PRAGMA|BEGIN IMMEDIATE)\b"
    )
    found = [
        f"{path.relative_to(ROOT)}: {node.value[:60]!r}"
        for path, node in nodes("SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|BEGIN")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and words.search(node.value)
        if "conformance" not in path.parts
    ]
    assert found == []


def test_the_log_is_never_read_without_an_order() -> None:
    """Every statement that reads several events has an ORDER BY."""
    text = (ROOT / "src/limpet/stores/sqlite/statements.sql").read_text(encoding="utf-8")
    for statement in re.split(r"^-- name: ", text, flags=re.MULTILINE):
        if "{event}" in statement and not statement.startswith("command"):
            assert "ORDER BY" in statement
    assert not re.search(r"^BEGIN(?! IMMEDIATE)", text, re.MULTILINE)


def test_constraints_have_only_names_and_versions() -> None:
    """Every line is `name==version`."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[A-Za-z0-9.+!]+", line) for line in lines)
    assert not (ROOT / "uv.lock").exists()


def test_no_object_serialisation_is_imported() -> None:
    """Stored formats are JSON only."""
    unwanted = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
    for _, node in nodes("|".join(unwanted)):
        names = [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        assert not unwanted & {*names, getattr(node, "module", None)}


def test_the_example_of_own_writes_runs(tmp_path: Path) -> None:
    """The second run has nothing left to do."""
    expected = "['run.created', 'run.claimed', 'step.completed', 'run.completed']\n"
    for _ in range(2):
        assert run(str(ROOT / "examples" / "own_writes.py"), cwd=tmp_path) == expected


def test_the_example_of_encryption_runs(tmp_path: Path) -> None:
    """The data is readable with the new key, and not in the file."""
    output = run(str(ROOT / "examples" / "encrypted.py"), cwd=tmp_path)
    assert output == "decrypted: {'card': '4242 4242 4242 4242'}\nreadable in the file: False\n"


def test_the_examples_of_handoffs_run(tmp_path: Path) -> None:
    """They show an approval with other arguments, a person instead of a failure, and three agents."""
    assert run(str(ROOT / "examples" / "approve_a_call.py"), cwd=tmp_path).endswith("refund o-1: 2500 cents\nR-7\n")
    output = run(str(ROOT / "examples" / "hand_to_a_person.py"), cwd=tmp_path)
    refusal = "outcome: expected one of ['nothing', 'refund', 'replace']"
    assert output.splitlines()[-2:] == [refusal, "replace: send another"]
    output = run(str(ROOT / "examples" / "three_agents.py"), cwd=tmp_path)
    assert output.splitlines()[0] == "Reply(body='Dear Ann, about your refund …', allowed=True)"
    assert output.count(" completed\n") == 4
    assert output.endswith("('text: missing',)\n")


def test_the_first_llm_agent_runs_once(tmp_path: Path) -> None:
    """The example has at most 30 lines, as on the page; its tool is approved with other arguments and runs once."""
    path = ROOT / "examples" / "first_llm_agent.py"
    shown = blocks(ROOT / "docs" / "llm.md", "python")[0]
    assert shown.removeprefix("import limpet\n") in path.read_text(encoding="utf-8")
    assert len([line for line in shown.splitlines() if line]) <= 30
    first = run(str(path), cwd=tmp_path).splitlines()
    assert first[0].startswith("deleted logs of more than 7 days, key disk-1:")
    assert first[1:] == [
        "There is space again.",
        '"check_disk" because I look first.',
        '"clean_logs" because Too full.',
        '"answer" because it has an answer',
    ]
    assert run(str(path), cwd=tmp_path).splitlines() == first[1:]


def test_the_example_of_a_custom_model_runs(tmp_path: Path) -> None:
    """The model calls a tool and is billed by its prices; a custom loop stops before its budget is exceeded."""
    expected = [
        "hello hello",
        "{'heard': 'hello'} 234 0.000306",
        "Budget exceeded: max_llm_tokens is 2000, and with the next step the usage would be 2624.",
        "1624",
    ]
    for _ in range(2):
        assert run(str(ROOT / "examples" / "own_model.py"), cwd=tmp_path).splitlines() == expected


def test_the_example_of_a_long_conversation_runs(tmp_path: Path) -> None:
    """The conversation spans many runs, is summarised, read completely and forked; stale data is refused."""
    output = run(str(ROOT / "examples" / "long_conversation.py"), cwd=tmp_path).splitlines()
    assert output == [
        "user: message 11, and apples again a",
        "assistant: You said: message 11, an",
        "user: and pears",
        "['They talked about apples, at length.']",
        "True 25",
        "5 3",
        "8 25",
        "[('ann-1', 13, 2)]",
        "asked for the price of ACME",
        "['sold ACME at 100', 'stale: price']",
    ]


def squeezed(text: str) -> str:
    """Return the lines without indentation, since a page shows the inside of a function."""
    return "\n".join(line.strip() for line in text.splitlines())


def is_shown(page: str, example: str, *, count: int) -> bool:
    """Return whether this many snippets of a page are in an example."""
    text = squeezed((ROOT / "examples" / example).read_text(encoding="utf-8"))
    return sum(squeezed(snippet) in text for snippet in blocks(ROOT / "docs" / page, "python")) == count


def test_the_example_of_prompts_runs(tmp_path: Path) -> None:
    """The prompt is rebuilt exactly with the knowledge of that time; messages based on a retracted fact are marked."""
    assert is_shown("llm.md", "what_a_model_saw.py", count=2)
    assert is_shown("agents.md", "what_a_model_saw.py", count=1)
    assert is_shown("conversations.md", "long_conversation.py", count=1)
    expected = [
        "I must look again.",
        "the agent's instructions",
        "the agent's state at that time: 3 lines",
        "messages 2 to 9 of offer-1.chat, which ended at 9",
        "True",
        "You write offers.",
        "",
        "What you know:",
        "Plan 1: look (pending)",
        "Plan 2: offer (pending)",
        'Fact total = "300" (from model, as of step 2; concluded from price, which changed since)',
        "look ['total', 'price'] 6 {}",
        "['total']",
        "total of step 1 concluded from ('price',)",
    ]
    for _ in range(2):
        assert run(str(ROOT / "examples" / "what_a_model_saw.py"), cwd=tmp_path).splitlines() == expected


def test_the_example_of_loop_parts_runs(tmp_path: Path) -> None:
    """A rule chooses before the model does, a result becomes a fact, and another agent takes over."""
    assert is_shown("llm.md", "own_parts.py", count=1)
    expected = [
        "The bill is sent.",
        '"read_meter" because The meter first.',
        '"hand_over_to_billing" because it did not say',
        "True '1234 kWh'",
        "meter-1 {'kwh': 1234}",
    ]
    for _ in range(2):
        assert run(str(ROOT / "examples" / "own_parts.py"), cwd=tmp_path).splitlines() == expected


def test_the_example_of_mcp_tools_runs(tmp_path: Path) -> None:
    """Tools of an MCP server are listed and called as steps; the one with a risk is approved with other arguments, and
    runs once.
    """
    assert is_shown("llm.md", "tools_of_a_server.py", count=1)
    example = str(ROOT / "examples" / "tools_of_a_server.py")
    first = run(example, cwd=tmp_path).splitlines()
    changed = 'A person changed the arguments to {"name":"Ann","text":"hello, dear"}. '
    assert first == [
        "may it? send {'name': 'Ann', 'text': 'hello'}",
        "It is sent.",
        f"['Ann lives at 7 Harbour Road', '{changed}sent to Ann: hello, dear']",
        "1 tools of desk none",
        "2 model none",
        "3 lookup none",
        "4 model none",
        "5 send once",
        "6 model none",
    ]
    assert run(example, cwd=tmp_path).splitlines() == first[1:]


def test_the_example_of_mcp_in_code_runs(tmp_path: Path) -> None:
    """Tools and a resource of an MCP server are steps of an agent in code; the second run has nothing left to do."""
    assert is_shown("mcp.md", "mcp_in_code.py", count=1)
    example = str(ROOT / "examples" / "mcp_in_code.py")
    offer = "a parcel to Cork costs 104 cents"
    asked = f"may it? send {{'city': 'Cork', 'text': '{offer}'}}"
    assert run(example, cwd=tmp_path).splitlines() == [asked, f"sent to Cork: {offer}"]
    assert run(example, cwd=tmp_path).splitlines() == [f"sent to Cork: {offer}"]


def test_the_example_of_remote_queries_runs(tmp_path: Path) -> None:
    """The queries run over HTTP on a real server and over MCP by another agent; each of them is on the page."""
    assert is_shown("serving.md", "ask_from_elsewhere.py", count=1)
    assert is_shown("mcp.md", "ask_from_elsewhere.py", count=1)
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    for each in OPERATIONS.values():
        takes = ", ".join(f"`{name}`" for name in each.sent if name not in each.in_path)
        assert f"| `{each.name}` | `{each.path}` | {takes}{' ' if takes else ''}|" in page
    assert run(str(ROOT / "examples" / "ask_from_elsewhere.py"), cwd=tmp_path).splitlines() == [
        "settle o-1 refund ['order']",
        "the customer's letter It arrived broken.",
        "No run 'ticket-43'.",
        "The order is o-1; I go on with `refund`.",
    ]


def test_the_example_of_a_remote_client_runs(tmp_path: Path) -> None:
    """The page shows the client and its output."""
    page = (ROOT / "docs" / "remote.md").read_text(encoding="utf-8")
    assert is_shown("remote.md", "remote_client.py", count=1)
    output = run(str(ROOT / "examples" / "remote_client.py"), cwd=tmp_path)
    assert output in page
    assert len(output.splitlines()) == 2


def test_the_example_of_a_service_runs(tmp_path: Path) -> None:
    """The API inside a FastAPI service refuses a caller without a session, and starts a run for one that has it."""
    assert is_shown("serving.md", "inside_fastapi.py", count=1)
    for _ in range(2):
        output = run(str(ROOT / "examples" / "inside_fastapi.py"), cwd=tmp_path)
        assert output.splitlines() == ["not_authenticated", "completed Hello, Bob!"]


def test_the_example_of_a_live_page_runs(tmp_path: Path) -> None:
    """Each event of the run is a message, and the stream ends with the run."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    assert "(../examples/live_page.py)" in page
    for _ in range(2):
        output = run(str(ROOT / "examples" / "live_page.py"), cwd=tmp_path)
        assert output.splitlines() == ["200", "6 messages, the last: end"]


async def test_the_example_of_a_model_test_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the first agent runs as the page shows it."""
    monkeypatch.setattr("limpet.engine.definitions.tools._tools", {})  # other tests have tools of these names
    shown = next(each for each in blocks(ROOT / "docs" / "models.md", "python") if "async def test_" in each)

    @limpet.tool(effect="once", risk="write_local", name="clean_logs")
    def clean_logs(older_than_days: int) -> str:
        """Delete old logs."""
        return f"deleted logs of more than {older_than_days} days"

    approvals = limpet.Approvals("write_local", to="oncall")
    there: dict[str, Any] = {"limpet": limpet, "clean_logs": clean_logs, "approvals": approvals}
    exec(shown, there)
    await there["test_it_asks_before_it_cleans"]()


def test_the_example_of_secrets_runs(tmp_path: Path) -> None:
    """Only the tool gets the secret, which is not in the error either. The second run finds everything done."""
    example = str(ROOT / "examples" / "use_a_secret.py")
    first = run(example, cwd=tmp_path).splitlines()
    assert first[1:2] + first[-1:] == ["signed with a key of 21 characters", "readable in the file: False"]
    assert "the bank refused 50000 cents with key [secret]" in first[-2]
    assert [line for line in first if "'key': '[secret]'" not in line] == run(example, cwd=tmp_path).splitlines()


def test_the_example_of_memory_runs(tmp_path: Path) -> None:
    """The second run knows what the first one remembered; started again, nothing is remembered twice."""
    assert is_shown("memory.md", "memory.py", count=2)
    expected = [
        "known: nothing",
        "known: prefers the name Annie",
        'recall(user="ann") from recall as of step 1',
        "['recall', 'remember'] 1",
    ]
    for _ in range(2):
        assert run(str(ROOT / "examples" / "memory.py"), cwd=tmp_path).splitlines() == expected


def test_the_example_of_scores_runs(tmp_path: Path) -> None:
    """The page shows the example and its output, also when it is run again."""
    page = (ROOT / "docs" / "scores.md").read_text(encoding="utf-8")
    assert is_shown("scores.md", "scores.py", count=1)
    for _ in range(2):
        assert run(str(ROOT / "examples" / "scores.py"), cwd=tmp_path) in page


def test_the_example_of_shared_records_runs(tmp_path: Path) -> None:
    """The page shows the example and its output, also when it is run again."""
    page = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
    assert is_shown("records.md", "shared_record.py", count=1)
    for _ in range(2):
        assert run(str(ROOT / "examples" / "shared_record.py"), cwd=tmp_path) in page
