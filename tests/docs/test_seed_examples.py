"""The examples that the project started from, re-expressed: they run, and are no longer than the originals."""

import ast
import os
import re
import sys
import tokenize
from pathlib import Path

import pytest

from tests.servers import preloaded
from tests.servers.openai_server import Answer, OpenAIServer, call

SEEDS = Path(__file__).parents[2] / "examples" / "seeds"
KEY = r"task_abc123:step_1:create_file:[0-9a-f]{16}\n"
STATE = {
    "goal": "Deploy service X to staging",
    "constraints": {"human_in_the_loop": {"required_for_risk_levels": ["write_local", "external_action"]}},
    "budget": {
        "max_steps": 20,
        "max_wall_time_ms": 300000,
        "max_llm_tokens": 200000,
        "max_artifact_bytes_in_context": 8000,
    },
    "plan": ["Apply changes", "Verify again"],
    "known_facts": [{"key": "service", "value": "X", "source": "user"}, {"key": "namespace", "value": "blue"}],
    "open_questions": ["Which namespace should we deploy to?", "Which tag?"],
    "artifacts": [{"artifact_id": "log_123", "type": "tool_result.logs", "summary": "nginx error log", "bytes": 48231}],
    "risk_flags": ["budget_pressure"],
}
SHARED = {
    "agent_id": "a",
    "plan": ["collect", "apply"],
    "state": "completed",
    "task_id": "task-1",
    "uri": "state://agents/a/tasks/task-1",
}

ORIGINALS = {
    "agent_state.py": (17, re.escape(f"{STATE}\n")),
    "atomic_step.py": (30, "completed\nfailed\n"),
    "checkpoints.py": (22 + 21 + 18, "{'operator:too old'} 300\n300\nTrue\n"),
    "compaction.py": (9, r"\['User asked about X.', 'turn 32'\] 32\n"),
    "context_slice.py": (
        30,
        (
            r"find the error explain \['Which server\?'\]\n\['kernel log'\] \['kernel 39', 'kernel 38'\]\n"
            r"{'artifacts': 1, 'facts': \d+}\n"
        ),
    ),
    "deadlines.py": (11 + 4, r"found\nThe run passed its deadline, [^\n]* UTC.\n"),
    "idempotency.py": (10 + 2, KEY),
    "retries.py": (
        15 + 9 + 8 + 2,
        (
            r"fetched\nStep 1 \(execute_tool\) failed after 3 attempts: builtins.TimeoutError: "
            r"check_disk gave no answer. "
            r"\['fetch', 'fetch', 'check_disk', 'check_disk', 'check_disk'\]\n"
        ),
    ),
    "shared_state.py": (24, re.escape(f"{SHARED}\n")),
    "stores.py": (
        5 + 63,
        r"task-5 5 completed 20  True\n\['task-4', 'task-5'\] \['task-0'\]\ntask-7 is not there\n",
    ),
    "task_state.py": (
        9,
        r"task-1 ann portfolio_review .* completed \('gather', 'score'\) {'risk_score': 6.8} {'risk_score': 6.8}\n",
    ),
    "tasks.py": (
        16 + 23 + 16 + 14 + 13 + 2 + 3,
        (
            "works on 'deploy'\ntask-1 failed Step 1 [^\n]* no space left. True\n"
            r"works on 'deploy'\n\['task-1'\]\ntask-1 completed done: deploy True\ntask-1 completed done: deploy True\n"
            r"No run 'task-2'.\n"
        ),
    ),
    "disk_space.py": (
        164,
        (
            "cleaning\nAI: There is space again.\nTool check_disk: Disk Usage: 95% [^\n]*\n"
            "Tool clean_logs: Logs cleaned. Freed 20GB.\n"
        ),
    ),
}
"""Number of lines of the originals (code, without blank lines and comments), and the output of each example."""


def code_lines(path: Path) -> int:
    """Count the lines that are neither blank nor only a comment or docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    first = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node)]
    docs = {line for node in first for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    layout = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    }  # fmt: skip
    with path.open(encoding="utf-8") as file:
        tokens = [each for each in tokenize.generate_tokens(file.readline) if each.type not in layout]
    return len({line for each in tokens for line in range(each.start[0], each.end[0] + 1)} - docs)


def output(name: str, folder: Path, *args: str, **env: str) -> str:
    """Run an example, and return what it prints."""
    done = preloaded.run([sys.executable, str(SEEDS / name), *args], cwd=folder, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_in_the_table() -> None:
    assert {path.name for path in SEEDS.glob("*.py")} == set(ORIGINALS)


@pytest.mark.parametrize("name", ORIGINALS)
def test_an_example_is_no_longer_than_the_original(name: str) -> None:
    assert 5 < code_lines(SEEDS / name) <= ORIGINALS[name][0]


@pytest.mark.parametrize("name", sorted(ORIGINALS.keys() - {"disk_space.py"}))
def test_an_example_prints_what_the_original_describes(name: str, tmp_path: Path) -> None:
    assert re.fullmatch(ORIGINALS[name][1], printed := output(name, tmp_path)), printed


def test_the_example_of_stores_is_the_same_on_every_store(tmp_path: Path, postgres_schema: str) -> None:
    printed = [output("stores.py", tmp_path, url) for url in ("memory:", "sqlite:///tasks.db", postgres_schema)]
    assert printed[0] == printed[1] == printed[2]


def test_the_example_of_a_model_runs_once_against_a_server(tmp_path: Path) -> None:
    """The second run returns the recorded answer, without a request and without cleaning again."""
    script = [Answer(calls=[call("check_disk", {})]), Answer(calls=[call("clean_logs", {})]), "There is space again."]
    with OpenAIServer(script) as server:
        first = output("disk_space.py", tmp_path, OPENAI_BASE_URL=server.url)
        assert re.fullmatch(ORIGINALS["disk_space.py"][1], first), first
        assert output("disk_space.py", tmp_path, OPENAI_BASE_URL=server.url) == first.removeprefix("cleaning\n")
        assert len(server.requests) == 3
