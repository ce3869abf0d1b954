"""The agent's working state in JSON, under the names that agents already use."""

import json
from typing import Any

import pytest
from msgspec import UNSET, Raw

from limpet.errors import InvalidValue
from limpet.events import Artifact, Constraints, Fact, HumanInTheLoop, Limits, PlanItem
from limpet.state import AgentState, from_json, to_json

# A state as the authors of agents write it, word for word.
WRITTEN = """
{
"goal": "Deploy service X to staging",
"constraints": {
"human_in_the_loop": { "required_for_risk_levels": ["write_local", "external_action"] }
},
"budget": {
"max_steps": 20,
"max_wall_time_ms": 300000,
"max_llm_tokens": 200000,
"max_artifact_bytes_in_context": 8000
},
"plan": ["Check current status", "Collect config", "Apply changes", "Verify again"],
"known_facts": [{ "key": "service", "value": "X", "source": "user" }],
"open_questions": ["Which namespace should we deploy to?"],
"artifacts": [{ "artifact_id": "log_123", "type": "tool_result.logs", "summary": "nginx error log", "bytes": 48231 }],
"risk_flags": ["budget_pressure"]
}
"""

ARTIFACT = {"artifact_id": "a", "type": "t", "summary": "s", "bytes": 1}


def text(**fields: Any) -> str:
    """A state as JSON text."""
    return json.dumps(fields)


def test_a_state_written_elsewhere_comes_back_equal() -> None:
    """What users already have is read and written back as it was."""
    assert json.loads(to_json(from_json(WRITTEN))) == json.loads(WRITTEN)


def test_a_state_written_elsewhere_is_read_into_its_parts() -> None:
    """Every field of it means something to us."""
    assert from_json(WRITTEN) == AgentState(
        goal="Deploy service X to staging",
        constraints=Constraints(
            human_in_the_loop=HumanInTheLoop(required_for_risk_levels=("write_local", "external_action"))
        ),
        budget=Limits(max_steps=20, max_wall_time_ms=300000, max_llm_tokens=200000, max_artifact_bytes_in_context=8000),
        plan=("Check current status", "Collect config", "Apply changes", "Verify again"),
        known_facts=(Fact(key="service", value=Raw(b'"X"'), source="user"),),
        open_questions=("Which namespace should we deploy to?",),
        artifacts=(Artifact(artifact_id="log_123", type="tool_result.logs", summary="nginx error log", bytes=48231),),
        risk_flags=("budget_pressure",),
    )


def test_an_empty_state_is_an_empty_object() -> None:
    """What is not there is left out."""
    assert (to_json(AgentState()), from_json(b"{}")) == (b"{}", AgentState())


def test_the_status_of_the_plan_stands_beside_it() -> None:
    """The plan stays a list of strings."""
    state = AgentState(plan=("look", "tell"), plan_status=("done", "doing"))
    assert json.loads(to_json(state)) == {"plan": ["look", "tell"], "plan_status": ["done", "doing"]}


def test_a_plan_of_which_nothing_is_done_needs_no_status() -> None:
    """Two ways to say the same become one."""
    assert from_json(text(plan=["a", "b"], plan_status=["pending", "pending"])) == AgentState(plan=("a", "b"))


def test_empty_data_is_no_data() -> None:
    """Two ways to say the same become one."""
    assert from_json('{"data": { }}').data is UNSET


@pytest.mark.parametrize(
    ("given", "kept"), [("null", b"null"), ("[]", b"[]"), ('{"b": 1, "a": {"z": 1e2}}', b'{"a":{"z":100.0},"b":1}')]
)
def test_data_is_kept_as_canonical_json(given: str, kept: bytes) -> None:
    """It is the user's own, of whatever shape."""
    assert from_json(f'{{"data": {given}}}').data == Raw(kept)


def test_an_artifact_may_be_empty() -> None:
    """No bytes is a size."""
    assert from_json(text(artifacts=[ARTIFACT | {"bytes": 0}])).artifacts[0].bytes == 0


@pytest.mark.parametrize("value", ["null", "0", "false", '""', '{"deep": [1, 2.5]}'])
def test_a_fact_may_be_any_value(value: str) -> None:
    """Nothing too is something to know."""
    state = from_json(f'{{"known_facts": [{{"key": "k", "value": {value}}}]}}')
    assert json.loads(bytes(state.known_facts[0].value)) == json.loads(value)


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ("[]", "$"),
        ("{", "$"),
        ('{"goal": NaN}', "$"),
        (text(goal=1), "$"),
        (text(aim="x"), "$"),
        (text(known_facts=[{"key": "k"}]), "$"),
        (text(known_facts=[{"key": "k", "value": 1, "since": 2}]), "$"),
        (text(plan=["a"], plan_status=["finished"]), "$"),
        (text(plan=["a", "b"], plan_status=["done"]), "$.plan_status"),
        (text(plan_status=["done"]), "$.plan_status"),
        (text(known_facts=[{"key": "k", "value": 1}, {"key": "k", "value": 2}]), "$.known_facts"),
        (text(known_facts=[{"key": "", "value": 1}]), "$.known_facts"),
        (text(open_questions=["q", "q"]), "$.open_questions"),
        (text(open_questions=[""]), "$.open_questions"),
        (text(artifacts=[ARTIFACT, ARTIFACT]), "$.artifacts"),
        (text(artifacts=[ARTIFACT | {"bytes": -1}]), "$.artifacts"),
        (text(risk_flags=["f", "f"]), "$.risk_flags"),
    ],
)
def test_a_state_that_no_patch_leads_to_is_refused(data: str, path: str) -> None:
    """Unknown fields, wrong types, repetitions, and a plan without its statuses."""
    with pytest.raises(InvalidValue) as caught:
        from_json(data)
    assert caught.value.path == path


def test_data_that_is_too_deep_is_refused_with_its_place() -> None:
    """The strict rules hold inside the state too."""
    with pytest.raises(InvalidValue, match="64 levels"):
        from_json('{"data": ' + "[" * 64 + "]" * 64 + "}")


def test_items_pair_the_plan_with_its_status() -> None:
    """One value for each line."""
    state = AgentState(plan=("a", "b"), plan_status=("done", "pending"))
    assert state.items == (PlanItem(item="a", status="done"), PlanItem(item="b"))


def test_items_of_a_fresh_plan_are_pending() -> None:
    """Where no status is kept, nothing was begun."""
    assert AgentState(plan=("a",)).items == (PlanItem(item="a", status="pending"),)


@pytest.mark.parametrize(
    ("statuses", "position"),
    [
        ((), 0),
        (("done", "pending", "pending"), 1),
        (("done", "pending", "doing"), 2),
        (("skipped", "done", "pending"), 2),
        (("done", "done", "skipped"), None),
    ],
)
def test_the_position_is_what_is_being_done_or_comes_next(statuses: Any, position: int | None) -> None:
    """What is being done counts before what comes next."""
    assert AgentState(plan=("a", "b", "c"), plan_status=statuses).position == position


def test_a_state_without_a_plan_has_no_position_in_it() -> None:
    """Nothing comes next where nothing was planned."""
    assert AgentState().position is None
