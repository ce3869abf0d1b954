"""Workers: their leases, and the runs that they claim and release."""

from collections.abc import Callable, Mapping, Sequence

from limpet.events import Payload
from limpet.events import bodies as b
from limpet.ids import check_id
from limpet.stores import writes
from limpet.stores.api.base import LARGEST_PAGE, check_page
from limpet.stores.api.logs import Logs
from limpet.stores.blobs import Blob
from limpet.stores.row_encryption import reveal_duty, reveal_row
from limpet.stores.rows import DutyRow, RunRow, WorkerRow

__all__ = ["Leases"]


class Leases(Logs):
    """Workers of a store, and their claims."""

    async def register(self, worker: WorkerRow, *, lease: int) -> writes.Renewal:
        """Register a worker with a lease, in microseconds."""
        check_id(worker.id)
        return await self._submit(writes.Register(worker=worker, lease=lease))

    async def renew(self, worker: str, *, lease: int) -> writes.Renewal:
        """Renew a worker's lease. Raises NotFound if the worker was dropped; it must register again then."""
        return await self._submit(writes.Renew(worker=worker, lease=lease))

    async def retire(self, worker: str) -> None:
        """Remove a worker; its runs can be claimed immediately."""
        await self._submit(writes.Retire(worker=worker))

    async def claim(
        self,
        worker: str,
        *,
        limit: int,
        concurrency: Mapping[str, int] | None = None,
        skip: Sequence[str] = (),
        cleared: int = 0,
    ) -> tuple[writes.Claimed, ...]:
        """Claim runs of the agents that the worker serves, longest ready first, each under a higher fence.

        Agents in `skip` are left to other workers. `cleared` suspects made progress in this worker, which may hold as
        many more.
        """
        op = writes.Claim(
            worker=worker, limit=limit, concurrency=dict(concurrency or {}), skip=tuple(skip), cleared=cleared
        )
        return tuple(self._revealed(claimed) for claimed in await self._submit(op))

    async def claim_run(
        self, worker: str, run: str, *, concurrency: Mapping[str, int] | None = None, cleared: int = 0
    ) -> writes.Claimed | writes.NotClaimed:
        """Claim one run by its id, or return why the worker cannot have it now. Raises NotFound."""
        op = writes.ClaimRun(worker=worker, run=check_id(run), concurrency=dict(concurrency or {}), cleared=cleared)
        found = await self._submit(op)
        return self._revealed(found) if isinstance(found, writes.Claimed) else found

    async def create_claimed(
        self,
        run: str,
        body: b.RunCreated,
        *,
        worker: str | None,
        alike: Callable[[Payload], bool] | None = None,
        blobs: Sequence[Blob] = (),
        actor: str,
    ) -> writes.Claimed | None:
        """Create a run and claim it for a worker, if one is given, in one transaction; see `create`.

        Returns None if there is no claim: the run exists, must queue, or the worker is not registered.
        """
        leg = writes.Create(run=run, bodies=(body,), actor=actor, worker=worker)
        created = await self._create(leg, alike, blobs)
        return created.claimed

    def _revealed(self, claimed: writes.Claimed) -> writes.Claimed:
        return claimed._replace(row=reveal_row(self.codec, claimed.row))

    async def release(
        self, run: str, *, fence: int, worker: str, reason: str, retry_at: int | None = None, fruitless: bool = False
    ) -> None:
        """Release a run, which no worker claims before `retry_at`. `fruitless`: this worker could not drive it."""
        leg = writes.Release(run=run, fence=fence, actor=worker, reason=reason, retry_at=retry_at, fruitless=fruitless)
        await self.append(leg)

    async def due(
        self, engine: str, *, after: tuple[int, int] = (0, 0), until: int, limit: int = LARGEST_PAGE
    ) -> list[RunRow]:
        """Return the runs of an engine that are ready by a time and held by no worker, longest ready first."""
        check_page(limit)
        return [
            reveal_row(self.codec, row)
            for row in await self._ask(lambda: self._backend.due(engine, after, until, limit))
        ]

    async def take_duty(self, duty: str, worker: str, *, lease: int, every: int) -> writes.DutyTurn:
        """Take a duty under a lease, if its last round is `every` ago and no other worker holds it."""
        check_id(duty)
        return await self._submit(writes.TakeDuty(duty=duty, worker=worker, lease=lease, every=every))

    async def keep_duty(self, duty: str, worker: str, *, lease: int) -> bool:
        """Renew the lease on a duty; return whether the worker still holds it."""
        return await self._submit(writes.KeepDuty(duty=duty, worker=worker, lease=lease))

    async def end_duty(self, duty: str, worker: str, *, is_done: bool, error: str = "") -> bool:
        """Release a duty, as done or not; return whether the worker still held it."""
        return await self._submit(writes.EndDuty(duty=duty, worker=worker, is_done=is_done, error=error))

    async def duties(self) -> list[DutyRow]:
        """Return all duties, by name."""
        return [reveal_duty(self.codec, row) for row in await self._ask(self._backend.duties)]

    async def slot_holders(self, runs: Sequence[str]) -> dict[str, str]:
        """Return another run that holds a slot for each of these runs that may wait for one."""
        found = await self._ask(lambda: [self._backend.slot_holder(run) for run in runs])
        return {run: holder for run, holder in zip(runs, found, strict=True) if holder is not None}

    async def workers(self) -> list[WorkerRow]:
        """Return all registered workers."""
        return await self._ask(self._backend.workers)
