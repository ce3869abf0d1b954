"""Leases: a dead worker's runs are taken over, a live worker's are not, and deaths are counted."""

from limpet.errors import LeaseLost, NotFound, WorkerAlive
from limpet.events import AnyBody, Wait, inline
from limpet.events import bodies as b
from limpet.stores import WorkerRow
from limpet.stores.conformance.suite import LEASE, Owner, World, behaviour, completed, expect, signalled, started


@behaviour()
async def a_live_workers_runs_are_not_claimed(world: World) -> None:
    """While a worker's lease lasts, no other worker gets its runs."""
    await world.own()
    world.clock.set(world.clock.now() + LEASE - 1)
    await world.worker("w2")
    assert await world.claim("w2") == ()


@behaviour()
async def a_dead_workers_runs_are_claimed_under_a_higher_fence(world: World) -> None:
    """After a worker's lease has expired, its runs are claimed under a higher fence, with the death recorded."""
    await world.own()
    world.clock.set(world.clock.now() + LEASE)
    await world.worker("w2")
    [claimed] = await world.claim("w2")
    assert (claimed.row.worker, claimed.row.fence, claimed.died) == ("w2", 2, True)
    assert world.store.decode((await world.log())[-1]) == b.RunClaimed(worker="w2", died=True)


@behaviour()
async def a_worker_that_renews_in_time_keeps_its_runs(world: World) -> None:
    """A worker that renews in time keeps its runs."""
    await world.own()
    await world.worker("w2")
    for _ in range(5):
        world.advance("9s")
        await world.store.renew("w1", lease=LEASE)
        await world.store.renew("w2", lease=LEASE)
        assert await world.claim("w2") == ()


@behaviour()
async def a_renewal_returns_the_workers_runs(world: World) -> None:
    """A renewal returns the worker's runs with their fences, and the store's time."""
    await world.own("r1")
    await world.own("r2")
    renewal = await world.store.renew("w1", lease=LEASE)
    assert renewal.held == {"r1": 1, "r2": 1}
    assert renewal.now == world.clock.now()


@behaviour()
async def a_renewal_can_be_repeated(world: World) -> None:
    """A renewal can be repeated."""
    await world.own()
    first = await world.store.renew("w1", lease=LEASE)
    assert await world.store.renew("w1", lease=LEASE) == first


@behaviour()
async def a_late_renewal_before_a_take_over_keeps_the_runs(world: World) -> None:
    """A late renewal keeps the runs if no other worker has claimed them."""
    await world.own()
    world.advance("1h")
    assert (await world.store.renew("w1", lease=LEASE)).held == {"r1": 1}
    await world.worker("w2")
    assert await world.claim("w2") == ()


@behaviour()
async def a_renewal_after_a_take_over_lacks_the_lost_runs(world: World) -> None:
    """After a take-over, the renewal lacks the lost runs, or raises NotFound."""
    await world.own("r1")
    await world.own("r2")
    world.advance("11s")
    await world.worker("w2")
    await world.claim("w2", limit=1)
    assert (await world.store.renew("w1", lease=LEASE)).held == {"r2": 1}
    world.advance("11s")
    await world.store.renew("w2", lease=LEASE)
    await world.claim("w2")
    await expect(NotFound, world.store.renew("w1", lease=LEASE))


@behaviour()
async def an_unknown_worker_cannot_renew(world: World) -> None:
    """A renewal by an unknown worker raises NotFound."""
    await expect(NotFound, world.store.renew("missing", lease=LEASE))


@behaviour()
async def a_dead_worker_without_runs_is_removed(world: World) -> None:
    """A dead worker without runs is removed when another worker claims."""
    await world.worker("w1")
    world.advance("11s")
    await world.worker("w2")
    await world.claim("w2")
    assert [worker.id for worker in await world.store.workers()] == ["w2"]
    await expect(NotFound, world.store.renew("w1", lease=LEASE))


@behaviour()
async def a_worker_does_not_claim_runs_that_it_holds(world: World) -> None:
    """A worker with an expired lease does not claim runs that it already holds."""
    owner = await world.own()
    world.advance("1h")
    assert await world.claim("w1") == ()
    await owner.append(started())


