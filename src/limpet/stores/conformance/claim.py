"""Claims: workers get runnable runs of the agents that they serve, in fair order and within limits."""

import asyncio

from limpet.errors import NotFound
from limpet.events import AnyBody, Sealed, Wait, inline, verify
from limpet.events import bodies as b
from limpet.stores import Claimed, NotClaimed, WorkerRow
from limpet.stores.conformance.suite import LEASE, Owner, World, behaviour, expect, started


@behaviour()
async def a_claimed_run_belongs_to_one_worker(world: World) -> None:
    """A claimed run's row has status, worker and fence, and no other worker gets the run."""
    await world.create()
    await world.worker("w1")
    await world.worker("w2")
    [claimed] = await world.claim("w1")
    row = await world.store.get("r1")
    assert claimed.row == row
    assert (row.status, row.worker, row.fence, row.ready_at, claimed.died) == ("running", "w1", 1, None, False)
    assert await world.claim("w2") == ()


@behaviour()
async def a_claim_appends_run_claimed(world: World) -> None:
    """A claim appends `run.claimed` with the worker, under the new fence."""
    await world.own()
    log = await world.log()
    assert (log[-1].kind, log[-1].fence, world.store.decode(log[-1])) == ("run.claimed", 1, b.RunClaimed(worker="w1"))
    verify(log)


@behaviour()
async def runs_are_claimed_in_the_order_they_became_ready(world: World) -> None:
    """Runs are claimed in the order in which they became ready, over all agents."""
    await world.worker(agents=("a", "b"))
    for run, agent in (("r3", "b"), ("r1", "a"), ("r2", "b")):
        await world.create(run, agent=agent)
        world.advance("1s")
    assert [(await world.claim(limit=1))[0].row.id for _ in range(3)] == ["r3", "r1", "r2"]


@behaviour()
async def a_woken_run_queues_behind_runs_that_were_ready_before(world: World) -> None:
    """A woken run is ordered by the time at which it became ready again."""
    owner = await world.own("r1")
    await owner.append(b.RunWaiting(waits=(Wait(what="time", key="t"),), wake=world.clock.now() + 5_000_000))
    await world.create("r2")
    world.advance("6s")
    await world.create("r3")
    assert [claimed.row.id for claimed in await world.claim()] == ["r2", "r1", "r3"]


@behaviour()
async def a_claim_returns_at_most_limit_runs(world: World) -> None:
    """A claim returns at most `limit` runs."""
    for place in range(10):
        await world.create(f"r{place}")
    await world.worker()
    assert len(await world.claim(limit=3)) == 3
    assert await world.store.counts() == {("a", "running"): 3, ("a", "pending"): 7}


@behaviour()
async def a_worker_gets_only_agents_that_it_serves(world: World) -> None:
    """A worker does not get runs of agents that it does not serve."""
    await world.create("r1", agent="a")
    await world.create("r2", agent="b")
    await world.worker(agents=("b",))
    assert [claimed.row.id for claimed in await world.claim()] == ["r2"]


@behaviour()
async def a_worker_gets_only_versions_that_it_accepts(world: World) -> None:
    """A worker gets only runs of the versions that it accepts."""
    for run, version in (("r1", "1"), ("r2", "2"), ("r3", "3")):
        body = b.RunCreated(agent="a", agent_version=version, input=inline(None))
        await world.store.create(run, body, actor="test")
    await world.store.register(WorkerRow(id="w1", agents={"a": ("2", "1")}), lease=LEASE)
    assert [claimed.row.id for claimed in await world.claim()] == ["r1", "r2"]


@behaviour()
async def agent_names_match_exactly(world: World) -> None:
    """Agent names match exactly: `foo` is not `foobar`, `FOO` or `fo_`."""
    for place, agent in enumerate(("foo", "foobar", "FOO", "fo_", "fo%")):
        await world.create(f"r{place}", agent=agent)
    await world.worker(agents=("foo",))
    assert [claimed.row.agent for claimed in await world.claim()] == ["foo"]


@behaviour()
async def a_claim_by_an_unregistered_worker_is_not_found(world: World) -> None:
    """A claim by an unregistered worker raises NotFound."""
    await world.create()
    error = await expect(NotFound, world.claim("missing"))
    assert error.what == "worker"


