"""What is PostgreSQL's own: addresses, servers that are refused, the order of the feed, what lies in its files."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

import psycopg
import pytest

import limpet
from limpet.clock import FrozenClock
from limpet.errors import (
    ExtraMissing,
    InvalidAppend,
    InvalidArgument,
    InvalidValue,
    NewerVersion,
    StaleServer,
    StoreBusy,
    StoreRefused,
    StoreUnavailable,
    WorkerAlive,
)
from limpet.events import bodies as b
from limpet.events import inline
from limpet.events.parts import StatePatch
from limpet.stores import RequestFilter, RunFilter, Store, WorkerRow
from limpet.stores.cipher import MasterKeys
from limpet.stores.conformance.suite import LEASE, Harness, World, asked, completed, contract, created, signalled
from limpet.stores.postgres import PostgresBackend
from limpet.stores.postgres.connection import Address, Server, ServerIdentity, is_lost, translated
from limpet.stores.processes import has_ended, this_process
from limpet.stores.sql_files import load
from tests.servers.postgres import PostgresServer

MARKER = "the-secret-of-the-sea"


@asynccontextmanager
async def world_at(url: str, keys: MasterKeys | None = None) -> AsyncIterator[World]:
    """A fresh store there, and the means to bring it into any state."""
    async with World(Harness(backend=lambda clock: PostgresBackend(url, clock), keys=keys)) as world:
        yield world


def sql(url: str, statement: str) -> list[tuple[object, ...]]:
    """Run a statement of a test's own."""
    with psycopg.connect(Address.parse(url).server, autocommit=True) as db:
        found = db.execute(statement.encode())
        return found.fetchall() if found.description else []


# Addresses


def test_an_address_is_taken_apart() -> None:
    """Our own words do not reach the server; everybody else's do."""
    direct = quote("postgresql://db:5432/agents", safe="")
    address = Address.parse(f"postgres://ann@pool:6432/agents?schema=s1&listen={direct}&prepare=no&sslmode=require")
    assert address == Address(
        "postgresql://ann@pool:6432/agents?sslmode=require", "s1", "postgresql://db:5432/agents", prepare=False
    )
    socket = Address.parse("postgresql:///agents?host=/run/postgresql&options=-c%20work_mem%3D8MB")
    assert socket.server == "postgresql:///agents?host=%2Frun%2Fpostgresql&options=-c%20work_mem%3D8MB"
    assert Address.parse("postgresql://db/agents") == Address("postgresql://db/agents", "limpet", "", prepare=True)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:agents",
        "postgresql://db/agents?schema=Robert'); DROP",
        "postgresql://db/agents?schema=",
        "postgresql://db/agents?prepare=perhaps",
        "postgresql://db/agents?listen=yes",
    ],
)
def test_an_address_that_cannot_be_is_refused(url: str) -> None:
    """Before anything is touched."""
    with pytest.raises(InvalidArgument):
        limpet.open_store(url)


def test_a_password_is_not_shown() -> None:
    """Not in the error about the address."""
    with pytest.raises(InvalidArgument) as raised:
        limpet.open_store("postgresql://ann:hunter2@db/agents?prepare=perhaps")
    assert "hunter2" not in str(raised.value)


