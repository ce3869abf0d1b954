"""PostgreSQL only: URLs, refused servers, the order of the feed, and its files."""

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
from limpet.clock import FrozenClock, SystemClock
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
    """Return a world with a new store at a URL."""
    async with World(Harness(backend=lambda clock: PostgresBackend(url, clock), keys=keys)) as world:
        yield world


def sql(url: str, statement: str) -> list[tuple[object, ...]]:
    """Run a statement outside the store."""
    with psycopg.connect(Address.parse(url).server, autocommit=True) as db:
        found = db.execute(statement.encode())
        return found.fetchall() if found.description else []


# URLs


def test_a_url_is_parsed() -> None:
    """Limpet's own options are not passed to the server; all others are."""
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
def test_an_invalid_postgres_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        limpet.open_store(url)


def test_the_error_does_not_show_the_password() -> None:
    """This applies to the error about the URL."""
    with pytest.raises(InvalidArgument) as raised:
        limpet.open_store("postgresql://ann:hunter2@db/agents?prepare=perhaps")
    assert "hunter2" not in str(raised.value)


def test_a_missing_driver_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the exact command."""
    monkeypatch.setitem(sys.modules, "limpet.stores.postgres", None)
    with pytest.raises(ExtraMissing, match=r"pip install 'limpet\[postgres\]'"):
        limpet.open_store("postgresql://db/agents")


async def test_an_unreachable_server_is_reported(tmp_path: Path) -> None:
    """The error comes after `patience`, without hanging."""
    with pytest.raises(StoreUnavailable, match="no connection"):
        await Store(PostgresBackend(f"postgresql://ann@127.0.0.1:1/x?sslrootcert={tmp_path}", patience=0)).open()


async def test_a_long_wait_for_a_server_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a person at a terminal, or a reader of the log, learns why nothing happens."""
    monkeypatch.setattr("limpet.stores.postgres.backend.TELL_AFTER", 0)
    with pytest.raises(StoreUnavailable):
        await Store(PostgresBackend("postgresql://ann@127.0.0.1:1/x", patience="500ms")).open()
    [told] = [each.getMessage() for each in caplog.records]
    assert told.startswith("no connection yet, trying for 0.5 s: ")


# Refused servers


def test_an_old_primary_and_another_system_are_refused() -> None:
    """A process that has seen a timeline accepts no earlier one, and no other system."""
    server = Server(Address("postgresql://db/x"), "")
    check = server._check
    check((False, "000000020000000000000001", "7", "on", 180000, "UTF8"))
    check((False, "000000030000000000000001", "7", "on", 180000, "UTF8"))
    for wal_file, system in (("000000020000000000000009", "7"), ("000000030000000000000009", "8")):
        with pytest.raises(StaleServer):
            check((False, wal_file, system, "on", 180000, "UTF8"))
    assert str(ServerIdentity("7", 3)) == "timeline 3 of system 7"


def test_a_server_without_durability_or_too_old_is_refused() -> None:
    """Acknowledged writes must be durable."""
    for found in (
        (False, "0" * 24, "7", "off", 180000, "UTF8"),
        (False, "0" * 24, "7", "on", 130000, "UTF8"),
        (False, "0" * 24, "7", "on", 180000, "LATIN1"),
    ):
        with pytest.raises(StoreUnavailable):
            Server(Address("postgresql://db/x"), "")._check(found)


async def test_a_role_whose_commits_are_not_durable_is_refused(postgres_schema: str) -> None:
    with pytest.raises(StoreUnavailable, match="synchronous_commit"):
        await Store(
            PostgresBackend(f"{postgres_schema.replace('options=', 'options=-csynchronous_commit%3Doff%20')}")
        ).open()


async def test_a_newer_schema_is_refused(postgres_schema: str) -> None:
    async with world_at(postgres_schema):
        sql(postgres_schema, "UPDATE meta SET value = '99' WHERE name = 'schema'")
    with pytest.raises(NewerVersion):
        await Store(PostgresBackend(postgres_schema)).open()


async def test_a_schema_of_another_application_is_refused(postgres_schema: str) -> None:
    """Even if one of its tables has the name of one of ours."""
    schema = Address.parse(postgres_schema).schema
    sql(postgres_schema, f"CREATE SCHEMA {schema} CREATE TABLE meta (name TEXT, value TEXT)")
    with pytest.raises(StoreUnavailable, match="belongs to another application"):
        await Store(PostgresBackend(postgres_schema)).open()


async def test_saving_an_unchanged_contract_writes_nothing(postgres_schema: str) -> None:
    """The row is not even locked."""
    async with world_at(postgres_schema) as world:
        seen = []
        for row in (contract(), contract(), contract(takes="number")):
            await world.store.save_contracts([row])
            seen.append(sql(postgres_schema, "SELECT xmin::text, xmax::text FROM contracts"))
        assert seen[0] == seen[1] != seen[2]


