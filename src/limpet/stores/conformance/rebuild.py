"""Rebuilding: rows can be rebuilt from the log, and on a healthy store that changes nothing."""

import asyncio
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from limpet.errors import LeaseLost, NotFound
from limpet.events import (
    AnyBody,
    Fact,
    Lineage,
    PlanItem,
    Revision,
    Spent,
    StatePatch,
    Wait,
    canonical,
    inline,
    verify,
)
from limpet.events import bodies as b
from limpet.stores import Appended, Missed, RequestFilter, RequestRow, RunFilter, RunRow
from limpet.stores.conformance.suite import (
    FAILED,
    Owner,
    World,
    answered,
    asked,
    behaviour,
    completed,
    created,
    expect,
    gave,
    message,
    signalled,
    started,
)

HOUR = 3600 * 10**6


@behaviour()
async def the_row_of_a_new_run_matches_its_log(world: World) -> None:
    """The row of a new run matches its log, with every field of a creation."""
    await world.create(
        user="ann",
        session="s1",
        labels={"team": "north", "prio": "1"},
        parent=Lineage(run="p1"),
        initial=StatePatch(goal="refund", plan=(PlanItem(item="look"), PlanItem(item="pay"))),
        steps=9,
        start_at=world.clock.now() + HOUR,
        exclusive="session:s1",
    )
    await _is_sound(world)


@behaviour()
async def the_row_of_a_running_run_matches_its_log(world: World) -> None:
    """The row of a running run matches its log, and its owner can continue after a rebuild."""
    owner = await world.own()
    await owner.append(started(1), completed(1), started(2))
    await _is_sound(world)
    await owner.append(completed(2))
    await _is_sound(world)


@behaviour()
async def goals_and_plans_in_rows_match_the_log(world: World) -> None:
    """Goal and plan in the row match the log, after patches in one append or several."""
    owner = await world.own(initial=StatePatch(goal="first", plan=(PlanItem(item="x"),)))
    plan = (PlanItem(item="a", status="done"), PlanItem(item="b", status="doing"), PlanItem(item="c"))
    await owner.append(_patched(goal="second"), _patched(plan=plan))
    await _is_sound(world)
    await owner.append(_patched(revise=(Revision(index=2, status="doing"),)))
    await owner.append(_patched(facts=(Fact(key="k", value=Raw(canonical(1))),)))
    await _is_sound(world)
    row = await owner.row()
    assert (row.goal, row.items, row.item) == ("second", 3, 2)


@behaviour()
async def the_row_of_a_parked_run_matches_its_log(world: World) -> None:
    """The row of a parked run matches its log, for signals, times or both, and it is still claimed after a rebuild."""
    wake = world.clock.now() + HOUR
    for run, waits, until in (
        ("r1", (Wait(what="signal", key="go"),), None),
        ("r2", (Wait(what="time", key="t#1"),), wake),
        ("r3", (Wait(what="signal", key="go"), Wait(what="time", key="t#1")), wake),
    ):
        owner = await world.own(run)
        await owner.append(b.RunWaiting(waits=waits, wake=until))
    for run in ("r1", "r2", "r3"):
        await _is_sound(world, run)
    await world.worker()
    assert await world.claim() == ()
    await world.store.send_commands("r1", signalled(), actor="ann")
    await _is_sound(world, "r1")
    assert [claimed.row.id for claimed in await world.claim()] == ["r1"]
    world.clock.set(wake)
    await world.worker()
    assert {claimed.row.id for claimed in await world.claim()} == {"r2", "r3"}


@behaviour()
async def the_row_of_an_open_request_matches_its_log(world: World) -> None:
    """The row of an open request matches its log, and it can be answered after a rebuild."""
    owner = await world.own()
    more: dict[str, Any] = {"to": ("ann", "bob"), "risk": "high", "tool": "refund", "digest": "d"}
    await owner.append(asked("q1", expires=world.clock.now() + HOUR, kind="approval", **more), asked("q2"))
    await owner.append(b.RunWaiting(waits=(Wait(what="person", key="q1"), Wait(what="person", key="q2"))))
    await _is_sound(world)
    await world.store.send_commands("r1", answered("q2"), actor="ann")
    await _is_sound(world)
    assert len(await world.claim()) == 1


