"""Every edit of a single event is found, and the first event that is not as it was is named."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from limpet import Tampered
from limpet.events import START, Event, Head, seal
from limpet.service.app import App
from tests.behaviour.tampering.conftest import app_at
from tests.behaviour.tampering.edit_rows import Hand, PostgresHand, SqliteHand
from tests.behaviour.tampering.filled_store import alone, happen

FIELDS = "time, kind, version, fence, actor, codec, key_id, body, hash"
FAR = 9_999


@dataclass(frozen=True)
class At:
    """One event of a stream's own, where the hand finds it."""

    run: str
    number: int
    seq: int
    last: int
    """Of its log."""
    event: Event
    strange: Event
    """Some event of another stream."""

    @property
    def here(self) -> str:
        return f"WHERE run = {self.number} AND seq = {self.seq}"

    def after(self, seq: int) -> int:
        """The first event that does not fit if this one is not what it was: another number, if it was the last."""
        return seq if self.seq < self.last else self.seq


Edit = Callable[[Hand, At], int]
"""Does something to an event, and tells which event is the first that is not as it was."""


def delete(hand: Hand, at: At) -> int:
    hand.run(f"DELETE FROM {{events}} {at.here}")
    return at.after(at.seq + 1)


def swap(hand: Hand, at: At) -> int:
    if at.seq == at.last:
        return number(hand, at)
    for was, becomes in ((at.seq, FAR), (at.seq + 1, at.seq), (FAR, at.seq + 1)):
        hand.run(f"UPDATE {{events}} SET seq = {becomes} WHERE run = {at.number} AND seq = {was}")
    return at.seq


def number(hand: Hand, at: At) -> int:
    hand.run(f"UPDATE {{events}} SET seq = {FAR} {at.here}")
    return at.seq + 1 if at.seq < at.last else FAR


def repeat(hand: Hand, at: At) -> int:
    _make_room(hand, at)
    _insert(hand, at.number, at.seq + 1, at.event)
    return at.seq + 1


def forge(hand: Hand, at: At) -> int:
    """A new event that is sealed as it should be: what follows it was not."""
    _make_room(hand, at)
    body = at.strange.decode() if not at.event.key_id else None
    assert body is not None
    forged = seal(at.event.head, at.run, body, time=at.event.time, fence=at.event.fence, actor="eve").event
    _insert(hand, at.number, at.seq + 1, forged)
    return at.seq + 2 if at.seq < at.last else at.seq + 1


def replace(hand: Hand, at: At) -> int:
    values = [getattr(at.strange, name) for name in FIELDS.split(", ")]
    said = ", ".join(f"{name} = ?" for name in FIELDS.split(", "))
    hand.run(f"UPDATE {{events}} SET {said} {at.here}", *values)
    return at.seq


def says(field: str, change: Callable[[Any], Any]) -> Edit:
    """Another value in one field."""

    def edit(hand: Hand, at: At) -> int:
        before = getattr(at.event, field)
        after = change(before)
        assert after != before
        hand.run(f"UPDATE {{events}} SET {field} = ? {at.here}", after)
        return at.seq

    edit.__name__ = f"says_another_{field}"
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
    says("time", lambda time: time + 1),
    says("time", lambda time: time - 1),
    says("kind", _other_kind),
    says("version", lambda version: version + 1),
    says("fence", lambda fence: fence + 1),
    says("actor", lambda actor: f"{actor}x"),
    says("codec", lambda codec: f"{codec}+z"),
    says("key_id", lambda key: f"{key}x"),
    says("body", _other_byte),
    says("body", lambda body: body + b" "),
    says("hash", _other_byte),
]


def _make_room(hand: Hand, at: At) -> None:
    """Every later event has the next number."""
    later = f"WHERE run = {at.number} AND seq >"
    hand.run(f"UPDATE {{events}} SET seq = seq + {FAR} {later} {at.seq}")
    hand.run(f"UPDATE {{events}} SET seq = seq - {FAR - 1} {later} {FAR}")


def _insert(hand: Hand, number: int, seq: int, event: Event) -> None:
    values = [number, seq, *(getattr(event, name) for name in FIELDS.split(", "))]
    hand.run(f"INSERT INTO {{events}} (run, seq, {FIELDS}) VALUES ({', '.join('?' * len(values))})", *values)


async def own_events(app: App, every: int = 1) -> list[At]:
    """The events of all streams, each where it is stored."""
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
            found.append(At(run, numbers[run], event.seq, log[-1].seq, event, strange))
    return found[::every]


async def found_at(app: App, run: str) -> tuple[str, int]:
    """What `verify` says is not as it was."""
    with pytest.raises(Tampered) as error:
        await app.verify(run)
    return error.value.run, error.value.seq


def each(places: Iterable[At], hand: Hand, edits: list[Edit]) -> Iterator[tuple[At, int, str]]:
    """Each edit of each event, done while the caller looks, and undone."""
    hand.copy("events")
    for at in places:
        for edit in edits:
            with hand.changed("events"):
                yield at, edit(hand, at), f"{edit.__name__} {at.run} {at.seq} {at.event.kind}"


