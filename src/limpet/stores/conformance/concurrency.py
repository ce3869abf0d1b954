"""Concurrent use: from event loops in several threads and from several processes, with one order of events."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from limpet.events import verify
from limpet.stores import Appended, Extend, Missed
from limpet.stores.conformance.suite import Owner, World, asked, behaviour, created, signalled, started


@behaviour()
async def many_runs_are_written_at_once(world: World) -> None:
    """Fifty owners with ten appends each give fifty intact logs."""
    owners = [await world.own(f"r{place}") for place in range(50)]

    async def write(owner: Owner) -> None:
        for number in range(1, 11):
            await owner.append(started(number))

    await asyncio.gather(*(write(owner) for owner in owners))
    for owner in owners:
        assert verify(await world.log(owner.run)) == owner.head


@behaviour()
async def commands_and_an_owner_share_a_log(world: World) -> None:
    """Commands that arrive while an owner appends are all in one chain with its events."""
    owner = await world.own()

    async def write() -> None:
        number = 1
        while number <= 30:
            done = await owner.send(owner.extend(started(number)))
            if isinstance(done, Missed):
                owner.head = done.events[-1].event.head
            else:
                number += 1

    tells = (world.store.send_commands("r1", signalled(command=f"c{place}"), actor="ann") for place in range(30))
    await asyncio.gather(write(), *tells)
    log = await world.log()
    verify(log)
    assert len(log) == 62


@behaviour()
async def event_loops_in_threads_may_share_a_store(world: World) -> None:
    """Eight threads, each with its own event loop, can use one store."""

    async def create(place: int) -> None:
        for number in range(20):
            await world.store.create(f"t{place}-{number}", created(), actor="test")

    def in_thread(place: int) -> None:
        asyncio.run(create(place))

    with ThreadPoolExecutor(8) as pool:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(pool, in_thread, place) for place in range(8)))
    assert await world.store.count() == 160


@behaviour()
async def threads_race_for_one_place_in_a_log(world: World) -> None:
    """Of eight appends after the same head, from different threads, exactly one is written."""
    owner = await world.own()
    legs = [owner.extend(started(place + 1)) for place in range(8)]

    with ThreadPoolExecutor(8) as pool:
        loop = asyncio.get_running_loop()
        done = await asyncio.gather(*(loop.run_in_executor(pool, _append_in_thread, world, leg) for leg in legs))
    assert sum(done) == 1
    assert len(await world.log()) == 3


@behaviour()
async def reads_go_on_beside_writes(world: World) -> None:
    """A reader always sees a prefix of the log, never part of an append."""
    owner = await world.own()
    finished = asyncio.Event()

    async def write() -> None:
        for number in range(1, 41, 2):
            await owner.append(started(number), started(number + 1))
        finished.set()

    async def read() -> None:
        while not finished.is_set():
            log = await world.store.read("r1")
            verify(log)
            assert len(log) % 2 == 0

    await asyncio.gather(write(), read(), read())


@behaviour()
async def a_caller_that_gives_up_breaks_nothing(world: World) -> None:
    """A cancelled append is written or not, and the store stays usable."""
    owners = [await world.own(f"r{place}") for place in range(10)]
    tasks = [asyncio.create_task(owner.send(owner.extend(started()))) for owner in owners]
    await world.store.now()
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for owner in owners:
        owner.head = (await owner.row()).head
        await owner.append(started(2))
        verify(await world.log(owner.run))


@behaviour("processes")
async def processes_create_one_run_together(world: World) -> None:
    """When four processes create the same id, exactly one creates the run."""
    said = await world.processes("create_same", 4)
    assert sorted(said) == ["fresh", "there", "there", "there"]


@behaviour("processes")
async def processes_append_to_one_run_without_loss(world: World) -> None:
    """When four processes append thirty times under one fence, all appends are written in one chain."""
    await world.own()
    assert await world.processes("extend", 4, "30") == ["30"] * 4
    log = await world.log()
    verify(log)
    assert len(log) == 122


@behaviour("processes")
async def processes_claim_each_run_once(world: World) -> None:
    """When four processes claim forty runs, no run is claimed twice."""
    for place in range(40):
        await world.create(f"r{place}")
    said = await world.processes("claim", 4, "10")
    given = [run for each in said for run in each.split(",") if run]
    assert len(given) == len(set(given)) > 0
    for run in given:
        assert (await world.kinds(run)).count("run.claimed") == 1


@behaviour("processes")
async def processes_race_to_answer(world: World) -> None:
    """When two processes answer fifty requests, each request is decided once."""
    owner = await world.own()
    await owner.append(*(asked(f"q{number}") for number in range(50)))
    said = await world.processes("answer", 2, "50")
    assert sum(int(each) for each in said) == 50
    assert (await world.kinds()).count("request.answered") == 50


def _append_in_thread(world: World, leg: Extend) -> bool:
    return asyncio.run(_append(world, leg))


async def _append(world: World, leg: Extend) -> bool:
    return isinstance(await world.store.append(leg), Appended)
