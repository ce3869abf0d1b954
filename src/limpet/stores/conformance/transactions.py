"""Callers' own transactions: writes to a caller's own tables are committed together with the events about them.

The SQL here works in every database. Callers' rows are read in a transaction like any other.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from limpet.errors import InvalidAppend, LeaseLost, LimpetError, NotFound, Tampered, WrongState
from limpet.events import AnyBody, Head, Payload, Wait, inline, verify
from limpet.events import bodies as b
from limpet.stores import Missed
from limpet.stores.blobs import CHUNK, Blob
from limpet.stores.conformance.suite import (
    Owner,
    World,
    asked,
    behaviour,
    completed,
    expect,
    gave,
    message,
    signalled,
    started,
)
from limpet.stores.writes import Work

MAKE = "CREATE TABLE IF NOT EXISTS mine (id INTEGER PRIMARY KEY, what TEXT)"
Done = tuple[Sequence[AnyBody], Sequence[Blob]]


# Atomicity


@behaviour("transactions")
async def a_callers_row_and_its_event_are_committed_together(world: World) -> None:
    """When a transaction returns, the caller's row and its event are committed, for every store on the same data."""
    owner = await _prepared(world)
    done = await owner.transact(_insert(1, completed(output="paid")))
    assert [sealed.body for sealed in done.events] == [completed(output="paid")]
    assert done.missed == ()
    other = await world.another()
    assert (await other.get("r1")).head == done.events[-1].event.head
    assert await _rows(world) == [1]
    assert await world.store.check_rows("r1") == []


@behaviour("transactions")
async def work_that_raises_is_rolled_back(world: World) -> None:
    """If the work raises, neither row nor event is written, and the caller gets its own exception."""
    owner = await _prepared(world)
    mine = ZeroDivisionError("mine")

    def work(connection: Any) -> Done:
        connection.execute("INSERT INTO mine VALUES (1, 'x')")
        raise mine

    assert await _raised(owner.transact(work)) is mine
    assert (await owner.row()).head == owner.head
    assert await _rows(world) == []


@behaviour("transactions")
async def a_base_exception_in_the_work_leaves_the_store_usable(world: World) -> None:
    """A BaseException in the work rolls it back and reaches the caller, and the store stays usable."""
    owner = await _prepared(world)

    class Stop(BaseException):
        pass

    def work(connection: Any) -> Done:
        connection.execute("INSERT INTO mine VALUES (1, 'x')")
        raise Stop

    assert isinstance(await _raised(owner.transact(work)), Stop)
    assert await _rows(world) == []
    await owner.append(started())


@behaviour("transactions")
async def a_limpet_error_raised_by_the_work_reaches_the_caller(world: World) -> None:
    """A LimpetError that the work raises reaches the caller unchanged, and does not affect the store."""
    owner = await _prepared(world)
    mine = NotFound(what="order", id="7")

    def work(connection: Any) -> Done:
        connection.execute("INSERT INTO mine VALUES (1, 'x')")
        raise mine

    assert await _raised(owner.transact(work)) is mine
    assert await _rows(world) == []


@behaviour("transactions")
async def a_failed_statement_of_the_work_rolls_it_back(world: World) -> None:
    """A violated constraint of the caller's own table rolls back its transaction, and the store stays usable."""
    owner = await _prepared(world)
    await owner.transact(_insert(1, started()))

    def work(connection: Any) -> Done:
        connection.execute("INSERT INTO mine VALUES (2, 'x')")
        connection.execute("INSERT INTO mine VALUES (1, 'again')")
        raise AssertionError("the database accepted a duplicate key")

    error = await _raised(owner.transact(work))
    assert not isinstance(error, LimpetError | AssertionError)
    assert (await owner.row()).head == owner.head
    await owner.transact(_insert(3, started(2)))
    assert await _rows(world) == [1, 3]


