"""The journal: the log of one run, as its owner writes it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec import Raw
from msgspec.structs import replace

from limpet.clock import SECOND, FrozenClock
from limpet.errors import InvalidArgument, InvalidPatch, LeaseLost, NewerVersion, NotFound, StoreUnavailable, Tampered
from limpet.events import AnyBody, Codec, Event, PlanItem, Revision, StatePatch, Wait, canonical, inline, parse
from limpet.events import bodies as b
from limpet.events.values import encode
from limpet.journal import ConversationWriter, Journal, OutgoingMessages, load, load_whole, verify_run
from limpet.journal.journal import MAX_WAIT
from limpet.journal.snapshots import save
from limpet.state import Fold, fold
from limpet.stores import Create, Inline
from limpet.stores.backend import Outcome
from limpet.stores.conformance import Harness, World
from limpet.stores.conformance.suite import answered, asked, completed, created, signalled, started
from limpet.stores.memory import MemoryBackend
from limpet.stores.sqlite import SqliteBackend
from limpet.stores.writes import Claimed, Op


class LosesReplies(MemoryBackend):
    """A memory store that commits and then loses the reply, as a broken connection would."""

    losing = 0
    keeping = True

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        """Commit all operations, unless they are to be lost too, and lose the reply if it is due."""
        done = super().commit(ops, codec) if self.keeping or not self.losing else []
        if self.losing:
            self.losing -= 1
            raise StoreUnavailable(reason="the reply was lost")
        return done


@pytest.fixture
def clock() -> FrozenClock:
    """Return the store's clock."""
    return FrozenClock()


@pytest.fixture
def backend(clock: FrozenClock) -> LosesReplies:
    """Return a memory store that can lose replies."""
    return LosesReplies(clock)


@pytest.fixture
async def world(backend: LosesReplies, clock: FrozenClock) -> AsyncIterator[World]:
    """Return a world on that store, without threads."""
    async with World(Harness(backend=lambda _: backend, handover=Inline), clock) as world:
        yield world


async def journal_of(world: World, run: str = "r1") -> Journal:
    """Create and claim a run, and return its journal."""
    await world.create(run)
    await world.worker()
    [claimed] = await world.claim()
    return await Journal.open(world.store, claimed, world.clock.now)


async def snapshot_if_due(journal: Journal) -> bool:
    """Save a snapshot if one is due; return whether it was."""
    due = journal.is_snapshot_due
    if due:
        await journal.snapshot()
    return due


async def test_appended_events_are_stored_and_folded(world: World) -> None:
    """The state is the fold of the stored log."""
    journal = await journal_of(world)
    await journal.append(b.StatePatched(name="patch#1", patch=StatePatch(goal="g")), started())
    assert journal.state == fold(await world.log()) == await load(world.store, "r1")
    assert journal.state.working.goal == "g"
    assert journal.head == (await world.store.get("r1")).head


async def test_added_events_are_written_with_the_next_flush(world: World) -> None:
    """No event is written before the flush, and the order stays."""
    journal = await journal_of(world)
    journal.add(started(1))
    journal.add(completed(1))
    assert len(await world.log()) == 2
    await journal.append(started(2))
    assert (await world.kinds())[2:] == ["step.started", "step.completed", "step.started"]


async def test_concurrent_flushes_write_every_event_once(world: World) -> None:
    """While one append is in flight, the events of the other tasks wait for the next one."""
    journal = await journal_of(world)
    await asyncio.gather(*(journal.append(started(number)) for number in range(1, 11)))
    assert [event.kind for event in await world.log()][2:] == ["step.started"] * 10
    assert journal.state.position.step == 10


async def test_commands_written_first_are_folded_first(world: World) -> None:
    """The owner's events are sealed again after the command, and the state has both."""
    journal = await journal_of(world)
    await world.store.send_commands("r1", signalled("go"), actor="ann")
    await journal.append(started())
    assert (await world.kinds())[2:] == ["signal.received", "step.started"]
    assert [signal.signal for signal in journal.state.signals] == ["go"]
    assert await verify_run(world.store, "r1") == journal.head


