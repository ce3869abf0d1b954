"""Patches: applied completely or not at all, computed between two states, and described in text."""

import re
from typing import Any

import pytest
from msgspec import UNSET, Raw

from limpet.errors import InvalidPatch
from limpet.events import Artifact, Constraints, Fact, Limits, PlanItem, Revision, RiskFlag, StatePatch, inline
from limpet.events.bodies import ArtifactStored
from limpet.state import AgentState, apply, describe_patch, diff
from limpet.state.patch import Working


def name_of(value: object) -> str:
    """Return the id of a test case, the same in every process."""
    return re.sub(r" object at 0x\w+", "", str(value))


def fact(key: str, value: bytes = b"1", **more: Any) -> Fact:
    """Return a fact."""
    return Fact(key=key, value=Raw(value), **more)


def artifact(artifact_id: str, size: int = 1) -> Artifact:
    """Return an artifact."""
    return Artifact(artifact_id=artifact_id, type="logs", summary="errors", bytes=size)


LOOP = Constraints(human_in_the_loop={"required_for_risk_levels": ["write_local"]})
FULL = AgentState(
    goal="settle",
    constraints=LOOP,
    budget=Limits(max_steps=20),
    plan=("look", "decide", "tell"),
    plan_status=("done", "doing", "pending"),
    known_facts=(fact("a"), fact("b"), fact("c")),
    open_questions=("why?", "who?"),
    artifacts=(artifact("x"), artifact("y")),
    risk_flags=("slow", "costly"),
    data=Raw(b'{"n":1}'),
)


def patched(**parts: Any) -> AgentState:
    """Return the full state after a patch."""
    return apply(FULL, StatePatch(**parts))


# Applying


def test_an_empty_patch_changes_nothing() -> None:
    """The order of entries stays, too."""
    assert patched() == FULL


@pytest.mark.parametrize(
    ("parts", "field", "expected"),
    [
        ({"goal": "other"}, "goal", "other"),
        ({"goal": ""}, "goal", ""),
        ({"constraints": Constraints()}, "constraints", Constraints()),
        ({"constraints": None}, "constraints", None),
        ({"budget": Limits(max_cost=1.0)}, "budget", Limits(max_cost=1.0)),
        ({"budget": None}, "budget", None),
        ({"data": Raw(b"[1]")}, "data", Raw(b"[1]")),
        ({"data": Raw(b"{}")}, "data", UNSET),
        ({"plan": ()}, "plan", ()),
        ({"plan": (PlanItem(item="new"),)}, "plan", ("new",)),
        ({"plan": (PlanItem(item="new"),)}, "plan_status", ()),
        ({"plan": (PlanItem(item="new", status="skipped"),)}, "plan_status", ("skipped",)),
        ({"revise": (Revision(index=1, status="done"),)}, "plan_status", ("done", "done", "pending")),
        ({"facts": (fact("d"),)}, "known_facts", (fact("a"), fact("b"), fact("c"), fact("d"))),
        ({"facts": (fact("a", b"2"),)}, "known_facts", (fact("b"), fact("c"), fact("a", b"2"))),
        ({"retract": ("b",)}, "known_facts", (fact("a"), fact("c"))),
        ({"retract": ("a",), "facts": (fact("a"),)}, "known_facts", (fact("b"), fact("c"), fact("a"))),
        ({"questions": ("when?",)}, "open_questions", ("why?", "who?", "when?")),
        ({"questions": ("why?",)}, "open_questions", ("who?", "why?")),
        ({"answered": {"why?": "because"}}, "open_questions", ("who?",)),
        ({"artifacts": (artifact("z"),)}, "artifacts", (artifact("x"), artifact("y"), artifact("z"))),
        ({"artifacts": (artifact("x", 9),)}, "artifacts", (artifact("y"), artifact("x", 9))),
        ({"discard": ("x",)}, "artifacts", (artifact("y"),)),
        ({"artifacts": (artifact("z", 0),)}, "artifacts", (artifact("x"), artifact("y"), artifact("z", 0))),
        ({"flags": ("late",)}, "risk_flags", ("slow", "costly", "late")),
        ({"flags": ("slow",)}, "risk_flags", ("costly", "slow")),
        ({"lower": ("slow", "costly")}, "risk_flags", ()),
    ],
    ids=name_of,
)
def test_a_part_of_a_patch_changes_its_field(parts: dict[str, Any], field: str, expected: object) -> None:
    """A part sets, adds, replaces or removes."""
    assert getattr(patched(**parts), field) == expected


