"""Perform the write operations of a store on its `Tables`, inside one transaction. All stores share this code.

A refused operation does not affect the others of its batch: it is refused before its first write, or its writes are
rolled back. After an unexpected error the whole batch is rolled back, and each operation gets its own transaction.
Appends to one stream that change no request are sent to the database together, first; the other operations follow one
by one.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from msgspec import MsgspecError
from msgspec.structs import replace

from limpet.errors import IdConflict, InvalidAppend, LimpetError, NotFound, StoreBusy, StoreRefused, Tampered
from limpet.events import AnyBody, Codec, blobs_of, verify
from limpet.events import bodies as b
from limpet.state import ENDED
from limpet.state.fold import BUILT_IN
from limpet.stores import append, claim, duties, token_writes, writes
from limpet.stores.backend import LockTimeout, Outcome, SchemaViolation, Tables, keys_of
from limpet.stores.blobs import Blob
from limpet.stores.projection import new_row
from limpet.stores.rebuild import derive
from limpet.stores.row_encryption import hide_contract, hide_row
from limpet.stores.rows import Late, RunRow, Snapshot
from limpet.stores.transaction import Transaction, references

__all__ = ["Begin", "commit", "transact"]

Begin = Callable[[], AbstractContextManager[Tables]]
"""Starts a transaction as a context manager: commits it, or rolls it back if the block raises."""

# Errors of one bad operation, as opposed to a failing database. Only that operation is refused.
UNEXPECTED = (SchemaViolation, ArithmeticError, AssertionError, LookupError, TypeError, ValueError, MsgspecError)


def commit(
    begin: Begin,
    batch: Sequence[writes.Op[Any]],
    codec: Codec,
    committing: Callable[[list[Outcome]], object] = lambda _: None,
) -> list[Outcome]:
    """Perform a batch in one transaction; if one operation breaks or blocks it, perform each in its own transaction.

    So no operation is refused because of another one in its batch.

    `committing` gets the outcomes just before the commit, for callers that may have to find out later whether it took
    place. It gets an empty list when the batch is split.
    """
    try:
        with begin() as tables:
            outcomes = _perform(Transaction(tables, codec), batch)
            committing(outcomes)
            return outcomes
    except (_Undone, SchemaViolation, LockTimeout, StoreRefused) as broken:
        if len(batch) == 1:
            return [_refusal(broken, batch[0])]
    committing([])
    return [_alone(begin, op, codec) for op in batch]


def _refusal(broken: Exception, op: writes.Op[Any]) -> LimpetError:
    match broken:
        case _Undone():
            return broken.error
        case LockTimeout():
            return StoreBusy(reason=str(broken))
        case LimpetError():
            return broken
        case _:
            return _unexpected(broken, op)


def transact(
    begin: Begin, op: writes.Transact, codec: Codec, committing: Callable[[writes.Transacted], object] = lambda _: None
) -> Outcome:
    """Commit a caller's own writes and its events in one transaction; any exception rolls back both.

    `committing` gets the result just before the commit, for callers that may have to find out later whether it took
    place.
    """
    try:
        with begin() as tables:
            try:
                done = append.transact(Transaction(tables, codec), op)
            except LimpetError as refused:
                raise _Undone(refused) from refused
            except UNEXPECTED as error:
                raise _Undone(_unexpected(error, op)) from error
            committing(done)
            return done
    except append.CallerError as raised:
        return writes.Raised(raised.error)
    except _Undone as undone:
        return undone.error
    except SchemaViolation as misfit:
        return _unexpected(misfit, op)


def _alone(begin: Begin, op: writes.Op[Any], codec: Codec) -> Outcome:
    try:
        [outcome] = commit(begin, [op], codec)
    except StoreBusy as busy:  # Not raised: earlier operations of the batch may already be committed.
        return busy
    return outcome


class _Undone(Exception):
    """An operation failed half-way, so the transaction must roll back."""

    def __init__(self, error: LimpetError) -> None:
        self.error = error


def _perform(tx: Transaction, batch: Sequence[writes.Op[Any]]) -> list[Outcome]:
    extensions = [op for op in batch if type(op) is writes.Extension]
    if len(extensions) == len(batch) == len({op.run for op in extensions}):
        return _extend(tx, extensions)
    plans = _plans(batch)
    others = [op for place, op in enumerate(batch) if place not in plans] if len(plans) < len(batch) else []
    blobs, wanted, more = _blobs_sent(batch), _blobs_needed(others), bool(others)
    for planned in plans.values():
        if planned.blobs:
            wanted += planned.blobs
        more = more or bool(planned.deltas)
    if more or blobs:
        tx.tables.expect(*_streams_touched(batch))
    try:
        if blobs or wanted:
            tx.bring(blobs, wanted)
        final = not (more or blobs or wanted)
        together = append.extend_all(tx, list(plans.values()), final=final) if plans else []
    except UNEXPECTED as error:  # If the batch has more operations, each is repeated alone.
        raise _Undone(_unexpected(error, batch[0])) from error
    if not others:
        return together
    done = iter(together)
    return [next(done) if place in plans else _attempt(tx, op) for place, op in enumerate(batch)]


def _extend(tx: Transaction, extensions: Sequence[writes.Extension]) -> list[Outcome]:
    """Perform a batch of nothing but extensions of different streams, as most batches are."""
    try:
        return [number is not None for number in tx.tables.extend(extensions, final=True)]
    except UNEXPECTED as error:
        raise _Undone(_unexpected(error, extensions[0])) from error


def _plans(batch: Sequence[writes.Op[Any]]) -> dict[int, append.Plan]:
    """Return the appends that change only the row of one stream, by index; at most one per stream."""
    plans: dict[int, append.Plan] = {}
    streams = set()
    for place, op in enumerate(batch):
        planned = None
        if isinstance(op, writes.Extension):
            planned = append.Plan(None, op, (), ())
        elif isinstance(op, writes.Append) and len(op.legs) == 1 and isinstance(op.legs[0], writes.Extend):
            planned = append.plan_extension(op.legs[0])
        if planned is None or planned.extension.run in streams or (planned.deltas and planned.asks):
            continue
        streams.add(planned.extension.run)
        plans[place] = planned
    return plans


def _blobs_sent(batch: Sequence[writes.Op[Any]]) -> list[Blob]:
    """Return the blobs that come with appends."""
    return [blob for op in batch if isinstance(op, writes.Append) and op.blobs for blob in op.blobs]


def _blobs_needed(batch: Sequence[writes.Op[Any]]) -> list[str]:
    """Return the blobs that appends refer to."""
    return [
        blob
        for op in batch
        if isinstance(op, writes.Append)
        for leg in op.legs
        for body in _bodies(leg)
        for blob in blobs_of(body)
    ]


def _bodies(leg: writes.Leg) -> Iterable[AnyBody]:
    match leg:
        case writes.Extend():
            return [sealed.body for sealed in leg.events]
        case writes.Release():
            return ()
        case _:
            return leg.bodies


def _streams_touched(batch: Sequence[writes.Op[Any]]) -> tuple[set[str], int]:
    """Return the streams that a batch names, and the number of creations."""
    legs = [leg for op in batch if isinstance(op, writes.Append) for leg in op.legs]
    made = [leg for leg in legs if isinstance(leg, writes.Create)]
    origins = {body.run for leg in made if isinstance(body := leg.bodies[0], b.RunForked)}
    return {leg.run for leg in legs} | origins, len(made)


def _attempt(tx: Transaction, op: writes.Op[Any]) -> Outcome:
    try:
        return _PERFORM[type(op)](tx, op)
    except LimpetError as refused:
        return refused
    except UNEXPECTED as error:
        raise _Undone(_unexpected(error, op)) from error


def _unexpected(error: Exception, op: writes.Op[Any]) -> InvalidAppend:
    target = op.legs[0] if isinstance(op, writes.Append) and op.legs else op
    return InvalidAppend(
        run=getattr(target, "run", ""),
        reason=f"{type(op).__name__} raised {type(error).__name__}: {error}",
        fix="Correct the arguments of your call. If you did not call the store yourself, report a bug in Limpet.",
    )


# Snapshots, contracts, late results, uploads and maintenance


def _save_snapshot(tx: Transaction, op: writes.SaveSnapshot) -> None:
    packed = tx.codec.pack(op.data, f"snapshot:{op.run}:{op.seq}")
    snapshot = Snapshot(op.seq, op.hash, tx.tables.now(), packed.data, packed.codec, packed.key_id)
    tx.tables.save_snapshot(tx.row(op.run).number, snapshot)


def _drop_snapshots(tx: Transaction, op: writes.DropSnapshots) -> None:
    tx.tables.drop_snapshots(tx.row(op.run).number, op.seqs)


def _save_contracts(tx: Transaction, op: writes.SaveContracts) -> None:
    now = tx.tables.now()
    last = {(row.agent, row.version): replace(row, saved=now) for row in op.rows}
    again = [replace(row, hash="") for row in last.values() if (row.agent, row.version) in op.again]
    # Rows in `again` are first saved with an empty hash, because a contract with an unchanged hash is not written.
    for rows in filter(None, (again, list(last.values()))):
        tx.tables.save_contracts([hide_contract(tx.codec, row) for row in rows])


def _keep_late(tx: Transaction, op: writes.KeepLate) -> None:
    rows = [tx.row(sealed.event.run) for sealed in op.events]
    tx.bring(op.blobs, references(sealed.body for sealed in op.events))
    for row, sealed in zip(rows, op.events, strict=True):
        if sealed.event.time < row.created:
            continue  # The event belongs to an earlier run with the same id.
        if [event.hash for event in tx.tables.events(row, sealed.event.seq - 1, 1)] == [sealed.event.hash]:
            continue  # The event was written in time, and only its reply was lost.
        tx.tables.save_late(row.number, Late(sealed.event, tx.tables.now()))
        tx.refer(row.number, [tx.blobs[blob] for blob in blobs_of(sealed.body) if blob in tx.blobs])


def _put_chunk(tx: Transaction, op: writes.PutChunk) -> None:
    tx.tables.put_chunk(op.upload, op.place, op.chunk)


def _end_upload(tx: Transaction, op: writes.EndUpload) -> None:
    if not tx.tables.end_upload(op.upload, op.blob, op.size, op.chunks):
        raise NotFound(what="upload", id=op.upload)


def _collect(tx: Transaction, op: writes.Collect) -> int:
    return tx.tables.collect(tx.tables.now() - op.grace, op.limit)


def _prune(tx: Transaction, op: writes.Prune) -> bool:
    """Delete streams, and return True. Return False, with nothing deleted, if that is not allowed.

    It is not allowed if a stream has changed since `op.runs` was read, has not ended, or is used by a fork or run
    outside the group.
    """
    rows = [tx.tables.row(run) for run, _ in sorted(op.runs)]
    for row, (_, head) in zip(rows, sorted(op.runs), strict=True):
        if row is None or (row.seq, row.hash) != (head.seq, head.hash):
            return False
        if row.type == "run" and row.status not in ENDED:
            return False
    found = [row for row in rows if row is not None]
    if set(tx.tables.needing([row.id for row in found])) - {row.id for row in found}:
        return False
    tx.tables.delete([row.number for row in found])
    return True


def _rebuild(tx: Transaction, op: writes.Rebuild) -> None:
    row = tx.row(op.run)
    log = ((event, tx.decode(event)) for event in tx.log(row))
    derived = derive(row.number, log, tx.codec)
    known = tx.tables.find_blobs(derived.blobs) if derived.blobs else {}
    blobs = [known[blob] for blob in derived.blobs if blob in known]
    tx.tables.rewrite(derived.row, derived.requests, derived.scores, blobs, derived.steps)


def _load(tx: Transaction, op: writes.Load) -> RunRow:
    """Insert the log verbatim and rebuild its rows.

    A run that a worker held in the other store is released. One that has not ended is paused, and driven by the
    workers of this store.
    """
    first, last = op.events[0], op.events[-1]
    if first.run.startswith(writes.AUDIT):
        raise InvalidAppend(run=first.run, reason="an audit log belongs to one store, and cannot be loaded")
    existing = tx.tables.row(first.run)
    if existing is not None:
        raise IdConflict(what="run", id=first.run, reason=f"by agent {existing.agent!r} in this store")
    log = [(event, tx.decode(event)) for event in op.events]
    if verify(op.events, *append.chain_start(tx, first.run, log[0][1])).hash != last.hash:
        raise Tampered(run=first.run, seq=last.seq, reason="its hash does not follow from the events before it")
    derived = derive(0, log, tx.codec)
    tx.bring((), derived.blobs)
    tx.need(derived.blobs)
    row = replace(new_row(*log[0]), seq=last.seq, hash=last.hash, time=last.time)
    number = tx.tables.add(hide_row(tx.codec, row))
    tx.tables.insert(number, op.events, [keys_of(body) for _, body in log])
    _rebuild(tx, writes.Rebuild(run=first.run))
    row = tx.row(first.run)
    if row.worker is not None:
        tx.write(row, (b.RunReleased(reason="loaded from another store"),), op.actor)
        row = tx.row(first.run)
    if row.type == "run" and row.status not in ENDED:
        name = f"load:{last.hash.hex()[:32]}"
        paused = b.PauseRequested(command=name, reason="loaded from another store")
        here = (b.RunMoved(command=f"{name}:engine", engine=BUILT_IN),) if row.engine else ()
        tx.write(row, (paused, *here), op.actor)
    return tx.row(first.run)


def _settle(tx: Transaction, op: writes.Settle) -> bool:
    """Decide whether the store is encrypted. One with streams and no such setting was created unencrypted."""
    encrypted = op.encrypted and tx.tables.is_new()
    if tx.tables.is_new():
        tx.tables.settle(writes.DERIVED, writes.YES)
    return tx.tables.settle(writes.ENCRYPTED, writes.YES if encrypted else "no") == writes.YES


def _mark_indexed(tx: Transaction, op: writes.MarkIndexed) -> None:  # noqa: ARG001 - it has no fields
    tx.tables.settle(writes.DERIVED, writes.YES)


def _save_keys(tx: Transaction, op: writes.SaveKeys) -> bool:
    if tuple(tx.tables.keys()) != op.before:
        return False
    tx.tables.save_keys(op.after)
    return True


_PERFORM: dict[type[writes.Op[Any]], Callable[[Transaction, Any], object]] = {
    writes.Extension: lambda tx, op: tx.tables.extend([op]) != [None],
    writes.Append: append.append,
    writes.Claim: claim.claim,
    writes.ClaimRun: claim.claim_run,
    writes.Register: claim.register,
    writes.Renew: claim.renew,
    writes.Retire: claim.retire,
    writes.TakeDuty: duties.take,
    writes.KeepDuty: duties.keep,
    writes.EndDuty: duties.end,
    writes.AddToken: token_writes.add,
    writes.RevokeToken: token_writes.revoke,
    writes.UseToken: token_writes.use,
    writes.DropSessions: lambda tx, op: tx.tables.drop_sessions(op.before),
    writes.SaveSnapshot: _save_snapshot,
    writes.DropSnapshots: _drop_snapshots,
    writes.SaveContracts: _save_contracts,
    writes.KeepLate: _keep_late,
    writes.PutChunk: _put_chunk,
    writes.EndUpload: _end_upload,
    writes.Collect: _collect,
    writes.Load: _load,
    writes.Prune: _prune,
    writes.MarkIndexed: _mark_indexed,
    writes.Rebuild: _rebuild,
    writes.Recount: lambda tx, _: tx.tables.recount(),
    writes.Settle: _settle,
    writes.Identify: lambda tx, op: tx.tables.settle(writes.IDENTITY, op.id),
    writes.SaveKeys: _save_keys,
}