async def test_append_if_current_writes_nothing_after_an_unseen_command(world: World) -> None:
    """`append_if_current` folds the command and returns False, so that the caller can decide again."""
    journal = await journal_of(world)
    await world.store.send_commands("r1", b.CancelRequested(command="c1", reason="enough"), actor="ann")
    end = b.RunCompleted(output=inline(1))
    assert not await journal.append_if_current(end, last_seen=journal.last_seen)
    assert journal.state.cancel == "enough"
    assert journal.state.status == "running"
    assert await journal.append_if_current(b.RunCancelled(reason="enough"), last_seen=journal.last_seen)
    assert (await world.kinds())[2:] == ["cancel.requested", "run.cancelled"]


async def test_append_if_current_flushes_the_buffer_first(world: World) -> None:
    journal = await journal_of(world)
    journal.add(started())
    assert await journal.append_if_current(b.RunCompleted(output=inline(1)), last_seen=journal.last_seen)
    assert (await world.kinds())[2:] == ["step.started", "run.completed"]


async def test_no_wake_up_is_lost_behind_a_buffered_event(world: World) -> None:
    """An answer arrived after the decision to park, while an event was buffered: the run is not parked."""
    journal = await journal_of(world)
    await journal.append(asked("q1"))
    last_seen = journal.last_seen
    await world.store.send_commands("r1", answered("q1"), actor="ann")
    journal.add(b.ValueRecorded(name="now#1", value=inline(1)))
    waiting = b.RunWaiting(waits=(Wait(what="person", key="q1"),))
    assert not await journal.append_if_current(waiting, last_seen=last_seen)
    await journal.flush()
    assert (await world.kinds())[2:] == ["request.opened", "request.answered", "value.recorded"]
    assert (await world.store.get("r1")).status == "running"


async def test_no_wake_up_is_lost_to_another_tasks_flush(world: World) -> None:
    """Another task folded the answer between the decision to park and the append: the run is not parked."""
    journal = await journal_of(world)
    await journal.append(asked("q1"))
    last_seen = journal.last_seen
    await world.store.send_commands("r1", answered("q1"), actor="ann")
    await journal.append(started())
    waiting = b.RunWaiting(waits=(Wait(what="person", key="q1"),))
    assert not await journal.append_if_current(waiting, last_seen=last_seen)
    assert await journal.append_if_current(b.RunCompleted(output=inline(1)), last_seen=journal.last_seen)


@pytest.mark.parametrize("landed", [True, False])
async def test_parking_with_a_lost_reply_is_not_sealed_after_a_command(
    world: World, backend: LosesReplies, landed: bool
) -> None:
    """The repeated append was written before, or is dropped if an answer has arrived; it is never sealed after the
    answer.
    """
    journal = await journal_of(world)
    await journal.append(asked("q1"))
    waiting, last_seen = b.RunWaiting(waits=(Wait(what="person", key="q1"),)), journal.last_seen
    backend.losing, backend.keeping = 1, landed
    with pytest.raises(StoreUnavailable):
        await journal.append_if_current(waiting, last_seen=last_seen)
    await world.store.reopen()
    await world.store.send_commands("r1", answered("q1"), actor="ann")
    assert await journal.append_if_current(waiting, last_seen=last_seen) is landed
    row = await world.store.get("r1")
    assert (row.status, row.ready_at is not None) == (("waiting", True) if landed else ("running", False))


async def test_a_command_between_claim_and_opening_is_folded(world: World) -> None:
    """The journal starts at the claim, and gets the command as a missed event."""
    await world.create()
    await world.worker()
    [claimed] = await world.claim()
    await world.store.send_commands("r1", signalled("go"), actor="ann")
    journal = await Journal.open(world.store, claimed, world.clock.now)
    await journal.append(started())
    assert [signal.signal for signal in journal.state.signals] == ["go"]


async def test_refreshing_folds_without_writing(world: World) -> None:
    """A run in a long step sees a cancel."""
    journal = await journal_of(world)
    await world.store.send_commands("r1", b.CancelRequested(command="c1", reason="enough"), actor="ann")
    await journal.refresh()
    assert (journal.state.cancel, journal.last_seen) == ("enough", 3)
    assert len(await world.log()) == 3