@behaviour()
async def waiting_and_ended_runs_are_not_claimed(world: World) -> None:
    """Waiting runs, ended runs and runs of live workers are not claimed."""
    one, two = await world.own("r1"), await world.own("r2")
    await world.own("r3")
    await one.append(b.RunWaiting(waits=(Wait(what="signal", key="go"),)))
    await two.append(b.RunCompleted(output=inline(1)))
    await world.worker("w2")
    assert await world.claim("w2") == ()


@behaviour()
async def a_timer_makes_a_run_claimable(world: World) -> None:
    """A run with a wake time can be claimed from that time of the store's clock on, and not before."""
    owner = await world.own()
    await owner.append(b.RunWaiting(waits=(Wait(what="time", key="t"),), wake=world.clock.now() + 10_000))
    world.clock.set(world.clock.now() + 9_999)
    assert await world.claim() == ()
    world.clock.set(world.clock.now() + 1)
    assert len(await world.claim()) == 1


@behaviour()
async def a_released_run_can_be_claimed_again(world: World) -> None:
    """A release is in the log, and makes the run pending."""
    owner = await world.own()
    await world.store.release("r1", fence=owner.fence, worker="w1", reason="drain")
    assert (await owner.row()).status == "pending"
    assert world.store.decode((await world.log())[-1]) == b.RunReleased(reason="drain")
    [claimed] = await world.claim()
    assert (claimed.row.fence, claimed.died) == (2, False)


@behaviour()
async def two_workers_never_get_the_same_run(world: World) -> None:
    """When eight workers claim a hundred runs concurrently, each run is claimed once."""
    for place in range(100):
        await world.create(f"r{place}")
    for place in range(8):
        await world.worker(f"w{place}")
    given = await asyncio.gather(*(world.claim(f"w{place}", limit=20) for place in range(8)))
    runs = [claimed.row.id for each in given for claimed in each]
    assert len(runs) == len(set(runs)) == 100


@behaviour()
async def a_concurrency_limit_applies_over_all_workers(world: World) -> None:
    """A concurrency limit of an agent applies over all workers."""
    for place in range(5):
        await world.create(f"r{place}")
    await world.worker("w1")
    await world.worker("w2")
    first = await world.store.claim("w1", limit=5, concurrency={"a": 2})
    assert (len(first), await world.store.claim("w2", limit=5, concurrency={"a": 2})) == (2, ())


@behaviour()
async def a_concurrency_slot_is_freed_when_its_run_stops_running(world: World) -> None:
    """A concurrency slot is freed when its run parks, ends or is released."""
    for place in range(4):
        await world.create(f"r{place}")
    await world.worker()
    ends: tuple[AnyBody, ...] = (
        b.RunWaiting(waits=(Wait(what="signal", key="go"),)),
        b.RunCompleted(output=inline(1)),
        b.RunCancelled(reason="x"),
    )
    for end in ends:
        [claimed] = await world.store.claim("w1", limit=5, concurrency={"a": 1})
        await Owner(world, claimed.row).append(end)
    [last] = await world.store.claim("w1", limit=5, concurrency={"a": 1})
    assert last.row.id == "r3"
    await world.store.release("r3", fence=last.row.fence, worker="w1", reason="drain")
    assert len(await world.store.claim("w1", limit=5, concurrency={"a": 1})) == 1


@behaviour()
async def an_exclusive_slot_is_held_until_its_run_ends(world: World) -> None:
    """An exclusive slot is held until its run ends, also while the run waits."""
    await world.create("r1", exclusive="session:s1")
    await world.create("r2", exclusive="session:s1")
    await world.create("r3", exclusive="session:s2")
    await world.worker()
    claimed = {each.row.id: each for each in await world.claim()}
    assert set(claimed) == {"r1", "r3"}
    owner = Owner(world, claimed["r1"].row)
    await owner.append(b.RunWaiting(waits=(Wait(what="time", key="t"),), wake=world.clock.now()))
    [again] = await world.claim()
    assert again.row.id == "r1"
    await Owner(world, again.row).append(b.RunCompleted(output=inline(1)))
    assert [each.row.id for each in await world.claim()] == ["r2"]


