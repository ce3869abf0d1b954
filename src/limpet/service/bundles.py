"""Export runs to files, and import them: a zip of JSON lines and blobs that people can read and any store can load.

`manifest.json` contains the run's id and its head. `log.jsonl` has one event per line, exactly as stored, so that its
hashes can be checked. `blobs/` contains the blobs that events refer to, by name. A fork includes the runs whose events
it shares, each as a file in `origins/`; a run with a conversation includes that conversation. With handoffs, the runs
that it called are included, each with its own manifest in a folder of `called/`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any
from zipfile import ZipFile

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import replace

from limpet.engine.run.conversation import conversation_of
from limpet.errors import IdConflict, InvalidBundle, NotFound, Tampered
from limpet.events import PLAIN, START, VOCABULARY, AnyBody, Codec, Event, blobs_of, seal, verify
from limpet.events import bodies as b
from limpet.events.values import encode
from limpet.service.archives import LEVEL, MAX_BYTES, compression_of, unpacking
from limpet.service.progress import progress
from limpet.service.verify import LogEnd, Verified, verify_one
from limpet.stores import Inline, RunRow, Store
from limpet.stores.blobs import pack_blob
from limpet.stores.memory import MemoryBackend

__all__ = ["Bundle", "export_run", "load_run", "read_bundle", "verify_bundle"]

FORMAT = 1
# A number that every database can store.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Manifest(Struct, frozen=True, kw_only=True):
    """Contents of a bundle."""

    format: int
    run: str
    seq: int
    hash: str
    origins: tuple[LogEnd, ...] = ()
    """For a fork: heads of the runs whose events it shares, the nearest last."""
    talks: tuple[LogEnd, ...] = ()
    """Heads of the conversations whose events its conversation shares, then of that conversation itself."""
    called: tuple[str, ...] = ()
    """Runs that it called, and that these called, if they are included."""


class EventLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event as one line."""

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
    """The body as stored, if it is JSON."""
    packed: bytes | None = None
    """The body as stored, if it is compressed or encrypted."""
    hash: bytes

    @classmethod
    def of(cls, event: Event) -> "EventLine":
        """Return the line of an event."""
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
        """Return the event of a line."""
        envelope = (self.run, self.seq, self.time, self.kind, self.version, self.fence, self.actor, self.codec)
        body = self.packed or b"" if isinstance(self.body, UnsetType) else bytes(self.body)
        return Event(*envelope, self.key_id, body, self.hash)


class Bundle(Struct, frozen=True):
    """A run read from a file."""

    events: tuple[Event, ...]
    """The whole log; for a fork, including the shared events."""
    blobs: dict[str, bytes]
    origins: tuple[tuple[Event, ...], ...] = ()
    """Own events of the runs whose events it shares, the nearest last."""
    talks: tuple[tuple[Event, ...], ...] = ()
    """The same for its conversation, which is the last one; empty if it has none."""
    called: "tuple[Bundle, ...]" = ()
    """The runs that it called, and that these called, if they are included."""

    @property
    def own(self) -> tuple[Event, ...]:
        """Events of the run that are not shared."""
        return tuple(event for event in self.events if event.run == self.events[-1].run)


async def export_run(store: Store, run: str, path: Path, *, with_handoffs: bool = False) -> LogEnd:
    """Write a run to a file, and return its head in the store. With handoffs, the runs that it called are included."""
    bundle, end = await _collect(store, run)
    if with_handoffs:
        bundle = replace(bundle, called=tuple([each async for each in _called(store, bundle)]))
    await asyncio.to_thread(_write, path, bundle)
    return end


async def _called(store: Store, bundle: Bundle) -> AsyncIterator[Bundle]:
    """Yield the runs that a run called, and that these called. Runs that were deleted since are left out."""
    wanted, seen = [bundle], {bundle.events[-1].run}
    while wanted:
        for event in wanted.pop(0).events:
            body = event.decode(PLAIN)
            if isinstance(body, b.AgentCalled) and body.mode != "notify" and body.run not in seen:
                seen.add(body.run)
                with suppress(NotFound):
                    found, _ = await _collect(store, body.run)
                    wanted.append(found)
                    yield found


async def _collect(store: Store, run: str) -> tuple[Bundle, LogEnd]:
    """Read a run with everything that it refers to, and its head in the store.

    Keys stay in the store: the bundle contains plain text, and its events are sealed again.
    """
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
    return _recoded(bundle, store.codec, PLAIN) if store.codec.is_private else bundle, LogEnd.of(events)