# The feed


async def test_the_feed_waits_for_a_transaction_that_started_earlier(postgres_schema: str) -> None:
    """No later event is returned before it, and none is missed."""
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


async def test_the_feed_works_after_a_restored_dump(postgres_schema: str) -> None:
    """Transaction ids of the dumped server do not block the feed; a cursor from there is refused."""
    async with world_at(postgres_schema) as world:
        await world.create("r1")
        place = await world.store.feed_end()
        sql(postgres_schema, "UPDATE events SET xid = '1000000000'")
        assert (await world.store.feed()).events == ()
    async with world_at(postgres_schema) as world:
        assert [event.run for event in (await world.store.feed()).events] == ["r1"]
        with pytest.raises(InvalidValue, match="restored"):
            await world.store.feed(place)


async def test_a_cursor_is_valid_after_its_event_was_pruned(postgres_schema: str) -> None:
    """The feed continues after the pruned event."""
    async with world_at(postgres_schema) as world:
        await world.create("r1")
        place = await world.store.feed_end()
        await world.create("r2")
        sql(postgres_schema, "DELETE FROM events WHERE run = (SELECT number FROM streams WHERE id = 'r1')")
        assert [event.run for event in (await world.store.feed(place)).events] == ["r2"]


async def test_the_end_of_the_feed_is_the_cursor_of_a_committed_event(postgres_schema: str) -> None:
    """A crash of the server cannot make the cursor invalid."""
    async with world_at(postgres_schema) as world:
        await world.create("r1")
        for _ in range(5):
            sql(postgres_schema, "BEGIN; SELECT pg_current_xact_id(); ROLLBACK")
        [(xid, position)] = sql(postgres_schema, "SELECT xid::text, position::text FROM events")
        assert (await world.store.feed_end()).endswith(f".{xid}.{position}")


# Text and numbers


async def test_text_with_nul_characters_is_read_back_unchanged(postgres_schema: str) -> None:
    """The characters are NUL and those that replace it."""
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


async def test_the_inbox_matches_whole_names(postgres_schema: str) -> None:
    """A substring of a name, quoted or not, does not match."""
    async with world_at(postgres_schema) as world:
        owner = await world.own()
        await owner.append(asked("q1", to=('foo,"ann"', "annabel", 'x"ann')), asked("q2", to=("bob", "ann")))
        assert [row.id for row in await world.store.requests(RequestFilter(to="ann"))] == ["q2"]
        assert [row.id for row in await world.store.requests(RequestFilter(to='x"ann'))] == ["q1"]


# Rows


async def test_a_stream_with_events_cannot_be_deleted(postgres_schema: str) -> None:
    """A foreign key prevents it."""
    async with world_at(postgres_schema) as world:
        await world.create()
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        sql(postgres_schema, "DELETE FROM streams")


@pytest.mark.parametrize(
    "change",
    [
        "status = 'running'",
        "status = 'open'",
        "status = 'lost'",
        "worker = 'w1'",
        "type = 'record'",
        "ended = 1",
        "status = 'completed', ended = 1",
        "origin = 'r0'",
        "fence = -1",
        "id = ''",
        "ready_at = NULL, status = 'running', worker = 'w1', seq = 0",
    ],
)
async def test_a_row_that_contradicts_itself_is_refused(postgres_schema: str, change: str) -> None:
    async with world_at(postgres_schema) as world:
        await world.create()
    with pytest.raises(psycopg.errors.CheckViolation, match="contradicts itself"):
        sql(postgres_schema, f"UPDATE streams SET {change}")
    sql(postgres_schema, "UPDATE streams SET status = 'completed', ready_at = NULL, ended = 1")


async def test_an_append_evaluates_no_check(postgres_schema: str) -> None:
    """The server would read every CHECK of the two tables again for each append."""
    checks = "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = ANY('{streams, events}'::regclass[])"
    refuse = "CREATE OR REPLACE FUNCTION check_stream() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no'; END$$"
    async with world_at(postgres_schema) as world:
        owner = await world.own()
        assert sql(postgres_schema, checks) == []
        sql(postgres_schema, refuse)
        await owner.append(completed(1))


async def test_damaged_rows_labels_and_requests_are_rebuilt(postgres_schema: str) -> None:
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


async def test_counters_match_a_recount(postgres_schema: str) -> None:
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


async def test_a_callers_connection_is_reset_after_use(postgres_schema: str) -> None:
    """Settings, temporary tables and factories of one caller are reset for the next."""

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
    """While a caller's code runs, its run can get commands."""
    async with world_at(postgres_schema) as world:
        owner, loop = await world.own(), asyncio.get_running_loop()

        def work(connection: psycopg.Connection) -> tuple[list[b.StepCompleted], list[object]]:
            sending = asyncio.run_coroutine_threadsafe(world.store.send_commands("r1", signalled(), actor="ann"), loop)
            sending.result(60)
            return [completed(1)], []

        done = await owner.transact(work)  # type: ignore[arg-type]
        assert [sealed.event.kind for sealed in done.missed] == ["signal.received"]


