"""A patch is applied as a whole or not at all, can be found between two states, and said in words."""

import re
from typing import Any

import pytest
from msgspec import UNSET, Raw

from limpet.errors import InvalidPatch
from limpet.events import Artifact, Constraints, Fact, HumanInTheLoop, Limits, PlanItem, Revision, StatePatch, inline
from limpet.events.bodies import ArtifactStored
from limpet.state import AgentState, apply, describe_patch, diff
from limpet.state.patch import Working


def name_of(value: object) -> str:
    """What a case is called, the same in every process."""
    return re.sub(r" object at 0x\w+", "", str(value))


def fact(key: str, value: bytes = b"1", **more: Any) -> Fact:
    """Something the agent knows."""
    return Fact(key=key, value=Raw(value), **more)


def artifact(artifact_id: str, size: int = 1) -> Artifact:
    """Something big."""
    return Artifact(artifact_id=artifact_id, type="logs", summary="errors", bytes=size)


LOOP = Constraints(human_in_the_loop=HumanInTheLoop(required_for_risk_levels=("write_local",)))
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
    """The full state after a patch."""
    return apply(FULL, StatePatch(**parts))


# Applying


def test_an_empty_patch_changes_nothing() -> None:
    """Not even the order of anything."""
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
    """Set, add, supersede, take away."""
    assert getattr(patched(**parts), field) == expected


def test_a_patch_of_one_part_leaves_the_others() -> None:
    """Only what is said changes."""
    after = patched(flags=("late",))
    assert diff(after, FULL) == StatePatch(lower=("late",))


def test_a_new_plan_can_be_revised_in_the_same_patch() -> None:
    """Revisions count in the plan that the patch sets."""
    after = patched(plan=(PlanItem(item="p"), PlanItem(item="q")), revise=(Revision(index=1, status="doing"),))
    assert (after.plan, after.plan_status) == (("p", "q"), ("pending", "doing"))


def test_a_line_can_be_revised_twice() -> None:
    """The last word counts."""
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
    """The error names the part and what is wrong with it."""
    with pytest.raises(InvalidPatch) as caught:
        patched(**parts)
    assert (caught.value.part, caught.value.reason) == (part, reason)


@pytest.mark.parametrize(("parts", "part", "reason"), REFUSED, ids=name_of)
def test_a_refused_patch_changes_nothing(parts: dict[str, Any], part: str, reason: str) -> None:
    """Refused as a whole: the valid parts beside the invalid one are not applied either."""
    working = Working(FULL)
    good: dict[str, Any] = {"goal": "x", "data": Raw(b"1"), "flags": ("new",), "questions": ("new?",), "budget": None}
    with pytest.raises(InvalidPatch):
        working.apply(StatePatch(**(good | parts)))
    assert working.freeze() == FULL


def test_applying_leaves_the_state_before_as_it_was() -> None:
    """States are values."""
    before = AgentState(known_facts=(fact("a"),))
    apply(before, StatePatch(retract=("a",)))
    assert before == AgentState(known_facts=(fact("a"),))


# Finding


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
def test_the_patch_between_two_states_says_only_what_changed(after: AgentState, patch: StatePatch) -> None:
    """What is the same at the beginning of a list is not said again."""
    assert diff(FULL, after) == patch


def test_a_revised_plan_is_said_whole() -> None:
    """The patch holds the plan with its statuses."""
    after = patched(revise=(Revision(index=1, status="done"),))
    assert diff(FULL, after) == StatePatch(plan=after.items)


# Saying


@pytest.mark.parametrize(
    ("parts", "said"),
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
        ({"facts": (fact("d", b'"\xc3\xa9"'),)}, ['fact d = "é"']),
        ({"facts": (fact("d", source="shop"),)}, ["fact d = 1 from shop"]),
        ({"facts": (fact("a", b"2", source="shop"),)}, ["fact a = 2 from shop (was 1)"]),
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
def test_a_patch_is_said_in_words(parts: dict[str, Any], said: list[str]) -> None:
    """A line for each change, for people."""
    assert describe_patch(FULL, StatePatch(**parts)) == said


def test_a_first_goal_has_none_before_it() -> None:
    """Nothing is said to have been there."""
    assert describe_patch(AgentState(), StatePatch(goal="settle")) == ["goal: 'settle'"]


# The mutable form


def test_a_stored_artifact_supersedes_one_of_the_same_id() -> None:
    """And goes to the end, as with a patch."""
    working = Working(FULL)
    working.put_stored(
        ArtifactStored(name="a#1", artifact_id="x", type="logs", summary="errors", bytes=9, content=inline("…"))
    )
    assert working.freeze().artifacts == (artifact("y"), artifact("x", 9))


def test_a_raised_flag_goes_to_the_end() -> None:
    """As with a patch."""
    working = Working(FULL)
    working.flag("slow")
    assert working.freeze().risk_flags == ("costly", "slow")


@pytest.mark.parametrize(
    ("before", "limits", "after"),
    [
        (Limits(max_steps=1, max_cost=2.0), Limits(max_steps=5), Limits(max_steps=5, max_cost=2.0)),
        (Limits(exhausted="ask"), Limits(max_steps=5), Limits(max_steps=5, exhausted="ask")),
        (Limits(max_cost=2.0), Limits(max_cost=0.0), Limits(max_cost=0.0)),
        (None, Limits(max_steps=5), Limits(max_steps=5)),
    ],
)
def test_extending_sets_what_is_said_and_leaves_the_rest(before: Limits | None, limits: Limits, after: Limits) -> None:
    """What follows when the budget is used up is no limit, and stays."""
    working = Working(AgentState(budget=before))
    working.extend(limits)
    assert working.freeze().budget == after
