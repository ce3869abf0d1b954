"""Context slices: an artifact knows its step, and the artifacts of the current plan item or step come first."""

import asyncio
from typing import Any

import limpet
from limpet import testing
from limpet.llm.model import Prompt
from limpet.testing import ScriptedModel, calls


@limpet.tool(effect="none", name="slices_look")
async def look(n: int) -> int:
    return n


async def test_an_artifact_has_the_step_before_it_in_its_branch() -> None:
    """Also after a crash, and in parallel branches; one that is stored before the first step has none."""

    @limpet.agent(name="slices_stores")
    async def agent(run: limpet.Run) -> list[int | None]:
        first = await run.artifact("0", type="t", summary="before any step")

        async def branch(name: str, n: int) -> limpet.Artifact:
            async with run.scope(name):
                await run.step(look, n)
                await run.sleep("1h" if n == 1 else "2h")
                return await run.artifact(str(n), type="t", summary=name)

        found = await asyncio.gather(branch("one", 1), branch("two", 2))
        await run.step(look, 3)
        last = await run.artifact("3", type="t", summary="last")
        return [each.step for each in (first, *found, last)]

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r")
        await app.advance("90m")
        await app.crash()
        await app.advance("90m")
        assert await handle.result() == [None, 1, 2, 3]
        assert [each.step for each in (await app.state("r")).artifacts] == [None, 1, 2, 3]
        fork = await app.fork("r", at=3, effects="live")
        assert await fork.result() == [None, 1, 2, 3]


async def test_a_slice_starts_with_the_artifacts_of_the_plans_current_item() -> None:
    """Inside the run, and at every point of its log from outside."""

    @limpet.agent(name="slices_plans")
    async def agent(run: limpet.Run) -> list[list[str]]:
        await run.patch(plan=["collect", "decide"])
        seen = []
        for item in ("collect", "decide"):
            async with run.scope(item):
                for n in range(2):
                    await run.step(look, n)
                    await run.artifact("x", type="t", summary=f"{item} {n}")
                known = await run.context()
                seen.append([each.summary for each in known.artifacts])
        return seen

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r")
        [first, second] = await handle.result()
        assert first == ["collect 1", "collect 0"]
        assert second == ["decide 1", "decide 0", "collect 1", "collect 0"]
        at = await app.context("r", after=3)
        assert (at.current_step, [each.step for each in at.artifacts]) == ("decide", [2, 1])
        at = await app.context("r", before=4, max_bytes=330)
        assert [each.summary for each in at.artifacts][:1] == ["decide 0"]


async def test_all_tool_results_of_a_prompt_fit_the_budget_together() -> None:
    """Three results of 5,440 bytes with a budget of 8,000: the newest is whole. The prompt can be rebuilt exactly."""

    @limpet.tool(effect="none", name="slices_much")
    async def much(n: int) -> str:
        """Much."""
        return str(n) * 5440

    def asks(request: Prompt) -> Any:
        done = sum(message.role == "tool" for message in request.messages)
        return calls("slices_much", n=done + 1) if done < 3 else "done"

    model = ScriptedModel(asks)
    agent = limpet.llm_agent(
        "slices_llm",
        model=model,
        instructions="Look.",
        tools=[much],
        budget=limpet.Budget(max_artifact_bytes_in_context=8000),
    )
    async with testing.app(agent) as app:
        assert await app.run(agent, "go", id="r") == "done"
        results = [each.text for each in model.prompts[-1].messages if each.role == "tool"]
        assert results[2] == "3" * 5440
        assert sum(len(each.encode()) for each in results) <= 8000 + len(results[0])
        assert results[0] == "[5440 bytes are left out]"
        assert next(each.text for each in await app.messages("r.chat") if each.role == "tool") == "1" * 5440
        steps = [step.number for step in await app.steps("r") if step.kind == "model"]
        assert all([(await app.prompt("r", step=number)).is_exact for number in steps])


async def test_the_artifact_of_a_tools_result_has_the_step_of_that_tool() -> None:
    """Also if a model calls several tools at once."""

    @limpet.tool(effect="none", name="slices_big")
    async def big(n: int) -> str:
        """Big."""
        return str(n) * 20_000

    def asks(request: Prompt) -> Any:
        if request.messages[-1].role == "user":
            return calls("slices_big", n=1), calls("slices_big", n=2)
        return "done"

    agent = limpet.llm_agent("slices_bigs", model=ScriptedModel(asks), instructions="Look.", tools=[big])
    async with testing.app(agent) as app:
        assert await app.run(agent, "go", id="r") == "done"
        steps = {step.number: step.args["n"] for step in await app.steps("r") if step.tool == "slices_big"}
        artifacts = (await app.state("r")).artifacts
        found = [(steps[each.step or 0], each.summary.split("begins with: ")[1][:1]) for each in artifacts]
        assert sorted(found) == [(1, "1"), (2, "2")]
