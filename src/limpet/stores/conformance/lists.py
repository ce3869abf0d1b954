"""Lists and counts: filters, pages without gaps, and correct counters."""

from collections import Counter

from limpet.errors import InvalidValue
from limpet.events import AnyBody, Lineage, StatePatch, Wait, inline
from limpet.events import bodies as b
from limpet.stores import RequestFilter, RunFilter
from limpet.stores.conformance.suite import FAILED, World, asked, behaviour, expect, forked


@behaviour()
async def runs_are_listed_newest_first(world: World) -> None:
    """Runs are listed in reverse order of creation."""
    for place in range(5):
        await world.create(f"r{place}")
    assert await _ids(world, RunFilter()) == ["r4", "r3", "r2", "r1", "r0"]


@behaviour()
async def each_run_is_on_exactly_one_page(world: World) -> None:
    """Each run is on exactly one page, even if new runs are created in between."""
    for place in range(10):
        await world.create(f"r{place}")
    found: list[str] = []
    page = await world.store.runs(limit=3)
    while True:
        found += [row.id for row in page.rows]
        if page.next is None:
            break
        await world.create(f"new{len(found)}")
        page = await world.store.runs(limit=3, before=page.next)
    assert found == [f"r{place}" for place in range(9, -1, -1)]


@behaviour()
async def the_last_page_has_no_next(world: World) -> None:
    """The last page has no `next`, also if it is exactly full."""
    for place in range(4):
        await world.create(f"r{place}")
    first = await world.store.runs(limit=2)
    second = await world.store.runs(limit=2, before=first.next)
    assert (first.next is None, second.next is None) == (False, True)


@behaviour()
async def runs_are_listed_by_their_last_events(world: World) -> None:
    """`latest_runs` lists the run with the newest last event first, whether a worker holds it or not."""
    held = await world.own("held")
    for run in ("r1", "r2", "r3", "r4"):
        await world.create(run)
        world.advance("1s")
    await world.store.send_commands("r2", b.PauseRequested(command="c1"), actor="ann")
    world.advance("1s")
    await held.append(asked("q1"))
    world.advance("1s")
    await world.store.send_commands("r1", b.PauseRequested(command="c2"), actor="ann")
    assert await _latest(world) == ["r1", "held", "r2", "r4", "r3"]
    world.advance("1s")
    await held.append(b.RunWaiting(waits=(Wait(what="signal", key="go"),)))
    assert await _latest(world) == ["held", "r1", "r2", "r4", "r3"]
    assert await _latest(world, RunFilter(status=("pending",))) == ["r4", "r3"]
    assert await _latest(world, RunFilter(text="R4")) == ["r4"]


@behaviour()
async def pages_by_last_events_have_each_run_once(world: World) -> None:
    """Runs with the same time are ordered by number. A run that goes on meanwhile is not listed again."""
    for place in range(4):
        await world.own(f"held{place}", f"w{place}")
    for place in range(4):
        await world.create(f"r{place}")
    found: list[str] = []
    page = await world.store.latest_runs(limit=3)
    while page:
        found += [row.id for row in page]
        world.advance("1s")
        await world.store.send_commands(found[0], b.PauseRequested(command=f"c{len(found)}"), actor="ann")
        page = await world.store.latest_runs(limit=3, before=page[-1].place)
    assert found == ["r3", "r2", "r1", "r0", "held3", "held2", "held1", "held0"]
    for limit in (0, 1001):
        await expect(InvalidValue, world.store.latest_runs(limit=limit))


@behaviour()
async def an_empty_store_lists_nothing(world: World) -> None:
    """An empty store has no rows, no next page and no counts."""
    page = await world.store.runs()
    assert (page.rows, page.next) == ((), None)
    assert (await world.store.count(), dict(await world.store.counts())) == (0, {})


@behaviour()
async def runs_are_filtered_by_status(world: World) -> None:
    """Runs are filtered by one status or several."""
    await _of_each_status(world)
    assert await _ids(world, RunFilter(status=("failed",))) == ["failed"]
    assert await _ids(world, RunFilter(status=("waiting", "running"))) == ["waiting", "running"]
    assert await _ids(world, RunFilter(status=("nonsense",))) == []


@behaviour()
async def runs_are_filtered_by_agent_session_user_and_parent(world: World) -> None:
    """Filters by agent, session, user and parent match exactly, not by prefix or pattern."""
    await world.create("r1", agent="a", session="s", user="u", parent=Lineage(run="p"))
    await world.create("r2", agent="ab", session="s2", user="u2", parent=Lineage(run="p2"))
    await world.create("r3", agent="a%", session="s%", user="_", parent=Lineage(run="P"))
    await world.create("r4", agent="A")
    assert await _ids(world, RunFilter(agent="a")) == ["r1"]
    assert await _ids(world, RunFilter(session="s")) == ["r1"]
    assert await _ids(world, RunFilter(user="u")) == ["r1"]
    assert await _ids(world, RunFilter(parent="p")) == ["r1"]
    assert await _ids(world, RunFilter(session="s%")) == ["r3"]


