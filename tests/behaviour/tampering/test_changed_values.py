"""Every change of a value that was made from a log is found, whichever column it is in; what is only kept beside the
log to be faster changes no answer."""

import random  # noqa: TID251 - the seed is the test's
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from typer.testing import CliRunner

from limpet import LimpetError, Tampered
from limpet.cli import command
from limpet.service.app import App
from limpet.service.verify import verify_all
from limpet.stores import RequestFilter, RunFilter, RunRow
from tests.behaviour.tampering.edit_rows import SqliteHand
from tests.behaviour.tampering.filled_store import BY_THE_CLOCK

FROM_THE_LOG = {
    "events": 30,
    "chunks": 10,
    "blobs": 5,
    "streams": 30,
    "requests": 12,
    "labels": 4,
    "blob_refs": 4,
    "counters": 5,
}
"""Tables that are the log or are made from it, and how many of a hundred flips each gets."""
CACHED = {"snapshots"}
BESIDE = {
    "meta": "which schema this is, and whether it is encrypted: a store that does not fit it is not opened",
    "keys": "each is sealed by the master key, and a store whose keys do not open is not opened",
    "workers": "who is alive just now; a lease decides, and not a log",
    "slots": "who has a place just now; what a run may hold is checked",
    "late": "what came too late, which is never folded; it is held against the log that it was for",
    "contracts": "what agents say of themselves whenever an app is opened; each is what its hash says",
}
MEANS_NOTHING = {
    ("events", "position"): "the store's own number: it orders what many runs did, and is in no log",
    ("blobs", "name"): "what encrypted chunks are bound to; in a store that is not encrypted nothing is",
    ("blobs", "loose_since"): "a blob that a run refers to is not collected, whatever it says",
    ("streams", "ended"): "when, as the store's clock said, and no log does; whether it has ended is checked",
    ("streams", "ready_at"): "likewise, of a run that may be claimed at once; more than an hour is checked",
    ("chunks", "data"): "the last bits of a compressed chunk stand for nothing",
}
"""Where a change may stay unseen, and why that is no matter."""
UNBOUND = list(MEANS_NOTHING)[:5]
"""Columns of these that are no part of what is flipped a thousand times, and have tests of their own."""
HOUR = 3_600_000_000


class Flip(NamedTuple):
    """A value of one row that becomes another."""

    table: str
    column: str
    row: int
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.table}.{self.column}, row {self.row}: {self.before!r} becomes {self.after!r}"


class Chance:
    """What is flipped next, the same for the same seed."""

    def __init__(self, hand: SqliteHand, seed: int) -> None:
        self._hand, self._chance = hand, random.Random(seed)
        self._columns = {
            table: [column for column in hand.columns(table) if (table, column) not in UNBOUND]
            for table in (*FROM_THE_LOG, *CACHED)
        }
        self._rows = {table: hand.run(f"SELECT * FROM {{{table}}}") for table in self._columns}
        self._turns: dict[str, list[str]] = {}

    def any(self) -> Flip:
        """One value of any table that is made from the log."""
        [table] = self._chance.choices(list(FROM_THE_LOG), list(FROM_THE_LOG.values()))
        return self.of(table)

    def of(self, table: str) -> Flip:
        """One value of a table: each column has its turn."""
        turns = self._turns.setdefault(table, [])
        if not turns:
            turns += self._chance.sample(self._columns[table], len(self._columns[table]))
        return self.in_column(table, turns.pop())

    def in_column(self, table: str, column: str) -> Flip:
        """Another value in a column of some row."""
        place = list(self._hand.columns(table)).index(column)
        row = self._chance.randrange(len(self._rows[table]))
        before = self._rows[table][row][place]
        kind, may_be_nothing = self._hand.columns(table)[column]
        return Flip(table, column, row, before, self._other(before, kind, may_be_nothing))

    def _other(self, value: Any, kind: str, may_be_nothing: bool) -> Any:
        if value is None:
            return {"INTEGER": 1, "TEXT": "x", "BLOB": b"x"}[kind]
        if may_be_nothing and self._chance.random() < 0.2:
            return None
        if isinstance(value, int):
            return (
                value ^ 1 if value in (0, 1) else value + self._chance.choice([1, -1, 1 << self._chance.randrange(50)])
            )
        if not value:
            return "x" if isinstance(value, str) else b"x"
        changed = bytearray(value.encode() if isinstance(value, str) else value)
        changed[self._chance.randrange(len(changed))] ^= 1 << self._chance.randrange(8)
        return bytes(changed)