@behaviour()
async def the_rows_of_decided_requests_match_their_log(world: World) -> None:
    """The rows of answered, used, rejected, expired, escalated and withdrawn requests match their log."""
    owner = await world.own()
    await owner.append(*(asked(f"q{n}", kind="approval") for n in range(1, 8)))
    decisions: tuple[tuple[str, Any], ...] = (("q1", "answered"), ("q2", "approved"), ("q3", "rejected"))
    for request, decision in decisions:
        body = b.RequestAnswered(command=f"c-{request}", request=request, decision=decision, by="ann")
        await world.store.send_commands("r1", body, actor="ann")
    owner.head = (await owner.row()).head
    await owner.append(
        b.StepStarted(name="t#1", tool="t", number=1, attempt=1, asked="", args=inline([]), effect="once", grant="q2"),
        b.RequestExpired(request="q4", outcome="raised"),
        b.RequestExpired(request="q5", outcome="escalated", to=("cfo",), expires=world.clock.now() + HOUR),
        b.WaitEnded(name="ask#1", how="withdrawn", request="q6"),
    )
    await _is_sound(world)
    found = {row.id: row.status for row in await world.store.requests(RequestFilter(status=None, run="r1"))}
    assert list(found.values()) == ["answered", "used", "rejected", "expired", "open", "withdrawn", "open"]
    await owner.append(b.RunCompleted(output=inline(None)))
    await _is_sound(world)
    assert await world.store.requests() == []


@behaviour()
async def the_row_of_an_ended_run_matches_its_log(world: World) -> None:
    """The row of an ended run matches its log, and its open requests are withdrawn."""
    for run, end in (
        ("r1", b.RunCompleted(output=inline(1))),
        ("r2", FAILED),
        ("r3", b.RunCancelled(reason="stop")),
    ):
        owner = await world.own(run)
        await owner.append(asked(f"q-{run}"), started())
        world.advance("1s")
        await owner.append(end)
        await _is_sound(world, run)


@behaviour()
async def the_row_of_a_resumed_run_matches_its_log(world: World) -> None:
    """The row of a resumed run matches its log: it can be claimed, and its deaths are reset."""
    owner = await world.own()
    await owner.append(FAILED)
    await world.store.send_commands("r1", b.ResumeRequested(command="c1"), actor="ann")
    await _is_sound(world)
    assert (await owner.row()).status == "pending"
    assert len(await world.claim()) == 1
    await _is_sound(world)


@behaviour()
async def the_row_of_a_run_with_a_compensation_matches_its_log(world: World) -> None:
    """A run with a compensation stays non-resumable after a rebuild."""
    owner = await world.own()
    await owner.append(b.CompensationStarted(number=1, attempt=1, key="k"), FAILED)
    await _is_sound(world)
    assert (await owner.row()).undoing


@behaviour()
async def pauses_and_cancels_in_rows_match_the_log(world: World) -> None:
    """Pauses and cancels in the row match the log, for a run that is new, waiting or running."""
    await world.create("r1", start_at=world.clock.now() + HOUR)
    await world.own("r2")
    parked = await world.own("r3")
    await parked.append(b.RunWaiting(waits=(Wait(what="signal", key="go"),)))
    commands: list[AnyBody] = [
        b.PauseRequested(command="c1"),
        b.ResumeRequested(command="c2"),
        b.CancelRequested(command="c3", reason="stop"),
    ]
    for run in ("r1", "r2", "r3"):
        for place, body in enumerate(commands):
            if run != "r2" or place != 1:  # The running run is not resumed.
                await world.store.send_commands(run, body, actor="ann")
            await _is_sound(world, run)


@behaviour()
async def the_row_of_a_released_run_matches_its_log(world: World) -> None:
    """The row of a released run matches its log, whether its worker released it or retired."""
    one, _ = await world.own("r1"), await world.own("r2")
    await world.store.release("r1", fence=one.fence, worker="w1", reason="drain")
    await _is_sound(world, "r1")
    await world.store.retire("w1")
    await _is_sound(world, "r2")
    await world.worker("w2")
    assert len(await world.claim("w2")) == 2


