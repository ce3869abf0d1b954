"""`limpet replay`, `fork` and `prune`."""

import json
import os
from pathlib import Path

import pytest

from limpet import RunFailed, sync
from tests.interfaces.cli.run_cli import LIMPET, ROOT, limpet, limpet_json
from tests.interfaces.cli.shop import both, order
from tests.servers import preloaded

APP = "tests.interfaces.cli.shop:app"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store with a failed run."""
    found = f"sqlite:///{tmp_path}/limpet.db"
    with sync.open(found, agents=both) as app, pytest.raises(RunFailed):
        app.run(order, "dust", id="order-1")
    monkeypatch.setenv("LIMPET_URL", found)
    return found


def test_replay_reproduces_the_error_of_a_run_or_bundle(url: str, tmp_path: Path) -> None:
    """As text and as JSON. The app comes from --app or LIMPET_APP."""
    done = limpet("replay", "order", "--to", "1", "--app", APP)
    assert (done.exit_code, "dust is not for sale" in done.stdout) == (0, True)
    found = limpet_json("replay", "order-1", "--app", APP)
    assert (found["how"], found["error"]["tool"], found["error"]["number"]) == ("raised", "shop_price", 1)
    assert found["state"]["goal"] == "sell dust"
    assert limpet("export", "order-1", str(tmp_path / "o.zip")).exit_code == 0
    elsewhere = limpet("replay", str(tmp_path / "o.zip"), LIMPET_APP=APP, LIMPET_URL="")
    assert (elsewhere.exit_code, "dust is not for sale" in elsewhere.stdout) == (0, True)
    assert limpet("verify", str(tmp_path / "o.zip")).stdout.startswith("1 run with ")


def test_replay_checks_all_runs_of_an_agent_or_all_live_runs(url: str) -> None:
    done = limpet("replay", "--agent", "order", "--app", APP)
    assert (done.exit_code, done.stdout) == (0, "1 of 1 runs replay.\n")
    assert limpet("replay", "--live", "--app", APP).stdout == "0 of 0 runs replay.\n"
    assert limpet("replay", "--app", APP).exit_code == 2
    assert limpet("replay", "order-1").exit_code == 2


def test_fork_accepts_facts_goal_and_input(url: str, tmp_path: Path) -> None:
    """With and without the code. Invalid options create no run."""
    (tmp_path / "input").write_text('"book"', encoding="utf-8")
    made = limpet_json(
        "fork",
        "order-1",
        "--at",
        "1",
        "--set",
        "facts.x=5",
        "--set",
        "goal=sell",
        "--input",
        "@" + str(tmp_path / "input"),
    )
    assert made == {"id": "order-1.1", "fork_of": "order-1"}
    state = limpet_json("state", "order-1.1")["state"]
    assert (state["goal"], state["known_facts"][0]["value"]) == ("sell", 5)
    again = limpet("fork", "order-1", "--at", "1", "--app", APP, "--id", "again", "--effects", "stub")
    assert again.stdout == "Forked order-1 as again; it starts when a worker serves it.\n"
    assert limpet_json("show", "again")["run"]["fork_of"] == "order-1"
    wrong = (
        ("--at", "9"),
        ("--at", "1", "--set", "colour=5"),
        ("--at", "1", "--set", "facts"),
        ("--at", "1", "--set", "goal.x=1"),
        ("--at", "1", "--set", "plan=5"),
        ("--at", "1", "--result", "one=5"),
        ("--at", "1", "--result", "1=5"),
        ("--at", "1", "--input", "@nowhere"),
        ("--at", "1", "--effects", "dry"),
        (),
    )
    for words in wrong:
        done = limpet("fork", "order-1", *words)
        assert done.exit_code in (1, 2), words
        assert "Traceback" not in done.output
    assert {each["id"] for each in limpet_json("runs")} == {"order-1", "order-1.1", "again"}


def test_prune_deletes_only_with_the_delete_option(url: str, tmp_path: Path) -> None:
    """An archived run can be loaded again."""
    assert limpet_json("prune", "--older-than", "0s")["runs"] == ["order-1"]
    assert limpet_json("prune", "--older-than", "0s", "--status", "failed=forever")["runs"] == []
    assert limpet_json("prune", "--older-than", "0s", "--agent", "order=30d")["runs"] == []
    assert limpet("prune", "--older-than", "soon").exit_code == 2
    heads = str(tmp_path / "heads")
    assert limpet("verify", "--save-heads", heads).exit_code == 0
    done = limpet("prune", "--older-than", "0s", "--delete", "--archive", str(tmp_path / "old"))
    assert done.stdout.startswith("runs deleted: 1, with ")
    assert limpet_json("runs") == []
    assert limpet("verify", "--heads", heads).exit_code == 1
    assert limpet("verify", "--heads", heads, "--pruned", str(tmp_path / "old" / "pruned.jsonl")).exit_code == 0
    assert limpet("load", str(tmp_path / "old" / "order-1.zip")).stdout == "Loaded order-1.\n"


@pytest.mark.parametrize("words", ["replay order-1", "replay --live", "fork order-1 --at 1", "prompt order-1 1"])
def test_reading_commands_do_not_create_the_apps_store(words: str, tmp_path: Path) -> None:
    """With --app and without a URL, the error names the app's own store."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LIMPET_")}
    line = [LIMPET, *words.split(), "--app", APP]
    done = preloaded.run(line, cwd=tmp_path, env={**env, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: No store at sqlite:///limpet.db. Limpet did not create one.")
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_pyproject_is_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may name the app."""
    (tmp_path / "pyproject.toml").write_text("[tool", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_APP", raising=False)
    done = limpet("replay", "order-1")
    assert (done.exit_code, "cannot read pyproject.toml, which may name the app" in done.stderr) == (2, True)


def test_import_turns_tasks_into_runs_and_names_bad_ones(tmp_path: Path) -> None:
    """The agent is known from the app. A second import changes nothing; a bad task stops the next one."""
    url, source = f"sqlite:///{tmp_path}/limpet.db", tmp_path / "tasks.json"
    task = {"id": "old-1", "user_input": "book", "state": "completed", "result": "sent", "created_at": "2026-05-05"}
    source.write_text(json.dumps({"old-1": task}))
    words = ("import", "tasks", str(source), "--agent", "order", "--app", "tests.interfaces.cli.shop:app", "--url", url)
    assert limpet_json(*words)["imported"] == ["old-1"]
    assert "imported before: 1" in limpet(*words).stdout
    assert [each["status"] for each in limpet_json("runs", "--url", url)] == ["completed"]
    source.write_text(json.dumps({"old-2": {**task, "id": "old-2", "state": "lost"}}))
    refused = limpet(*words)
    assert refused.exit_code != 0
    assert "task old-2: state 'lost'" in " ".join(refused.stderr.split())
