"""Whether what is stored is what was written: each log against its own hashes, its rows and blobs against the log, and
its end against heads that were kept elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

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
from limpet.journal import check_late, check_snapshots, verify_run
from limpet.service.progress import progress
from limpet.stores import Store

__all__ = ["LogEnd", "Verified", "read_ends", "save_heads", "verify_all", "verify_one"]

# What is raised by bytes that are no text, no JSON or no word of ours any more.
UNREADABLE = (ValueError, msgspec.MsgspecError, RecursionError, InvalidValue, WrongKeys, DamagedEvent)
# A longer line of a file with heads is none.
LONGEST_LINE = 10_000
# Below every number that a store gives.
BEFORE_ALL = -(1 << 62)


class LogEnd(Struct, frozen=True, kw_only=True):
    """Where the log of a run ends, or ended once."""

    run: str
    seq: int
    hash: str

    @classmethod
    def of(cls, events: Sequence[Event]) -> "LogEnd":
        """Where these end."""
        return cls(run=events[-1].run, seq=events[-1].seq, hash=events[-1].hash.hex())


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What was looked at, and found whole."""

    runs: int
    events: int
    conversations: int = 0
    heads: int = 0
    """How many were held against a head that was kept elsewhere."""

    def __str__(self) -> str:
        against = f", {self.heads} against heads that were kept" if self.heads else ""
        talks = f" and {_counted(self.conversations, 'conversation')}" if self.conversations else ""
        are = "is" if self.runs == 1 and not talks else "are"
        return f"{_counted(self.runs, 'run')}{talks} with {_counted(self.events, 'event')} {are} whole{against}"


async def verify_one(store: Store, run: str) -> Verified:
    """Check one run; raises Tampered with the first event, row or blob that is not as it was written."""
    return await _verify(store, run, set())


async def verify_all(
    store: Store,
    heads: Path | None = None,
    *,
    pruned: Path | None = None,
    bad: Callable[[LimpetError], object] | None = None,
) -> Verified:
    """Check every run and conversation, and where its log ended once.

    What the list at `pruned` names was deleted on purpose, if it is not there any more. The first that is not whole
    raises Tampered, and the first that a newer version wrote NewerVersion; or else `bad` hears of each, and the others
    are looked at.
    """
    kept = [] if heads is None else await asyncio.to_thread(read_ends, heads)
    gone = [] if pruned is None else await asyncio.to_thread(read_ends, pruned, torn=True)
    ended: dict[str, int] = {}
    for each in gone:  # an id may have been used and pruned more than once
        ended[each.run] = max(each.seq, ended.get(each.run, 0))
    done = runs = talks = events = held = 0
    seen: set[str] = set()
    async for number, run in _streams(store):
        with _heard(bad):
            found = await _verify_listed(store, number, run, seen)
            runs, talks, events = runs + found.runs, talks + found.conversations, events + found.events
        done += 1
        progress(done)
    for each in kept:
        with _heard(bad):
            await _check_head(store, each, gone=ended.get(each.run, 0) >= each.seq)
            held += 1
    for check in (_check_counts, _check_strays, _check_contracts):
        with _heard(bad):
            await check(store)
    return Verified(runs=runs, events=events, conversations=talks, heads=held)


async def save_heads(store: Store, path: Path) -> int:
    """Write where every log ends now, for keeping elsewhere; how many."""
    kept = []
    async for _, run in _streams(store):
        with suppress(NotFound):  # it was deleted meanwhile
            row = await store.get(run)
            kept.append(LogEnd(run=row.id, seq=row.seq, hash=row.hash.hex()))
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in kept)
    part = path.with_name(f"{path.name}.part")
    await asyncio.to_thread(part.write_bytes, lines)
    part.replace(path)
    return len(kept)


async def _verify_listed(store: Store, number: int, run: str, seen: set[str]) -> Verified:
    """Check one run of a list: it is there, unless it was deleted meanwhile."""
    try:
        return await _verify(store, run, seen)
    except (NotFound, Tampered) as error:
        if (number, run) not in await store.streams(after=number - 1, limit=1):
            return Verified(runs=0, events=0)  # with all that it shared, perhaps while it was read
        if isinstance(error, Tampered):
            raise
        raise Tampered(run=run, seq=1, reason="it is listed, and not there") from error


