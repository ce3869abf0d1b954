"""Every edit of a single event is found, and the first wrong event is named."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from limpet import Tampered
from limpet.events import START, Event, Head, seal
from limpet.service.app import App
from tests.behaviour.tampering.conftest import app_at
from tests.behaviour.tampering.edit_rows import PostgresRowEditor, RowEditor, SqliteRowEditor
from tests.behaviour.tampering.filled_store import fill_store, single_process

FIELDS = "time, kind, version, fence, actor, codec, key_id, body, hash"
FAR = 9_999


@dataclass(frozen=True)
class EventPlace:
    """One event of a stream's own log, and its row."""

    run: str
    number: int
    seq: int
    last: int
    """Last sequence of its log."""
    event: Event
    strange: Event
    """An event of another stream."""

    @property
    def here(self) -> str:
        return f"WHERE run = {self.number} AND seq = {self.seq}"

    def after(self, seq: int) -> int:
        """Return the first wrong sequence if this event changes: `seq`, or this event if it is the last."""
        return seq if self.seq < self.last else self.seq


Edit = Callable[[RowEditor, EventPlace], int]
"""Edits an event, and returns the sequence of the first wrong event."""


def delete(editor: RowEditor, at: EventPlace) -> int:
    editor.run(f"DELETE FROM {{events}} {at.here}")
    return at.after(at.seq + 1)


def swap(editor: RowEditor, at: EventPlace) -> int:
    if at.seq == at.last:
        return number(editor, at)
    for was, becomes in ((at.seq, FAR), (at.seq + 1, at.seq), (FAR, at.seq + 1)):
        editor.run(f"UPDATE {{events}} SET seq = {becomes} WHERE run = {at.number} AND seq = {was}")
    return at.seq


def number(editor: RowEditor, at: EventPlace) -> int:
    editor.run(f"UPDATE {{events}} SET seq = {FAR} {at.here}")
    return at.seq + 1 if at.seq < at.last else FAR


def repeat(editor: RowEditor, at: EventPlace) -> int:
    _make_room(editor, at)
    _insert(editor, at.number, at.seq + 1, at.event)
    return at.seq + 1


def forge(editor: RowEditor, at: EventPlace) -> int:
    """Insert a correctly sealed event; the events after it no longer fit."""
    _make_room(editor, at)
    body = at.strange.decode() if not at.event.key_id else None
    assert body is not None
    forged = seal(at.event.head, at.run, body, time=at.event.time, fence=at.event.fence, actor="eve").event
    _insert(editor, at.number, at.seq + 1, forged)
    return at.seq + 2 if at.seq < at.last else at.seq + 1


def replace(editor: RowEditor, at: EventPlace) -> int:
    values = [getattr(at.strange, name) for name in FIELDS.split(", ")]
    said = ", ".join(f"{name} = ?" for name in FIELDS.split(", "))
    editor.run(f"UPDATE {{events}} SET {said} {at.here}", *values)
    return at.seq


def changes_field(field: str, change: Callable[[Any], Any]) -> Edit:
    """Return an edit that changes one field."""

    def edit(editor: RowEditor, at: EventPlace) -> int:
        before = getattr(at.event, field)
        after = change(before)
        assert after != before
        editor.run(f"UPDATE {{events}} SET {field} = ? {at.here}", after)
        return at.seq

    edit.__name__ = f"another_{field}"
    return edit


def _other_kind(kind: str) -> str:
    return "risk.flagged" if kind != "risk.flagged" else "run.completed"


