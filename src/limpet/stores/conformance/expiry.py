"""Leases: a dead worker's runs go on, a live one's are left alone, and poison is counted."""

from limpet.errors import LeaseLost, NotFound, WorkerAlive
from limpet.events import AnyBody, Wait, inline
from limpet.events import bodies as b
from limpet.stores import WorkerRow
from limpet.stores.conformance.suite import LEASE, Owner, World, behaviour, completed, expect, signalled, started


@behaviour()
async def a_live_workers_runs_are_left_alone(world: World) -> None:
    """While its lease lasts, nobody else gets them."""
    await world.own()
    world.clock.set(world.clock.now() + LEASE - 1)
    await world.worker("w2")
    assert await world.claim("w2") == ()


@behaviour()
async def a_dead_workers_runs_are_given_to_another(world: World) -> None:
    """When its lease has ended, they are claimed under a higher fence, and the claim says why."""
    await world.own()
    world.clock.set(world.clock.now() + LEASE)
    await world.worker("w2")
    [claimed] = await world.claim("w2")
    assert (claimed.row.worker, claimed.row.fence, claimed.died) == ("w2", 2, True)
    assert world.store.decode((await world.log())[-1]) == b.RunClaimed(worker="w2", died=True)


@behaviour()
async def renewing_keeps_a_lease(world: World) -> None:
    """A worker that renews in time keeps its runs as long as it likes."""
    await world.own()
    await world.worker("w2")
    for _ in range(5):
        world.advance("9s")
        await world.store.renew("w1", lease=LEASE)
        await world.store.renew("w2", lease=LEASE)
        assert await world.claim("w2") == ()


@behaviour()
async def a_renewal_tells_what_the_worker_still_has(world: World) -> None:
    """Its runs with their fences, and the store's time."""
    await world.own("r1")
    await world.own("r2")
    renewal = await world.store.renew("w1", lease=LEASE)
    assert renewal.held == {"r1": 1, "r2": 1}
    assert renewal.now == world.clock.now()


@behaviour()
async def renewing_twice_is_harmless(world: World) -> None:
    """A renewal whose reply was lost can be repeated."""
    await world.own()
    first = await world.store.renew("w1", lease=LEASE)
    assert await world.store.renew("w1", lease=LEASE) == first


@behaviour()
async def a_late_renewal_before_anybody_took_over_keeps_the_runs(world: World) -> None:
    """An expired lease that nobody used up goes on."""
    await world.own()
    world.advance("1h")
    assert (await world.store.renew("w1", lease=LEASE)).held == {"r1": 1}
    await world.worker("w2")
    assert await world.claim("w2") == ()


@behaviour()
async def after_a_take_over_the_renewal_shows_the_loss(world: World) -> None:
    """A worker that was too late learns it from its renewal, or that it is unknown."""
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
    """It must register again."""
    await expect(NotFound, world.store.renew("nobody", lease=LEASE))


@behaviour()
async def a_dead_worker_without_runs_is_forgotten(world: World) -> None:
    """It leaves the list when somebody claims after its lease."""
    await world.worker("w1")
    world.advance("11s")
    await world.worker("w2")
    await world.claim("w2")
    assert [worker.id for worker in await world.store.workers()] == ["w2"]
    await expect(NotFound, world.store.renew("w1", lease=LEASE))


@behaviour()
async def a_worker_does_not_take_its_own_runs_from_itself(world: World) -> None:
    """Claiming with an expired lease gives back nothing that it has already."""
    owner = await world.own()
    world.advance("1h")
    assert await world.claim("w1") == ()
    await owner.append(started())


@behaviour()
async def a_retired_workers_runs_can_be_claimed_at_once(world: World) -> None:
    """Going in good order gives everything back, and counts no death."""
    owner = await world.own()
    await world.store.retire("w1")
    await world.worker("w2")
    [claimed] = await world.claim("w2")
    assert (claimed.died, claimed.row.deaths) == (False, 0)
    await expect(LeaseLost, owner.send(owner.extend(started())))
    assert [worker.id for worker in await world.store.workers()] == ["w2"]


