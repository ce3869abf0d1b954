"""Whether what is stored is what was written: each log against its own hashes, its rows against the log, and its end
against heads that were kept elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from limpet.errors import InvalidBundle, NotFound, Tampered
from limpet.journal import verify_run
from limpet.stores import RunRow, Store

__all__ = ["Verified", "save_heads", "verify_all", "verify_one"]

PAGE = 1000


class Kept(Struct, frozen=True, kw_only=True):
    """Where a log ended once."""

    run: str
    seq: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What was looked at, and found whole."""

    runs: int
    events: int
    heads: int = 0
    """How many were held against a head that was kept elsewhere."""

    def __str__(self) -> str:
        against = f", {self.heads} against heads that were kept" if self.heads else ""
        return f"{self.runs} runs with {self.events} events are whole{against}"


async def verify_one(store: Store, run: str) -> Verified:
    """Check one run; raises Tampered with the first event, or the first row, that is not as it was written."""
    head = await verify_run(store, run)
    wrong = await store.check_rows(run)
    if wrong:
        raise Tampered(run=run, seq=head.seq, reason=f"its rows are not what its log says ({wrong[0]})")
    return Verified(runs=1, events=head.seq)


async def verify_all(
    store: Store, heads: Path | None = None, told: Callable[[int], object] = lambda _: None
) -> Verified:
    """Check every run, and where its log ended once; `told` hears how many are done."""
    runs = events = 0
    async for row in _rows(store):
        events += (await verify_one(store, row.id)).events
        runs += 1
        told(runs)
    kept = [] if heads is None else await asyncio.to_thread(_read, heads)
    for each in kept:
        await _check_head(store, each)
    return Verified(runs=runs, events=events, heads=len(kept))


async def save_heads(store: Store, path: Path) -> int:
    """Write where every log ends now, for keeping elsewhere; how many."""
    kept = [Kept(run=row.id, seq=row.seq, hash=row.hash.hex()) async for row in _rows(store)]
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in kept)
    await asyncio.to_thread(path.write_bytes, lines)
    return len(kept)


async def _check_head(store: Store, kept: Kept) -> None:
    """A log goes on behind where it ended once; one that was cut off or written anew does not hold that event."""
    try:
        await store.get(kept.run)
    except NotFound as error:
        raise Tampered(run=kept.run, seq=kept.seq, reason="it is gone") from error
    found = await store.read(kept.run, after=kept.seq - 1, limit=1)
    if not found:
        raise Tampered(run=kept.run, seq=kept.seq, reason="its end was cut off")
    if found[0].hash.hex() != kept.hash:
        raise Tampered(run=kept.run, seq=kept.seq, reason="it was written anew")


def _read(path: Path) -> list[Kept]:
    try:
        return [msgspec.json.decode(line, type=Kept) for line in path.read_bytes().splitlines()]
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidBundle(path=str(path), reason=f"it holds no heads ({error})") from error


async def _rows(store: Store) -> AsyncIterator[RunRow]:
    before = None
    while True:
        page = await store.runs(before=before, limit=PAGE)
        for row in page.rows:
            yield row
        if (before := page.next) is None:
            return