@behaviour("transactions")
async def the_work_can_read_its_own_rows(world: World) -> None:
    """The work can read its own rows before they are committed, and rows that were committed before."""
    owner = await _prepared(world)
    await owner.transact(_insert(1, started()))

    def work(connection: Any) -> Done:
        connection.execute("INSERT INTO mine VALUES (2, 'y')")
        found = [list(row) for row in connection.execute("SELECT id, what FROM mine ORDER BY id").fetchall()]
        return (completed(output=found),), ()

    await owner.transact(work)
    assert (await world.bodies())[-1] == completed(output=[[1, "x"], [2, "y"]])


@behaviour("transactions")
async def the_work_is_called_once(world: World) -> None:
    """The work is called exactly once if no connection is lost."""
    owner = await _prepared(world)
    calls: list[int] = []

    def work(connection: Any) -> Done:
        calls.append(1)
        connection.execute("INSERT INTO mine VALUES (1, 'x')")
        return (started(),), ()

    await owner.transact(work)
    assert calls == [1]


@behaviour("transactions")
async def a_step_starts_and_completes_in_one_transaction(world: World) -> None:
    """Several events are appended in order, and the rows follow them."""
    owner = await _prepared(world)
    await owner.transact(_insert(1, started(1), completed(1), started(2), completed(2)))
    assert (await world.kinds())[-4:] == ["step.started", "step.completed"] * 2
    assert (await owner.row()).step == 2
    verify(await world.log())


@behaviour("transactions")
async def an_append_follows_the_transactions_last_event(world: World) -> None:
    """The next append follows the transaction's last event."""
    owner = await _prepared(world)
    await owner.transact(_insert(1, started()))
    await owner.append(completed())
    await owner.transact(_insert(2, started(2)))
    assert verify(await world.log()) == owner.head


@behaviour("transactions")
async def a_transaction_cannot_end_or_park_the_run(world: World) -> None:
    """A transaction cannot end or park the run, since a command may have arrived in the meantime."""
    owner = await _prepared(world)
    for body in (b.RunCompleted(output=inline(1)), b.RunWaiting(waits=(Wait(what="signal", key="go"),))):
        await expect(InvalidAppend, owner.transact(_insert(1, completed(), body)))
    assert (await owner.row()).status == "running"
    assert await _rows(world) == []


@behaviour("transactions")
async def a_transactions_events_take_effect(world: World) -> None:
    """The effects of a transaction's events happen with them: a request that it opens is in the inbox."""
    owner = await _prepared(world)
    await owner.transact(_insert(1, completed(), asked("q1")))
    assert [row.id for row in await world.store.requests()] == ["q1"]
    assert await world.store.check_rows("r1") == []


# Who may write


@behaviour("transactions")
async def a_superseded_workers_work_is_not_called(world: World) -> None:
    """A superseded worker's transaction is refused before its work is called."""
    owner = await _prepared(world)
    await _take_over(world)
    error = await expect(LeaseLost, owner.transact(_never))
    assert (error.fence, error.current) == (1, 2)
    assert await _rows(world) == []


@behaviour("transactions")
async def a_run_that_is_not_running_refuses_transactions(world: World) -> None:
    """A run that is released, parked, ended or unknown refuses transactions."""
    released, parked, ended = await _prepared(world, "r1"), await world.own("r2"), await world.own("r3")
    await world.store.release("r1", fence=1, worker="w1", reason="drain")
    await parked.append(b.RunWaiting(waits=()))
    await ended.append(b.RunCompleted(output=inline(1)))
    await expect(LeaseLost, released.transact(_never))
    await expect(LeaseLost, parked.transact(_never))
    await expect(WrongState, ended.transact(_never))
    missing = world.store.transact("missing", after=ended.head, fence=1, actor="w1", work=_never)
    assert (await expect(NotFound, missing)).what == "run"


@behaviour("transactions")
async def a_take_over_during_the_work_rolls_it_back(world: World) -> None:
    """If another worker claims the run during the work, the work is rolled back."""
    owner = await _prepared(world)
    loop = asyncio.get_running_loop()
    world.advance("11s")

    def work(connection: Any) -> Done:
        connection.execute("INSERT INTO mine VALUES (1, 'x')")
        if world.capabilities.transactions == "beside":
            asyncio.run_coroutine_threadsafe(_take_over(world), loop).result()
        return (completed(),), ()

    if world.capabilities.transactions == "beside":
        await expect(LeaseLost, owner.transact(work))
        assert (await _rows(world), await world.kinds()) == ([], ["run.created", "run.claimed", "run.claimed"])
    else:
        await asyncio.gather(owner.transact(work), _take_over(world))  # The claim had to wait.
        assert (await _rows(world), (await world.kinds())[2:]) == ([1], ["step.completed", "run.claimed"])