def _other_byte(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


EDITS: list[Edit] = [
    delete,
    swap,
    number,
    repeat,
    forge,
    replace,
    changes_field("time", lambda time: time + 1),
    changes_field("time", lambda time: time - 1),
    changes_field("kind", _other_kind),
    changes_field("version", lambda version: version + 1),
    changes_field("fence", lambda fence: fence + 1),
    changes_field("actor", lambda actor: f"{actor}x"),
    changes_field("codec", lambda codec: f"{codec}+z"),
    changes_field("key_id", lambda key: f"{key}x"),
    changes_field("body", _other_byte),
    changes_field("body", lambda body: body + b" "),
    changes_field("hash", _other_byte),
]


def _make_room(editor: RowEditor, at: EventPlace) -> None:
    """Increment the sequence of every later event."""
    later = f"WHERE run = {at.number} AND seq >"
    editor.run(f"UPDATE {{events}} SET seq = seq + {FAR} {later} {at.seq}")
    editor.run(f"UPDATE {{events}} SET seq = seq - {FAR - 1} {later} {FAR}")


def _insert(editor: RowEditor, number: int, seq: int, event: Event) -> None:
    values = [number, seq, *(getattr(event, name) for name in FIELDS.split(", "))]
    editor.run(f"INSERT INTO {{events}} (run, seq, {FIELDS}) VALUES ({', '.join('?' * len(values))})", *values)


async def own_events(app: App, every: int = 1) -> list[EventPlace]:
    """Return the events of all streams, with their rows."""
    logs: dict[str, list[Event]] = {}
    for _, run in await app.store.streams():
        logs[run] = [event async for event in app.store.log(run) if event.run == run]
    numbers = {run: number for number, run in await app.store.streams()}
    runs = list(logs)
    found = []
    for place, (run, log) in enumerate(logs.items()):
        others = logs[runs[place - 1]]
        for event in log:
            strange = others[event.seq % len(others)]
            found.append(EventPlace(run, numbers[run], event.seq, log[-1].seq, event, strange))
    return found[::every]


async def tampered_event(app: App, run: str) -> tuple[str, int]:
    """Return the run and sequence that `verify` reports."""
    with pytest.raises(Tampered) as error:
        await app.verify(run)
    return error.value.run, error.value.seq


def edited_events(
    places: Iterable[EventPlace], editor: RowEditor, edits: list[Edit]
) -> Iterator[tuple[EventPlace, int, str]]:
    """Yield after each edit of each event, and undo it afterwards."""
    editor.copy("events")
    for at in places:
        for edit in edits:
            with editor.changed("events"):
                yield at, edit(editor, at), f"{edit.__name__} {at.run} {at.seq} {at.event.kind}"


async def test_verify_finds_every_edit_of_every_event(app: App, editor: SqliteRowEditor, full: bool) -> None:
    """Deleted, swapped, renumbered, repeated, forged, replaced, or changed in any field."""
    places = await own_events(app, 1 if full else 9)
    edits = 0
    for at, seq, what in edited_events(places, editor, EDITS):
        assert await tampered_event(app, at.run) == (at.run, seq), what
        edits += 1
    assert edits == len(places) * len(EDITS) > (5_000 if full else 500)
    assert str(await app.verify()).startswith("18 runs, 2 conversations and 1 audit log with ")


@pytest.mark.parametrize("is_encrypted", ["encrypted"], indirect=True)
async def test_verify_finds_every_edit_in_an_encrypted_store(app: App, editor: SqliteRowEditor, full: bool) -> None:
    """Without the keys, events cannot be forged. Hashes cover the stored bytes."""
    edits = [edit for edit in EDITS if edit is not forge]
    for at, seq, what in edited_events(await own_events(app, 1 if full else 20), editor, edits):
        assert await tampered_event(app, at.run) == (at.run, seq), what
    await app.verify()


async def test_verify_finds_every_edit_on_postgres(postgres_schema: str, full: bool) -> None:
    await fill_store(single_process(postgres_schema))
    editor = PostgresRowEditor(postgres_schema)
    try:
        async with app_at(postgres_schema) as app:
            for at, seq, what in edited_events(await own_events(app, 4 if full else 80), editor, EDITS):
                assert await tampered_event(app, at.run) == (at.run, seq), what
            assert str(await app.verify()).startswith("18 runs, 2 conversations and 1 audit log with ")
    finally:
        editor.close()


async def test_verify_of_all_runs_names_the_changed_event(app: App, editor: SqliteRowEditor) -> None:
    """Also in a conversation or in a prefix that forks share."""
    editor.copy("events")
    for at in await own_events(app, 12):
        with editor.changed("events"):
            changes_field("actor", lambda actor: f"{actor}x")(editor, at)
            with pytest.raises(Tampered) as error:
                await app.verify()
            assert (error.value.run, error.value.seq) == (at.run, at.seq)


async def test_saved_heads_detect_a_truncated_log(
    app: App, editor: SqliteRowEditor, tmp_path: Path, full: bool
) -> None:
    """At every event with --full, otherwise at every third, with rows rebuilt to match the shorter log."""
    await app.save_heads(tmp_path / "heads")
    row = await app.store.get("broken")
    tables = ("events", "streams", "requests", "blob_refs", "counters")
    for table in tables:
        editor.copy(table)
    for seq in range(1, row.seq, 1 if full else 3):
        with editor.changed(*tables):
            editor.run(f"DELETE FROM {{events}} WHERE run = {row.number} AND seq > {seq}")
            await _rebuild_rows(app, editor, row.number, "broken")
            assert (await app.verify("broken")).events == seq
            with pytest.raises(Tampered, match="truncated") as error:
                await app.verify(heads=tmp_path / "heads")
            assert (error.value.run, error.value.seq) == ("broken", row.seq)


async def test_saved_heads_detect_a_rewritten_log(app: App, editor: SqliteRowEditor, tmp_path: Path) -> None:
    """From any event on, with matching hashes and rows. A deleted run is detected, too."""
    await app.save_heads(tmp_path / "heads")
    row = await app.store.get("broken")
    log = [event async for event in app.store.log("broken")]
    tables = ("events", "streams", "requests", "blob_refs", "counters", "labels")
    for table in tables:
        editor.copy(table)
    for seq in range(1, row.seq + 1, 4):
        with editor.changed(*tables):
            _reseal(editor, row.number, log, seq)
            await _rebuild_rows(app, editor, row.number, "broken")
            assert (await app.verify("broken")).events == row.seq
            with pytest.raises(Tampered, match="rewritten") as error:
                await app.verify(heads=tmp_path / "heads")
            assert (error.value.run, error.value.seq) == ("broken", row.seq)
    with editor.changed(*tables):
        for table in ("events", "requests", "blob_refs", "labels"):
            editor.run(f"DELETE FROM {{{table}}} WHERE run = {row.number}")
        editor.run(f"DELETE FROM {{streams}} WHERE number = {row.number}")
        await app.store.recount()
        await app.verify()
        with pytest.raises(Tampered, match="the log is missing"):
            await app.verify(heads=tmp_path / "heads")
    await app.verify(heads=tmp_path / "heads")


def _reseal(editor: RowEditor, number: int, log: list[Event], since: int) -> None:
    """Rewrite the log from an event on, with another actor."""
    head: Head = log[since - 2].head if since > 1 else START
    for event in log[since - 1 :]:
        fresh = seal(head, event.run, event.decode(), time=event.time, fence=event.fence, actor="eve").event
        editor.run(
            f"UPDATE {{events}} SET actor = ?, hash = ? WHERE run = {number} AND seq = {event.seq}", "eve", fresh.hash
        )
        head = fresh.head


async def _rebuild_rows(app: App, editor: RowEditor, number: int, run: str) -> None:
    """Rebuild the rows to match the log."""
    editor.run(f"DELETE FROM {{blob_refs}} WHERE run = {number}")
    await app.store.rebuild(run)
    await app.store.recount()
