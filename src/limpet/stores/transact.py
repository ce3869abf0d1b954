"""What each operation means, once for all stores: written over `Tables`, inside one transaction.

A refused operation fails alone: it either decides before its first write, or what it did is undone. An append is
repeatable: one whose events are in the log already, with the same hashes, was a lost reply, and succeeds.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from msgspec import MsgspecError
from msgspec.structs import replace

from limpet.errors import (
    CommandConflict,
    InvalidAppend,
    LeaseLost,
    LimpetError,
    NotFound,
    StoreBusy,
    Tampered,
    WrongState,
)
from limpet.events import START, AnyBody, Head, Sealed, seal, seal_all
from limpet.events import bodies as b
from limpet.state import ENDED
from limpet.stores import ops
from limpet.stores.backend import Misfit, Outcome, Tables
from limpet.stores.project import Closed, Delta, Opened, RequestChange, Used, apply, apply_request, new_row, project
from limpet.stores.rows import Late, RunRow, Snapshot, WorkerRow
from limpet.stores.rules import refusal

__all__ = ["commit"]

READ_BACK = 10_000
# What one bad operation may raise, as opposed to a database that fails: it is refused alone.
UNFORESEEN = (Misfit, ArithmeticError, AssertionError, LookupError, TypeError, ValueError, MsgspecError)


def commit(transaction: Callable[[], AbstractContextManager[Tables]], batch: Sequence[ops.Op[Any]]) -> list[Outcome]:
    """Do a batch in one transaction; if one operation breaks it, do each in a transaction of its own."""
    try:
        with transaction() as tables:
            return [_attempt(tables, op) for op in batch]
    except _Broken as broken:
        if len(batch) == 1:
            return [broken.error]
    return [_alone(transaction, op) for op in batch]


def _alone(transaction: Callable[[], AbstractContextManager[Tables]], op: ops.Op[Any]) -> Outcome:
    try:
        [outcome] = commit(transaction, [op])
    except StoreBusy as busy:  # others of its batch may have been written
        return busy
    return outcome


class _Broken(Exception):
    """An operation failed half-way in a way that nobody foresaw: the transaction must not commit."""

    def __init__(self, error: LimpetError) -> None:
        self.error = error


class _Stop(Exception):
    """An append ends here, with nothing written."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class _Landed(Exception):
    """An append is in the log already: its reply was lost."""


def _attempt(tables: Tables, op: ops.Op[Any]) -> Outcome:
    try:
        return _PERFORM[type(op)](tables, op)
    except LimpetError as refused:
        return refused
    except UNFORESEEN as error:
        raise _Broken(InvalidAppend(run="", reason=f"{type(error).__name__}: {error}")) from error


# Appending


def _append(tables: Tables, op: ops.Append) -> Outcome:
    legs = op.legs
    try:
        if len(legs) == 1:
            return ops.Appended((_leg(tables, legs[0]),))
        with tables.undoable():
            return _append_all(tables, legs)
    except _Landed:
        return ops.Appended(tuple(_landed_head(tables, leg) for leg in legs))
    except _Stop as stop:
        return stop.outcome


def _append_all(tables: Tables, legs: Sequence[ops.Leg]) -> ops.Appended:
    """Sealed legs first: one that is in the log already says that the whole append is."""
    heads: list[Head | None] = [None] * len(legs)
    for place, leg in sorted(enumerate(legs), key=lambda each: not isinstance(each[1], ops.Extend)):
        try:
            heads[place] = _leg(tables, leg)
        except LimpetError:
            if not (isinstance(leg, ops.Tell) and leg.optional):
                raise
    return ops.Appended(tuple(heads))


def _leg(tables: Tables, leg: ops.Leg) -> Head:
    match leg:
        case ops.Extend():
            return _extend(tables, leg)
        case ops.Tell():
            return _tell(tables, leg)
        case ops.Create():
            return _create(tables, leg)
        case ops.Release():
            return _release(tables, leg)


