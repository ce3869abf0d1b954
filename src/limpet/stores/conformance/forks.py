"""Forks: streams that share the first events of another's log, and store only their own."""

import asyncio
from typing import Any

from limpet.errors import IdConflict, InvalidAppend, NotFound
from limpet.events import StatePatch, inline, verify
from limpet.events import bodies as b
from limpet.stores import Create, RequestFilter, RunFilter, RunRow, Store
from limpet.stores.conformance.suite import (
    Owner,
    World,
    answered,
    asked,
    behaviour,
    completed,
    expect,
    forked,
    gave,
    message,
    signalled,
    started,
)
from limpet.stores.memory import MemoryBackend
from limpet.stores.threads import Inline


@behaviour()
async def a_forks_log_has_the_shared_events_and_its_own(world: World) -> None:
    """A fork's log has the shared events unchanged, with the origin's run id, then its own, chained to them."""
    owner = await _grown(world)
    before = await world.log()
    row = await _fork(world, at=5)
    fork = await world.take("r1.1")
    await fork.append(started(3), completed(3, "other"))
    log = await world.log("r1.1")
    assert log[:5] == before[:5]
    assert [event.run for event in log] == ["r1"] * 5 + ["r1.1"] * 4
    assert [event.kind for event in log[5:]] == ["run.forked", "run.claimed", "step.started", "step.completed"]
    assert [event.seq for event in log] == list(range(1, 10))
    assert verify(log) == fork.head
    assert row.fence == before[4].fence
    assert await world.log() == before
    assert (await owner.row()).head == owner.head


@behaviour()
async def a_forks_row_has_the_fields_of_its_first_event(world: World) -> None:
    """A fork's row has the fields of its first event and its origin, and is listed like any run."""
    await _grown(world)
    row = await _fork(world, at=5, goal="again", labels={"team": "north"}, user="ann", session="s1", item=1, items=3)
    stored = await world.store.get("r1.1")
    assert stored == row
    assert (row.origin, row.origin_at, row.seq, row.step, row.status) == ("r1", 5, 6, 2, "pending")
    assert (row.goal, row.labels, row.user, row.session, row.item, row.items) == (
        "again",
        {"team": "north"},
        "ann",
        "s1",
        1,
        3,
    )
    assert [each.id for each in (await world.store.runs(RunFilter(origin="r1"))).rows] == ["r1.1"]
    assert [each.id for each in (await world.store.runs(RunFilter(labels={"team": "north"}))).rows] == ["r1.1"]
    assert await world.store.check_rows("r1.1") == []


@behaviour()
async def pages_of_a_fork_cross_the_fork_point(world: World) -> None:
    """Pages across the fork point give the same log, forwards and backwards."""
    await _grown(world)
    await _fork(world, at=5)
    fork = await world.take("r1.1")
    await fork.append(started(3), completed(3))
    whole = await world.log("r1.1")
    for after in range(10):
        for before in (*range(1, 12), None):
            wanted = [each for each in whole if each.seq > after and (before is None or each.seq < before)]
            for limit in (1, 2, 5, 20):
                read = await world.store.read("r1.1", after=after, before=before, limit=limit)
                assert read == wanted[:limit], (after, before, limit)
                back = await world.store.read("r1.1", after=after, before=before, limit=limit, backwards=True)
                assert back == wanted[::-1][:limit], (after, before, limit)


@behaviour()
async def a_fork_of_a_fork_shares_events_with_both(world: World) -> None:
    """A fork of a fork may start after, at, or before the first fork point."""
    await _grown(world)
    await _fork(world, at=5)
    fork = await world.take("r1.1")
    await fork.append(started(3), completed(3))
    for place, at in enumerate((1, 3, 5, 6, 8), 1):
        await _fork(world, f"r1.1.{place}", of="r1.1", at=at)
        log = await world.log(f"r1.1.{place}")
        assert log[:-1] == (await world.log("r1.1"))[:at]
        assert verify(log).seq == at + 1
        assert await world.store.check_rows(f"r1.1.{place}") == []