async def test_an_invalid_patch_is_never_stored(world: World) -> None:
    """This applies to a patch alone, after a buffered one, and together with valid ones: none of them is added."""
    journal = await journal_of(world)
    journal.add(b.StatePatched(name="p#1", patch=StatePatch(questions=("why?",))))
    journal.add(b.StatePatched(name="p#2", patch=StatePatch(answered={"why?": "so"})))
    for bodies in (
        (b.StatePatched(name="p#3", patch=StatePatch(answered={"why?": "so"})),),
        (started(1), b.StatePatched(name="p#3", patch=StatePatch(retract=("nothing",)))),
    ):
        with pytest.raises(InvalidPatch):
            journal.add(*bodies)
    await journal.append(b.RiskFlagged(flag="f"), b.StatePatched(name="p#3", patch=StatePatch(lower=("f",))))
    assert (await world.kinds())[2:] == ["state.patched", "state.patched", "risk.flagged", "state.patched"]
    assert journal.state == await load(world.store, "r1")


async def test_snapshots_stay_linear_over_many_claims(world: World) -> None:
    """A journal that is opened again has the size of the last snapshot and of the tail since then."""
    journal = await journal_of(world)
    data = Raw(canonical("x" * 200_000))
    await journal.append(b.StatePatched(name="p#1", patch=StatePatch(data=data)))
    assert await snapshot_if_due(journal)
    for number in range(3):
        await world.store.release("r1", fence=journal.fence, worker="w1", reason="drain")
        [claimed] = await world.claim()
        journal = await Journal.open(world.store, claimed, world.clock.now)
        await journal.append(completed(number + 1, output="x" * 70_000))
        assert await snapshot_if_due(journal) is (number == 2)


async def test_a_lost_reply_is_resolved_by_repeating(world: World, backend: LosesReplies) -> None:
    """The same sealed events are sent again and written once, although more were added and time has passed."""
    journal = await journal_of(world)
    backend.losing = 1
    with pytest.raises(StoreUnavailable):
        await journal.append(started(1))
    await world.store.reopen()
    world.advance("1h")
    await journal.append(completed(1))
    assert (await world.kinds())[2:] == ["step.started", "step.completed"]
    assert journal.state == fold(await world.log())


async def test_a_lost_reply_before_a_command_is_resolved_by_repeating(world: World, backend: LosesReplies) -> None:
    """The repeat succeeds, and the command is found at the next append."""
    journal = await journal_of(world)
    backend.losing = 1
    with pytest.raises(StoreUnavailable):
        await journal.append(started(1))
    await world.store.reopen()
    await world.store.send_commands("r1", signalled(), actor="ann")
    await journal.append(completed(1))
    assert (await world.kinds())[2:] == ["step.started", "signal.received", "step.completed"]


async def test_events_of_a_lost_run_are_kept_as_late_results(world: World) -> None:
    """After LeaseLost, the unwritten events are stored as late results."""
    journal = await journal_of(world)
    world.advance("11s")
    await world.worker("w2")
    await world.claim("w2")
    with pytest.raises(LeaseLost):
        await journal.append(completed(1, output="paid"))
    journal.add(started(2))
    await journal.keep_late()
    assert [late.event.kind for late in await world.store.late("r1")] == ["step.completed", "step.started"]
    await journal.keep_late()
    assert len(await world.store.late("r1")) == 2
    assert "step.completed" not in await world.kinds()


async def test_the_state_after_any_event_can_be_loaded(world: World) -> None:
    """This holds from any snapshot, and without one."""
    journal = await journal_of(world)
    for number in range(1, 11):
        await journal.append(started(number), completed(number))
    log = await world.log()
    expected = [fold(log[:seq]) for seq in range(1, len(log) + 1)]
    for snapshots in ((), (3,), (3, 12, 20)):
        for seq in snapshots:
            await save(world.store, log[seq - 1].head, expected[seq - 1])
        assert [await load(world.store, "r1", at_most=seq + 1) for seq in range(len(log))] == expected


async def test_a_snapshot_is_written_when_the_tail_has_outgrown_it(world: World) -> None:
    """The limit is in bytes or in events; loading then reads only the tail."""
    journal = await journal_of(world)
    assert not await snapshot_if_due(journal)
    await journal.append(completed(1, output="x" * 70_000))
    assert await snapshot_if_due(journal)
    assert not await snapshot_if_due(journal)
    await journal.append(*(started(number) for number in range(1, 2001)))
    assert await snapshot_if_due(journal)
    assert [seq for seq, _ in await world.store.snapshots("r1")] == [3, 2003]
    assert await load(world.store, "r1") == fold(await world.log())