def test_a_missing_driver_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the exact command."""
    monkeypatch.setitem(sys.modules, "limpet.stores.postgres", None)
    with pytest.raises(ExtraMissing, match=r"pip install 'limpet\[postgres\]'"):
        limpet.open_store("postgresql://db/agents")


async def test_a_server_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    """When patience is over, and without hanging."""
    with pytest.raises(StoreUnavailable, match="no connection"):
        await Store(PostgresBackend(f"postgresql://nobody@127.0.0.1:1/x?sslrootcert={tmp_path}", patience=0)).open()


# Servers that are refused


def test_an_old_primary_and_another_database_are_refused() -> None:
    """A process that has seen a timeline takes no earlier one, and no other system."""
    server = Server(Address("postgresql://db/x"), "")
    check = server._check
    check((False, "000000020000000000000001", "7", "on", 180000, "UTF8"))
    check((False, "000000030000000000000001", "7", "on", 180000, "UTF8"))
    for wal_file, system in (("000000020000000000000009", "7"), ("000000030000000000000009", "8")):
        with pytest.raises(StaleServer):
            check((False, wal_file, system, "on", 180000, "UTF8"))
    assert str(ServerIdentity("7", 3)) == "timeline 3 of system 7"


def test_a_server_that_forgets_or_is_too_old_is_refused() -> None:
    """Acknowledged means durable."""
    for found in (
        (False, "0" * 24, "7", "off", 180000, "UTF8"),
        (False, "0" * 24, "7", "on", 130000, "UTF8"),
        (False, "0" * 24, "7", "on", 180000, "LATIN1"),
    ):
        with pytest.raises(StoreUnavailable):
            Server(Address("postgresql://db/x"), "")._check(found)


async def test_a_role_whose_commits_are_not_durable_is_refused(postgres_schema: str) -> None:
    """On a real server."""
    with pytest.raises(StoreUnavailable, match="synchronous_commit"):
        await Store(
            PostgresBackend(f"{postgres_schema.replace('options=', 'options=-csynchronous_commit%3Doff%20')}")
        ).open()


async def test_a_newer_schema_is_refused(postgres_schema: str) -> None:
    """And left as it is."""
    async with world_at(postgres_schema):
        sql(postgres_schema, "UPDATE meta SET value = '99' WHERE name = 'schema'")
    with pytest.raises(NewerVersion):
        await Store(PostgresBackend(postgres_schema)).open()


async def test_a_contract_that_is_there_costs_no_write(postgres_schema: str) -> None:
    """Its row is not even locked."""
    async with world_at(postgres_schema) as world:
        seen = []
        for row in (contract(), contract(), contract(takes="number")):
            await world.store.save_contracts([row])
            seen.append(sql(postgres_schema, "SELECT xmin::text, xmax::text FROM contracts"))
        assert seen[0] == seen[1] != seen[2]


# The feed


async def test_the_feed_waits_for_a_transaction_that_began_earlier(postgres_schema: str) -> None:
    """What commits late comes in its place: nothing is given that would overtake it, and nothing is missed."""
    async with world_at(postgres_schema) as world:
        await world.create("r1")
        with psycopg.connect(Address.parse(postgres_schema).server) as early:
            early.execute("SELECT pg_current_xact_id()")
            await world.create("r2")
            first = await world.store.feed()
            assert [event.run for event in first.events] == ["r1"]
            assert (await world.store.feed(first.next)).events == ()
        rest = await world.store.feed(first.next)
        assert [event.run for event in rest.events] == ["r2"]


async def test_a_restored_dump_is_fed_again(postgres_schema: str) -> None:
    """Transaction numbers of another server's life do not silence the feed; a place from that life is refused."""
    async with world_at(postgres_schema) as world:
        await world.create("r1")
        place = await world.store.feed_end()
        sql(postgres_schema, "UPDATE events SET xid = '1000000000'")
        assert (await world.store.feed()).events == ()
    async with world_at(postgres_schema) as world:
        assert [event.run for event in (await world.store.feed()).events] == ["r1"]
        with pytest.raises(InvalidValue, match="restored"):
            await world.store.feed(place)


async def test_a_place_outlives_its_event(postgres_schema: str) -> None:
    """What was pruned is not missed; the feed goes on behind it."""
    async with world_at(postgres_schema) as world:
        await world.create("r1")
        place = await world.store.feed_end()
        await world.create("r2")
        sql(postgres_schema, "DELETE FROM events WHERE run = (SELECT number FROM streams WHERE id = 'r1')")
        assert [event.run for event in (await world.store.feed(place)).events] == ["r2"]


