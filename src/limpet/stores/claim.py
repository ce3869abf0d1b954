"""Workers and claims: workers register, renew their leases and retire; they claim runs, each under a new fence."""

from collections.abc import Sequence

from msgspec.structs import replace

from limpet.errors import NotFound
from limpet.events import bodies as b
from limpet.policy.quarantine import SUSPECT, group_size
from limpet.state.fold import QUARANTINED
from limpet.stores import writes
from limpet.stores.backend import keys_of
from limpet.stores.columns import enough
from limpet.stores.projection import claimed_row
from limpet.stores.row_encryption import is_readable
from limpet.stores.rows import RunRow, WorkerRow
from limpet.stores.transaction import Transaction

__all__ = ["claim", "register", "renew", "retire"]


def register(tx: Transaction, op: writes.Register) -> writes.Renewal:
    """Register a worker; release the runs of an earlier worker with the same id, as if it had died."""
    now = tx.tables.now()
    tx.tables.save_worker(replace(op.worker, started=now, lease_until=now + op.lease))
    _release_all(tx, op.worker.id, b.RunReleased(reason="the worker registered again", died=True))
    return _renewal(tx, op.worker.id, now)


def renew(tx: Transaction, op: writes.Renew) -> writes.Renewal:
    """Renew a worker's lease."""
    worker, now = _worker(tx, op.worker), tx.tables.now()
    tx.tables.save_worker(replace(worker, lease_until=now + op.lease))
    return _renewal(tx, op.worker, now)


def retire(tx: Transaction, op: writes.Retire) -> None:
    """Remove a worker and release its runs."""
    _release_all(tx, op.worker, b.RunReleased(reason="the worker stopped"))
    tx.tables.drop_worker(op.worker)


def claim(tx: Transaction, op: writes.Claim) -> tuple[writes.Claimed, ...]:
    """Claim ready runs and runs of dead workers, longest waiting first."""
    me = _worker(tx, op.worker)
    me = replace(me, agents={agent: versions for agent, versions in me.agents.items() if agent not in op.skip})
    dead = _dead_workers(tx, me)
    orphans = [row for worker in dead for row in _orphans(tx, worker, me)]
    ready = [row for agent, versions in me.agents.items() for row in _ready(tx, agent, versions, op.limit)]
    waiting = sorted(
        (*orphans, *ready), key=lambda row: (row.time if row.ready_at is None else row.ready_at, row.number)
    )
    suspects = [row for row in waiting if _deaths(row) >= SUSPECT]
    held = [row for row in tx.tables.held_by(me.id) if row.deaths >= SUSPECT] if suspects else []
    group = _group(suspects, held, op.cleared)
    taken: list[RunRow] = []
    for row in waiting:
        fits = row.number in group or _deaths(row) < SUSPECT
        if fits and len(taken) < op.limit and _take_slots(tx, row, op.concurrency):
            taken.append(row)
    is_alone = len(held) + sum(row.number in group for row in taken) == 1
    claimed = tuple(_claim_run(tx, row, op.worker, alone=is_alone and row.number in group) for row in taken)
    for worker in dead:
        if tx.tables.lock_worker(worker) and not tx.tables.held_by(worker.id):
            tx.tables.drop_worker(worker.id)
    return claimed


def _group(suspects: Sequence[RunRow], held: Sequence[RunRow], cleared: int) -> set[int]:
    """Choose the suspects that a worker may take besides those it holds. Any of them may kill it, with all its other
    runs.

    The group shrinks with the deaths, so that a run that kills workers is soon alone; those with the fewest deaths come
    first. It grows with each suspect that made progress in this worker, so that all runs continue soon after external
    kills stop. A run on parole is tried alone. Nothing joins a suspect that was claimed alone, so that a death
    identifies it.
    """
    if any(row.alone for row in held):
        return set()
    total = len(suspects) + len(held)
    deaths = max((row.deaths for row in held), default=SUSPECT)
    group: set[int] = set()
    paroled = [row for row in suspects if str(QUARANTINED) in row.waits]
    for row in sorted((row for row in suspects if row not in paroled), key=_deaths):
        deaths = max(deaths, _deaths(row))
        if len(held) + len(group) >= group_size(total, deaths) + cleared:
            break
        group.add(row.number)
    return group if group or held else {row.number for row in paroled[:1]}