@behaviour()
async def a_retired_workers_runs_can_be_claimed_immediately(world: World) -> None:
    """A retired worker's runs can be claimed immediately, and no death is counted."""
    owner = await world.own()
    await world.store.retire("w1")
    await world.worker("w2")
    [claimed] = await world.claim("w2")
    assert (claimed.died, claimed.row.deaths) == (False, 0)
    await expect(LeaseLost, owner.send(owner.extend(started())))
    assert [worker.id for worker in await world.store.workers()] == ["w2"]


@behaviour()
async def retiring_twice_is_harmless(world: World) -> None:
    """Retiring a worker twice, or an unknown one, is harmless."""
    await world.worker("w1")
    await world.store.retire("w1")
    await world.store.retire("w1")
    await world.store.retire("missing")
    assert await world.store.workers() == []


@behaviour()
async def a_worker_takes_over_only_agents_that_it_serves(world: World) -> None:
    """A dead worker's runs are only taken over by workers that serve their agents."""
    await world.own()
    world.advance("11s")
    await world.worker("w2", agents=("b",))
    assert await world.claim("w2") == ()
    await world.worker("w3", agents=("a",))
    assert len(await world.claim("w3")) == 1


@behaviour()
async def each_worker_death_is_counted(world: World) -> None:
    """Each worker death is counted: after three deaths with nothing settled, the row has three."""
    await world.own(worker="w0")
    for place in range(1, 4):
        world.advance("11s")
        await world.worker(f"w{place}")
        [claimed] = await world.claim(f"w{place}")
        assert claimed.row.deaths == place
        await Owner(world, claimed.row).append(started())


@behaviour()
async def progress_resets_the_death_count(world: World) -> None:
    """The end of a step or a wait, or a new turn, resets the death count."""
    settling: tuple[AnyBody, ...] = (
        completed(),
        b.WaitEnded(name="sleep#1", how="fired"),
        b.TurnStarted(loop="turns#1", number=1),
    )
    for place, body in enumerate(settling):
        run = f"r{place}"
        await world.own(run, worker=f"dead{place}")
        owner = await world.take_over(run)
        assert (await owner.row()).deaths == 1
        await owner.append(body)
        assert (await owner.row()).deaths == 0


@behaviour()
async def a_release_counts_no_death(world: World) -> None:
    """A released run counts no death, so that rolling restarts do not make it a suspect."""
    await world.create()
    for place in range(10):
        await world.worker(f"w{place}")
        [claimed] = await world.claim(f"w{place}")
        assert claimed.row.deaths == 0
        await world.store.release("r1", fence=claimed.row.fence, worker=f"w{place}", reason="drain")


@behaviour()
async def concurrent_take_overs_claim_each_run_once(world: World) -> None:
    """When eight workers find the same dead worker, each of its runs is taken over once."""
    for place in range(10):
        await world.own(f"r{place}", worker="dead")
    world.advance("11s")
    taken = []
    for place in range(8):
        await world.worker(f"w{place}")
        taken += [claimed.row.id for claimed in await world.claim(f"w{place}", limit=3)]
    assert sorted(taken) == sorted(f"r{place}" for place in range(10))


@behaviour()
async def a_command_to_a_dead_workers_run_is_recorded(world: World) -> None:
    """A command to a dead worker's run is in the log for the next owner."""
    await world.own()
    world.advance("11s")
    await world.store.send_commands("r1", signalled(), actor="ann")
    await world.take_over()
    assert (await world.kinds())[2:] == ["signal.received", "run.claimed"]


@behaviour()
async def a_slot_passes_to_the_worker_that_takes_over(world: World) -> None:
    """A dead worker's slot passes to the worker that takes over its run."""
    await world.create("r1", exclusive="session:s1")
    await world.create("r2", exclusive="session:s1")
    await world.worker("w1")
    await world.store.claim("w1", limit=5, concurrency={"a": 1})
    world.advance("11s")
    await world.worker("w2")
    got = await world.store.claim("w2", limit=5, concurrency={"a": 1})
    assert [claimed.row.id for claimed in got] == ["r1"]