def _extend(tables: Tables, leg: ops.Extend) -> Head:
    events = [sealed.event for sealed in leg.events]
    deltas = [project(sealed.event, sealed.body) for sealed in leg.events]
    step, settled, rows = 0, False, False
    for delta in deltas:
        step, settled = max(step, delta.step), settled or delta.settled
        rows = rows or delta.row is not None or delta.request is not None
    if rows:
        _check_requests(tables, leg.run, deltas)
    head = events[-1].head
    number = tables.advance(leg.run, leg.after, leg.fence, head, step, settled)
    if number is None:
        return _explain(tables, leg)
    tables.insert(number, events)
    if rows:
        row = _row(tables, leg.run)
        _apply(tables, row, row, deltas)
    return head


def _check_requests(tables: Tables, run: str, deltas: Sequence[Delta]) -> None:
    """A run opens, escalates, closes and uses its own requests only, and an approval once."""
    for delta in deltas:
        if delta.request is None:
            continue
        before = tables.request(_request_of(delta.request))
        if before is not None and before.run != run:
            raise InvalidAppend(run=run, reason=f"request {before.id} belongs to {before.run}")
        if isinstance(delta.request, Used) and before is not None and before.status != "approved":
            raise WrongState(run=run, status=f"at request {before.id}, which is {before.status}", wanted="using it")


def _explain(tables: Tables, leg: ops.Extend) -> Head:
    """Why the head could not be moved: it was my lost reply, or the run is not mine any more, or others wrote first."""
    row = _row(tables, leg.run)
    if leg.fence is not None and row.type == "conversation":
        raise InvalidAppend(run=leg.run, reason="a conversation has no fence")
    if leg.fence is None and row.type == "run":
        raise InvalidAppend(run=leg.run, reason="a run is written under a fence")
    missed = tables.events(row, leg.after.seq, READ_BACK)
    mine = [sealed.event.hash for sealed in leg.events]
    if [event.hash for event in missed[: len(mine)]] == mine:
        raise _Landed
    if leg.fence is not None and (leg.fence != row.fence or row.worker is None):
        if row.status in ENDED and leg.fence == row.fence:
            raise WrongState(run=row.id, status=row.status, wanted="an event")
        raise LeaseLost(run=row.id, fence=leg.fence, current=row.fence)
    if not missed:
        raise Tampered(run=row.id, seq=row.seq, reason="its head is not the one that its writer knows")
    raise _Stop(ops.Missed(leg.run, tuple(Sealed(event, event.decode()) for event in missed)))


def _tell(tables: Tables, leg: ops.Tell) -> Head:
    row = _row(tables, leg.run)
    if row.type != "run":
        raise InvalidAppend(run=leg.run, reason="a conversation takes no commands")
    told = tables.command(row, _command_of(leg.bodies[0]))
    if told is not None:
        if told.decode() != leg.bodies[0]:
            raise CommandConflict(run=row.id, command=_command_of(leg.bodies[0]))
        return told.head
    now = tables.now()
    for body in leg.bodies:
        if tables.command(row, _command_of(body)) is not None:
            raise CommandConflict(run=row.id, command=_command_of(body))
        request = tables.request(body.request) if isinstance(body, b.RequestAnswered) else None
        refused = refusal(body, row, request, now)
        if refused is not None:
            raise refused
    return _write(tables, row, leg.bodies, leg.actor)


def _create(tables: Tables, leg: ops.Create) -> Head:
    existing = tables.row(leg.run)
    if existing is not None:
        first = tables.events(existing, 0, 1)
        if not first:
            raise Tampered(run=leg.run, seq=1, reason="it has a row and no event")
        raise _Stop(ops.Taken(existing, first[0].decode()))
    sealed = seal_all(START, leg.run, leg.bodies, time=tables.now(), fence=0, actor=leg.actor)
    head = sealed[-1].event.head
    row = replace(new_row(sealed[0].event, sealed[0].body), seq=head.seq, hash=head.hash, time=head.time)
    tables.insert(tables.add(row), [each.event for each in sealed])
    return head