def _deaths(row: RunRow) -> int:
    """Return the consecutive deaths of a run, including the dead worker that still holds it."""
    return row.deaths + (row.worker is not None)


def _ready(tx: Transaction, agent: str, versions: Sequence[str], limit: int) -> list[RunRow]:
    """Return claimable runs. Suspects and runs that cannot be decrypted here do not use up the limit."""
    suspects: list[RunRow] = []

    def not_suspect(found: Sequence[RunRow]) -> list[RunRow]:
        readable = [row for row in found if is_readable(tx.codec, row)]
        suspects[:] = [row for row in readable if _deaths(row) >= SUSPECT]
        return [row for row in readable if _deaths(row) < SUSPECT]

    return [*enough(lambda count: tx.tables.ready(agent, versions, count), not_suspect, limit), *suspects]


def _renewal(tx: Transaction, worker: str, now: int) -> writes.Renewal:
    return writes.Renewal(now, {row.id: row.fence for row in tx.tables.held_by(worker)})


def _release_all(tx: Transaction, worker: str, body: b.RunReleased) -> None:
    for found in tx.tables.held_by(worker):
        row = tx.tables.row(found.id)
        if row is not None and row.worker == worker:
            tx.write(row, (body,), worker)


def _dead_workers(tx: Transaction, me: WorkerRow) -> list[WorkerRow]:
    now = tx.tables.now()
    others = (worker for worker in tx.tables.workers() if worker.id != me.id)
    return [worker for worker in others if worker.lease_until <= now or tx.tables.is_dead(worker)]


def _orphans(tx: Transaction, dead: WorkerRow, me: WorkerRow) -> list[RunRow]:
    """Return a dead worker's runs that `me` serves. The others free their slots until a worker serves them."""
    orphans: list[RunRow] = []
    for found in tx.tables.held_by(dead.id):
        row = tx.tables.row_if_free(found)
        if row is None or row.worker != dead.id:
            continue  # Another worker is claiming it.
        if row.agent_version in me.agents.get(row.agent, ()) and is_readable(tx.codec, row):
            orphans.append(row)
        else:
            tx.tables.free_slots(row.number, driven_only=True)
    return orphans


def _take_slots(tx: Transaction, row: RunRow, concurrency: dict[str, int]) -> bool:
    """Take one of the agent's slots for the time of the claim, and the exclusive slot until the run ends."""
    if row.cancelling:
        return True  # The worker ends this run instead of executing it.
    size = concurrency.get(row.agent)
    if size is not None and not tx.tables.take_slot(f"agent:{row.agent}", size, row.number, driven=True):
        return False
    if row.exclusive is None or tx.tables.take_slot(f"exclusive:{row.exclusive}", 1, row.number, driven=False):
        return True
    tx.tables.free_slots(row.number, driven_only=True)
    return False


def _claim_run(tx: Transaction, row: RunRow, worker: str, *, alone: bool) -> writes.Claimed:
    died = row.worker is not None
    body = b.RunClaimed(worker=worker, died=died, alone=alone)
    [sealed] = tx.seal(row.head, row.id, (body,), fence=row.fence + 1, actor=worker)
    given = claimed_row(row, sealed.event, body)
    tx.tables.insert(row.number, [sealed.event], [keys_of(body)])
    tx.tables.save(given)
    return writes.Claimed(given, died)


def _worker(tx: Transaction, worker: str) -> WorkerRow:
    row = tx.tables.worker(worker)
    if row is None:
        raise NotFound(what="worker", id=worker)
    return row