@behaviour()
async def a_worker_that_registers_again_holds_no_runs(world: World) -> None:
    """A worker that registers again under a dead worker's id does not hold its runs, and the death is counted."""
    from_before = await world.own()
    renewal = await world.store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=LEASE)
    assert renewal.held == {}
    await expect(LeaseLost, from_before.send(from_before.extend(started())))
    [claimed] = await world.claim()
    assert (claimed.row.deaths, claimed.row.fence) == (1, 2)


@behaviour()
async def a_dead_workers_unserved_run_holds_no_slot(world: World) -> None:
    """A dead worker's run that no worker serves holds no concurrency slot."""
    await world.create("old")
    await world.worker("w1")
    await world.store.claim("w1", limit=5, concurrency={"a": 1})
    new = b.RunCreated(agent="a", agent_version="2", input=inline(None))
    await world.store.create("new", new, actor="test")
    world.advance("11s")
    await world.store.register(WorkerRow(id="w2", agents={"a": ("2",)}), lease=LEASE)
    got = await world.store.claim("w2", limit=5, concurrency={"a": 1})
    assert [claimed.row.id for claimed in got] == ["new"]


@behaviour()
async def workers_are_listed_with_their_agents(world: World) -> None:
    """Workers are listed with their agents, start time and lease."""
    await world.worker("w1", agents=("a", "b"))
    [worker] = await world.store.workers()
    assert (worker.id, worker.agents) == ("w1", {"a": ("1",), "b": ("1",)})
    assert (worker.started, worker.lease_until) == (world.clock.now(), world.clock.now() + LEASE)


@behaviour("sees_death", "processes")
async def a_killed_workers_runs_are_claimed_before_its_lease_expires(world: World) -> None:
    """A killed worker's runs on the same machine are claimed before its lease expires."""
    await world.create()
    [output] = await world.processes("claim_and_die", 1)
    assert output == "r1"
    assert (await world.store.get("r1")).status == "running"
    await world.worker("w2")
    [claimed] = await world.claim("w2")
    assert (claimed.row.id, claimed.died, claimed.row.fence) == ("r1", True, 2)


@behaviour("sees_death")
async def a_live_worker_is_not_considered_dead(world: World) -> None:
    """A live worker is not considered dead, from its own store or another on the same data."""
    other = await world.another()
    await world.create()
    await world.worker("w1", store=other)
    assert len(await world.claim("w1", store=other)) == 1
    await world.worker("w2")
    assert await world.claim("w2") == ()


@behaviour("sees_death")
async def a_worker_of_a_closed_store_can_be_replaced(world: World) -> None:
    """A worker whose store was closed without retiring can be replaced immediately."""
    other = await world.new_store().open()
    await world.create()
    await world.worker("w1", store=other)
    await world.claim("w1", store=other)
    await other.close()
    await world.worker("w2")
    assert len(await world.claim("w2")) == 1


@behaviour("sees_death")
async def a_worker_stays_alive_while_its_store_is_reopened(world: World) -> None:
    """A worker stays alive while its store is reopened after a failure."""
    other = await world.another()
    await world.own()
    await world.store.reopen()
    await world.worker("w2", store=other)
    assert await world.claim("w2", store=other) == ()


@behaviour("sees_death")
async def the_id_of_a_live_worker_cannot_be_registered(world: World) -> None:
    """Registering the id of a live worker of another process raises WorkerAlive, and the store stays usable."""
    other = await world.another()
    await world.worker("w1")
    error = await expect(WorkerAlive, world.worker("w1", store=other))
    assert error.worker == "w1"
    await world.worker("w2", store=other)


@behaviour("sees_death")
async def a_refused_registration_leaves_the_live_workers_runs(world: World) -> None:
    """After a refused registration, the live worker keeps its runs."""
    other = await world.another()
    await world.own()
    await expect(WorkerAlive, other.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=LEASE))
    row = await world.store.get("r1")
    assert (row.status, row.worker, row.deaths) == ("running", "w1", 0)


