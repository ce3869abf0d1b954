"""The state that a run starts with, and how its code may change it."""

from dataclasses import dataclass
from typing import Any

import pytest

import limpet
from limpet import testing

SEED: dict[str, Any] = {
    "goal": "Deploy service X to staging",
    "constraints": {"human_in_the_loop": {"required_for_risk_levels": ["write_local", "external_action"]}},
    "budget": {
        "max_steps": 20,
        "max_wall_time_ms": 300000,
        "max_llm_tokens": 200000,
        "max_artifact_bytes_in_context": 8000,
    },
    "plan": ["Check current status", "Collect config", "Apply changes", "Verify again"],
    "known_facts": [{"key": "service", "value": "X", "source": "user"}],
    "open_questions": ["Which namespace should we deploy to?"],
    "artifacts": [{"artifact_id": "log_123", "type": "tool_result.logs", "summary": "nginx error log", "bytes": 48231}],
    "risk_flags": ["budget_pressure"],
}


@limpet.agent(name="first_waiting")
async def waiting(run: limpet.Run) -> str:
    return await run.receive("go", str)


async def test_a_run_starts_with_a_whole_state() -> None:
    """The state is that of the JSON, field by field; lists show its goal and position before a worker runs it."""
    async with testing.app(waiting) as app:
        await app.start(waiting, id="r", state=SEED)
        state = (await app.state("r")).whole.working
        assert limpet.AgentState.from_json(state.to_json()) == state
        assert state.to_dict() == SEED
        info = await app.info("r")
        assert (info.goal, str(info.position)) == (SEED["goal"], "step 1 of 4")
        await app.verify("r")


async def test_the_parts_of_a_state_add_to_it_and_the_budget_to_the_agents() -> None:
    @limpet.agent(name="first_rich", deadline="1h", budget=limpet.Budget(max_steps=5, max_cost=1))
    async def rich(run: limpet.Run) -> dict[str, Any]:
        return {
            "goal": run.state.goal,
            "facts": dict(run.state.facts),
            "plan": run.state.plan,
            "constraints": dict(run.state.constraints),
        }

    async with testing.app(rich) as app:
        handle = await app.start(
            rich,
            id="r",
            by="ann",
            state={"goal": "old", "known_facts": [{"key": "a", "value": 1}], "constraints": {"region": "eu"}},
            goal="new",
            facts={"b": [2]},
            plan=["look", "act"],
            constraints={"tone": "kind"},
            budget={"max_steps": "9", "max_wall_time": "5m"},
            deadline="2h",
        )
        assert await handle.result() == {
            "goal": "new",
            "facts": {"a": 1, "b": [2]},
            "plan": ["look", "act"],
            "constraints": {"region": "eu", "tone": "kind"},
        }
        whole = (await app.state("r")).whole
        budget = whole.working.budget
        assert budget is not None
        assert (budget.max_steps, budget.max_cost, budget.max_wall_time_ms) == (9, 1, 300_000)
        assert whole.deadline == whole.created + 2 * 3600 * 10**6
        assert [fact.source for fact in whole.working.known_facts] == ["", "ann"]


async def test_starting_again_with_the_same_id_keeps_the_first_state() -> None:
    """A start with another state is a conflict."""
    async with testing.app(waiting) as app:
        await app.start(waiting, id="r", goal="first")
        await app.start(waiting, id="r", goal="first", by="ann")
        with pytest.raises(limpet.IdConflict, match="with other options"):
            await app.start(waiting, id="r", goal="second")
        assert (await app.state("r")).goal == "first"


@pytest.mark.parametrize(
    ("given", "path", "reason"),
    [
        ({"state": {"gaol": "x"}}, "state", "gaol"),
        ({"state": {"plan": ["a"], "plan_status": ["done", "done"]}}, "state.plan_status", "one status per item"),
        ({"state": {"known_facts": [{"key": "a", "value": 1}] * 2}}, "state.known_facts", "duplicate"),
        ({"state": {"data": {"seen": "many"}}}, "state.data", "First"),
        ({"facts": {"": 1}}, "facts", "empty"),
        ({"facts": {"a": object()}}, "$", "object"),
        ({"budget": {"steps": 1}}, "budget", "unknown field"),
        ({"deadline": "soon"}, "duration or time", "soon"),
    ],
)
async def test_a_wrong_first_state_is_refused_before_anything_is_written(
    given: dict[str, Any], path: str, reason: str
) -> None:
    @dataclass
    class First:
        """Data of the agent."""

        seen: int = 0

    @limpet.agent(name="first_typed")
    async def typed(run: limpet.Run[First]) -> int:
        return run.state.data.seen

    async with testing.app(typed) as app:
        with pytest.raises(limpet.InvalidValue, match=reason) as refused:
            await app.start(typed, id="r", **given)
        assert refused.value.path == path
        assert await app.runs() == []


async def test_wrong_constraints_are_named() -> None:
    async with testing.app(waiting) as app:
        wrong = {"human_in_the_loop": {"required_for_risk_levels": "all"}}
        with pytest.raises(limpet.ContractError, match="required_for_risk_levels"):
            await app.start(waiting, constraints=wrong)


@dataclass
class Task:
    """Data with required fields."""

    user: str
    seen: int = 0


async def test_data_with_required_fields_says_how_to_give_it() -> None:
    @limpet.agent(name="first_required")
    async def required(run: limpet.Run[Task]) -> str:
        return run.state.data.user

    async with testing.app(required) as app:
        with pytest.raises(limpet.RunFailed, match="no data yet, and Task") as failed:
            await app.run(required)
        assert "run.patch(data=...)" in failed.value.hint
        assert await app.run(required, state={"data": {"user": "ann"}}) == "ann"