@behaviour()
async def death_counts_in_rows_match_the_log(world: World) -> None:
    """Deaths in the row match the log: counted at each take-over, reset when something is settled."""
    await world.own()
    for place in range(2, 5):
        owner = await world.take_over(worker=f"w{place}")
        await _is_sound(world)
        assert (await owner.row()).deaths == place - 1
    await owner.append(started(), completed())
    await _is_sound(world)
    assert (await owner.row()).deaths == 0
    await owner.append(b.CompensationStarted(number=1, attempt=1, key="k"))
    owner = await world.take_over(worker="w9")
    assert (await owner.row()).deaths == 1
    await owner.append(b.CompensationCompleted(number=1, attempt=1))
    await _is_sound(world)
    assert (await owner.row()).deaths == 0


@behaviour()
async def the_cost_in_a_row_matches_the_log(world: World) -> None:
    """The row adds up the costs of steps, however they ended, and of called runs."""
    owner, price = await world.own(), Spent(cost=0.1)
    ended = replace(completed(), spent=price)
    await owner.append(started(), ended)
    await owner.append(started(2), b.StepFailed(name="t#2", number=2, attempt=1, failure=FAILED.failure, spent=price))
    await owner.append(started(3), b.StepUnknown(name="t#3", number=3, attempt=1, reason="lost", spent=price))
    await owner.append(started(4), completed(4))
    assert (await owner.row()).cost == 0.1 + 0.1 + 0.1
    await _is_sound(world)
    returned = b.AgentReturned(command="c1", run="r2", outcome="completed", spent=Spent(cost=2.5))
    await world.store.send_commands("r1", returned, actor="r2")
    assert (await owner.row()).cost == 0.1 + 0.1 + 0.1 + 2.5
    await _is_sound(world)


@behaviour()
async def a_superseded_worker_is_refused_after_a_rebuild(world: World) -> None:
    """A superseded worker is still refused after a rebuild."""
    old = await world.own()
    new = await world.take_over()
    await world.store.rebuild("r1")
    await expect(LeaseLost, old.send(old.extend(started())))
    await new.append(started())


@behaviour()
async def the_row_of_a_conversation_matches_its_log(world: World) -> None:
    """The row of a conversation matches its log, and messages can be appended after a rebuild."""
    head = await world.conversation(message(), session="s1", user="ann", labels={"topic": "x"})
    await _is_sound(world, "c1")
    assert isinstance(await world.store.append(world.message_leg(head, message("again"))), Appended)
    await _is_sound(world, "c1")


@behaviour()
async def runs_are_found_by_label_after_a_rebuild(world: World) -> None:
    """A run is found by each label and by text after a rebuild."""
    await world.create(labels={"team": "north", "prio": "1"})
    await world.store.rebuild("r1")
    for where in (RunFilter(labels={"team": "north"}), RunFilter(labels={"team": "north", "prio": "1"})):
        assert [row.id for row in (await world.store.runs(where)).rows] == ["r1"]
    assert await world.store.count(RunFilter(labels={"team": "south"})) == 0
    assert await world.store.count(RunFilter(text="nort")) == 1


@behaviour()
async def referenced_blobs_are_not_collected_after_a_rebuild(world: World) -> None:
    """After a rebuild, blobs of inputs, results and commands are not collected; a loose one is."""
    inputs, one = world.store.pack("i" * 9_000)
    outputs, two = world.store.pack("o" * 9_000)
    values, three = world.store.pack("v" * 9_000)
    await world.store.create("r1", created(input=inputs), actor="test", blobs=one)
    await world.worker()
    await (await world.take()).append(gave(outputs), blobs=two)
    signal = b.SignalReceived(command="c1", signal="go", value=values)
    await world.store.send_commands("r1", signal, actor="ann", blobs=three)
    await world.store.put_blob(b"loose")
    await _is_sound(world)
    world.advance("2h")
    assert await world.store.collect_blobs() == 1
    assert [(await world.store.unpack(each))[0] for each in (inputs, outputs, values)] == ["i", "o", "v"]


@behaviour()
async def repeated_commands_are_recognised_after_a_rebuild(world: World) -> None:
    """A repeated command is recognised after a rebuild."""
    await world.own()
    first = await world.store.send_commands("r1", signalled(), actor="ann")
    await world.store.rebuild("r1")
    assert await world.store.send_commands("r1", signalled(), actor="ann") == first
    assert (await world.kinds()).count("signal.received") == 1


