"""Append events to streams, inside one transaction. The same code serves every store.

A stream is a run, a conversation, an audit log or a shared record. An append has one or more legs, each for one
stream, written together or not at all. Appends are safe to repeat: if the log already holds exactly these events, the
first reply was lost, and the repeat reports success.
"""

from collections.abc import Sequence
from typing import NoReturn

from msgspec import UNSET, Struct
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
from limpet.state import ENDED, step_of
from limpet.state.shared_record import common_units
from limpet.stores import writes
from limpet.stores.backend import Outcome, keys_of
from limpet.stores.claim import may_start_claimed, seal_claim
from limpet.stores.command_rules import refusal
from limpet.stores.projection import ApprovalUsed, Delta, claimed_row, new_row, project
from limpet.stores.row_encryption import hide_row, reveal_request
from limpet.stores.rows import RunRow
from limpet.stores.transaction import Transaction, references, request_of

__all__ = ["CallerError", "Plan", "append", "chain_start", "extend_all", "plan_extension", "transact"]

MAX_MISSED_EVENTS = 10_000
# A patch of a record can be compared with at most this many later ones.
MAX_LATER_PATCHES = 1_000
NO_BLOBS: Sequence[int] = ()


class Plan(Struct, frozen=True, gc=False):
    """The effects of one extension, computed from its events alone."""

    leg: writes.Extend | None
    """The leg to diagnose if the extension is stale; None if the caller does not need that."""
    extension: writes.Extension
    deltas: Sequence[Delta]
    """Changes to the run's row and its requests; empty if only the head, step number and death count change."""
    blobs: Sequence[str]
    """Names of the blobs that the events refer to."""

    @property
    def is_plain(self) -> bool:
        """Whether the extension is all there is to write."""
        return not self.deltas and not self.blobs

    @property
    def asks(self) -> bool:
        """Whether it changes requests, whose rows must be checked before the write."""
        return any(delta.request is not None for delta in self.deltas)


class CallerError(Exception):
    """Carries an exception raised by the caller's own code in `transact`."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _NotWritten(Exception):
    """Ends an append with an outcome (`Missed` or `Taken`); nothing was written."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class _AlreadyWritten(Exception):
    """Ends an append whose events are already in the log, because an earlier reply was lost."""


def plan_extension(leg: writes.Extend) -> Plan:
    """Return what an extension changes, without reading any row."""
    step, settled = 0, False
    deltas: list[Delta] = []
    blobs: list[str] = []
    steps: list[int | None] = []
    for sealed in leg.events:
        body = sealed.body
        if type(body) is b.StepStarted and body.grant is None and body.args.blob is UNSET:  # the usual cases
            step = max(step, body.number)
            steps.append(body.number)
            continue
        if (
            type(body) is b.StepCompleted
            and body.output is not None
            and body.output.blob is UNSET
            and (body.spent is None or not body.spent.cost)
        ):
            settled = True
            steps.append(body.number)
            continue
        delta = project(sealed.event, body)
        if delta.row is not None or delta.request is not None:
            deltas.append(delta)
        step, settled = max(step, delta.step), settled or delta.settled
        blobs += blobs_of(body)
        steps.append(step_of(body))
    events = [sealed.event for sealed in leg.events]
    extension = writes.Extension(leg.run, leg.after, leg.fence, events, step, settled, steps)
    return Plan(leg, extension, deltas, blobs)


def extend_all(tx: Transaction, plans: Sequence[Plan], *, final: bool) -> list[Outcome]:
    """Write extensions of different streams together; return one outcome per plan, in order.

    Each plan is an append of its own, so one that is stale or refused does not affect the others. None of them may
    change requests. With `final`, the caller writes nothing more in this transaction.
    """
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
        outcomes[place] = _outcome(tx, each, number)
        if number is not None:
            referring += [(number, blob) for blob in blobs]
            if each.deltas:
                _update_rows(tx, each)
    if referring:
        tx.tables.refer(referring)
    return outcomes


def _outcome(tx: Transaction, planned: Plan, number: int | None) -> Outcome:
    """Return the outcome of an extension that was written to a stream with this number, or is stale."""
    leg = planned.leg
    if leg is None:
        return number is not None
    if number is not None:
        return writes.Appended((planned.extension.events[-1].head,))
    try:
        _diagnose_stale(tx, leg)
    except _AlreadyWritten:
        return writes.Appended((leg.events[-1].event.head,))
    except _NotWritten as not_written:
        return not_written.outcome
    except LimpetError as refused:
        return refused


