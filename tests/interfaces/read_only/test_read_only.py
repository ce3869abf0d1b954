"""A store that this process can read but not write: every query works, writes nothing, and commands say why."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

import limpet
from limpet.redaction import hide_secrets_in
from limpet.service.json_values import as_json
from limpet.stores.postgres.connection import Address
from tests.crash.test_failover import wait_for_standby
from tests.interfaces.http_and_mcp.clients import fill, letter
from tests.interfaces.http_and_mcp.test_same_answers import QUERIES
from tests.interfaces.read_only import child
from tests.servers.postgres import PostgresServer, new_schema

READ_ONLY = "read_only_store"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a filled store that no process has open."""
    folder = tmp_path_factory.mktemp("filled")
    asyncio.run(fill(f"sqlite:///{folder}/limpet.db"))
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    """A copy of the folder for one test."""
    return Path(shutil.copytree(template, tmp_path / "store"))


def url_of(folder: Path) -> str:
    """Return the URL of the store in a folder."""
    return f"sqlite:///{folder}/limpet.db"


async def answers(url: str) -> dict[str, Any]:
    """Return the results of all queries, through a process that may write."""
    async with limpet.open(url, worker=False) as app:
        return {name: hide_secrets_in(as_json(await QUERIES[name][0](app))) for name in child.ASKED}


