"""The agent's working state in JSON, with the field names that agents use."""

import json
from typing import Any

import pytest
from msgspec import UNSET, Raw

from limpet.errors import InvalidValue
from limpet.events import Artifact, Constraints, Fact, Limits, PlanItem
from limpet.state import AgentState

# A state as authors of agents write it.
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
    """Return a state as JSON text."""
    return json.dumps(fields)


def test_an_external_state_is_read_and_written_unchanged() -> None:
    assert json.loads(AgentState.from_json(WRITTEN).to_json()) == json.loads(WRITTEN)


def test_every_field_of_an_external_state_is_read() -> None:
    assert AgentState.from_json(WRITTEN) == AgentState(
        goal="Deploy service X to staging",
        constraints=Constraints(human_in_the_loop={"required_for_risk_levels": ["write_local", "external_action"]}),
        budget=Limits(max_steps=20, max_wall_time_ms=300000, max_llm_tokens=200000, max_artifact_bytes_in_context=8000),
        plan=("Check current status", "Collect config", "Apply changes", "Verify again"),
        known_facts=(Fact(key="service", value=Raw(b'"X"'), source="user"),),
        open_questions=("Which namespace should we deploy to?",),
        artifacts=(Artifact(artifact_id="log_123", type="tool_result.logs", summary="nginx error log", bytes=48231),),
        risk_flags=("budget_pressure",),
    )


def test_an_empty_state_is_an_empty_object() -> None:
    assert (AgentState().to_json(), AgentState.from_json(b"{}")) == (b"{}", AgentState())


def test_the_plan_status_is_a_separate_field() -> None:
    """The plan stays a list of strings."""
    state = AgentState(plan=("look", "tell"), plan_status=("done", "doing"))
    assert json.loads(state.to_json()) == {"plan": ["look", "tell"], "plan_status": ["done", "doing"]}


def test_a_plan_that_is_all_pending_has_no_status() -> None:
    """Equivalent states have one form."""
    assert AgentState.from_json(text(plan=["a", "b"], plan_status=["pending", "pending"])) == AgentState(
        plan=("a", "b")
    )


def test_empty_data_is_omitted() -> None:
    """Equivalent states have one form."""
    assert AgentState.from_json('{"data": { }}').data is UNSET


@pytest.mark.parametrize(
    ("given", "kept"), [("null", b"null"), ("[]", b"[]"), ('{"b": 1, "a": {"z": 1e2}}', b'{"a":{"z":100.0},"b":1}')]
)
def test_data_is_kept_as_canonical_json(given: str, kept: bytes) -> None:
    """The data may have any shape."""
    assert AgentState.from_json(f'{{"data": {given}}}').data == Raw(kept)


def test_an_artifact_can_be_empty() -> None:
    assert AgentState.from_json(text(artifacts=[ARTIFACT | {"bytes": 0}])).artifacts[0].bytes == 0


@pytest.mark.parametrize("value", ["null", "0", "false", '""', '{"deep": [1, 2.5]}'])
def test_a_fact_can_be_any_value(value: str) -> None:
    state = AgentState.from_json(f'{{"known_facts": [{{"key": "k", "value": {value}}}]}}')
    assert json.loads(bytes(state.known_facts[0].value)) == json.loads(value)


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ("[]", "$"),
        ("{", "$"),
        ('{"goal": NaN}', "$"),
        (text(goal=1), "$.goal"),
        (text(aim="x"), "$"),
        (text(known_facts=[{"key": "k"}]), "$.known_facts[0]"),
        (text(known_facts=[{"key": "k", "value": 1, "since": 2}]), "$.known_facts[0]"),
        (text(plan=["a"], plan_status=["finished"]), "$.plan_status[0]"),
        (text(plan=["a", "b"], plan_status=["done"]), "$.plan_status"),
        (text(plan_status=["done"]), "$.plan_status"),
        (text(known_facts=[{"key": "k", "value": 1}, {"key": "k", "value": 2}]), "$.known_facts"),
        (text(known_facts=[{"key": "", "value": 1}]), "$.known_facts"),
        (text(open_questions=["q", "q"]), "$.open_questions"),
        (text(open_questions=[""]), "$.open_questions"),
        (text(artifacts=[ARTIFACT, ARTIFACT]), "$.artifacts"),
        (text(artifacts=[ARTIFACT | {"bytes": -1}]), "$.artifacts"),
        (text(risk_flags=["f", "f"]), "$.risk_flags"),
        (text(risk_flags=["f"], risk_details={"g": "why"}), "$.risk_details"),
        (text(question_steps={"q": 1}), "$.question_steps"),
        (text(constraints={"human_in_the_loop": []}), "$.constraints.human_in_the_loop"),
    ],
)
def test_an_invalid_state_is_refused(data: str, path: str) -> None:
    """Unknown fields, wrong types, duplicates and a plan without all its statuses are refused."""
    with pytest.raises(InvalidValue) as caught:
        AgentState.from_json(data)
    assert caught.value.path == path


def test_data_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(InvalidValue, match="64 levels"):
        AgentState.from_json('{"data": ' + "[" * 64 + "]" * 64 + "}")


def test_items_pair_the_plan_with_its_status() -> None:
    state = AgentState(plan=("a", "b"), plan_status=("done", "pending"))
    assert state.items == (PlanItem(item="a", status="done"), PlanItem(item="b"))


def test_items_of_a_fresh_plan_are_pending() -> None:
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
def test_the_position_is_the_item_in_progress_or_the_next_one(statuses: Any, position: int | None) -> None:
    """An item in progress comes before the next pending one."""
    assert AgentState(plan=("a", "b", "c"), plan_status=statuses).position == position


def test_a_state_without_a_plan_has_no_position() -> None:
    assert AgentState().position is None
