"""What appending means. It can be repeated: an append whose events are in the log already was a lost reply."""

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from msgspec.structs import replace

from limpet.errors import (
    IdConflict,
    InvalidAppend,
    LeaseLost,
    LimpetError,
    NotFound,
    StoreBusy,
    Tampered,
    WrongState,
)
from limpet.events import START, AnyBody, Event, Head, Sealed, blobs_of, verify
from limpet.events import bodies as b
from limpet.state import ENDED
from limpet.stores import writes
from limpet.stores.backend import Extension, Outcome
from limpet.stores.command_rules import refusal
from limpet.stores.projection import ApprovalUsed, Delta, new_row, project
from limpet.stores.row_encryption import hide_row, reveal_request
from limpet.stores.rows import RunRow
from limpet.stores.transaction import Transaction, references, request_of

__all__ = ["CallerError", "Plan", "append", "chain_start", "extend_all", "plan_extension", "transact"]

READ_BACK = 10_000
NO_BLOBS: Sequence[int] = ()


class Plan(NamedTuple):
    """What an extension is going to do."""

    leg: writes.Extend
    extension: Extension
    deltas: Sequence[Delta]
    """What its events change in rows; nothing if they change only what every step changes."""
    blobs: Sequence[str]
    """What its events refer to."""

    @property
    def asks(self) -> bool:
        """Whether requests are touched, which must be looked at first."""
        return any(delta.request is not None for delta in self.deltas)


class CallerError(Exception):
    """The caller's own code raised something."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _NotWritten(Exception):
    """An append ends here, with nothing written."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class _AlreadyWritten(Exception):
    """An append is in the log already: its reply was lost."""


def plan_extension(leg: writes.Extend) -> Plan:
    """What an extension changes, found without looking at any row."""
    if len(leg.events) == 1:  # as most are
        event, body = leg.events[0].event, leg.events[0].body
        delta = project(event, body)
        extension = Extension(leg.run, leg.after, leg.fence, (event,), delta.step, delta.settled)
        return Plan(leg, extension, (delta,) if _changes_rows(delta) else (), blobs_of(body))
    deltas = [project(sealed.event, sealed.body) for sealed in leg.events]
    step, settled = max(delta.step for delta in deltas), any(delta.settled for delta in deltas)
    events = [sealed.event for sealed in leg.events]
    extension = Extension(leg.run, leg.after, leg.fence, events, step, settled)
    rows = any(map(_changes_rows, deltas))
    return Plan(leg, extension, deltas if rows else (), references(sealed.body for sealed in leg.events))


def _changes_rows(delta: Delta) -> bool:
    return delta.row is not None or delta.request is not None


def extend_all(tx: Transaction, plans: Sequence[Plan], *, final: bool) -> list[Outcome]:
    """Extensions of different streams, each an append of its own, that change no rows but their streams'."""
    outcomes: list[Outcome] = [None] * len(plans)
    ready: list[tuple[int, Plan, Sequence[int]]] = []
    for place, each in enumerate(plans):
        try:
            ready.append((place, each, tx.need(each.blobs) if each.blobs else NO_BLOBS))
        except NotFound as missing:
            outcomes[place] = missing
    numbers = tx.tables.extend([each.extension for _, each, _ in ready], final=final) if ready else []
    referring: list[tuple[int, int]] = []
    for (place, each, blobs), number in zip(ready, numbers, strict=True):
        if number is None:
            outcomes[place] = _why_stale(tx, each.leg)
        else:
            outcomes[place] = writes.Appended((each.extension.events[-1].head,))
            if blobs:
                referring += [(number, blob) for blob in blobs]
            if each.deltas:
                _apply(tx, each)
    if referring:
        tx.tables.refer(referring)
    return outcomes


def _why_stale(tx: Transaction, leg: writes.Extend) -> Outcome:
    try:
        _explain(tx, leg)
    except _AlreadyWritten:
        return writes.Appended((leg.events[-1].event.head,))
    except _NotWritten as stop:
        return stop.outcome
    except LimpetError as refused:
        return refused


def append(tx: Transaction, op: writes.Append) -> Outcome:
    """Write all legs or none."""
    legs = op.legs
    try:
        if len(legs) == 1 and isinstance(legs[0], writes.Create):
            row = _create(tx, legs[0])
            return writes.Appended((row.head,), row)
        if len(legs) == 1:
            return writes.Appended((_leg(tx, legs[0]),))
        with tx.tables.undoable():
            return _append_all(tx, legs)
    except _AlreadyWritten:
        return writes.Appended(tuple(_landed_head(tx, leg) for leg in legs))
    except _NotWritten as stop:
        return stop.outcome


