"""Engines: runs that another engine has driven, such as Temporal, are left to its workers, and the engine is told."""

from limpet.errors import WrongState
from limpet.events import Wait, inline
from limpet.events import bodies as b
from limpet.stores import Claimed, Create, Inline, NotClaimed, ReadyRun, Store, WorkerRow
from limpet.stores.conformance.suite import FAILED, LEASE, Owner, World, behaviour, created, expect, signalled
from limpet.stores.memory import MemoryBackend

ENGINE = "other"
SIGNAL = Wait(what="signal", key="go")


async def _engine_worker(world: World, id: str = "e1") -> None:
    await world.store.register(WorkerRow(id=id, agents={"a": ("1",)}, engine=ENGINE), lease=LEASE)


async def _own(world: World, run: str = "r1", worker: str = "e1") -> Owner:
    """Create a run of the engine, and claim it for a worker of the engine."""
    await _engine_worker(world, worker)
    await world.create(run, engine=ENGINE)
    claimed = await world.store.claim_run(worker, run)
    assert isinstance(claimed, Claimed)
    return Owner(world, claimed.row)


def _told(world: World) -> list[ReadyRun]:
    """Return the list to which the store adds the runs that it says are ready."""
    told: list[ReadyRun] = []
    world.store.on_ready = told.extend
    return told


@behaviour()
async def a_queue_claim_leaves_runs_of_other_engines(world: World) -> None:
    """A worker that claims runs gets none of another engine, however long they are ready."""
    await world.create("r1", engine=ENGINE)
    await world.create("r2")
    await world.worker()
    assert [each.row.id for each in await world.claim()] == ["r2"]
    assert await world.store.claim_run("w1", "r1") == NotClaimed("moved")


@behaviour()
async def a_worker_of_an_engine_claims_its_runs_by_id(world: World) -> None:
    """A worker of an engine gets the runs of its engine by id, no others, and none from the queue."""
    await world.create("r1", engine=ENGINE)
    await world.create("r2")
    await _engine_worker(world)
    assert await world.claim("e1") == ()
    assert isinstance(await world.store.claim_run("e1", "r1"), Claimed)
    assert await world.store.claim_run("e1", "r2") == NotClaimed("moved")
    [row] = await world.store.workers()
    assert row.engine == ENGINE


@behaviour()
async def a_new_run_of_an_engine_is_not_claimed_by_its_creator(world: World) -> None:
    """A run that is created for another engine queues there, even if its creator is a worker."""
    await world.worker()
    body = created(engine=ENGINE)
    assert await world.store.create_claimed("r1", body, worker="w1", actor="test") is None
    assert (await world.store.get("r1")).worker is None


@behaviour()
async def runs_of_a_dead_worker_stay_with_their_engine(world: World) -> None:
    """Workers of Limpet do not take over runs of a dead worker of another engine; its own workers release them."""
    await _own(world, worker="dead")
    world.advance("11s")
    await world.worker()
    assert await world.claim() == ()
    assert (await world.store.get("r1")).worker == "dead"
    await _engine_worker(world)
    assert await world.claim("e1") == ()
    row = await world.store.get("r1")
    assert (row.status, row.worker, row.deaths) == ("pending", None, 1)
    assert {each.id for each in await world.store.workers()} == {"w1", "e1"}
    claimed = await world.store.claim_run("e1", "r1")
    assert isinstance(claimed, Claimed)
    assert claimed.row.deaths == 1


@behaviour()
async def an_append_tells_which_runs_of_an_engine_are_ready(world: World) -> None:
    """An append reports each run of another engine that it created or woke, with the position of its log."""
    told = _told(world)
    await world.create("r0")
    owner = await _own(world)
    assert told == [ReadyRun("r1", "a", "1", 1, ENGINE)]
    child = Create(run="r2", bodies=(created(engine=ENGINE),), actor="e1")
    await world.store.append(owner.extend(b.RunWaiting(waits=(SIGNAL,))), child)
    assert told[1:] == [ReadyRun("r2", "a", "1", 1, ENGINE)]
    await world.store.send_commands("r1", signalled("other"), actor="test")
    assert len(told) == 2  # It waits for another signal.
    await world.store.send_commands("r1", signalled("go", command="c2"), actor="test")
    assert told[2:] == [ReadyRun("r1", "a", "1", (await world.store.get("r1")).seq, ENGINE)]


