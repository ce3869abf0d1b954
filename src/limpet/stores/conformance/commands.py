"""Commands: accepted from any process, checked, deduplicated and sealed by the store; they wake the run that waits."""

import asyncio

from limpet.errors import (
    Expired,
    IdConflict,
    InvalidAppend,
    InvalidArgument,
    NotFound,
    WrongState,
)
from limpet.events import AnyBody, Limits, StatePatch, Wait, inline, verify
from limpet.events import bodies as b
from limpet.state import Fold
from limpet.stores import Missed, SendCommands
from limpet.stores.conformance.suite import (
    FAILED,
    World,
    answered,
    asked,
    behaviour,
    completed,
    expect,
    signalled,
    started,
)


@behaviour()
async def a_command_is_the_last_event_of_the_log_when_it_returns(world: World) -> None:
    """When a command returns, it is the last event of the log, with the sender as its actor."""
    await world.own()
    head = await world.store.send_commands("r1", signalled(value={"n": 1}), actor="person:ann")
    log = await world.log()
    assert (log[-1].head, log[-1].actor, world.store.decode(log[-1])) == (head, "person:ann", signalled(value={"n": 1}))
    verify(log)


@behaviour()
async def a_command_sent_twice_is_recorded_once(world: World) -> None:
    """A command sent twice under one id gives the same result, and one event."""
    await world.own()
    first = await world.store.send_commands("r1", signalled(), actor="ann")
    again = await world.store.send_commands("r1", signalled(), actor="ann")
    assert first == again
    assert (await world.kinds()).count("signal.received") == 1


@behaviour()
async def a_checked_command_is_sent_only_at_the_event_of_its_check(world: World) -> None:
    """A command that was checked at an event is written only while that is the last one; a repeat counts as sent."""
    owner = await world.own()
    seq, patched = owner.head.seq, b.PatchReceived(command="c1", patch=StatePatch(goal="x"))
    assert await world.store.send_checked("r1", patched, actor="ann", seq=seq)
    assert await world.store.send_checked("r1", patched, actor="ann", seq=seq)
    other = b.PatchReceived(command="c2", patch=StatePatch(goal="y"))
    for wrong in (seq, seq + 2):
        assert not await world.store.send_checked("r1", other, actor="ann", seq=wrong)
    assert await world.store.send_checked("r1", other, actor="ann", seq=seq + 1)
    assert (await world.kinds()).count("patch.received") == 2


@behaviour()
async def a_repeated_command_is_recognised_after_the_run_has_ended(world: World) -> None:
    """A repeated command is recognised before the run's status is checked, also after its end."""
    owner = await world.own()
    first = await world.store.send_commands("r1", signalled(), actor="ann")
    owner.head = first
    await owner.append(b.RunCompleted(output=inline(1)))
    assert await world.store.send_commands("r1", signalled(), actor="ann") == first


@behaviour()
async def another_command_under_a_used_id_is_a_conflict(world: World) -> None:
    """Another command under a used id raises IdConflict."""
    await world.own()
    await world.store.send_commands("r1", signalled(value=1), actor="ann")
    await expect(IdConflict, world.store.send_commands("r1", signalled(value=2), actor="ann"))
    assert len(await world.log()) == 3


@behaviour()
async def command_ids_are_unique_per_run(world: World) -> None:
    """Two runs may use the same command id."""
    await world.own("r1")
    await world.own("r2")
    await world.store.send_commands("r1", signalled(), actor="ann")
    await world.store.send_commands("r2", signalled(), actor="ann")
    assert (await world.kinds("r2"))[-1] == "signal.received"


@behaviour()
async def concurrent_signals_are_all_recorded_once(world: World) -> None:
    """A hundred concurrent signals are all in the log, each once."""
    await world.own()
    bodies = [signalled(value=place, command=f"c{place}") for place in range(100)]
    await asyncio.gather(*(world.store.send_commands("r1", body, actor="ann") for body in bodies))
    log = await world.log()
    assert sorted(_value(world.store.decode(event)) for event in log[2:]) == list(range(100))
    verify(log)


@behaviour()
async def owner_events_are_refused_as_commands(world: World) -> None:
    """Owner events are refused as commands, so that no other process can complete a step or end a run."""
    await world.own()
    for body in (completed(), b.RunCompleted(output=inline(1)), b.RunClaimed(worker="x"), asked()):
        await expect(InvalidAppend, world.store.send_commands("r1", body, actor="ann"))
    assert len(await world.log()) == 2


@behaviour()
async def commands_are_refused_as_owner_events(world: World) -> None:
    """Commands are refused as owner events, so that a worker cannot answer its own requests."""
    owner = await world.own()
    await owner.append(asked())
    for body in (answered(), signalled(), b.CancelRequested(command="c", reason="x"), b.RunClaimed(worker="w1")):
        await expect(InvalidAppend, owner.send(owner.extend(body)))
    assert len(await world.log()) == 3