@behaviour()
async def a_run_without_a_free_slot_does_not_block_others(world: World) -> None:
    """Runs that wait for a slot of one session do not block other sessions."""
    for place in range(30):
        await world.create(f"s1-{place}", exclusive="session:s1")
    await world.create("s2", exclusive="session:s2")
    await world.worker()
    first = await world.claim(limit=1)
    second = await world.claim(limit=1)
    assert [each.row.id for each in (*first, *second)] == ["s1-0", "s2"]


@behaviour()
async def a_blocked_exclusive_run_takes_no_concurrency_slot(world: World) -> None:
    """A run that waits for its exclusive slot takes no concurrency slot."""
    await world.create("r1", exclusive="session:s1")
    await world.create("r2", exclusive="session:s1")
    await world.create("r3")
    await world.worker()
    got = await world.store.claim("w1", limit=10, concurrency={"a": 2})
    assert [each.row.id for each in got] == ["r1", "r3"]


@behaviour()
async def a_lowered_limit_counts_the_runs_in_progress(world: World) -> None:
    """Under a smaller limit, no run is claimed until enough of the current ones have gone."""
    for place in range(6):
        await world.create(f"r{place}")
    await world.worker()
    driven = await world.store.claim("w1", limit=5, concurrency={"a": 3})
    await Owner(world, driven[0].row).append(b.RunCompleted(output=inline(1)))
    assert await world.store.claim("w1", limit=5, concurrency={"a": 2}) == ()
    await Owner(world, driven[1].row).append(b.RunCompleted(output=inline(1)))
    assert len(await world.store.claim("w1", limit=5, concurrency={"a": 2})) == 1


@behaviour()
async def a_claim_returns_the_head_to_append_after(world: World) -> None:
    """A claim returns the head, so that the worker can append immediately."""
    owner = await world.own()
    await owner.append(started())
    await world.store.release("r1", fence=1, worker="w1", reason="drain")
    await (await world.take()).append(started(2))
    verify(await world.log())


@behaviour()
async def a_conversation_is_never_claimed(world: World) -> None:
    """Conversations are never claimed."""
    await world.conversation()
    await world.worker(agents=("", "a"))
    assert await world.claim() == ()


@behaviour()
async def a_run_released_with_retry_at_is_not_claimed_before_it(world: World) -> None:
    """A run released with `retry_at` is not claimed before that time, unless it is cancelled."""
    for run in ("r1", "r2"):
        owner = await world.own(run)
        await world.store.release(
            run, fence=owner.fence, worker="w1", reason="bug", retry_at=world.clock.now() + 5_000_000, fruitless=True
        )
    assert await world.claim("w1") == ()
    await world.store.send_commands("r2", b.CancelRequested(command="c1", reason="enough"), actor="ann")
    assert [each.row.id for each in await world.claim("w1")] == ["r2"]
    world.advance("5s")
    assert [each.row.id for each in await world.claim("w1")] == ["r1"]


@behaviour()
async def a_claim_can_skip_agents(world: World) -> None:
    """Runs of skipped agents are left for other workers, also those of dead workers."""
    await world.create("r1")
    await world.own("r2", worker="dead")
    world.advance("11s")
    await world.worker("w1")
    assert await world.store.claim("w1", limit=10, skip=["a"]) == ()
    assert {each.row.id for each in await world.claim("w1")} == {"r1", "r2"}


@behaviour()
async def a_claim_hands_over_a_short_log(world: World) -> None:
    """The claim of a run that has hardly started contains its log, so that the worker need not read it."""
    await world.create("r1")
    await world.create("r2")
    await world.worker()
    for claimed in await world.claim():
        log = await world.log(claimed.row.id)
        given = [] if world.store.codec.is_private else [Sealed(event, world.store.decode(event)) for event in log]
        assert list(claimed.log) == given
        assert [event.kind for event in log] == ["run.created", "run.claimed"]


@behaviour()
async def a_run_is_claimed_by_its_id(world: World) -> None:
    """A run is claimed by its id, under a new fence; other runs stay."""
    await world.create("r1")
    await world.create("r2")
    await world.worker()
    claimed = await world.store.claim_run("w1", "r2")
    assert isinstance(claimed, Claimed)
    assert claimed.row == await world.store.get("r2")
    assert (claimed.row.status, claimed.row.worker, claimed.row.fence, claimed.died) == ("running", "w1", 1, False)
    assert [each.row.id for each in await world.claim()] == ["r1"]
    await expect(NotFound, world.store.claim_run("w1", "r9"))


