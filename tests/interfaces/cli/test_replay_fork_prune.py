"""Going back on the command line: replay, fork, prune."""

import os
import subprocess
from pathlib import Path

import pytest

from limpet import RunFailed, sync
from tests.interfaces.cli.run_cli import LIMPET, ROOT, limpet, told
from tests.interfaces.cli.shop import both, order

APP = "tests.interfaces.cli.shop:app"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with a run that failed."""
    found = f"sqlite:///{tmp_path}/limpet.db"
    with sync.open(found, agents=both) as app, pytest.raises(RunFailed):
        app.run(order, "dust", id="order-1")
    monkeypatch.setenv("LIMPET_URL", found)
    return found


def test_replay_of_a_run_and_of_a_file(url: str, tmp_path: Path) -> None:
    """What it failed with, in text and as JSON, by --app, LIMPET_APP or the project's settings."""
    done = limpet("replay", "order", "--to", "1", "--app", APP)
    assert (done.exit_code, "dust is not for sale" in done.stdout) == (0, True)
    found = told("replay", "order-1", "--app", APP)
    assert (found["how"], found["error"]["tool"], found["error"]["number"]) == ("raised", "shop_price", 1)
    assert found["state"]["goal"] == "sell dust"
    assert limpet("export", "order-1", str(tmp_path / "o.zip")).exit_code == 0
    elsewhere = limpet("replay", str(tmp_path / "o.zip"), LIMPET_APP=APP, LIMPET_URL="")
    assert (elsewhere.exit_code, "dust is not for sale" in elsewhere.stdout) == (0, True)
    assert limpet("verify", str(tmp_path / "o.zip")).stdout.startswith("1 run with ")


def test_a_check_before_a_deploy(url: str) -> None:
    """All of an agent's, or all that have not ended."""
    done = limpet("replay", "--agent", "order", "--app", APP)
    assert (done.exit_code, done.stdout) == (0, "1 of 1 runs replay.\n")
    assert limpet("replay", "--live", "--app", APP).stdout == "0 of 0 runs replay.\n"
    assert limpet("replay", "--app", APP).exit_code == 2
    assert limpet("replay", "order-1").exit_code == 2


def test_a_fork_with_everything_that_can_be_said(url: str, tmp_path: Path) -> None:
    """Facts, goal, another input; with and without the code."""
    (tmp_path / "input").write_text('"book"', encoding="utf-8")
    made = told(
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
    state = told("state", "order-1.1")["state"]
    assert (state["goal"], state["known_facts"][0]["value"]) == ("sell", 5)
    again = limpet("fork", "order-1", "--at", "1", "--app", APP, "--id", "again", "--effects", "stub")
    assert again.stdout == "Forked order-1 as again; it starts when a worker serves it.\n"
    assert told("show", "again")["fork_of"] == "order-1"
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
    assert {each["id"] for each in told("runs")} == {"order-1", "order-1.1", "again"}


def test_pruning_says_before_it_does(url: str, tmp_path: Path) -> None:
    """Without --delete nothing goes; with an archive it can come back."""
    assert told("prune", "--older-than", "0s")["runs"] == ["order-1"]
    assert told("prune", "--older-than", "0s", "--status", "failed=forever")["runs"] == []
    assert told("prune", "--older-than", "0s", "--agent", "order=30d")["runs"] == []
    assert limpet("prune", "--older-than", "soon").exit_code == 2
    heads = str(tmp_path / "heads")
    assert limpet("verify", "--save-heads", heads).exit_code == 0
    done = limpet("prune", "--older-than", "0s", "--delete", "--archive", str(tmp_path / "old"))
    assert done.stdout.startswith("runs deleted: 1, with ")
    assert told("runs") == []
    assert limpet("verify", "--heads", heads).exit_code == 1
    assert limpet("verify", "--heads", heads, "--pruned", str(tmp_path / "old" / "pruned.jsonl")).exit_code == 0
    assert limpet("load", str(tmp_path / "old" / "order-1.zip")).stdout == "Loaded order-1.\n"


@pytest.mark.parametrize("words", ["replay order-1", "replay --live", "fork order-1 --at 1", "prompt order-1 1"])
def test_looking_makes_no_store_of_the_apps_own(words: str, tmp_path: Path) -> None:
    """With the code and without an address, it is the app's own that is not there; it is named."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LIMPET_")}
    line = [LIMPET, *words.split(), "--app", APP]
    done = subprocess.run(
        line, cwd=tmp_path, env={**env, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: No store at sqlite:///limpet.db. Limpet did not create one.")
    assert list(tmp_path.iterdir()) == []


def test_a_project_file_that_cannot_be_read_is_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may say where the code is."""
    (tmp_path / "pyproject.toml").write_text("[tool", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_APP", raising=False)
    done = limpet("replay", "order-1")
    assert (done.exit_code, "cannot read pyproject.toml, which may name the app" in done.stderr) == (2, True)
