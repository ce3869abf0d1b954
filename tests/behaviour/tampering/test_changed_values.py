"""Every changed value that derives from a log is found, in any column. A changed cache does not change any answer."""

import random  # noqa: TID251 - the seed is the test's
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from typer.testing import CliRunner

from limpet import LimpetError, Tampered
from limpet.cli.commands import command
from limpet.service.app import App
from limpet.service.verify import verify_all
from limpet.stores import RequestFilter, RunFilter, RunRow
from tests.behaviour.tampering.edit_rows import SqliteRowEditor
from tests.behaviour.tampering.filled_store import BY_THE_CLOCK

FROM_THE_LOG = {
    "events": 30,
    "chunks": 10,
    "blobs": 5,
    "streams": 30,
    "requests": 12,
    "labels": 4,
    "scores": 4,
    "blob_refs": 4,
    "counters": 5,
}
"""Tables that are the log or derive from it, with their weights in a hundred random changes."""
CACHED = {"snapshots"}
BESIDE = {
    "meta": "schema version and encryption: a store that does not match is not opened",
    "keys": "sealed by the master key: a store whose keys cannot be decrypted is not opened",
    "workers": "the live workers, decided by leases and not by a log",
    "duties": "the work of the workers for the whole store, decided by leases and not by a log",
    "tokens": "who may use the store over HTTP, which is in no log",
    "slots": "the current holders of exclusive slots; the slots of a run are checked",
    "late": "late events, which are never folded; they are checked against the log of their run",
    "contracts": "saved again whenever an app is opened; each is checked by its hash",
}
MEANS_NOTHING = {
    ("events", "position"): "the store's own number: it orders events across runs, and is in no log",
    ("blobs", "name"): "encrypted chunks are bound to it; in an unencrypted store, nothing is",
    ("blobs", "loose_since"): "a blob that a run refers to is never collected",
    ("streams", "ended"): "time by the store's clock, which is in no log; whether the run has ended is checked",
    ("streams", "ready_at"): "likewise for a run that may be claimed immediately; more than an hour is checked",
    ("chunks", "data"): "the last bits of a compressed chunk are padding",
}
"""Columns in which a change may remain undetected, and why that is harmless."""
UNBOUND = list(MEANS_NOTHING)[:5]
"""Columns of these that are excluded from random changes and have their own tests."""
HOUR = 3_600_000_000


class Flip(NamedTuple):
    """A changed value of one row."""

    table: str
    column: str
    row: int
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.table}.{self.column}, row {self.row}: {self.before!r} becomes {self.after!r}"


class RandomFlips:
    """Random changes, the same for the same seed."""

    def __init__(self, editor: SqliteRowEditor, seed: int) -> None:
        self._hand, self._chance = editor, random.Random(seed)
        self._columns = {
            table: [column for column in editor.columns(table) if (table, column) not in UNBOUND]
            for table in (*FROM_THE_LOG, *CACHED)
        }
        self._rows = {table: editor.rows(table) for table in self._columns}
        self._turns: dict[str, list[str]] = {}

    def any(self) -> Flip:
        """Return a change in any table that derives from the log."""
        [table] = self._chance.choices(list(FROM_THE_LOG), list(FROM_THE_LOG.values()))
        return self.of(table)

    def of(self, table: str) -> Flip:
        """Return a change in a table; its columns take turns."""
        turns = self._turns.setdefault(table, [])
        if not turns:
            turns += self._chance.sample(self._columns[table], len(self._columns[table]))
        return self.in_column(table, turns.pop())

    def in_column(self, table: str, column: str) -> Flip:
        """Return a change in a column of some row."""
        place = list(self._hand.columns(table)).index(column)
        row = self._chance.randrange(len(self._rows[table]))
        before = self._rows[table][row][place]
        kind, may_be_nothing = self._hand.columns(table)[column]
        return Flip(table, column, row, before, self._other(before, kind, may_be_nothing))

    def _other(self, value: Any, kind: str, may_be_nothing: bool) -> Any:
        if value is None:
            return {"INTEGER": 1, "REAL": 0.75, "TEXT": "x", "BLOB": b"x"}[kind]
        if may_be_nothing and self._chance.random() < 0.2:
            return None
        if isinstance(value, int):
            return (
                value ^ 1 if value in (0, 1) else value + self._chance.choice([1, -1, 1 << self._chance.randrange(50)])
            )
        if isinstance(value, float):
            return value + self._chance.choice([1.0, -0.25])
        if not value:
            return "x" if isinstance(value, str) else b"x"
        changed = bytearray(value.encode() if isinstance(value, str) else value)
        changed[self._chance.randrange(len(changed))] ^= 1 << self._chance.randrange(8)
        return bytes(changed)


