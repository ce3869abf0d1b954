"""A step runs with exactly the arguments that a person approved or edited."""

from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.engine.definitions.tools import idempotency_key
from limpet.events import digest
from limpet.testing import TestApp

APPROVALS = limpet.Approvals("external_action", to=["finance"])
WHEN = ("before it is approved", "after it is approved")


class World:
    """State outside of runs."""

    cents = 100


@limpet.tool(effect="once", risk="external_action", name="edits_pay")
async def pay(order: str, cents: int) -> str:
    return f"{order}: {cents}"


def payer(how: str, cents: int = 100) -> limpet.Agent[str, str]:
    """Return an agent that takes the amount from its code, its state or the outside world."""

    @limpet.agent(name="edits_payer", approvals=APPROVALS)
    async def agent(run: limpet.Run, order: str) -> str:
        if how == "the world":
            return await run.step(pay, order, World.cents)
        if how == "a read":
            await run.patch(facts={"cents": World.cents})
        else:
            await run.patch(facts={"cents": cents})
        wanted: int = run.state.facts["cents"] if how != "its code" else cents
        return await run.step(pay, order, wanted)

    return agent


async def approve_shown(app: TestApp, cents: int) -> limpet.Request:
    """Approve the one request after checking the amount that it shows."""
    [request] = await app.inbox()
    assert request.args == {"order": "o1", "cents": cents}
    await app.approve(request, by="ann")
    return request


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("how", ["its code", "the world"])
async def test_changed_arguments_need_another_approval(how: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code or the data behind the argument changes before or after the approval."""
    async with testing.app(payer(how)) as app:
        handle = await app.start(payer(how), "o1", id="r1")
        await app.settle()
        [first] = await app.inbox()
        if when == WHEN[1]:
            app.crash_at("after", "request.answered")
            await app.approve(first, by="ann")  # no worker has acted on it yet
        monkeypatch.setattr(World, "cents", 200)
        app.deploy(payer(how, 200))
        await app.crash()
        await app.settle()
        if when == WHEN[0]:
            await app.approve(first, by="ann")  # it approves the arguments shown
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
    """Check that the effect used the approval of exactly its arguments; so did any earlier attempt that was not
    applied.
    """
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
async def test_replay_uses_the_recorded_patch_for_an_approved_argument(
    how: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed code would patch another value, but the recorded patch is used, so the approval applies."""
    async with testing.app(payer(how)) as app:
        handle = await app.start(payer(how), "o1", id="r1")
        await app.settle()
        if when == WHEN[1]:
            app.crash_at("after", "request.answered")
            await approve_shown(app, 100)
        monkeypatch.setattr(World, "cents", 200)
        app.deploy(payer(how, 200))
        await app.crash()
        await app.settle()
        if when == WHEN[0]:
            assert app.calls(pay) == []
            await approve_shown(app, 100)
        assert await handle.result() == "o1: 100"
        assert app.calls(pay) == [{"order": "o1", "cents": 100}]
        await check_grants(app, "r1")


async def test_a_signal_that_changes_the_argument_needs_another_approval() -> None:
    """The approval of the first call does not cover the second, whose argument has changed."""

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
async def test_edited_arguments_are_used_once_after_a_crash(when: Any, place: str) -> None:
    """The resumed run calls the tool with the person's arguments, not with those of its code."""

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
            if request.kind == "unknown":  # the worker died during the effect
                await app.answer(request, {"applied": "o1: 5"} if app.calls(pay) else "not_applied", by="ann")
                await app.settle()
        await app.crash()
        [request] = await app.inbox()
        assert request.question == "enough?"
        await app.approve(request, by="ann")
        assert await handle.result() == ["o1: 5", True]
        assert app.calls(pay) == [{"order": "o1", "cents": 5}]
        assert app.crashes >= 1
        keys = {event.body["key"] for event in await app.log("r1") if event.kind == "step.started"}
        assert keys == {idempotency_key("r1", 1, "edits_pay", digest({"order": "o1", "cents": 5}))}
        await check_grants(app, "r1")


@limpet.agent(name="edits_resumed", approvals=APPROVALS)
async def resumed(run: limpet.Run, order: str) -> list[str]:
    """Two payments whose arguments a person edits."""
    return [await run.step(pay, order, 700), await run.step(pay, order, 800)]


async def test_edited_arguments_survive_a_resume_at_every_commit() -> None:
    places = await testing.always_resume(
        resumed, "o1", answers={"edits_pay": EDITED}, prepare=lambda app: app.stub(pay, "paid")
    )
    assert places > 6


async def test_a_read_is_retried_with_edited_arguments_after_a_crash() -> None:

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


def without_tool(request: limpet.Request) -> limpet.Request:
    """Return the request after removing its tool from this process."""
    from limpet.engine.definitions import tools  # noqa: PLC0415

    tools._tools.pop("elsewhere", None)
    return request


async def test_edited_arguments_are_validated_without_the_tool(tmp_path: Path) -> None:
    """They are validated with the schema stored in the request."""

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
                await app.approve(without_tool(request), by="ann", args=wrong)
        await app.approve(request, by="ann", args={"cents": 5})
        assert await handle.result() == 5