@behaviour()
async def runs_are_filtered_by_labels(world: World) -> None:
    """All given labels must match; names and values may be any text."""
    odd = {"a'; DROP TABLE x; --": "%_\\", "team": "ä\0b"}
    await world.create("r1", labels=odd)
    await world.create("r2", labels={"team": "x", "env": "prod"})
    await world.create("r3", labels={"team": "x", "env": "test"})
    assert await _ids(world, RunFilter(labels={"team": "x"})) == ["r3", "r2"]
    assert await _ids(world, RunFilter(labels={"team": "x", "env": "prod"})) == ["r2"]
    assert await _ids(world, RunFilter(labels=odd)) == ["r1"]
    assert await _ids(world, RunFilter(labels={"env": "x"})) == []


@behaviour()
async def runs_are_filtered_by_creation_time(world: World) -> None:
    """Runs are filtered by creation time, from a time on and before a time."""
    times = []
    for place in range(3):
        times.append(world.clock.now())
        await world.create(f"r{place}")
        world.advance("1s")
    assert await _ids(world, RunFilter(created_from=times[1])) == ["r2", "r1"]
    assert await _ids(world, RunFilter(created_before=times[1])) == ["r0"]
    assert await _ids(world, RunFilter(created_from=times[1], created_before=times[2])) == ["r1"]


@behaviour()
async def runs_are_filtered_by_what_they_wait_for(world: World) -> None:
    """Runs are filtered by the kind of thing that they wait for."""
    await world.waiting("signal", "person")
    for run, *waits in (
        ("r2", Wait(what="person", key="time")),
        ("r3", Wait(what="time", key="t"), Wait(what="person", key="q")),
        ("r4",),
    ):
        owner = await world.own(run, f"w-{run}")
        if waits:
            await owner.append(b.RunWaiting(waits=tuple(waits)))
    assert await _ids(world, RunFilter(waits="person")) == ["r3", "r2"]
    assert await _ids(world, RunFilter(waits="time")) == ["r3"]
    assert await _ids(world, RunFilter(waits="signal")) == ["r1"]
    assert await _ids(world, RunFilter(waits="operator")) == []


@behaviour()
async def runs_are_found_by_text(world: World) -> None:
    """Text is found in id, agent, goal or a label's value, ignoring ASCII case, and is not a pattern."""
    await world.create("Ticket-42", agent="support")
    await world.create("r2", agent="a", labels={"customer": "Ticketmaster"})
    await world.create("r3", agent="b", initial=StatePatch(goal="Settle 100% of O_1 \\ ticket"))
    assert await _ids(world, RunFilter(text="ticket")) == ["r3", "r2", "Ticket-42"]
    assert await _ids(world, RunFilter(text="SUPPORT")) == ["Ticket-42"]
    assert await _ids(world, RunFilter(text="0% of o_1 \\")) == ["r3"]
    for pattern in ("t%t", "T_cket", "*", "customer"):
        assert await _ids(world, RunFilter(text=pattern)) == []


@behaviour()
async def all_given_filters_must_match(world: World) -> None:
    """Every given filter must match."""
    await _of_each_status(world)
    await world.create("other", agent="b")
    assert await _ids(world, RunFilter(agent="a", status=("pending",), text="pend")) == ["pending"]
    assert await _ids(world, RunFilter(agent="b", status=("failed",))) == []


@behaviour()
async def count_gives_the_number_of_listed_runs(world: World) -> None:
    """`count` gives the number of listed runs, for any filter."""
    await _of_each_status(world)
    for where in (RunFilter(), RunFilter(status=("failed", "pending")), RunFilter(agent="a"), RunFilter(text="in")):
        assert await world.store.count(where) == len(await _ids(world, where))


@behaviour()
async def counters_match_a_recount_after_every_change(world: World) -> None:
    """Counters by agent and status are always those of a recount."""
    await _of_each_status(world)
    await world.create("other", agent="b")
    await world.store.send_commands("failed", b.ResumeRequested(command="c1"), actor="ann")
    page = await world.store.runs(limit=100)
    assert Counter(await world.store.counts()) == Counter((row.agent, row.status) for row in page.rows)


