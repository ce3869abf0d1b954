"""Every command records who sent it and through which interface; reports, logs and messages show it."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.events import bodies as b
from limpet.journal import load
from limpet.stores.cipher import MasterKeys
from limpet.testing import ScriptedModel

BOB = limpet.Principal(name="bob", kind="service", door="billing")


@limpet.tool(effect="once", name="senders_pay", risk="money")
async def pay(cents: int) -> int:
    """Pay."""
    return cents


@limpet.agent(name="senders_waits")
async def waits(run: limpet.Run) -> str:
    return await run.receive("go", str)


@limpet.agent(name="senders_pays", approvals=limpet.Approvals("money"))
async def pays(run: limpet.Run) -> int:
    return await run.step(pay, 900)


async def senders(app: limpet.App, run: str) -> list[tuple[str, str, str]]:
    """Return the events of a run that have a sender, with who sent them and through which interface."""
    events = [(each.kind, each.body.get("by", ""), each.body.get("via", "")) for each in await app.log(run)]
    return [each for each in events if each[1] or each[2]]


async def reported(app: limpet.App, run: str) -> list[tuple[str, str, str, str]]:
    report = await app.show(run)
    return [(each.kind, each.by, each.via, each.reason) for each in report.commands]


async def test_a_run_knows_who_started_paused_resumed_and_cancelled_it() -> None:
    """The report has the last command of each kind, with its reason; `run.cancelled` repeats who asked for it."""
    async with testing.app(waits) as app:
        handle = await app.start(waits, id="r", by="ann")
        await app.settle()
        await app.pause("r", reason="too early", by="ann")
        await app.resume("r", by=BOB)
        await app.settle()
        await app.pause("r", reason="still too early")
        await app.resume("r", by="cem")
        await app.cancel("r", reason="no", by="dee")
        with pytest.raises(limpet.RunCancelled):
            await handle.result()
        assert await reported(app, "r") == [
            ("start", "ann", "python", ""),
            ("pause", "", "python", "still too early"),
            ("resume", "cem", "python", ""),
            ("cancel", "dee", "python", "no"),
        ]
        assert ("resume.requested", "bob", "billing") in await senders(app, "r")
        assert (await senders(app, "r"))[-1] == ("run.cancelled", "dee", "python")


async def test_a_signal_and_a_run_started_again_keep_their_first_sender() -> None:
    """Starting a run again with its id returns the run that exists, whoever asks."""
    async with testing.app(waits) as app:
        await app.start(waits, id="r", by="ann")
        await app.start(waits, id="r", by="bob")
        await app.settle()
        await app.signal("r", "go", "now", by="cem", command_id="s-1")
        await app.signal("r", "go", "now", by=limpet.Principal(name="cem", door="http"), command_id="s-1")
        with pytest.raises(limpet.IdConflict):
            await app.signal("r", "go", "now", by="dee", command_id="s-1")
        assert await (await app.get("r")).result() == "now"
        assert await senders(app, "r") == [("run.created", "ann", "python"), ("signal.received", "cem", "python")]


async def test_a_fork_has_its_own_sender_and_not_the_commands_of_its_origin() -> None:
    """Repeating a fork with its id is the same fork, whoever asks."""
    async with testing.app(waits) as app:
        await app.start(waits, id="r", by="ann")
        await app.settle()
        await app.pause("r", by="ann")
        for who in ("bob", "cem"):
            await app.fork("r", at=1, id="f", by=who)
        assert await reported(app, "f") == [("fork", "bob", "python", "")]
        assert [each[0] for each in await reported(app, "r")] == ["start", "pause"]


async def test_the_sender_of_a_child_runs_commands_is_its_parent() -> None:
    """The parent started it, cancelled it, and the child's return names the child."""

    @limpet.agent(name="senders_parent")
    async def parent(run: limpet.Run) -> str:
        started = await run.start(waits, None, id=f"{run.id}.started")
        with suppress(limpet.WrongState):  # it has ended when the code runs again
            await started.cancel("not needed")
        return await run.call(waits, None)

    async with testing.app(waits, parent) as app:
        await app.start(parent, id="r", by="ann")
        await app.settle()
        assert (await senders(app, "r.started"))[:2] == [("run.created", "r", "run"), ("cancel.requested", "r", "run")]
        await app.cancel("r", reason="no", by="ann")
        await app.settle()
        [called] = [each.body["run"] for each in await app.log("r") if each.body.get("mode") == "call"]
        assert await reported(app, called) == [
            ("start", "r", "run", ""),
            ("cancel", "r", "run", "r was cancelled: no"),
        ]
        await app.start(parent, id="s")
        await app.settle()
        await app.signal("s.senders_waits-1", "go", "now")
        assert await (await app.get("s")).result() == "now"
        assert ("agent.returned", "s.senders_waits-1", "run") in await senders(app, "s")