def _append_all(tx: Transaction, legs: Sequence[writes.Leg]) -> writes.Appended:
    """Sealed legs first: one that is in the log already says that the whole append is."""
    heads: list[Head | None] = [None] * len(legs)
    for place, leg in sorted(enumerate(legs), key=lambda each: not isinstance(each[1], writes.Extend)):
        try:
            heads[place] = _leg(tx, leg)
        except LimpetError:
            if not (isinstance(leg, writes.SendCommands) and leg.optional):
                raise
    return writes.Appended(tuple(heads))


def _leg(tx: Transaction, leg: writes.Leg) -> Head:
    match leg:
        case writes.Extend():
            return _extend(tx, plan_extension(leg))
        case writes.SendCommands():
            return _tell(tx, leg)
        case writes.Create():
            return _create(tx, leg).head
        case writes.Release():
            return _release(tx, leg)


def _extend(tx: Transaction, planned: Plan) -> Head:
    leg, extension, deltas, wanted = planned
    blobs = tx.need(wanted)
    refused = _refused(tx, leg.run, deltas)
    if refused is not None:
        _check_landed(tx, leg)
        raise refused
    [number] = tx.tables.extend([extension])
    if number is None:
        _explain(tx, leg)
    else:
        tx.refer(number, blobs)
    if deltas:
        _apply(tx, planned)
    return extension.events[-1].head


def _apply(tx: Transaction, planned: Plan) -> None:
    row = tx.row(planned.leg.run)
    tx.apply(row, row, planned.deltas)


def _refused(tx: Transaction, run: str, deltas: Sequence[Delta]) -> LimpetError | None:
    """A run opens, escalates, closes and uses its own requests only, and an approval once."""
    for delta in deltas:
        before = None if delta.request is None else tx.tables.request(request_of(delta.request))
        if before is None:
            continue
        if before.run != run:
            return InvalidAppend(run=run, reason=f"request {before.id} belongs to {before.run}")
        if isinstance(delta.request, ApprovalUsed) and before.status != "approved":
            status = f"at request {before.id}, which is {before.status}"
            return WrongState(run=run, status=status, wanted="using it")
    return None


def _explain(tx: Transaction, leg: writes.Extend) -> NoReturn:
    """Why the head could not be moved: it was my lost reply, or the run is not mine any more, or others wrote first."""
    row = tx.row(leg.run)
    if leg.fence is not None and row.type == "conversation":
        raise InvalidAppend(run=leg.run, reason="a conversation has no fence")
    if leg.fence is None and row.type == "run":
        raise InvalidAppend(run=leg.run, reason="a run is written under a fence")
    missed = tx.tables.events(row, leg.after.seq, READ_BACK)
    _check_landed(tx, leg)
    if leg.fence is not None:
        _check_owner(row, leg.fence)
    _check_not_behind(row, leg.after)
    known = tx.event(row, leg.after.seq)
    if not missed or known is None or known.hash != leg.after.hash:  # another run may have taken the id of a pruned one
        raise Tampered(run=row.id, seq=row.seq, reason="its head is not the one that its writer knows")
    raise _NotWritten(writes.Missed(leg.run, _decoded(tx, missed)))


def _check_landed(tx: Transaction, leg: writes.Extend) -> None:
    """Raise _Landed if it is in the log already; but whoever has lost the run since then must not act on it."""
    row, mine = tx.row(leg.run), [sealed.event.hash for sealed in leg.events]
    if [event.hash for event in tx.tables.events(row, leg.after.seq, len(mine))] != mine:
        return
    if leg.fence is not None and leg.fence != row.fence:
        raise LeaseLost(run=row.id, fence=leg.fence, current=row.fence)
    raise _AlreadyWritten


def _check_owner(row: RunRow, fence: int) -> None:
    if fence == row.fence and row.worker is not None:
        return
    if row.status in ENDED and fence == row.fence:
        raise WrongState(run=row.id, status=row.status, wanted="an event")
    raise LeaseLost(run=row.id, fence=fence, current=row.fence)


def _check_not_behind(row: RunRow, known: Head) -> None:
    if row.seq < known.seq:
        lost = f"it ends at event {row.seq}, but event {known.seq} was acknowledged: the store has lost what it had"
        raise Tampered(run=row.id, seq=row.seq, reason=lost)


def _decoded(tx: Transaction, events: Sequence[Event]) -> tuple[Sealed, ...]:
    return tuple(Sealed(event, tx.decode(event)) for event in events)


def _tell(tx: Transaction, leg: writes.SendCommands) -> Head:
    row = tx.row(leg.run)
    if row.type != "run":
        raise InvalidAppend(run=leg.run, reason="a conversation takes no commands")
    told = tx.tables.command(row, _command_of(leg.bodies[0]))
    if told is not None:
        if tx.decode(told) != leg.bodies[0]:
            raise _command_conflict(row, leg.bodies[0])
        return told.head
    now = tx.tables.now()
    for body in leg.bodies[1:]:
        if tx.tables.command(row, _command_of(body)) is not None:
            raise _command_conflict(row, body)
    for body in leg.bodies:
        request = tx.tables.request(body.request) if isinstance(body, b.RequestAnswered) else None
        refused = refusal(body, row, request and reveal_request(tx.codec, request), now, leg.judged)
        if refused is not None:
            raise refused
    return tx.write(row, leg.bodies, leg.actor)