@behaviour()
async def the_feed_has_shared_events_once(world: World) -> None:
    """The feed has each event once: shared events belong to the origin."""
    await _grown(world)
    place = await world.store.feed_end()
    await _fork(world, at=5)
    await world.take("r1.1")
    feed = await world.store.feed(place)
    assert [(event.run, event.seq) for event in feed.events] == [("r1.1", 6), ("r1.1", 7)]


@behaviour()
async def later_events_of_origin_and_fork_are_separate(world: World) -> None:
    """Events written to the origin or the fork afterwards are not in the other."""
    owner = await _grown(world)
    await _fork(world, at=5)
    fork = await world.take("r1.1")
    await asyncio.gather(owner.append(started(3)), fork.append(started(3), completed(3)))
    assert len(await world.log()) == 8
    assert len(await world.log("r1.1")) == 9
    assert verify(await world.log()) == owner.head
    assert verify(await world.log("r1.1")) == fork.head


@behaviour()
async def creating_a_fork_again_returns_the_same_fork(world: World) -> None:
    """Creating a fork again with the same fields gives the same fork; other fields are refused."""
    await _grown(world)
    row = await _fork(world, at=5)
    again, is_new = await world.store.create("r1.1", forked(at=5), actor="test")
    assert (again.number, is_new) == (row.number, False)
    await expect(IdConflict, world.store.create("r1.1", forked(at=4), actor="test"))
    await expect(IdConflict, world.store.create("r1", forked(at=4), actor="test"))


@behaviour()
async def a_fork_needs_an_existing_event_of_a_run(world: World) -> None:
    """A fork needs an existing event of an existing run; a conversation is not a run."""
    await _grown(world)
    await expect(InvalidAppend, world.store.create("f", forked(at=8), actor="test"))
    await expect(InvalidAppend, world.store.create("f", forked(at=0), actor="test"))
    await expect(NotFound, world.store.create("f", forked(of="none", at=1), actor="test"))
    await world.conversation()
    await expect(InvalidAppend, world.store.create("f", forked(of="c1", at=1), actor="test"))
    await expect(NotFound, world.store.get("f"))


@behaviour()
async def a_fork_is_claimed_under_a_higher_fence(world: World) -> None:
    """A fork is claimed under a higher fence than the shared events, so that the origin's owner cannot write to it."""
    owner = await _grown(world)
    await _fork(world, at=5)
    fork = await world.take("r1.1")
    assert fork.fence > (await world.log())[4].fence
    assert (await owner.row()).worker == "w1"


@behaviour()
async def origin_and_fork_have_separate_requests(world: World) -> None:
    """Origin and fork have separate requests: an answer affects only one run."""
    owner = await _grown(world)
    await owner.append(asked("q1"))
    await _fork(world, at=8)
    fork = await world.take("r1.1")
    await fork.append(asked("q2"))
    assert [row.run for row in await world.store.requests(RequestFilter(run="r1.1"))] == ["r1.1"]
    await world.store.send_commands("r1.1", answered("q2", command="c2"), actor="ann")
    await expect(NotFound, world.store.send_commands("r1.1", answered("q1", command="c3"), actor="ann"))
    await world.store.send_commands("r1", answered("q1", command="c4"), actor="ann")
    assert (await world.kinds())[-1] == "request.answered"
    assert await world.store.check_rows("r1.1") == await world.store.check_rows("r1") == []


@behaviour()
async def a_command_id_of_the_origin_can_be_used_in_the_fork(world: World) -> None:
    """A command id used in the origin can be used in the fork, since ids are deduplicated per run."""
    owner = await _grown(world)
    await world.store.send_commands("r1", signalled(command="c1"), actor="ann")
    await _fork(world, at=8)
    await world.store.send_commands("r1.1", signalled(command="c1"), actor="ann")
    assert (await world.kinds("r1.1"))[7:] == ["signal.received", "run.forked", "signal.received"]
    assert (await owner.row()).seq == 8


