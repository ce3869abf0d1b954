"""Bad input: one line with the error, a hint and a code, the documented exit code, and an unchanged store."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from limpet import NoStore, sync
from limpet.service.json_body import LARGEST
from limpet.service.json_values import error_json
from tests.interfaces.cli.run_cli import LIMPET, limpet, limpet_json
from tests.servers import preloaded

# Command, exit code, error code, and part of the message. {url}, {folder} and {request} are filled in.
WRONG: list[tuple[str, int, str, str]] = [
    # ids
    ("show zzz", 1, "not_found", "No run 'zzz'"),
    ("show odrer-1", 1, "not_found", "Did you mean order-1, order-2?"),
    ("show order", 1, "not_found", "Did you mean order-2, order-1?"),
    ("pause order", 1, "not_found", "Did you mean order-2, order-1?"),
    ("approve zzz", 1, "not_found", "No request 'zzz'"),
    ("start zzz", 1, "not_found", "No agent 'zzz'"),
    ("state order-1 --before 99", 1, "not_found", "step"),
    ("fork order-1 --at 99", 1, "not_found", "No step"),
    ("start order --input x --id a/b", 2, "invalid_argument", "Invalid id: 'a/b'"),
    ("start order --input other --id order-2", 1, "id_conflict", "'order-2' is already used"),
    # values
    ("start order --input {{", 2, "wrong_usage", "The input is invalid: not valid JSON"),
    ('start order --input {{"a":1,"a":2}}', 2, "wrong_usage", "duplicate key 'a'"),
    ('signal order-2 x [{{"a":1,"a":2}}]', 2, "wrong_usage", "duplicate key 'a'"),
    ("start order --input @{folder}/deep", 2, "wrong_usage", "nested more than"),
    ("start order --input @{folder}/large", 2, "wrong_usage", "larger than 16 MiB"),
    ("start order --input @{folder}/binary", 2, "wrong_usage", "not UTF-8 text"),
    ("start order --input @{folder}/nowhere", 1, "file_failed", "nowhere: No such file"),
    ("start order --input @{folder}", 1, "file_failed", "Is a directory"),
    ("start order --input 5", 1, "contract_error", ": expected str, got int"),
    ("start order", 1, "contract_error", "The input of order"),
    ("start order --input x --label team", 2, "wrong_usage", "'team' is not NAME=VALUE"),
    ("answer {request} green", 1, "invalid_answer", "pass one of red, blue"),
    ("answer {request} [", 2, "wrong_usage", "The answer is invalid"),
    ("answer {request}", 2, "wrong_usage", "no terminal to prompt on"),
    ("approve {request} --args [1]", 2, "wrong_usage", "--args is not a JSON object"),
    ("approve {request}", 1, "invalid_answer", "take an answer: `limpet answer`"),
    ("fork order-1 --at 1 --set facts", 2, "wrong_usage", "'facts' is not NAME=VALUE"),
    # wrong state
    ("pause order-1", 1, "wrong_state", "order-1 is failed"),
    ("signal order-1 x", 1, "wrong_state", "order-1 is failed"),
    ("resume order-2", 1, "wrong_state", "order-2 is pending"),
    # options and arguments
    ("runs --last x", 2, "wrong_usage", "'--last'"),
    ("runs --last 0", 2, "wrong_usage", "'--last'"),
    ("runs --status odd", 2, "wrong_usage", "'--status'"),
    ("runs --label team", 2, "invalid_argument", "'team' is not NAME=VALUE"),
    ("show", 2, "wrong_usage", "Missing argument 'RUN'"),
    ("cancel order-2", 2, "wrong_usage", "Missing option '--reason'"),
    ("runs --agent", 2, "wrong_usage", "requires an argument"),
    ("rnus", 2, "wrong_usage", "Did you mean 'runs'"),
    ("replay order-1", 2, "wrong_usage", "--app MODULE:ATTRIBUTE"),
    ("prune --older-than soon", 2, "invalid_argument", "Invalid duration or time: 'soon'"),
    ("prune --older-than 1d --status failed=soon", 2, "invalid_argument", "Invalid duration or time: 'soon'"),
    ("inbox --older-than soon", 2, "invalid_argument", "Invalid duration or time: 'soon'"),
    ("prune --older-than 5", 2, "invalid_argument", "Write a number with a unit"),
    ("calls --where who", 2, "invalid_argument", "invalid condition 'who'"),
    # stores and files
    ("runs --url sqlite:///{folder}/no/limpet.db", 1, "no_store", "No store at"),
    ("start order --url sqlite:///{folder}/other.db", 1, "no_store", "No store at"),
    ("say c-1 hello --url sqlite:///{folder}/empty", 1, "no_store", "No store at"),
    ("load x.zip --url sqlite:///{folder}/no/limpet.db", 1, "store_unavailable", "does not exist"),
    ("runs --url sqlite:///{folder}/binary", 1, "store_unavailable", "file is not a database"),
    ("runs --url sqlite:///{folder}/foreign", 1, "no_store", "No store at"),
    ("runs --url sqlite:///{folder}", 1, "no_store", "No store at"),
    ("runs --url mysql://host/db", 2, "invalid_argument", "Invalid store URL: 'mysql://host/db'"),
    ("runs --url limpet.db", 2, "invalid_argument", "Invalid store URL"),
    ("runs --url postgresql://nobody@127.0.0.1:1/x", 1, "store_unavailable", "no connection"),
    ("export order-1 {folder}/no/run.zip", 1, "file_failed", "run.zip.part: No such file"),
    ("load {folder}/binary", 1, "invalid_bundle", "is not a valid bundle"),
    ("load {folder}/nowhere", 1, "invalid_bundle", "no such file"),
    ("verify --heads {folder}/binary", 1, "invalid_bundle", "not a list of heads"),
]


def content(url: str) -> dict[str, list[Any]]:
    """Return everything in a store."""
    db = apsw.Connection(url.removeprefix("sqlite:///"))
    db.set_busy_timeout(10_000)
    try:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
        return {name: sorted(map(repr, db.execute(f'SELECT * FROM "{name}"'))) for name in names}
    finally:
        db.close()


@contextmanager
def unchanged(url: str) -> Iterator[None]:
    """Check that the store does not change."""
    before = content(url)
    yield
    assert content(url) == before


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Files with wrong content."""
    (tmp_path / "deep").write_text("[" * 100 + "]" * 100, encoding="utf-8")
    (tmp_path / "large").write_text(f'"{"x" * LARGEST}"', encoding="utf-8")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "empty").touch()
    with closing(apsw.Connection(str(tmp_path / "foreign"))) as db:
        db.execute("CREATE TABLE theirs (x)")
    return tmp_path