def _release(tables: Tables, leg: ops.Release) -> Head:
    row = _row(tables, leg.run)
    if row.fence != leg.fence or row.worker is None:
        raise LeaseLost(run=row.id, fence=leg.fence, current=row.fence)
    return _write(tables, row, (b.RunReleased(reason=leg.reason),), leg.actor)


def _write(tables: Tables, row: RunRow, bodies: Sequence[AnyBody], actor: str) -> Head:
    """Seal bodies onto a locked row, and write both."""
    sealed = seal_all(row.head, row.id, bodies, time=tables.now(), fence=row.fence, actor=actor)
    tables.insert(row.number, [each.event for each in sealed], [_command_or_none(each.body) for each in sealed])
    head = sealed[-1].event.head
    moved = replace(row, seq=head.seq, hash=head.hash, time=head.time)
    _apply(tables, row, moved, [project(each.event, each.body) for each in sealed])
    return head


def _apply(tables: Tables, before: RunRow, row: RunRow, deltas: Sequence[Delta]) -> None:
    """Carry out what events change in the rows of a run."""
    now = tables.now()
    for delta in deltas:
        if delta.row is not None:
            row = apply(row, delta.row, now)
        if delta.request is not None:
            _apply_request(tables, row, delta.request)
    tables.save(row)
    if before.worker is not None and row.worker is None:
        tables.free_slots(row.number, driven_only=row.status not in ENDED)
    if row.status in ENDED:
        for request in tables.open_requests(row.number):
            _apply_request(tables, row, Closed(request.id, "withdrawn"))


def _apply_request(tables: Tables, row: RunRow, change: RequestChange) -> None:
    before = tables.request(_request_of(change))
    after = apply_request(before, change)
    if after is not None and after != before:
        tables.save_request(after, row.number)


def _request_of(change: RequestChange) -> str:
    return change.row.id if isinstance(change, Opened) else change.request


def _landed_head(tables: Tables, leg: ops.Leg) -> Head | None:
    match leg:
        case ops.Extend():
            return leg.events[-1].event.head
        case ops.Tell():
            told = tables.command(_row(tables, leg.run), _command_of(leg.bodies[0]))
            return told.head if told else None
        case _:
            return _row(tables, leg.run).head


# Workers and claims


def _register(tables: Tables, op: ops.Register) -> ops.Renewal:
    """A new life: what an earlier one of the same name had is given back, as after a death."""
    now = tables.now()
    for row in tables.held_by(op.worker.id):
        _write(tables, row, (b.RunReleased(reason="the worker begins anew", died=True),), op.worker.id)
    tables.save_worker(replace(op.worker, started=now, lease_until=now + op.lease))
    return _renewal(tables, op.worker.id, now)


def _renew(tables: Tables, op: ops.Renew) -> ops.Renewal:
    worker, now = _worker(tables, op.worker), tables.now()
    tables.save_worker(replace(worker, lease_until=now + op.lease))
    return _renewal(tables, op.worker, now)


def _renewal(tables: Tables, worker: str, now: int) -> ops.Renewal:
    return ops.Renewal(now, {row.id: row.fence for row in tables.held_by(worker)})


def _retire(tables: Tables, op: ops.Retire) -> None:
    for row in tables.held_by(op.worker):
        _write(tables, row, (b.RunReleased(reason="the worker went"),), op.worker)
    tables.drop_worker(op.worker)


def _claim(tables: Tables, op: ops.Claim) -> tuple[ops.Claimed, ...]:
    """Runs that are ready and runs of dead workers, longest waiting first."""
    me = _worker(tables, op.worker)
    dead = _dead_workers(tables, me)
    orphans = [row for worker in dead for row in _orphans(tables, worker, me)]
    ready = [row for agent, versions in me.agents.items() for row in tables.ready(agent, versions, op.limit)]
    waiting = sorted(
        (*orphans, *ready), key=lambda row: (row.time if row.ready_at is None else row.ready_at, row.number)
    )
    claimed: list[ops.Claimed] = []
    for row in waiting:
        if len(claimed) < op.limit and _take_slots(tables, row, op.concurrency):
            claimed.append(_give(tables, row, op.worker))
    for worker in dead:
        if not tables.held_by(worker.id):
            tables.drop_worker(worker.id)
    return tuple(claimed)