async def test_a_locked_row_does_not_block_other_writes(postgres_schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that waits too long is written one by one, and only the append that needs the row is refused."""
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
            sending = [world.store.send_commands(run, signalled(), actor="ann") for run in ("r1", "r2")]
            blocked, done = await asyncio.gather(*sending, return_exceptions=True)
        assert isinstance(blocked, StoreBusy)
        assert not isinstance(done, BaseException)
        await world.store.send_commands("r1", signalled(), actor="ann")


async def test_a_missing_table_is_refused_and_needs_no_reopening(postgres_schema: str) -> None:
    """Nothing is written, and the store works again without reopening once the table is back."""
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
    """The rest of the batch is written, although the database refused the whole batch."""
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
def test_errors_are_classified_as_lost_busy_or_refused(error: psycopg.Error, lost: bool, busy: bool) -> None:
    """A lost connection is reopened, a busy database is retried since nothing was written, and other errors are
    refused.
    """
    assert is_lost(error) is lost
    assert lost or isinstance(translated(error), StoreBusy if busy else StoreRefused)


@pytest.mark.parametrize("setting", ["row_factory", "adapters", "synchronous_commit"])
async def test_a_callers_settings_do_not_affect_the_store(postgres_schema: str, setting: str) -> None:
    """This applies to the append of the transaction and to the next one."""

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
async def test_an_error_of_the_callers_other_database_is_raised(postgres_schema: str, error: psycopg.Error) -> None:
    """An error of the caller's other connections is raised after one call, and does not affect the store."""
    calls = []

    def work(connection: psycopg.Connection) -> NoReturn:
        calls.append(1)
        raise error

    async with world_at(postgres_schema) as world:
        owner = await world.own()
        with pytest.raises(type(error)):
            await owner.transact(work)
        assert calls == [1]


async def test_a_swallowed_error_of_the_work_is_refused(postgres_schema: str) -> None:
    """The failed statement has rolled back the caller's writes."""

    def work(connection: psycopg.Connection) -> tuple[list[b.StepCompleted], list[object]]:
        with suppress(psycopg.Error):
            connection.execute("SELECT nonsense")
        return [completed(1)], []

    async with world_at(postgres_schema) as world:
        owner = await world.own()
        with pytest.raises(InvalidAppend, match="ignored its error"):
            await owner.transact(work)  # type: ignore[arg-type]


# Workers


async def test_a_worker_in_the_middle_of_a_claim_is_not_removed(postgres_schema: str) -> None:
    """Its lease may have expired; while it claims, its row stays."""
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


async def test_of_concurrent_registrations_of_one_id_one_succeeds(postgres_schema: str) -> None:
    """Six stores register the same id concurrently."""
    async with world_at(postgres_schema) as world:
        stores = [await world.another() for _ in range(6)]
        row = WorkerRow(id="w1", agents={"a": ("1",)})
        done = await asyncio.gather(*(each.register(row, lease=LEASE) for each in stores), return_exceptions=True)
        assert sum(isinstance(each, WorkerAlive) for each in done) == 5


def test_a_process_is_identified_by_more_than_its_pid() -> None:
    """A live process has not ended, even if its pid was used before; for another machine, this is unknown."""
    here = this_process()
    assert not has_ended(here)
    place, _, _ = here.rpartition("/")
    assert has_ended(f"{place}/1")
    assert not has_ended(f"another-boot/{here.partition('/')[2]}")
    assert not has_ended("")


async def test_a_worker_of_another_machine_is_alive_until_its_lease_expires(postgres_schema: str) -> None:
    """Its process cannot be checked from here."""
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
    """Return a server whose files can be read."""
    with PostgresServer(fsync="off") as server:
        yield server


@pytest.mark.parametrize("encrypted", [True, False])
async def test_user_data_is_unreadable_in_the_servers_files(own_server: PostgresServer, encrypted: bool) -> None:
    """Payloads, blobs, goals, labels and questions are unreadable in tables and in the write-ahead log; without keys
    they are readable.
    """
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


async def test_a_frozen_clock_replaces_the_servers_clock(postgres_schema: str) -> None:
    """Without a frozen clock, the server's clock is used."""
    async with Store(PostgresBackend(postgres_schema)) as store:
        assert abs(await store.now() - SystemClock().now()) < 3600 * 10**6
        await store.create("r1", created(), actor="test")
    async with Store(PostgresBackend(postgres_schema, FrozenClock(5))) as store:
        assert await store.now() == 5