def apply_flip(editor: SqliteRowEditor, flip: Flip) -> bool:
    """Apply a change byte for byte; return False if the schema refuses it."""
    kind, _ = editor.columns(flip.table)[flip.column]
    value = f"CAST(? AS {kind})" if kind == "TEXT" and flip.after is not None else "?"  # the result may be invalid text
    kept = editor.run(f"SELECT * FROM kept_{flip.table} LIMIT 1 OFFSET {flip.row}")[0]
    where = " AND ".join(f'"{name}" IS ?' for name in editor.columns(flip.table))
    try:
        editor.run(f'UPDATE {{{flip.table}}} SET "{flip.column}" = {value} WHERE {where}', flip.after, *kept)
    except apsw.ConstraintError:
        return False
    return True


async def find_tampering(app: App) -> Tampered | None:
    """Return the error of `verify`, or None. Any error but Tampered is a failure."""
    try:
        await app.verify()
    except Tampered as error:
        return error
    return None


async def read_everything(app: App) -> list[object]:
    """Return everything that the store returns about its runs."""
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


def test_every_table_is_classified(editor: SqliteRowEditor) -> None:
    """A new table derives from the log, is a cache, or is listed with a reason."""
    assert {*FROM_THE_LOG, *CACHED, *BESIDE} == set(editor.tables())
    for table, column in MEANS_NOTHING:
        assert column in editor.columns(table)
    assert set(RunRow.__struct_fields__) == set(editor.columns("streams"))


