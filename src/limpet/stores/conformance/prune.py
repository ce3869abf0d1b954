"""Pruning: ended runs are deleted with everything that belongs to them, together or not at all."""

import asyncio

from limpet.errors import NotFound, Tampered
from limpet.events import bodies as b
from limpet.events import inline
from limpet.stores import RequestFilter, RunFilter
from limpet.stores.conformance.suite import (
    FAILED,
    Owner,
    World,
    answered,
    asked,
    behaviour,
    completed,
    created,
    expect,
    forked,
    gave,
    signalled,
    started,
)

END = b.RunCompleted(output=inline(None))


@behaviour()
async def pruning_deletes_everything_of_a_run(world: World) -> None:
    """A pruned run's log, row, requests, labels, snapshots and late results are deleted."""
    owner = await world.own(labels={"team": "a"})
    await owner.append(started(), completed(), asked("q1"))
    await world.store.send_commands("r1", answered("q1"), actor="ann")
    owner.head = (await owner.row()).head
    await world.store.save_snapshot("r1", owner.head, b"{}")
    await world.store.keep_late(owner.seal(started(9)))
    await owner.append(END)
    assert await world.store.prune({"r1": owner.head})
    await expect(NotFound, world.store.get("r1"))
    await expect(NotFound, world.store.read("r1"))
    await expect(NotFound, world.store.late("r1"))
    await expect(NotFound, world.store.snapshots("r1"))
    assert (await world.store.runs()).rows == ()
    assert (await world.store.runs(RunFilter(labels={"team": "a"}))).rows == ()
    assert await world.store.requests(RequestFilter(status=None)) == []
    assert {pair: n for pair, n in (await world.store.counts()).items() if n} == {}
    assert await world.store.check_counts() == []


@behaviour()
async def only_ended_runs_are_pruned(world: World) -> None:
    """Pending, running and waiting runs are not pruned, nor runs that have continued since they were read."""
    await world.create("pending")
    assert not await world.store.prune({"pending": (await world.store.get("pending")).head})
    owner = await world.own("r1")
    assert not await world.store.prune({"r1": owner.head})
    await owner.append(FAILED)
    await world.store.send_commands("r1", b.ResumeRequested(command="c1"), actor="ann")
    assert not await world.store.prune({"r1": owner.head})
    assert not await world.store.prune({"r1": (await owner.row()).head})
    assert not await world.store.prune({"missing": owner.head})
    assert {row.id for row in (await world.store.runs()).rows} == {"pending", "r1"}


@behaviour()
async def runs_are_pruned_together_or_not_at_all(world: World) -> None:
    """If one run cannot be pruned, none is."""
    first = await _ended(world, "r1")
    second = await _ended(world, "r2")
    await world.create("r3")
    assert not await world.store.prune({"r1": first.head, "r3": (await world.store.get("r3")).head})
    assert len(await world.log("r1")) == 3
    assert await world.store.prune({"r2": second.head, "r1": first.head})
    assert [row.id for row in (await world.store.runs()).rows] == ["r3"]


@behaviour()
async def a_run_with_a_fork_is_not_pruned(world: World) -> None:
    """A run with a fork is not pruned, unless the fork is pruned with it."""
    owner = await _ended(world, "r1")
    await world.store.create("r1.1", forked(at=2, step=0), actor="test")
    assert not await world.store.prune({"r1": owner.head})
    fork = await world.take("r1.1")
    await fork.append(END)
    assert not await world.store.prune({"r1": owner.head})
    assert len(await world.log("r1.1")) == 5
    assert await world.store.prune({"r1": owner.head, "r1.1": fork.head})
    await expect(NotFound, world.store.get("r1.1"))


@behaviour()
async def a_fork_can_be_pruned_before_its_origin(world: World) -> None:
    """A fork can be pruned before its origin."""
    owner = await _ended(world, "r1")
    await world.store.create("r1.1", forked(at=2, step=0), actor="test")
    fork = await world.take("r1.1")
    await fork.append(END)
    assert await world.store.prune({"r1.1": fork.head})
    assert len(await world.log("r1")) == owner.head.seq
    assert await world.store.check_rows("r1") == []


