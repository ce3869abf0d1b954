"""Runs in files: a zip of JSON lines and blobs, readable by people, that any store takes in.

`manifest.json` says which run it is and where its log ends; `log.jsonl` has an event on each line, exactly as it was
stored, so that its hashes can be checked; `blobs/` has what events refer to, each under its name. With a fork come the
runs whose beginnings it shares, each in a file of `origins/`; with a run that talks, its conversation.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any
from zipfile import ZipFile

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from limpet.engine.run.conversation import conversation_of
from limpet.errors import IdConflict, InvalidBundle, NotFound, Tampered
from limpet.events import PLAIN, START, VOCABULARY, AnyBody, Codec, Event, blobs_of, seal, verify
from limpet.events.values import encode
from limpet.service.archives import LEVEL, MAX_BYTES, compression_of, unpacking
from limpet.service.progress import progress
from limpet.service.verify import LogEnd, Verified, verify_one
from limpet.stores import Inline, RunRow, Store
from limpet.stores.blobs import pack_blob
from limpet.stores.memory import MemoryBackend

__all__ = ["Bundle", "export_run", "load_run", "read_bundle", "verify_bundle"]

FORMAT = 1
# What every database can hold.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Manifest(Struct, frozen=True, kw_only=True):
    """What a bundle holds."""

    format: int
    run: str
    seq: int
    hash: str
    origins: tuple[LogEnd, ...] = ()
    """Of a fork: where the logs of those end whose beginnings it shares, the nearest last."""
    talks: tuple[LogEnd, ...] = ()
    """Where its conversation ends, after those whose beginnings that shares."""


class EventLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event, as one line."""

    run: str
    seq: Count
    time: Count
    kind: str
    version: Count
    fence: Count
    actor: str
    codec: str
    key_id: str = ""
    body: Raw | UnsetType = UNSET
    """As it was stored, if that is JSON."""
    packed: bytes | None = None
    """As it was stored, if it was compressed or encrypted."""
    hash: bytes

    @classmethod
    def of(cls, event: Event) -> "EventLine":
        """The line of an event."""
        is_json = event.codec == "json"
        return cls(
            run=event.run,
            seq=event.seq,
            time=event.time,
            kind=event.kind,
            version=event.version,
            fence=event.fence,
            actor=event.actor,
            codec=event.codec,
            key_id=event.key_id,
            body=Raw(event.body) if is_json else UNSET,
            packed=None if is_json else event.body,
            hash=event.hash,
        )

    def event(self) -> Event:
        """The event of a line."""
        envelope = (self.run, self.seq, self.time, self.kind, self.version, self.fence, self.actor, self.codec)
        body = self.packed or b"" if isinstance(self.body, UnsetType) else bytes(self.body)
        return Event(*envelope, self.key_id, body, self.hash)


class Bundle(Struct, frozen=True):
    """A run out of a file."""

    events: tuple[Event, ...]
    """The whole log; of a fork, with what it shares."""
    blobs: dict[str, bytes]
    origins: tuple[tuple[Event, ...], ...] = ()
    """The own events of those whose beginnings it shares, the nearest last."""
    talks: tuple[tuple[Event, ...], ...] = ()
    """The same of its conversation, with that itself at the end; nothing if it is in none."""

    @property
    def own(self) -> tuple[Event, ...]:
        """What it does not share."""
        return tuple(event for event in self.events if event.run == self.events[-1].run)


async def export_run(store: Store, run: str, path: Path) -> LogEnd:
    """Write a run to a file; where its log ends there."""
    row = await store.get(run)
    events = tuple([event async for event in _counted(store.log(run), row.seq) if event.seq <= row.seq])
    origins = tuple([origin async for origin in _origins(store, row)])
    talks = tuple([talk async for talk in _talks(store, row)])
    names = {name for log in (events, *origins, *talks) for event in log for name in blobs_of(store.decode(event))}
    blobs: dict[str, bytes] = {}
    for name in sorted(names):
        blobs[name] = b"".join([part async for part in store.read_blob(name)])
        progress(len(blobs), len(names))
    bundle = Bundle(events, blobs, origins, talks)
    if store.codec.is_private:  # its keys stay where they are: what leaves is plain text, and sealed anew
        bundle = _recoded(bundle, store.codec, PLAIN)
    await asyncio.to_thread(_write, path, bundle)
    return LogEnd.of(events)


async def _counted(events: AsyncIterator[Event], total: int) -> AsyncIterator[Event]:
    async for event in events:
        progress(event.seq, total)
        yield event


