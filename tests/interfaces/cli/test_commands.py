"""Output of the commands, for people and for programs, and their exit codes."""

import re
import subprocess
from pathlib import Path

import pytest

import limpet as package
from limpet import sync
from limpet.service import json_views
from tests.interfaces.cli.run_cli import LIMPET, limpet, limpet_json, lines, until_parked
from tests.interfaces.cli.shop import both, letter, order
from tests.servers import preloaded


def test_runs_lists_the_newest_first(url: str) -> None:
    """One line per run, with its position and what it waits for."""
    [head, *rows] = lines(limpet("runs").stdout)
    assert head == ["run", "agent", "status", "position", "age", "waits for", "goal"]
    assert [row[:3] for row in rows] == [
        ["order-2", "order 1", "pending"],
        ["order-1", "order 1", "failed"],
        ["letter-1", "letter 1", "waiting"],
    ]
    assert rows[0][-1] == "worker:order 1"
    assert rows[1][3:] == ["step 1 of 3", rows[1][4], "sell dust"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--failed"], ["order-1"]),
        (["--waiting"], ["letter-1"]),
        (["--status", "pending"], ["order-2"]),
        (["--agent", "order"], ["order-2", "order-1"]),
        (["--last", "1"], ["order-2"]),
        (["--status", "cancelled"], []),
    ],
)
def test_runs_filters_by_status_agent_and_number(url: str, words: list[str], expected: list[str]) -> None:
    assert [each["id"] for each in limpet_json("runs", *words)] == expected


def test_show_prints_a_failed_run(url: str) -> None:
    """Steps with attempts and errors, the last error, and the next command."""
    said = limpet("show", "order-1").stdout
    assert ["status", "failed"] in lines(said)
    assert ["goal", "sell dust"] in lines(said)
    assert re.search(r"^1  price/shop_price#1 .*▒ .* failed\n   ValueError: dust is not for sale$", said, re.MULTILINE)
    assert "last error (step 1): ValueError: dust is not for sale\n" in said
    assert re.search(r"shop\.py:\d+ in shop_price\s+raise ValueError\(", said)
    assert re.search(r"^  handled +failed the run *$", said, re.MULTILINE)
    assert said.endswith("next: limpet resume order-1  (after fixing the cause: calls shop_price again)\n")


def test_show_prints_the_request_of_a_waiting_run(url: str) -> None:
    """The question, its addressee, and how to answer. A prefix of the run id is enough."""
    said = limpet("show", "lett").stdout
    [request] = limpet_json("show", "letter-1")["requests"]
    assert f"asks Which colour? [red | blue]\n     {request['id']}, to sales\n" in said
    assert f"\nnext: limpet answer {request['id']}\n" in said
    assert said.endswith("next: limpet worker MODULE:ATTRIBUTE  (no live worker would continue the run)\n")


def test_json_of_a_run_has_the_documented_fields(url: str) -> None:
    found, forms = limpet_json("show", "order-1"), json_views.forms()
    [request] = limpet_json("show", "letter-1")["requests"]
    given = {"Report": found, "RunInfo": limpet_json("runs")[0], "StepInfo": found["steps"][0], "Request": request}
    for name, plain in {**given, "ErrorInfo": found["error"], "FailureInfo": found["steps"][0]["error"]}.items():
        assert set(plain) == set(json_views.fields_of(forms[name]))
    assert (found["error"]["step"], found["error"]["tool"], found["error"]["attempts"]) == (1, "shop_price", 1)
    error = found["steps"][0]["error"]
    assert (error["type"], error["message"]) == ("builtins.ValueError", "dust is not for sale")