def looked(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what the child finds in a store with these answers."""
    return {"python": wanted, "typed": {name: wanted[name] for name in child.TYPED}}


@contextmanager
def locked(folder: Path, *, files_only: bool = False) -> Iterator[None]:
    """Forbid writing to a folder and its files, and check that nothing changed when the permission returns."""
    before = content(folder)
    for each in folder.iterdir():
        each.chmod(0o444)
    if not files_only:
        folder.chmod(0o555)
    try:
        yield
    finally:
        folder.chmod(0o755)
        for each in folder.iterdir():
            each.chmod(0o644)
    assert content(folder) == before


def content(folder: Path) -> dict[str, str]:
    """Return the names of the files in a folder, with digests of their content."""
    return {each.name: sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()}


def check_refusals(found: dict[str, Any]) -> None:
    """Check that every command was refused because the store is read-only."""
    for name, (exit_code, text) in found.items():
        assert exit_code != 0, (name, text)
        assert READ_ONLY in text or "read-only" in text, (name, text)


async def end_letter(url: str) -> None:
    """End the run that waits."""
    async with limpet.open(url, agents=[letter]) as app:
        await app.cancel("letter-1", reason="no", by="ann")
        with pytest.raises(limpet.RunCancelled):
            await (await app.get("letter-1")).result()


async def test_every_query_works_in_a_read_only_folder(folder: Path) -> None:
    """All writers have closed the store, so that everything is in one file. No file appears beside it."""
    wanted = await answers(url_of(folder))
    with locked(folder):
        assert child.run(url_of(folder), "look") == looked(wanted)


async def test_every_query_works_on_a_read_only_file_in_a_writable_folder(folder: Path) -> None:
    """No file appears beside it: a log of another user would lock the owner out."""
    wanted = await answers(url_of(folder))
    with locked(folder, files_only=True):
        assert child.run(url_of(folder), "look") == looked(wanted)


async def test_a_reader_sees_what_a_live_writer_has_not_moved_into_the_file_yet(folder: Path) -> None:
    """The newest events are only in the write-ahead log, beside a shared index that the reader cannot write."""
    async with limpet.open(url_of(folder), worker=False) as app:
        before = await answers(url_of(folder))
        await app.resume("refund-950", by="ann")
        wanted = await answers(url_of(folder))
        assert wanted != before
        with locked(folder):
            found = child.run(url_of(folder), "look")
        assert (folder / "limpet.db-wal").stat().st_size > 0
    assert found == looked(wanted)


async def test_a_reader_sees_the_log_of_a_dead_writer_without_an_index(folder: Path, tmp_path: Path) -> None:
    """A backup has the file and its write-ahead log, but not the index."""
    copy = tmp_path / "copy"
    copy.mkdir()
    async with limpet.open(url_of(folder), worker=False) as app:
        before = await answers(url_of(folder))
        await app.resume("refund-950", by="ann")
        wanted = await answers(url_of(folder))
        assert wanted != before
        for name in ("limpet.db", "limpet.db-wal"):
            shutil.copy(folder / name, copy / name)
    with locked(copy):
        assert child.run(url_of(copy), "look") == looked(wanted)


async def test_a_reader_notices_a_writer_that_starts_later(folder: Path) -> None:
    """The reader follows a run without a writer; another process then opens the store and ends the run."""
    (folder / "limpet.db").chmod(0o444)
    folder.chmod(0o555)
    try:
        with child.following(url_of(folder)) as end:
            folder.chmod(0o755)
            (folder / "limpet.db").chmod(0o644)
            await end_letter(url_of(folder))
            assert end()["kinds"][-1] == "run.cancelled"
    finally:
        folder.chmod(0o755)


def test_commands_on_a_read_only_folder_say_why(folder: Path) -> None:
    with locked(folder):
        check_refusals(child.run(url_of(folder), "refuse"))


def test_an_older_schema_that_cannot_be_upgraded_says_what_to_type(folder: Path) -> None:
    db = apsw.Connection(str(folder / "limpet.db"))
    db.execute("UPDATE limpet_meta SET value = '2' WHERE name = 'schema'").fetchall()
    db.close()
    with locked(folder):
        found = child.run(url_of(folder), "say")
    assert found["exit_code"] != 0
    assert "schema version 2" in found["text"]
    assert "limpet doctor" in found["text"]


async def test_an_app_that_was_opened_read_only_writes_once_the_file_is_writable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing needs to be reopened by hand."""
    monkeypatch.setattr("limpet.stores.sqlite.read_only.os.access", lambda *_: False)
    async with limpet.open(url_of(folder), worker=False) as app:
        with pytest.raises(limpet.ReadOnlyStore):
            await app.cancel("letter-1", reason="no", by="ann")
        monkeypatch.undo()
        await app.cancel("letter-1", reason="no", by="ann")
        assert app.store.read_only is None
        assert (await app.log("letter-1"))[-1].kind == "cancel.requested"


# PostgreSQL


@pytest.fixture(scope="module")
def filled(postgres: str) -> Iterator[str]:
    """The URL of a filled schema, as its owner. All tests of this module use it, and leave it as it is."""
    with new_schema(postgres) as url:
        asyncio.run(fill(url))
        yield url


@pytest.fixture
def reader(filled: str) -> Iterator[str]:
    """The URL with a role that may only select."""
    with reading(filled) as url:
        yield url


@contextmanager
def reading(url: str) -> Iterator[str]:
    """Make a role that may only select, and yield the URL with it."""
    schema, role = Address.parse(url).schema, f"looker_{os.urandom(6).hex()}"
    with psycopg.connect(Address.parse(url).server, autocommit=True) as db:
        for statement in (
            f"CREATE ROLE {role} LOGIN",
            f"GRANT USAGE ON SCHEMA {schema} TO {role}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}",
        ):
            db.execute(statement.encode())
        yield url.replace("://limpet@", f"://{role}@", 1)
        db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


async def test_every_query_works_with_a_role_that_may_only_select(filled: str, reader: str) -> None:
    wanted, before = await answers(filled), dump(filled)
    assert child.run(reader, "look") == looked(wanted)
    check_refusals(child.run(reader, "refuse"))
    assert dump(filled) == before


async def test_every_query_works_in_a_session_that_is_read_only(filled: str, full: bool) -> None:
    """Without --full, only commands are tried: the other tests ask every query."""
    url = filled.replace("options=", "options=-cdefault_transaction_read_only%3Don%20", 1)
    wanted, before = await answers(filled) if full else None, dump(filled)
    if wanted:
        assert child.run(url, "look") == looked(wanted)
    check_refusals(child.run(url, "refuse"))
    assert dump(filled) == before


async def test_a_role_that_may_only_select_follows_a_run(postgres_schema: str) -> None:
    """Without LISTEN and without the sequence of events."""
    await fill(postgres_schema)
    with reading(postgres_schema) as reader, child.following(reader) as end:
        await end_letter(postgres_schema)
        assert end()["kinds"][-1] == "run.cancelled"


def test_a_role_without_any_privilege_is_told_what_to_grant(filled: str, reader: str) -> None:
    address, role = Address.parse(filled), reader.partition("://")[2].partition("@")[0]
    with psycopg.connect(address.server, autocommit=True) as db:
        db.execute(f"REVOKE USAGE ON SCHEMA {address.schema} FROM {role}".encode())
    found = child.run(reader, "say")
    assert found["exit_code"] != 0
    assert "GRANT SELECT ON ALL TABLES" in " ".join(found["text"].split())


def test_an_older_schema_on_postgres_says_what_to_type(filled: str, reader: str) -> None:
    address = Address.parse(filled)
    with psycopg.connect(address.server, autocommit=True) as db:
        [now] = db.execute(f"SELECT value FROM {address.schema}.meta WHERE name = 'schema'".encode()).fetchall()
        change = f"UPDATE {address.schema}.meta SET value = %s WHERE name = 'schema'".encode()
        db.execute(change, ("2",))
        try:
            found = child.run(reader, "say")
        finally:
            db.execute(change, now)
    assert "schema version 2" in found["text"]
    assert "limpet doctor" in found["text"]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary with a filled store, and its standby."""
    with ExitStack() as stack:
        primary = stack.enter_context(PostgresServer(fsync="off"))
        asyncio.run(fill(primary.url))
        standby = primary.standby()
        stack.push(standby)
        wait_for_standby(primary, standby)
        yield primary, standby


async def test_every_query_works_on_a_standby(
    pair: tuple[PostgresServer, PostgresServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIMPET_PATIENCE", "2s")  # a worker waits for the promotion
    primary, standby = pair
    wanted = await answers(primary.url)
    assert child.run(standby.url, "look") == looked(wanted)
    check_refusals(child.run(f"{standby.url}?connect_timeout=5", "refuse"))


async def test_a_standby_is_followed_and_writable_once_it_is_promoted(
    pair: tuple[PostgresServer, PostgresServer],
) -> None:
    """Events arrive through replication. An app that was opened on the standby writes after the promotion."""
    primary, standby = pair
    async with limpet.open(standby.url, worker=False) as app:
        with pytest.raises(limpet.ReadOnlyStore) as refused:
            await app.pause("letter-1", by="ann")
        assert refused.value.is_standby
        await end_letter(primary.url)
        kinds = [event.kind async for event in app.events("letter-1")]
        assert kinds[-1] == "run.cancelled"
        standby.promote()
        assert (await (await app.resume("refund-950", by="ann")).info()).status == "pending"


def dump(url: str) -> list[object]:
    """Return every row of the tables that a writer changes when it opens or registers."""
    address = Address.parse(url)
    with psycopg.connect(address.server) as db:
        names = ("streams", "events", "workers", "meta", "receipts", "snapshots", "contracts")
        return [db.execute(f"SELECT * FROM {address.schema}.{name} ORDER BY 1".encode()).fetchall() for name in names]