@behaviour()
async def a_command_to_an_unknown_run_is_not_found(world: World) -> None:
    """A command to a run that does not exist raises NotFound."""
    await expect(NotFound, world.store.send_commands("missing", signalled(), actor="ann"))


@behaviour()
async def a_command_needs_an_id(world: World) -> None:
    """A command without a valid id is refused."""
    await world.own()
    for command in ("", "a b", "x" * 201):
        await expect(InvalidArgument, world.store.send_commands("r1", signalled(command=command), actor="ann"))


@behaviour()
async def an_ended_run_refuses_commands(world: World) -> None:
    """An ended run refuses signals, cancels, pauses, grants and returns, and the error has its status."""
    owner = await world.own()
    await owner.append(b.RunCompleted(output=inline(1)))
    commands: list[AnyBody] = [
        signalled(),
        b.CancelRequested(command="c", reason="x"),
        b.PauseRequested(command="c"),
        b.ResumeRequested(command="c"),
        b.GrantGiven(command="c", grant="g", by="ann"),
        b.GrantRevoked(command="c", grant="g", by="ann"),
        b.AgentReturned(command="c", run="x", outcome="completed"),
        b.BudgetExtended(command="c", by="ann", limits=Limits(max_steps=5)),
        b.DeadlineExtended(command="c", deadline=10**15),
        b.PatchReceived(command="c", patch=StatePatch(goal="x")),
    ]
    for body in commands:
        error = await expect(WrongState, world.store.send_commands("r1", body, actor="ann"))
        assert error.status == "completed"
    assert (await world.kinds())[-1] == "run.completed"


@behaviour()
async def the_end_of_a_run_withdraws_its_open_requests(world: World) -> None:
    """Open requests of an ended run are withdrawn."""
    owner = await world.own()
    await owner.append(asked("q1"), asked("q2"), b.RunCancelled(reason="enough"))
    assert await world.store.requests() == []


@behaviour()
async def a_signal_wakes_the_run_that_waits_for_it(world: World) -> None:
    """A signal wakes the run that waits for it, and no run that waits for another."""
    await world.waiting("signal", "go")
    await world.store.send_commands("r1", signalled("other", command="c1"), actor="ann")
    assert await world.claim() == ()
    await world.store.send_commands("r1", signalled("go", command="c2"), actor="ann")
    assert len(await world.claim()) == 1


@behaviour()
async def a_childs_return_wakes_its_parent(world: World) -> None:
    """`agent.returned` makes the waiting parent runnable."""
    await world.waiting("run", "r1.a-1")
    await world.store.send_commands("r1", b.AgentReturned(command="c", run="r1.a-1", outcome="completed"), actor="w")
    assert len(await world.claim()) == 1


@behaviour()
async def a_command_written_before_parking_is_not_lost(world: World) -> None:
    """`run.waiting` fails if a command was written first, so that no wake-up is lost."""
    owner = await world.own()
    await owner.append(asked())
    await world.store.send_commands("r1", answered(), actor="ann")
    parked = owner.extend(b.RunWaiting(waits=(Wait(what="person", key="q1"),)))
    assert isinstance(await owner.send(parked), Missed)
    assert (await owner.row()).status == "running"


@behaviour()
async def the_end_of_a_run_fails_if_a_cancel_was_written_first(world: World) -> None:
    """The end of a run fails if a cancel was written first."""
    owner = await world.own()
    await world.store.send_commands("r1", b.CancelRequested(command="c", reason="enough"), actor="ann")
    assert isinstance(await owner.send(owner.extend(b.RunCompleted(output=inline(1)))), Missed)


@behaviour()
async def a_failed_run_can_be_extended_unless_its_effects_are_undone(world: World) -> None:
    """An operator extends the budget and the deadline of a failed run before resuming it."""
    for run, undone in (("r1", False), ("r2", True)):
        owner = await world.own(run, f"w-{run}")
        begun: list[AnyBody] = [b.CompensationStarted(number=1, attempt=1, key="k")] if undone else []
        await owner.append(*begun, FAILED)
        bodies = (
            b.BudgetExtended(command="c1", by="ann", limits=Limits(max_steps=5)),
            b.DeadlineExtended(command="c2", deadline=10**15),
        )
        for body in bodies:
            sent = world.store.send_commands(run, body, actor="ann")
            await (expect(WrongState, sent) if undone else sent)