async def test_deleting_every_snapshot_does_not_change_the_state(world: World) -> None:
    journal = await journal_of(world)
    await journal.append(started())
    await save(world.store, journal.head, journal.state)
    with_snapshot = await load(world.store, "r1")
    await world.store.drop_snapshots("r1", [journal.head.seq])
    assert await load(world.store, "r1") == with_snapshot


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\xff\xfe", b'{"version": 99, "state": {}}', b'{"version": 1}'])
async def test_a_snapshot_that_cannot_be_read_is_not_used(world: World, data: bytes) -> None:
    """The log is folded instead."""
    journal = await journal_of(world)
    await world.store.save_snapshot("r1", journal.head, data)
    assert await load(world.store, "r1") == fold(await world.log())


async def test_a_snapshot_of_another_history_is_not_used(world: World) -> None:
    """The hash does not match the event at that sequence."""
    journal = await journal_of(world)
    wrong = replace(journal.state, agent="another")
    await save(world.store, replace(journal.head, hash=bytes(32)), wrong)
    assert (await load(world.store, "r1")).agent == "a"
    await save(world.store, replace(journal.head, seq=99), wrong)
    assert (await load(world.store, "r1")).agent == "a"


@pytest.mark.parametrize(
    ("statement", "seq"),
    [
        ("UPDATE limpet_events SET body = x'7b7d' WHERE seq = 3", 3),
        ("DELETE FROM limpet_events WHERE seq = 5", 5),
        ("DELETE FROM limpet_events WHERE seq = 3", 4),
    ],
)
async def test_verify_finds_a_log_that_was_changed(tmp_path: Path, statement: str, seq: int) -> None:
    """The changes are an edited body, a deleted last event, and a deleted event inside."""
    path = str(tmp_path / "limpet.db")
    async with World(Harness(backend=lambda clock: SqliteBackend(path, clock))) as world:
        journal = await journal_of(world)
        await journal.append(started(1), completed(1), started(2))
        await verify_run(world.store, "r1")
        _change(path, statement)
        with pytest.raises(Tampered) as error:
            await verify_run(world.store, "r1")
        assert error.value.seq == seq


async def test_an_unknown_event_stops_only_its_run(tmp_path: Path) -> None:
    """A log written by a newer version cannot be folded; no event is skipped, and other runs are not affected."""
    path = str(tmp_path / "limpet.db")
    async with World(Harness(backend=lambda clock: SqliteBackend(path, clock))) as world:
        await world.create("r1")
        await world.create("r2")
        _change(path, "UPDATE limpet_events SET kind = 'run.teleported' WHERE run = 1")
        with pytest.raises(NewerVersion, match=r"run\.teleported"):
            await load(world.store, "r1")
        assert [event.kind for event in await world.log("r1")] == ["run.teleported"]
        assert (await load(world.store, "r2")).status == "pending"


async def test_the_position_is_derived_from_the_plan_in_the_log(world: World) -> None:
    journal = await journal_of(world)
    plan = (PlanItem(item="a", status="done"), PlanItem(item="b", status="doing"), PlanItem(item="c"))
    await journal.append(b.StatePatched(name="patch#1", patch=StatePatch(plan=plan)))
    assert str(journal.state.position) == "step 2 of 3"


def _change(path: str, statement: str) -> None:
    db = apsw.Connection(path)
    db.execute("PRAGMA foreign_keys = OFF").fetchall()
    db.execute(statement).fetchall()
    db.close()


# Several runs and tables


async def test_blobs_are_written_with_the_events_that_refer_to_them(world: World) -> None:
    """This holds if a command was written first and the events were sealed again."""
    journal = await journal_of(world)
    payload, blobs = world.store.pack("x" * 10_000)
    await world.store.send_commands("r1", signalled("go"), actor="ann")
    await journal.append(b.StepCompleted(name="t#1", number=1, attempt=1, output=payload), blobs=blobs)
    assert await world.store.unpack(payload) == "x" * 10_000
    assert await world.store.check_rows("r1") == []


