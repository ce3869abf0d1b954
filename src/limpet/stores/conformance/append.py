"""Appends: all or nothing, in order, without gaps, and safe to repeat."""

import asyncio

from limpet.errors import InvalidAppend, NotFound, Tampered, WrongState
from limpet.events import GENESIS, AnyBody, Head, PlanItem, Revision, StatePatch, inline, verify
from limpet.events import bodies as b
from limpet.events.parts import Wait
from limpet.stores import Appended, Extend, Missed, SendCommands
from limpet.stores.conformance.suite import FAILED, World, asked, behaviour, completed, expect, signalled, started


@behaviour()
async def appended_events_are_read_back_unchanged(world: World) -> None:
    """Appended events are read back byte for byte."""
    owner = await world.own()
    sealed = owner.seal(started(), completed(output={"ok": True}))
    await owner.send(Extend(run="r1", after=owner.head, fence=owner.fence, events=sealed))
    assert (await world.log())[2:] == [each.event for each in sealed]


@behaviour()
async def a_log_is_numbered_without_gaps_and_hash_chained(world: World) -> None:
    """Twenty appends give sequences 1 to n, and every hash is correct."""
    owner = await world.own()
    for number in range(1, 21):
        await owner.append(started(number), completed(number))
    log = await world.log()
    assert [event.seq for event in log] == list(range(1, 43))
    assert verify(log) == owner.head


@behaviour()
async def the_row_has_the_head_of_the_log(world: World) -> None:
    """The row's sequence, hash and time are those of the log's last event."""
    owner = await world.own()
    await owner.append(started())
    row = await owner.row()
    assert row.head == owner.head == (await world.log())[-1].head


@behaviour()
async def a_stale_append_returns_the_missed_events(world: World) -> None:
    """If a command was written first, the owner's append fails and returns exactly the events that it missed."""
    owner = await world.own()
    await world.store.send_commands("r1", signalled(value=1, command="c1"), actor="ann")
    await world.store.send_commands("r1", signalled(value=2, command="c2"), actor="ann")
    done = await owner.send(owner.extend(started()))
    assert isinstance(done, Missed)
    assert [sealed.body for sealed in done.events] == [
        signalled(value=1, command="c1"),
        signalled(value=2, command="c2"),
    ]
    assert [sealed.event for sealed in done.events] == (await world.log())[2:]


@behaviour()
async def an_append_resealed_after_the_missed_events_is_written(world: World) -> None:
    """The same bodies, sealed again after the missed events, are written."""
    owner = await world.own()
    await world.store.send_commands("r1", signalled(), actor="ann")
    missed = await owner.send(owner.extend(started()))
    assert isinstance(missed, Missed)
    owner.head = missed.events[-1].event.head
    await owner.append(started())
    assert (await world.kinds())[2:] == ["signal.received", "step.started"]


@behaviour()
async def an_append_ahead_of_the_head_is_refused(world: World) -> None:
    """An append that would leave a gap is refused and writes nothing."""
    owner = await world.own()
    good = owner.head
    owner.head = Head(good.seq + 5, good.hash, good.time)
    await expect(Tampered, owner.send(owner.extend(started())))
    assert (await owner.row()).head == good


@behaviour()
async def an_append_after_a_different_hash_is_refused(world: World) -> None:
    """An append with the right sequence but another hash is refused and writes nothing."""
    owner = await world.own()
    good = owner.head
    owner.head = Head(good.seq, GENESIS, good.time)
    await expect(Tampered, owner.send(owner.extend(started())))
    assert (await owner.row()).head == good


@behaviour()
async def repeating_an_append_writes_it_once(world: World) -> None:
    """Repeating an append with the same sealed events succeeds, and the log has them once."""
    owner = await world.own()
    leg = owner.extend(started(), completed())
    assert isinstance(await world.store.append(leg), Appended)
    assert await world.store.append(leg) == Appended((leg.events[-1].event.head,))
    assert len(await world.log()) == 4


@behaviour()
async def repeating_an_append_after_later_events_succeeds(world: World) -> None:
    """Repeating an append succeeds even if others wrote after it."""
    owner = await world.own()
    leg = owner.extend(started())
    await owner.send(leg)
    await owner.append(completed())
    await world.store.send_commands("r1", signalled(), actor="ann")
    assert await world.store.append(leg) == Appended((leg.events[-1].event.head,))
    assert len(await world.log()) == 5


@behaviour()
async def a_batch_of_many_events_is_one_append(world: World) -> None:
    """Five hundred events are written in one append."""
    owner = await world.own()
    await owner.append(*(started(number) for number in range(1, 501)))
    assert len(await world.log()) == 502
    assert (await owner.row()).step == 500