@behaviour()
async def a_deadline_is_only_extended(world: World) -> None:
    """An earlier deadline has no effect, nor one for a run without a deadline."""
    now = world.clock.now()
    await world.create("r1", deadline=now + 100)
    await world.create("r2")
    for place, later in enumerate((50, 500, 400)):
        for run in ("r1", "r2"):
            body = b.DeadlineExtended(command=f"c{place}", deadline=now + later)
            await world.store.send_commands(run, body, actor="ann")
    assert [(await world.store.get(run)).deadline for run in ("r1", "r2")] == [now + 500, None]


@behaviour()
async def a_request_is_answered_until_the_deadline_of_its_run(world: World) -> None:
    """An extension of the deadline extends it too; the request's own expiry stays."""
    now = world.clock.now()
    owner = await world.own(deadline=now + 10**7)
    await owner.append(asked("q1"), asked("q2", expires=now + 5 * 10**6), asked("q3"))
    world.advance("6s")
    await expect(Expired, world.store.send_commands("r1", answered("q2", command="a2"), actor="ann"))
    await world.store.send_commands("r1", answered("q1", command="a1"), actor="ann")
    world.advance("6s")
    await expect(Expired, world.store.send_commands("r1", answered("q3", command="a3"), actor="ann"))
    body = b.DeadlineExtended(command="later", deadline=now + 10**8)
    await world.store.send_commands("r1", body, actor="ann")
    await world.store.send_commands("r1", answered("q3", command="a3"), actor="ann")


@behaviour()
async def a_cancel_wakes_a_run_whatever_it_waits_for(world: World) -> None:
    """A cancel makes a waiting run claimable, whatever it waits for."""
    await world.waiting("signal", "go")
    await world.store.send_commands("r1", b.CancelRequested(command="c", reason="enough"), actor="ann")
    assert len(await world.claim()) == 1


@behaviour()
async def a_cancelled_run_is_claimable_before_its_start_time(world: World) -> None:
    """A cancel makes a run with a later start time claimable immediately."""
    await world.create(start_at=world.clock.now() + 10**15)
    await world.worker()
    await world.store.send_commands("r1", b.CancelRequested(command="c", reason="enough"), actor="ann")
    assert len(await world.claim()) == 1


@behaviour()
async def a_paused_run_is_not_claimed(world: World) -> None:
    """A paused pending run is not claimed until it is resumed."""
    await world.create()
    await world.worker()
    await world.store.send_commands("r1", b.PauseRequested(command="c1"), actor="ann")
    row = await world.store.get("r1")
    assert (row.status, row.waits) == ("waiting", ("operator:paused",))
    assert await world.claim() == ()
    await world.store.send_commands("r1", b.ResumeRequested(command="c2"), actor="ann")
    assert len(await world.claim()) == 1


@behaviour()
async def pausing_and_resuming_keeps_the_start_time(world: World) -> None:
    """Pausing and resuming a run does not make it start before its start time."""
    await world.create(start_at=world.clock.now() + 60_000_000)
    await world.worker()
    await world.store.send_commands("r1", b.PauseRequested(command="c1"), actor="ann")
    await world.store.send_commands("r1", b.ResumeRequested(command="c2"), actor="ann")
    assert await world.claim() == ()
    world.advance("60s")
    assert len(await world.claim()) == 1


@behaviour()
async def a_paused_run_is_not_woken_by_an_answer(world: World) -> None:
    """An answer does not wake a paused run; it takes effect after the resume."""
    await world.waiting("person", "q1")
    await world.store.send_commands("r1", b.PauseRequested(command="c1"), actor="ann")
    await world.store.send_commands("r1", answered(command="c2"), actor="ann")
    assert await world.claim() == ()
    await world.store.send_commands("r1", b.ResumeRequested(command="c3"), actor="ann")
    assert len(await world.claim()) == 1
    assert "request.answered" in await world.kinds()


@behaviour()
async def a_pause_request_keeps_a_running_run_running(world: World) -> None:
    """A running run stays running after a pause request; its worker parks it."""
    owner = await world.own()
    await world.store.send_commands("r1", b.PauseRequested(command="c1"), actor="ann")
    assert (await owner.row()).status == "running"


@behaviour()
async def a_failed_run_can_be_resumed(world: World) -> None:
    """Resuming a failed run makes it pending and runnable."""
    owner = await world.own()
    await owner.append(FAILED)
    await world.store.send_commands("r1", b.ResumeRequested(command="c1"), actor="ann")
    row = await owner.row()
    assert (row.status, row.ended) == ("pending", None)
    assert len(await world.claim()) == 1


@behaviour()
async def a_failed_run_with_a_compensation_cannot_be_resumed(world: World) -> None:
    """A failed run with a compensation cannot be resumed."""
    owner = await world.own()
    await owner.append(b.CompensationStarted(number=1, attempt=1, key="k"), FAILED)
    await expect(WrongState, world.store.send_commands("r1", b.ResumeRequested(command="c1"), actor="ann"))