@behaviour()
async def counters_are_correct_after_a_rebuild(world: World) -> None:
    """Counters are correct after a rebuild."""
    for run in ("r1", "r2", "r3"):
        await world.own(run)
    await world.create("r4")
    before = await world.store.counts()
    for run in ("r1", "r2", "r3", "r4", "r1"):
        await world.store.rebuild(run)
    assert await world.store.counts() == before == {("a", "running"): 3, ("a", "pending"): 1}


@behaviour()
async def a_rebuild_keeps_slots_snapshots_and_late_results(world: World) -> None:
    """A rebuild keeps slots, snapshots and late results, which are not derived from the log."""
    owner = await world.own(exclusive="session:s1")
    await world.store.save_snapshot("r1", owner.head, b"state")
    await world.store.keep_late(owner.seal(completed()))
    await world.store.rebuild("r1")
    assert [seq for seq, _ in await world.store.snapshots("r1")] == [owner.head.seq]
    assert len(await world.store.late("r1")) == 1
    await world.create("r2", exclusive="session:s1")
    assert await world.claim() == ()
    await owner.append(b.RunCompleted(output=inline(1)))
    assert [claimed.row.id for claimed in await world.claim()] == ["r2"]


@behaviour()
async def rebuilding_an_unknown_run_is_not_found(world: World) -> None:
    """Rebuilding or checking a run that does not exist raises NotFound."""
    for asked_for in (world.store.rebuild("missing"), world.store.check_rows("missing")):
        assert (await expect(NotFound, asked_for)).what == "run"


@behaviour()
async def rebuilds_and_writes_can_run_concurrently(world: World) -> None:
    """Rebuilds, checks, appends and commands can run concurrently, and the rows match the log."""
    owner = await world.own()
    other = await world.another()
    finished = asyncio.Event()

    async def write() -> None:
        number = 1
        while number <= 20:
            done = await owner.send(owner.extend(started(number), asked(f"q{number}")))
            if isinstance(done, Missed):
                owner.head = done.events[-1].event.head
            else:
                number += 1
        finished.set()

    async def rebuild() -> None:
        while not finished.is_set():
            await other.rebuild("r1")

    async def check() -> None:
        while not finished.is_set():
            assert await other.check_rows("r1") == []

    tells = (world.store.send_commands("r1", signalled(command=f"c{n}"), actor="ann") for n in range(20))
    await asyncio.gather(write(), rebuild(), check(), *tells)
    verify(await world.log())
    await _is_sound(world)
    assert len(await world.store.requests()) == 20


@behaviour()
async def a_log_of_several_pages_is_rebuilt_completely(world: World) -> None:
    """A log with more events and requests than fit into a page is rebuilt completely."""
    owner = await world.own()
    await owner.append(*(asked(f"q{number}") for number in range(1_100)))
    await owner.append(*(started(number) for number in range(1, 1_101)))
    await _is_sound(world)
    assert (await owner.row()).step == 1_100


@behaviour()
async def counters_match_a_recount_of_the_runs(world: World) -> None:
    """Counters match a recount after runs were created, claimed, parked, ended and resumed."""
    await world.create("r0", agent="other")
    for run in ("r1", "r2", "r3"):
        await world.own(run)
    one, two = [Owner(world, await world.store.get(run)) for run in ("r1", "r2")]
    await one.append(b.RunCompleted(output=inline(1)))
    await two.append(FAILED)
    await world.store.send_commands("r2", b.ResumeRequested(command="c1"), actor="ann")
    before = dict(await world.store.counts())
    assert await world.store.check_counts() == []
    await world.store.recount()
    assert dict(await world.store.counts()) == before


async def _is_sound(world: World, run: str = "r1") -> None:
    """Check that the rows match the log, and that a rebuild changes nothing."""
    assert await world.store.check_rows(run) == []
    before = await _rows(world, run)
    log = await world.log(run)
    await world.store.rebuild(run)
    assert await _rows(world, run) == before
    assert await world.log(run) == log
    assert await world.store.check_rows(run) == []


async def _rows(world: World, run: str) -> tuple[RunRow, list[RequestRow]]:
    requests = await world.store.requests(RequestFilter(status=None, run=run))
    return await world.store.get(run), requests


def _patched(**changes: Any) -> b.StatePatched:
    return b.StatePatched(name="p#1", patch=StatePatch(**changes))