def _dead_workers(tables: Tables, me: WorkerRow) -> list[WorkerRow]:
    now = tables.now()
    others = (worker for worker in tables.workers() if worker.id != me.id)
    return [worker for worker in others if worker.lease_until <= now or tables.is_dead(worker)]


def _orphans(tables: Tables, dead: WorkerRow, me: WorkerRow) -> list[RunRow]:
    """A dead worker's runs that I serve; the others give their places back until somebody serves them."""
    orphans: list[RunRow] = []
    for row in tables.held_by(dead.id):
        if row.agent_version in me.agents.get(row.agent, ()):
            orphans.append(row)
        else:
            tables.free_slots(row.number, driven_only=True)
    return orphans


def _take_slots(tables: Tables, row: RunRow, concurrency: dict[str, int]) -> bool:
    """Take one of its agent's slots for the time of the claim, and the exclusive one until the run ends."""
    if row.cancelling:
        return True  # it will not be driven, but ended
    size = concurrency.get(row.agent)
    if size is not None and not tables.take_slot(f"agent:{row.agent}", size, row.number, driven=True):
        return False
    if row.exclusive is None or tables.take_slot(f"exclusive:{row.exclusive}", 1, row.number, driven=False):
        return True
    tables.free_slots(row.number, driven_only=True)
    return False


def _give(tables: Tables, row: RunRow, worker: str) -> ops.Claimed:
    died = row.worker is not None
    body = b.RunClaimed(worker=worker, died=died)
    event = seal(row.head, row.id, body, time=tables.now(), fence=row.fence + 1, actor=worker).event
    tables.insert(row.number, [event])
    given = replace(
        row,
        seq=event.seq,
        hash=event.hash,
        time=event.time,
        status="running",
        waits=(),
        ready_at=None,
        worker=worker,
        fence=event.fence,
        deaths=row.deaths + died,
    )
    tables.save(given)
    return ops.Claimed(given, died)


# Beside the log


def _save_snapshot(tables: Tables, op: ops.SaveSnapshot) -> None:
    tables.save_snapshot(_row(tables, op.run).number, Snapshot(op.seq, op.hash, tables.now(), op.data))


def _drop_snapshots(tables: Tables, op: ops.DropSnapshots) -> None:
    tables.drop_snapshots(_row(tables, op.run).number, op.seqs)


def _keep_late(tables: Tables, op: ops.KeepLate) -> None:
    rows = [_row(tables, sealed.event.run) for sealed in op.events]
    for row, sealed in zip(rows, op.events, strict=True):
        tables.save_late(row.number, Late(sealed.event, tables.now()))


_PERFORM: dict[type[ops.Op[Any]], Callable[[Tables, Any], object]] = {
    ops.Append: _append,
    ops.Claim: _claim,
    ops.Register: _register,
    ops.Renew: _renew,
    ops.Retire: _retire,
    ops.SaveSnapshot: _save_snapshot,
    ops.DropSnapshots: _drop_snapshots,
    ops.KeepLate: _keep_late,
}


def _row(tables: Tables, run: str) -> RunRow:
    row = tables.row(run)
    if row is None:
        raise NotFound(what="run", id=run)
    return row


def _worker(tables: Tables, worker: str) -> WorkerRow:
    for row in tables.workers():
        if row.id == worker:
            return row
    raise NotFound(what="worker", id=worker)


def _command_of(body: AnyBody) -> str:
    assert isinstance(body, b.Command), body
    return body.command


def _command_or_none(body: AnyBody) -> str | None:
    return body.command if isinstance(body, b.Command) else None