@behaviour("transactions")
async def a_concurrent_take_over_leaves_row_and_event_or_neither(world: World) -> None:
    """With a concurrent take-over, the row exists if and only if the event does."""
    for place in range(10):
        run = f"r{place}"
        owner = await _prepared(world, run)
        world.advance("11s")
        await asyncio.gather(owner.transact(_insert(place, completed())), _take_over(world), return_exceptions=True)
        assert (place in await _rows(world)) == ("step.completed" in await world.kinds(run))
        verify(await world.log(run))


@behaviour("transactions")
async def a_transaction_after_an_unknown_head_is_rolled_back(world: World) -> None:
    """A transaction after a head that the log does not have is rolled back."""
    owner = await _prepared(world)
    real = owner.head
    for wrong in (Head(real.seq + 5, real.hash, real.time), Head(real.seq, bytes(32), real.time)):
        owner.head = wrong
        await expect(Tampered, owner.transact(_insert(1, completed())))
    owner.head = real
    await owner.transact(_insert(2, completed()))
    assert await _rows(world) == [2]


@behaviour("transactions")
async def a_transaction_accepts_only_owner_events(world: World) -> None:
    """Transactions with commands, claims, messages, creations or no event are refused and rolled back."""
    owner = await _prepared(world)
    bodies: list[AnyBody] = [
        signalled(),
        b.RunClaimed(worker="w9"),
        b.ConversationCreated(),
        message(),
    ]
    for body in bodies:
        await expect(InvalidAppend, owner.transact(_insert(1, completed(), body)))
    await expect(InvalidAppend, owner.transact(_insert(1)))
    await expect(InvalidAppend, owner.transact(_insert(1, b.RunWaiting(waits=()), completed())))
    assert (await owner.row()).head == owner.head
    assert await _rows(world) == []


@behaviour("transactions")
async def the_work_cannot_end_the_transaction(world: World) -> None:
    """The work cannot commit or roll back; the attempt is refused, and nothing is written."""
    owner = await _prepared(world)
    for statement in ("COMMIT", "ROLLBACK", "commit", "END"):

        def work(connection: Any, statement: str = statement) -> Done:
            connection.execute("INSERT INTO mine VALUES (1, 'x')")
            connection.execute(statement)
            return (completed(),), ()

        await _raised(owner.transact(work))
        assert (await owner.row()).head == owner.head
    assert await _rows(world) == []
    await owner.transact(_insert(2, completed()))
    assert await _rows(world) == [2]


# Concurrent writes


@behaviour("transactions")
async def earlier_commands_come_before_the_transactions_events(world: World) -> None:
    """The caller gets commands that were written before, and its events follow them."""
    owner = await _prepared(world)
    for place in range(3):
        await world.store.send_commands("r1", signalled(value=place, command=f"c{place}"), actor="ann")
    done = await owner.transact(_insert(1, completed()))
    assert [sealed.body for sealed in done.missed] == [signalled(value=n, command=f"c{n}") for n in range(3)]
    assert done.events[0].event.seq == done.missed[-1].event.seq + 1
    assert verify(await world.log()) == done.events[-1].event.head
    assert await _rows(world) == [1]