def append(tx: Transaction, op: writes.Append) -> Outcome:
    """Write all legs of an append, or none of them."""
    legs, tx.ready = op.legs, []
    try:
        if len(legs) == 1:
            [leg] = legs
            done = _create(tx, leg) if isinstance(leg, writes.Create) else writes.Appended((_write_leg(tx, leg),))
        else:
            with tx.tables.undoable():
                done = _write_legs(tx, legs)
        return done._replace(ready=tuple(tx.ready)) if tx.ready else done
    except _AlreadyWritten:
        return writes.Appended(tuple(_head_as_written(tx, leg) for leg in legs))
    except _NotWritten as not_written:
        return not_written.outcome


def _write_legs(tx: Transaction, legs: Sequence[writes.Leg]) -> writes.Appended:
    """Write legs, the sealed ones first.

    Sealed events have hashes. If a sealed leg is already in the log, the whole append is, since legs commit together.
    An optional leg that is refused is skipped.
    """
    heads: list[Head | None] = [None] * len(legs)
    claimed = None
    for place, leg in sorted(enumerate(legs), key=lambda each: not isinstance(each[1], writes.Extend)):
        try:
            if isinstance(leg, writes.Create):
                created = _create(tx, leg)
                [heads[place]], claimed = created.heads, claimed or created.claimed
            else:
                heads[place] = _write_leg(tx, leg)
        except LimpetError:
            if not (isinstance(leg, writes.SendCommands) and leg.optional):
                raise
    return writes.Appended(tuple(heads), claimed=claimed)


def _write_leg(tx: Transaction, leg: writes.Extend | writes.SendCommands | writes.Release) -> Head:
    match leg:
        case writes.Extend():
            return _extend(tx, plan_extension(leg))
        case writes.SendCommands(bodies=(b.RecordPatched() as sent,)):
            return _patch_record(tx, leg, sent)
        case writes.SendCommands():
            return _accept_commands(tx, leg)
        case writes.Release():
            return _release(tx, leg)


def _extend(tx: Transaction, planned: Plan) -> Head:
    leg, extension, deltas = planned.leg, planned.extension, planned.deltas
    assert leg is not None
    blobs = tx.need(planned.blobs)
    refused = _refusal_by_request(tx, leg.run, deltas)
    if refused is not None:
        _check_already_written(tx, leg)
        raise refused
    [number] = tx.tables.extend([extension])
    if number is None:
        _diagnose_stale(tx, leg)
    else:
        tx.refer(number, blobs)
    if deltas:
        _update_rows(tx, planned)
    return extension.events[-1].head


def _update_rows(tx: Transaction, planned: Plan) -> None:
    row = tx.row(planned.extension.run)
    tx.apply(row, row, planned.deltas)


def _refusal_by_request(tx: Transaction, run: str, deltas: Sequence[Delta]) -> LimpetError | None:
    """Return why the changes to requests are not allowed, or None.

    A run may only change its own requests, and may use an approval only once.
    """
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


def _diagnose_stale(tx: Transaction, leg: writes.Extend) -> NoReturn:
    """Diagnose a failed compare-and-set; always raises.

    _AlreadyWritten: the same events are in the log, so the first reply was lost. LeaseLost, WrongState: another worker
    has the run, or it has ended. _NotWritten(Missed): others wrote first, and these are their events. Tampered: the log
    lost events, or is not the one that the writer knows.
    """
    row = tx.row(leg.run)
    if row.type in ("audit", "record"):
        raise InvalidAppend(run=leg.run, reason="the events of an audit log or a shared record are sealed by the store")
    if leg.fence is not None and row.type == "conversation":
        raise InvalidAppend(run=leg.run, reason="a conversation has no fence")
    if leg.fence is None and row.type == "run":
        raise InvalidAppend(run=leg.run, reason="a run can only be written under a fence")
    missed = tx.tables.events(row, leg.after.seq, MAX_MISSED_EVENTS)
    _check_already_written(tx, leg)
    if leg.fence is not None:
        _check_owner(row, leg.fence)
    _check_not_rolled_back(row, leg.after)
    known = tx.event(row, leg.after.seq)
    if not missed or known is None or known.hash != leg.after.hash:  # After pruning, a new run may have the same id.
        raise Tampered(run=row.id, seq=row.seq, reason="the head is not the one that the writer knows")
    raise _NotWritten(writes.Missed(leg.run, _decode_all(tx, missed)))


def _check_already_written(tx: Transaction, leg: writes.Extend) -> None:
    """Raise _AlreadyWritten if the log holds exactly these events.

    Raises LeaseLost if another worker has claimed the run since: the writer must not act on a run that it has lost.
    """
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


