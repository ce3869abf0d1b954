"""The order of a context slice, and what gives way first."""

from msgspec import Raw

from limpet.context.slice import Known, SliceMessage, describe, slice_of
from limpet.events import Artifact, Fact, Limits
from limpet.state import AgentState

STATE = AgentState(
    goal="g",
    known_facts=tuple(Fact(key=f"f{n}", value=Raw(b"1")) for n in range(3)),
    open_questions=("q",),
    risk_flags=("r",),
    artifacts=tuple(
        Artifact(artifact_id=f"a{step}", type="t", summary="s", bytes=9, step=step) for step in (None, 2, 5, 6)
    ),
)


def first_words(since: int | None) -> list[str]:
    return [" ".join(line.split()[:2]) for line in describe(STATE, since=since, room=1000).splitlines()]


def test_current_artifacts_come_first_then_questions_and_flags_then_facts_newest_first() -> None:
    """Current are the artifacts since the first step of the plan's item; the others come last."""
    assert first_words(5) == [
        *("Goal: g", "Artifact a6:", "Artifact a5:"),
        *("Open question:", "Flag: r"),
        *("Fact f2", "Fact f1", "Fact f0"),
        *("Artifact a2:", "Artifact aNone:"),
    ]


def test_without_a_current_step_no_artifact_comes_first() -> None:
    """Not even one without a step, which came with the run's creation."""
    assert first_words(None)[:3] == ["Goal: g", "Open question:", "Flag: r"]


def test_old_artifacts_give_way_first_and_the_current_one_last() -> None:
    """Whatever the size, an older artifact is only there if the current one and everything else is."""
    sizes = set()
    for room in range(200, 900, 20):
        found = slice_of(Known(STATE, 6, 6), max_bytes=room)
        ids = [each.artifact_id for each in found.artifacts]
        sizes.add(len(ids))
        assert ids[:1] in ([], ["a6"])
        if "a2" in ids:
            assert (len(found.facts), found.open_questions, found.risk_flags) == (3, ("q",), ("r",))
    assert sizes == {0, 1, 2, 3, 4}


def test_the_budget_bounds_the_sum_of_all_tool_results() -> None:
    """The newest stays whole, the one before it is cut, and older ones are only named by their size."""
    said = [SliceMessage(role=role, text=f"{n}" * 3000) for n in range(4) for role in ("user", "tool")]
    state = AgentState(budget=Limits(max_artifact_bytes_in_context=5000))
    found = slice_of(Known(state), messages=said).messages
    results = [each.text for each in found if each.role == "tool"]
    assert results[3] == "3" * 3000
    assert results[2].startswith("2" * 500)
    assert "characters are left out" in results[2]
    assert len("".join(results[2:]).encode()) <= 5000
    assert results[:2] == ["[3000 bytes are left out]"] * 2
    assert [each.text for each in found if each.role == "user"] == [f"{n}" * 3000 for n in range(4)]