@behaviour()
async def many_runs_that_append_at_once_do_so_independently(world: World) -> None:
    """Of 90 runs that append at once, two have missed a command: only their appends are refused, at every place."""
    owners = [await world.own(f"r{place:02}") for place in range(90)]
    await world.store.send_commands("r07", signalled(), actor="ann")
    await world.store.send_commands("r89", signalled(), actor="ann")
    for step, late in ((1, {"r07", "r89"}), (2, set[str]())):
        done = await asyncio.gather(*(each.send(each.extend(started(step), completed(step))) for each in owners))
        refused = [each for each, found in zip(owners, done, strict=True) if isinstance(found, Missed)]
        assert {each.run for each in refused} == late
        for each in refused:
            each.head = (await each.row()).head
    for owner in owners:
        row = await owner.row()
        assert (verify(await world.log(owner.run)), row.step) == (row.head, 2)


@behaviour()
async def an_append_to_two_runs_writes_both(world: World) -> None:
    """An append to two runs writes both."""
    one, two = await world.own("r1"), await world.own("r2")
    done = await world.store.append(one.extend(started()), two.extend(started()))
    assert isinstance(done, Appended)
    assert [await world.kinds(run) for run in ("r1", "r2")] == [["run.created", "run.claimed", "step.started"]] * 2


@behaviour()
async def if_one_leg_is_stale_no_leg_is_written(world: World) -> None:
    """A conflict on one run leaves the other run unchanged, in either order."""
    one, two = await world.own("r1"), await world.own("r2")
    await world.store.send_commands("r2", signalled(), actor="ann")
    for legs in ((one, two), (two, one)):
        done = await world.store.append(*(each.extend(started()) for each in legs))
        assert isinstance(done, Missed)
        assert done.run == "r2"
    assert (await one.row()).head == one.head


@behaviour()
async def if_one_leg_is_refused_no_leg_is_written(world: World) -> None:
    """If a command is refused, the owner's events in the same append are not written."""
    one = await world.own("r1")
    two = await world.own("r2")
    await two.append(b.RunCompleted(output=inline(1)))
    command = b.AgentReturned(command="c1", run="r1", outcome="completed")
    await expect(WrongState, world.store.append(one.extend(b.RunCompleted(output=inline(1))), _command("r2", command)))
    assert (await one.row()).status == "running"


@behaviour()
async def a_refused_optional_leg_does_not_block_the_other_legs(world: World) -> None:
    """A child run ends even if its parent has ended and refuses the return."""
    one, two = await world.own("r1"), await world.own("r2")
    await two.append(b.RunCompleted(output=inline(1)))
    command = b.AgentReturned(command="c1", run="r1", outcome="completed")
    done = await world.store.append(
        one.extend(b.RunCompleted(output=inline(1))), _command("r2", command, optional=True)
    )
    assert isinstance(done, Appended)
    assert done.heads[1] is None
    assert (await one.row()).status == "completed"
    assert (await world.kinds("r2"))[-1] == "run.completed"


@behaviour()
async def repeating_an_append_of_two_legs_writes_both_once(world: World) -> None:
    """Repeating an append to two runs succeeds, and each log has its events once."""
    one, two = await world.own("r1"), await world.own("r2")
    command = b.AgentReturned(command="c1", run="r1", outcome="completed")
    legs = (one.extend(b.RunCompleted(output=inline(1))), _command("r2", command))
    assert isinstance(await world.store.append(*legs), Appended)
    assert isinstance(await world.store.append(*legs), Appended)
    assert (await world.kinds("r2"))[2:] == ["agent.returned"]
    assert two.head.seq == 2


@behaviour()
async def an_append_to_an_unknown_run_is_not_found(world: World) -> None:
    """An append to a run that does not exist raises NotFound."""
    owner = await world.own()
    owner.run = "missing"
    await expect(NotFound, owner.send(owner.extend(started())))


@behaviour()
async def malformed_appends_are_refused(world: World) -> None:
    """Empty appends, and events sealed for another run, sequence or fence, are refused before anything is written."""
    owner = await world.own()
    good = owner.extend(started())
    [sealed] = good.events
    for leg in (
        Extend(run="r1", after=owner.head, fence=owner.fence, events=()),
        Extend(run="r2", after=owner.head, fence=owner.fence, events=(sealed,)),
        Extend(run="r1", after=Head(0, GENESIS, 0), fence=owner.fence, events=(sealed,)),
        Extend(run="r1", after=owner.head, fence=owner.fence + 1, events=(sealed,)),
        Extend(run="r1", after=owner.head, fence=owner.fence, events=(sealed, sealed)),
    ):
        await expect(InvalidAppend, world.store.append(leg))
    assert (await owner.row()).head == owner.head


@behaviour()
async def a_completed_run_accepts_no_owner_events(world: World) -> None:
    """The owner cannot append after the run has completed."""
    owner = await world.own()
    await owner.append(b.RunCompleted(output=inline("done")))
    row = await owner.row()
    assert (row.status, row.worker, row.ended, row.ready_at) == ("completed", None, world.clock.now(), None)
    await expect(WrongState, owner.send(owner.extend(started())))


