"""The tests of the command line once more, with the address of a server instead of the store's URL."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.interfaces.cli import (
    test_answer_prompt,
    test_commands,
    test_queries,
    test_run_control,
    test_watch,
)
from tests.interfaces.cli.run_cli import LIMPET, limpet, limpet_json, terminal
from tests.interfaces.remote.conftest import served_copy

# Tests that use the store in another way than the command line, or the user's code.
LOCAL = {
    "test_a_run_is_exported_loaded_and_verified_in_another_store": "exports need the store",
    "test_commands_suggested_by_show_work": "the server records `http`",
    "test_commands_record_who_typed_them_and_show_tells_it": "the server records `http`, and the owner of the token",
}


def remote_tests(module: ModuleType) -> dict[str, object]:
    """Return the tests of a module that make sense with a server."""
    return {name: each for name, each in vars(module).items() if name.startswith("test_") and name not in LOCAL}


filled = test_queries.filled
for _module in (
    test_answer_prompt,
    test_commands,
    test_queries,
    test_run_control,
    test_watch,
):
    globals().update(remote_tests(_module))


@pytest.fixture(autouse=True)
def one_case(request: pytest.FixtureRequest, full: bool) -> None:
    """Run the first case of each test of the command line; the others differ before anything is sent."""
    indices = request.node.callspec.indices if hasattr(request.node, "callspec") else {}
    if not full and any(indices.values()) and request.function.__module__ != __name__:
        pytest.skip("runs with --full (make chaos); tests/interfaces/cli runs all cases on a store")


@pytest.fixture
def store(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a copy of the store with refunds, which is served."""
    yield from served_copy(filled, tmp_path, monkeypatch)


def test_whoami_shows_the_owner_of_the_token(url: str) -> None:
    """Who is recorded, unless another name is typed, which is refused."""
    who = limpet_json("whoami")["name"]
    assert limpet_json("pause", "letter-1")["id"] == "letter-1"
    assert f"by {who} (http)" in limpet("show", "letter-1").stdout
    wrong = limpet("resume", "letter-1", "--by", "ben")
    assert (wrong.exit_code, "Invalid by" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ["worker", "tests.interfaces.cli.shop:both", "--url"],
        ["serve", "--url"],
        ["mcp", "--url"],
        ["doctor", "--fix", "--url"],
        ["verify", "--url"],
        ["export", "letter-1", "out.zip", "--url"],
        ["load", "out.zip", "--url"],
        ["replay", "letter-1", "--app", "tests.interfaces.cli.shop:both", "--url"],
        ["import", "tasks", "tasks.json", "--agent", "letter", "--url"],
        ["audit", "--export", "out.jsonl", "--url"],
        ["prune", "--older-than", "1d", "--archive", "old", "--url"],
    ],
)
def test_commands_that_need_the_store_say_so(url: str, words: list[str]) -> None:
    """Before anything is done."""
    done = limpet(*words, os.environ["LIMPET_URL"])
    assert (done.exit_code, "[not_remote]" in done.stderr) == (1, True), done.output


def test_doctor_asks_the_server(url: str) -> None:
    assert {each["what"] for each in limpet_json("doctor")} >= {"store"}


def test_a_list_and_a_log_are_followed(url: str) -> None:
    """`runs --watch` and `log --follow` read streams."""
    with terminal(LIMPET, "runs", "--watch", NO_COLOR="1") as view:
        view.until("letter-1")
        limpet_json("start", "order", "--input", "ink", "--id", "order-3")
        view.until("order-3")
        view.type("\x03")
        assert view.end()[1] == 130
    with terminal(LIMPET, "log", "letter-1", "--follow", columns=200) as view:
        view.until("request.opened")
        limpet_json("cancel", "letter-1", "--reason", "enough")
        view.until("cancel.requested")
        view.type("\x03")
        assert view.end()[1] == 130
