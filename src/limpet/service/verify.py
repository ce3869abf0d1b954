"""Verification: compare logs with their hashes, rows and blobs with the logs, and the ends of logs with saved heads."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from limpet.engine.replay.learned import Learned
from limpet.errors import (
    BlobDamaged,
    DamagedEvent,
    InvalidBundle,
    InvalidValue,
    LimpetError,
    NewerVersion,
    NotFound,
    Tampered,
    WrongKeys,
)
from limpet.events import Event, blobs_of, digest
from limpet.events.values import parse
from limpet.journal import check_late, check_position, check_snapshots, verify_run
from limpet.service.progress import progress
from limpet.stores import Store
from limpet.view import View

__all__ = ["LogEnd", "Verified", "read_ends", "save_heads", "verify_all", "verify_one"]

# Raised for bytes that are not text, not JSON, or not a known event.
UNREADABLE = (ValueError, msgspec.MsgspecError, RecursionError, InvalidValue, WrongKeys, DamagedEvent)
# A longer line is not a head.
LONGEST_LINE = 10_000
# Less than any number that a store assigns.
BEFORE_ALL = -(1 << 62)


class LogEnd(View, frozen=True, kw_only=True):
    """The head of a log, now or when it was saved."""

    run: str
    seq: int
    hash: str

    @classmethod
    def of(cls, events: Sequence[Event]) -> "LogEnd":
        """Return the head after these events."""
        return cls(run=events[-1].run, seq=events[-1].seq, hash=events[-1].hash.hex())


class Verified(View, frozen=True, kw_only=True):
    """Numbers of items that were checked and found intact."""

    runs: int
    """Number of runs."""
    events: int
    """Number of events."""
    conversations: int = 0
    """Number of conversations."""
    heads: int = 0
    """Number of logs that were compared with a saved head."""
    audits: int = 0
    """Number of audit logs, one for each month."""
    records: int = 0
    """Number of shared records."""

    def __str__(self) -> str:
        against = f", {_counted(self.heads, 'saved head')} checked" if self.heads else ""
        others = (("conversation", self.conversations), ("shared record", self.records), ("audit log", self.audits))
        logs = [_counted(number, what) for what, number in others if number]
        if self.runs or not logs:
            logs.insert(0, _counted(self.runs, "run"))
        found = " and ".join(filter(None, (", ".join(logs[:-1]), logs[-1])))
        return f"{found} with {_counted(self.events, 'event')} verified{against}"


async def verify_one(store: Store, run: str) -> Verified:
    """Check one run. Raises Tampered for the first event, row or blob that differs from what was written."""
    return await _verify(store, run, set())


async def verify_all(
    store: Store,
    heads: Path | None = None,
    *,
    pruned: Path | None = None,
    bad: Callable[[LimpetError], object] | None = None,
) -> Verified:
    """Check all runs, conversations, shared records and audit logs, and saved heads if given.

    `pruned` is the list of runs that were deleted on purpose; those may be missing. The first difference raises
    Tampered, and the first log of a newer version raises NewerVersion. With `bad`, each error is passed to it instead,
    and the check continues.
    """
    kept = [] if heads is None else await asyncio.to_thread(read_ends, heads)
    gone = [] if pruned is None else await asyncio.to_thread(read_ends, pruned, torn=True)
    ended: dict[str, int] = {}
    for each in gone:  # An id can have been used and pruned more than once.
        ended[each.run] = max(each.seq, ended.get(each.run, 0))
    done = held = 0
    total: Counter[str] = Counter()
    seen: set[str] = set()
    async for number, run in _streams(store):
        with _reporting(bad):
            found = await _verify_listed(store, number, run, seen)
            total.update(asdict(found))
        done += 1
        progress(done)
    for each in kept:
        with _reporting(bad):
            await _check_head(store, each, gone=ended.get(each.run, 0) >= each.seq)
            held += 1
    for check in (_check_counts, _check_strays, _check_contracts):
        with _reporting(bad):
            await check(store)
    return Verified(**{"runs": 0, "events": 0, **total, "heads": held})


async def save_heads(store: Store, path: Path) -> int:
    """Write the head of every log to a file, to be stored elsewhere, and return their number."""
    kept = []
    async for _, run in _streams(store):
        with suppress(NotFound):  # the run was deleted since
            row = await store.get(run)
            kept.append(LogEnd(run=row.id, seq=row.seq, hash=row.hash.hex()))
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in kept)
    part = path.with_name(f"{path.name}.part")
    await asyncio.to_thread(part.write_bytes, lines)
    part.replace(path)
    return len(kept)


async def _verify_listed(store: Store, number: int, run: str, seen: set[str]) -> Verified:
    """Check one run of a list. A run that was deleted since then counts as nothing."""
    try:
        return await _verify(store, run, seen)
    except (NotFound, Tampered) as error:
        if (number, run) not in await store.streams(after=number - 1, limit=1):
            return Verified(runs=0, events=0)  # deleted, perhaps while it was being read
        if isinstance(error, Tampered):
            raise
        raise Tampered(run=run, seq=1, reason="listed, but has no row") from error


async def _verify(store: Store, run: str, seen: set[str]) -> Verified:
    """Check one run. Blobs in `seen` are not read again."""
    with _readable(run):
        head = await verify_run(store, run)
        await check_late(store, run)
        wrong = await store.check_rows(run)
        if wrong:
            raise Tampered(run=run, seq=head.seq, reason=f"rows do not match the log ({wrong[0]})")
        await check_position(store, run)
        for blob in await store.references(run):
            if blob not in seen:
                await _check_blob(store, run, blob)
                seen.add(blob)
        await check_snapshots(store, run, Learned)
        type = (await store.get(run)).type
    counted = {f"{each}s": int(type == each) for each in ("run", "conversation", "audit", "record")}
    return Verified(events=head.seq, **counted)


async def _check_blob(store: Store, run: str, blob: str) -> None:
    """Check that the content of a blob matches its name."""
    try:
        async for _ in store.read_blob(blob):
            pass
    except (BlobDamaged, NotFound, *UNREADABLE) as error:
        seq = await _first_with(store, run, blob)
        raise Tampered(run=run, seq=seq, reason=f"referenced blob {blob} is not intact ({error})") from error


async def _first_with(store: Store, run: str, blob: str) -> int:
    """Return the first event that refers to a blob; for a blob of a late result, the last event."""
    seq = 0
    async for event in store.log(run):
        seq = event.seq
        if blob in blobs_of(store.decode(event)):
            break
    return seq


async def _check_head(store: Store, kept: LogEnd, *, gone: bool) -> None:
    """Check that a log still contains a saved head. A log that was truncated or rewritten does not."""
    try:
        with _readable(kept.run):
            found = await store.read(kept.run, after=kept.seq - 1, limit=1)
    except NotFound as error:
        if gone:
            return
        raise Tampered(run=kept.run, seq=kept.seq, reason="the log is missing") from error
    if gone and [event.hash.hex() for event in found] != [kept.hash]:
        return  # another run has this id now
    if not found:
        raise Tampered(run=kept.run, seq=kept.seq, reason="the log was truncated")
    if found[0].hash.hex() != kept.hash:
        raise Tampered(run=kept.run, seq=kept.seq, reason="the log was rewritten")


async def _check_counts(store: Store) -> None:
    """Check the number of runs per agent, which no single run can verify."""
    for wrong in await store.check_counts():
        raise Tampered(run=wrong.partition(" ")[0], seq=0, reason=f"wrong count of runs ({wrong})")


async def _check_strays(store: Store) -> None:
    """Check that every row belongs to a run or a blob, and every slot to a run that may hold it."""
    for table, number, rows in await store.check_strays():
        reason = f"table {table} has {rows} rows that belong to no log, with number {number}"
        raise Tampered(run=f"number {number}", seq=0, reason=reason)


async def _check_contracts(store: Store) -> None:
    """Check each contract against its hash, its agent and its version.

    A run may name another contract of the same version: contracts can change without a new version.
    """
    with _readable("contracts"):
        rows = await store.contracts()
    for row in rows:
        with _readable(row.agent):
            contract = parse(row.contract)
            said = contract if isinstance(contract, dict) else {}
            if digest(contract) != row.hash or (said.get("agent"), said.get("version")) != (row.agent, row.version):
                raise Tampered(run=row.agent, seq=0, reason=f"contract {row.version} does not match its hash")


def read_ends(path: Path, *, torn: bool = False) -> list[LogEnd]:
    """Read the heads in a file. With `torn`, ignore a line that was cut off when its writer was killed."""
    found = []
    try:
        with path.open("rb") as file:
            for line in iter(partial(file.readline, LONGEST_LINE), b""):
                try:
                    found.append(msgspec.json.decode(line, type=LogEnd))
                except msgspec.MsgspecError:
                    if not torn:
                        raise
    except (OSError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidBundle(path=str(path), reason=f"not a list of heads ({error})") from error
    return found


async def _streams(store: Store) -> AsyncIterator[tuple[int, str]]:
    """Yield every run, conversation, record and audit log by number and id, the oldest first."""
    after = BEFORE_ALL
    while page := await store.streams(after=after):
        for after, run in page:
            yield after, run


@contextmanager
def _readable(run: str) -> Iterator[None]:
    """Raise Tampered for data that cannot be read, and for a fork without its origin.

    An event of a newer version raises NewerVersion: its hashes are valid, and only a newer version can check the rest.
    """
    try:
        yield
    except NotFound as error:
        if error.id == run:
            raise
        raise Tampered(run=run, seq=1, reason=f"{error.what} {error.id} is missing") from error
    except UNREADABLE as error:
        raise Tampered(run=run, seq=1, reason=f"rows cannot be read ({error})") from error


@contextmanager
def _reporting(bad: Callable[[LimpetError], object] | None) -> Iterator[None]:
    """Pass errors to `bad`, or raise them if there is none."""
    try:
        yield
    except (Tampered, NewerVersion, DamagedEvent) as error:
        if bad is None:
            raise
        bad(error)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