def _recoded(bundle: Bundle, old: Codec, new: Codec) -> Bundle:
    """The same logs under another codec: their hashes are others, and so are the names of blobs."""
    names = {name: pack_blob(new, data).id for name, data in bundle.blobs.items()}

    def renamed(event: Event) -> AnyBody:
        return _renamed(event.decode(old), names)

    owns, line = _resealed((*bundle.origins, bundle.own), renamed, new)
    talks, _ = _resealed(bundle.talks, renamed, new)
    blobs = {names[name]: data for name, data in bundle.blobs.items()}
    return Bundle(tuple(line), blobs, owns[:-1], talks)


def _resealed(
    logs: Sequence[Sequence[Event]], body_of: Callable[[Event], AnyBody], codec: Codec
) -> tuple[tuple[tuple[Event, ...], ...], list[Event]]:
    """Logs of which each shares the beginning of the one before, sealed anew: their own events, and the last whole."""
    line: list[Event] = []
    owns: list[tuple[Event, ...]] = []
    for log in logs:
        bodies = [body_of(event) for event in log]
        line = line[: log[0].seq - 1]
        head = line[-1].head if line else START
        own: list[Event] = []
        for event, body in zip(log, bodies, strict=True):
            place: Any = {"time": event.time, "fence": event.fence, "actor": event.actor}
            own.append(seal(head, event.run, body, codec=codec, **place).event)
            head = own[-1].head
        owns.append(tuple(own))
        line += own
    return tuple(owns), line


def _renamed(body: AnyBody, names: Mapping[str, str]) -> AnyBody:
    """A body that refers to blobs by their other names."""
    data, kind = encode(body), VOCABULARY.kind_of(body)
    for name in blobs_of(body):
        data = data.replace(name.encode(), names[name].encode())
    return VOCABULARY.decode(kind.name, kind.version, data)


async def _origins(store: Store, row: RunRow) -> AsyncIterator[tuple[Event, ...]]:
    """The own events of those whose beginnings a run shares, the nearest last."""
    if row.origin is None:
        return
    origin = await store.get(row.origin)
    async for each in _origins(store, origin):
        yield each
    own = store.log(origin.id, after=origin.origin_at or 0)
    yield tuple([event async for event in own if event.seq <= origin.seq])


async def _talks(store: Store, row: RunRow) -> AsyncIterator[tuple[Event, ...]]:
    """The own events of a run's conversation, after those of what that shares the beginning of."""
    for name in filter(None, (row.conversation, conversation_of(row.id))):
        try:
            talk = await store.get(name)
        except NotFound:
            continue
        async for each in _origins(store, talk):
            yield each
        own = store.log(talk.id, after=talk.origin_at or 0)
        yield tuple([event async for event in own if event.seq <= talk.seq])
        return


