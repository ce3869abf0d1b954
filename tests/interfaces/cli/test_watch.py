"""Views that stay: they show what happens when it happens, and end when they are told to."""

import json
import signal
import subprocess
from pathlib import Path
from typing import IO

import pytest

from limpet import sync
from tests.interfaces.cli import shop
from tests.interfaces.cli.run_cli import LIMPET, limpet, terminal, told
from tests.interfaces.cli.shop import both, letter, order


def process(*words: str) -> subprocess.Popen[str]:
    """The command as a process whose lines are read."""
    return subprocess.Popen([LIMPET, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def out(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def test_a_log_in_lines_and_as_json(url: str) -> None:
    """A line for each event, in the order of the log; after an event, what came after it."""
    said = limpet("log", "order-1").stdout.splitlines()
    with sync.open(url) as app:
        events = app.log("order-1")
    assert [line.split()[0] for line in said] == [str(each.seq) for each in events]
    assert [line.split()[4] for line in said] == [each.kind for each in events]
    assert "step 1 name=price/shop_price#1 tool=shop_price args={item: dust} effect=none" in said[4]
    assert "message: 'dust is not for sale'" in said[5]
    found = [json.loads(line) for line in limpet("log", "order-1", "--json", "--after", "2").stdout.splitlines()]
    assert found == [
        {"run": each.run, "seq": each.seq, "kind": each.kind, "time": each.time, "body": each.body}
        for each in events[2:]
    ]
    assert limpet("log", "order-1", "--after", "999").stdout == ""


def test_a_log_is_followed_until_the_run_has_ended(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process writes is shown when it is written; the last line is the end."""
    monkeypatch.setattr(shop, "FOLDER", tmp_path)
    with process("log", "order-2", "--follow", "--json") as follower:
        assert json.loads(out(follower).readline())["kind"] == "run.created"
        with sync.open(url, agents=both) as app:
            kinds = []
            for line in out(follower):
                kinds.append(json.loads(line)["kind"])
                (tmp_path / "go").touch()
            assert app.get("order-2").info().status == "completed"
    assert (follower.returncode, kinds[0], kinds[-1]) == (0, "run.claimed", "run.completed")


@pytest.mark.parametrize(
    "words", [["log", "letter-1", "--follow"], ["runs", "--watch"], ["runs", "--watch", "--json"]], ids=" ".join
)
def test_ctrl_c_ends_a_view_cleanly(url: str, words: list[str]) -> None:
    """With 130, and without a word."""
    with process(*words) as view:
        assert out(view).readline()
        view.send_signal(signal.SIGINT)
        assert view.stderr is not None
        assert view.stderr.read() == ""
    assert view.returncode == 130


def test_runs_as_they_change(url: str) -> None:
    """Without a terminal: those that there are, then a line for each change; here as JSON."""
    with process("runs", "--watch", "--json") as view:
        first = [json.loads(out(view).readline()) for _ in range(3)]
        assert first == sorted(told("runs"), key=lambda each: (each["updated"], each["created"]))
        told("cancel", "order-2", "--reason", "not needed")
        with sync.open(url, agents=[letter], worker=False) as app:
            app.start(letter, "eve", id="letter-2")
        found: dict[str, str] = {}
        while set(found) != {"letter-2", "order-2"}:
            change = json.loads(out(view).readline())
            found[change["id"]] = change["status"]
        view.send_signal(signal.SIGINT)
    assert found["letter-2"] == "pending"


def test_only_those_that_are_wanted(url: str) -> None:
    """By status; a line has what lists show."""
    with process("runs", "--watch", "--failed") as view:
        line = out(view).readline()
        view.send_signal(signal.SIGINT)
    assert line.split("  ")[1:] == ["order-1", "order 1", "failed", "step 1 of 3", "sell dust\n"]


def test_a_table_that_stays_on_a_terminal(url: str) -> None:
    """It is drawn anew with every change, and Ctrl-C leaves the cursor as it was."""
    with terminal(LIMPET, "runs", "--watch", LIMPET_URL=url, NO_COLOR="1") as view:
        view.until("letter-1")
        with sync.open(url, agents=[order], worker=False) as app:
            app.start(order, "ink", id="order-3")
        view.until("order-3")
        view.type("\x03")
        rest, code = view.end()
    assert (code, "\x1b[?25h" in rest) == (130, True)


def test_many_watch_at_once(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three follow the same run, and see the same."""
    monkeypatch.setattr(shop, "FOLDER", tmp_path)
    (tmp_path / "go").touch()
    followers = [process("log", "order-2", "--follow", "--json") for _ in range(3)]
    for each in followers:
        out(each).readline()
    with sync.open(url, agents=both) as app:
        app.get("order-2").result(timeout="30s")
    seen = [each.communicate()[0] for each in followers]
    assert len(set(seen)) == 1
    assert [each.returncode for each in followers] == [0, 0, 0]


@pytest.mark.parametrize(
    "words",
    [["log", "letter-1", "--follow"], ["log", "letter-1", "-f", "--json"], ["runs", "--watch", "--json"]],
    ids=" ".join,
)
def test_a_view_ends_when_nobody_reads_it_any_more(url: str, words: list[str]) -> None:
    """Though nothing happens that it could show; without a word."""
    with process(*words) as view:
        assert out(view).readline()
        out(view).close()
        assert view.stderr is not None
        assert view.stderr.read() == ""
    assert view.returncode == 141
