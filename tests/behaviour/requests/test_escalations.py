"""Escalations: a person is asked before a step fails, if the agent is configured so."""

from typing import Any

import pytest

import limpet
from limpet import testing


@pytest.mark.parametrize(
    ("said", "calls", "result"),
    [("retry", 2, "worked"), ("fail", 1, "ValueError"), ({"result": "by hand"}, 1, "by hand")],
)
async def test_a_listed_error_goes_to_a_person(said: Any, calls: int, result: str) -> None:
    """The person can retry, let the step fail, or give its result."""

    @limpet.tool(effect="none", retry=1)
    async def look() -> str:
        raise AssertionError("stubbed")

    @limpet.agent(escalate=limpet.Escalate(ValueError, to="oncall"))
    async def agent(run: limpet.Run) -> str:
        try:
            return await run.step(look)
        except limpet.StepFailed as error:
            return error.error_type.removeprefix("builtins.")

    async with testing.app(agent) as app:
        app.stub(look, ValueError("odd"), "worked")
        handle = await app.start(agent, id="r1")
        await app.settle()
        await app.crash()
        [request] = await app.inbox()
        assert (request.kind, request.to, request.tool) == ("escalation", ("oncall",), "look")
        with pytest.raises(limpet.InvalidAnswer):
            await app.answer(request, {"result": 7}, by="ann")
        await app.answer(request, said, by="ann")
        assert await handle.result() == result
        assert len(app.calls(look)) == calls


async def test_an_unlisted_error_fails_the_run() -> None:

    @limpet.tool(effect="none", retry=1)
    async def look() -> None:
        raise KeyError("x")

    @limpet.agent(escalate=limpet.Escalate(ValueError))
    async def agent(run: limpet.Run) -> None:
        await run.step(look)

    async with testing.app(agent) as app:
        with pytest.raises(limpet.RunFailed, match="KeyError"):
            await app.run(agent)


async def test_a_step_that_exhausts_its_retries_goes_to_a_person() -> None:
    """After each further failed attempt the person is asked again."""

    @limpet.tool(effect="none", retry=limpet.Retry(2))
    async def look() -> str:
        raise AssertionError("stubbed")

    @limpet.agent(escalate=limpet.Escalate(retries=True))
    async def agent(run: limpet.Run) -> str:
        return await run.step(look)

    async with testing.app(agent) as app:
        app.stub(look, TimeoutError("1"), TimeoutError("2"), TimeoutError("3"), "worked")
        handle = await app.start(agent)
        for attempts in (2, 3):
            await app.settle()
            [request] = await app.inbox()
            assert len(app.calls(look)) == attempts
            await app.answer(request, "retry", by="ann")
        assert await handle.result() == "worked"


async def test_an_idempotent_effect_with_an_unknown_outcome_goes_to_a_person() -> None:
    """Without the escalation, the code would get OutcomeUnknown."""

    @limpet.tool(effect="idempotent")
    async def pay() -> str:
        raise ConnectionError("?")

    @limpet.agent(escalate=limpet.Escalate(unknown=True))
    async def agent(run: limpet.Run) -> str:
        return await run.step(pay)

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        assert request.kind == "unknown"
        await app.answer(request, {"applied": "paid"}, by="ann")
        assert await handle.result() == "paid"


@pytest.mark.parametrize("said", ["go on", "stop"])
async def test_budget_pressure_goes_to_a_person(said: str) -> None:
    """Once per limit. The run continues, or the step is refused."""

    @limpet.tool(effect="none", retry=1)
    async def look(n: int) -> int:
        return n

    @limpet.agent(budget=limpet.Budget(max_steps=5), escalate=limpet.Escalate(budget=True))
    async def agent(run: limpet.Run) -> int:
        for n in range(5):
            await run.step(look, n)
        return 5

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        assert len(app.calls(look)) == 3
        await app.crash()
        await app.answer(request, said, by="ann")
        if said == "go on":
            assert await handle.result() == 5
        else:
            with pytest.raises(limpet.RunFailed, match="max_steps"):
                await handle.result()
        assert await app.inbox() == []


@pytest.mark.parametrize(("sure", "chosen"), [(0.5, "none"), (0.9, "full"), (None, "full")])
async def test_a_decision_with_low_confidence_goes_to_a_person(sure: float | None, chosen: str) -> None:
    """The person's choice and name are recorded and used on replay."""

    @limpet.agent(escalate=limpet.Escalate(confidence=0.8))
    async def agent(run: limpet.Run) -> list[str]:
        how = await run.decide("refund?", choose="full", over=["none", "full"], because="it broke", confidence=sure)
        await run.ask("go on?")
        return [how]

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r1")
        await app.settle()
        if sure == 0.5:
            [request] = await app.inbox()
            assert "it broke" in request.question
            with pytest.raises(limpet.InvalidAnswer):
                await app.reject(request, by="ann", because="no")
            await app.answer(request, "none", by="ann")
            await app.settle()
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == [chosen]
        [made] = [event.body for event in await app.log("r1") if event.kind == "decision.made"]
        assert made["because"].startswith("ann decided" if sure == 0.5 else "it broke")


def test_an_escalation_without_a_condition_is_refused() -> None:
    """A confidence above 1 is refused, too."""
    for wrong in ({}, {"confidence": 1.5}):
        with pytest.raises(limpet.DefinitionError):
            limpet.Escalate(**wrong)  # type: ignore[arg-type]


async def test_a_resumed_failure_escalates_again() -> None:
    """The answer to the earlier failure is not reused."""

    @limpet.tool(effect="none", retry=1)
    async def look() -> int:
        raise ValueError("odd")

    @limpet.agent(escalate=limpet.Escalate(ValueError))
    async def agent(run: limpet.Run) -> int:
        return await run.step(look)

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        for said in ("fail", {"result": 7}):
            await app.settle()
            [request] = await app.inbox()
            await app.answer(request, said, by="ann")
            await app.settle()
            if said == "fail":
                await app.resume(handle.id)
        assert await handle.result() == 7