def check(words: Sequence[str], code: int, error: str, says: str, done: Any) -> None:
    """Check that the error is one complete line."""
    assert (done.returncode, done.stdout) == (code, ""), (words, done.stdout, done.stderr)
    assert done.stderr.endswith(f"[{error}]\n"), (words, done.stderr)
    assert done.stderr.startswith("error: ")
    assert says in done.stderr, (words, done.stderr)
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("typed", "code", "error", "says"), WRONG, ids=[each[0] for each in WRONG])
def test_bad_input_is_refused_and_changes_nothing(
    url: str, files: Path, monkeypatch: pytest.MonkeyPatch, *, typed: str, code: int, error: str, says: str
) -> None:
    """The error is a line of text, and an object with --json."""
    monkeypatch.setenv("LIMPET_PATIENCE", "100ms")  # for the store that does not exist
    request = limpet_json("inbox")[0]["id"]
    words = [word.format(url=url, folder=files, request=request) for word in typed.split(" ")]
    there = sorted(files.iterdir())
    with unchanged(url):
        done = limpet(*words)
        as_json = limpet(words[0], "--json", *words[1:])
    done.returncode = done.exit_code  # type: ignore[attr-defined]
    check(words, code, error, says, done)
    found = json.loads(as_json.stderr)
    assert (as_json.exit_code, found["code"], set(found)) == (code, error, {"code", "message", "facts", "hint"})
    assert found["hint"]
    assert [path for path in files.iterdir() if path not in there and not path.name.startswith("limpet.db-")] == []
    assert list(content(f"sqlite:///{files}/foreign")) == ["theirs"]


def test_a_second_decision_is_refused(url: str) -> None:
    [request] = limpet_json("inbox")
    assert limpet("answer", request["id"], "red", "--by", "ann").exit_code == 0
    with unchanged(url):
        for words in (["answer", request["id"], "blue"], ["reject", request["id"], "--because", "no"]):
            done = process(words)
            check(words, 1, "already_answered", "The first decision is final", done)


