"""Statements on a PostgreSQL connection: their values, many in one round trip, and what happens after an error."""

from collections.abc import Awaitable, Iterator
from typing import Any

import psycopg
import pytest

from limpet.events import inline
from limpet.stores.backend import SchemaViolation
from limpet.stores.conformance.suite import Harness, World, completed, created, signalled, started
from limpet.stores.postgres import PostgresBackend
from limpet.stores.postgres.connection import Address, Connection, connect
from limpet.stores.postgres.parameters import Statement, compiled
from limpet.stores.postgres.wire import MOST_PREPARED, BoundStatement, Wire, decoded
from limpet.stores.sql_files import load
from limpet.stores.writes import SendCommands

SQL = load("limpet.stores.postgres", "statements.sql", schema='"limpet"', channel="x")
VALUES: dict[str, list[Any]] = {
    "bigint": [0, -1, 2**63 - 1, -(2**63)],
    "int": [0, -(2**31), 2**31 - 1],
    "text": ["", "ä€\U0001f41a", "x" * 100_000],
    "bytea": [b"", bytes(range(256))],
    "boolean": [True, False],
}


@pytest.fixture
def db(postgres_schema: str) -> Iterator[Connection]:
    """Return a connection without a store."""
    with connect(Address.parse(postgres_schema).server) as db:
        yield db


def wire_on(db: Connection, *, prepare: bool = True) -> Wire:
    """Return a wire that prepares statements on this connection."""
    wire = Wire(SQL, prepare=prepare)
    wire.make_ready(db, writes=True)
    return wire


def call(text: str, *values: Any) -> BoundStatement:
    """Return a call of a statement."""
    statement = compiled(text)
    return BoundStatement(statement, statement.encode(values))


def prepared(db: Connection) -> int:
    """Return how many statements the server has prepared for this connection."""
    found: int = db.execute("SELECT count(*) FROM pg_prepared_statements").fetchall()[0][0]
    return found


@pytest.mark.parametrize("prepare", [True, False])
@pytest.mark.parametrize("type", list(VALUES))
def test_values_of_every_type_are_read_back_unchanged(db: Connection, type: str, prepare: bool) -> None:
    """This includes lists of them, empty lists, and missing values."""
    wire, samples = wire_on(db, prepare=prepare), VALUES[type]
    lists: list[list[Any]] = [[], samples, [None], [*samples, None, *samples]]
    for kind, values in ((type, [*samples, None]), (f"{type}[]", lists)):
        for value in values:
            for _ in range(2):  # the second time prepared
                assert decoded(db, wire.call(db, call(f"SELECT %b::{kind}", value))) == [(value,)]


def test_a_named_parameter_is_sent_once(db: Connection) -> None:
    """A name may occur several times; values are given by name or in the order of their first use."""
    statement = Statement("SELECT %(a)b::bigint, %(b)b::text, %(a)b::bigint")
    assert statement.text == b"SELECT $1::bigint, $2::text, $1::bigint"
    wire = wire_on(db)
    for values in ({"b": "two", "a": 1}, [1, "two"]):
        assert decoded(db, wire.call(db, BoundStatement(statement, statement.encode(values)))) == [(1, "two", 1)]


@pytest.mark.parametrize("type", ["bigint", "int", "bigint[]", "int[]"])
def test_an_integer_that_no_column_can_store_is_refused(type: str) -> None:
    """It is refused before anything is sent."""
    value = 2**63
    with pytest.raises(SchemaViolation):
        Statement(f"SELECT %b::{type}").encode([[value, None] if "[" in type else value])


def test_every_parameter_has_a_type() -> None:
    """A placeholder that is not recognised would be sent as it is."""
    for name, text in SQL.items():
        assert "%" not in Statement(text).text.decode().replace("%d", "").replace("%%(label", ""), name


def test_nothing_that_follows_an_error_is_run(db: Connection) -> None:
    """The connection can be used afterwards, and what was prepared before the error is not prepared again."""
    wire = wire_on(db)
    wire.run(db, "CREATE TEMPORARY TABLE t (n bigint PRIMARY KEY)")
    insert = call("INSERT INTO t VALUES (%b::bigint)", 1)
    later = call("INSERT INTO t VALUES (%b::bigint) RETURNING n", 2)
    for _ in range(2):
        with pytest.raises(psycopg.errors.UniqueViolation):
            wire.send(db, [insert, insert, later])
        assert not db.closed
        assert decoded(db, wire.call(db, call("SELECT n FROM t"))) == []
    results = wire.send(db, [insert, later, call("SELECT sum(n)::bigint FROM t")])
    assert [decoded(db, result) for result in results] == [[], [(2,)], [(3,)]]


def test_few_statements_stay_prepared(db: Connection) -> None:
    """A statement is prepared once; beyond a limit, statements are not prepared and work."""
    wire = wire_on(db)
    wire.send(db, [call("SELECT %b::bigint", 1)] * 5)
    assert prepared(db) == 1
    for number in range(0, MOST_PREPARED + 50, 25):
        calls = [call(f"SELECT {number + each} + %b::bigint", 1) for each in range(25)]
        found = [decoded(db, result)[0][0] for result in wire.send(db, calls)]
        assert found == [number + each + 1 for each in range(25)]
    assert prepared(db) == MOST_PREPARED


def test_a_large_batch_does_not_block(db: Connection) -> None:
    """The server replies while the client still sends: neither may wait for the other."""
    text = "x" * 1_000_000
    results = wire_on(db).send(db, [call("SELECT %b::text", text)] * 40)
    assert all(decoded(db, result) == [(text,)] for result in results)


def test_a_lost_connection_is_closed(db: Connection) -> None:
    """It is never used again, because results may be missing."""
    wire = wire_on(db)
    with pytest.raises(psycopg.OperationalError):
        wire.send(db, [call("SELECT pg_terminate_backend(pg_backend_pid())"), call("SELECT %b::bigint", 1)])
    assert db.closed


class RoundTrips:
    """Counts the round trips of all stores in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        send, call = Wire.send, Wire.call

        def sending(wire: Wire, *args: Any) -> Any:
            self.count += 1
            return send(wire, *args)

        def calling(wire: Wire, *args: Any) -> Any:
            before = self.count
            result = call(wire, *args)
            self.count = max(self.count, before + 1)
            return result

        monkeypatch.setattr(Wire, "send", sending)
        monkeypatch.setattr(Wire, "call", calling)

    async def of(self, work: Awaitable[Any]) -> int:
        """Return the round trips of some work."""
        before = self.count
        await work
        return self.count - before


async def test_a_transaction_takes_few_round_trips(postgres_schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for a plain append. For others one that locks and reads, and one that writes and commits, and one for each
    question in between.
    """
    trips = RoundTrips(monkeypatch)
    async with World(Harness(backend=lambda _: PostgresBackend(postgres_schema))) as world:
        store = world.store
        assert await trips.of(store.create("r", created("a", inline(None)), actor="test")) == 2
        run = await world.own("r1")
        assert await trips.of(run.append(started(), completed())) == 1
        signal = SendCommands(run="r1", bodies=(signalled("s"),), actor="test")
        assert await trips.of(store.append(signal)) == 3  # was this command sent before?
        others = [SendCommands(run=each, bodies=(signalled("t", command="c2"),), actor="test") for each in ("r", "r1")]
        assert await trips.of(store.append(*others)) == 4