@behaviour()
async def blobs_of_a_fork_are_not_collected(world: World) -> None:
    """Blobs of a fork stay: its own by its references, shared ones by the origin's."""
    owner = await world.own()
    shared, blobs = world.store.pack("x" * 20_000)
    await owner.append(started(), gave(shared), blobs=blobs)
    mine, blobs = world.store.pack("y" * 20_000)
    row, _ = await world.store.create("r1.1", forked(at=4, results={"1": mine}), actor="test", blobs=blobs)
    world.advance("2h")
    await world.store.collect_blobs()
    assert await world.store.unpack(shared) == "x" * 20_000
    assert await world.store.unpack(mine) == "y" * 20_000
    assert await world.store.check_rows(row.id) == []
    missing, _ = world.store.pack("z" * 20_000)
    await expect(NotFound, world.store.create("r1.2", forked(at=4, input=missing), actor="test"))


@behaviour()
async def a_fork_is_rebuilt_from_its_own_events(world: World) -> None:
    """Rebuilding a fork from its own events changes nothing."""
    await _grown(world)
    await _fork(world, at=5, labels={"a": "b"}, goal="again")
    fork = await world.take("r1.1")
    await fork.append(started(3), completed(3), asked("q9"))
    before = await world.store.get("r1.1")
    await world.store.rebuild("r1.1")
    after = await world.store.get("r1.1")
    assert (after.seq, after.hash, after.origin, after.origin_at) == (before.seq, before.hash, "r1", 5)
    assert await world.store.check_rows("r1.1") == []


@behaviour()
async def a_fork_can_be_loaded_only_after_its_origin(world: World) -> None:
    """A fork can be loaded where its origin exists, and is refused without it."""
    await _grown(world)
    await _fork(world, at=5)
    fork = await world.take("r1.1")
    await fork.append(started(3), completed(3), b.RunCompleted(output=inline(None)))
    own = [event for event in await world.log("r1.1") if event.run == "r1.1"]
    await expect(IdConflict, world.store.load(own, actor="test"))
    async with Store(MemoryBackend(world.clock), Inline()) as elsewhere:
        elsewhere.codec = world.store.codec
        await expect(NotFound, elsewhere.load(own, actor="test"))
        await elsewhere.load(await world.log(), actor="test")
        row = await elsewhere.load(own, actor="test")
        assert (row.status, row.head) == ("completed", fork.head)
        assert [event async for event in elsewhere.log("r1.1")] == await world.log("r1.1")
        assert await elsewhere.check_rows("r1.1") == []


@behaviour()
async def a_conversation_is_forked_like_a_run(world: World) -> None:
    """A forked conversation shares the messages before the fork point."""
    await world.conversation(message("one"), message("two"), message("three"), session="s")
    branch = b.ConversationForked(conversation="c1", at=3, session="s")
    await world.store.append(Create(run="c1.1", bodies=(branch,), actor="test"))
    log = await world.log("c1.1")
    assert [event.kind for event in log] == ["conversation.created", *["message.added"] * 2, "conversation.forked"]
    row = await world.store.get("c1.1")
    assert (row.type, row.status, row.origin, row.origin_at, row.session) == ("conversation", "open", "c1", 3, "s")
    assert verify(log) == row.head
    assert await world.store.check_rows("c1.1") == []
    wrong = b.ConversationForked(conversation="r1", at=1)
    await world.create("r1")
    await expect(InvalidAppend, world.store.append(Create(run="c2", bodies=(wrong,), actor="test")))


async def _grown(world: World) -> Owner:
    """Create a run with a claim and two steps, seven events in all; return its owner."""
    owner = await world.own()
    await owner.append(started(1), completed(1, "one"))
    await owner.append(started(2), completed(2, "two"))
    await owner.append(b.StatePatched(name="patch#1", patch=StatePatch(flags=("seen",))))
    return owner


async def _fork(world: World, run: str = "r1.1", of: str = "r1", **more: Any) -> RunRow:
    row, is_new = await world.store.create(run, forked(of=of, **more), actor="test")
    assert is_new
    return row