def _create(tx: Transaction, leg: writes.Create) -> RunRow:
    existing = tx.tables.row(leg.run)
    if existing is not None:
        first = tx.tables.events(existing, existing.origin_at or 0, 1)
        if not first:
            raise Tampered(run=leg.run, seq=1, reason="it has a row and no event")
        raise _NotWritten(writes.Taken(existing, tx.decode(first[0])))
    blobs = tx.need(references(leg.bodies))
    head, fence = chain_start(tx, leg.run, leg.bodies[0])
    sealed = tx.seal(head, leg.run, leg.bodies, fence=fence, actor=leg.actor)
    head = sealed[-1].event.head
    row = replace(new_row(sealed[0].event, sealed[0].body), seq=head.seq, hash=head.hash, time=head.time)
    number = tx.tables.add(hide_row(tx.codec, row))
    tx.tables.insert(number, [each.event for each in sealed])
    tx.refer(number, blobs)
    return replace(row, number=number)


def chain_start(tx: Transaction, run: str, first: AnyBody) -> tuple[Head, int]:
    """What a stream's own first event is sealed to, and under which fence: of a fork, its origin's event there."""
    match first:
        case b.RunForked():
            origin, at, type = first.run, first.at, "run"
        case b.ConversationForked():
            origin, at, type = first.conversation, first.at, "conversation"
        case _:
            return START, 0
    row = tx.row(origin)
    if row.type != type:
        raise InvalidAppend(run=run, reason=f"{origin} is a {row.type}, and not a {type}")
    shared = tx.event(row, at)
    if shared is None:
        raise InvalidAppend(run=run, reason=f"{origin} has no event {at}")
    return shared.head, shared.fence


def _release(tx: Transaction, leg: writes.Release) -> Head:
    row = tx.row(leg.run)
    if row.fence != leg.fence or row.worker is None:
        raise LeaseLost(run=row.id, fence=leg.fence, current=row.fence)
    body = b.RunReleased(reason=leg.reason, retry_at=leg.retry_at, fruitless=leg.fruitless)
    return tx.write(row, (body,), leg.actor)


def _landed_head(tx: Transaction, leg: writes.Leg) -> Head | None:
    match leg:
        case writes.Extend():
            return leg.events[-1].event.head
        case writes.SendCommands():
            told = tx.tables.command(tx.row(leg.run), _command_of(leg.bodies[0]))
            return told.head if told else None
        case _:
            return tx.row(leg.run).head


def _command_conflict(row: RunRow, body: AnyBody) -> IdConflict:
    return IdConflict(what="command", id=_command_of(body), reason=f"for a different command on {row.id}")


def _command_of(body: AnyBody) -> str:
    assert isinstance(body, b.Command), body
    return body.command


def transact(tx: Transaction, op: writes.Transact) -> writes.Transacted:
    """The caller's own writes, then its events after whatever others wrote meanwhile.

    The run's row is locked only when the caller's code is done: a command to this run does not wait for that code, and
    whoever has lost the run finds out here, with everything undone.
    """
    found = tx.tables.peek(op.run)
    if found is None:
        raise NotFound(what="run", id=op.run)
    _check_owner(found, op.fence)
    with tx.tables.lend() as connection:
        try:
            bodies, blobs = op.work(connection)
        except BaseException as error:  # whatever it is, it must reach the caller and not end the writer's thread
            raise CallerError(error) from error
    row = tx.row(op.run)
    _check_owner(row, op.fence)
    _check_not_behind(row, op.after)
    missed = list(tx.log(row, op.after.seq))
    if op.is_current and missed:
        raise StoreBusy(reason=f"others wrote to {op.run} meanwhile")
    if verify(missed, op.after).hash != row.hash:
        raise Tampered(run=row.id, seq=row.seq, reason="its head is not the one that its writer knows")
    sealed = tx.seal(row.head, op.run, bodies, fence=op.fence, actor=op.actor)
    leg = writes.Extend(run=op.run, after=row.head, fence=op.fence, events=sealed)
    writes.check_leg(leg)
    if isinstance(sealed[-1].body, writes.LEAVING):  # it might leave behind a command that its writer has not seen
        raise InvalidAppend(run=op.run, reason=f"{sealed[-1].event.kind} is not written in a caller's transaction")
    planned = plan_extension(leg)
    tx.bring(blobs, planned.blobs)
    _extend(tx, planned)
    return writes.Transacted(_decoded(tx, missed), sealed)
