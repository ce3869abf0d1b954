"""Scoring runs on the command line: score, change, withdraw, list, filter, and print a dataset."""

import json

from tests.interfaces.cli.run_cli import limpet, limpet_json


def test_runs_and_steps_are_scored_found_and_exported(url: str) -> None:
    """`show` and `log` have the scores, `runs --scored` finds the run, and a dataset has a line for each."""
    run = limpet_json("runs", "--failed")[0]["id"]
    said = limpet("score", run, "quality", "0.2", "--comment", "too slow", "--by", "ann")
    assert said.stdout == f"Scored {run}: quality 0.2 by ann: too slow.\n"
    limpet("score", run, "correct", "true", "--step", "1", "--by", "ben")
    limpet("score", run, "tone", "formal", "--by", "ann")
    shown = limpet("show", run).stdout
    assert "quality 0.2 by ann: too slow" in shown
    assert "correct true of step 1 by ben" in shown
    assert "score.given" in limpet("log", run).stdout
    listed = limpet("scores", "--run", run, "--who", "ann").stdout
    assert "quality" in listed
    assert "correct" not in listed
    found = limpet_json("scores", "--name", "correct")
    assert [(each["value"], each["step"], each["by"], each["via"]) for each in found] == [(True, 1, "ben", "cli")]
    assert [each["id"] for each in limpet_json("runs", "--scored", "quality<0.5")] == [run]
    assert limpet_json("runs", "--scored", "quality>0.5") == []
    lines = [json.loads(line) for line in limpet("scores", "--dataset").stdout.splitlines()]
    assert [(each["name"], each["step"]) for each in lines] == [("tone", None), ("correct", 1), ("quality", None)]
    assert lines[1]["tool"]
    assert (lines[0]["input"], "dust" in lines[0]["error"], lines[0]["output"]) == ("dust", True, None)
    assert limpet("unscore", run, "tone", "--by", "ann").stdout == f"Withdrew tone of {run}.\n"
    again = limpet("unscore", run, "tone", "--by", "ann")
    assert again.exit_code == 1
    assert "No score 'tone'" in again.stderr
    assert len(limpet("scores", "--dataset").stdout.splitlines()) == 2


def test_a_wrong_score_or_condition_is_refused(url: str) -> None:
    run = limpet_json("runs")[0]["id"]
    for words in (["score", run, "quality"], ["score", run, "quality", "[1]"], ["runs", "--scored", "quality<"]):
        done = limpet(*words)
        assert done.exit_code != 0
        assert "Traceback" not in done.stderr
    assert limpet("scores").stdout == "No scores.\n"
