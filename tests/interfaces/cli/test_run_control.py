"""Starting and controlling runs from a process without their code."""

import asyncio
import re
from getpass import getuser
from pathlib import Path

import pytest

from limpet import open_store, sync
from limpet.events import bodies as b
from limpet.events import inline
from limpet.stores import WorkerRow
from tests.interfaces.cli.run_cli import limpet, limpet_json
from tests.interfaces.cli.shop import both, letter

UNSERVED = "No live worker serves letter 1; the run continues when one does.\nnext: limpet worker MODULE:ATTRIBUTE\n"


def test_start_checks_the_input_and_reports_a_missing_worker(url: str) -> None:
    """The contract comes from the store."""
    done = limpet("start", "order", "--input", "book", "--id", "o-7")
    assert done.stdout.splitlines() == [
        "o-7 is pending",
        "No live worker serves order 1; the run starts when one does.",
        "next: limpet worker MODULE:ATTRIBUTE  (no live worker serves order 1)",
        "next: limpet show o-7",
    ]
    words = ["--session", "s-1", "--user", "ann", "--label", "team=a", "--label", "url=a=b"]
    found = limpet_json("start", "letter", "--input", '"bob"', "--id", "l-7", *words)
    assert found == limpet_json("show", "l-7")["run"]
    assert (found["session"], found["user"], found["labels"]) == ("s-1", "ann", {"team": "a", "url": "a=b"})
    with sync.open(url, agents=[letter]) as app:
        again = limpet("start", "letter", "--input", "bob", "--id", "l-7", *words)
        assert app.get("l-7").info().agent == "letter"
    assert (again.exit_code, "no live worker" in again.stdout) == (0, False)


def test_start_reads_its_input_from_a_file_or_stdin(url: str, tmp_path: Path) -> None:
    """JSON, or plain text if it does not parse."""
    (tmp_path / "given").write_text('"from a file"\n', encoding="utf-8")
    assert limpet_json("start", "letter", "--input", f"@{tmp_path}/given", "--id", "l-1")["status"] == "pending"
    assert limpet_json("start", "letter", "--input", "-", "--id", "l-2", input="plain words\n")["status"] == "pending"
    with sync.open(url) as app:
        assert [app.log(run)[0].body["input"] for run in ("l-1", "l-2")] == [
            {"json": "from a file"},
            {"json": "plain words"},
        ]


def test_say_sends_a_message_to_the_run_or_keeps_it(url: str) -> None:
    """The input of a run is the first message of its conversation."""
    limpet_json("start", "letter", "--input", "hello", "--id", "l-1", "--conversation", "c-1")
    assert limpet_json("say", "c-1", "and more") == {"conversation": "c-1"}
    assert limpet("say", "c-1", "stop", "--interrupt").stdout == "Sent to c-1.\n"
    assert limpet("say", "c-2", "for later").exit_code == 1
    assert limpet("say", "c-2", "for later", "--new").stdout == (
        "Sent to c-2. No run is active there; the next one receives it.\n"
    )
    with sync.open(url) as app:
        said = [each.body["signal"] for each in app.log("l-1") if each.kind == "signal.received"]
        assert (said[:2], len(said)) == (["user", "user"], 3)
        for talk, text in (("c-1", "hello"), ("c-2", "for later")):
            assert [each.body["content"] for each in app.log(talk)[1:]] == [{"json": text}]


def test_compact_replaces_the_older_messages_of_a_conversation(url: str) -> None:
    """By a text or a model. The originals are kept."""
    for text in ("one", "two", "three"):
        limpet("say", "c-3", text, "--new")
    done = limpet("compact", "c-", "They counted.", "--keep", "12", "--by", "ann")
    assert done.stdout == "A summary replaces messages 2 to 3 of c-3.\n"
    shown = limpet("messages", "c-3").stdout.splitlines()
    assert [line.split("UTC  ")[1] for line in shown] == ["summary (ann): They counted.", f"user ({getuser()}): three"]
    assert len(limpet("messages", "c-3", "--whole").stdout.splitlines()) == 3
    again = limpet("compact", "c-3", "They counted on.", "--keep", "12").stdout
    assert again == "Nothing was replaced: there are no older messages. Pass a smaller --keep.\n"
    assert limpet_json("compact", "c-3", "All.", "--keep", "0")["last"] == 4
    for args in ((), ("text", "--model", "openai:gpt-5-mini")):
        wrong = limpet("compact", "c-3", *args)
        assert (wrong.exit_code, "pass a summary, or --model NAME" in wrong.stderr) == (2, True)
    wrong = limpet("compact", "c-3", "--model", "gpt")
    assert (wrong.exit_code, "the model 'gpt'" in wrong.stderr) == (1, True)


def test_pause_resume_signal_and_cancel_print_the_next_command(url: str) -> None:
    """With --json, they print the run."""
    assert limpet("pause", "lett").stdout.endswith("next: limpet resume letter-1\n")
    assert limpet_json("pause", "letter-1")["waits_for"][0]["text"] == "operator:paused"
    assert limpet_json("resume", "letter-1")["id"] == "letter-1"
    said = limpet("signal", "letter-1", "paid", '{"cents": 900}').stdout
    assert said == f"Sent paid to letter-1.\n{UNSERVED}"
    assert limpet("pause", "letter-1").exit_code == 0
    assert limpet("resume", "letter-1").stdout == f"Resumed letter-1.\n{UNSERVED}"
    assert limpet_json("signal", "letter-1", "ping")["id"] == "letter-1"
    assert limpet_json("cancel", "order-2", "--reason", "not needed")["id"] == "order-2"
    with sync.open(url, agents=both) as app:
        sent = [each.body["value"] for each in app.log("letter-1") if each.kind == "signal.received"]
        assert sent == [{"json": {"cents": 900}}, {"json": None}]
        [asked] = [each for each in app.log("order-2") if each.kind == "cancel.requested"]
        assert asked.body["reason"] == "not needed"