async def test_every_edit_of_every_event_is_found(app: App, hand: SqliteHand, full: bool) -> None:
    """Deleted, swapped, numbered otherwise, repeated, forged, put in place of another, changed in each field."""
    places = await own_events(app, 1 if full else 4)
    edits = 0
    for at, seq, what in each(places, hand, EDITS):
        assert await found_at(app, at.run) == (at.run, seq), what
        edits += 1
    assert edits == len(places) * len(EDITS) > (5_000 if full else 1_000)
    assert str(await app.verify()).startswith("18 runs and 2 conversations with ")


@pytest.mark.parametrize("is_hidden", ["encrypted"], indirect=True)
async def test_every_edit_is_found_in_an_encrypted_store(app: App, hand: SqliteHand, full: bool) -> None:
    """Without the keys, nothing can even be forged; hashes are of what is stored."""
    edits = [edit for edit in EDITS if edit is not forge]
    for at, seq, what in each(await own_events(app, 1 if full else 10), hand, edits):
        assert await found_at(app, at.run) == (at.run, seq), what
    await app.verify()


async def test_every_edit_is_found_on_postgres(postgres_schema: str, full: bool) -> None:
    """The same, on a server."""
    await happen(alone(postgres_schema))
    hand = PostgresHand(postgres_schema)
    try:
        async with app_at(postgres_schema) as app:
            for at, seq, what in each(await own_events(app, 4 if full else 20), hand, EDITS):
                assert await found_at(app, at.run) == (at.run, seq), what
            assert str(await app.verify()).startswith("18 runs and 2 conversations with ")
    finally:
        hand.close()


async def test_a_changed_event_is_found_among_all_runs(app: App, hand: SqliteHand) -> None:
    """Whoever checks everything hears of the run, though it is a conversation, or somebody else's beginning."""
    hand.copy("events")
    for at in await own_events(app, 12):
        with hand.changed("events"):
            says("actor", lambda actor: f"{actor}x")(hand, at)
            with pytest.raises(Tampered) as error:
                await app.verify()
            assert (error.value.run, error.value.seq) == (at.run, at.seq)


async def test_a_tail_that_was_cut_off_is_found_against_heads(app: App, hand: SqliteHand, tmp_path: Path) -> None:
    """At every event: rows that were made anew are whole, and the log is shorter than it was."""
    await app.save_heads(tmp_path / "heads")
    row = await app.store.get("broken")
    tables = ("events", "streams", "requests", "blob_refs", "counters")
    for table in tables:
        hand.copy(table)
    for seq in range(1, row.seq):
        with hand.changed(*tables):
            hand.run(f"DELETE FROM {{events}} WHERE run = {row.number} AND seq > {seq}")
            await _make_anew(app, hand, row.number, "broken")
            assert (await app.verify("broken")).events == seq
            with pytest.raises(Tampered, match="truncated") as error:
                await app.verify(heads=tmp_path / "heads")
            assert (error.value.run, error.value.seq) == ("broken", row.seq)


async def test_a_log_that_was_written_anew_is_found_against_heads(app: App, hand: SqliteHand, tmp_path: Path) -> None:
    """From any event on, with hashes and rows that fit; so is a run that is gone."""
    await app.save_heads(tmp_path / "heads")
    row = await app.store.get("broken")
    log = [event async for event in app.store.log("broken")]
    tables = ("events", "streams", "requests", "blob_refs", "counters", "labels")
    for table in tables:
        hand.copy(table)
    for seq in range(1, row.seq + 1, 4):
        with hand.changed(*tables):
            _reseal(hand, row.number, log, seq)
            await _make_anew(app, hand, row.number, "broken")
            assert (await app.verify("broken")).events == row.seq
            with pytest.raises(Tampered, match="rewritten") as error:
                await app.verify(heads=tmp_path / "heads")
            assert (error.value.run, error.value.seq) == ("broken", row.seq)
    with hand.changed(*tables):
        for table in ("events", "requests", "blob_refs", "labels"):
            hand.run(f"DELETE FROM {{{table}}} WHERE run = {row.number}")
        hand.run(f"DELETE FROM {{streams}} WHERE number = {row.number}")
        await app.store.recount()
        await app.verify()
        with pytest.raises(Tampered, match="the log is missing"):
            await app.verify(heads=tmp_path / "heads")
    await app.verify(heads=tmp_path / "heads")


def _reseal(hand: Hand, number: int, log: list[Event], since: int) -> None:
    """The same log, in which somebody else did everything since an event."""
    head: Head = log[since - 2].head if since > 1 else START
    for event in log[since - 1 :]:
        fresh = seal(head, event.run, event.decode(), time=event.time, fence=event.fence, actor="eve").event
        hand.run(
            f"UPDATE {{events}} SET actor = ?, hash = ? WHERE run = {number} AND seq = {event.seq}", "eve", fresh.hash
        )
        head = fresh.head


async def _make_anew(app: App, hand: Hand, number: int, run: str) -> None:
    """Rows as they would be, if the log were so."""
    hand.run(f"DELETE FROM {{blob_refs}} WHERE run = {number}")
    await app.store.rebuild(run)
    await app.store.recount()
