"""Queries across runs on the command line: decisions, calls, errors, messages, agents, workers and prompts."""

import re
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

import limpet as package
from limpet import sync, testing
from limpet.service import json_views
from tests.interfaces.cli.run_cli import LIMPET, limpet, limpet_json, lines, terminal

LONG = "the parcel arrived broken and wet, the photos show it, and the sum is below what needs a second look"


@package.tool(effect="idempotent", name="across_refund", risk="external_action")
def refund(order: str, cents: int) -> str:
    """Pays back what is not too much."""
    if cents > 900:
        raise package.Permanent(f"{cents} is too much")
    return f"receipt-{order}"


@package.agent(name="across_support")
async def support(run: package.Run, cents: int) -> str:
    """Decides, and pays."""
    await run.patch(goal=f"settle {cents}", plan=["pay"], facts={"cents": cents})
    await run.decide("refund?", choose="full", over=["none", "full"], because=f"{LONG} ({cents})")
    return await run.step(refund, f"o-{cents}", cents)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with refunds, one of them too large, and a conversation with a model."""
    folder = tmp_path_factory.mktemp("across")
    model = testing.ScriptedModel("The harbour is closed.", "It opens at nine.\nCome early.")
    chat = package.llm_agent("across_chat", model=model, instructions="Talk of harbours.")
    with sync.open(f"sqlite:///{folder}/limpet.db", agents=[support, chat]) as app:
        for cents in (50, 150):
            app.run(support, cents, id=f"refund-{cents}")
        with pytest.raises(package.RunFailed):
            app.run(support, 950, id="refund-950")
        app.run(chat, "Is it open?", id="talk-1", conversation="chat-7", session="ann-1", user="ann")
        app.run(chat, "And tomorrow?", id="talk-2", conversation="chat-7", session="ann-1", user="ann")
    return folder


@pytest.fixture
def store(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a copy of the store."""
    copytree(filled, tmp_path, dirs_exist_ok=True)
    found = f"sqlite:///{tmp_path}/limpet.db"
    monkeypatch.setenv("LIMPET_URL", found)
    return found


def test_calls_filters_by_arguments_and_shows_the_decision(store: str) -> None:
    """All conditions must hold."""
    words = ["calls", "across_refund", "--where", "cents>100", "--since", "7d"]
    [head, *rows] = lines(limpet(*words).stdout)
    assert head == ["run", "step", "age", "call", "status", "because"]
    assert [(row[0], row[3], row[4], row[5]) for row in rows] == [
        ("refund-950", "across_refund(cents=950, order='o-950')", "failed", f"refund? full: {LONG} (950)"),
        ("refund-150", "across_refund(cents=150, order='o-150')", "completed", f"refund? full: {LONG} (150)"),
    ]
    [found] = limpet_json(*words, "--where", "order=o-150", "--agent", "across_support")
    assert (found["step"]["result"], found["decision"]["because"]) == ("receipt-o-150", f"{LONG} (150)")
    assert limpet("calls", "across_refund", "--agent", "across_chat").stdout == "no matching calls\n"
    wrong = limpet("calls", "--where", "cents")
    assert (wrong.exit_code, "invalid condition" in wrong.stderr) == (2, True)


def test_decisions_and_errors_are_listed_newest_first(store: str) -> None:
    """Each error shows how it was handled."""
    assert [row[0] for row in lines(limpet("decisions", "BROKEN").stdout)] == [
        "run",
        "refund-950",
        "refund-150",
        "refund-50",
    ]
    assert [each["run"] for each in limpet_json("decisions", "(50)", "--agent", "across_support")] == ["refund-50"]
    assert limpet("decisions", "nowhere").stdout == "no decisions\n"
    found = limpet_json("errors", "--since", "1d")
    assert [(each["run"], each["handled"]) for each in found] == [("refund-950", "failed the run")]
    assert [row[-1] for row in lines(limpet("errors").stdout)][1:] == ["failed the run"]
    assert limpet_json("errors", "--run", "refund-950") == found
    assert limpet("errors", "--run", "refund-50").stdout == "no errors\n"
    said = limpet("errors", "--run", "refund-950").stdout
    assert re.search(r"^  at .*test_queries\.py:\d+ in .*\n +.*await run\.step\(", said, re.MULTILINE)
    assert limpet("errors", "--agent", "across_chat").stdout == "no errors\n"


def test_search_finds_text_in_runs_and_conversations(store: str) -> None:
    """An unknown kind suggests similar ones."""
    found = limpet_json("search", "HARBOUR", "--kind", "message.added")
    assert [(each["run"], each["kind"]) for each in found] == [("chat-7", "message.added")]
    rows = lines(limpet("search", "harbour is closed").stdout)
    assert ["chat-7", "message.added"] in [[row[0], row[3]] for row in rows]
    assert limpet("search", "nowhere to be found").stdout == "no matching events\n"
    assert "step.failed" in limpet("search", "x", "--kind", "step.fails").stderr


