"""Migrations are complete after any death and with concurrent processes; a newer schema is left alone."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from msgspec.structs import replace

from limpet import open_store
from limpet.errors import NewerVersion
from limpet.events import AnyBody, Event
from limpet.events import bodies as b
from limpet.ids import SeededIds
from limpet.service.audit import AuditEvent, AuditFilter, AuditLog, audit_page
from limpet.stores import Create, RunRow, TokenRow
from limpet.stores.columns import columns
from limpet.stores.conformance.suite import contract, created
from limpet.stores.postgres import migrate as on_postgres
from limpet.stores.sql_files import scripts
from limpet.stores.sqlite import migrate as on_sqlite
from limpet.stores.writes import DERIVED
from tests.crash.jobs import open_and_die, open_only
from tests.crash.processes import Child, start_all
from tests.servers.postgres import drop_schema

PROCESSES = 10
NEWEST = {"file": on_sqlite.newest(), "schema": on_postgres.newest()}
LOOK = {
    "columns": """SELECT table_name, column_name, ordinal_position, data_type, collation_name, is_nullable,
        column_default, is_identity, identity_generation FROM information_schema.columns WHERE table_schema = %s""",
    "constraints": """SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = %s::regnamespace""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = %s",
    "triggers": """SELECT t.tgname, pg_get_triggerdef(t.oid) FROM pg_trigger AS t
        JOIN pg_class AS c ON c.oid = t.tgrelid WHERE c.relnamespace = %s::regnamespace AND NOT t.tgisinternal""",
    "functions": "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = %s::regnamespace",
    "relations": """SELECT relname, relkind::text, reloptions::text, pg_get_expr(relpartbound, oid) FROM pg_class
        WHERE relnamespace = %s::regnamespace""",
    "storage": """SELECT c.relname, a.attname, a.attstorage::text FROM pg_attribute AS a
        JOIN pg_class AS c ON c.oid = a.attrelid WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p')""",
}
Fresh = Callable[[], str]
NEW_SCHEMAS: dict[bool, object] = {}


@pytest.fixture
def fresh_schema(postgres: str) -> Iterator[Fresh]:
    """Makes URLs of missing schemas."""
    made = []

    def fresh() -> str:
        made.append(f"limpet_{os.urandom(6).hex()}")
        return f"{postgres}?schema={made[-1]}"

    yield fresh
    for schema in made:
        drop_schema(postgres, schema)


@pytest.fixture
def fresh_file(tmp_path: Path) -> Fresh:
    """Makes URLs of missing files."""
    numbers = count()
    return lambda: f"sqlite:///{tmp_path / str(next(numbers))}.db"


