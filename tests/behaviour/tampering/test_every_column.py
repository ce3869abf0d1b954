"""The tamper table: every column of every table is changed, swapped and emptied, and rows are deleted and added.
`verify` or opening the store finds it, or OUT_OF_SCOPE gives the reason.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from limpet import LimpetError, Tampered, open_store
from limpet.service.app import App
from limpet.stores import TokenRow
from tests.behaviour.tampering.conftest import KEYS, app_at
from tests.behaviour.tampering.edit_rows import PostgresRowEditor, RowEditor, SqliteRowEditor
from tests.behaviour.tampering.filled_store import fill_store, single_process

DELETED, ADDED = "a row deleted", "a row added"
AT_OPENING = {"meta", "keys"}
"""Tables that are checked when a store is opened."""
NOW = "the workers that are alive now: they change every second and are in no log"
TOKEN = "tokens are in no log; in an encrypted store, a caller's name, groups and rights cannot be read or forged"
DUTY = "work that is repeated anyway: a change only makes it earlier or later, and it is in no log"
LOST = "on PostgreSQL, read only by a writer that has just lost the reply to a commit"
OUT_OF_SCOPE = {
    ("events", "position"): "the store's own number: it orders events across runs, and is in no log",
    ("events", "xid"): "likewise, on PostgreSQL",
    ("blobs", "name"): "encrypted chunks are bound to it; in an unencrypted store, nothing is",
    ("blobs", "loose_since"): "a blob that a run refers to is never collected",
    ("blobs", ADDED): "content that no run refers to; it is collected after an hour",
    ("streams", "ended"): "time by the store's clock; whether a run has ended is checked",
    ("streams", "ready_at"): "likewise, within an hour, for a run that may be claimed immediately",
    ("counters", "spread"): "counters of one agent and status are summed",
    ("snapshots", "time"): "save time by the store's clock; nothing depends on it",
    ("snapshots", DELETED): "a cache: no answer changes",
    ("late", "position"): "the order of arrival, which is in no log",
    ("late", "kept"): "arrival time by the store's clock",
    ("late", DELETED): "not part of any log",
    ("slots", "place"): "the slots of an agent are interchangeable",
    ("slots", DELETED): "a lock: it is checked while its run is running, not while it waits",
    ("contracts", "saved"): "time by the store's clock; contracts are saved again whenever an app is opened",
    ("contracts", DELETED): "contracts are saved again whenever an app is opened",
    ("contracts", ADDED): "no log lists the agents; the hash of the contract is checked",
    ("keys", "created"): "determines the newest key; older keys still decrypt what they sealed",
    ("keys", DELETED): "found if data was sealed with it",
    ("meta", "name"): "a store without the entry is plain; schema and encryption are checked when it is opened",
    ("meta", "value"): "likewise",
    ("meta", DELETED): "likewise",
    ("meta", ADDED): "an unknown setting is never read",
    ("counters", ADDED): "a counter of zero equals a missing one",
    **{("workers", what): NOW for what in ("id", "host", "agents", "started", "lease_until", "engine", ADDED, DELETED)},
    **{("duties", what): DUTY for what in ("name", "every", "worker", "lease_until", "done", "done_by", "error")},
    **{("duties", what): DUTY for what in (ADDED, DELETED)},
    **{("tokens", what): TOKEN for what in (*TokenRow.__struct_fields__, ADDED, DELETED)},
    **{("receipts", what): LOST for what in ("writer", "batch", "time", ADDED, DELETED)},
}


EMPTY = {"keys", "lent"}
"""Tables that may be empty: keys of an unencrypted store, and marks of running transactions."""


class Tamper(NamedTuple):
    """A change to a table, and its name in OUT_OF_SCOPE."""

    table: str
    what: str
    how: str
    row: Sequence[Any]
    values: tuple[Any, ...] = ()
    other: Sequence[Any] = ()
    """The row that it is swapped with."""

    def do(self, editor: RowEditor) -> bool:
        """Make the change; return False if the schema refuses it."""
        if self.what == DELETED:
            return editor.delete(self.table, self.row)
        if self.what == ADDED:
            return editor.add(self.table, self.values)
        if self.other and (
            self.values[0] == self.values[1] or not editor.change(self.table, self.other, self.what, self.values[1])
        ):
            return False
        return editor.change(self.table, self.row, self.what, self.values[0])


def tampers(editor: RowEditor, table: str, rows: Sequence[Sequence[Any]], most: int) -> Iterator[Tamper]:
    """Yield all changes to a table, for `most` rows each. With 0, one change per column and of rows."""
    for place, (column, (kind, may_be_nothing)) in enumerate(editor.columns(table).items()):
        full = [row for row in rows if row[place] is not None]
        empty = [row for row in rows if row[place] is None]
        for row in full[: most or 1]:
            yield Tamper(table, column, "changed", row, (other_value(row[place]),))
        for row in empty[: most or not full]:
            yield Tamper(table, column, "filled", row, (1 if "INT" in kind.upper() else "x",))
        for row in full[-most:] if most and may_be_nothing else ():
            yield Tamper(table, column, "emptied", row, (None,))
        for row, far in list(zip(full, reversed(full), strict=True))[:most]:
            yield Tamper(table, column, "swapped", row, (far[place], row[place]), far)
    yield from row_tampers(table, rows, most)


def row_tampers(table: str, rows: Sequence[Sequence[Any]], most: int) -> Iterator[Tamper]:
    """Yield deleted and added rows."""
    for row in rows[-most or -1 :]:
        yield Tamper(table, DELETED, "", row)
    for row in rows[: most or 1]:
        yield Tamper(table, ADDED, "of nothing", row, tuple(map(other_value, row)))
        for place in range(len(row) if most else 0):
            yield Tamper(table, ADDED, "of another", row, (*row[:place], other_value(row[place]), *row[place + 1 :]))


def other_value(value: Any) -> Any:
    """Return another value of the same type."""
    match value:
        case None:
            return None
        case bool():
            return not value
        case int():
            return value ^ 1 if value in (0, 1) else value + 1
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:] if value else b"x"
        case str() if value.startswith("["):
            return '["x"]' if value != '["x"]' else "[]"
        case str() if value.startswith("{"):
            return '{"x":"x"}'
        case str() if value.isdecimal():
            return str(int(value) + 1)
        case _:
            return f"{value}x"


async def find_tampering(app: App) -> LimpetError | None:
    """Return the error of `verify`, or None."""
    try:
        await app.verify()
    except Tampered as error:
        return error
    return None


async def find_tampering_at_opening(url: str, *, is_encrypted: bool) -> LimpetError | None:
    """Return the error of opening the store or of `verify`, or None."""
    try:
        async with app_at(url, KEYS if is_encrypted else None) as app:
            return await find_tampering(app)
    except LimpetError as error:
        return error


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, is_encrypted: bool, full: bool) -> str:
    """The URL of a filled store."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('path')}"
    if is_encrypted and not full:
        pytest.skip("runs with --full (make chaos); an encrypted SQLite file is tested")
    url: str = request.getfixturevalue("postgres_schema")
    asyncio.run(fill_store(single_process(url), KEYS if is_encrypted else None))
    return url


