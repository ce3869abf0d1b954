"""Snapshots: a restored memory equals the one built from the whole log."""

import asyncio
from collections.abc import Sequence

import msgspec

import limpet
from limpet import testing
from limpet.engine.replay.learned import Learned
from limpet.events import Event
from limpet.state import Fold


def learn(memory: Learned, events: Sequence[Event], fold: Fold) -> None:
    for event in events:
        fold.add(event, event.decode())
        memory.learn(event, event.decode(), fold)


def cut_at(events: Sequence[Event], cut: int) -> bytes | None:
    """Return the final memory after restoring a snapshot at `cut`, or None if no snapshot is possible there."""
    first, again, fold = Learned(), Learned(), Fold()
    learn(first, events[:cut], fold)
    kept = first.dump()
    if kept is None:
        return None
    assert again.restore(kept)
    learn(again, events[cut:], fold)
    return again.dump()


async def test_memory_restored_from_any_snapshot_equals_the_whole_log() -> None:

    @limpet.tool(effect="none")
    async def read(n: int) -> int:
        return n

    @limpet.agent()
    async def agent(run: limpet.Run) -> int:
        await run.ask("start?", expires="1h", escalate=["bob"])
        async for turn in run.turns(max=3):
            await run.patch(facts={"turn": turn.number})
            await asyncio.gather(run.step(read, turn.number), run.receive("go", int))
        return 1

    async with testing.app(agent) as app:
        await app.start(agent, id="r1")
        await app.advance("1h")
        await app.approve((await app.inbox())[0], by="bob")
        for n in range(5):
            await app.signal("r1", "go", n)
        await app.settle()
        events = [event async for event in app.store.log("r1")]
    whole = Learned()
    learn(whole, events, Fold())
    kept = [cut_at(events, cut) for cut in range(1, len(events))]
    assert {each for each in kept if each is not None} == {whole.dump()}
    assert sum(each is not None for each in kept) > 5


async def test_a_run_that_begins_turns_late_has_whole_snapshots() -> None:
    """Records of steps before the first turn were dropped; its snapshots contain them all the same.

    After a crash, the steps before the loop are not repeated.
    """
    called: list[int] = []

    @limpet.tool(effect="none", name="late_turns_read")
    async def read(n: int) -> str:
        called.append(n)
        return "x" * 500

    @limpet.agent(name="late_turns")
    async def agent(run: limpet.Run) -> int:
        for n in range(200):
            await run.step(read, n)
        async for turn in run.turns(max=400):
            await run.step(read, 1000 + turn.number)
        return len(called)

    async with testing.app(agent) as app:
        app.crash_at("after", "step.completed", name="turns#1/399/late_turns_read#1")
        assert await app.run(agent, id="r1") == 600
        assert app.crashes == 1
        assert called == [*range(200), *range(1001, 1401)]
        kept = [seq for seq, _ in await app.store.snapshots("r1")]
        events = [event async for event in app.store.log("r1")]
        assert kept
        for seq in kept:
            whole, found = Learned(), await app.store.own_snapshot("r1", seq)
            learn(whole, events[:seq], Fold())
            assert found is not None
            memory = msgspec.json.decode(found.data).get("memory")
            dumped = whole.dump()
            assert memory == (None if dumped is None else msgspec.json.decode(dumped))
        await app.verify("r1")