def turn(hand: SqliteHand, flip: Flip) -> bool:
    """Do it, byte for byte; false if the schema has no place for such a row."""
    kind, _ = hand.columns(flip.table)[flip.column]
    value = f"CAST(? AS {kind})" if kind == "TEXT" and flip.after is not None else "?"  # which may be no text any more
    kept = hand.run(f"SELECT * FROM kept_{flip.table} LIMIT 1 OFFSET {flip.row}")[0]
    where = " AND ".join(f'"{name}" IS ?' for name in hand.columns(flip.table))
    try:
        hand.run(f'UPDATE {{{flip.table}}} SET "{flip.column}" = {value} WHERE {where}', flip.after, *kept)
    except apsw.ConstraintError:
        return False
    return True


async def found(app: App) -> Tampered | None:
    """What `verify` says; only that something was changed, and never that it cannot go on."""
    try:
        await app.verify()
    except Tampered as error:
        return error
    return None


async def everything(app: App) -> list[object]:
    """All that a store tells of its runs."""
    told: list[object] = [dict(await app.store.counts())]
    for _, run in await app.store.streams():
        told.append(await app.store.get(run))
        told.append([event async for event in app.store.log(run)])
        told.append(await app.store.requests(RequestFilter(status=None, run=run)))
        told += [
            b"".join([part async for part in app.store.read_blob(blob)]) for blob in await app.store.references(run)
        ]
    for labels in ({"team": "north"}, {"prio": "1"}, {"of": "done"}):
        told.append([row.id for row in (await app.store.runs(RunFilter(labels=labels), limit=100)).rows])
    return told


def test_every_table_has_its_place(hand: SqliteHand) -> None:
    """A new table is the log's, a cache, or beside; and its columns are flipped, unless somebody says why not."""
    assert {*FROM_THE_LOG, *CACHED, *BESIDE} == set(hand.tables())
    for table, column in MEANS_NOTHING:
        assert column in hand.columns(table)
    assert set(RunRow.__struct_fields__) == set(hand.columns("streams"))


@pytest.mark.parametrize(("is_hidden", "most"), [("plain", 850), ("encrypted", 150)], indirect=["is_hidden"])
async def test_random_flips_are_found(app: App, hand: SqliteHand, is_hidden: bool, most: int, full: bool) -> None:
    """A thousand in rows of the log and in all that is made of it; the run is named, and nobody stumbles.

    What is not found says the same as before. A quarter of them without --full.
    """
    before, runs = await everything(app), {run for _, run in await app.store.streams()}
    hand.run("DELETE FROM {counters} WHERE n = 0")  # as good as none
    for table in FROM_THE_LOG:
        hand.copy(table)
    chance, flips, unseen = Chance(hand, seed=1), 0, list[Flip]()
    while flips < (most if full else most // 4):
        flip = chance.any()
        with hand.changed(flip.table):
            if not turn(hand, flip):
                continue
            flips += 1
            error = await found(app)
            if error is None:
                unseen.append(flip)
                assert (flip.table, flip.column) in MEANS_NOTHING, flip
                assert await everything(app) == before, flip
            elif flip.table != "counters" and (flip.table, flip.column) != ("streams", "id"):
                assert error.run in runs, flip
    assert len(unseen) < flips / 100
    assert await found(app) is None
    assert await everything(app) == before


async def test_each_column_is_found(app: App, hand: SqliteHand) -> None:
    """Each at least once with a value, and with none where there was one."""
    for table in FROM_THE_LOG:
        hand.copy(table)
    chance = Chance(hand, seed=2)
    for table in FROM_THE_LOG:
        for column in hand.columns(table):
            if (table, column) in UNBOUND:
                continue
            for _ in range(30):
                flip = chance.in_column(table, column)
                with hand.changed(table):
                    if turn(hand, flip) and await found(app) is not None:
                        break
            else:
                raise AssertionError(f"no change of {table}.{column} is found")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE {events} SET position = position + 1000 WHERE position % 2",
        "UPDATE {blobs} SET name = 'another'",
        "UPDATE {blobs} SET loose_since = 1",
    ],
)
async def test_what_means_nothing_means_nothing(app: App, hand: SqliteHand, change: str) -> None:
    """The store's own numbers, names that nothing is bound to, how long nobody has wanted what somebody wants."""
    before = await everything(app)
    hand.run(change)
    assert await found(app) is None
    assert await app.store.collect_blobs(grace="0s") == 0
    assert await everything(app) == before