@pytest.mark.parametrize(("is_encrypted", "most"), [("plain", 850), ("encrypted", 150)], indirect=["is_encrypted"])
async def test_verify_finds_random_changes(
    app: App, editor: SqliteRowEditor, is_encrypted: bool, most: int, full: bool
) -> None:
    """A thousand changes in the log and in derived rows: the error names the run, and only Tampered is raised.

    An undetected change must not change any answer. Without --full, a 32nd of the changes are made.
    """
    before, runs = await read_everything(app), {run for _, run in await app.store.streams()}
    editor.run("DELETE FROM {counters} WHERE n = 0")  # equal to no counter
    for table in FROM_THE_LOG:
        editor.copy(table)
    chance, flips, unseen = RandomFlips(editor, seed=1), 0, list[Flip]()
    while flips < (most if full else most // 32):
        flip = chance.any()
        with editor.changed(flip.table):
            if not apply_flip(editor, flip):
                continue
            flips += 1
            error = await find_tampering(app)
            if error is None:
                unseen.append(flip)
                assert (flip.table, flip.column) in MEANS_NOTHING, flip
                assert await read_everything(app) == before, flip
            elif flip.table != "counters" and (flip.table, flip.column) != ("streams", "id"):
                assert error.run in runs, flip
    assert len(unseen) < flips / 100
    assert await find_tampering(app) is None
    assert await read_everything(app) == before


async def test_verify_finds_a_change_in_each_column(app: App, editor: SqliteRowEditor) -> None:
    for table in FROM_THE_LOG:
        editor.copy(table)
    chance = RandomFlips(editor, seed=2)
    for table in FROM_THE_LOG:
        for column in editor.columns(table):
            if (table, column) in UNBOUND:
                continue
            for _ in range(30):
                flip = chance.in_column(table, column)
                with editor.changed(table):
                    if apply_flip(editor, flip) and await find_tampering(app) is not None:
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
async def test_harmless_changes_change_no_answer(app: App, editor: SqliteRowEditor, change: str) -> None:
    """Positions, names of unencrypted blobs, and the age of blobs that are in use."""
    before = await read_everything(app)
    editor.run(change)
    assert await find_tampering(app) is None
    assert await app.store.collect_blobs(grace="0s") == 0
    assert await read_everything(app) == before


async def test_verify_finds_a_changed_ready_at(app: App, editor: SqliteRowEditor) -> None:
    """Exactly where the log determines it, otherwise if it is more than an hour late. NULL is always exact."""
    editor.copy("streams")
    for run, ready_at in editor.run("SELECT id, ready_at FROM {streams} WHERE type = 'run'"):
        others = (
            [1] if ready_at is None else [None, ready_at + 1, ready_at - 1, ready_at + 2 * HOUR, ready_at + (1 << 50)]
        )
        unseen = []
        for other in others:
            with editor.changed("streams"):
                editor.run("UPDATE {streams} SET ready_at = ? WHERE id = ?", other, run)
                error = await find_tampering(app)
                assert error is None or error.run == run
                unseen += [other] if error is None else []
        assert unseen == (others[1:3] if run in BY_THE_CLOCK else []), run


async def test_verify_finds_a_changed_ended_flag(app: App, editor: SqliteRowEditor) -> None:
    """The exact time is that of the store's clock, which no log records."""
    editor.copy("streams")
    for run, ended in editor.run("SELECT id, ended FROM {streams}"):
        with editor.changed("streams"):
            editor.run("UPDATE {streams} SET ended = ? WHERE id = ?", 1 if ended is None else None, run)
            error = await find_tampering(app)
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
async def test_verify_finds_added_moved_and_deleted_rows(app: App, editor: SqliteRowEditor, statement: str) -> None:
    """Otherwise requests could be answered twice, runs be found by wrong labels, or blobs be lost."""
    before = editor.run("SELECT total_changes()")
    editor.run(statement)
    assert editor.run("SELECT total_changes()") != before
    assert await find_tampering(app) is not None


ASKS_AND_BROKEN = "SELECT number FROM {streams} WHERE id IN ('asks', 'broken')"


async def test_a_damaged_blob_names_the_event_that_refers_to_it(app: App, editor: SqliteRowEditor) -> None:
    """The first event of the first run that refers to it."""
    editor.run(
        "UPDATE {chunks} SET data = zeroblob(length(data)) WHERE blob = (SELECT number FROM {blobs} WHERE size = 9000)"
    )
    error = await find_tampering(app)
    assert error is not None
    [stored] = [event.seq for event in await app.log("done") if event.kind == "artifact.stored"]
    assert (error.run, error.seq) == ("done", stored)
    assert "not intact" in error.reason


@pytest.mark.parametrize("is_encrypted", ["plain", "encrypted"], indirect=True)
async def test_a_damaged_snapshot_changes_no_answer(app: App, editor: SqliteRowEditor, full: bool) -> None:
    """States equal the fold of the log, and `verify` finds changes of all columns but time and padding bits.

    Without --full, an eighth of the changes are made.
    """
    editor.copy("snapshots")
    seqs = (8, 20, 51)
    before = [(await app.state("done", seq=seq)).whole for seq in seqs]
    chance = RandomFlips(editor, seed=4)
    flips = [chance.of("snapshots") for _ in range(100)] + [chance.in_column("snapshots", "data") for _ in range(300)]
    for flip in flips if full else flips[::8]:
        with editor.changed("snapshots"):
            if apply_flip(editor, flip):
                assert [(await app.state("done", seq=seq)).whole for seq in seqs] == before, flip
                assert flip.column in ("time", "data") or await find_tampering(app) is not None, flip
    editor.run("DELETE FROM {snapshots}")
    assert [(await app.state("done", seq=seq)).whole for seq in seqs] == before
    assert await find_tampering(app) is None


async def test_verify_reports_all_tampered_runs_to_a_callback(app: App, editor: SqliteRowEditor) -> None:
    """Without a callback, the first one raises."""
    editor.run(f"UPDATE {{events}} SET actor = 'eve' WHERE run IN ({ASKS_AND_BROKEN}) AND seq = 3")
    editor.run("UPDATE {streams} SET goal = CAST(x'ff' AS TEXT) WHERE id = 'stopped'")
    bad = list[LimpetError]()
    whole = await verify_all(app.store, bad=bad.append)
    assert [each.facts["run"] for each in bad] == ["asks", "broken", "stopped"]
    assert (whole.runs, whole.conversations) == (15, 2)


def test_the_verify_command_lists_all_tampered_runs(editor: SqliteRowEditor, path: Path) -> None:
    """It exits with 1 and saves no heads."""
    words = ["verify", "--url", f"sqlite:///{path}", "--save-heads", str(path.with_name("heads"))]
    editor.run(f"UPDATE {{events}} SET actor = 'eve' WHERE run IN ({ASKS_AND_BROKEN}) AND seq = 3")
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 1
    assert [line.partition(" is not intact")[0] for line in done.stderr.splitlines()] == [
        "error: The log of asks",
        "error: The log of broken",
    ]
    assert done.stdout.startswith("16 runs, 2 conversations and 1 audit log with ")
    assert not path.with_name("heads").exists()
    one = CliRunner().invoke(command, ["verify", "pending", "--url", f"sqlite:///{path}"])
    assert (one.exit_code, one.stdout) == (0, "1 run with 1 event verified\n")