async def test_a_place_is_of_an_event_that_is_there(postgres_schema: str) -> None:
    """Not of a transaction that a crash of the server may take back."""
    async with world_at(postgres_schema) as world:
        await world.create("r1")
        for _ in range(5):
            sql(postgres_schema, "BEGIN; SELECT pg_current_xact_id(); ROLLBACK")
        [(xid, position)] = sql(postgres_schema, "SELECT xid::text, position::text FROM events")
        assert (await world.store.feed_end()).endswith(f".{xid}.{position}")


# Text and numbers


async def test_words_that_postgresql_cannot_hold_come_back(postgres_schema: str) -> None:
    """NUL, and the characters that stand for it."""
    odd = "a\0b\ue000c\ue0000\ue0001"
    async with world_at(postgres_schema) as world:
        owner = await world.own("r1", agent="a", session=odd, labels={odd: odd}, user=odd)
        await owner.append(b.StatePatched(name="p#1", patch=StatePatch(goal=odd)), asked("q1", to=(odd,), risk=odd))
        for where in (RunFilter(session=odd), RunFilter(labels={odd: odd}), RunFilter(text=odd), RunFilter(user=odd)):
            [row] = (await world.store.runs(where)).rows
            assert (row.goal, row.session, row.labels) == (odd, odd, {odd: odd})
        [request] = await world.store.requests(RequestFilter(to=odd, risk=odd))
        assert request.to == (odd,)
        assert await world.store.check_rows("r1") == []


async def test_the_inbox_is_read_by_whole_names(postgres_schema: str) -> None:
    """A name that is part of another, quoted or not, is not that other."""
    async with world_at(postgres_schema) as world:
        owner = await world.own()
        await owner.append(asked("q1", to=('foo,"ann"', "annabel", 'x"ann')), asked("q2", to=("bob", "ann")))
        assert [row.id for row in await world.store.requests(RequestFilter(to="ann"))] == ["q2"]
        assert [row.id for row in await world.store.requests(RequestFilter(to='x"ann'))] == ["q1"]


# Rows


async def test_a_stream_with_events_cannot_be_deleted(postgres_schema: str) -> None:
    """The schema itself keeps a log from losing its row."""
    async with world_at(postgres_schema) as world:
        await world.create()
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        sql(postgres_schema, "DELETE FROM streams")


async def test_damaged_rows_are_found_and_made_anew(postgres_schema: str) -> None:
    """Row, labels and requests."""
    async with world_at(postgres_schema) as world:
        owner = await world.own(labels={"team": "blue"})
        await owner.append(asked("q1"), completed(1))
        sql(postgres_schema, "UPDATE streams SET step = 7, goal = 'none'")
        sql(postgres_schema, "DELETE FROM labels; DELETE FROM requests")
        assert len(await world.store.check_rows("r1")) == 4
        await world.store.rebuild("r1")
        assert await world.store.check_rows("r1") == []
        assert (await world.store.runs(RunFilter(labels={"team": "blue"}))).rows[0].id == "r1"
        assert [row.id for row in await world.store.requests()] == ["q1"]


async def test_counters_do_not_drift(postgres_schema: str) -> None:
    """They are what counting would find."""
    async with world_at(postgres_schema) as world:
        for place in range(5):
            await world.create(f"r{place}")
        await world.worker()
        claimed = await world.claim(limit=3)
        await world.store.release(claimed[0].row.id, fence=1, worker="w1", reason="test")
        counted = sql(postgres_schema, "SELECT agent, status, count(*) FROM streams GROUP BY agent, status")
        assert {(agent, status): n for agent, status, n in counted} == await world.store.counts()
        assert await world.store.check_counts() == []
        sql(postgres_schema, "UPDATE counters SET n = n + 5")
        assert len(await world.store.check_counts()) > 0
        await world.store.recount()
        assert await world.store.check_counts() == []


# A caller's own writes