async def test_since_when_a_run_is_claimable_is_found(app: App, hand: SqliteHand) -> None:
    """Exactly, where the log says it; else within an hour, and earlier is as good as now. Never there or not there."""
    hand.copy("streams")
    for run, ready_at in hand.run("SELECT id, ready_at FROM {streams} WHERE type = 'run'"):
        others = (
            [1] if ready_at is None else [None, ready_at + 1, ready_at - 1, ready_at + 2 * HOUR, ready_at + (1 << 50)]
        )
        unseen = []
        for other in others:
            with hand.changed("streams"):
                hand.run("UPDATE {streams} SET ready_at = ? WHERE id = ?", other, run)
                error = await found(app)
                assert error is None or error.run == run
                unseen += [other] if error is None else []
        assert unseen == (others[1:3] if run in BY_THE_CLOCK else []), run


async def test_whether_a_run_has_ended_is_found(app: App, hand: SqliteHand) -> None:
    """When it did is what the store's clock said."""
    hand.copy("streams")
    for run, ended in hand.run("SELECT id, ended FROM {streams}"):
        with hand.changed("streams"):
            hand.run("UPDATE {streams} SET ended = ? WHERE id = ?", 1 if ended is None else None, run)
            error = await found(app)
            assert error is not None
            assert error.run == run


ANOTHER = """INSERT INTO {requests} SELECT 'another', run, seq, kind, status, "to", risk, tool, opened, expires, digest,
    by FROM {requests} LIMIT 1"""
SWAP = """UPDATE {chunks} SET data = (SELECT data FROM {chunks} AS other WHERE other.blob = {chunks}.blob
    AND other.place = 1 - {chunks}.place) WHERE place < 2 AND blob = (SELECT number FROM {blobs} WHERE size = 9000)"""


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM {requests} WHERE rowid = (SELECT min(rowid) FROM {requests})",
        ANOTHER,
        "DELETE FROM {labels} WHERE name = 'prio' AND run = 1",
        "INSERT INTO {labels} VALUES ('team', 'a-south', 1)",
        "INSERT INTO {labels} VALUES ('team', 'south', 1)",
        "INSERT INTO {labels} VALUES ('also', 'this', 1)",
        "DELETE FROM {blob_refs} WHERE run = 1",
        "INSERT INTO {blob_refs} SELECT 2, max(number) FROM {blobs}",
        "UPDATE {events} SET command = NULL WHERE command IS NOT NULL AND run = 1",
        "UPDATE {events} SET command = 'another' WHERE seq = 1 AND run = 1",
        "UPDATE {events} SET command = 'another' WHERE command = 'go-1'",
        "DELETE FROM {chunks} WHERE blob = 1 AND place = 0",
        "DELETE FROM {chunks} WHERE blob = 1",
        "INSERT INTO {chunks} VALUES (1, 99, '', '', x'00')",
        SWAP,
        "UPDATE {counters} SET n = n + 1 WHERE status = 'failed'",
        "DELETE FROM {counters}",
        "INSERT INTO {counters} VALUES ('nobody', 'running', 1)",
        "UPDATE {streams} SET type = 'conversation' WHERE id = 'pending'",
        "UPDATE {streams} SET origin = 'done.1' WHERE id = 'done.1'",
        "UPDATE {streams} SET origin_at = 10 WHERE id = 'done.1'",
        "UPDATE {streams} SET origin = 'nobody' WHERE id = 'done.1'",
        "UPDATE {streams} SET origin = 'pays' WHERE id = 'done.1'",
        "UPDATE {streams} SET number = 99 WHERE id = 'done'",
    ],
)
async def test_rows_that_were_added_moved_or_taken_away_are_found(app: App, hand: SqliteHand, statement: str) -> None:
    """So that nothing is answered twice, found under another's label, kept alive or lost."""
    before = hand.run("SELECT total_changes()")
    hand.run(statement)
    assert hand.run("SELECT total_changes()") != before
    assert await found(app) is not None