def _check_not_rolled_back(row: RunRow, known: Head) -> None:
    if row.seq < known.seq:
        lost = f"the log ends at event {row.seq}, but event {known.seq} was acknowledged"
        raise Tampered(run=row.id, seq=row.seq, reason=lost)


def _decode_all(tx: Transaction, events: Sequence[Event]) -> tuple[Sealed, ...]:
    return tuple(Sealed(event, tx.decode(event)) for event in events)


def _accept_commands(tx: Transaction, leg: writes.SendCommands) -> Head:
    row = tx.row(leg.run)
    _check_takes(row, leg.bodies)
    recorded = _recorded(tx, row, leg.bodies[0])
    if recorded is not None:
        return recorded
    if leg.seq is not None and leg.seq != row.seq:
        raise _NotWritten(writes.Missed(leg.run, ()))
    now = tx.tables.now()
    for body in leg.bodies[1:]:
        if tx.tables.command(row, _command_id(body)) is not None:
            raise _command_conflict(row, body)
    for body in leg.bodies:
        request = tx.tables.request(body.request) if isinstance(body, b.RequestAnswered) else None
        refused = refusal(body, row, request and reveal_request(tx.codec, request), now, leg.judged)
        if refused is not None:
            raise refused
    return tx.write(row, leg.bodies, leg.actor)


def _patch_record(tx: Transaction, leg: writes.SendCommands, sent: b.RecordPatched) -> Head:
    """Write a patch to a shared record, which its first patch creates.

    Raises _NotWritten if the record is not as its writer has read it.
    """
    if tx.tables.row(leg.run) is None:
        if sent.read:
            raise _NotWritten(writes.Missed(leg.run, ()))
        first = b.RecordCreated(record=leg.run.removeprefix(writes.RECORD))
        _create(tx, writes.Create(run=leg.run, bodies=(first,), actor=leg.actor))
    row = tx.row(leg.run)
    _check_takes(row, leg.bodies)
    recorded = _recorded(tx, row, sent)
    if recorded is not None:
        return recorded
    _check_not_missed(tx, row, sent)
    return tx.write(row, leg.bodies, leg.actor)


def _recorded(tx: Transaction, row: RunRow, sent: AnyBody) -> Head | None:
    """Return the head of a command that is repeated. Raises IdConflict for another command with the same id."""
    recorded = tx.tables.command(row, _command_id(sent))
    if recorded is not None and not _is_repeated(tx.decode(recorded), sent):
        raise _command_conflict(row, sent)
    return None if recorded is None else recorded.head


def _check_not_missed(tx: Transaction, row: RunRow, sent: b.RecordPatched) -> None:
    """Raise _NotWritten if the record is not the one that the writer of a patch has read.

    Patches that others wrote since then are missed if they change a part that this one changes, too. None are
    returned if there are too many to compare, or if the record never had that version.
    """
    if not 0 <= row.seq - sent.read <= MAX_LATER_PATCHES:
        raise _NotWritten(writes.Missed(row.id, ()))
    later = _decode_all(tx, tx.tables.events(row, sent.read, MAX_LATER_PATCHES))
    missed = [
        each for each in later if isinstance(each.body, b.RecordPatched) and common_units(sent.patch, [each.body.patch])
    ]
    if missed:
        raise _NotWritten(writes.Missed(row.id, tuple(missed)))


def _check_takes(row: RunRow, bodies: Sequence[AnyBody]) -> None:
    """Raise InvalidAppend for commands that a stream of this type does not take."""
    if row.type == "conversation":
        raise InvalidAppend(run=row.id, reason="a conversation takes no commands")
    for body in bodies:
        if isinstance(body, b.RecordPatched) != (row.type == "record"):
            raise InvalidAppend(run=row.id, reason="a shared record takes record.patched, and no other stream does")
        if isinstance(body, b.AuditRecorded) != (row.type == "audit"):
            raise InvalidAppend(run=row.id, reason="an audit log takes audit.recorded, and no other stream does")


def _is_repeated(stored: AnyBody, sent: AnyBody) -> bool:
    """Return whether a command has the content of the stored one.

    It may come through another interface, and logs of older versions do not have every sender.
    """
    assert isinstance(stored, b.Command), stored
    if not isinstance(sent, b.Command):
        return False
    return stored == replace(sent, via=stored.via, by=sent.by if stored.by else "")


