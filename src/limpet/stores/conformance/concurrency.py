"""Concurrent use: from event loops in several threads and from several processes, with one order of events."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from limpet.events import verify
from limpet.stores import Appended, Extend, Missed
from limpet.stores.conformance.suite import Owner, World, asked, behaviour, created, signalled, started


@behaviour()
async def concurrent_owners_write_intact_logs(world: World) -> None:
    """Fifty owners with ten appends each give fifty intact logs."""
    owners = [await world.own(f"r{place}") for place in range(50)]

    async def write(owner: Owner) -> None:
        for number in range(1, 11):
            await owner.append(started(number))

    await asyncio.gather(*(write(owner) for owner in owners))
    for owner in owners:
        assert verify(await world.log(owner.run)) == owner.head


@behaviour()
async def concurrent_commands_and_owner_events_form_one_chain(world: World) -> None:
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
async def event_loops_in_several_threads_can_share_a_store(world: World) -> None:
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
async def of_appends_after_one_head_from_several_threads_one_is_written(world: World) -> None:
    """Of eight appends after the same head, from different threads, exactly one is written."""
    owner = await world.own()
    legs = [owner.extend(started(place + 1)) for place in range(8)]

    with ThreadPoolExecutor(8) as pool:
        loop = asyncio.get_running_loop()
        done = await asyncio.gather(*(loop.run_in_executor(pool, _append_in_thread, world, leg) for leg in legs))
    assert sum(done) == 1
    assert len(await world.log()) == 3


@behaviour()
async def a_reader_never_sees_part_of_an_append(world: World) -> None:
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
async def a_cancelled_append_leaves_the_store_usable(world: World) -> None:
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
async def of_processes_that_create_one_id_one_creates_the_run(world: World) -> None:
    """When four processes create the same id, exactly one creates the run."""
    outputs = await world.processes("create_same", 4)
    assert sorted(outputs) == ["fresh", "there", "there", "there"]


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
    outputs = await world.processes("claim", 4, "10")
    given = [run for each in outputs for run in each.split(",") if run]
    assert len(given) == len(set(given)) > 0
    for run in given:
        assert (await world.kinds(run)).count("run.claimed") == 1


@behaviour("processes")
async def processes_decide_each_request_once(world: World) -> None:
    """When two processes answer fifty requests, each request is decided once."""
    owner = await world.own()
    await owner.append(*(asked(f"q{number}") for number in range(50)))
    outputs = await world.processes("answer", 2, "50")
    assert sum(int(each) for each in outputs) == 50
    assert (await world.kinds()).count("request.answered") == 50


def _append_in_thread(world: World, leg: Extend) -> bool:
    return asyncio.run(_append(world, leg))


async def _append(world: World, leg: Extend) -> bool:
    return isinstance(await world.store.append(leg), Appended)