def test_a_patch_changes_only_its_own_parts() -> None:
    after = patched(flags=("late",))
    assert diff(after, FULL) == StatePatch(lower=("late",))


def test_a_new_plan_can_be_revised_in_the_same_patch() -> None:
    """Revisions apply to the plan that the patch sets."""
    after = patched(plan=(PlanItem(item="p"), PlanItem(item="q")), revise=(Revision(index=1, status="doing"),))
    assert (after.plan, after.plan_status) == (("p", "q"), ("pending", "doing"))


def test_a_plan_item_can_be_revised_twice() -> None:
    """The last revision applies."""
    after = patched(revise=(Revision(index=2, status="doing"), Revision(index=2, status="done")))
    assert after.plan_status == ("done", "doing", "done")


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"revise": (Revision(index=3, status="done"),)}, "revise", "the plan has no item 3"),
    ({"revise": (Revision(index=-1, status="done"),)}, "revise", "the plan has no item -1"),
    ({"plan": (), "revise": (Revision(index=0, status="done"),)}, "revise", "the plan has no item 0"),
    ({"retract": ("z",)}, "facts", "'z' does not exist"),
    ({"retract": ("a", "a")}, "facts", "contains a duplicate"),
    ({"facts": (fact("z"), fact("z", b"2"))}, "facts", "contains a duplicate"),
    ({"facts": (fact(""),)}, "facts", "contains an empty entry"),
    ({"answered": {"how?": ""}}, "questions", "'how?' does not exist"),
    ({"questions": ("a?", "a?")}, "questions", "contains a duplicate"),
    ({"questions": ("",)}, "questions", "contains an empty entry"),
    ({"discard": ("z",)}, "artifacts", "'z' does not exist"),
    ({"artifacts": (artifact("z"), artifact("z"))}, "artifacts", "contains a duplicate"),
    ({"artifacts": (artifact("z", -1),)}, "artifacts", "a size is negative"),
    ({"lower": ("late",)}, "flags", "'late' does not exist"),
    ({"lower": ("slow", "slow")}, "flags", "contains a duplicate"),
    ({"flags": ("",)}, "flags", "contains an empty entry"),
]


@pytest.mark.parametrize(("parts", "part", "reason"), REFUSED, ids=name_of)
def test_a_patch_with_an_invalid_part_is_refused(parts: dict[str, Any], part: str, reason: str) -> None:
    """The error names the part and the reason."""
    with pytest.raises(InvalidPatch) as caught:
        patched(**parts)
    assert (caught.value.part, caught.value.reason) == (part, reason)


@pytest.mark.parametrize(("parts", "part", "reason"), REFUSED, ids=name_of)
def test_a_refused_patch_changes_nothing(parts: dict[str, Any], part: str, reason: str) -> None:
    """The valid parts are not applied either."""
    working = Working(FULL)
    good: dict[str, Any] = {"goal": "x", "data": Raw(b"1"), "flags": ("new",), "questions": ("new?",), "budget": None}
    with pytest.raises(InvalidPatch):
        working.apply(StatePatch(**(good | parts)))
    assert working.freeze() == FULL


def test_applying_a_patch_does_not_change_the_old_state() -> None:
    before = AgentState(known_facts=(fact("a"),))
    apply(before, StatePatch(retract=("a",)))
    assert before == AgentState(known_facts=(fact("a"),))


# Computing


@pytest.mark.parametrize(
    ("after", "patch"),
    [
        (FULL, StatePatch()),
        (patched(goal="other"), StatePatch(goal="other")),
        (patched(constraints=None), StatePatch(constraints=None)),
        (patched(budget=None), StatePatch(budget=None)),
        (patched(data=Raw(b"{}")), StatePatch(data=Raw(b"{}"))),
        (patched(data=Raw(b"1")), StatePatch(data=Raw(b"1"))),
        (patched(plan=()), StatePatch(plan=())),
        (patched(facts=(fact("d"),)), StatePatch(facts=(fact("d"),))),
        (patched(retract=("a",)), StatePatch(retract=("a",))),
        (patched(facts=(fact("c", b"2"),)), StatePatch(facts=(fact("c", b"2"),))),
        (patched(facts=(fact("b"),)), StatePatch(facts=(fact("c"), fact("b")))),
        (patched(answered={"why?": "so"}), StatePatch(answered={"why?": ""})),
        (patched(discard=("y",)), StatePatch(discard=("y",))),
        (patched(lower=("slow",), flags=("late",)), StatePatch(lower=("slow",), flags=("late",))),
    ],
)
def test_the_patch_between_two_states_has_only_the_changes(after: AgentState, patch: StatePatch) -> None:
    """An unchanged prefix of a list is omitted."""
    assert diff(FULL, after) == patch


