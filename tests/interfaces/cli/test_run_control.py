"""Starting and steering runs from where their code is not."""

import asyncio
from pathlib import Path

import pytest

from limpet import open_store, sync
from limpet.events import bodies as b
from limpet.events import inline
from limpet.stores import WorkerRow
from tests.interfaces.cli.run_cli import limpet, told
from tests.interfaces.cli.shop import both, letter

UNSERVED = "No live worker serves letter 1; the run continues when one does.\nnext: limpet worker MODULE:ATTRIBUTE\n"


def test_a_run_is_started_by_name(url: str) -> None:
    """The contract is in the store: the run is checked against it, and waits for a worker; that is said."""
    done = limpet("start", "order", "--input", "book", "--id", "o-7")
    assert done.stdout.splitlines() == [
        "o-7 is pending",
        "No live worker serves order 1; the run starts when one does.",
        "next: limpet worker MODULE:ATTRIBUTE  (no live worker serves order 1)",
        "next: limpet show o-7",
    ]
    words = ["--session", "s-1", "--user", "ann", "--label", "team=a", "--label", "url=a=b"]
    found = told("start", "letter", "--input", '"bob"', "--id", "l-7", *words)
    assert found == {name: value for name, value in told("show", "l-7").items() if name in found}
    assert (found["session"], found["user"], found["labels"]) == ("s-1", "ann", {"team": "a", "url": "a=b"})
    with sync.open(url, agents=[letter]) as app:
        again = limpet("start", "letter", "--input", "bob", "--id", "l-7")
        assert app.get("l-7").info().agent == "letter"
    assert (again.exit_code, "no live worker" in again.stdout) == (0, False)


def test_an_input_comes_from_a_file_or_from_standard_input(url: str, tmp_path: Path) -> None:
    """JSON in both; what is none is text."""
    (tmp_path / "given").write_text('"from a file"\n', encoding="utf-8")
    assert told("start", "letter", "--input", f"@{tmp_path}/given", "--id", "l-1")["status"] == "pending"
    assert told("start", "letter", "--input", "-", "--id", "l-2", input="plain words\n")["status"] == "pending"
    with sync.open(url) as app:
        assert [app.log(run)[0].body["input"] for run in ("l-1", "l-2")] == [
            {"json": "from a file"},
            {"json": "plain words"},
        ]


def test_the_conversation_of_a_run(url: str) -> None:
    """What it is started with is said there; what is said later comes to the run, and is kept when there is none."""
    told("start", "letter", "--input", "hello", "--id", "l-1", "--conversation", "c-1")
    assert told("say", "c-1", "and more") == {"conversation": "c-1"}
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


def test_a_run_is_paused_resumed_told_and_cancelled(url: str) -> None:
    """Each says what it did and what to type next, and with JSON gives the run as lists show it."""
    assert limpet("pause", "lett").stdout.endswith("next: limpet resume letter-1\n")
    assert told("pause", "letter-1")["waits_for"] == "operator:paused"
    assert told("resume", "letter-1")["id"] == "letter-1"
    said = limpet("signal", "letter-1", "paid", '{"cents": 900}').stdout
    assert said == f"Sent paid to letter-1.\n{UNSERVED}"
    assert limpet("pause", "letter-1").exit_code == 0
    assert limpet("resume", "letter-1").stdout == f"Resumed letter-1.\n{UNSERVED}"
    assert told("signal", "letter-1", "ping")["id"] == "letter-1"
    assert told("cancel", "order-2", "--reason", "not needed")["id"] == "order-2"
    with sync.open(url, agents=both) as app:
        sent = [each.body["value"] for each in app.log("letter-1") if each.kind == "signal.received"]
        assert sent == [{"json": {"cents": 900}}, {"json": None}]
        [asked] = [each for each in app.log("order-2") if each.kind == "cancel.requested"]
        assert asked.body["reason"] == "not needed"


@pytest.mark.parametrize("given", ["odrer", "lettre"])
def test_a_mistyped_agent_suggests_the_near_one(url: str, given: str) -> None:
    """Or all that there are."""
    meant = {"odrer": "order", "lettre": "letter"}[given]
    assert f"Did you mean {meant}? [not_found]" in limpet("start", given).stderr
    assert "Did you mean letter, order? [not_found]" in limpet("start", "zzz").stderr


def test_a_decision_says_that_its_run_does_not_go_on_by_itself(url: str) -> None:
    """It waits for an operator beside the person; the next command is said there and on its page."""
    [request] = told("inbox")
    assert limpet("pause", "letter-1").exit_code == 0
    done = limpet("answer", request["id"], "red", "--by", "ann").stdout
    assert done.splitlines() == [
        f"Request {request['id']} answered by ann.",
        "letter-1 needs an operator (operator:paused).",
        "next: limpet resume letter-1",
    ]
    assert "next: limpet resume letter-1" in limpet("show", "letter-1").stdout


def test_what_was_decided_waits_for_a_worker(url: str) -> None:
    """And not for the person any more; a live one that serves it is not waited for."""
    [request] = told("inbox")
    done = limpet("answer", request["id"], "red", "--by", "ann")
    assert done.stdout == f"Request {request['id']} answered by ann.\n{UNSERVED}"
    assert told("runs", "--waiting")[0]["waits_for"] == told("show", "letter-1")["waits_for"] == "worker:letter 1"
    said = limpet("show", "letter-1").stdout
    assert said.endswith("next: limpet worker MODULE:ATTRIBUTE  (no live worker serves letter 1)\n")
    with sync.open(url, agents=[letter]) as app:
        while not app.inbox():
            app.runs()
        assert "no live worker" not in limpet("reject", app.inbox()[0].id, "--because", "too red").stdout


def test_a_run_whose_worker_died_waits_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its lease is over; that is said, and what to type."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    monkeypatch.setenv("LIMPET_URL", url)
    created = b.RunCreated(agent="a", agent_version="1", input=inline(None))

    async def die() -> None:
        async with open_store(url) as store:
            await store.create("r1", created, actor="test")
            await store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=1)
            await store.claim("w1", limit=1)

    asyncio.run(die())
    [found] = told("runs")
    assert (found["status"], found["waits_for"]) == ("running", "worker:a 1")
    said = limpet("show", "r1").stdout
    assert said.endswith("next: limpet worker MODULE:ATTRIBUTE  (its worker died, and no live worker serves a 1)\n")
    assert told("workers")[0]["is_live"] is False

    async def come() -> None:
        async with open_store(url) as store:
            await store.register(WorkerRow(id="w2", agents={"a": ("1",)}), lease=3_600_000_000)

    asyncio.run(come())
    assert told("show", "r1")["waits_for"] is None


def test_resuming_what_is_completed_says_that_it_stays_so(url: str) -> None:
    """Nothing goes on; braces in a signal's name are no places to fill in."""
    told("signal", "letter-1", "{run}")
    assert limpet("signal", "letter-1", "{x}").stdout == "Sent {x} to letter-1.\n"
    [request] = told("inbox")
    told("answer", request["id"], "blue")
    with sync.open(url, agents=[letter]) as app:
        assert app.get("letter-1").result(timeout="30s") == "ann"
    assert limpet("resume", "letter-1").stdout == "letter-1 has already completed.\n"