async def test_data_may_have_a_default_from_the_agent() -> None:
    """It is used until the first patch, and in a run that is started by another agent."""

    @limpet.agent(name="first_default", data=lambda: Task(user="unknown"))
    async def default(run: limpet.Run[Task]) -> list[str]:
        before = run.state.data
        await run.patch(data=Task(user="ann", seen=before.seen + 1))
        return [before.user, run.state.data.user]

    @limpet.agent(name="first_caller")
    async def caller(run: limpet.Run) -> list[str]:
        return await run.call(default, None)

    async with testing.app(default, caller) as app:
        assert await app.run(default) == ["unknown", "ann"]
        assert await app.run(caller) == ["unknown", "ann"]


async def test_code_revises_lowers_discards_and_tightens() -> None:
    @limpet.agent(name="first_changes", budget=limpet.Budget(max_steps=9, max_cost=1))
    async def changes(run: limpet.Run) -> str:
        kept = await run.artifact(b"log", type="log", summary="a log")
        await run.patch(plan=["a", "b"], flags={"slow": "3 s"}, questions=["why?"])
        await run.patch(
            revise={"a": "done"},
            lower=["slow"],
            discard=[kept.artifact_id],
            budget=limpet.Budget(max_steps=4),
            constraints={
                "region": "eu",
                "human_in_the_loop": {"required_for_risk_levels": ["write_local", "external_action"]},
            },
        )
        return (await run.content(kept)).decode()

    async with testing.app(changes) as app:
        loop = {"human_in_the_loop": {"required_for_risk_levels": ["write_local"]}}
        assert await app.run(changes, id="r", constraints=loop) == "log"
        state = (await app.state("r")).whole.working
        assert state.plan_status == ("done", "pending")
        assert (state.risk_flags, state.artifacts) == ((), ())
        assert state.questions == (limpet.OpenQuestion(question="why?"),)
        assert state.budget is not None
        assert (state.budget.max_steps, state.budget.max_cost) == (4, 1)
        assert state.constraints is not None
        assert state.constraints["region"] == "eu"
        before = (await app.state("r", seq=4)).whole.working
        assert before.flags == (limpet.RiskFlag(flag="slow", detail="3 s"),)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"budget": limpet.Budget(max_steps=10)}, "budget.max_steps"),
        ({"constraints": {"region": "us"}}, "constraints.region"),
        ({"constraints": {"human_in_the_loop": {}}}, "constraints.human_in_the_loop"),
        ({"constraints": {"human_in_the_loop": {"levels": []}}}, "constraints.human_in_the_loop"),
        ({"lower": ["unknown"]}, "flags"),
        ({"discard": ["unknown"]}, "artifacts"),
        ({"flags": {"a": 1}}, "flags"),
    ],
)
async def test_code_cannot_loosen_what_was_given(change: dict[str, Any], path: str) -> None:
    """The error reaches the code, and the state stays."""

    @limpet.agent(name="first_loose", budget=limpet.Budget(max_steps=9))
    async def loose(run: limpet.Run) -> str:
        try:
            await run.patch(**change)
        except limpet.InvalidPatch as error:
            return error.part
        except limpet.InvalidArgument as error:
            return error.path
        return "applied"

    async with testing.app(loose) as app:
        loop = {"human_in_the_loop": {"required_for_risk_levels": ["write_local"]}, "region": "eu"}
        assert await app.run(loose, id="r", constraints=loop) == path
        assert "state.patched" not in [event.kind for event in await app.log("r")]


async def test_a_tightened_constraint_is_enforced_from_then_on() -> None:
    @limpet.tool(effect="once", risk="external_action", name="first_send")
    async def send(to: str) -> str:
        return to

    @limpet.agent(name="first_strict")
    async def strict(run: limpet.Run) -> list[str]:
        first = await run.step(send, "a")
        await run.patch(constraints={"human_in_the_loop": {"required_for_risk_levels": ["external_action"]}})
        return [first, await run.step(send, "b")]

    async with testing.app(strict) as app:
        handle = await app.start(strict, id="r")
        await app.settle()
        [request] = await app.inbox()
        assert request.args == {"to": "b"}
        await app.crash()
        await app.approve(request, by="ann")
        assert await handle.result() == ["a", "b"]


async def test_the_flag_of_a_budget_names_its_limits() -> None:
    """A second limit that gets near is added to the detail; a flag that the code lowers comes back."""

    @limpet.tool(effect="none", name="first_spend")
    async def spend(tokens: int) -> None:
        limpet.current().spent(tokens=tokens)

    @limpet.agent(name="first_pressed", budget=limpet.Budget(max_steps=5, max_llm_tokens=10))
    async def pressed(run: limpet.Run) -> list[Any]:
        found = []
        for tokens in (0, 0, 0, 0, 0):
            await run.step(spend, tokens)
            found.append([[each.flag, each.detail] for each in run.state.flags])
            if run.state.flags:
                await run.patch(lower=["budget_pressure"])
        return found

    @limpet.agent(name="first_both", budget=limpet.Budget(max_steps=5, max_llm_tokens=10))
    async def both(run: limpet.Run) -> list[Any]:
        found = []
        for tokens in (0, 0, 0, 9, 0):
            await run.step(spend, tokens)
            found.append([each.detail for each in run.state.flags])
        return found

    async with testing.app(pressed, both) as app:
        near = [["budget_pressure", "max_steps"]]
        assert await app.run(pressed) == [[], [], [], near, near]
        assert await app.run(both) == [[], [], [], ["max_steps"], ["max_steps, max_llm_tokens"]]