@behaviour()
async def a_resume_cancels_a_pause_that_is_not_applied_yet(world: World) -> None:
    """A resume cancels a pause that the worker has not applied yet."""
    await world.own()
    await world.store.send_commands("r1", b.PauseRequested(command="c1"), actor="ann")
    await world.store.send_commands("r1", b.ResumeRequested(command="c2"), actor="ann")
    row = await world.store.get("r1")
    assert (row.status, row.worker is not None) == ("running", True)
    folding = Fold()
    async for event in world.store.log("r1"):
        folding.add(event, world.store.decode(event))
    assert not folding.pausing


@behaviour()
async def commands_of_one_leg_need_distinct_ids(world: World) -> None:
    """A leg with a repeated or used command id is refused as a whole."""
    await world.own()
    one, two = signalled("a", command="c1"), signalled("b", command="c1")
    await expect(InvalidAppend, world.store.append(SendCommands(run="r1", bodies=(one, two), actor="ann")))
    await world.store.send_commands("r1", one, actor="ann")
    fresh = signalled("c", command="c9")
    await expect(IdConflict, world.store.send_commands("r1", fresh, one, actor="ann"))
    assert (await world.kinds()).count("signal.received") == 1


@behaviour()
async def commands_and_owner_events_share_one_chain(world: World) -> None:
    """Commands and owner events share one chain."""
    owner = await world.own()
    for place in range(5):
        owner.head = await world.store.send_commands("r1", signalled(command=f"c{place}"), actor="ann")
        await owner.append(started(place + 1))
    verify(await world.log())


@behaviour()
async def a_childs_return_reaches_a_failed_parent(world: World) -> None:
    """A child's return reaches a failed parent, which finds it when resumed."""
    owner = await world.own()
    await owner.append(FAILED)
    await world.store.send_commands("r1", b.AgentReturned(command="c1", run="x", outcome="completed"), actor="w")
    row = await owner.row()
    assert (row.status, (await world.kinds())[-1]) == ("failed", "agent.returned")


@behaviour()
async def a_paused_run_with_a_compensation_can_be_resumed(world: World) -> None:
    """A paused run with a compensation can be resumed; only a failed one cannot."""
    owner = await world.own()
    await owner.append(b.CompensationStarted(number=1, attempt=1, key="k"))
    await world.store.release("r1", fence=1, worker="w1", reason="drain")
    await world.store.send_commands("r1", b.PauseRequested(command="c1"), actor="ann")
    await world.store.send_commands("r1", b.ResumeRequested(command="c2"), actor="ann")
    assert len(await world.claim()) == 1


@behaviour()
async def a_run_that_is_being_cancelled_cannot_be_paused(world: World) -> None:
    """A run that is being cancelled cannot be paused."""
    await world.create()
    await world.worker()
    await world.store.send_commands("r1", b.CancelRequested(command="c1", reason="x"), actor="ann")
    await expect(WrongState, world.store.send_commands("r1", b.PauseRequested(command="c2"), actor="ann"))
    assert len(await world.claim()) == 1


@behaviour()
async def a_run_without_a_slot_can_be_cancelled_immediately(world: World) -> None:
    """A run that waits for a slot can be cancelled immediately."""
    await world.own("r1", exclusive="session:s")
    await world.create("r2", exclusive="session:s")
    assert await world.claim() == ()
    await world.store.send_commands("r2", b.CancelRequested(command="c1", reason="x"), actor="ann")
    [claimed] = await world.store.claim("w1", limit=5, concurrency={"a": 1})
    assert claimed.row.id == "r2"


@behaviour()
async def resuming_a_run_resets_its_death_count(world: World) -> None:
    """Resuming a run resets its death count."""
    await world.own(worker="dead")
    owner = await world.take_over()
    await owner.append(b.RunWaiting(waits=(Wait(what="operator", key="quarantined"),)))
    assert (await owner.row()).deaths == 1
    await world.store.send_commands("r1", b.ResumeRequested(command="c1"), actor="ann")
    assert (await owner.row()).deaths == 0


@behaviour()
async def waking_a_ready_run_keeps_its_place_in_the_queue(world: World) -> None:
    """Waking a run that is already ready does not change its place in the queue."""
    await world.waiting("signal", "go")
    await world.store.send_commands("r1", signalled(command="c1"), actor="ann")
    woken = (await world.store.get("r1")).ready_at
    world.advance("1s")
    await world.store.send_commands("r1", signalled(command="c2"), actor="ann")
    assert (await world.store.get("r1")).ready_at == woken


def _value(body: AnyBody) -> int:
    assert isinstance(body, b.SignalReceived)
    return int(body.value.value())