async def test_blobs_of_late_results_are_not_collected(world: World) -> None:
    """A late result can be read completely after the grace period, too."""
    journal = await journal_of(world)
    payload, blobs = world.store.pack("x" * 10_000)
    journal.add(b.StepCompleted(name="t#1", number=1, attempt=1, output=payload), blobs=blobs)
    await world.store.release("r1", fence=1, worker="w1", reason="test")
    with pytest.raises(LeaseLost):
        await journal.flush()
    await journal.keep_late()
    world.advance("2h")
    await world.store.collect_blobs()
    assert await world.store.unpack(payload) == "x" * 10_000


class Learning:
    """A learner that records the sequences of the events."""

    is_partial = False

    def __init__(self) -> None:
        self.learnt: list[int] = []

    def fresh(self) -> "Learning":
        return Learning()

    def recover(self, fresh: "Learning") -> None:
        self.learnt, self.is_partial = fresh.learnt, False

    def learn(self, event: Event, body: AnyBody, fold: Fold) -> None:  # noqa: ARG002
        self.learnt.append(event.seq)

    def learn_step(
        self,
        started: Event,
        opened: b.StepStarted,  # noqa: ARG002
        completed: Event,
        settled: b.StepCompleted,  # noqa: ARG002
        fold: Fold,  # noqa: ARG002
    ) -> None:
        self.learnt += [started.seq, completed.seq]

    def dump(self) -> bytes | None:
        return encode(self.learnt)

    def restore(self, data: bytes) -> bool:
        self.learnt[:] = parse(data)
        return True


async def test_a_learner_that_has_forgotten_something_learns_the_log_again(world: World) -> None:
    """The snapshot contains the dump of the whole log, and the learner has everything again."""
    await world.create("r1")
    await world.worker()
    [claimed] = await world.claim()
    learning = Learning()
    journal = await Journal.open(world.store, claimed, world.clock.now, learner=learning)
    await journal.append(*(b.StatePatched(name=f"patch#{n}", patch=StatePatch(goal="x" * 4000)) for n in range(20)))
    learning.learnt, learning.is_partial = learning.learnt[10:], True
    assert await snapshot_if_due(journal)
    assert (learning.learnt, learning.is_partial) == (list(range(1, 23)), False)
    [(seq, _)] = await world.store.snapshots("r1")
    again = Learning()
    await load_whole(world.store, "r1", at_most=seq, learner=again)
    assert again.learnt == learning.learnt


async def test_a_learners_data_is_kept_in_the_snapshot(world: World) -> None:
    """Later events are learned from there. Without the snapshot, the log gives the same."""
    await world.create("r1")
    await world.worker()
    [claimed] = await world.claim()
    journal = await Journal.open(world.store, claimed, world.clock.now, learner=Learning())
    await journal.append(*(b.StatePatched(name=f"patch#{n}", patch=StatePatch(goal="x" * 4000)) for n in range(20)))
    assert await snapshot_if_due(journal)
    await journal.append(started())
    row = await world.store.get("r1")
    again = [Learning(), Learning()]
    await Journal.open(world.store, Claimed(row, died=False), world.clock.now, learner=again[0])
    await world.store.drop_snapshots("r1", [seq for seq, _ in await world.store.snapshots("r1")])
    await Journal.open(world.store, Claimed(row, died=False), world.clock.now, learner=again[1])
    assert again[0].learnt == again[1].learnt == list(range(1, 24))


async def test_a_learner_gets_every_event_once_in_order(world: World) -> None:
    """The events are those before the journal was opened, its own, and those of others."""
    await world.create("r1")
    await world.store.send_commands("r1", signalled("early", command="c1"), actor="ann")
    await world.worker()
    [claimed] = await world.claim()
    learner = Learning()
    learnt = learner.learnt
    journal = await Journal.open(world.store, claimed, world.clock.now, learner=learner)
    assert learnt == [1, 2, 3]
    await world.store.send_commands("r1", signalled("late", command="c2"), actor="ann")
    await journal.append(started())
    assert learnt == [1, 2, 3, 4, 5]


