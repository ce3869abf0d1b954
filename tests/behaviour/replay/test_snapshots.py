"""Snapshots: a restored memory equals the one built from the whole log."""

import asyncio
from collections.abc import Sequence

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
