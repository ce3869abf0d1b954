"""Runs in files: a zip of JSON lines and blobs, readable by people, that any store takes in.

`manifest.json` says which run it is and where its log ends; `log.jsonl` has an event on each line, exactly as it was
stored, so that its hashes can be checked; `blobs/` has what events refer to, each under its name.
"""

import asyncio
from pathlib import Path
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from limpet.errors import InvalidBundle
from limpet.events import Event, blobs_of
from limpet.stores import RunRow, Store

__all__ = ["Bundle", "export_run", "load_run", "read_bundle"]

FORMAT = 1


class Manifest(Struct, frozen=True, kw_only=True):
    """What a bundle holds."""

    format: int
    run: str
    seq: int
    hash: str


class Line(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event, as one line."""

    run: str
    seq: int
    time: int
    kind: str
    version: int
    fence: int
    actor: str
    codec: str
    key_id: str = ""
    body: Raw | UnsetType = UNSET
    """As it was stored, if that is JSON."""
    packed: bytes | None = None
    """As it was stored, if it was compressed or encrypted."""
    hash: bytes

    @classmethod
    def of(cls, event: Event) -> "Line":
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
    blobs: dict[str, bytes]


async def export_run(store: Store, run: str, path: Path) -> None:
    """Write a run to a file."""
    row = await store.get(run)
    events = [event async for event in store.log(run) if event.seq <= row.seq]
    names = {name for event in events for name in blobs_of(store.decode(event))}
    blobs = {name: b"".join([part async for part in store.read_blob(name)]) for name in sorted(names)}
    await asyncio.to_thread(_write, path, events, blobs)


def _write(path: Path, events: list[Event], blobs: dict[str, bytes]) -> None:
    head = events[-1]
    manifest = Manifest(format=FORMAT, run=head.run, seq=head.seq, hash=head.hash.hex())
    part = path.with_name(f"{path.name}.part")
    with ZipFile(part, "w", ZIP_DEFLATED) as bundle:
        bundle.writestr("manifest.json", msgspec.json.encode(manifest))
        bundle.writestr("log.jsonl", b"".join(msgspec.json.encode(Line.of(event)) + b"\n" for event in events))
        for name, data in blobs.items():
            bundle.writestr(f"blobs/{name}", data)
    part.replace(path)


async def read_bundle(path: Path) -> Bundle:
    """What a file holds; raises InvalidBundle for one that is none."""
    return await asyncio.to_thread(_read, path)


def _read(path: Path) -> Bundle:
    try:
        with ZipFile(path) as bundle:
            manifest = msgspec.json.decode(bundle.read("manifest.json"), type=Manifest)
            if manifest.format != FORMAT:
                raise InvalidBundle(path=str(path), reason=f"its format is {manifest.format}, and {FORMAT} is known")
            lines = bundle.read("log.jsonl").splitlines()
            events = tuple(msgspec.json.decode(line, type=Line).event() for line in lines)
            names = [name for name in bundle.namelist() if name.startswith("blobs/")]
            blobs = {name.removeprefix("blobs/"): bundle.read(name) for name in names}
    except (OSError, BadZipFile, KeyError, msgspec.MsgspecError) as error:
        raise InvalidBundle(path=str(path), reason=f"{type(error).__name__}: {error}") from error
    if not events or (events[-1].run, events[-1].hash.hex()) != (manifest.run, manifest.hash):
        raise InvalidBundle(path=str(path), reason="its log does not end as it says")
    return Bundle(events, blobs)


async def load_run(store: Store, path: Path, actor: str) -> RunRow:
    """Take a run from a file."""
    bundle = await read_bundle(path)
    for data in bundle.blobs.values():
        await store.put_blob(data)
    return await store.load(bundle.events, actor=actor)