async def test_a_child_is_created_together_with_its_call(world: World) -> None:
    """This holds after a command that was written first, too."""
    journal = await journal_of(world)
    await world.store.send_commands("r1", signalled("go"), actor="ann")
    assert await journal.append_together(CALLED, legs=[CHILD]) is None
    assert (await world.kinds())[2:] == ["signal.received", "agent.called"]
    assert (await world.store.get("child")).status == "pending"


async def test_an_existing_child_is_returned(world: World) -> None:
    """Nothing is written; the caller decides what that means."""
    await world.create("child", agent="other")
    journal = await journal_of(world)
    taken = await journal.append_together(CALLED, legs=[CHILD])
    assert taken is not None
    assert taken.row.agent == "other"
    assert len(await world.log()) == 2


@pytest.mark.parametrize("keeping", [True, False])
async def test_a_child_is_created_once_if_the_reply_was_lost(
    world: World, backend: LosesReplies, keeping: bool
) -> None:
    """The repeat finds the child, or creates it."""
    journal = await journal_of(world)
    backend.losing, backend.keeping = 1, keeping
    with pytest.raises(StoreUnavailable):
        await journal.append_together(CALLED, legs=[CHILD])
    await world.store.reopen()
    assert await journal.append_together(CALLED, legs=[CHILD]) is None
    assert (await world.kinds())[2:] == ["agent.called"]
    await journal.append(started())
    assert journal.head == (await world.store.get("r1")).head


async def test_a_callers_writes_and_events_are_atomic(tmp_path: Path) -> None:
    """The journal folds the appended events, and an invalid patch rolls back the caller's writes."""
    path = tmp_path / "limpet.db"
    async with World(Harness(backend=lambda clock: SqliteBackend(path, clock))) as world:
        journal = await journal_of(world)

        def work(connection: apsw.Connection, patch: StatePatch) -> tuple[list[b.StatePatched], list[Any]]:
            connection.execute("CREATE TABLE IF NOT EXISTS mine (id INTEGER)")
            connection.execute("INSERT INTO mine VALUES (1)")
            return [b.StatePatched(name="p#1", patch=patch)], []

        journal.add(started())
        await journal.transact(lambda db: work(db, StatePatch(plan=(PlanItem(item="one"),))))
        with pytest.raises(InvalidPatch):
            await journal.transact(lambda db: work(db, StatePatch(retract=("nothing",))))
        await journal.append(b.StatePatched(name="p#2", patch=StatePatch(revise=(Revision(index=0, status="done"),))))
        assert (await world.kinds())[2:] == ["step.started", "state.patched", "state.patched"]
        assert apsw.Connection(str(path)).execute("SELECT count(*) FROM mine").fetchall() == [(1,)]


CALLED = b.AgentCalled(name="call#1", run="child", agent="other", mode="call", asked="")
CHILD = Create(run="child", bodies=(created("other"),), actor="w1")