def _create(tx: Transaction, leg: writes.Create) -> writes.Appended:
    existing = tx.tables.row(leg.run)
    if existing is not None:
        first = tx.tables.events(existing, existing.origin_at or 0, 1)
        if not first:
            raise Tampered(run=leg.run, seq=1, reason="the stream has a row and no event")
        raise _NotWritten(writes.Taken(existing, tx.decode(first[0])))
    blobs = tx.need(references(leg.bodies))
    head, fence = chain_start(tx, leg.run, leg.bodies[0])
    sealed = tx.seal(head, leg.run, leg.bodies, fence=fence, actor=leg.actor)
    head = sealed[-1].event.head
    row = replace(new_row(sealed[0].event, sealed[0].body), seq=head.seq, hash=head.hash, time=head.time)
    if leg.worker is not None and may_start_claimed(tx, row, leg.worker):
        started = (*sealed, seal_claim(tx, row, leg.worker))
        row = claimed_row(row, started[-1].event, b.RunClaimed(worker=leg.worker))
        return _insert(tx, row, started, blobs)
    return _insert(tx, row, sealed, blobs)


def _insert(tx: Transaction, row: RunRow, sealed: Sequence[Sealed], blobs: Sequence[int]) -> writes.Appended:
    """Insert a new stream."""
    events = [each.event for each in sealed]
    number = tx.tables.add(hide_row(tx.codec, row))
    tx.tables.insert(number, events, [keys_of(each.body) for each in sealed])
    tx.refer(number, blobs)
    row = replace(row, number=number)
    tx.note_ready(row)
    if row.worker is None:
        return writes.Appended((row.head,), row)
    # Its worker gets what the log says: the given bodies may hold objects that their creator changes later.
    log = tuple(Sealed(event, tx.decode(event)) for event in events)
    return writes.Appended((row.head,), row, writes.Claimed(row, died=False, log=log))


def chain_start(tx: Transaction, run: str, first: AnyBody) -> tuple[Head, int]:
    """Return the head and the fence that a stream's own first event follows.

    A new stream starts at the beginning of a chain, with fence 0. A fork continues from the last event that it shares
    with its origin.
    """
    match first:
        case b.RunForked():
            origin, at, type = first.run, first.at, "run"
        case b.ConversationForked():
            origin, at, type = first.conversation, first.at, "conversation"
        case _:
            return START, 0
    row = tx.row(origin)
    if row.type != type:
        raise InvalidAppend(run=run, reason=f"{origin} is a {row.type}, not a {type}")
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


def _head_as_written(tx: Transaction, leg: writes.Leg) -> Head | None:
    match leg:
        case writes.Extend():
            return leg.events[-1].event.head
        case writes.SendCommands():
            recorded = tx.tables.command(tx.row(leg.run), _command_id(leg.bodies[0]))
            return recorded.head if recorded else None
        case _:
            return tx.row(leg.run).head


def _command_conflict(row: RunRow, body: AnyBody) -> IdConflict:
    return IdConflict(what="command", id=_command_id(body), reason=f"for a different command on {row.id}")


def _command_id(body: AnyBody) -> str:
    assert isinstance(body, b.Command), body
    return body.command


def transact(tx: Transaction, op: writes.Transact) -> writes.Transacted:
    """Run the caller's own writes, then append its events after whatever others have written in the meantime.

    The run's row is locked only after the caller's code has returned, so that commands to this run need not wait for
    it. If the run was lost while that code ran, this raises LeaseLost and the transaction rolls back.
    """
    found = tx.tables.peek(op.run)
    if found is None:
        raise NotFound(what="run", id=op.run)
    _check_owner(found, op.fence)
    with tx.tables.lend() as connection:
        try:
            bodies, blobs = op.work(connection)
        except BaseException as error:  # Any error goes to the caller; none may end the writer's thread.
            raise CallerError(error) from error
    row = tx.row(op.run)
    _check_owner(row, op.fence)
    _check_not_rolled_back(row, op.after)
    missed = list(tx.log(row, op.after.seq))
    if op.is_current and missed:
        raise StoreBusy(reason=f"others wrote to {op.run} first")
    if verify(missed, op.after).hash != row.hash:
        raise Tampered(run=row.id, seq=row.seq, reason="the head is not the one that the writer knows")
    sealed = tx.seal(row.head, op.run, bodies, fence=op.fence, actor=op.actor)
    leg = writes.Extend(run=op.run, after=row.head, fence=op.fence, events=sealed)
    writes.check_leg(leg)
    if isinstance(sealed[-1].body, writes.LEAVING):  # It must not follow a command that its writer has not seen.
        raise InvalidAppend(run=op.run, reason=f"{sealed[-1].event.kind} cannot be written in a caller's transaction")
    planned = plan_extension(leg)
    tx.bring(blobs, planned.blobs)
    _extend(tx, planned)
    return writes.Transacted(_decode_all(tx, missed), sealed)