@behaviour()
async def a_held_run_is_not_claimed_by_its_id(world: World) -> None:
    """A run of a living worker is never taken; the reply says until when that worker has its lease."""
    await world.own("r1")
    await world.worker("w2")
    until = next(each.lease_until for each in await world.store.workers() if each.id == "w1")
    for worker in ("w1", "w2"):
        assert await world.store.claim_run(worker, "r1") == NotClaimed("held", until)
    assert (await world.store.get("r1")).fence == 1


@behaviour()
async def a_run_of_a_dead_worker_is_claimed_by_its_id(world: World) -> None:
    """After the lease of its worker has expired, a run is claimed by its id, and the death counts."""
    await world.own("r1", worker="dead")
    world.advance("11s")
    await world.worker("w1")
    claimed = await world.store.claim_run("w1", "r1")
    assert isinstance(claimed, Claimed)
    assert (claimed.died, claimed.row.deaths, claimed.row.fence) == (True, 1, 2)


@behaviour()
async def a_run_that_cannot_start_is_not_claimed_by_its_id(world: World) -> None:
    """The reply says why: the run is not due, waits, has ended, or is of another agent or version."""
    due = world.clock.now() + 5_000_000
    await world.create("later", start_at=due)
    owner = await world.own("waits")
    await owner.append(b.RunWaiting(waits=(Wait(what="signal", key="s"),)))
    owner = await world.own("ended")
    await owner.append(b.RunCompleted(output=inline(1)))
    await world.create("other", agent="b")
    found = [await world.store.claim_run("w1", run) for run in ("later", "waits", "ended", "other")]
    assert found == [
        NotClaimed("not_before", due),
        NotClaimed("waiting"),
        NotClaimed("ended"),
        NotClaimed("not_served"),
    ]
    world.advance("5s")
    assert isinstance(await world.store.claim_run("w1", "later"), Claimed)


@behaviour()
async def a_claim_by_id_needs_the_same_slots(world: World) -> None:
    """A run without a free slot is not claimed by its id, and takes none."""
    for run in ("r1", "r2"):
        await world.create(run, exclusive="session:s1")
    await world.create("r3")
    await world.worker()
    limits = {"a": 2}
    assert isinstance(await world.store.claim_run("w1", "r1", concurrency=limits), Claimed)
    assert await world.store.claim_run("w1", "r2", concurrency=limits) == NotClaimed("no_slot")
    assert isinstance(await world.store.claim_run("w1", "r3", concurrency=limits), Claimed)
    await world.create("r4")
    assert await world.store.claim_run("w1", "r4", concurrency=limits) == NotClaimed("no_slot")


@behaviour()
async def the_holder_of_a_slot_is_known(world: World) -> None:
    """Another run that has the slot of the session or user is named first, then one that has a slot of the agent."""
    store, limits = world.store, {"a": 1}
    for run in ("r1", "r2"):
        await world.create(run, exclusive="session:s1")
    await world.create("r3")
    await world.create("r4", agent="b")
    assert await store.slot_holders(["r1", "r2", "r3", "none"]) == {}
    await world.worker()
    assert isinstance(await store.claim_run("w1", "r3", concurrency=limits), Claimed)
    assert await store.slot_holders(["r1", "r2", "r3", "r4"]) == {"r1": "r3", "r2": "r3"}
    assert isinstance(await store.claim_run("w1", "r1"), Claimed)
    assert await store.slot_holders(["r1", "r2"]) == {"r1": "r3", "r2": "r1"}


@behaviour()
async def a_suspect_is_claimed_by_its_id_alone(world: World) -> None:
    """Two suspects are not held by one worker at a time, whichever way they are claimed."""
    for run in ("r1", "r2"):
        await world.create(run)
    for worker in ("d1", "d2"):
        await world.worker(worker)
        assert len(await world.claim(worker)) == 2
        world.advance("11s")
    await world.worker("w1")
    first = await world.store.claim_run("w1", "r1")
    assert isinstance(first, Claimed)
    assert (first.row.deaths, first.row.alone) == (2, True)
    assert await world.store.claim_run("w1", "r2") == NotClaimed("no_slot")
