"""Delete runs that ended long ago, family by family, optionally after exporting them to an archive.

A family is a set of runs that need each other: forks and their origins, called runs and their callers. It is deleted as
a whole once all its runs have ended and are old enough.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkstemp

import msgspec

from limpet.clock import Duration, microseconds
from limpet.engine.run.conversation import conversation_of
from limpet.engine.worker.duties import Duty, Retention
from limpet.errors import InvalidBundle, NotFound
from limpet.events import bodies as b
from limpet.policy.retention import Drop, KeepRule, decide_run, snapshots_to_drop
from limpet.service.bundles import export_run, read_bundle
from limpet.service.files import file_errors
from limpet.service.progress import progress, report_progress_to
from limpet.service.resolve import each_run
from limpet.service.verify import LogEnd, read_ends
from limpet.state import ENDED
from limpet.stores import RunFilter, RunRow, Store

__all__ = ["Pruned", "prune", "retention_duty", "rotate"]

log = logging.getLogger("limpet")


RETENTION = "retention"
# Number of kept runs that a worker looks at before it rests.
BITE = 100
# Lists of deleted runs in the archive folder: those deleted, and those whose deletion has started.
LIST, BEGUN = "pruned.jsonl", "pruning.jsonl"


@dataclass(kw_only=True)
class Pruned:
    """The runs that were deleted, or would be."""

    dry_run: bool
    """Whether nothing was deleted."""
    runs: list[str] = field(default_factory=list)
    """Ids of the runs."""
    events: int = 0
    """Number of their events."""
    kept: dict[str, int] = field(default_factory=dict)
    """Number of ended runs that are kept, by reason."""
    snapshots: int = 0
    """Number of snapshots that were deleted."""
    blobs: int = 0
    """Number of blobs that were deleted."""

    def __str__(self) -> str:
        how = "would be deleted" if self.dry_run else "deleted"
        lines = [f"runs {how}: {len(self.runs)}, with {self.events} events"]
        lines += [f"kept: {number} ({reason})" for reason, number in sorted(self.kept.items())]
        if not self.dry_run:
            lines.append(f"also deleted: {self.snapshots} snapshots, {self.blobs} blobs")
        return "\n".join(lines)


async def prune(store: Store, rule: KeepRule, *, dry_run: bool, archive: Path | None) -> Pruned:
    """Delete the runs that the rule does not keep. With `dry_run`, only report them."""
    done = Pruned(dry_run=dry_run)
    async for _ in _prune_in_bites(store, rule, done, archive):
        pass
    return done


def retention_duty(store: Store, keep: Retention) -> Duty:
    """Return the duty of a worker to delete the runs that are not kept."""

    async def bites() -> AsyncIterator[None]:
        done = Pruned(dry_run=False)
        with nullcontext() if keep.archive is None else file_errors(keep.archive) as archive:
            async for _ in _prune_in_bites(store, keep, done, archive):
                yield
            if keep.snapshots is not None:
                async for dropped in _rotate_in_bites(store, keep.snapshots, None):
                    done.snapshots += dropped
                    yield
        if done.runs or done.snapshots:
            log.info("retention: deleted %d runs and %d snapshots", len(done.runs), done.snapshots)

    return Duty(RETENTION, microseconds(keep.every), bites)


async def _prune_in_bites(store: Store, rule: KeepRule, done: Pruned, archive: Path | None) -> AsyncIterator[None]:
    """Delete runs family by family, and yield after each, and after each few runs that are kept."""
    now, seen = await store.now(), set[str]()

    async def judge(row: RunRow) -> bool:
        """Delete the family of a run, or count why it is kept; return whether it was deleted."""
        family, decision = [row], _decide(rule, row, now)
        if decision is None:
            family = await _family(store, row)
            seen.update(each.id for each in family)
            decision = _first_reason(rule, family, now)
        if decision is None:
            await _delete(store, family, done, archive)
        else:
            _keep(done, decision, len(family))
        return decision is None

    if archive is not None and not done.dry_run:
        await _complete_list(store, archive)
    checked = 0
    async for row in _ended(store):
        progress(checked := checked + 1)
        is_bite = checked % BITE == 0
        with suppress(NotFound):  # another process prunes too
            is_bite |= row.id not in seen and await judge(row)
        if is_bite:
            yield
    if not done.dry_run:
        done.blobs = await store.collect_blobs()


def _decide(rule: KeepRule, row: RunRow, now: int) -> str | None:
    """Return why a run is kept, or None."""
    if row.status == "open":
        return "conversation"
    ended = None if row.ended is None else max(row.ended, row.time)  # a later event may follow the end
    found = decide_run(rule, now=now, agent=row.agent, status=row.status, ended=ended)
    return None if isinstance(found, Drop) else found.reason


def _first_reason(rule: KeepRule, family: Iterable[RunRow], now: int) -> str | None:
    reasons = (reason for row in family if (reason := _decide(rule, row, now)) is not None)
    return next((f"a related run is kept: {reason}" for reason in reasons), None)


async def _delete(store: Store, family: list[RunRow], done: Pruned, archive: Path | None) -> None:
    if not done.dry_run:
        ends = [LogEnd(run=row.id, seq=row.seq, hash=row.hash.hex()) for row in family]
        is_safe = archive is None or await _export_all(store, family, archive)
        if is_safe and archive is not None:
            await _append_heads(ends, archive / BEGUN)
        talks = [talk for row in family if (talk := await _find(store, conversation_of(row.id))) is not None]
        if not is_safe or not await store.prune({row.id: row.head for row in (*family, *talks)}):
            _keep(done, "changed meanwhile", len(family))
            return
        if archive is not None:
            await _append_heads(ends, archive / LIST)
    done.runs += [row.id for row in family]
    done.events += sum(row.seq - (row.origin_at or 0) for row in family)


def _keep(done: Pruned, reason: str, number: int) -> None:
    done.kept[reason] = done.kept.get(reason, 0) + number


async def _export_all(store: Store, family: list[RunRow], archive: Path) -> bool:
    """Export each run to its own file. Returns False if one has changed since."""
    await asyncio.to_thread(archive.mkdir, parents=True, exist_ok=True)
    for row in family:
        part = await asyncio.to_thread(_part, archive)  # another process may export the same run
        try:
            with report_progress_to(lambda *_: None):  # only the progress of the pruning is shown
                end = await export_run(store, row.id, part)
            if end.hash != row.hash.hex():
                return False
            await _place(part, archive, end)
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)
    return True


async def _append_heads(ends: Sequence[LogEnd], path: Path) -> None:
    """Append the heads of deleted logs to a list."""
    await asyncio.to_thread(_append_lines, path, b"".join(msgspec.json.encode(end) + b"\n" for end in ends))


async def _complete_list(store: Store, archive: Path) -> None:
    """List runs that an earlier process deleted just before it was killed."""
    begun, done = [await asyncio.to_thread(_read_list, archive / name) for name in (BEGUN, LIST)]
    left = [end for end in begun if end not in done and await _find(store, end.run) is None]
    if left:
        await _append_heads(left, archive / LIST)


def _read_list(path: Path) -> list[LogEnd]:
    return read_ends(path, torn=True) if path.exists() else []


def _part(archive: Path) -> Path:
    file, name = mkstemp(prefix=".", suffix=".part", dir=archive)
    os.close(file)
    return Path(name)


async def _place(part: Path, archive: Path, end: LogEnd) -> None:
    """Name a file after its run, or after its run and hash if that name is used by another log. Never overwrites a
    file.
    """
    name = archive / f"{end.run}.zip"
    if not await asyncio.to_thread(_link, part, name) and not await _holds(name, end):
        await asyncio.to_thread(_link, part, archive / f"{end.run}-{end.hash[:16]}.zip")


async def _holds(path: Path, end: LogEnd) -> bool:
    try:
        return LogEnd.of((await read_bundle(path)).events) == end
    except InvalidBundle:
        return False


def _link(part: Path, name: Path) -> bool:
    """Link a file to its final name, durably, before anything is deleted. Returns False if the name is used."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    try:
        name.hardlink_to(part)
    except FileExistsError:
        return False
    with suppress(OSError):  # not every system can open a folder
        folder = os.open(name.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return True


def _append_lines(path: Path, lines: bytes) -> None:
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        if file.read(1) not in (b"", b"\n"):  # The last writer was killed.
            lines = b"\n" + lines
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


async def _ended(store: Store) -> AsyncIterator[RunRow]:
    """Yield every ended run, by status, the newest first."""
    for status in sorted(ENDED):
        async for row in each_run(store, RunFilter(status=(status,))):
            yield row


async def _family(store: Store, row: RunRow) -> list[RunRow]:
    """Return the family of a run, including itself."""
    found, left = {row.id: row}, [row]
    while left:
        each = left.pop()
        near = [each.origin, await _caller(store, each)]
        rows = [known for run in near if run is not None and (known := await _find(store, run)) is not None]
        rows += [fork async for fork in each_run(store, RunFilter(origin=each.id))]
        rows += [child async for child in each_run(store, RunFilter(parent=each.id)) if await _caller(store, child)]
        new = [row for row in rows if row.id not in found]
        found |= {row.id: row for row in new}
        left += new
    return list(found.values())


async def _caller(store: Store, row: RunRow) -> str | None:
    """Return the run that called this one and can resume it; None for a run that was started independently."""
    if row.parent is None:
        return None
    [first] = await store.read(row.id, limit=1)
    body = store.decode(first)
    parent = body.parent if isinstance(body, b.RunCreated) else None
    return parent.run if parent is not None and parent.mode in ("call", "handoff") else None


async def _find(store: Store, run: str) -> RunRow | None:
    try:
        return await store.get(run)
    except NotFound:
        return None


async def rotate(store: Store, *, keep: int, older_than: Duration | None) -> int:
    """Delete snapshots that are too old or exceed `keep` per run, and return their number. The newest of each run is
    kept.
    """
    return sum([dropped async for dropped in _rotate_in_bites(store, keep, older_than)])


async def _rotate_in_bites(store: Store, keep: int, older_than: Duration | None) -> AsyncIterator[int]:
    """Delete snapshots run by run, and yield how many."""
    now = await store.now()
    age = None if older_than is None else microseconds(older_than)
    async for row in each_run(store, RunFilter()):
        with suppress(NotFound):  # the run was deleted since
            seqs = snapshots_to_drop(await store.snapshots(row.id), now=now, keep=keep, max_age=age)
            if seqs:
                await store.drop_snapshots(row.id, seqs)
                yield len(seqs)