@behaviour()
async def blobs_without_references_after_a_prune_are_collected(world: World) -> None:
    """Blobs without references after a prune are collected after their hour; others stay."""
    shared, blobs = world.store.pack("s" * 20_000)
    mine, more = world.store.pack("m" * 20_000)
    first = await world.own("r1")
    await first.append(started(), gave(shared), started(2), gave(mine, 2), blobs=(*blobs, *more))
    await first.append(END)
    second = await world.own("r2")
    await second.append(started(), gave(shared), blobs=blobs)
    assert await world.store.prune({"r1": first.head})
    assert await world.store.collect_blobs() == 0
    assert await world.store.unpack(mine) == "m" * 20_000
    world.advance("2h")
    assert await world.store.collect_blobs() == 1
    await expect(NotFound, world.store.unpack(mine))
    assert await world.store.unpack(shared) == "s" * 20_000
    assert await world.store.check_rows("r2") == []


@behaviour()
async def a_feed_continues_over_pruned_events(world: World) -> None:
    """A feed continues over pruned events without missing or repeating others."""
    first = await _ended(world, "r1")
    page = await world.store.feed("", limit=2)
    place = page.next
    await world.create("r2")
    assert await world.store.prune({"r1": first.head})
    await world.create("r3")
    rest = await world.store.feed(place)
    assert [event.run for event in rest.events] == ["r2", "r3"]
    assert (await world.store.feed(rest.next)).events == ()
    assert [event.run for event in (await world.store.feed("")).events] == ["r2", "r3"]


@behaviour()
async def a_pruned_id_can_be_used_again(world: World) -> None:
    """A pruned id can be used again for a new run, which has nothing of the old one."""
    owner = await _ended(world, "r1")
    await world.store.prune({"r1": owner.head})
    row, is_new = await world.store.create("r1", created(input=inline(await world.store.now())), actor="test")
    assert is_new
    assert row.seq == 1
    await world.store.send_commands("r1", signalled(command="c1"), actor="ann")
    again = await world.take()
    await again.append(started(), completed(), END)
    assert await world.kinds("r1") == [
        "run.created",
        "signal.received",
        "run.claimed",
        "step.started",
        "step.completed",
        "run.completed",
    ]
    assert await world.store.check_rows("r1") == []


@behaviour()
async def a_prune_does_not_affect_a_new_run_with_the_same_id(world: World) -> None:
    """A prune or append meant for the pruned run does not affect a new run with its id, even under the same fence."""
    old = await _ended(world, "r1")
    ended, known = old.head, [event.head for event in await world.log("r1")]
    await world.store.prune({"r1": ended})
    world.advance("1s")
    new = await world.own("r1")
    assert new.fence == old.fence
    for old.head in known:
        await expect(Tampered, old.send(old.extend(started(9))))
    await new.append(END)
    assert new.head.seq == ended.seq
    assert not await world.store.prune({"r1": ended})
    assert await world.kinds("r1") == ["run.created", "run.claimed", "run.completed"]
    assert await world.store.prune({"r1": new.head})


@behaviour()
async def pruning_does_not_affect_other_runs(world: World) -> None:
    """Other runs continue while runs are pruned."""
    ended = [await _ended(world, f"e{n}") for n in range(5)]
    live = [await world.own(f"l{n}") for n in range(5)]
    work = [owner.append(started(), completed()) for owner in live]
    pruning = [world.store.prune({owner.run: owner.head}) for owner in ended]
    done = await asyncio.gather(*work, *pruning)
    assert all(done)
    assert {row.id for row in (await world.store.runs()).rows} == {owner.run for owner in live}
    for owner in live:
        assert await world.store.check_rows(owner.run) == []


async def _ended(world: World, run: str) -> Owner:
    owner = await world.own(run)
    await owner.append(END)
    return owner