async def _verify(store: Store, run: str, seen: set[str]) -> Verified:
    """Check one run; blobs that were seen are not read again."""
    with _readable(run):
        head = await verify_run(store, run)
        await check_late(store, run)
        wrong = await store.check_rows(run)
        if wrong:
            raise Tampered(run=run, seq=head.seq, reason=f"its rows are not what its log says ({wrong[0]})")
        for blob in await store.references(run):
            if blob not in seen:
                await _check_blob(store, run, blob)
                seen.add(blob)
        await check_snapshots(store, run, Learned)
        is_talk = (await store.get(run)).type == "conversation"
    return Verified(runs=int(not is_talk), events=head.seq, conversations=int(is_talk))


async def _check_blob(store: Store, run: str, blob: str) -> None:
    """A blob is what its name says."""
    try:
        async for _ in store.read_blob(blob):
            pass
    except (BlobDamaged, NotFound, *UNREADABLE) as error:
        seq = await _first_with(store, run, blob)
        raise Tampered(run=run, seq=seq, reason=f"blob {blob}, which it refers to, is not intact ({error})") from error


async def _first_with(store: Store, run: str, blob: str) -> int:
    """The first event that refers to a blob; what came too late refers to it after the last."""
    seq = 0
    async for event in store.log(run):
        seq = event.seq
        if blob in blobs_of(store.decode(event)):
            break
    return seq


async def _check_head(store: Store, kept: LogEnd, *, gone: bool) -> None:
    """A log goes on behind where it ended once; one that was cut off or written anew does not hold that event."""
    try:
        with _readable(kept.run):
            found = await store.read(kept.run, after=kept.seq - 1, limit=1)
    except NotFound as error:
        if gone:
            return
        raise Tampered(run=kept.run, seq=kept.seq, reason="it is gone") from error
    if gone and [event.hash.hex() for event in found] != [kept.hash]:
        return  # another run has its id now
    if not found:
        raise Tampered(run=kept.run, seq=kept.seq, reason="its end was cut off")
    if found[0].hash.hex() != kept.hash:
        raise Tampered(run=kept.run, seq=kept.seq, reason="it was written anew")


async def _check_counts(store: Store) -> None:
    """How many runs of an agent there are is counted where no single run tells."""
    for wrong in await store.check_counts():
        raise Tampered(run=wrong.partition(" ")[0], seq=0, reason=f"its runs are not counted right ({wrong})")


async def _check_strays(store: Store) -> None:
    """Every row belongs to a run or a blob, and every slot to a run that may hold it."""
    for table, number, rows in await store.check_strays():
        reason = f"table {table} has {rows} rows that no log accounts for, under number {number}"
        raise Tampered(run=f"number {number}", seq=0, reason=reason)


async def _check_contracts(store: Store) -> None:
    """A contract is what its hash says, and of its agent and version.

    A run may name another one of the same version: contracts change while a version stays.
    """
    with _readable("contracts"):
        rows = await store.contracts()
    for row in rows:
        with _readable(row.agent):
            contract = parse(row.contract)
            said = contract if isinstance(contract, dict) else {}
            if digest(contract) != row.hash or (said.get("agent"), said.get("version")) != (row.agent, row.version):
                raise Tampered(run=row.agent, seq=0, reason=f"its contract {row.version} is not what its hash says")


def read_ends(path: Path, *, torn: bool = False) -> list[LogEnd]:
    """The ends of logs in a file; in one that is `torn`, a line that was cut off by a kill is passed over."""
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
        raise InvalidBundle(path=str(path), reason=f"it holds no heads ({error})") from error
    return found


async def _streams(store: Store) -> AsyncIterator[tuple[int, str]]:
    """Every run and conversation by number and id, the oldest first."""
    after = BEFORE_ALL
    while page := await store.streams(after=after):
        for after, run in page:
            yield after, run


@contextmanager
def _readable(run: str) -> Iterator[None]:
    """What cannot be read was not written so; nor was a fork without its origin.

    An event of a newer version, in a log whose hashes fit, is for a newer version to check: NewerVersion is raised.
    """
    try:
        yield
    except NotFound as error:
        if error.id == run:
            raise
        raise Tampered(run=run, seq=1, reason=f"{error.what} {error.id} is not there") from error
    except UNREADABLE as error:
        raise Tampered(run=run, seq=1, reason=f"its rows cannot be read ({error})") from error


@contextmanager
def _heard(bad: Callable[[LimpetError], object] | None) -> Iterator[None]:
    """What is wrong, or cannot be checked here, is told, if somebody listens."""
    try:
        yield
    except (Tampered, NewerVersion, DamagedEvent) as error:
        if bad is None:
            raise
        bad(error)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