@behaviour()
async def runs_and_conversations_are_listed_separately(world: World) -> None:
    """Runs and conversations are listed separately."""
    await world.create("r1")
    await world.conversation(session="s")
    assert await _ids(world, RunFilter()) == ["r1"]
    assert await _ids(world, RunFilter(type="conversation", session="s")) == ["c1"]
    assert await world.store.counts() == {("a", "pending"): 1}


@behaviour()
async def a_page_of_runs_has_a_maximum_size(world: World) -> None:
    """A page of runs has at most 1,000; of requests, one more can be read, to find out whether there are more."""
    for limit in (0, -5, 1001):
        await expect(InvalidValue, world.store.runs(limit=limit))
    for limit in (0, -5, 1002):
        await expect(InvalidValue, world.store.requests(limit=limit))


@behaviour()
async def the_inbox_lists_open_requests_oldest_first(world: World) -> None:
    """The inbox lists open requests, oldest first, with addressees, risk and expiry."""
    one, two = await world.own("r1"), await world.own("r2")
    await one.append(asked("q1", to=("ann", "finance"), risk="external_action", tool="refund", kind="approval"))
    world.advance("1s")
    await two.append(asked("q2", expires=world.clock.now() + 5))
    first, second = await world.store.requests()
    assert (first.id, first.run, first.seq, first.kind) == ("q1", "r1", 3, "approval")
    assert (first.to, first.risk, first.tool, first.expires) == (("ann", "finance"), "external_action", "refund", None)
    assert (second.id, second.opened, second.expires) == ("q2", world.clock.now(), world.clock.now() + 5)


@behaviour()
async def requests_are_filtered_by_person_run_risk_and_status(world: World) -> None:
    """Requests are filtered by person or group, run, risk and status, all matched exactly."""
    one, two = await world.own("r1"), await world.own("r2")
    await one.append(asked("q1", to=("ann", "finance"), risk="write_local"))
    await two.append(asked("q2", to=("an",)), b.RequestExpired(request="q2", outcome="raised"))
    assert [each.id for each in await world.store.requests(RequestFilter(to="finance"))] == ["q1"]
    assert [each.id for each in await world.store.requests(RequestFilter(to="an"))] == []
    assert [each.id for each in await world.store.requests(RequestFilter(to="an", status="expired"))] == ["q2"]
    assert [each.id for each in await world.store.requests(RequestFilter(run="r2", status=None))] == ["q2"]
    assert [each.id for each in await world.store.requests(RequestFilter(risk="write_local"))] == ["q1"]


@behaviour()
async def streams_lists_every_stream_once_oldest_first(world: World) -> None:
    """`streams` lists runs, forks and conversations once, oldest first, even if new ones are created in between."""
    await world.create("r2")
    await world.conversation()
    await world.store.create("r1", forked(at=1, of="r2", step=0), actor="test")
    assert await world.store.streams(after=10**12) == []
    found: list[tuple[int, str]] = []
    while page := await world.store.streams(after=found[-1][0] if found else 0, limit=2):
        found += page
        if len(found) < 4:
            await world.create(f"new{len(found)}")
    assert [run for _, run in found] == ["r2", "c1", "r1", "new2"]
    numbers = [number for number, _ in found]
    assert numbers == sorted(set(numbers)) == [(await world.store.get(run)).number for _, run in found]
    assert numbers[0] > 0
    assert await world.store.streams() == found
    await expect(InvalidValue, world.store.streams(limit=0))


@behaviour()
async def the_number_of_a_pruned_stream_is_not_reused(world: World) -> None:
    """The number of a pruned stream is not reused, so that a reader that continues after it misses nothing."""
    owner = await world.own("r1")
    await owner.append(b.RunCompleted(output=inline(1)))
    [(before, _)] = await world.store.streams()
    assert await world.store.prune({"r1": owner.head})
    assert await world.store.streams() == []
    await world.create("r1")
    [(after, run)] = await world.store.streams(after=before)
    assert (run, after > before) == ("r1", True)


async def _ids(world: World, where: RunFilter) -> list[str]:
    return [row.id for row in (await world.store.runs(where, limit=100)).rows]


async def _latest(world: World, where: RunFilter | None = None) -> list[str]:
    return [row.id for row in await world.store.latest_runs(where or RunFilter())]


async def _of_each_status(world: World) -> None:
    ends: dict[str, AnyBody | None] = {
        "completed": b.RunCompleted(output=inline(1)),
        "failed": FAILED,
        "cancelled": b.RunCancelled(reason="x"),
        "running": None,
        "waiting": b.RunWaiting(waits=(Wait(what="signal", key="go"),)),
    }
    for status, end in ends.items():
        owner = await world.own(status)
        if end is not None:
            await owner.append(end)
    await world.create("pending")
