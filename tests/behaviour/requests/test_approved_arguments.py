"""What a person has approved is what is done: other arguments need another answer, edited ones stay as they were."""

from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.testing import TestApp

APPROVALS = limpet.Approvals("external_action", to=["finance"])
WHEN = ("before it is approved", "after it is approved")


class Here:
    """What lies outside of runs."""

    cents = 100


@limpet.tool(effect="once", risk="external_action", name="edits_pay")
async def pay(order: str, cents: int) -> str:
    return f"{order}: {cents}"


def payer(how: str, cents: int = 100) -> limpet.Agent[str, str]:
    """Code that pays so much: as it says, as its state says, or as the world says."""

    @limpet.agent(name="edits_payer", approvals=APPROVALS)
    async def agent(run: limpet.Run, order: str) -> str:
        if how == "the world":
            return await run.step(pay, order, Here.cents)
        if how == "a read":
            await run.patch(facts={"cents": Here.cents})
        else:
            await run.patch(facts={"cents": cents})
        wanted: int = run.state.facts["cents"] if how != "its code" else cents
        return await run.step(pay, order, wanted)

    return agent


async def approve_shown(app: TestApp, cents: int) -> limpet.Request:
    """The one request, which shows this."""
    [request] = await app.inbox()
    assert request.args == {"order": "o1", "cents": cents}
    await app.approve(request, by="ann")
    return request


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("how", ["its code", "the world"])
async def test_other_arguments_need_another_answer(how: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code was edited, or what feeds the argument changed, between the answer and the effect."""
    async with testing.app(payer(how)) as app:
        handle = await app.start(payer(how), "o1", id="r1")
        await app.settle()
        [first] = await app.inbox()
        if when == WHEN[1]:
            app.crash_at("after", "request.answered")
            await app.approve(first, by="ann")  # and nobody has acted on it
        monkeypatch.setattr(Here, "cents", 200)
        app.deploy(payer(how, 200))
        await app.crash()
        await app.settle()
        if when == WHEN[0]:
            await app.approve(first, by="ann")  # it is an answer to what was shown
            await app.settle()
        assert app.calls(pay) == []
        [second] = await app.inbox()
        assert (second.id != first.id, second.args) == (True, {"order": "o1", "cents": 200})
        with pytest.raises(limpet.AlreadyAnswered):
            await app.approve(first, by="bob")
        await app.settle()
        assert app.calls(pay) == []
        await app.approve(second, by="ann")
        assert await handle.result() == "o1: 200"
        assert app.calls(pay) == [{"order": "o1", "cents": 200}]
        await check_grants(app, "r1")


async def check_grants(app: TestApp, run: str) -> None:
    """The one effect used the approval of just these arguments; so did what is known not to have been applied."""
    log = await app.log(run)
    started, *again = [event.body for event in log if event.kind == "step.started"]
    assert all((each["args"], each["key"]) == (started["args"], started["key"]) for each in again)
    opened = {event.body["request"]: event.body for event in log if event.kind == "request.opened"}
    answered = {event.body["request"]: event.body for event in log if event.kind == "request.answered"}
    grant = answered[started["grant"]]
    assert grant["decision"] == "approved"
    assert started["args"] == (grant.get("args") or opened[started["grant"]]["args"])


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("how", ["its state", "a read"])
async def test_a_state_that_is_patched_anew_is_what_it_was(
    how: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a patch stands: the argument is what was shown, and the answer is for it."""
    async with testing.app(payer(how)) as app:
        handle = await app.start(payer(how), "o1", id="r1")
        await app.settle()
        if when == WHEN[1]:
            app.crash_at("after", "request.answered")
            await approve_shown(app, 100)
        monkeypatch.setattr(Here, "cents", 200)
        app.deploy(payer(how, 200))
        await app.crash()
        await app.settle()
        if when == WHEN[0]:
            assert app.calls(pay) == []
            await approve_shown(app, 100)
        assert await handle.result() == "o1: 100"
        assert app.calls(pay) == [{"order": "o1", "cents": 100}]
        await check_grants(app, "r1")


async def test_a_signal_that_changes_the_argument_needs_another_answer() -> None:
    """State that is patched while somebody thinks about it: what was approved before is not what would be done."""

    @limpet.agent(name="edits_waits", approvals=limpet.Approvals("external_action", to=["finance"], expires="1h"))
    async def agent(run: limpet.Run, order: str) -> list[str]:
        done: list[str] = []
        for _ in range(2):
            done.append(await run.step(pay, order, int(run.state.facts.get("cents", 100))))
            await run.patch(facts={"cents": await run.receive("cents", int)})
        return done

    async with testing.app(agent) as app:
        await app.start(agent, "o1", id="r1")
        await app.settle()
        first = await approve_shown(app, 100)
        await app.signal("r1", "cents", 300)
        await app.settle()
        await app.crash()
        await app.settle()
        assert app.calls(pay) == [{"order": "o1", "cents": 100}]
        with pytest.raises(limpet.AlreadyAnswered):
            await app.approve(first, by="bob")
        second = await approve_shown(app, 300)
        assert second.id != first.id
        await app.settle()
        assert app.calls(pay) == [{"order": "o1", "cents": 100}, {"order": "o1", "cents": 300}]


EDITED: dict[str, Any] = {"cents": 5}


@pytest.mark.parametrize("place", ["request.answered", "wait.ended", "step.completed", "run.waiting"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_edited_arguments_do_not_diverge(when: Any, place: str) -> None:
    """Whoever resumes does what the person wrote, once, whatever its own code says."""

    @limpet.agent(name="edits_plain", approvals=APPROVALS)
    async def agent(run: limpet.Run, order: str) -> list[Any]:
        paid = await run.step(pay, order, 700)
        return [paid, await run.ask("enough?")]

    async with testing.app(agent) as app:
        handle = await app.start(agent, "o1", id="r1")
        await app.settle()
        app.crash_at(when, place)
        [request] = await app.inbox()
        await app.approve(request, by="ann", args=EDITED)
        await app.settle()
        for request in await app.inbox():
            if request.kind == "unknown":  # it died about the effect
                await app.answer(request, {"applied": "o1: 5"} if app.calls(pay) else "not_applied", by="ann")
                await app.settle()
        await app.crash()
        [request] = await app.inbox()
        assert request.question == "enough?"
        await app.approve(request, by="ann")
        assert await handle.result() == ["o1: 5", True]
        assert app.calls(pay) == [{"order": "o1", "cents": 5}]
        assert app.crashes >= 1
        await check_grants(app, "r1")


@limpet.agent(name="edits_resumed", approvals=APPROVALS)
async def resumed(run: limpet.Run, order: str) -> list[str]:
    """Two payments, which a person edits."""
    return [await run.step(pay, order, 700), await run.step(pay, order, 800)]


async def test_edited_arguments_survive_a_resume_at_every_commit() -> None:
    """The same result and the same effects each time."""
    places = await testing.always_resume(
        resumed, "o1", answers={"edits_pay": EDITED}, prepare=lambda app: app.stub(pay, "paid")
    )
    assert places > 6


async def test_a_read_is_repeated_with_the_arguments_that_a_person_gave() -> None:
    """Its worker died before it was tried again."""

    @limpet.tool(effect="none", risk="external_action", retry=limpet.Retry(2), name="edits_look")
    async def look(days: int) -> int:
        return days

    @limpet.agent(name="edits_looks", approvals=APPROVALS)
    async def agent(run: limpet.Run) -> int:
        return await run.step(look, 30)

    async with testing.app(agent) as app:
        app.stub(look, ConnectionError("?"), 60)
        handle = await app.start(agent)
        await app.settle()
        app.crash_at("after", "step.failed")
        await app.approve((await app.inbox())[0], args={"days": 60}, by="ann")
        assert await handle.result() == 60
        assert (app.calls(look), app.crashes) == ([{"days": 60}, {"days": 60}], 1)


RISKY = limpet.Approvals("external_action", to="finance")


def limpet_elsewhere(request: limpet.Request) -> limpet.Request:
    """The same request, in a process that does not have the tool."""
    from limpet.engine.definitions import tools  # noqa: PLC0415

    tools._tools.pop("elsewhere", None)
    return request


async def test_edited_arguments_are_checked_where_the_tool_is_not(tmp_path: Path) -> None:
    """By the schema that came with the request."""

    @limpet.tool(effect="idempotent", risk="external_action", name="elsewhere")
    async def pay(cents: int) -> int:
        return cents

    @limpet.agent(approvals=RISKY)
    async def agent(run: limpet.Run) -> int:
        return await run.step(pay, 1)

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        for wrong in ({"cents": "many"}, {"dollars": 1}):
            with pytest.raises(limpet.InvalidAnswer):
                await app.approve(limpet_elsewhere(request), by="ann", args=wrong)
        await app.approve(request, by="ann", args={"cents": 5})
        assert await handle.result() == 5
