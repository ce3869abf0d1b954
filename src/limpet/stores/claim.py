"""Workers and claims: workers register, renew their leases and retire; they claim runs, each under a new fence."""

from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from limpet.errors import LimpetError, NotFound
from limpet.events import Sealed
from limpet.events import bodies as b
from limpet.policy.quarantine import SUSPECT, group_size
from limpet.state import ENDED
from limpet.state.fold import QUARANTINED
from limpet.stores import writes
from limpet.stores.backend import keys_of
from limpet.stores.columns import enough
from limpet.stores.projection import claimed_row
from limpet.stores.row_encryption import is_readable
from limpet.stores.rows import RunRow, WorkerRow
from limpet.stores.transaction import Transaction

__all__ = ["claim", "claim_run", "may_start_claimed", "register", "renew", "retire", "seal_claim"]

# The longest log, in events, that is handed over with a claim.
SHORT_LOG = 20


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
    """Claim ready runs and runs of dead workers, longest waiting first.

    A worker of another engine is told which run to drive, and claims none here. It only releases the runs of dead
    workers of its engine, so that they are ready again.
    """
    me = _worker(tx, op.worker)
    if me.engine:
        _release_orphans(tx, me)
        return ()
    me = replace(me, agents={agent: versions for agent, versions in me.agents.items() if agent not in op.skip})
    dead = _dead_workers(tx, me)
    orphans = [row for worker in dead for row in _orphans(tx, worker, me)]
    agents = tx.tables.ready_agents(me.agents) if len(me.agents) > 1 else me.agents
    ready = [row for agent in agents for row in _ready(tx, agent, me.agents[agent], op.limit)]
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
    logs = _short_logs(tx, taken)
    claimed = tuple(
        _take(tx, row, op.worker, alone=is_alone and row.number in group, log=logs.get(row.id)) for row in taken
    )
    _drop_idle(tx, dead)
    return claimed


def _release_orphans(tx: Transaction, me: WorkerRow) -> None:
    dead = [worker for worker in _dead_workers(tx, me) if worker.engine == me.engine]
    for worker in dead:
        for found in tx.tables.held_by(worker.id):
            row = tx.tables.row_if_free(found)
            if row is not None and row.worker == worker.id:
                tx.write(row, (b.RunReleased(reason="the worker died", died=True),), me.id)
    _drop_idle(tx, dead)


def _drop_idle(tx: Transaction, dead: Sequence[WorkerRow]) -> None:
    """Delete dead workers that hold no runs any more."""
    for worker in dead:
        if tx.tables.lock_worker(worker) and not tx.tables.held_by(worker.id):
            tx.tables.drop_worker(worker.id)


def claim_run(tx: Transaction, op: writes.ClaimRun) -> writes.Claimed | writes.NotClaimed:
    """Claim one run, under the same rules as any other claim. A run of a living worker is never taken."""
    me, row, now = _worker(tx, op.worker), tx.row(op.run), tx.tables.now()
    if row.type != "run" or row.status in ENDED:
        return writes.NotClaimed("ended")
    if row.engine != me.engine:
        return writes.NotClaimed("moved")
    if row.agent_version not in me.agents.get(row.agent, ()) or not is_readable(tx.codec, row):
        return writes.NotClaimed("not_served")
    holder = None if row.worker is None else tx.tables.worker(row.worker)
    if holder is not None and (holder.id == me.id or holder not in _dead_workers(tx, me)):
        return writes.NotClaimed("held", holder.lease_until)
    if row.worker is None and (row.ready_at is None or row.ready_at > now):
        return writes.NotClaimed("waiting" if row.ready_at is None else "not_before", row.ready_at)
    is_suspect = _deaths(row) >= SUSPECT
    held = [each for each in tx.tables.held_by(me.id) if each.deaths >= SUSPECT] if is_suspect else []
    if is_suspect and row.number not in _group([row], held, op.cleared):
        return writes.NotClaimed("no_slot")
    if not _take_slots(tx, row, op.concurrency):
        return writes.NotClaimed("no_slot")
    log = _short_logs(tx, [row]).get(row.id)
    return _take(tx, row, op.worker, alone=is_suspect and not held, log=log)


def may_start_claimed(tx: Transaction, row: RunRow, worker: str) -> bool:
    """Return whether a run can be created and claimed at the same time.

    A run that needs a slot queues, because others may wait for that slot longer.
    """
    can_start = row.type == "run" and not row.engine and row.start_at is None and row.exclusive is None
    return can_start and tx.is_registered(worker)


def _short_logs(tx: Transaction, rows: Sequence[RunRow]) -> dict[str, list[Sealed]]:
    """Return the logs of runs that no worker has driven yet, so that their first worker need not read them.

    A log that cannot be decoded here is left out: the worker that reads it reports why.
    """
    if tx.codec.is_private:
        return {}  # The keys may have to be read first.
    short = [row for row in rows if row.fence == 0 and row.seq <= SHORT_LOG and row.origin is None]
    found: dict[str, list[Sealed]] = {}
    for row, log in zip(short, tx.tables.logs(short) if short else (), strict=True):
        with suppress(LimpetError):
            found[row.id] = [Sealed(event, tx.decode(event)) for event in log]
    return found


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
        is_served = row.engine == me.engine and row.agent_version in me.agents.get(row.agent, ())
        if is_served and is_readable(tx.codec, row):
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


def _take(tx: Transaction, row: RunRow, worker: str, *, alone: bool, log: Sequence[Sealed] | None) -> writes.Claimed:
    died = row.worker is not None
    sealed = seal_claim(tx, row, worker, died=died, alone=alone)
    assert isinstance(sealed.body, b.RunClaimed)
    given = claimed_row(row, sealed.event, sealed.body)
    tx.tables.insert(row.number, [sealed.event], [keys_of(sealed.body)])
    tx.tables.save(given)
    return writes.Claimed(given, died, () if log is None else (*log, sealed))


def seal_claim(tx: Transaction, row: RunRow, worker: str, *, died: bool = False, alone: bool = False) -> Sealed:
    """Seal the event with which a worker claims a run, under a new fence."""
    body = b.RunClaimed(worker=worker, died=died, alone=alone)
    [sealed] = tx.seal(row.head, row.id, (body,), fence=row.fence + 1, actor=worker)
    return sealed


def _worker(tx: Transaction, worker: str) -> WorkerRow:
    row = tx.tables.worker(worker)
    if row is None:
        raise NotFound(what="worker", id=worker)
    return row