def test_agents_stats_and_workers_are_listed(store: str) -> None:
    assert lines(limpet("agents").stdout)[2] == ["across_support", "1", "no", "integer", "string"]
    said = limpet("stats").stdout
    assert ["across_support", "0", "0", "0", "2", "1", "0"] in lines(said)
    assert ["all", "0", "0", "0", "4", "1", "0"] in lines(said)
    assert said.endswith("\nopen requests: 0, live workers: 0\n")
    assert limpet("workers").stdout == "no workers\n"
    with sync.open(store, agents=[support]) as app:
        [_, row] = lines(limpet("workers").stdout)
        assert (row[1], row[-1]) == ("live", "across_support 1")
        assert limpet_json("workers")[0]["id"] == row[0] == app.workers()[0].id
        assert lines(limpet("agents").stdout)[2][2] == "yes"


def test_stats_lists_agents_without_a_worker(url: str) -> None:
    """With the command to start one."""
    assert limpet("stats").stdout.endswith(
        "No live worker serves letter, order.\nnext: limpet worker MODULE:ATTRIBUTE\n"
    )


def test_sessions_conversations_and_messages_are_listed(store: str) -> None:
    """A prefix of an id is enough, and a mistyped one suggests a similar one."""
    assert lines(limpet("sessions").stdout)[1][:3] == ["ann-1", "2", "1"]
    assert lines(limpet("conversations", "--session", "ann-1").stdout)[1][:2] == ["chat-7", "4"]
    assert limpet("conversations", "--session", "bob").stdout == "no conversations\n"
    said = re.sub(r"\d{4}-[-:\d ]+ UTC", "TIME", limpet("messages", "chat").stdout)
    assert said.splitlines() == [
        "run talk-1",
        "   2  TIME  user: Is it open?",
        "   3  TIME  assistant (step 1): The harbour is closed.",
        "run talk-2",
        "   4  TIME  user: And tomorrow?",
        "   5  TIME  assistant (step 1): It opens at nine.",
        "Come early.",
    ]
    assert [line[0] for line in lines(limpet("runs", "--conversation", "chat", "--user", "ann").stdout)[1:]] == [
        "talk-2",
        "talk-1",
    ]
    assert limpet("runs", "--conversation", "chat-7", "--user", "bob").stdout == "no runs\n"
    assert limpet("messages", "refund-50.chat").stdout == "no messages\n"
    assert "conversation  chat-7, 4 messages" in limpet("show", "talk-1").stdout
    assert [each["role"] for each in limpet_json("messages", "chat-7", "--last", "1")] == ["assistant"]
    wrong = limpet("messages", "caht-7")
    assert (wrong.exit_code, "No conversation 'caht-7'" in wrong.stderr) == (1, True)
    assert "Did you mean chat-7?" in wrong.stderr


def test_context_and_prompt_are_printed(store: str) -> None:
    """The prompt is exact and gives the reason for each part."""
    assert limpet("context", "refund-50").stdout.splitlines()[:3] == ["goal: settle 50", "status: completed", "at: pay"]
    assert "fact cents = 50" in limpet("context", "refund-50").stdout
    cut = limpet("context", "talk-2", "--max-tokens", "100").stdout.splitlines()
    assert (cut[-1], any(line.startswith("assistant: It opens") for line in cut)) == ("left out: 2 messages", True)
    said = limpet("prompt", "talk-2", "1").stdout
    assert said.startswith("step 1 of talk-2, prompt of ")
    assert "\n  the agent's instructions\n" in said
    assert "\nassistant: The harbour is closed.\n" in said
    assert limpet_json("prompt", "talk-2", "1")["is_exact"]
    wrong = limpet("prompt", "refund-50", "1")
    assert (wrong.exit_code, "No model call" in wrong.stderr) == (1, True)


FORMS: dict[str, list[str]] = {
    "EventView": ["search", "broken"],
    "DecisionInfo": ["decisions"],
    "ErrorInfo": ["errors"],
    "CallInfo": ["calls"],
    "AgentInfo": ["agents"],
    "SessionInfo": ["sessions"],
    "ConversationInfo": ["conversations"],
    "Message": ["messages", "chat-7"],
    "Stats": ["stats"],
    "ContextSlice": ["context", "refund-50"],
    "PromptView": ["prompt", "talk-1", "1"],
}


@pytest.mark.parametrize("name", FORMS)
def test_json_has_the_documented_fields(store: str, name: str) -> None:
    found: Any = limpet_json(*FORMS[name])
    one = found[0] if isinstance(found, list) else found
    assert set(one) == set(json_views.fields_of(json_views.forms()[name]))


TABLES = [words for words in (*FORMS.values(), ["workers"]) if words[0] not in ("context", "prompt", "messages")]


@pytest.mark.parametrize("words", TABLES, ids=" ".join)
def test_tables_fit_a_terminal_of_80_columns(store: str, words: list[str]) -> None:
    """The decision's reason is shown to its end."""
    with sync.open(store, agents=[support]), terminal(LIMPET, *words, LIMPET_URL=store, NO_COLOR="1") as screen:
        shown, code = screen.end()
    assert (code, max(map(len, shown.splitlines())) <= 80) == (0, True), shown
    if words[0] in ("calls", "decisions"):
        assert "(950)" in shown