async def test_a_sweep_finds_events_that_may_have_waited_for_long(world: World) -> None:
    """Those that a sweep finds have come after the one before. A flush ends their wait."""
    journal = await journal_of(world)
    assert not journal.sweep(0, 10 * SECOND)
    journal.add(started())
    assert [journal.sweep(last, last + MAX_WAIT // 2) for last in (0, MAX_WAIT // 2)] == [False, True]
    await journal.flush()
    assert not journal.sweep(MAX_WAIT, 10 * MAX_WAIT)
    journal.add(completed())
    assert journal.sweep(0, MAX_WAIT)  # The sweep is late, since code has blocked the event loop.


async def test_events_that_could_not_be_decoded_are_refused(world: World) -> None:
    """This applies to every way of writing; later events are written."""
    journal = await journal_of(world)
    wrong: Any = None
    bad = b.DecisionMade(name="d#1", question="?", chosen=inline(1), options=inline([1]), because=wrong)
    invalid = Create(run="r2", bodies=(replace(created(), user=5),), actor="w")
    with pytest.raises(InvalidArgument, match="because"):
        journal.add(bad)
    with pytest.raises(InvalidArgument, match="because"):
        await journal.append_together(bad, legs=[])
    with pytest.raises(InvalidArgument, match="user"):
        await journal.append_together(started(1), legs=[invalid])
    with pytest.raises(InvalidArgument, match="because"):
        await journal.append_if_current(bad, last_seen=journal.last_seen)
    with pytest.raises(InvalidArgument, match="reason"):
        await world.store.send_commands("r1", b.CancelRequested(command="c1", reason=wrong), actor="ann")
    assert not journal.pending
    await journal.append(started(1))
    await verify_run(world.store, "r1")
    assert [event.kind async for event in world.store.log("r1")][-1] == "step.started"


def talk_of(world: World) -> ConversationWriter:
    """Return a writer to the conversation "c"."""
    return ConversationWriter(world.store, "c", world.clock.now, "w1", b.ConversationCreated())


def said(text: str) -> b.MessageAdded:
    """Return a message."""
    return b.MessageAdded(message=text, role="user", content=inline(text))


def outgoing(*texts: str) -> OutgoingMessages:
    """Return messages on their way, and the event that notes them."""
    name = f"say:{texts[0]}"
    return OutgoingMessages(
        tuple(map(said, texts)),
        lambda seq: b.MessageSaid(name=name, conversation="c", message=seq, count=len(texts)),
    )


async def conversation(world: World) -> list[str]:
    """Return the texts of the conversation "c"."""
    found = [world.store.decode(event) async for event in world.store.log("c")]
    return [each.content.value() for each in found if isinstance(each, b.MessageAdded)]


async def noted(world: World) -> list[tuple[str, int, int]]:
    """Return what the run's log notes of messages: name, first sequence and count."""
    found = [world.store.decode(event) async for event in world.store.log("r1")]
    return [(each.name, each.message, each.count) for each in found if isinstance(each, b.MessageSaid)]


@pytest.mark.parametrize("exists", [True, False])
async def test_buffered_messages_follow_those_that_others_wrote_first(world: World, exists: bool) -> None:
    """The caller's events get another place in the log of the run, too."""
    journal, talk, placed = await journal_of(world), talk_of(world), list[int]()
    if exists:
        await talk_of(world).append(said("first"))
    await talk.look()
    journal.say(talk, outgoing("a"))
    journal.say(talk, outgoing("b", "c"))
    journal.add(started(1))
    await talk_of(world).append(said("meanwhile"))
    assert journal.has_messages
    assert await journal.append_if_current(
        completed(1), last_seen=journal.last_seen, on_placed=lambda: placed.append(journal.head.seq)
    )
    assert placed == [2, 2]
    assert journal.pending == ()
    before = ["first", "meanwhile"] if exists else ["meanwhile"]
    assert await conversation(world) == [*before, "a", "b", "c"]
    seq = len(before) + 2
    assert await noted(world) == [("say:a", seq, 1), ("say:b", seq + 1, 2)]
    assert (await world.kinds())[2:] == ["message.said", "message.said", "step.started", "step.completed"]
    assert talk.head == (await world.store.get("c")).head
    assert journal.state == fold(await world.log())


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("keeping", [True, False])
async def test_messages_whose_reply_was_lost_are_written_once(
    world: World, backend: LosesReplies, exists: bool, keeping: bool
) -> None:
    journal, talk = await journal_of(world), talk_of(world)
    if exists:
        await talk_of(world).append(said("first"))
    await talk.look()
    journal.say(talk, outgoing("a"))
    backend.losing, backend.keeping = 1, keeping
    with pytest.raises(StoreUnavailable):
        await journal.flush()
    await world.store.reopen()
    assert journal.has_messages
    await talk.look()
    journal.say(talk, outgoing("b"))
    await journal.flush()
    assert (await conversation(world))[exists:] == ["a", "b"]
    assert [name for name, _, _ in await noted(world)] == ["say:a", "say:b"]


async def test_messages_of_a_lost_run_are_noted_as_late_and_not_said(world: World) -> None:
    journal, talk = await journal_of(world), talk_of(world)
    world.advance("11s")
    await world.worker("w2")
    await world.claim("w2")
    await talk.look()
    journal.say(talk, outgoing("a"))
    with pytest.raises(LeaseLost):
        await journal.flush()
    journal.say(talk, outgoing("b"))
    await journal.keep_late()
    assert [late.event.kind for late in await world.store.late("r1")] == ["message.said", "message.said"]
    with pytest.raises(NotFound):
        await world.store.get("c")