async def _counted(events: AsyncIterator[Event], total: int) -> AsyncIterator[Event]:
    async for event in events:
        progress(event.seq, total)
        yield event


def _recoded(bundle: Bundle, old: Codec, new: Codec) -> Bundle:
    """Return the same logs with another codec, which changes their hashes and the names of blobs."""
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
    """Seal logs again, each of which shares a prefix of the one before. Returns their own events, and the last log as a
    whole.
    """
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
    """Return a body that refers to blobs by their new names."""
    data, kind = encode(body), VOCABULARY.kind_of(body)
    for name in blobs_of(body):
        data = data.replace(name.encode(), names[name].encode())
    return VOCABULARY.decode(kind.name, kind.version, data)


async def _origins(store: Store, row: RunRow) -> AsyncIterator[tuple[Event, ...]]:
    """Yield the own events of the runs whose events a run shares, the nearest last."""
    if row.origin is None:
        return
    origin = await store.get(row.origin)
    async for each in _origins(store, origin):
        yield each
    own = store.log(origin.id, after=origin.origin_at or 0)
    yield tuple([event async for event in own if event.seq <= origin.seq])


async def _talks(store: Store, row: RunRow) -> AsyncIterator[tuple[Event, ...]]:
    """Yield the own events of a run's conversation, after those of the conversations whose events it shares."""
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
    with ZipFile(path, "w", compresslevel=LEVEL) as file:
        _write_bundle(file, bundle, "")
        for each in bundle.called:
            _write_bundle(file, each, f"called/{each.events[-1].run}/")


def _write_bundle(file: ZipFile, bundle: Bundle, folder: str) -> None:
    head = LogEnd.of(bundle.events)
    ends, talks = (tuple(LogEnd.of(log) for log in logs) for logs in (bundle.origins, bundle.talks))
    manifest = Manifest(
        format=FORMAT,
        run=head.run,
        seq=head.seq,
        hash=head.hash,
        origins=ends,
        talks=talks,
        called=tuple(each.events[-1].run for each in bundle.called),
    )
    _write_entry(file, f"{folder}manifest.json", msgspec.json.encode(manifest))
    _write_entry(file, f"{folder}log.jsonl", _lines(bundle.events))
    for end, origin in zip(ends, bundle.origins, strict=True):
        _write_entry(file, f"{folder}origins/{end.run}.jsonl", _lines(origin))
    for end, talk in zip(talks, bundle.talks, strict=True):
        _write_entry(file, f"{folder}conversations/{end.run}.jsonl", _lines(talk))
    for name, data in bundle.blobs.items():
        _write_entry(file, f"{folder}blobs/{name}", data)


def _write_entry(file: ZipFile, name: str, data: bytes) -> None:
    file.writestr(name, data, compression_of(data))


def _lines(events: Sequence[Event]) -> bytes:
    return b"".join(msgspec.json.encode(EventLine.of(event)) + b"\n" for event in events)


def _events(lines: bytes) -> tuple[Event, ...]:
    return tuple(msgspec.json.decode(line, type=EventLine).event() for line in BytesIO(lines))


async def read_bundle(path: Path, max_bytes: int = MAX_BYTES) -> Bundle:
    """Read a file. Raises InvalidBundle if it is not a bundle, or would unpack to more than `max_bytes`."""
    return await asyncio.to_thread(_read, path, max_bytes)


def _read(path: Path, max_bytes: int) -> Bundle:
    with unpacking(path, max_bytes) as file:
        bundle, called = _read_bundle(file, path, "")
        others = [_read_bundle(file, path, f"called/{run}/") for run in called]
    return replace(bundle, called=tuple(each for each, _ in others))