@pytest.fixture
def editor(url: str) -> Iterator[RowEditor]:
    """An attacker who can edit the database."""
    found = editor_of(url)
    yield found
    found.close()


def editor_of(url: str) -> RowEditor:
    """Return an editor of the rows of a store."""
    return SqliteRowEditor(Path(url[10:])) if url.startswith("sqlite:") else PostgresRowEditor(url)


@pytest.mark.parametrize("is_encrypted", ["plain", "encrypted"], indirect=True)
async def test_a_change_in_any_column_is_found_or_out_of_scope(
    url: str, editor: RowEditor, is_encrypted: bool, full: bool
) -> None:
    """The database catalogue lists the columns, so that none is forgotten.

    Without --full, only a plain SQLite file gets more than one change per column, the others get a sixth of them, in
    turn, and no change is made that may remain unseen.
    """
    is_main = isinstance(editor, SqliteRowEditor) and not is_encrypted
    most, every = 3 if full else int(is_main), 1 if full or is_main else 6
    async with app_at(url, KEYS if is_encrypted else None) as app:
        names = {run for _, run in await app.store.streams()} | {row.agent for row in await app.store.contracts()}
        unseen: list[Tamper] = []
        for first, table in enumerate(editor.tables()):
            editor.copy(table)
            rows = sorted(editor.rows(table), key=repr)
            assert rows or table in EMPTY, table
            found = [
                each for each in tampers(editor, table, rows, most) if full or (table, each.what) not in OUT_OF_SCOPE
            ]
            for tamper in found[first % every :: every]:
                with editor.changed(table):
                    if not tamper.do(editor):
                        continue
                    is_early = table in AT_OPENING
                    error = await (
                        find_tampering_at_opening(url, is_encrypted=is_encrypted) if is_early else find_tampering(app)
                    )
                    if error is None:
                        unseen.append(tamper)
                    elif not is_early:
                        assert names_what_changed(str(error.facts["run"]), names, tamper), error
        assert [each for each in unseen if (each.table, each.what) not in OUT_OF_SCOPE] == []
        assert await find_tampering(app) is None


def names_what_changed(run: str, names: set[str], tamper: Tamper) -> bool:
    """Return whether an error names the run, agent or number that changed, by its old or new value."""
    return (
        run in names
        or run.startswith("number ")
        or run == tamper.table
        or run in map(str, (*tamper.row, *tamper.values))
    )


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_every_out_of_scope_entry_names_an_existing_column(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/x.db" if store == "sqlite" else request.getfixturevalue("postgres_schema")
    async with open_store(url):
        editor = editor_of(url)
        tables = {table: set(editor.columns(table)) | {DELETED, ADDED} for table in editor.tables()}
        editor.close()
    stale = {(table, what) for table, what in OUT_OF_SCOPE if table in tables and what not in tables[table]}
    assert stale <= {("events", "xid"), ("counters", "spread")}
