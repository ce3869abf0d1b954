"""Reading logs: in order, in pages, forwards and backwards, the same from every store."""

from limpet.errors import InvalidValue, NotFound
from limpet.events import verify
from limpet.stores.conformance.suite import World, behaviour, completed, expect, started


@behaviour()
async def a_log_is_read_in_order(world: World) -> None:
    """A log is read in order, however its rows are stored."""
    await _long_run(world)
    assert [event.seq for event in await world.store.read("r1")] == list(range(1, 53))


@behaviour()
async def a_log_is_read_backwards(world: World) -> None:
    """A log can be read backwards, newest first."""
    await _long_run(world)
    assert [event.seq for event in await world.store.read("r1", backwards=True)] == list(range(52, 0, -1))


@behaviour()
async def pages_give_the_log_without_gap_or_overlap(world: World) -> None:
    """Pages give the whole log without gap or overlap."""
    await _long_run(world)
    seqs: list[int] = []
    while page := await world.store.read("r1", after=seqs[-1] if seqs else 0, limit=7):
        seqs += [event.seq for event in page]
    assert seqs == list(range(1, 53))


@behaviour()
async def pages_read_backwards_give_the_whole_log(world: World) -> None:
    """Pages read backwards give the whole log without gap or overlap."""
    await _long_run(world)
    seqs: list[int] = []
    while page := await world.store.read("r1", before=seqs[-1] if seqs else None, limit=7, backwards=True):
        seqs += [event.seq for event in page]
    assert seqs == list(range(52, 0, -1))


@behaviour()
async def a_range_excludes_its_ends(world: World) -> None:
    """A range excludes `after` and `before`, in both directions."""
    await _long_run(world)
    assert [event.seq for event in await world.store.read("r1", after=3, before=7)] == [4, 5, 6]
    assert [event.seq for event in await world.store.read("r1", after=3, before=7, backwards=True)] == [6, 5, 4]
    assert await world.store.read("r1", after=3, before=4) == []
    assert await world.store.read("r1", before=0) == []


@behaviour()
async def a_page_after_the_head_is_empty(world: World) -> None:
    """A page after the head is empty."""
    await world.create()
    assert await world.store.read("r1", after=1) == []
    assert await world.store.read("r1", after=10**12) == []


@behaviour()
async def a_page_of_events_has_at_most_limit_events(world: World) -> None:
    """A page has at most `limit` events, and `limit` has a maximum."""
    await _long_run(world)
    assert len(await world.store.read("r1", limit=5)) == 5
    for limit in (0, -1, 1001):
        await expect(InvalidValue, world.store.read("r1", limit=limit))


@behaviour()
async def runs_with_similar_ids_have_separate_logs(world: World) -> None:
    """Runs whose ids share a prefix or differ in case have separate logs."""
    for run in ("run", "run.1", "RUN", "run1"):
        await world.own(run)
    for run in ("run", "run.1", "RUN", "run1"):
        assert {event.run for event in await world.log(run)} == {run}


@behaviour()
async def another_store_on_the_same_data_sees_acknowledged_events(world: World) -> None:
    """Another store on the same data sees acknowledged events immediately."""
    other = await world.another()
    owner = await world.own()
    for number in range(1, 6):
        await owner.append(started(number))
        assert await other.read("r1") == await world.store.read("r1")
        assert await other.get("r1") == await owner.row()


@behaviour("durable")
async def logs_are_unchanged_after_reopening(world: World) -> None:
    """Everything is unchanged after closing and opening the store."""
    await _long_run(world)
    before = await world.log()
    await world.store.reopen()
    assert await world.log() == before
    verify(before)


@behaviour()
async def reading_an_unknown_run_is_not_found(world: World) -> None:
    """Reading an unknown run raises NotFound, not an empty log."""
    await expect(NotFound, world.store.read("missing"))
    await expect(NotFound, world.store.late("missing"))


async def _long_run(world: World) -> None:
    owner = await world.own()
    for number in range(1, 26):
        await owner.append(started(number), completed(number))