async def test_a_lent_connection_is_left_as_new(postgres_schema: str) -> None:
    """What one caller set, made or changed on it is not there for the next."""

    def first(connection: psycopg.Connection) -> tuple[list[b.StepCompleted], list[object]]:
        connection.execute("SET TIME ZONE 'Asia/Tokyo'")
        connection.execute("CREATE TEMP TABLE mine (id INTEGER)")
        connection.row_factory = psycopg.rows.dict_row  # type: ignore[assignment]
        return [completed(1)], []

    seen = []

    def second(connection: psycopg.Connection) -> tuple[list[b.StepCompleted], list[object]]:
        seen.extend(connection.execute("SELECT current_setting('timezone'), to_regclass('mine')").fetchall())
        return [completed(2)], []

    async with world_at(postgres_schema) as world:
        owner = await world.own()
        await owner.transact(first)  # type: ignore[arg-type]
        await owner.transact(second)  # type: ignore[arg-type]
    [(zone, table)] = seen
    assert zone != "Asia/Tokyo"
    assert table is None


async def test_a_command_does_not_wait_for_a_callers_code(postgres_schema: str) -> None:
    """While a caller's code runs, its run can be told something, and other runs are written."""
    async with world_at(postgres_schema) as world:
        owner, loop = await world.own(), asyncio.get_running_loop()

        def work(connection: psycopg.Connection) -> tuple[list[b.StepCompleted], list[object]]:
            told = asyncio.run_coroutine_threadsafe(world.store.send_commands("r1", signalled(), actor="ann"), loop)
            told.result(60)
            return [completed(1)], []

        done = await owner.transact(work)  # type: ignore[arg-type]
        assert [sealed.event.kind for sealed in done.missed] == ["signal.received"]