def test_commands_suggested_by_show_work(url: str) -> None:
    """Answer, reject and resume exit with 0, and a decision is final."""
    [request] = limpet_json("show", "letter-1")["requests"]
    wrong = limpet("answer", request["id"], "green")
    assert (wrong.exit_code, "[invalid_answer]" in wrong.stderr) == (1, True)
    assert limpet("answer", request["id"], "red", "--by", "ann").exit_code == 0
    with sync.open(url, agents=[letter]) as app:
        until_parked(app)
    [second] = limpet_json("show", "letter-1")["requests"]
    said = limpet("show", "letter-1").stdout
    assert f"shop_mail(receipt='ann')\n     {second['id']}" in said
    assert f"\nnext: limpet approve {second['id']}\nnext: limpet reject {second['id']} --because …\n" in said
    assert limpet("reject", second["id"], "--because", "too red").exit_code == 0
    again = limpet("approve", second["id"])
    assert (again.exit_code, "[already_answered]" in again.stderr) == (1, True)
    with sync.open(url, agents=[letter]) as app:
        [decided] = [each for each in app.log("letter-1") if each.body.get("decision") == "rejected"]
    assert decided.body["via"] == "cli"
    assert limpet("resume", "order-1").exit_code == 0
    assert limpet_json("show", "order-1")["run"]["status"] == "pending"


@pytest.mark.parametrize(("given", "meant"), [("order", "order-2, order-1"), ("odrer-1", "order-1, order-2")])
def test_an_unknown_run_id_suggests_similar_ids(url: str, given: str, meant: str) -> None:
    """Also an ambiguous prefix, which is called so."""
    done = limpet("show", given)
    ambiguous, unknown = "Pass more of the id: several runs begin with this.", "Correct the id, or pass the right store"
    fix = ambiguous if given == "order" else f"{unknown} with --url or LIMPET_URL."
    why = f"No run '{given}'. {fix} Did you mean {meant}?"
    assert (done.exit_code, done.stderr) == (1, f"error: {why} [not_found]\n")
    assert "Did you mean" not in limpet("show", "zzz").stderr