@behaviour("transactions")
async def a_command_during_the_work_is_in_the_same_chain(world: World) -> None:
    """A command that arrives during the work is in the chain before or after its event."""
    owner = await _prepared(world)
    loop = asyncio.get_running_loop()
    telling: list[Any] = []

    def work(connection: Any) -> Done:
        connection.execute("INSERT INTO mine VALUES (1, 'x')")
        tell = asyncio.run_coroutine_threadsafe(world.store.send_commands("r1", signalled(), actor="ann"), loop)
        telling.append(asyncio.wrap_future(tell, loop=loop))
        if world.capabilities.transactions == "beside":
            tell.result()
        return (completed(),), ()

    done = await owner.transact(work)
    await telling[0]
    order = ["signal.received", "step.completed"]
    beside = world.capabilities.transactions == "beside"
    assert (await world.kinds())[2:] == (order if beside else order[::-1])
    assert len(done.missed) == beside
    verify(await world.log())
    assert await world.store.check_rows("r1") == []


@behaviour("transactions")
async def concurrent_transactions_are_all_committed(world: World) -> None:
    """Twenty concurrent transactions, each in its own run, write all rows and events."""
    await _prepared(world, "r0")
    owners = [await world.own(f"r{place}") for place in range(1, 21)]
    await asyncio.gather(*(owner.transact(_insert(n + 1, completed())) for n, owner in enumerate(owners)))
    assert await _rows(world) == list(range(1, 21))
    for owner in owners:
        assert verify(await world.log(owner.run)) == owner.head


@behaviour("transactions")
async def concurrent_transactions_of_several_stores_are_all_committed(world: World) -> None:
    """Concurrent transactions of several stores write all rows and events."""
    await _prepared(world, "r0")
    stores = [await world.another() for _ in range(3)]
    owners = [await world.own(f"r{place}") for place in range(1, 13)]
    tasks = [owner.transact(_insert(n + 1, completed()), store=stores[n % 3]) for n, owner in enumerate(owners)]
    await asyncio.gather(*tasks)
    assert await _rows(world) == list(range(1, 13))


@behaviour("transactions")
async def concurrent_transactions_of_one_run_form_one_chain(world: World) -> None:
    """Concurrent transactions of one run form one chain, and the later one gets the earlier one's events."""
    owner = await _prepared(world)
    start = owner.head
    done = await asyncio.gather(
        *(
            world.store.transact("r1", after=start, fence=1, actor="w1", work=_insert(n, completed(n)))
            for n in range(1, 6)
        )
    )
    assert sorted(len(each.missed) for each in done) == [0, 1, 2, 3, 4]
    assert await _rows(world) == [1, 2, 3, 4, 5]
    log = await world.log()
    verify(log)
    assert len(log) == 7


@behaviour("transactions")
async def other_runs_continue_during_transactions(world: World) -> None:
    """Appends, commands and claims of other runs succeed during transactions."""
    owner = await _prepared(world, "r0")
    others = [await world.own(f"r{place}") for place in range(1, 6)]
    await world.create("new")

    async def write(other: Owner) -> None:
        for number in range(1, 6):
            await other.append(started(number))

    async def transact() -> None:
        for number in range(1, 6):
            await owner.transact(_insert(number, started(number)))

    tells = (world.store.send_commands("new", signalled(command=f"c{n}"), actor="ann") for n in range(5))
    await asyncio.gather(transact(), *(write(other) for other in others), *tells)
    assert [claimed.row.id for claimed in await world.claim()] == ["new"]
    assert await _rows(world) == [1, 2, 3, 4, 5]
    for run in ("r0", "r1", "r2", "r3", "r4", "r5", "new"):
        verify(await world.log(run))
        assert await world.store.check_rows(run) == []


@behaviour("transactions")
async def an_append_behind_a_transaction_returns_the_missed_events(world: World) -> None:
    """An append after a head that a transaction has moved is refused, and gets the missed events."""
    owner = await _prepared(world)
    stale = owner.extend(started())
    await owner.transact(_insert(1, completed()))
    missed = await world.store.append(stale)
    assert isinstance(missed, Missed)
    assert [sealed.body for sealed in missed.events] == [completed()]


@behaviour("transactions")
async def watches_are_notified_of_a_transaction(world: World) -> None:
    """Watches are notified of a transaction."""
    owner = await _prepared(world)
    with world.store.watch() as watch:
        waiting = asyncio.ensure_future(watch.changed())
        await owner.transact(_insert(1, completed()))
        await waiting


