"""Maintenance: delete runs, rebuild and check what is derived from logs, and rotate keys."""

import logging
from collections.abc import Mapping

from limpet.errors import DamagedEvent, NewerVersion, NotFound, Tampered, Unsupported, outdated_store
from limpet.events import PLAIN, Head
from limpet.stores import writes
from limpet.stores.api.base import LARGEST_PAGE
from limpet.stores.api.logs import Logs
from limpet.stores.cipher import rotated
from limpet.stores.rebuild import Derived, derive, derive_row, differences, earliest, latest
from limpet.stores.row_encryption import hide_row, reveal_request, reveal_score
from limpet.stores.rows import RequestFilter, ScoreFilter

__all__ = ["Maintenance"]

log = logging.getLogger("limpet")


class Maintenance(Logs):
    """Maintenance of a store."""

    async def prune(self, runs: Mapping[str, Head]) -> bool:
        """Delete runs and conversations with everything that belongs to them, together or not at all; return whether it
        did.

        Each comes with its last known head. Nothing is deleted if one has continued since, is another stream with the
        same id, has not ended, has a fork that is not among them, or is a conversation that other runs use. Blobs
        without references are collected later.
        """
        return await self._submit(writes.Prune(runs=tuple(runs.items())))

    async def rebuild(self, run: str) -> None:
        """Rebuild everything that is derived from a log: its row, labels, requests, scores and references to
        blobs.
        """
        await self._submit(writes.Rebuild(run=run))

    async def rotate_keys(self) -> None:
        """Encrypt new data with a new key from now on, and wrap all keys with the current master key.

        Stored data is not rewritten. Other processes continue with their keys, and load new ones when needed.
        """
        if self._keys is None:
            raise Unsupported(what="keys")
        while True:
            before = await self._ask(self._backend.keys)
            after = rotated(before, self._keys, await self.now())
            if await self._submit(writes.SaveKeys(before=tuple(before), after=after)):
                break
        self.codec.learn([key.id for key in after])

    async def check_rows(self, run: str) -> list[str]:
        """Describe how the rows of a stream differ from its log; empty if they do not."""
        while True:
            row = await self.get(run)
            requests = await self._ask(
                lambda: self._backend.requests(RequestFilter(status=None, run=run), row.seq + 1)  # noqa: B023
            )
            scores = await self._ask(lambda: self._backend.scores(ScoreFilter(run=run), row.seq + 1))  # noqa: B023
            blobs = await self.references(run)
            labels = await self._ask(lambda: self._backend.labels(run))
            commands = await self._ask(lambda: self._backend.commands(run))
            steps = await self._ask(lambda: self._backend.steps(run))
            own = self.log(run, after=row.origin_at or 0)
            log = [(event, self.decode(event)) async for event in own if event.seq <= row.seq]
            if (await self.get(run)).seq == row.seq:
                break
        if not log:
            return ["run: no event of its own"]
        requests = [reveal_request(self.codec, each) for each in requests]
        since, derived = derive_row(row.number, log, earliest), derive(row.number, log, PLAIN, latest)
        derived = derived._replace(blobs=(*derived.blobs, *await self._late_blobs(run)))
        rated = tuple(reveal_score(self.codec, each) for each in scores)
        stored = Derived(row, tuple(requests), tuple(blobs), tuple(commands), tuple(steps), rated)
        found = differences(stored, derived, since)
        if sorted(labels) != sorted(hide_row(self.codec, derived.row).labels.items()):
            found.append(f"labels: {len(labels)} are indexed, but the log has {len(derived.row.labels)}")
        return found

    async def check_counts(self) -> list[str]:
        """Describe which counters differ from the true numbers."""
        found = await self._ask(self._backend.miscounted)
        return [
            f"{agent} {status}: the counter is {kept}, but there are {there}" for agent, status, kept, there in found
        ]

    async def check_strays(self) -> list[tuple[str, int, int]]:
        """Return rows without their stream or blob, and wrong slots: table, number, and how many."""
        return await self._ask(self._backend.strays)

    async def recount(self) -> None:
        """Recompute the counters from the rows."""
        await self._submit(writes.Recount())

    async def _derive_rows(self) -> None:
        """Rebuild all rows of a store that was created before rows had all their columns."""
        if self.read_only is not None:
            raise outdated_store(self.read_only, "an earlier version of Limpet wrote it")
        last = 0
        while page := await self._ask(lambda: self._backend.streams(last, LARGEST_PAGE)):  # noqa: B023
            last = page[-1][0]
            for _, run in page:
                try:
                    await self.rebuild(run)
                except (Tampered, DamagedEvent, NewerVersion, NotFound) as error:
                    log.warning("run %s: its rows cannot be rebuilt: %s", run, error)
        await self._submit(writes.MarkIndexed())