async def test_a_row_that_somebody_holds_stops_nobody_else(
    postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that waits too long for it is done one by one, and only the one that needs it is refused."""
    long, short = "lock_timeout = '5s'", "lock_timeout = '500ms'"
    patient = load("limpet.stores.postgres", "statements.sql", schema="s", channel="c")
    assert [name for name, statement in patient.items() if long in statement] == ["settings", "impatient"]

    def hasty(*where: str, **words: str) -> dict[str, str]:
        return {name: statement.replace(long, short) for name, statement in load(*where, **words).items()}

    monkeypatch.setattr("limpet.stores.postgres.backend.load", hasty)
    async with world_at(postgres_schema) as world:
        await world.create("r1")
        await world.create("r2")
        with psycopg.connect(Address.parse(postgres_schema).server) as holding:
            holding.execute("SELECT 1 FROM streams WHERE id = 'r1' FOR UPDATE")
            world.store.patience = 0
            told = [world.store.send_commands(run, signalled(), actor="ann") for run in ("r1", "r2")]
            blocked, done = await asyncio.gather(*told, return_exceptions=True)
        assert isinstance(blocked, StoreBusy)
        assert not isinstance(done, BaseException)
        await world.store.send_commands("r1", signalled(), actor="ann")


async def test_a_missing_privilege_is_said_and_forgotten(postgres_schema: str) -> None:
    """Nothing was written, and nothing has to be reopened when it is mended."""
    async with world_at(postgres_schema) as world:
        await world.create("r1")
        sql(postgres_schema, "ALTER TABLE events RENAME TO elsewhere")
        with pytest.raises(StoreRefused):
            await world.create("r2")
        with pytest.raises(StoreRefused):
            await world.log("r1")
        sql(postgres_schema, "ALTER TABLE elsewhere RENAME TO events")
        await world.create("r2")


async def test_one_operation_that_the_database_refuses_fails_alone(postgres_schema: str) -> None:
    """The others of its batch are done, though the database refused the batch as a whole."""
    async with world_at(postgres_schema) as world:
        refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not this one'; END$$"
        sql(postgres_schema, refuse)
        when = "BEFORE INSERT ON streams FOR EACH ROW WHEN (NEW.id = 'r7')"
        sql(postgres_schema, f"CREATE TRIGGER refuse {when} EXECUTE FUNCTION refuse()")
        creating = [world.store.create(f"r{place}", created(), actor="test") for place in range(20)]
        done = await asyncio.gather(*creating, return_exceptions=True)
        refused = [place for place, each in enumerate(done) if isinstance(each, BaseException)]
        assert refused == [7]
        assert isinstance(done[7], StoreRefused)
        assert await world.store.count() == 19


@pytest.mark.parametrize(
    ("error", "lost", "busy"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), True, False),
        (psycopg.errors.ConnectionFailure("08006"), True, False),
        (psycopg.errors.CrashShutdown("57P02"), True, False),
        (psycopg.errors.IoError("58030"), True, False),
        (psycopg.errors.SerializationFailure("40001"), False, True),
        (psycopg.errors.DiskFull("53100"), False, True),
        (psycopg.errors.TooManyConnections("53300"), False, True),
        (psycopg.errors.LockNotAvailable("55P03"), False, True),
        (psycopg.errors.QueryCanceled("57014"), False, True),
        (psycopg.errors.InsufficientPrivilege("42501"), False, False),
        (psycopg.errors.CheckViolation("23514"), False, False),
        (psycopg.DataError("text fields cannot contain NUL"), False, False),  # the driver sent nothing
    ],
    ids=str,
)
def test_errors_are_told_apart_by_their_class(error: psycopg.Error, lost: bool, busy: bool) -> None:
    """Lost: reconnect and find out. Busy: nothing was written, repeat it. The rest is refused."""
    assert is_lost(error) is lost
    assert lost or isinstance(translated(error), StoreBusy if busy else StoreRefused)


@pytest.mark.parametrize("setting", ["row_factory", "adapters", "synchronous_commit"])
async def test_what_a_caller_sets_is_not_ours(postgres_schema: str, setting: str) -> None:
    """Neither while its transaction is appended to, nor for the next one."""

    class Shouting(psycopg.adapt.Loader):
        def load(self, data: object) -> str:
            return f"#{data!r}"

    def work(connection: psycopg.Connection) -> tuple[list[b.StepCompleted], list[object]]:
        if setting == "row_factory":
            connection.row_factory = psycopg.rows.dict_row  # type: ignore[assignment]
        elif setting == "adapters":
            connection.adapters.register_loader("int8", Shouting)
        else:
            connection.execute("SET synchronous_commit = off")
        return [completed(1)], []

    async with world_at(postgres_schema) as world:
        owner = await world.own()
        for _ in range(3):
            await owner.transact(work)  # type: ignore[arg-type]
        assert await world.store.check_rows("r1") == []


@pytest.mark.parametrize(
    "error",
    [psycopg.errors.ReadOnlySqlTransaction("x"), psycopg.errors.DeadlockDetected("x"), psycopg.OperationalError("x")],
)
async def test_an_error_of_another_database_is_the_callers(postgres_schema: str, error: psycopg.Error) -> None:
    """What a caller's other connections raise says nothing about ours: it is raised, after one call."""
    calls = []

    def work(connection: psycopg.Connection) -> NoReturn:
        calls.append(1)
        raise error

    async with world_at(postgres_schema) as world:
        owner = await world.own()
        with pytest.raises(type(error)):
            await owner.transact(work)
        assert calls == [1]


async def test_a_swallowed_error_is_named(postgres_schema: str) -> None:
    """A failed statement has undone the caller's writes, whatever its code makes of it."""

    def work(connection: psycopg.Connection) -> tuple[list[b.StepCompleted], list[object]]:
        with suppress(psycopg.Error):
            connection.execute("SELECT nonsense")
        return [completed(1)], []

    async with world_at(postgres_schema) as world:
        owner = await world.own()
        with pytest.raises(InvalidAppend, match="ignored its error"):
            await owner.transact(work)  # type: ignore[arg-type]


# Workers


async def test_a_worker_that_is_just_claiming_is_not_dropped(postgres_schema: str) -> None:
    """Its lease may be over: while it takes a run, nobody forgets its name."""
    async with world_at(postgres_schema) as world:
        await world.worker("w1")
        world.advance("11s")
        await world.worker("w2")
        with psycopg.connect(Address.parse(postgres_schema).server) as claiming:
            claiming.execute("SELECT 1 FROM workers WHERE id = 'w1' FOR KEY SHARE")
            await world.claim("w2")
            assert {row.id for row in await world.store.workers()} == {"w1", "w2"}
        await world.claim("w2")
        assert {row.id for row in await world.store.workers()} == {"w2"}


async def test_a_name_is_given_to_one_of_many(postgres_schema: str) -> None:
    """All of them ask at once, each from a store of its own."""
    async with world_at(postgres_schema) as world:
        stores = [await world.another() for _ in range(6)]
        row = WorkerRow(id="w1", agents={"a": ("1",)})
        done = await asyncio.gather(*(each.register(row, lease=LEASE) for each in stores), return_exceptions=True)
        assert sum(isinstance(each, WorkerAlive) for each in done) == 5


def test_a_process_is_known_by_more_than_its_number() -> None:
    """A living one has not ended, whatever its number was used for before; of another machine nobody can tell."""
    here = this_process()
    assert not has_ended(here)
    place, _, _ = here.rpartition("/")
    assert has_ended(f"{place}/1")
    assert not has_ended(f"another-boot/{here.partition('/')[2]}")
    assert not has_ended("")


async def test_a_worker_of_another_machine_is_believed_until_its_lease_ends(postgres_schema: str) -> None:
    """Nobody here can see whether it lives."""
    async with world_at(postgres_schema) as world:
        await world.store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=LEASE)
        sql(postgres_schema, "UPDATE workers SET host = 'elsewhere/1/2/3#x'")
        with pytest.raises(WorkerAlive):
            await world.store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=LEASE)
        world.advance("11s")
        await world.store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=LEASE)


