"""Snapshots: the state of a run at an event, saved so that its log need not be read from the start."""

import logging
from collections.abc import Sequence
from hashlib import sha256

from limpet.errors import Tampered, WrongKeys
from limpet.events import Head, Packed
from limpet.stores import writes
from limpet.stores.api.base import StoreBase
from limpet.stores.rows import Snapshot

__all__ = ["Snapshots"]

DIGEST = 32
WITHOUT_DIGEST = b'{"version":1,'
log = logging.getLogger("limpet")


class Snapshots(StoreBase):
    """Snapshots of a store."""

    async def save_snapshot(self, run: str, at: Head, data: bytes) -> None:
        """Save a run's state at a head."""
        data = _digest(run, at.seq, at.hash, data) + data
        await self._submit(writes.SaveSnapshot(run=run, seq=at.seq, hash=at.hash, data=data))

    async def drop_snapshots(self, run: str, seqs: Sequence[int]) -> None:
        """Delete snapshots; no result changes."""
        await self._submit(writes.DropSnapshots(run=run, seqs=tuple(seqs)))

    async def snapshot(self, run: str, *, at_most: int | None = None) -> Snapshot | None:
        """Return the newest intact snapshot, or the newest at or before a sequence; a damaged one is ignored.

        A fork without its own snapshot uses its origin's.
        """
        try:
            owner, found = await self._ask(lambda: self._newest(run, at_most))
            return None if found is None else self._open_snapshot(owner, found)
        except (Tampered, ValueError) as error:
            log.warning("run %s: ignoring a damaged snapshot: %s", run, error)
            return None

    async def own_snapshot(self, run: str, seq: int) -> Snapshot | None:
        """Return a run's snapshot at an event, or None. Raises Tampered if it is damaged."""
        found = await self._ask(lambda: self._backend.snapshot(run, seq))
        return self._open_snapshot(run, found) if found is not None and found.seq == seq else None

    async def snapshots(self, run: str) -> list[tuple[int, int]]:
        """Return the (sequence, time) of every snapshot of a run."""
        return await self._ask(lambda: self._backend.snapshots(run))

    def _open_snapshot(self, run: str, found: Snapshot) -> Snapshot | None:
        """Return a snapshot as saved, or None if an early version saved it without a digest. Raises Tampered."""
        try:
            data = self.codec.unpack(Packed(found.codec, found.key_id, found.data), f"snapshot:{run}:{found.seq}")
        except (ValueError, WrongKeys) as error:
            raise Tampered(run=run, seq=found.seq, reason=f"the snapshot cannot be read ({error})") from error
        if data.startswith(WITHOUT_DIGEST):
            return None
        if data[:DIGEST] != _digest(run, found.seq, found.hash, data[DIGEST:]):
            raise Tampered(run=run, seq=found.seq, reason="the snapshot is not as saved")
        return Snapshot(found.seq, found.hash, found.time, data[DIGEST:])

    def _newest(self, run: str, at_most: int | None) -> tuple[str, Snapshot | None]:
        found = self._backend.snapshot(run, at_most)
        if found is not None:
            return run, found
        row = self._backend.get(run)
        if row is None or row.origin is None or row.origin_at is None:
            return run, None
        return self._newest(row.origin, row.origin_at if at_most is None else min(at_most, row.origin_at))


def _digest(run: str, seq: int, hash: bytes, data: bytes) -> bytes:
    """Return the digest that is saved with a snapshot, so that damage is detected."""
    return sha256(b"\0".join((b"limpet.snapshot.1", run.encode(), b"%d" % seq, hash, data))).digest()
