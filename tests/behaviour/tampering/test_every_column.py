"""The tamper table: every column of every table that a store has, changed, swapped, emptied, its rows taken away and
made up. `verify` finds it, or opening does, or OUT_OF_SCOPE says why not."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from limpet import LimpetError, Tampered
from limpet.service.app import App
from tests.behaviour.tampering.conftest import KEYS, app_at
from tests.behaviour.tampering.edit_rows import Hand, PostgresHand, SqliteHand
from tests.behaviour.tampering.filled_store import alone, happen

DELETED, ADDED = "a row deleted", "a row added"
AT_OPENING = {"meta", "keys"}
"""Tables that are looked at when a store is opened."""
NOW = "who is alive at this moment: it changes every second, and no log tells"
LOST = "on PostgreSQL, for a writer that has just lost the reply to a commit; nobody else asks"
OUT_OF_SCOPE = {
    ("events", "position"): "the store's own number: it orders what many runs did, and is in no log",
    ("events", "xid"): "likewise, on PostgreSQL",
    ("blobs", "name"): "what encrypted chunks are bound to; in a store that is not encrypted nothing is",
    ("blobs", "loose_since"): "a blob that a run refers to is not collected, whatever it says",
    ("blobs", ADDED): "content that no run refers to; it is collected after an hour",
    ("streams", "ended"): "when, as the store's clock said; whether a run has ended is checked",
    ("streams", "ready_at"): "likewise, within an hour, of a run that may be claimed at once",
    ("counters", "spread"): "counters of one agent and status are added up",
    ("snapshots", "time"): "when it was saved, as the store's clock said; nothing goes by it",
    ("snapshots", DELETED): "a cache: no answer changes",
    ("late", "position"): "the order in which it came, which is in no log",
    ("late", "kept"): "when it came, as the store's clock said",
    ("late", DELETED): "it is part of no log, so no log misses it",
    ("slots", "place"): "which of the places of an agent a run holds is all the same",
    ("slots", DELETED): "a lock: it is checked while its run is running, and not while it waits",
    ("contracts", "saved"): "when, as the store's clock said; agents say it again whenever an app is opened",
    ("contracts", DELETED): "agents say it again whenever an app is opened",
    ("contracts", ADDED): "no log says which agents there are; its hash is checked",
    ("keys", "created"): "which key is the newest; older ones open what they sealed all the same",
    ("keys", DELETED): "found if something was sealed with it",
    ("meta", "name"): "a plain store that does not say so is plain; the schema and encryption are found at opening",
    ("meta", "value"): "likewise",
    ("meta", DELETED): "likewise",
    ("meta", ADDED): "a setting that nobody asks for",
    ("counters", ADDED): "a counter of zero says what no counter says",
    **{("workers", what): NOW for what in ("id", "host", "agents", "started", "lease_until", ADDED, DELETED)},
    **{("receipts", what): LOST for what in ("writer", "batch", "time", ADDED, DELETED)},
}


EMPTY = {"keys", "lent"}
"""Tables that may have no row: keys of a store that is not encrypted, and the marks of transactions under way."""


class Tamper(NamedTuple):
    """Something done to a table, and how it is called in OUT_OF_SCOPE."""

    table: str
    what: str
    how: str
    row: Sequence[Any]
    values: tuple[Any, ...] = ()
    other: Sequence[Any] = ()
    """The row that it is swapped with."""

    def do(self, hand: Hand) -> bool:
        """Do it; false if the schema has no place for it."""
        if self.what == DELETED:
            return hand.delete(self.table, self.row)
        if self.what == ADDED:
            return hand.add(self.table, self.values)
        if self.other and (
            self.values[0] == self.values[1] or not hand.change(self.table, self.other, self.what, self.values[1])
        ):
            return False
        return hand.change(self.table, self.row, self.what, self.values[0])


def tampers(hand: Hand, table: str, rows: Sequence[Sequence[Any]], most: int) -> Iterator[Tamper]:
    """All that is done to a table, to so many of its rows each; with 0, one change of each column, and of the rows."""
    for place, (column, (kind, may_be_nothing)) in enumerate(hand.columns(table).items()):
        full = [row for row in rows if row[place] is not None]
        empty = [row for row in rows if row[place] is None]
        for row in full[: most or 1]:
            yield Tamper(table, column, "changed", row, (other(row[place]),))
        for row in empty[: most or not full]:
            yield Tamper(table, column, "filled", row, (1 if "INT" in kind.upper() else "x",))
        for row in full[-most:] if most and may_be_nothing else ():
            yield Tamper(table, column, "emptied", row, (None,))
        for row, far in list(zip(full, reversed(full), strict=True))[:most]:
            yield Tamper(table, column, "swapped", row, (far[place], row[place]), far)
    yield from of_rows(table, rows, most)


def of_rows(table: str, rows: Sequence[Sequence[Any]], most: int) -> Iterator[Tamper]:
    """Rows that are taken away, and rows that are made up."""
    for row in rows[-most or -1 :]:
        yield Tamper(table, DELETED, "", row)
    for row in rows[: most or 1]:
        yield Tamper(table, ADDED, "of nothing", row, tuple(map(other, row)))
        for place in range(len(row) if most else 0):
            yield Tamper(table, ADDED, "of another", row, (*row[:place], other(row[place]), *row[place + 1 :]))


def other(value: Any) -> Any:
    """Another value of the same kind."""
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


async def found(app: App) -> LimpetError | None:
    """What `verify` says."""
    try:
        await app.verify()
    except Tampered as error:
        return error
    return None


async def found_at_opening(url: str, *, is_hidden: bool) -> LimpetError | None:
    """What opening says, and else `verify`."""
    try:
        async with app_at(url, KEYS if is_hidden else None) as app:
            return await found(app)
    except LimpetError as error:
        return error


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, is_hidden: bool) -> str:
    """A store in which everything has happened."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('path')}"
    url: str = request.getfixturevalue("postgres_schema")
    asyncio.run(happen(alone(url), KEYS if is_hidden else None))
    return url


