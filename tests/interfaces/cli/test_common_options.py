"""Options that all commands share: help, JSON, errors, exit codes and completion."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from limpet.cli import options
from limpet.cli.commands import command
from limpet.cli.contents import TOPICS
from tests.interfaces.cli.run_cli import LIMPET, ROOT, limpet, limpet_json, terminal
from tests.servers import preloaded
from tests.servers.preloaded import PipedProgram

GROUP: Any = typer.main.get_command(command)
NAMES = sorted(GROUP.commands)
GROUPS = {name: sorted(each.commands) for name, each in GROUP.commands.items() if hasattr(each, "commands")}
COMMANDS = {
    **{name: each for name, each in GROUP.commands.items() if name not in GROUPS},
    **{f"{name} {inner}": GROUP.commands[name].commands[inner] for name, all in GROUPS.items() for inner in all},
}
# They work on a folder.
WITHOUT_STORE = {"demo", "init"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_an_example(name: str) -> None:
    """The help also lists the common options."""
    said = limpet(*name.split(), "--help").stdout
    assert re.search(r"^ *Example:\n( *cd .* && )? *limpet ", said, re.MULTILINE), said
    assert f"limpet {name}" in said.partition("Example:")[2]
    assert "--json" in said
    assert name in WITHOUT_STORE or "--url" in said


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_documented(name: str) -> None:
    """The examples in its help use only its own options."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert f"`limpet {name}" in page
    said = limpet(*name.split(), "--help").stdout
    shown = said.partition("Example:")[2]
    known = {option for each in COMMANDS[name].params for option in each.opts}
    for line in (line for line in shown.splitlines() if f"limpet {name}" in line):
        assert set(re.findall(r"(?<= )--[a-z-]+", line.partition("|")[0])) <= known


def test_every_command_is_in_one_topic_of_the_help() -> None:
    listed = [name for names in TOPICS.values() for name in names]
    assert sorted(listed) == sorted({*listed} & {*NAMES})
    said = limpet("--help").stdout
    assert [name for name in NAMES if not re.search(rf"^  {name} +[A-Z]", said, re.MULTILINE)] == []


def test_no_arguments_print_the_help_as_wrong_usage() -> None:
    """On stderr."""
    done = limpet()
    assert (done.exit_code, done.stdout, done.stderr.startswith("Usage: limpet")) == (2, "", True)
    assert re.fullmatch(r"limpet \d+\.\d+.*\n", limpet("--version").stdout)


@pytest.mark.parametrize(("typed", "meant"), [("rnus", "runs"), ("shwo", "show"), ("cancle", "cancel")])
def test_a_mistyped_command_suggests_a_similar_one(typed: str, meant: str) -> None:
    done = limpet(typed)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: No such command '{typed}'. Did you mean '{meant}'")
    assert done.stderr.endswith("Run `limpet --help`. [wrong_usage]\n")


def test_a_mistyped_option_suggests_a_similar_one() -> None:
    done = limpet("runs", "--faild")
    assert (done.exit_code, "--failed" in done.stderr, done.stderr.count("\n")) == (2, True, 1)


def test_a_prefix_of_a_request_id_is_enough(url: str) -> None:
    """A mistyped id suggests a similar one."""
    [request] = limpet_json("inbox")
    near = request["id"][:-1] + "-"
    done = limpet("answer", near, "red")
    assert (done.exit_code, f"Did you mean {request['id']}? [not_found]" in done.stderr) == (1, True)
    assert limpet("reject", request["id"][:8], "--because", "x").stderr.startswith("error: Invalid answer to request")
    assert limpet("answer", request["id"][:8], "red").exit_code == 0
    assert "[already_answered]" in limpet("answer", request["id"][:8], "blue").stderr


def test_errors_are_json_with_the_json_option(url: str) -> None:
    """Code, message, fields and hint on one line of stderr, and nothing on stdout."""
    done = limpet("show", "odrer-1", "--json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert json.loads(done.stderr) == {
        "code": "not_found",
        "message": "No run 'odrer-1'.",
        "facts": {"what": "run", "id": "odrer-1"},
        "hint": "Correct the id, or pass the right store with --url or LIMPET_URL. Did you mean order-1, order-2?",
    }
    wrong = json.loads(limpet("show", "--json").stderr)
    assert (wrong["code"], wrong["facts"]["command"]) == ("wrong_usage", "limpet show")


@pytest.mark.parametrize("words", [["--debug", "show", "zzz"], ["show", "zzz", "--debug"]], ids=" ".join)
def test_a_traceback_is_printed_only_with_debug(url: str, words: list[str]) -> None:
    """As an option anywhere on the line, or as LIMPET_DEBUG. The error line still comes last."""
    said = limpet(*words).stderr
    assert said.startswith("Traceback (most recent call last):")
    assert said.splitlines()[-1].startswith("error: No run 'zzz'")
    assert "Traceback" in limpet("show", "zzz", LIMPET_DEBUG="1").stderr
    assert "Traceback" not in limpet("show", "zzz", LIMPET_DEBUG="0").stderr
    assert "Traceback" not in limpet("show", "zzz").stderr


def test_arguments_after_two_dashes_are_not_options(url: str) -> None:
    limpet("signal", "letter-1", "--", "words", "--debug")
    assert limpet("show", "--", "--debug").stderr.startswith("error: No run '--debug'")


def test_an_error_while_importing_the_app_is_one_line(tmp_path: Path) -> None:
    """`--debug` shows its traceback."""
    (tmp_path / "broken.py").write_text("import json\njson.loads('{')\n", encoding="utf-8")
    words = [LIMPET, "worker", "broken:app"]
    done = preloaded.run(words, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: Unexpected internal error: JSONDecodeError: Expecting property name")
    assert done.stderr.endswith("or read the server's log. [unexpected]\n")
    more = preloaded.run([*words, "--debug"], cwd=tmp_path)
    assert 'broken.py", line 2' in more.stderr


def test_a_closed_pipe_ends_the_command_as_sigpipe_does(url: str) -> None:
    """Without an error message."""
    words = f"{LIMPET} log order-1 --json | head -n 1"
    done = subprocess.run(words, shell=True, capture_output=True, text=True, check=False)
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 1)
    for typed in (["log", "order-1"], ["log", "order-1", "--json"], ["runs"], ["runs", "--json"], ["inbox"]):
        read, write = os.pipe()
        os.close(read)
        done = preloaded.run([LIMPET, *typed], stdout=write)
        os.close(write)
        assert (done.returncode, done.stderr) == (141, "")


def completion_env(url: str, *words: str) -> dict[str, str]:
    """Return the environment that bash sets for a completion after these words."""
    env = {"LIMPET_URL": url, "_LIMPET_COMPLETE": "complete_bash", "COMP_CWORD": str(len(words))}
    return {**env, "COMP_WORDS": " ".join(("limpet", *words))}


def complete(url: str, *words: str) -> list[str]:
    """Return the completions after these words."""
    done = limpet(**completion_env(url, *words))
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout.split()


def test_completion_offers_commands_runs_agents_and_requests(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine gets the time that it needs."""
    monkeypatch.setattr(options, "PATIENCE", 60.0)
    [request] = limpet_json("inbox")
    assert sorted(complete(url, "sta")) == ["start", "state", "stats"]
    assert complete(url, "show", "ord") == ["order-2", "order-1"]
    assert complete(url, "start", "l") == ["letter"]
    assert complete(url, "answer", request["id"][:3]) == [request["id"]]
    assert complete(url, "runs", "--agent", "o") == ["order"]


def test_a_process_that_completes_prints_nothing_else(url: str) -> None:
    """Not even on stderr, which the shell would show inside the line."""
    done = preloaded.run([LIMPET], env={**os.environ, **completion_env(url, "sta")})
    assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (0, ["start", "state", "stats"], "")


def test_completion_without_a_store_offers_nothing_and_creates_none(tmp_path: Path) -> None:
    for nowhere in (f"sqlite:///{tmp_path}/none.db", "nonsense:x", "postgresql://nobody@127.0.0.1:1/x"):
        assert complete(nowhere, "show", "o") == []
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("words", [["verify"], ["prune", "--older-than", "0s"], ["export", "order-1"]], ids=" ".join)
def test_long_commands_show_progress_only_on_a_terminal(url: str, tmp_path: Path, words: list[str]) -> None:
    words = [*words, str(tmp_path / "out.zip")] if words[0] == "export" else words
    with terminal(LIMPET, *words, LIMPET_URL=url) as screen:
        shown, code = screen.end()
    assert (code, "━" in shown) == (0, True)
    done = preloaded.run([LIMPET, *words])
    assert (done.returncode, done.stderr, "━" in done.stdout) == (0, "", False)


def test_load_shows_progress_and_prints_the_run(url: str, tmp_path: Path) -> None:
    bundle = str(tmp_path / "run.zip")
    assert limpet_json("export", "order-1", bundle) == {"id": "order-1", "path": bundle}
    with terminal(LIMPET, "load", bundle, "--url", f"sqlite:///{tmp_path}/other.db") as screen:
        shown, code = screen.end()
    assert (code, "━" in shown, "Loaded order-1." in shown) == (0, True, True)
    assert limpet_json("load", bundle, "--url", f"sqlite:///{tmp_path}/other.db")["id"] == "order-1"


def test_worker_logs_json_lines_with_the_json_option(tmp_path: Path) -> None:
    words = [LIMPET, "worker", "tests.interfaces.cli.shop:both", "--json", "--url", f"sqlite:///{tmp_path}/limpet.db"]
    with PipedProgram(words, cwd=ROOT) as process:
        found = json.loads(process.stderr.readline())
        process.terminate()
    assert (found["level"], "serving letter, order" in found["message"], set(found)) == (
        "INFO",
        True,
        {"time", "level", "message"},
    )