def process(words: Sequence[str], code: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a process, after some other code."""
    start = [LIMPET, *words] if not code else [sys.executable, "-c", f"{code}\n{MAIN}", *words]
    return preloaded.run(start, env={**os.environ, **env})


MAIN = "from limpet.main import main; main()"
NO_PSYCOPG = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0].startswith("psycopg"):
            raise ImportError(name)
sys.meta_path.insert(0, Missing())
"""
SMALL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))"
HOLD = """
import apsw, sys
db = apsw.Connection(sys.argv[1])
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_missing_extra_is_named_with_its_install_command(url: str) -> None:
    words = ["runs", "--url", "postgresql://host/db"]
    check(words, 1, "extra_missing", "pip install 'limpet[postgres]'", process(words, NO_PSYCOPG))


@pytest.mark.parametrize("words", [["pause", "order-2"], ["start", "order", "--input", "x"]], ids=" ".join)
def test_a_locked_store_is_refused_after_the_patience(url: str, words: list[str]) -> None:
    """LIMPET_PATIENCE sets how long the command waits."""
    holding = [sys.executable, "-c", HOLD, url.removeprefix("sqlite:///")]
    with unchanged(url):
        with subprocess.Popen(holding, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            done = process(words, LIMPET_PATIENCE="50ms")
            holder.communicate()
        check(words, 1, "store_busy", "The store is busy", done)
    assert process(words).returncode == 0


@pytest.mark.parametrize("words", [["runs"], ["show", "order-1"], ["inbox"]], ids=" ".join)
def test_reading_commands_do_not_wait_for_a_writer(url: str, words: list[str]) -> None:
    holding = [sys.executable, "-c", HOLD, url.removeprefix("sqlite:///")]
    with subprocess.Popen(holding, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        done = process(words, LIMPET_PATIENCE="50ms")
        holder.communicate()
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_fails_the_command_and_stores_nothing(url: str, tmp_path: Path) -> None:
    """With enough space, the same command succeeds."""
    (tmp_path / "long").write_text(json.dumps("x" * 60_000), encoding="utf-8")
    words = ["start", "order", "--id", "o-9", "--input", f"@{tmp_path}/long"]
    with sync.open(url) as app:
        before = [each.id for each in app.runs()]
    done = process(words, SMALL_DISK, LIMPET_PATIENCE="50ms")
    check(words, 1, "connection_lost", "Cannot reach the store", done)
    with sync.open(url) as app:
        assert [each.id for each in app.runs()] == before
    assert process(["verify"]).returncode == 0
    assert process(words).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_failed_write_to_stdout_is_an_error(url: str) -> None:
    """The command does not report success with a truncated file."""
    with Path("/dev/full").open("w") as full:
        done = preloaded.run([LIMPET, "runs"], stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr.startswith("error: Cannot use the output: No space left on device.")
    assert done.stderr.count("\n") == 1


def test_a_store_of_a_newer_version_is_refused_and_unchanged(url: str) -> None:
    db = apsw.Connection(url.removeprefix("sqlite:///"))
    db.execute("INSERT INTO limpet_meta VALUES ('schema', '999') ON CONFLICT DO UPDATE SET value = excluded.value")
    db.close()
    with unchanged(url):
        check(["runs"], 1, "newer_version", "schema version 999", process(["runs"]))


@pytest.mark.parametrize("words", [["runs"], ["show", "order-1"], ["start", "order"], ["verify"]], ids=" ".join)
def test_commands_do_not_create_a_schema_on_a_server(postgres_schema: str, words: list[str]) -> None:
    """The error names the URL without its password."""
    done = limpet(*words, "--url", postgres_schema)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: No store at postgresql://")
    assert done.stderr.endswith("[no_store]\n")
    [found] = json.loads(limpet("doctor", "--json", "--url", postgres_schema).stdout)["items"]
    assert found["what"] == "store"
    assert found["message"].startswith("no store at postgresql://")


def test_the_error_for_a_missing_store_hides_the_password() -> None:
    address = "postgresql://ann:hunter2-secret@host/db"
    error = error_json(NoStore(url=address))
    assert ("hunter2" in str(error), "hunter2" in str(error["facts"])) == (False, False)
