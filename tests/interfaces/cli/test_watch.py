"""Commands that keep running: they show changes as they happen, and stop cleanly."""

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from limpet import sync
from limpet.service.json_values import as_json
from tests.interfaces.cli import shop
from tests.interfaces.cli.run_cli import LIMPET, limpet, limpet_json, terminal
from tests.interfaces.cli.shop import both, letter, order
from tests.servers.preloaded import PipedProgram


def process(*words: str) -> PipedProgram:
    """Start the command as a process."""
    return PipedProgram([LIMPET, *words])


def test_log_prints_one_line_per_event_or_json(url: str) -> None:
    """`--after` starts after an event."""
    said = limpet("log", "order-1").stdout.splitlines()
    with sync.open(url) as app:
        events = app.log("order-1")
    assert [line.split()[0] for line in said] == [str(each.seq) for each in events]
    assert [line.split()[4] for line in said] == [each.kind for each in events]
    assert "step 1 tool=shop_price args={item: dust} name=price/shop_price#1 effect=none" in said[4]
    assert "message: 'dust is not for sale'" in said[5]
    found = [json.loads(line) for line in limpet("log", "order-1", "--json", "--after", "2").stdout.splitlines()]
    assert found == as_json(events[2:])
    assert limpet("log", "order-1", "--after", "999").stdout == ""


def test_log_follow_shows_new_events_until_the_run_ends(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process writes them."""
    monkeypatch.setattr(shop, "FOLDER", tmp_path)
    with process("log", "order-2", "--follow", "--json") as follower:
        assert json.loads(follower.stdout.readline())["kind"] == "run.created"
        with sync.open(url, agents=both) as app:
            kinds = []
            for line in follower.stdout:
                kinds.append(json.loads(line)["kind"])
                (tmp_path / "go").touch()
            assert app.get("order-2").info().status == "completed"
    assert (follower.returncode, kinds[0], kinds[-1]) == (0, "run.claimed", "run.completed")


@pytest.mark.parametrize(
    "words", [["log", "letter-1", "--follow"], ["runs", "--watch"], ["runs", "--watch", "--json"]], ids=" ".join
)
def test_ctrl_c_ends_a_watching_command_with_130(url: str, words: list[str]) -> None:
    """Without an error message."""
    with process(*words) as view:
        assert view.stdout.readline()
        view.send_signal(signal.SIGINT)
        assert view.stderr.read() == ""
    assert view.returncode == 130


def test_runs_watch_prints_existing_runs_and_then_each_change(url: str) -> None:
    """Without a terminal, one line per change."""
    with process("runs", "--watch", "--json") as view:
        first = [json.loads(view.stdout.readline()) for _ in range(3)]
        assert first == sorted(limpet_json("runs"), key=lambda each: (each["updated"], each["created"]))
        limpet_json("cancel", "order-2", "--reason", "not needed")
        with sync.open(url, agents=[letter], worker=False) as app:
            app.start(letter, "eve", id="letter-2")
        found: dict[str, str] = {}
        while set(found) != {"letter-2", "order-2"}:
            change = json.loads(view.stdout.readline())
            found[change["id"]] = change["status"]
        view.send_signal(signal.SIGINT)
    assert found["letter-2"] == "pending"


def test_runs_watch_filters_by_status(url: str) -> None:
    with process("runs", "--watch", "--failed") as view:
        line = view.stdout.readline()
        view.send_signal(signal.SIGINT)
    assert line.split("  ")[1:] == ["order-1", "order 1", "failed", "step 1 of 3", "sell dust\n"]


def test_runs_watch_redraws_a_table_on_a_terminal(url: str) -> None:
    """Ctrl-C restores the cursor."""
    with terminal(LIMPET, "runs", "--watch", LIMPET_URL=url, NO_COLOR="1") as view:
        view.until("letter-1")
        with sync.open(url, agents=[order], worker=False) as app:
            app.start(order, "ink", id="order-3")
        view.until("order-3")
        view.type("\x03")
        rest, code = view.end()
    assert (code, "\x1b[?25h" in rest) == (130, True)


def test_several_followers_see_the_same_events(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop, "FOLDER", tmp_path)
    (tmp_path / "go").touch()
    with ExitStack() as stack:
        followers = [stack.enter_context(process("log", "order-2", "--follow", "--json")) for _ in range(3)]
        for each in followers:
            each.stdout.readline()
        with sync.open(url, agents=both) as app:
            app.get("order-2").result(timeout="30s")
        seen = [each.stdout.read() for each in followers]
    assert len(set(seen)) == 1
    assert [each.returncode for each in followers] == [0, 0, 0]


@pytest.mark.parametrize(
    "words",
    [["log", "letter-1", "--follow"], ["log", "letter-1", "-f", "--json"], ["runs", "--watch", "--json"]],
    ids=" ".join,
)
def test_a_watching_command_ends_when_its_pipe_is_closed(url: str, words: list[str]) -> None:
    """Although it has nothing new to print."""
    with process(*words) as view:
        assert view.stdout.readline()
        view.stdout.close()
        assert view.stderr.read() == ""
    assert view.returncode == 141
