"""The feed: a cursor over all streams that returns every event once and misses none during concurrent writes."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from limpet.errors import InvalidValue, LeaseLost
from limpet.events import AnyBody, Event, Lineage, inline, verify
from limpet.events import bodies as b
from limpet.stores import Create, Missed, Store
from limpet.stores.blobs import Blob
from limpet.stores.conformance.suite import (
    Owner,
    World,
    behaviour,
    completed,
    created,
    expect,
    message,
    signalled,
    started,
)

# After all writers have finished, a store may need a moment until everything can be returned.
EMPTY_PAGES = 200


@behaviour()
async def the_feed_has_every_event_once_in_log_order(world: World) -> None:
    """The feed is the union of all logs, for any page size, in the order of each log."""
    runs = await _several_histories(world)
    logs = {run: await world.log(run) for run in runs}
    total = sum(len(log) for log in logs.values())
    for limit in (1, 2, 3, 7, total, 1000):
        assert _by_run(await _all(world.store, limit=limit)) == logs


@behaviour()
async def a_feed_page_has_at_most_limit_events(world: World) -> None:
    """A page has at most `limit` events, and is full while there are enough."""
    await _several_histories(world)
    after = ""
    sizes = []
    while True:
        page = await world.store.feed(after, limit=4)
        if not page.events:
            break
        sizes.append(len(page.events))
        after = page.next
    assert set(sizes[:-1]) == {4}
    assert 1 <= sizes[-1] <= 4


@behaviour()
async def a_reader_continues_after_any_event(world: World) -> None:
    """Each event of a page has a cursor, after which exactly the later events follow."""
    await _several_histories(world)
    everything = await _all(world.store)
    page = await world.store.feed(limit=1000)
    assert len(page.cursors) == len(set(page.cursors)) == len(everything)
    assert page.next == page.cursors[-1]
    for place, cursor in enumerate(page.cursors, start=1):
        assert _ids(await _all(world.store, cursor, limit=3)) == _ids(everything[place:])


@behaviour()
async def the_feed_returns_events_as_stored(world: World) -> None:
    """The feed returns envelope, body and hash as stored, so that events can be verified and decoded."""
    await _several_histories(world)
    for run, events in _by_run(await _all(world.store)).items():
        assert verify(events) == (await world.store.get(run)).head
        assert [world.store.decode(event) for event in events] == await world.bodies(run)


@behaviour()
async def conversations_are_in_the_feed(world: World) -> None:
    """Messages of conversations are in the feed."""
    await world.conversation(message())
    assert [event.kind for event in await _all(world.store)] == ["conversation.created", "message.added"]


@behaviour()
async def all_events_of_an_append_are_in_the_feed(world: World) -> None:
    """All events of an append are in the feed, although a page may end between them."""
    owner = await world.own()
    await owner.append(*(started(number) for number in range(1, 6)))
    child = Create(run="c1", bodies=(created(parent=Lineage(run="r1")),), actor="w1")
    call = b.AgentCalled(name="call#1", run="c1", agent="a", mode="call", asked="")
    await world.store.append(owner.extend(call, completed()), child)
    found = await _all(world.store, limit=2)
    assert _by_run(found) == {run: await world.log(run) for run in ("r1", "c1")}
    assert len(found) == 10


@behaviour()
async def an_empty_feed_returns_a_cursor(world: World) -> None:
    """An empty feed returns a cursor to continue from."""
    page = await world.store.feed()
    assert page.events == ()
    again = await world.store.feed(page.next)
    await world.create()
    for place in ("", page.next, again.next):
        assert [event.kind for event in await _all(world.store, place)] == ["run.created"]


@behaviour()
async def a_reader_at_the_end_gets_only_new_events(world: World) -> None:
    """A reader at the end gets only new events."""
    owner = await world.own()
    after = await _end(world.store)
    for number in range(1, 6):
        await owner.append(started(number))
        found, after = await _rest(world.store, after)
        assert [world.store.decode(event) for event in found] == [started(number)]
    assert (await world.store.feed(after)).events == ()


@behaviour()
async def feed_end_returns_a_cursor_before_later_events(world: World) -> None:
    """`feed_end` returns a cursor after which only later events follow."""
    owner = await world.own()
    end = await world.store.feed_end()
    assert await _all(world.store, end) == []
    await owner.append(started())
    await world.create("r2")
    assert [(event.run, event.seq) for event in await _all(world.store, end)] == [("r1", 3), ("r2", 1)]


@behaviour()
async def the_end_of_an_empty_feed_is_its_start(world: World) -> None:
    """The end of an empty feed is its start, so that a reader misses nothing."""
    end = await world.store.feed_end()
    await world.create()
    assert len(await _all(world.store, end)) == 1


@behaviour()
async def a_cursor_is_text_that_another_store_can_use(world: World) -> None:
    """A cursor is text that another store, opened later, can continue from."""
    owner = await world.own()
    await owner.append(started(), started(2))
    page = await world.store.feed(limit=2)
    assert type(page.next) is str
    later = await world.another()
    found = await _all(later, page.next, limit=1)
    assert [*page.events, *found] == await world.log()


@behaviour()
async def a_cursor_can_be_used_again(world: World) -> None:
    """A cursor can be used again and returns the same page."""
    await _several_histories(world)
    first = await world.store.feed(limit=3)
    second = await world.store.feed(first.next, limit=3)
    assert await world.store.feed(limit=3) == first
    assert await world.store.feed(first.next, limit=3) == second
    assert not set(_ids(first.events)) & set(_ids(second.events))


@behaviour()
async def two_readers_do_not_affect_each_other(world: World) -> None:
    """Two readers with their own cursors do not affect each other."""
    await _several_histories(world)
    one, two = await asyncio.gather(_all(world.store, limit=1), _all(await world.another(), limit=5))
    assert one == two


@behaviour()
async def refused_appends_are_not_in_the_feed(world: World) -> None:
    """Refused appends, late results and snapshots are not in the feed."""
    old = await world.own()
    stale = old.extend(started(2))
    await old.append(started())
    assert isinstance(await world.store.append(stale), Missed)
    await world.take_over()
    await expect(LeaseLost, old.send(old.extend(completed())))
    await world.store.keep_late(old.seal(completed()))
    await world.store.save_snapshot("r1", old.head, b"state")
    await world.store.put_blob(b"x")
    assert await _all(world.store) == await world.log()


@behaviour()
async def a_feed_page_size_outside_1_to_1000_is_refused(world: World) -> None:
    """A page size below 1 or above 1000 is refused."""
    for limit in (0, -1, 1001):
        await expect(InvalidValue, world.store.feed(limit=limit))


@behaviour()
async def an_invalid_cursor_is_refused(world: World) -> None:
    """A cursor that no feed returned is refused."""
    await world.create()
    for place in ("nowhere", "1:x", "١x"):
        await expect(InvalidValue, world.store.feed(place))


@behaviour()
async def a_rebuild_adds_no_event_to_the_feed(world: World) -> None:
    """A rebuild adds no event to the feed."""
    owner = await world.own()
    await owner.append(started())
    end = await _end(world.store)
    await world.store.rebuild("r1")
    assert await _all(world.store, end) == []
    assert await _all(world.store) == await world.log()


@behaviour()
async def a_reader_misses_no_event_while_several_stores_write(world: World) -> None:
    """While four stores create, append and send commands, a reader gets every event once, in the order of its log."""
    stores = [await world.another() for _ in range(4)]
    finished = asyncio.Event()

    async def write(place: int, store: Store) -> None:
        run = f"r{place}"
        await store.create(run, created(f"a{place}"), actor="test")
        await world.worker(f"w{place}", agents=(f"a{place}",), store=store)
        [claimed] = await store.claim(f"w{place}", limit=1)
        owner = Owner(world, claimed.row, store)
        for number in range(1, 16):
            await asyncio.gather(
                owner.append(started(number), completed(number)),
                store.create(f"{run}-{number}", created("other"), actor="test"),
            )
            await store.send_commands(f"{run}-{number}", signalled(), actor="ann")

    async def write_all() -> None:
        await asyncio.gather(*(write(place, store) for place, store in enumerate(stores)))
        finished.set()

    total = 4 * (2 + 15 * 4)
    reading = [asyncio.create_task(_until(world.store, finished, total, limit=limit)) for limit in (1, 3, 1000)]
    await write_all()
    found = await asyncio.gather(*reading)
    rows = (await world.store.runs(limit=1000)).rows
    logs = {row.id: await world.log(row.id) for row in rows}
    assert sum(len(log) for log in logs.values()) == total
    for each in found:
        assert _by_run(each) == logs


@behaviour()
async def after_an_end_read_during_writes_there_is_no_gap(world: World) -> None:
    """After an end that was read during writes, the feed has every event from some point on."""
    owner = await world.own()
    other = await world.another()
    finished = asyncio.Event()

    async def write() -> None:
        for number in range(1, 41):
            await owner.append(started(number))
        finished.set()

    async def look() -> None:
        while not finished.is_set():
            end = await other.feed_end()
            found = await _all(other, end)
            numbers = [event.seq for event in found]
            assert numbers == [numbers[0] + place for place in range(len(numbers))]

    await asyncio.gather(write(), look())
    end = await _end(other)
    await owner.append(completed())
    assert [event.seq for event in await _all(other, end)] == [owner.head.seq]


@behaviour("processes")
async def a_reader_misses_no_event_while_processes_write(world: World) -> None:
    """While three processes create runs, a reader gets each creation once."""
    finished = asyncio.Event()

    async def write() -> None:
        assert await world.processes("create", 3, "20") == ["20"] * 3
        finished.set()

    _, found = await asyncio.gather(write(), _until(world.store, finished, 60, limit=7))
    assert sorted(event.run for event in found) == sorted(f"p{place}-{n}" for place in range(3) for n in range(20))


@behaviour("transactions")
async def a_transaction_that_commits_late_is_not_missed(world: World) -> None:
    """Events of a transaction that commits late are not missed, although readers and writers continue meanwhile."""
    slow, quick = await world.own("r1"), await world.own("r2")
    loop = asyncio.get_running_loop()
    seen: list[Event] = []
    place = [""]

    async def meanwhile() -> None:
        await quick.append(started(1))
        await world.create("r3")
        found, place[0] = await _rest(world.store, place[0])
        seen.extend(found)

    def work(connection: Any) -> tuple[list[AnyBody], list[Blob]]:
        connection.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY)")
        if world.capabilities.transactions == "beside":
            asyncio.run_coroutine_threadsafe(meanwhile(), loop).result()
        return [completed()], []

    if world.capabilities.transactions != "beside":
        await meanwhile()
    await slow.transact(work)
    await quick.append(started(2))
    seen += await _all(world.store, place[0])
    assert _by_run(seen) == {run: await world.log(run) for run in ("r1", "r2", "r3")}


@behaviour("transactions")
async def events_of_transactions_are_in_the_feed(world: World) -> None:
    """Events of callers' transactions are in the feed once, and those of rolled-back ones are not."""
    owners = [await world.own(f"r{place}") for place in range(6)]

    def lands(connection: Any) -> tuple[list[AnyBody], list[Blob]]:
        assert connection is not None
        return [started(), completed()], []

    def fails(connection: Any) -> tuple[list[AnyBody], list[Blob]]:
        assert connection is not None
        raise ZeroDivisionError

    works = [owner.transact(fails if place % 2 else lands) for place, owner in enumerate(owners)]
    await asyncio.gather(*works, return_exceptions=True)
    assert _by_run(await _all(world.store, limit=3)) == {owner.run: await world.log(owner.run) for owner in owners}
    assert [len(await world.log(owner.run)) for owner in owners] == [4, 2] * 3