@behaviour()
async def suspects_are_claimed_in_ever_smaller_groups(world: World) -> None:
    """Suspects are claimed in ever smaller groups; a run that settles something is no longer one."""
    for number in range(16):
        await world.create(f"r{number}")
    together: list[int] = []
    while len(together) < 6:
        worker = f"w{len(together)}"
        await world.worker(worker)
        claimed = await world.claim(worker, limit=20)
        while all(each.row.id != "r11" for each in claimed):
            for each in claimed:
                await Owner(world, each.row).append(b.RunCompleted(output=inline(None)))
            claimed = await world.claim(worker, limit=20)
        together.append(len(claimed))
        world.advance("11s")  # The worker has died with all of them.
    assert together[:2] == [16, 16]
    assert together[2:] == sorted(together[2:], reverse=True)
    assert together[-1] == 1
    rows = (await world.store.runs(limit=100)).rows
    assert max(row.deaths for row in rows if row.id != "r11") < 5


@behaviour()
async def no_suspect_joins_one_that_was_claimed_alone(world: World) -> None:
    """No suspect joins one that was claimed alone until that has settled something; other runs can be claimed."""
    for number in range(3):
        await world.own(f"r{number}", worker="w0")
    for place in range(1, 3):
        world.advance("11s")
        await world.worker(f"w{place}")
        claimed = await world.claim(f"w{place}")
    [alone] = claimed  # Two deaths each: of three suspects, one at a time.
    assert alone.row.alone
    await world.create("new")
    assert [each.row.id for each in await world.claim("w2")] == ["new"]
    await Owner(world, alone.row).append(started())
    assert await world.claim("w2") == ()
    await Owner(world, await world.store.get(alone.row.id)).append(completed())
    [second] = await world.claim("w2")
    assert second.row.alone
    assert second.row.id != alone.row.id


@behaviour()
async def suspects_with_fewer_deaths_are_claimed_first(world: World) -> None:
    """Suspects with fewer deaths are claimed before those with more."""
    await world.own("bad", worker="w0")
    for place in range(1, 4):
        world.advance("11s")
        await world.worker(f"w{place}")
        await world.claim(f"w{place}")
        if place == 2:
            await world.create("good")
            await world.claim("w2")
    world.advance("11s")
    await world.worker("w4")
    assert [each.row.id for each in await world.claim("w4")] == ["good"]


@behaviour()
async def waiting_suspects_do_not_use_up_the_claim_limit(world: World) -> None:
    """Suspects that must wait do not use up the limit of a claim."""
    for number in range(4):
        await world.own(f"s{number}", worker="w0")
    world.advance("11s")
    for _ in range(3):  # Registering again under the same id releases its runs, as after a death.
        await world.store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=LEASE)
        claimed = await world.claim("w1")
    [alone] = claimed
    assert alone.row.alone
    for number in range(5):
        await world.create(f"r{number}")
    assert len(await world.claim("w1", limit=3)) == 3


@behaviour()
async def a_run_on_parole_is_claimed_alone(world: World) -> None:
    """A run on parole is claimed alone, however many suspects made progress in the worker before."""
    for run in ("bad", "good"):
        await world.own(run, worker="w0")
    for place in range(1, 3):
        world.advance("11s")
        await world.worker(f"w{place}")
        claimed = await world.claim(f"w{place}")
    [tried] = claimed
    quarantined = b.RunWaiting(waits=(Wait(what="operator", key="quarantined"),), wake=world.clock.now())
    await Owner(world, tried.row).append(quarantined)
    [other] = await world.store.claim("w2", limit=10, cleared=9)
    assert other.row.id != tried.row.id
    assert await world.store.claim("w2", limit=10, cleared=9) == ()
    await Owner(world, other.row).append(completed())
    [paroled] = await world.store.claim("w2", limit=10, cleared=9)
    assert (paroled.row.id, paroled.row.alone) == (tried.row.id, True)