ASKS_AND_BROKEN = "SELECT number FROM {streams} WHERE id IN ('asks', 'broken')"


async def test_a_damaged_blob_names_the_event_that_refers_to_it(app: App, hand: SqliteHand) -> None:
    """The first run that does, and its first event that does."""
    hand.run(
        "UPDATE {chunks} SET data = zeroblob(length(data)) WHERE blob = (SELECT number FROM {blobs} WHERE size = 9000)"
    )
    error = await found(app)
    assert error is not None
    [stored] = [event.seq for event in await app.log("done") if event.kind == "artifact.stored"]
    assert (error.run, error.seq) == ("done", stored)
    assert "not intact" in error.reason


@pytest.mark.parametrize("is_hidden", ["plain", "encrypted"], indirect=True)
async def test_a_damaged_snapshot_changes_no_answer(app: App, hand: SqliteHand) -> None:
    """Whatever is flipped in it: states are what the log folds to, and `verify` finds it, unless it means nothing."""
    hand.copy("snapshots")
    seqs = (8, 20, 51)
    before = [(await app.state("done", seq=seq)).whole for seq in seqs]
    chance = Chance(hand, seed=4)
    flips = [chance.of("snapshots") for _ in range(100)] + [chance.in_column("snapshots", "data") for _ in range(300)]
    for flip in flips:
        with hand.changed("snapshots"):
            if turn(hand, flip):
                assert [(await app.state("done", seq=seq)).whole for seq in seqs] == before, flip
                assert flip.column in ("time", "data") or await found(app) is not None, flip
    hand.run("DELETE FROM {snapshots}")
    assert [(await app.state("done", seq=seq)).whole for seq in seqs] == before
    assert await found(app) is None


async def test_all_bad_runs_are_told_of_if_somebody_listens(app: App, hand: SqliteHand) -> None:
    """The others are looked at all the same; without a listener the first raises."""
    hand.run(f"UPDATE {{events}} SET actor = 'eve' WHERE run IN ({ASKS_AND_BROKEN}) AND seq = 3")
    hand.run("UPDATE {streams} SET goal = CAST(x'ff' AS TEXT) WHERE id = 'stopped'")
    bad = list[LimpetError]()
    whole = await verify_all(app.store, bad=bad.append)
    assert [each.facts["run"] for each in bad] == ["asks", "broken", "stopped"]
    assert (whole.runs, whole.conversations) == (15, 2)


def test_the_command_names_all_bad_runs(hand: SqliteHand, path: Path) -> None:
    """And ends with 1; nothing is written down as a head meanwhile."""
    words = ["verify", "--url", f"sqlite:///{path}", "--save-heads", str(path.with_name("heads"))]
    hand.run(f"UPDATE {{events}} SET actor = 'eve' WHERE run IN ({ASKS_AND_BROKEN}) AND seq = 3")
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 1
    assert [line.partition(" is not intact")[0] for line in done.stderr.splitlines()] == [
        "error: The log of asks",
        "error: The log of broken",
    ]
    assert done.stdout.startswith("16 runs and 2 conversations with ")
    assert not path.with_name("heads").exists()
    one = CliRunner().invoke(command, ["verify", "pending", "--url", f"sqlite:///{path}"])
    assert (one.exit_code, one.stdout) == (0, "1 run with 1 event verified\n")