@behaviour()
async def recent_returns_events_of_some_kinds_newest_first(world: World) -> None:
    """`recent` returns events of some kinds newest first, each once, for any scan size, down to the first."""
    runs, kinds = await _several_histories(world), ("step.started", "run.created")
    logs = {run: [event for event in await world.log(run) if event.kind in kinds] for run in runs}
    for scan in (1, 2, 5, 10_000):
        found: list[Event] = []
        before: str | None = ""
        while before is not None:
            page = await world.store.recent(kinds, before=before, scan=scan)
            assert {event.kind for event in page.events} <= set(kinds)
            found += page.events
            before = page.next
        assert _by_run(reversed(found)) == {run: log for run, log in logs.items() if log}


@behaviour()
async def recent_returns_the_time_of_the_oldest_event_examined(world: World) -> None:
    """A page of `recent` has the time of the oldest event examined, and no cursor once the start is reached."""
    await _several_histories(world)
    page = await world.store.recent(("no.such",), scan=3)
    assert page.events == ()
    assert page.next is not None
    assert page.time > 0
    assert await world.store.recent(("no.such",), scan=10_000) == ((), None, 0, ())
    await expect(InvalidValue, world.store.recent((), before="nowhere"))


async def _several_histories(world: World) -> list[str]:
    """Create runs and a conversation with interleaved events."""
    one, two = await world.own("r1"), await world.own("r2")
    for number in range(1, 4):
        await one.append(started(number), completed(number))
        await two.append(started(number))
    await world.conversation(message())
    await world.store.send_commands("r1", signalled(), actor="ann")
    await two.append(b.RunCompleted(output=inline(1)))
    await world.create("r3")
    return ["r1", "r2", "r3", "c1"]


async def _rest(store: Store, after: str, *, limit: int = 1000) -> tuple[list[Event], str]:
    """Return everything that can be read now, and the cursor after it."""
    found: list[Event] = []
    while True:
        page = await store.feed(after, limit=limit)
        found += page.events
        after = page.next
        if not page.events:
            return found, after


async def _all(store: Store, after: str = "", *, limit: int = 1000) -> list[Event]:
    return (await _rest(store, after, limit=limit))[0]


async def _end(store: Store) -> str:
    return (await _rest(store, ""))[1]


async def _until(store: Store, finished: asyncio.Event, total: int, *, limit: int) -> list[Event]:
    """Return what a reader gets that pages during writes, until nothing more comes after they have finished."""
    found: list[Event] = []
    after, empty = "", 0
    while empty < EMPTY_PAGES and not (finished.is_set() and len(found) >= total):
        page = await store.feed(after, limit=limit)
        found += page.events
        after = page.next
        empty = empty + 1 if finished.is_set() and not page.events else 0
    return found


def _by_run(events: Iterable[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        found[event.run].append(event)
    return dict(found)


def _ids(events: Iterable[Event]) -> list[tuple[str, int]]:
    return [(event.run, event.seq) for event in events]