@pytest.mark.parametrize("given", ["odrer", "lettre"])
def test_a_mistyped_agent_suggests_similar_ones(url: str, given: str) -> None:
    """Or all agents if none is similar."""
    meant = {"odrer": "order", "lettre": "letter"}[given]
    assert f"Did you mean {meant}? [not_found]" in limpet("start", given).stderr
    assert "Did you mean letter, order? [not_found]" in limpet("start", "zzz").stderr


def test_answering_a_paused_run_reports_that_it_needs_an_operator(url: str) -> None:
    """The answer and `limpet show` print the command to resume it."""
    [request] = limpet_json("inbox")
    assert limpet("pause", "letter-1").exit_code == 0
    done = limpet("answer", request["id"], "red", "--by", "ann").stdout
    assert done.splitlines() == [
        f"Request {request['id']} answered by ann.",
        "letter-1 needs an operator (operator:paused).",
        "next: limpet resume letter-1",
    ]
    assert "next: limpet resume letter-1" in limpet("show", "letter-1").stdout


def test_an_answered_run_without_a_worker_waits_for_one(url: str) -> None:
    """With a live worker, nothing is reported."""
    [request] = limpet_json("inbox")
    done = limpet("answer", request["id"], "red", "--by", "ann")
    assert done.stdout == f"Request {request['id']} answered by ann.\n{UNSERVED}"
    assert (
        limpet_json("runs", "--waiting")[0]["waits_for"]
        == limpet_json("show", "letter-1")["run"]["waits_for"]
        == [{"what": "worker", "key": "letter 1", "text": "worker:letter 1"}]
    )
    said = limpet("show", "letter-1").stdout
    assert said.endswith("next: limpet worker MODULE:ATTRIBUTE  (no live worker serves letter 1)\n")
    with sync.open(url, agents=[letter]) as app:
        while not app.inbox():
            app.runs()
        assert "no live worker" not in limpet("reject", app.inbox()[0].id, "--because", "too red").stdout


def test_a_run_of_a_dead_worker_waits_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its lease has expired. The next command is printed."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    monkeypatch.setenv("LIMPET_URL", url)
    created = b.RunCreated(agent="a", agent_version="1", input=inline(None))

    async def die() -> None:
        async with open_store(url) as store:
            await store.create("r1", created, actor="test")
            await store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=1)
            await store.claim("w1", limit=1)

    asyncio.run(die())
    [found] = limpet_json("runs")
    assert (found["status"], found["waits_for"][0]["text"]) == ("running", "worker:a 1")
    said = limpet("show", "r1").stdout
    assert said.endswith("next: limpet worker MODULE:ATTRIBUTE  (its worker died, and no live worker serves a 1)\n")
    assert limpet_json("workers")[0]["is_live"] is False

    async def register_worker() -> None:
        async with open_store(url) as store:
            await store.register(WorkerRow(id="w2", agents={"a": ("1",)}), lease=3_600_000_000)

    asyncio.run(register_worker())
    assert limpet_json("show", "r1")["run"]["waits_for"] == []


def test_resuming_a_completed_run_reports_that_it_has_completed(url: str) -> None:
    """Braces in the name of a signal are printed verbatim."""
    limpet_json("signal", "letter-1", "{run}")
    assert limpet("signal", "letter-1", "{x}").stdout == "Sent {x} to letter-1.\n"
    [request] = limpet_json("inbox")
    limpet_json("answer", request["id"], "blue")
    with sync.open(url, agents=[letter]) as app:
        assert app.get("letter-1").result(timeout="30s") == "ann"
    assert limpet("resume", "letter-1").stdout == "letter-1 has already completed.\n"


def test_commands_record_who_typed_them_and_show_tells_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is that of the user of the machine, or the one in --by; a machine without names is no error."""
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    limpet("start", "order", "--input", "book", "--id", "o-9")
    limpet("pause", "o-9", "--reason", "not today")
    limpet("resume", "o-9", "--by", "bob")
    limpet("fork", "o-9", "--at", "1", "--id", "f-9")

    def unknown() -> str:
        raise KeyError("uid 1234 has no name")

    monkeypatch.setattr("getpass.getuser", unknown)
    assert limpet("cancel", "o-9", "--reason", "enough").exit_code == 0
    page = limpet("show", "o-9").stdout
    for each in (r"created +\S+ \S+ UTC by ann \(cli\)", "paused .* UTC by ann .cli.: not today", "resumed .* by bob"):
        assert re.search(each, page), page
    assert re.search(r"cancelled +\S+ \S+ UTC: enough", page)
    assert re.search("created .* by ann .cli.", limpet("show", "f-9").stdout)
    assert "pause.requested" in limpet("log", "o-9").stdout
    assert "by=bob via=cli" in limpet("log", "o-9").stdout