@behaviour()
async def events_after_an_end_in_the_same_append_are_refused(world: World) -> None:
    """An append with events after the end or parking of a run is refused as a whole."""
    owner = await world.own()
    ends: tuple[AnyBody, ...] = (
        b.RunCompleted(output=inline(1)),
        FAILED,
        b.RunCancelled(reason="x"),
        b.RunWaiting(waits=()),
    )
    for end in ends:
        await expect(InvalidAppend, owner.send(owner.extend(end, started())))
        await expect(InvalidAppend, owner.send(owner.extend(started(), end, end)))
    assert (await owner.row()).head == owner.head


@behaviour()
async def each_kind_of_end_sets_its_status(world: World) -> None:
    """Completed, failed and cancelled runs are listed with that status."""
    ends: dict[str, AnyBody] = {
        "completed": b.RunCompleted(output=inline(None)),
        "failed": FAILED,
        "cancelled": b.RunCancelled(reason="enough"),
    }
    for status, body in ends.items():
        owner = await world.own(status)
        await owner.append(body)
        assert (await owner.row()).status == status


@behaviour()
async def a_parked_runs_row_has_its_waits_and_wake_time(world: World) -> None:
    """`run.waiting` releases the run, and its row has the waits and the wake time."""
    owner = await world.own()
    wake = world.clock.now() + 5_000_000
    waits = (Wait(what="person", key="q1"), Wait(what="time", key="sleep#1"))
    await owner.append(b.RunWaiting(waits=waits, wake=wake))
    row = await owner.row()
    assert (row.status, row.worker, row.ready_at) == ("waiting", None, wake)
    assert row.waits == ("person:q1", "time:sleep#1")


@behaviour()
async def the_row_has_the_highest_step_number(world: World) -> None:
    """The row has the highest step number, which never decreases."""
    owner = await world.own()
    await owner.append(started(1), completed(1), started(3))
    await owner.append(started(2))
    assert (await owner.row()).step == 3


@behaviour()
async def the_row_has_the_patched_goal_and_plan(world: World) -> None:
    """The row has the goal, the size of the plan and its current item."""
    owner = await world.own()
    plan = (PlanItem(item="look"), PlanItem(item="tell"))
    await owner.append(b.StatePatched(name="patch#1", patch=StatePatch(goal="settle", plan=plan)))
    await owner.append(b.StatePatched(name="patch#2", patch=StatePatch(revise=(Revision(index=1, status="doing"),))))
    row = await owner.row()
    assert (row.goal, row.items, row.item) == ("settle", 2, 1)


@behaviour()
async def a_request_id_belongs_to_one_run(world: World) -> None:
    """A run cannot open a request with the id of another run's request."""
    one, two = await world.own("r1"), await world.own("r2")
    await one.append(asked("q1"))
    await expect(InvalidAppend, two.send(two.extend(asked("q1"))))
    [request] = await world.store.requests()
    assert (request.run, (await two.row()).head) == ("r1", two.head)


@behaviour()
async def a_run_cannot_close_requests_of_other_runs(world: World) -> None:
    """A run cannot expire, escalate or withdraw another run's request; the attempt changes nothing."""
    one, two = await world.own("r1"), await world.own("r2")
    await one.append(asked("q1", to=("ann",)))
    changes: tuple[AnyBody, ...] = (
        b.RequestExpired(request="q1", outcome="raised"),
        b.RequestExpired(request="q1", outcome="escalated", to=("eve",)),
        b.WaitEnded(name="ask#1", how="withdrawn", request="q1"),
    )
    for change in changes:
        await expect(InvalidAppend, two.send(two.extend(change)))
    [request] = await world.store.requests()
    assert (request.status, request.to, (await two.row()).head) == ("open", ("ann",), two.head)


@behaviour()
async def a_stale_append_does_not_fail_concurrent_appends(world: World) -> None:
    """Of many concurrent appends, only the stale one fails."""
    owners = [await world.own(f"r{place}") for place in range(20)]
    await world.store.send_commands("r7", signalled(), actor="ann")
    done = await asyncio.gather(*(owner.send(owner.extend(started())) for owner in owners))
    assert [type(each).__name__ for each in done] == ["Missed" if place == 7 else "Appended" for place in range(20)]


@behaviour()
async def event_times_never_decrease_along_a_log(world: World) -> None:
    """No event has a time before the previous event, even if the owner's clock is behind."""
    owner = await world.own()
    await owner.send(Extend(run="r1", after=owner.head, fence=owner.fence, events=owner.seal(started(), time=5)))
    times = [event.time for event in await world.log()]
    assert times == sorted(times)


def _command(run: str, body: b.AgentReturned, *, optional: bool = False) -> SendCommands:
    return SendCommands(run=run, bodies=(body,), actor="w1", optional=optional)