@behaviour()
async def retiring_twice_is_harmless(world: World) -> None:
    """Nor does it matter whether the worker was ever there."""
    await world.worker("w1")
    await world.store.retire("w1")
    await world.store.retire("w1")
    await world.store.retire("nobody")
    assert await world.store.workers() == []


@behaviour()
async def only_agents_that_are_served_are_taken_over(world: World) -> None:
    """A dead worker's runs of other agents wait for somebody who serves them."""
    await world.own()
    world.advance("11s")
    await world.worker("w2", agents=("b",))
    assert await world.claim("w2") == ()
    await world.worker("w3", agents=("a",))
    assert len(await world.claim("w3")) == 1


@behaviour()
async def each_death_is_counted_in_the_claim(world: World) -> None:
    """Three workers die with a run and nothing settled: the claim says three."""
    await world.own(worker="w0")
    for place in range(1, 4):
        world.advance("11s")
        await world.worker(f"w{place}")
        [claimed] = await world.claim(f"w{place}")
        assert claimed.row.deaths == place
        await Owner(world, claimed.row).append(started())


@behaviour()
async def settling_anything_forgets_deaths(world: World) -> None:
    """A step's end, a wait's end or a turn says that the run gets on."""
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
async def a_drain_counts_no_death(world: World) -> None:
    """Rolling restarts never make a healthy run look like poison."""
    await world.create()
    for place in range(10):
        await world.worker(f"w{place}")
        [claimed] = await world.claim(f"w{place}")
        assert claimed.row.deaths == 0
        await world.store.release("r1", fence=claimed.row.fence, worker=f"w{place}", reason="drain")


@behaviour()
async def of_many_reapers_one_takes_over(world: World) -> None:
    """Eight workers find the same dead one: each of its runs is taken once."""
    for place in range(10):
        await world.own(f"r{place}", worker="dead")
    world.advance("11s")
    taken = []
    for place in range(8):
        await world.worker(f"w{place}")
        taken += [claimed.row.id for claimed in await world.claim(f"w{place}", limit=3)]
    assert sorted(taken) == sorted(f"r{place}" for place in range(10))


@behaviour()
async def a_command_to_a_dead_workers_run_waits_in_its_log(world: World) -> None:
    """Whoever takes it over finds it."""
    await world.own()
    world.advance("11s")
    await world.store.send_commands("r1", signalled(), actor="ann")
    await world.take_over()
    assert (await world.kinds())[2:] == ["signal.received", "run.claimed"]


@behaviour()
async def a_slot_follows_its_run_to_another_worker(world: World) -> None:
    """A dead worker's place under a limit is used by whoever takes the run over."""
    await world.create("r1", exclusive="session:s1")
    await world.create("r2", exclusive="session:s1")
    await world.worker("w1")
    await world.store.claim("w1", limit=5, concurrency={"a": 1})
    world.advance("11s")
    await world.worker("w2")
    got = await world.store.claim("w2", limit=5, concurrency={"a": 1})
    assert [claimed.row.id for claimed in got] == ["r1"]


@behaviour()
async def a_worker_that_begins_anew_has_nothing(world: World) -> None:
    """A process under its dead predecessor's name does not keep that one's runs from others; the death counts."""
    from_before = await world.own()
    renewal = await world.store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=LEASE)
    assert renewal.held == {}
    await expect(LeaseLost, from_before.send(from_before.extend(started())))
    [claimed] = await world.claim()
    assert (claimed.row.deaths, claimed.row.fence) == (1, 2)


@behaviour()
async def a_dead_workers_place_is_free_though_nobody_serves_its_run(world: World) -> None:
    """A run of an old version that nobody drives any more takes no slot from newer ones."""
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
async def workers_are_listed_with_what_they_serve(world: World) -> None:
    """Who is there, since when, until when."""
    await world.worker("w1", agents=("a", "b"))
    [worker] = await world.store.workers()
    assert (worker.id, worker.agents) == ("w1", {"a": ("1",), "b": ("1",)})
    assert (worker.started, worker.lease_until) == (world.clock.now(), world.clock.now() + LEASE)