# Encryption


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server whose files can be looked at."""
    with PostgresServer(fsync="off") as server:
        yield server


@pytest.mark.parametrize("encrypted", [True, False])
async def test_nothing_can_be_read_in_the_files(own_server: PostgresServer, encrypted: bool) -> None:
    """Payloads, blobs, goals, labels and questions: in tables and in the write-ahead log. Without keys they can."""
    keys = MasterKeys(lambda: bytes(range(32))) if encrypted else None
    async with world_at(own_server.url, keys) as world:
        owner = await world.own(input={"card": MARKER}, labels={MARKER: MARKER})
        payload, blobs = world.store.pack([MARKER, *map(str, os.urandom(20_000))])
        output = b.StepCompleted(name="t#1", number=1, attempt=1, output=payload)
        await owner.append(output, b.StatePatched(name="p#1", patch=StatePatch(goal=MARKER)), blobs=blobs)
        await owner.append(asked("q1", question=MARKER, context=inline(MARKER)))
        await world.store.save_snapshot("r1", owner.head, MARKER.encode())
        await world.store.save_contracts([contract(takes=MARKER)])
        await world.store.send_commands("r1", signalled(value=MARKER), actor="ann")
        assert (await world.store.get("r1")).goal == MARKER
    own_server.sql("CHECKPOINT")
    found = [path for path in own_server.data.rglob("*") if path.is_file() and MARKER.encode() in path.read_bytes()]
    assert bool(found) is not encrypted


async def test_a_frozen_clock_is_not_the_servers(postgres_schema: str) -> None:
    """Without one, the server's clock counts."""
    async with Store(PostgresBackend(postgres_schema)) as store:
        assert abs(await store.now() - limpet.clock.SystemClock().now()) < 3600 * 10**6
        await store.create("r1", created(), actor="test")
    async with Store(PostgresBackend(postgres_schema, FrozenClock(5))) as store:
        assert await store.now() == 5