def _read_bundle(file: ZipFile, path: Path, folder: str) -> tuple[Bundle, tuple[str, ...]]:
    """Return a run in a folder of a file, and which runs it called are in the file."""
    manifest = msgspec.json.decode(file.read(f"{folder}manifest.json"), type=Manifest)
    if folder and folder != f"called/{manifest.run}/":
        raise InvalidBundle(path=str(path), reason=f"{folder} contains run {manifest.run}")
    if manifest.format != FORMAT:
        raise InvalidBundle(path=str(path), reason=f"unknown format {manifest.format}; this version reads {FORMAT}")
    events = _events(file.read(f"{folder}log.jsonl"))
    origins = tuple(_events(file.read(f"{folder}origins/{end.run}.jsonl")) for end in manifest.origins)
    talks = tuple(_events(file.read(f"{folder}conversations/{end.run}.jsonl")) for end in manifest.talks)
    names = [name for name in file.namelist() if name.startswith(f"{folder}blobs/")]
    blobs = {name.removeprefix(f"{folder}blobs/"): file.read(name) for name in names}
    head = LogEnd(run=manifest.run, seq=manifest.seq, hash=manifest.hash)
    ends, logs = (*manifest.origins, *manifest.talks, head), (*origins, *talks, events)
    for end, log in zip(ends, logs, strict=True):
        if not log or LogEnd.of(log) != end:
            raise InvalidBundle(path=str(path), reason=f"the log of {end.run} does not end at the head in the manifest")
    return Bundle(events, blobs, origins, talks), manifest.called


async def load_run(store: Store, path: Path, actor: str, max_bytes: int = MAX_BYTES) -> RunRow:
    """Import a run from a file, and the runs whose events it shares, as far as the store does not have them."""
    bundle = await read_bundle(path, max_bytes)
    for each in (*bundle.called, bundle):
        _verify_logs(each)
    for each in bundle.called:
        await _load(store, each, actor)
    return await _load(store, bundle, actor)


async def _load(store: Store, bundle: Bundle, actor: str) -> RunRow:
    _verify_logs(bundle)
    if store.codec.is_private and not any(event.key_id for event in bundle.events):
        bundle = _recoded(bundle, PLAIN, store.codec)
    cuts = [log[0].seq - 1 for log in (*bundle.origins, bundle.own)[1:]]
    known = [await _has_log(store, origin, cut) for origin, cut in zip(bundle.origins, cuts, strict=True)]
    end = bundle.own[-1]
    if await _has_log(store, bundle.own, end.seq):
        return await store.get(end.run)
    for number, data in enumerate(bundle.blobs.values(), 1):
        await store.put_blob(data)
        progress(number, len(bundle.blobs))
    for talk in bundle.talks:
        if not await _has_log(store, talk, talk[-1].seq):
            await store.load(talk, actor=actor)
    for origin, is_known in zip(bundle.origins, known, strict=True):
        if not is_known:
            await store.load(origin, actor=actor)
    return await store.load(bundle.own, actor=actor)


def _verify_logs(bundle: Bundle) -> None:
    """Verify all logs before any of them is stored."""
    line: list[Event] = []
    for logs in (bundle.talks, (*bundle.origins, bundle.own)):
        line = []
        for log in logs:
            line = [*line[: log[0].seq - 1], *log]
            verify(line)
    if tuple(line) != bundle.events:
        raise Tampered(run=bundle.events[-1].run, seq=1, reason="the shared events differ from those of its origins")


async def verify_bundle(path: Path, max_bytes: int = MAX_BYTES) -> Verified:
    """Verify a file on its own: its logs against their hashes, its blobs against their names. Raises Tampered."""
    bundle = await read_bundle(path, max_bytes)
    found = [await _verify_bundle(each) for each in (bundle, *bundle.called)]
    return Verified(runs=sum(each.runs for each in found), events=sum(each.events for each in found))


async def _verify_bundle(bundle: Bundle) -> Verified:
    _verify_logs(bundle)
    if any(event.key_id for event in bundle.events):  # Without the keys, only hashes can be checked.
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


async def _has_log(store: Store, log: Sequence[Event], seq: int) -> bool:
    """Return whether a store has exactly this log up to an event, possibly with more events after it."""
    run, mine = log[-1].run, [event for event in log if event.seq == seq]
    try:
        found = await store.read(run, after=seq - 1, limit=1)
    except NotFound:
        return False
    if mine and [_identity(store, event) for event in found] != [_identity(store, event) for event in mine]:
        agent = (await store.get(run)).agent
        raise IdConflict(what="run", id=run, reason=f"by agent {agent!r} with a different log")
    return True


def _identity(store: Store, event: Event) -> tuple[object, ...]:
    """Return what identifies an event: its hash, or its content if encryption gives it another hash each time."""
    return (event.time, event.fence, store.decode(event)) if store.codec.is_private else (event.hash,)