async def test_an_edited_approval_a_standing_one_and_its_revocation_have_senders() -> None:
    """All events of one decision have the same sender, and so has the step that used it."""
    async with testing.app(pays) as app:
        handle = await app.start(pays, id="r")
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by=BOB, args={"cents": 5}, standing=True)
        assert await handle.result() == 5
        [step] = await app.steps("r")
        assert step.granted_by == "bob"
        given = [each for each in await senders(app, "r") if each[1]]
        assert given == [("request.answered", "bob", "billing"), ("grant.given", "bob", "billing")]


async def test_a_budget_that_a_person_extends_says_who_did() -> None:
    @limpet.tool(effect="none", name="senders_look")
    async def look(n: int) -> int:
        return n

    @limpet.agent(name="senders_spends", budget=limpet.Budget(max_steps=1, exhausted="ask"))
    async def spends(run: limpet.Run) -> int:
        return sum([await run.step(look, n) for n in range(2)])

    async with testing.app(spends) as app:
        handle = await app.start(spends, id="r")
        await app.settle()
        [request] = await app.inbox()
        await app.answer(request, {"max_steps": 5}, by="ann")
        assert await handle.result() == 1
        assert ("extend", "ann", "python", "") in await reported(app, "r")


@pytest.mark.parametrize("is_live", [True, False], ids=["to a run", "to no run"])
async def test_a_message_shows_who_said_it(is_live: bool) -> None:
    """Whether a run receives it or it waits for the next one; a model's reply has no sender."""
    agent = limpet.llm_agent("senders_desk", model=ScriptedModel("one", "two", "three"), instructions="Talk.")
    async with testing.app(agent) as app:
        await app.run(agent, "hi", conversation="c", by="ann")
        if is_live:
            await app.start(agent, "again", conversation="c", by="ann", at="1h")
        await app.say("c", "hello?", by=BOB)
        await app.advance("1h")
        if not is_live:
            await app.run(agent, "again", conversation="c", by="ann")
        said = {each.text: each.by for each in await app.messages("c")}
        assert said == {"hi": "ann", "one": "", "hello?": "bob", "again": "ann", "two": ""}


async def test_a_message_that_no_turn_received_keeps_its_sender() -> None:
    """A run that ends leaves it in the conversation."""

    @limpet.agent(name="senders_deaf")
    async def deaf(run: limpet.Run) -> None:
        await run.say("hello")
        await run.sleep("1h")

    async with testing.app(deaf) as app:
        handle = await app.start(deaf, id="r", conversation="c")
        await app.settle()
        await app.say("c", "wait", by="ann")
        await app.advance("1h")
        await handle.result()
        assert [(each.text, each.by) for each in await app.messages("c")] == [("hello", ""), ("wait", "ann")]


async def test_a_command_of_an_older_version_is_still_the_same_command() -> None:
    """A run that a parent cancelled before the upgrade is cancelled again by the same command, without a conflict."""
    async with testing.app(waits) as app:
        await app.start(waits, id="r")
        await app.settle()
        old = b.SignalReceived(command="c-1", signal="go", value=app.store.pack("now")[0])
        await app.store.send_commands("r", old, actor="old")
        await app.signal("r", "go", "now", by="ann", command_id="c-1")
        assert await (await app.get("r")).result() == "now"


async def test_a_replay_compares_no_senders() -> None:
    """A log with and one without senders replay with the same code."""
    async with testing.app(waits) as app:
        for run, how in (("known", {"by": "ann"}), ("unknown", {})):
            more: Any = how
            await app.start(waits, id=run, **more)
            await app.settle()
            await app.signal(run, "go", "now", **more)
            await (await app.get(run)).result()
            assert (await app.replay(run)).how == "returned"
        state = await load(app.store, "unknown")
        assert state.commands["start"].by == ""


async def test_an_encrypted_store_hides_the_senders(tmp_path: Path) -> None:
    """No file of the store contains the name, and the app shows it."""
    url = f"sqlite:///{tmp_path / 'limpet.db'}"
    store = limpet.open_store(url, keys=MasterKeys(lambda: bytes(32)))
    async with limpet.open(agents=[waits], worker=False).replace(store=store) as app:
        await app.start(waits, id="r", by="anneliese")
        assert await reported(app, "r") == [("start", "anneliese", "python", "")]
    assert not [path for path in tmp_path.iterdir() if b"anneliese" in path.read_bytes()]