@pytest.fixture(params=["sqlite", "postgres"])
def fresh(request: pytest.FixtureRequest) -> Fresh:
    """Makes URLs of missing stores."""
    found: Fresh = request.getfixturevalue("fresh_file" if request.param == "sqlite" else "fresh_schema")
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Start at every older version with --full; otherwise at the oldest, which needs all migrations, and the newest."""
    full, common = metafunc.config.getoption("--full"), min(NEWEST.values())
    versions = range(1, common) if full else (1, common - 1)
    if "step" in metafunc.fixturenames:
        empty = [("file", "statements", 0, 18), ("file", "files", 0, 70), ("schema", "queries", 0, 60)]
        # The oldest version needs all migrations, and therefore has the most places.
        oldest = [("file", "statements", 1, 9), ("file", "files", 1, 24), ("schema", "queries", 1, 60)]
        ways = (("file", "statements", 6), ("file", "files", 4), ("schema", "queries", 4))
        older = [
            (kind, how, version, step)
            for kind, how, step in ways
            for version in range(2 if full else NEWEST[kind] - 1, NEWEST[kind])
        ]
        metafunc.parametrize(("kind", "how", "older", "step"), [*empty, *oldest, *older])
    elif "older_or_none" in metafunc.fixturenames:
        metafunc.parametrize("older_or_none", [0, *versions])
    elif "older" in metafunc.fixturenames:
        metafunc.parametrize("older", sorted({*versions, *range(4, common, 4)}))


async def test_an_interrupted_migration_is_finished_by_the_next_process(
    kind: str, how: str, older: int, step: int, request: pytest.FixtureRequest, full: bool
) -> None:
    """The process dies at its n-th statement, write or sync, for every n with --full. The schema equals a new one."""
    fresh: Fresh = request.getfixturevalue(f"fresh_{kind}")
    wanted, died = await new_schema(fresh), 0
    for place in count(1, 1 if full else step):
        url = fresh()
        await make_store(url, older)
        child = Child(open_and_die, url, how, place)
        if child.end() == 0:
            break
        assert child.end() == -9
        died += 1
        assert await opened_schema(url) == wanted
    print(f"{how}: died at {died} places")
    assert died > 2


async def test_ten_concurrent_processes_create_or_migrate_one_schema(fresh: Fresh, older_or_none: int) -> None:
    """The store is missing or older. The schema equals a new one."""
    url = fresh()
    await make_store(url, older_or_none)
    opening = start_all([(open_only, url)] * PROCESSES)
    for each in opening:
        each.send("go")
    assert [each.end() for each in opening] == [0] * PROCESSES
    assert schema_of(url) == await new_schema(fresh)


async def test_an_older_store_is_migrated_with_its_runs(fresh: Fresh, older: int) -> None:
    """Its schema equals a new one, and new features work."""
    url, wanted = fresh(), await new_schema(fresh)
    await make_store(url, older)
    assert schema_of(url) != wanted
    old = [await write_old_stream(url, older, *each) for each in (("r1", created()), ("c1", b.ConversationCreated()))]
    async with open_store(url) as store:
        for row, events in old:
            found = await store.get(row.id)
            assert (replace(found, number=row.number), await store.read(row.id)) == (row, events)
            assert await store.check_rows(row.id) == []
        await store.create("r2", created(), actor="test")
        await store.save_contracts([contract("a")])
        assert [row.agent for row in await store.contracts()] == ["a"]
        token = await store.add_token(TokenRow(id="t1", name="ann", roles=("viewer",), digest=bytes(32)))
        assert await store.tokens() == [token]
        await AuditLog(store, SeededIds()).record(AuditEvent(action="login"))
        assert [each.action for each in await audit_page(store, AuditFilter(), limit=5)] == ["login"]
    assert schema_of(url) == wanted


async def test_a_newer_schema_is_refused_and_unchanged(fresh: Fresh) -> None:
    url = fresh()
    before = await opened_schema(url)
    execute(url, "UPDATE {meta} SET value = '99' WHERE name = 'schema'")
    with pytest.raises(NewerVersion) as error:
        await open_store(url).open()
    assert "99" in error.value.what
    assert schema_of(url) == before


async def write_old_stream(url: str, version: int, id: str, first: AnyBody) -> tuple[RunRow, list[Event]]:
    """Write a run or a conversation with the columns of an older schema, and return its row and events."""
    async with open_store("memory:") as store:
        await store.append(Create(run=id, bodies=(first,), actor="test"))
        row, events = await store.get(id), await store.read(id)
    since = {"origin": 3, "origin_at": 3, "alone": 4, "deadline": 6, "cost": 13, "engine": 15}
    names = [name for name in RunRow.__struct_fields__ if name != "number"]
    values = dict(zip(names, columns(row), strict=True))
    there = {name: value for name, value in values.items() if since.get(name, 1) <= version}
    stream = insert(url, "streams", there)
    event = {name: getattr(events[0], name) for name in events[0].__struct_fields__ if name != "run"}
    insert(url, "events", {"run": stream, **event})
    return row, events


def insert(url: str, table: str, values: dict[str, Any]) -> int:
    """Insert a row, and return its number."""
    names = ", ".join(f'"{name}"' for name in values)
    if url.startswith("sqlite"):
        file = apsw.Connection(url.removeprefix("sqlite:///"))
        marks = ", ".join("?" for _ in values)
        file.execute(f"INSERT INTO limpet_{table} ({names}) VALUES ({marks})", tuple(values.values()))
        return file.last_insert_rowid()
    server, _, schema = url.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as db:
        marks, key = ", ".join("%s" for _ in values), "number" if table == "streams" else "seq"
        statement = f"INSERT INTO {schema}.{table} ({names}) VALUES ({marks}) RETURNING {key}"
        found = db.execute(statement.encode(), tuple(values.values())).fetchone()
        assert found is not None
        return int(found[0])


@contextmanager
def only_migrations(version: int) -> Iterator[None]:
    """Hide all migrations after this version."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (on_postgres, on_sqlite):
            patch.setattr(module, "scripts", lambda *where: scripts(*where)[:version])
        yield


async def make_store(url: str, version: int) -> None:
    """Create a store with the schema of this version; none for 0."""
    if not version:
        return
    unprepared = url if url.startswith("sqlite") else f"{url}&prepare=no"  # Statements need the newest schema.
    with only_migrations(version):
        async with open_store(unprepared):
            pass
    execute(url, f"DELETE FROM {{meta}} WHERE name = '{DERIVED}'")  # Older versions did not derive all columns.


async def new_schema(fresh: Fresh) -> object:
    """Return the complete schema of a new store, which is made once for each database."""
    url = fresh()
    is_file = url.startswith("sqlite")
    if is_file not in NEW_SCHEMAS:
        NEW_SCHEMAS[is_file] = await opened_schema(url)
    return NEW_SCHEMAS[is_file]


async def opened_schema(url: str) -> object:
    """Open a store, and return its complete schema."""
    async with open_store(url) as store:
        assert await store.count() == 0
    return schema_of(url)


def schema_of(url: str) -> object:
    """Return the complete schema of a store."""
    if url.startswith("sqlite"):
        file = apsw.Connection(url.removeprefix("sqlite:///"))
        return list(file.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name"))
    server, _, schema = url.partition("?schema=")
    with psycopg.connect(server) as db:
        found = {name: db.execute(query.encode(), (schema,)).fetchall() for name, query in LOOK.items()}
    return {name: sorted(str(row).replace(schema, "{schema}") for row in rows) for name, rows in found.items()}


def execute(url: str, statement: str) -> None:
    """Execute a statement directly on the database."""
    if url.startswith("sqlite"):
        apsw.Connection(url.removeprefix("sqlite:///")).execute(statement.format(meta="limpet_meta"))
        return
    server, _, schema = url.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(statement.format(meta=f"{schema}.meta").encode())