def test_the_patch_of_a_plan_with_the_same_items_has_the_new_statuses() -> None:
    """The items that stay as they are, are omitted."""
    revise = (Revision(index=1, status="done"),)
    assert diff(FULL, patched(revise=revise)) == StatePatch(revise=revise)


# Describing


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        ({}, []),
        ({"goal": "other"}, ["goal: 'other' (was 'settle')"]),
        ({"constraints": None}, ["constraints changed"]),
        ({"budget": None}, ["budget changed"]),
        ({"plan": (PlanItem(item="p", status="done"), PlanItem(item="q"))}, ["plan: p (done) → q (pending)"]),
        ({"plan": ()}, ["plan: none"]),
        ({"revise": (Revision(index=2, status="skipped"),)}, ["plan item 3 'tell': skipped"]),
        (
            {"plan": (PlanItem(item="p"),), "revise": (Revision(index=0, status="doing"),)},
            ["plan: p (pending)", "plan item 1 'p': doing"],
        ),
        ({"retract": ("a",)}, ["fact a retracted"]),
        ({"facts": (fact("d", b'"\xc3\xa9"'),)}, ['fact d is new: "é"']),
        ({"facts": (fact("d", source="shop"),)}, ["fact d is new: 1, from shop"]),
        ({"facts": (fact("a", b"2", source="shop"),)}, ["fact a is now 2, was 1, from shop"]),
        ({"answered": {"why?": "so", "who?": ""}}, ["question closed: why? → so", "question closed: who?"]),
        ({"questions": ("when?",)}, ["question opened: when?"]),
        ({"discard": ("x",)}, ["artifact discarded: x"]),
        ({"artifacts": (artifact("z", 9),)}, ["artifact z: errors (9 bytes)"]),
        ({"lower": ("slow",)}, ["flag lowered: slow"]),
        ({"flags": ("late",)}, ["flag raised: late"]),
        ({"data": Raw(b'{"n":2}')}, ['data = {"n":2}']),
    ],
    ids=name_of,
)
def test_a_patch_is_described_line_by_line(parts: dict[str, Any], lines: list[str]) -> None:
    """Each change has a line."""
    assert [change.text for change in describe_patch(FULL, StatePatch(**parts))] == lines


def test_a_first_goal_is_described_without_an_old_value() -> None:
    assert [change.text for change in describe_patch(AgentState(), StatePatch(goal="settle"))] == ["goal: 'settle'"]


# The mutable form


def test_a_stored_artifact_replaces_one_with_the_same_id() -> None:
    """It moves to the end, as with a patch."""
    working = Working(FULL)
    working.put_stored(
        ArtifactStored(name="a#1", artifact_id="x", type="logs", summary="errors", bytes=9, content=inline("…"))
    )
    assert working.freeze().artifacts == (artifact("y"), artifact("x", 9))


def test_a_raised_flag_moves_to_the_end() -> None:
    """A patch does the same."""
    working = Working(FULL)
    working.flag("slow", "3 s")
    assert working.freeze().risk_flags == ("costly", "slow")
    assert working.freeze().flags[-1] == RiskFlag(flag="slow", detail="3 s")


@pytest.mark.parametrize(
    ("before", "limits", "after"),
    [
        (Limits(max_steps=1, max_cost=2.0), Limits(max_steps=5), Limits(max_steps=5, max_cost=2.0)),
        (Limits(max_steps=1, exhausted="ask"), Limits(max_steps=5), Limits(max_steps=5, exhausted="ask")),
        (Limits(exhausted="ask"), Limits(max_steps=5), Limits(exhausted="ask")),
        (Limits(max_cost=2.0), Limits(max_cost=0.0), Limits(max_cost=2.0)),
        (None, Limits(max_steps=5), None),
    ],
)
def test_extending_a_budget_raises_only_the_given_limits(
    before: Limits | None, limits: Limits, after: Limits | None
) -> None:
    """A limit never gets lower, and none is added. The `exhausted` setting is not a limit, and stays."""
    working = Working(AgentState(budget=before))
    working.extend(limits)
    assert working.freeze().budget == after