@behaviour("sees_death", "processes")
async def a_killed_process_is_seen_before_its_lease_ends(world: World) -> None:
    """On one machine a killed worker's runs are claimed at once: no time passes on the store's clock."""
    await world.create()
    [said] = await world.processes("claim_and_die", 1)
    assert said == "r1"
    assert (await world.store.get("r1")).status == "running"
    await world.worker("w2")
    [claimed] = await world.claim("w2")
    assert (claimed.row.id, claimed.died, claimed.row.fence) == ("r1", True, 2)


@behaviour("sees_death")
async def a_living_worker_is_not_taken_for_dead(world: World) -> None:
    """Of another store on the same data, nor of one's own."""
    other = await world.another()
    await world.create()
    await world.worker("w1", store=other)
    assert len(await world.claim("w1", store=other)) == 1
    await world.worker("w2")
    assert await world.claim("w2") == ()


@behaviour("sees_death")
async def a_store_that_was_closed_gives_its_workers_up(world: World) -> None:
    """A worker whose store is closed without retiring can be replaced at once."""
    other = await world.new_store().open()
    await world.create()
    await world.worker("w1", store=other)
    await world.claim("w1", store=other)
    await other.close()
    await world.worker("w2")
    assert len(await world.claim("w2")) == 1


@behaviour("sees_death")
async def a_worker_outlives_reopening(world: World) -> None:
    """While a store is reopened after a failure, nobody takes its workers for dead."""
    other = await world.another()
    await world.own()
    await world.store.reopen()
    await world.worker("w2", store=other)
    assert await world.claim("w2", store=other) == ()


@behaviour("sees_death")
async def a_living_workers_name_is_not_given_twice(world: World) -> None:
    """Two processes under one name could not be told apart; the second is refused, and the store goes on."""
    other = await world.another()
    await world.worker("w1")
    error = await expect(WorkerAlive, world.worker("w1", store=other))
    assert error.worker == "w1"
    await world.worker("w2", store=other)


@behaviour("sees_death")
async def a_refused_registration_takes_nothing_away(world: World) -> None:
    """The living worker of that name keeps its runs."""
    other = await world.another()
    await world.own()
    await expect(WorkerAlive, other.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=LEASE))
    row = await world.store.get("r1")
    assert (row.status, row.worker, row.deaths) == ("running", "w1", 0)


@behaviour()
async def what_kills_its_workers_ends_up_alone(world: World) -> None:
    """Runs that died together again and again are claimed in ever smaller groups; whoever gets on is free again."""
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
        world.advance("11s")  # the worker has died with all of them
    assert together[:2] == [16, 16]
    assert together[2:] == sorted(together[2:], reverse=True)
    assert together[-1] == 1
    rows = (await world.store.runs(limit=100)).rows
    assert max(row.deaths for row in rows if row.id != "r11") < 5


@behaviour()
async def a_suspect_that_is_claimed_alone_stays_alone(world: World) -> None:
    """The claim says so; other suspects join it only once it has settled something, other runs at any time."""
    for number in range(3):
        await world.own(f"r{number}", worker="w0")
    for place in range(1, 3):
        world.advance("11s")
        await world.worker(f"w{place}")
        claimed = await world.claim(f"w{place}")
    [alone] = claimed  # two deaths each: of three suspects, one at a time
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
async def a_suspect_with_fewer_deaths_comes_first(world: World) -> None:
    """Runs that died by chance get on before the one that kills is tried again."""
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
async def suspects_hide_no_other_runs(world: World) -> None:
    """A claim of a few gives runs that are ready behind suspects which must wait."""
    for number in range(4):
        await world.own(f"s{number}", worker="w0")
    world.advance("11s")
    for _ in range(3):  # under the same name again: what it had is given back, as after a death
        await world.store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=LEASE)
        claimed = await world.claim("w1")
    [alone] = claimed
    assert alone.row.alone
    for number in range(5):
        await world.create(f"r{number}")
    assert len(await world.claim("w1", limit=3)) == 3


@behaviour()
async def a_run_on_parole_is_tried_alone(world: World) -> None:
    """However many suspects got on in the worker before."""
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
