"""The demo: its output is true, its commands work, and it leaves nothing behind."""

import re
import shlex
import signal
import subprocess
from io import StringIO
from pathlib import Path
from threading import Event

import pytest
from rich.cells import cell_len
from rich.console import Console

from limpet import sync
from limpet.demo.stage import Stage
from tests.interfaces.demo.demo_process import DEMO, env_of, left_behind, on_terminal, plain

ACTIONS = ("refund", "mail", "crm", "team", "archive")


def counters(said: str) -> dict[str, tuple[int, ...]]:
    """Return the service's counters: requests, failures and effects per action."""
    rows = re.findall(rf"^ +({'|'.join(ACTIONS)}) +(\d+) +(\d+) +(\d+)\s*$", said, re.MULTILINE)
    return {name: tuple(map(int, numbers)) for name, *numbers in rows}


def commands(said: str) -> list[str]:
    """Return the commands that the demo suggests at its end."""
    return [line.strip() for line in said.partition("Inspect it yourself:")[2].strip().splitlines()[:-2]]


@pytest.fixture(scope="module")
def demo_output(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str], str]:
    """The output of the demo without a terminal, with `limpet` not on the path and LIMPET_URL set to another store."""
    folder = tmp_path_factory.mktemp("demo")
    env = env_of(folder, LIMPET_URL="sqlite:///elsewhere.db", PATH="/usr/bin:/bin")
    done = subprocess.run([*DEMO, "my demo"], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert left_behind(folder) == []
    return folder, env, done.stdout


def test_demo_output_matches_the_counters_and_the_log(demo_output: tuple[Path, dict[str, str], str]) -> None:
    """Killed at step 6 of 9, continued by another process, and each action done once."""
    folder, _, said = demo_output
    assert "\x1b" not in said
    before, after = said.split("kill -9 ")
    assert "step 6 of 9  mail" in before
    assert "exited with -9 (SIGKILL)\n   status: running, step 6 of 9\n" in after
    assert "the previous worker is dead" in after
    assert not any(f"step {number} of 9  " in after for number in range(1, 7))
    assert all(f"step {number} of 9  " in after for number in (7, 8, 9))
    assert 'verified: applied, "mail-1"' in after
    once = {"mail": (1, 0, 1), "crm": (1, 0, 1), "archive": (1, 0, 1)}
    assert counters(said) == once | {"refund": (3, 1, 1), "team": (2, 1, 1)}
    assert re.sub(r"\s+", " ", said).count("; retrying") == 4
    assert "requests to the service during the fork: 0" in after
    assert "2 runs with " in after
    with sync.open(f"sqlite:///{folder}/my demo/limpet.db", worker=False) as app:
        kinds = [(each.kind, each.body) for each in app.log("ticket-42")]
        assert [body["worker"] for kind, body in kinds if kind == "run.claimed" and body.get("died")]
        assert [body["decision"] for kind, body in kinds if kind == "request.answered"] == ["approved"]
        assert {run.id: run.status for run in app.runs()} == {"ticket-42": "completed", "ticket-42.1": "completed"}


def test_commands_suggested_by_the_demo_work(demo_output: tuple[Path, dict[str, str], str]) -> None:
    folder, env, said = demo_output
    typed = commands(said)
    assert typed[1:3] == ["cd 'my demo'", "unset LIMPET_URL"]
    named = [shlex.split(line)[1] for line in typed if line.startswith("limpet ")]
    assert named == ["runs", "show", "log", "state", "compare", "replay", "verify"]
    script = "\n".join(["set -e", *typed])
    shell = subprocess.run(["sh", "-c", script], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert (shell.returncode, shell.stderr) == (0, "")
    assert "2 runs with " in shell.stdout


@pytest.mark.parametrize("columns", [80, 60])
def test_demo_fits_the_terminal_and_accepts_a_rejection(tmp_path: Path, columns: int, full: bool) -> None:
    """The progress bar moves; a rejected refund is not made."""
    if columns == 80 and not full:
        pytest.skip("slow; --full")
    with on_terminal(*DEMO, "--pause", "20ms", cwd=tmp_path, columns=columns, env=env_of(tmp_path)) as terminal:
        terminal.until("Enter approves")
        terminal.type("No, too dear.\n" if columns == 60 else "approve\n")
        said = terminal.rest()
    assert terminal.process.returncode == 0, said
    assert max(cell_len(line) for line in said.splitlines()) <= columns
    assert "\x1b[" in terminal.said
    assert "━" in said
    if columns == 60:
        assert "rejected by" in said
        assert "Not refunded: too dear." in said
        assert "refund" not in {name for name, numbers in counters(said).items() if numbers[-1]}
    assert counters(said)["mail"] == (1, 0, 1)
    assert left_behind(tmp_path) == []


def test_the_progress_bar_shows_the_step_being_described() -> None:
    """Not the current step of the run."""
    out = StringIO()
    stage = Stage(Console(file=out, force_terminal=True, width=80), 0)
    with stage.bar(9):
        stage.at(3)
    assert "step 3 of 9" in plain(out.getvalue())


def test_demo_can_be_interrupted_at_any_point_and_restarted(tmp_path: Path, full: bool) -> None:
    """Ctrl-C prints one line, exits with 130 and leaves no process, at one of four points without --full. NO_COLOR is
    respected.
    """
    points = ("1. A worker process", "Enter approves", "in the middle of step 6", "Another process")
    for words in points if full else points[2:3]:
        with on_terminal(*DEMO, "--pause", "100ms", cwd=tmp_path, env=env_of(tmp_path, NO_COLOR="1")) as terminal:
            if words in ("in the middle of step 6", "Another process"):
                terminal.until("Enter approves")
                terminal.type("\n")
            terminal.until(words)
            terminal.type("\x03")
            said = terminal.rest()
            assert terminal.process.returncode == 130, said
            assert said.endswith("\ninterrupted by SIGINT: nothing is left running\n"), said
            assert "Traceback" not in said
            assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", terminal.said)
            assert left_behind(tmp_path) == []
    done = subprocess.run(DEMO, cwd=tmp_path, env=env_of(tmp_path), capture_output=True, text=True, check=False)
    assert (done.returncode, counters(done.stdout)["mail"]) == (0, (1, 0, 1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_demo(tmp_path: Path, number: signal.Signals, full: bool) -> None:
    """After SIGTERM or SIGKILL, its worker ends, too."""
    if number == signal.SIGTERM and not full:
        pytest.skip("runs with --full (make chaos); another test sends the demo SIGINT, which ends it the same way")
    with subprocess.Popen(
        [*DEMO, "--slow"], cwd=tmp_path, env=env_of(tmp_path), stdout=subprocess.PIPE, text=True, bufsize=1
    ) as demo:
        assert demo.stdout is not None
        assert any("step 1 of 9" in line for line in demo.stdout)
        assert len(left_behind(tmp_path)) == 2
        demo.send_signal(number)
        demo.stdout.read()
        assert demo.wait() == (-9 if number == signal.SIGKILL else 128 + number)
    while left_behind(tmp_path):
        Event().wait(0.01)  # the worker notices and ends


def test_demo_refuses_a_foreign_or_busy_folder(tmp_path: Path) -> None:
    """Nothing in it is changed, and the error has a hint."""
    mine = tmp_path / "limpet-demo" / "mine"
    mine.parent.mkdir()
    mine.touch()
    done = subprocess.run(DEMO, cwd=tmp_path, env=env_of(tmp_path), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: Cannot use limpet-demo: contains files that `limpet demo` did not create")
    assert list(tmp_path.rglob("*")) == [mine.parent, mine]
    with subprocess.Popen(
        [*DEMO, "its"], cwd=tmp_path, env=env_of(tmp_path), stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert any("step 1 of 9" in line for line in first.stdout)
        done = subprocess.run(
            [*DEMO, "its"], cwd=tmp_path, env=env_of(tmp_path), capture_output=True, text=True, check=False
        )
        assert "another demo is running in it" in done.stderr
        first.communicate()
    assert first.returncode == 0