@pytest.mark.parametrize("words", [["runs"], ["show", "x"]])
def test_reading_commands_create_no_store(tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has a hint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_URL", raising=False)
    done = limpet(*words)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: No store at sqlite:///limpet.db. Limpet did not create one. Pass --url")
    assert list(tmp_path.iterdir()) == []


def test_colour_is_printed_only_for_terminals_and_without_no_color(url: str) -> None:
    assert "\x1b" not in limpet("runs").stdout
    assert "\x1b" in limpet("runs", FORCE_COLOR="1").stdout
    assert "\x1b" not in limpet("runs", FORCE_COLOR="1", NO_COLOR="1").stdout


def test_escape_sequences_in_data_are_removed(url: str) -> None:
    with sync.open(url, agents=both, worker=False) as app:
        app.start(order, "book", id="order-3", user="\x1b[31m\nann")
    assert " [31m ann" in limpet("show", "order-3").stdout


def test_the_installed_command_works_and_reports_wrong_usage(url: str) -> None:
    done = subprocess.run([LIMPET, "runs", "--failed", "--url", url], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, lines(done.stdout)[1][0]) == (0, "", "order-1")
    for words in ([], ["nothing"], ["show"], ["runs", "--status", "odd"], ["runs", "--last", "0"]):
        assert preloaded.run([LIMPET, *words]).returncode == 2


def test_inbox_shows_the_context_and_choices_of_a_request(url: str) -> None:
    """It filters by addressee, age and run; a prefix of the run id is enough."""
    said = limpet("inbox").stdout
    assert said.startswith("Which colour? [red | blue]\n")
    for expected in (
        ["run", "letter-1 of letter"],
        ["input", '"ann"'],
        ["answer", "red: The agent continues with 'red'."],
    ):
        assert expected in lines(said)
    assert [each["run"] for each in limpet_json("inbox", "--to", "sales", "--run", "lett")] == ["letter-1"]
    assert (
        limpet_json("inbox", "--to", "nobody")
        == limpet_json("inbox", "--older-than", "1d")
        == limpet_json("inbox", "--risk", "x")
        == []
    )
    assert limpet("inbox", "--to", "nobody").stdout == "no open requests\n"
    assert limpet_json("inbox")[0]["context"]["choices"][0] == {
        "answer": "red",
        "effect": "The agent continues with 'red'.",
    }


def test_approve_validates_edited_arguments(url: str) -> None:
    """`--standing` applies only to tools."""
    [request] = limpet_json("show", "letter-1")["requests"]
    assert limpet("approve", request["id"], "--standing").exit_code == 1
    limpet("answer", request["id"], "red", "--by", "ann")
    with sync.open(url, agents=[letter]) as app:
        until_parked(app)
    [second] = limpet_json("inbox")
    assert limpet("approve", second["id"], "--args", "[1]").exit_code == 2
    assert limpet("approve", second["id"], "--args", '{"receipt": 7}').exit_code == 1
    done = limpet("approve", second["id"], "--args", '{"receipt": "bob"}', "--standing", "--by", "ann")
    assert (done.exit_code, "all later calls" in done.stdout) == (0, True)


def test_state_diff_and_compare_print_text_and_json(url: str) -> None:
    found = limpet_json("state", "order-1", "--before", "1")
    assert (found["state"]["goal"], found["next"], found["step"]) == ("sell dust", "price", 0)
    assert "goal      sell dust\n" in limpet("state", "order-1", "--before", "1").stdout
    said = limpet("diff", "order-1", "1").stdout
    assert said.startswith("step 1 called shop_price(item='dust'); failed: ValueError: ")
    assert limpet("compare", "order-1", "letter-1").stdout.startswith("the first 0 acts are the same, then:\n")
    assert limpet_json("compare", "order-1", "order-1")["divergence"] is None
    wrong = limpet("state", "order-1", "--before", "9")
    assert (wrong.exit_code, "[not_found]" in wrong.stderr) == (1, True)


def test_doctor_lists_what_tools_and_agents_leave_open() -> None:
    """Each line names the tool and the code to add."""
    words, root = [LIMPET, "doctor", "tests.interfaces.cli.shop:both"], Path(__file__).parents[3]
    done = preloaded.run(words, cwd=root)
    assert done.returncode == 0
    found = {each[2] for each in lines(done.stdout) if each[:2] == ["warn", "tools"]}
    says = "tool shop_charge (effect 'once') has no timeout, no risk, no verify, no compensation. Add timeout=\"30s\"; "
    assert any(each.startswith(says) for each in found)
    agents = {each[2] for each in lines(done.stdout) if each[:2] == ["warn", "agents"]}
    assert any('has no deadline, so a run may never end. Add deadline="1h"' in each for each in agents)


def test_a_run_is_exported_loaded_and_verified_in_another_store(url: str, tmp_path: Path) -> None:
    """Saved heads of the first store do not match the other."""
    heads, bundle, other = tmp_path / "heads", tmp_path / "run.zip", f"sqlite:///{tmp_path}/other.db"
    assert limpet_json("verify", "--save-heads", str(heads))["runs"] == 3
    assert limpet("verify", "--heads", str(heads)).stdout.endswith("3 saved heads checked\n")
    assert limpet("export", "order-1", str(bundle)).stdout == f"Exported order-1 to {bundle}.\n"
    assert limpet("load", str(bundle), "--url", other).stdout == "Loaded order-1.\n"
    assert limpet("verify", "order-1", "--url", other).exit_code == 0
    gone = limpet("verify", "--heads", str(heads), "--url", other)
    assert (gone.exit_code, "[tampered]" in gone.stderr) == (1, True)
    assert limpet("load", str(heads), "--url", other).exit_code == 1
    assert limpet("export", "nothing", str(bundle)).exit_code == 1


def test_state_and_diff_hide_credentials(tmp_path: Path) -> None:
    """In facts, arguments, results, answers and comparisons."""
    secret = f"ghp_{'a1B2' * 9}"

    @package.tool(effect="none", name="credential_read")
    async def read(token: str) -> str:
        return token

    @package.agent(name="credential_reader")
    async def reader(run: package.Run, token: str) -> None:
        await run.patch(facts={"token": await run.step(read, token)})
        await run.decide("Which?", choose=token, over=[token], because=token)
        await run.ask(f"Is {token} right?", default=True, expires="1us")

    url = f"sqlite:///{tmp_path}/secret.db"
    with sync.open(url, agents=[reader]) as app:
        for run in ("one", "two"):
            app.run(reader, secret if run == "one" else "none", id=run)
    for words in (["state", "one"], ["diff", "one"], ["diff", "one", "1"], ["compare", "one", "two"], ["steps", "one"]):
        for more in ([], ["--json"]):
            done = limpet(*words, *more, "--url", url)
            assert (done.exit_code, secret in done.stdout) == (0, False), (words, done.stdout)
            assert "credential_read" in done.stdout or words[0] == "compare"