@behaviour("transactions")
async def a_failed_transaction_does_not_affect_concurrent_ones(world: World) -> None:
    """Of many concurrent transactions, those that raise are rolled back, and the others are committed."""
    await _prepared(world, "r0")
    owners = [await world.own(f"r{place}") for place in range(1, 11)]

    def fails(connection: Any) -> Done:
        connection.execute("INSERT INTO mine VALUES (99, 'x')")
        raise ZeroDivisionError

    tasks = [owner.transact(fails if n % 2 else _insert(n, completed())) for n, owner in enumerate(owners)]
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, ZeroDivisionError) for each in done] == [False, True] * 5
    assert await _rows(world) == [0, 2, 4, 6, 8]


# Blobs


@behaviour("transactions")
async def a_large_output_is_stored_with_the_transaction(world: World) -> None:
    """A large output, of one or several chunks, is stored with the transaction's events."""
    owner = await _prepared(world)
    for place, value in enumerate(("x" * 20_000, ["y" * CHUNK, "z" * CHUNK])):
        payload, blobs = world.store.pack(value)
        await owner.transact(_insert(place, gave(payload), blobs=blobs))
        world.advance("2h")
        assert await world.store.collect_blobs() == 0
        assert await world.store.unpack(payload) == value
    assert await world.store.check_rows("r1") == []


@behaviour("transactions")
async def a_transaction_that_refers_to_a_missing_blob_is_rolled_back(world: World) -> None:
    """A transaction that refers to a missing blob is refused and rolled back."""
    owner = await _prepared(world)
    error = await expect(NotFound, owner.transact(_insert(1, gave(Payload(blob="0" * 64)))))
    assert error.what == "blob"
    assert (await owner.row()).head == owner.head
    assert await _rows(world) == []


@behaviour("transactions")
async def a_rolled_back_transaction_stores_no_blob(world: World) -> None:
    """A rolled-back transaction stores no blob."""
    owner = await _prepared(world)
    payload, blobs = world.store.pack("x" * 20_000)
    await expect(InvalidAppend, owner.transact(_insert(1, gave(payload), signalled(), blobs=blobs)))
    await expect(NotFound, world.store.unpack(payload))


# Helpers of this topic


def _insert(id: int, *bodies: AnyBody, blobs: Sequence[Blob] = ()) -> Work:
    """Return work that writes one caller's row and returns events."""

    def work(connection: Any) -> Done:
        connection.execute(f"INSERT INTO mine VALUES ({id}, 'x')")  # noqa: S608 - a number
        return bodies, blobs

    return work


def _never(connection: Any) -> Done:  # noqa: ARG001
    raise AssertionError("the work was called")


async def _prepared(world: World, run: str = "r1") -> Owner:
    """Claim a run for a worker, and create the caller's own table."""
    owner = await world.own(run)
    keeper = await _bystander(world, f"make-{run}")

    def make(connection: Any) -> Done:
        connection.execute(MAKE)
        return (started(),), ()

    await keeper.transact(make)
    return owner


async def _rows(world: World) -> list[int]:
    """Return the caller's rows, read in another run's transaction."""
    found: list[int] = []

    def look(connection: Any) -> Done:
        found.extend(id for (id,) in connection.execute("SELECT id FROM mine ORDER BY id").fetchall())
        return (started(),), ()

    number = await world.store.count()
    await (await _bystander(world, f"look-{number}")).transact(look)
    return found


async def _bystander(world: World, run: str) -> Owner:
    """Return a run of an agent that no other worker serves."""
    await world.create(run, agent="bystander")
    await world.worker("bystander", agents=("bystander",))
    [claimed] = await world.claim("bystander")
    return Owner(world, claimed.row)


async def _raised(awaitable: Coroutine[Any, Any, object]) -> BaseException:
    try:
        await awaitable
    except BaseException as error:  # noqa: BLE001 - any exception
        return error
    raise AssertionError("nothing was raised")


async def _take_over(world: World) -> None:
    """Let all leases expire, and claim everything for another worker."""
    world.advance("11s")
    await world.worker("w2")
    await world.claim("w2")