@pytest.fixture
def hand(url: str) -> Iterator[Hand]:
    """Somebody who has the database."""
    found = SqliteHand(Path(url[10:])) if url.startswith("sqlite:") else PostgresHand(url)
    yield found
    found.close()


@pytest.mark.parametrize("is_hidden", ["plain", "encrypted"], indirect=True)
async def test_every_column_is_found_or_out_of_scope(url: str, hand: Hand, is_hidden: bool, full: bool) -> None:
    """The catalogue of the database says which there are, so that none is forgotten.

    Without --full, one change of each is enough but in a plain file.
    """
    if is_hidden and isinstance(hand, PostgresHand) and not full:
        pytest.skip("slow; --full")
    most = 3 if full else int(isinstance(hand, SqliteHand) and not is_hidden)
    async with app_at(url, KEYS if is_hidden else None) as app:
        names = {run for _, run in await app.store.streams()} | {row.agent for row in await app.store.contracts()}
        unseen: list[Tamper] = []
        for table in hand.tables():
            hand.copy(table)
            rows = sorted(hand.run(f"SELECT * FROM {{{table}}}"), key=repr)
            assert rows or table in EMPTY, table
            for tamper in tampers(hand, table, rows, most):
                if not most and (table, tamper.what) in OUT_OF_SCOPE:
                    continue
                with hand.changed(table):
                    if not tamper.do(hand):
                        continue
                    is_early = table in AT_OPENING
                    error = await (found_at_opening(url, is_hidden=is_hidden) if is_early else found(app))
                    if error is None:
                        unseen.append(tamper)
                    elif not is_early:
                        assert names_it(str(error.facts["run"]), names, tamper), error
        assert [each for each in unseen if (each.table, each.what) not in OUT_OF_SCOPE] == []
        assert await found(app) is None


def names_it(run: str, names: set[str], tamper: Tamper) -> bool:
    """Whether a report says which run, agent or number is concerned, as it was or as it is now."""
    return (
        run in names
        or run.startswith("number ")
        or run == tamper.table
        or run in map(str, (*tamper.row, *tamper.values))
    )


@pytest.mark.parametrize("is_hidden", ["plain"], indirect=True)
def test_what_is_out_of_scope_is_there(hand: Hand) -> None:
    """Each entry names a column or a way to change rows, of some table."""
    tables = {table: set(hand.columns(table)) | {DELETED, ADDED} for table in hand.tables()}
    stale = {(table, what) for table, what in OUT_OF_SCOPE if table in tables and what not in tables[table]}
    assert stale <= {("events", "xid"), ("counters", "spread")}
