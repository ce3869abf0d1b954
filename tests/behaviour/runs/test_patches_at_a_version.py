"""A patch from outside that names the event at which its sender read the state: it overwrites nothing unseen."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing


@limpet.agent(name="versions_looper")
async def looper(run: limpet.Run) -> dict[str, Any]:
    """Count the turns in a fact, and wait in each."""
    async for turn in run.turns(max=3):
        await run.patch(facts={"turn": turn.number}, plan=["look", "sell"] if turn.number == 1 else ["sell"])
        await run.receive(f"go-{turn.number}", str)
    return dict(run.state.facts)


async def read(app: limpet.App) -> int:
    """Return the event at which the state is read now."""
    return (await app.state("r")).seq


async def go(app: testing.TestApp, number: int) -> None:
    await app.signal("r", f"go-{number}", "go")
    await app.settle()


async def test_a_patch_is_sent_if_nothing_that_it_touches_has_changed() -> None:
    async with testing.app(looper) as app:
        handle = await app.start(looper, id="r")
        await app.settle()
        seq = await read(app)
        await go(app, 1)
        await app.patch("r", seq=seq, facts={"price": 5}, goal="sell", by="ann")
        await go(app, 2)
        assert (await app.state("r")).goal == "sell"
        await go(app, 3)
        assert (await handle.result())["price"] == 5
        await app.verify("r")


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"facts": {"turn": 9}}, ("facts.turn",)),
        ({"retract": ["turn"]}, ("facts.turn",)),
        ({"facts": {"next": 3}, "derived_from": ["turn"]}, ("facts.turn",)),
        ({"plan": ["rest"], "facts": {"turn": 9, "price": 1}}, ("facts.turn", "plan")),
    ],
)
async def test_a_patch_is_refused_if_the_run_has_changed_what_it_touches(
    change: dict[str, Any], changed: tuple[str, ...]
) -> None:
    """The error names it, and nothing is written."""
    async with testing.app(looper) as app:
        await app.start(looper, id="r")
        await app.settle()
        seq = await read(app)
        await go(app, 1)
        before = len(await app.log("r"))
        with pytest.raises(limpet.PatchOutdated) as refused:
            await app.patch("r", seq=seq, **change)
        assert (refused.value.changed, refused.value.seq, refused.value.now) == (changed, seq, before)
        assert len(await app.log("r")) == before
        await app.patch("r", seq=await read(app), **change)


async def test_a_patch_that_waits_counts_as_a_change() -> None:
    """Of two senders who have read the same state, one is told."""
    async with testing.app(looper) as app:
        await app.start(looper, id="r")
        await app.settle()
        seq = await read(app)
        await app.patch("r", seq=seq, questions=["who?"], facts={"price": 5}, command_id="one")
        await app.patch("r", seq=seq, questions=["who?"], facts={"price": 5}, command_id="one")  # repeated
        for change in ({"facts": {"price": 6}}, {"questions": ["who?"]}, {"answered": {"who?": "ann"}}):
            with pytest.raises(limpet.PatchOutdated):
                await app.patch("r", seq=seq, **change)
        await app.patch("r", seq=seq, facts={"other": 1}, flags=["late"])
        assert [each.kind for each in await app.log("r")].count("patch.received") == 2


@pytest.mark.parametrize("seq", [0, 1_000])
async def test_an_event_that_the_run_does_not_have_is_refused(seq: int) -> None:
    async with testing.app(looper) as app:
        await app.start(looper, id="r")
        await app.settle()
        with pytest.raises(limpet.InvalidArgument, match="seq"):
            await app.patch("r", seq=seq, goal="x")


async def test_of_many_patches_at_once_one_of_each_part_is_sent(tmp_path: Path) -> None:
    """Through two apps over one file: none is lost, and every other one is refused."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    async with limpet.open(url, agents=[looper]) as app, limpet.open(url, worker=False) as other:
        handle = await app.start(looper, id="r")
        async for event in handle.events():
            if event.kind == "state.patched":
                break
        seq = await read(app)
        sent = await asyncio.gather(
            *(
                each.patch("r", seq=seq, facts={f"part-{number % 5}": number})
                for number in range(40)
                for each in (app, other)
            ),
            return_exceptions=True,
        )
        refused = [each for each in sent if isinstance(each, limpet.PatchOutdated)]
        assert (len(refused), sent.count(None)) == (75, 5)
        for number in (1, 2, 3):
            await app.signal("r", f"go-{number}", "go")
        found = await handle.result()
        assert {name for name in found if name.startswith("part-")} == {f"part-{number}" for number in range(5)}
        await app.verify("r")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_patch_at_a_version_survives_a_kill(when: Any) -> None:
    async with testing.app(looper) as app:
        handle = await app.start(looper, id="r")
        await app.settle()
        app.crash_at(when, "state.patched")
        await app.patch("r", seq=await read(app), facts={"price": 5})
        for number in (1, 2, 3):
            await go(app, number)
        assert (await handle.result())["price"] == 5
        assert app.crashes == 1


@limpet.agent(name="versions_without_turns")
async def without_turns(run: limpet.Run) -> str:
    """Wait once, outside any turn."""
    return await run.receive("go", str)


async def test_a_patch_that_no_turn_applies_is_shown_as_such() -> None:
    """While it waits, and after the run has ended without a turn."""
    async with testing.app(without_turns) as app:
        await app.start(without_turns, id="r")
        await app.settle()
        await app.patch("r", facts={"price": 5})
        assert "1 for the next turn" in str(await app.state("r"))
        await app.signal("r", "go", "go")
        await app.settle()
        assert "1 not applied: the run ended before its next turn" in str(await app.state("r"))
        assert (await app.show("r")).patches == 1