def _write(path: Path, bundle: Bundle) -> None:
    head = LogEnd.of(bundle.events)
    ends, talks = (tuple(LogEnd.of(log) for log in logs) for logs in (bundle.origins, bundle.talks))
    manifest = Manifest(format=FORMAT, run=head.run, seq=head.seq, hash=head.hash, origins=ends, talks=talks)
    part = path.with_name(f"{path.name}.part")
    try:
        with ZipFile(part, "w", compresslevel=LEVEL) as file:
            _put(file, "manifest.json", msgspec.json.encode(manifest))
            _put(file, "log.jsonl", _lines(bundle.events))
            for end, origin in zip(ends, bundle.origins, strict=True):
                _put(file, f"origins/{end.run}.jsonl", _lines(origin))
            for end, talk in zip(talks, bundle.talks, strict=True):
                _put(file, f"conversations/{end.run}.jsonl", _lines(talk))
            for name, data in bundle.blobs.items():
                _put(file, f"blobs/{name}", data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _put(file: ZipFile, name: str, data: bytes) -> None:
    file.writestr(name, data, compression_of(data))


def _lines(events: Sequence[Event]) -> bytes:
    return b"".join(msgspec.json.encode(EventLine.of(event)) + b"\n" for event in events)


def _events(lines: bytes) -> tuple[Event, ...]:
    return tuple(msgspec.json.decode(line, type=EventLine).event() for line in BytesIO(lines))


async def read_bundle(path: Path, max_bytes: int = MAX_BYTES) -> Bundle:
    """What a file holds; raises InvalidBundle for one that is none, or that would unpack to more."""
    return await asyncio.to_thread(_read, path, max_bytes)


def _read(path: Path, max_bytes: int) -> Bundle:
    with unpacking(path, max_bytes) as bundle:
        manifest = msgspec.json.decode(bundle.read("manifest.json"), type=Manifest)
        if manifest.format != FORMAT:
            raise InvalidBundle(path=str(path), reason=f"its format is {manifest.format}, and {FORMAT} is known")
        events = _events(bundle.read("log.jsonl"))
        origins = tuple(_events(bundle.read(f"origins/{end.run}.jsonl")) for end in manifest.origins)
        talks = tuple(_events(bundle.read(f"conversations/{end.run}.jsonl")) for end in manifest.talks)
        names = [name for name in bundle.namelist() if name.startswith("blobs/")]
        blobs = {name.removeprefix("blobs/"): bundle.read(name) for name in names}
    head = LogEnd(run=manifest.run, seq=manifest.seq, hash=manifest.hash)
    ends, logs = (*manifest.origins, *manifest.talks, head), (*origins, *talks, events)
    for end, log in zip(ends, logs, strict=True):
        if not log or LogEnd.of(log) != end:
            raise InvalidBundle(path=str(path), reason=f"the log of {end.run} does not end as it says")
    return Bundle(events, blobs, origins, talks)


async def load_run(store: Store, path: Path, actor: str, max_bytes: int = MAX_BYTES) -> RunRow:
    """Take a run from a file, with those whose beginnings it shares, as far as they are not here."""
    return await _load(store, await read_bundle(path, max_bytes), actor)


async def _load(store: Store, bundle: Bundle, actor: str) -> RunRow:
    _verify_logs(bundle)
    if store.codec.is_private and not any(event.key_id for event in bundle.events):
        bundle = _recoded(bundle, PLAIN, store.codec)
    cuts = [log[0].seq - 1 for log in (*bundle.origins, bundle.own)[1:]]
    known = [await _is_here(store, origin, cut) for origin, cut in zip(bundle.origins, cuts, strict=True)]
    end = bundle.own[-1]
    if await _is_here(store, bundle.own, end.seq):
        return await store.get(end.run)
    for number, data in enumerate(bundle.blobs.values(), 1):
        await store.put_blob(data)
        progress(number, len(bundle.blobs))
    for talk in bundle.talks:
        if not await _is_here(store, talk, talk[-1].seq):
            await store.load(talk, actor=actor)
    for origin, is_known in zip(bundle.origins, known, strict=True):
        if not is_known:
            await store.load(origin, actor=actor)
    return await store.load(bundle.own, actor=actor)


def _verify_logs(bundle: Bundle) -> None:
    """Check every log before anything of them is stored."""
    line: list[Event] = []
    for logs in (bundle.talks, (*bundle.origins, bundle.own)):
        line = []
        for log in logs:
            line = [*line[: log[0].seq - 1], *log]
            verify(line)
    if tuple(line) != bundle.events:
        raise Tampered(run=bundle.events[-1].run, seq=1, reason="what it shares is not what its origins say")


async def verify_bundle(path: Path, max_bytes: int = MAX_BYTES) -> Verified:
    """Check a file by itself: its logs against their hashes, its blobs against their names; raises Tampered."""
    bundle = await read_bundle(path, max_bytes)
    _verify_logs(bundle)
    if any(event.key_id for event in bundle.events):  # without the keys, hashes are all that can be checked
        return Verified(runs=1, events=len(bundle.events))
    async with Store(MemoryBackend(), Inline()) as store:
        row = await _load(store, bundle, "verify")
        names = {name for event in bundle.events for name in blobs_of(store.decode(event))}
        for name in sorted(names):
            async for _ in store.read_blob(name):
                pass
        for run in (*(origin[-1].run for origin in bundle.origins), row.id):
            await verify_one(store, run)
    return Verified(runs=1 + len(bundle.origins), events=len(bundle.events))


async def _is_here(store: Store, log: Sequence[Event], seq: int) -> bool:
    """Whether a store has this very log up to an event, perhaps longer by now."""
    run, mine = log[-1].run, [event for event in log if event.seq == seq]
    try:
        found = await store.read(run, after=seq - 1, limit=1)
    except NotFound:
        return False
    if mine and [_essence(store, event) for event in found] != [_essence(store, event) for event in mine]:
        agent = (await store.get(run)).agent
        raise IdConflict(what="run", id=run, reason=f"by agent {agent!r} with another log")
    return True


def _essence(store: Store, event: Event) -> tuple[object, ...]:
    """What makes two events the same: their hashes, but where they are encrypted anew each time."""
    return (event.time, event.fence, store.decode(event)) if store.codec.is_private else (event.hash,)