@behaviour()
async def a_command_to_a_driven_run_tells_no_engine(world: World) -> None:
    """The worker that drives a run sees its commands itself; and what that worker releases, it reports itself."""
    owner = await _own(world)
    told = _told(world)
    await world.store.send_commands("r1", signalled(), actor="test")
    await world.store.release("r1", fence=owner.fence, worker="e1", reason="stops")
    assert told == []


@behaviour()
async def due_lists_the_ready_runs_of_an_engine(world: World) -> None:
    """`due` returns the ready runs of one engine that no worker holds, longest ready first, page by page."""
    await world.create("r0")
    await _own(world, "held")
    for run in ("r1", "r2", "r3"):
        world.advance("1s")
        await world.create(run, engine=ENGINE)
    now = world.clock.now()
    await world.create("later", engine=ENGINE, start_at=now + 5_000_000)
    await world.create("foreign", engine="another")
    found = await world.store.due(ENGINE, until=now)
    assert [row.id for row in found] == ["r1", "r2", "r3"]
    assert found[0].ready_at is not None
    page = await world.store.due(ENGINE, after=(found[0].ready_at, found[0].number), until=now, limit=1)
    assert [row.id for row in page] == ["r2"]
    assert [row.id for row in await world.store.due(ENGINE, until=now + 5_000_000)][-1] == "later"


@behaviour()
async def a_parked_run_moves_between_engines(world: World) -> None:
    """A run that no worker holds moves, and is claimed there from then on; the engine is told if it is ready."""
    told = _told(world)
    await world.create()
    await world.store.send_commands("r1", b.RunMoved(command="m1", engine=ENGINE), actor="test")
    row = await world.store.get("r1")
    assert (row.engine, told) == (ENGINE, [ReadyRun("r1", "a", "1", row.seq, ENGINE)])
    await world.worker()
    assert await world.claim() == ()
    await world.store.send_commands("r1", b.RunMoved(command="m2", engine="builtin"), actor="test")
    [claimed] = await world.claim()
    assert claimed.row.engine == ""
    await world.store.rebuild("r1")
    assert await world.store.get("r1") == claimed.row


@behaviour()
async def a_run_that_is_driven_or_has_ended_does_not_move(world: World) -> None:
    """A run moves while no worker holds it: before it starts, parked, or failed."""
    owner = await world.own()
    move = b.RunMoved(command="m1", engine=ENGINE)
    await expect(WrongState, world.store.send_commands("r1", move, actor="test"))
    await owner.append(FAILED)
    await world.store.send_commands("r1", move, actor="test")
    assert (await world.store.get("r1")).engine == ENGINE
    owner = await world.own("r2")
    await owner.append(b.RunCompleted(output=inline(1)))
    await expect(WrongState, world.store.send_commands("r2", move, actor="test"))


@behaviour()
async def a_loaded_run_belongs_to_the_workers_of_its_store(world: World) -> None:
    """A run of another engine that is loaded from another store is paused, and driven by the workers here."""
    async with Store(MemoryBackend(world.clock), Inline()) as elsewhere:
        elsewhere.codec = world.store.codec
        await elsewhere.create("r1", created(engine=ENGINE), actor="test")
        log = [event async for event in elsewhere.log("r1")]
    row = await world.store.load(log, actor="test")
    assert (row.engine, row.status, row.waits) == ("", "waiting", ("operator:paused",))
    assert await world.store.check_rows("r1") == []


@behaviour()
async def a_store_keeps_its_identity(world: World) -> None:
    """A store has one identity, which does not change."""
    first = await world.store.identity()
    assert first
    assert await world.store.identity() == first
