"""Pruning: what has ended long ago is deleted, family by family, after it was put into files if somebody wants that.

A family are the runs that need each other: forks and what they branched off, and runs that were called with those that
called them. It goes together, when all of it has ended and is old enough, or it stays.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkstemp

import msgspec

from limpet.clock import Duration, microseconds
from limpet.engine.run.conversation import conversation_of
from limpet.errors import InvalidBundle, NotFound
from limpet.events import bodies as b
from limpet.policy.retention import Drop, KeepRule, decide_run, snapshots_to_drop
from limpet.service.bundles import export_run, read_bundle
from limpet.service.progress import progress, report_progress_to
from limpet.service.resolve import each_run
from limpet.service.verify import LogEnd, read_ends
from limpet.state import ENDED
from limpet.stores import RunFilter, RunRow, Store

__all__ = ["Pruned", "prune", "rotate"]

# Where what was deleted is listed, in the folder of the archive.
LIST, BEGUN = "pruned.jsonl", "pruning.jsonl"


@dataclass(kw_only=True)
class Pruned:
    """What was deleted, or would be."""

    dry_run: bool
    runs: list[str] = field(default_factory=list)
    events: int = 0
    kept: dict[str, int] = field(default_factory=dict)
    """How many ended runs stay, by the reason."""
    snapshots: int = 0
    blobs: int = 0

    def __str__(self) -> str:
        how = "that would be deleted" if self.dry_run else "that are deleted"
        lines = [f"runs {how}: {len(self.runs)}, with {self.events} events"]
        lines += [f"{number} stay: {reason}" for reason, number in sorted(self.kept.items())]
        if not self.dry_run:
            lines.append(f"deleted beside them: snapshots {self.snapshots}, blobs {self.blobs}")
        return "\n".join(lines)


async def prune(store: Store, rule: KeepRule, *, dry_run: bool, archive: Path | None) -> Pruned:
    """Delete what the rule lets go, or say what that would be."""
    now, done, seen = await store.now(), Pruned(dry_run=dry_run), set[str]()
    if archive is not None and not dry_run:
        await _catch_up(store, archive)
    looked_at = 0
    async for row in _ended(store):
        progress(looked_at := looked_at + 1)
        if row.id in seen:
            continue
        family, decision = [row], _decide(rule, row, now)
        if decision is None:
            try:
                family = await _family(store, row)
                seen |= {each.id for each in family}
                decision = _first_reason(rule, family, now)
                if decision is None:
                    await _delete(store, family, done, archive)
                    continue
            except NotFound:  # somebody else is pruning too
                continue
        _keep(done, decision, len(family))
    if not dry_run:
        done.blobs = await store.collect_blobs()
    return done


def _decide(rule: KeepRule, row: RunRow, now: int) -> str | None:
    """Why a run stays, if it does."""
    if row.status == "open":
        return "it is a conversation"
    ended = None if row.ended is None else max(row.ended, row.time)  # the log knows the latter
    found = decide_run(rule, now=now, agent=row.agent, status=row.status, ended=ended)
    return None if isinstance(found, Drop) else found.reason


def _first_reason(rule: KeepRule, family: Iterable[RunRow], now: int) -> str | None:
    reasons = (reason for row in family if (reason := _decide(rule, row, now)) is not None)
    return next((f"another one of its family stays ({reason})" for reason in reasons), None)


async def _delete(store: Store, family: list[RunRow], done: Pruned, archive: Path | None) -> None:
    if not done.dry_run:
        ends = [LogEnd(run=row.id, seq=row.seq, hash=row.hash.hex()) for row in family]
        is_safe = archive is None or await _put_away(store, family, archive)
        if is_safe and archive is not None:
            await _list(ends, archive / BEGUN)
        talks = [talk for row in family if (talk := await _known(store, conversation_of(row.id))) is not None]
        if not is_safe or not await store.prune({row.id: row.head for row in (*family, *talks)}):
            _keep(done, "it went on meanwhile", len(family))
            return
        if archive is not None:
            await _list(ends, archive / LIST)
    done.runs += [row.id for row in family]
    done.events += sum(row.seq - (row.origin_at or 0) for row in family)


def _keep(done: Pruned, reason: str, number: int) -> None:
    done.kept[reason] = done.kept.get(reason, 0) + number


async def _put_away(store: Store, family: list[RunRow], archive: Path) -> bool:
    """Each in a file of its own, and a list of where their logs ended; false if one has gone on meanwhile."""
    await asyncio.to_thread(archive.mkdir, parents=True, exist_ok=True)
    for row in family:
        part = await asyncio.to_thread(_part, archive)  # others may be putting the same one away
        try:
            with report_progress_to(lambda *_: None):  # how far the pruning is counts
                end = await export_run(store, row.id, part)
            if end.hash != row.hash.hex():
                return False
            await _place(part, archive, end)
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)
    return True


async def _list(ends: Sequence[LogEnd], path: Path) -> None:
    """Note where logs ended that are deleted."""
    await asyncio.to_thread(_note, path, b"".join(msgspec.json.encode(end) + b"\n" for end in ends))


async def _catch_up(store: Store, archive: Path) -> None:
    """Note what was deleted by somebody who was killed right after it."""
    begun, done = [await asyncio.to_thread(_listed, archive / name) for name in (BEGUN, LIST)]
    left = [end for end in begun if end not in done and await _known(store, end.run) is None]
    if left:
        await _list(left, archive / LIST)


def _listed(path: Path) -> list[LogEnd]:
    return read_ends(path, torn=True) if path.exists() else []


def _part(archive: Path) -> Path:
    file, name = mkstemp(prefix=".", suffix=".part", dir=archive)
    os.close(file)
    return Path(name)


async def _place(part: Path, archive: Path, end: LogEnd) -> None:
    """Give a file its name: that of its run, or with its hash if another log has that one. Nothing is overwritten."""
    name = archive / f"{end.run}.zip"
    if not await asyncio.to_thread(_link, part, name) and not await _holds(name, end):
        await asyncio.to_thread(_link, part, archive / f"{end.run}-{end.hash[:16]}.zip")


async def _holds(path: Path, end: LogEnd) -> bool:
    try:
        return LogEnd.of((await read_bundle(path)).events) == end
    except InvalidBundle:
        return False


def _link(part: Path, name: Path) -> bool:
    """Durable before anything is deleted; false if the name is taken."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    try:
        name.hardlink_to(part)
    except FileExistsError:
        return False
    with suppress(OSError):  # where a folder cannot be opened
        folder = os.open(name.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return True


def _note(path: Path, lines: bytes) -> None:
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        if file.read(1) not in (b"", b"\n"):  # whoever wrote last was killed
            lines = b"\n" + lines
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


async def _ended(store: Store) -> AsyncIterator[RunRow]:
    """Every run that has ended, by status, the newest first."""
    for status in sorted(ENDED):
        async for row in each_run(store, RunFilter(status=(status,))):
            yield row


async def _family(store: Store, row: RunRow) -> list[RunRow]:
    """The runs that need each other, with this one among them."""
    found, left = {row.id: row}, [row]
    while left:
        each = left.pop()
        near = [each.origin, await _caller(store, each)]
        rows = [known for run in near if run is not None and (known := await _known(store, run)) is not None]
        rows += [fork async for fork in each_run(store, RunFilter(origin=each.id))]
        rows += [child async for child in each_run(store, RunFilter(parent=each.id)) if await _caller(store, child)]
        new = [row for row in rows if row.id not in found]
        found |= {row.id: row for row in new}
        left += new
    return list(found.values())


async def _caller(store: Store, row: RunRow) -> str | None:
    """The run that called this one, and may resume it; not one that let it go on alone."""
    if row.parent is None:
        return None
    [first] = await store.read(row.id, limit=1)
    body = store.decode(first)
    parent = body.parent if isinstance(body, b.RunCreated) else None
    return parent.run if parent is not None and parent.mode in ("call", "handoff") else None


async def _known(store: Store, run: str) -> RunRow | None:
    try:
        return await store.get(run)
    except NotFound:
        return None


async def rotate(store: Store, *, keep: int, older_than: Duration | None) -> int:
    """Delete snapshots that are too many or too old, of all runs; how many. The newest of each stays."""
    now, dropped = await store.now(), 0
    age = None if older_than is None else microseconds(older_than)
    async for row in each_run(store, RunFilter()):
        with suppress(NotFound):  # it was deleted meanwhile
            seqs = snapshots_to_drop(await store.snapshots(row.id), now=now, keep=keep, max_age=age)
            if seqs:
                await store.drop_snapshots(row.id, seqs)
                dropped += len(seqs)
    return dropped
