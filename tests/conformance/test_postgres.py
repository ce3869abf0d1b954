"""Runs the conformance suite on the PostgreSQL store."""

import asyncio
import os
from collections.abc import Iterator

import psycopg
import pytest

import limpet
from limpet.stores.conformance import Behaviour, Harness, behaviours
from limpet.stores.postgres import PostgresBackend
from tests.servers.postgres import drop_schema

EVERY = 8
RELATIONS = """
SELECT relname, relkind::text, relispartition FROM pg_class WHERE relnamespace = to_regnamespace(%s) ORDER BY oid DESC
"""


class Schemas:
    """A pool of schemas for consecutive tests. Creating a schema takes longer than most tests, so each is emptied and
    reused.
    """

    def __init__(self, server: str, db: psycopg.Connection) -> None:
        self._server, self._db = server, db
        self._spare: list[str] = []
        first = self.take()
        asyncio.run(self._make(first))
        self._new = self._relations(first)
        self.give_back(first)

    def url(self, schema: str) -> str:
        """Return the URL of a schema."""
        return f"{self._server}?schema={schema}&options=-csearch_path%3D{schema}"

    def take(self) -> str:
        """Return the name of an empty schema, or of one that does not exist yet."""
        return self._spare.pop() if self._spare else f"limpet_{os.urandom(6).hex()}"

    def give_back(self, schema: str) -> None:
        """Empty a schema and keep it for the next test; drop it if it has other relations than a new one."""
        if self._relations(schema) == self._new:
            self._empty(schema)
            self._spare.append(schema)
        else:
            drop_schema(self._server, schema)

    def drop(self) -> None:
        """Drop all schemas of the pool."""
        for schema in self._spare:
            drop_schema(self._server, schema)

    async def _make(self, schema: str) -> None:
        async with limpet.open_store(self.url(schema)):
            pass

    def _relations(self, schema: str) -> list[tuple[str, str, bool]]:
        return self._db.execute(RELATIONS, (schema,)).fetchall()

    def _empty(self, schema: str) -> None:
        """Delete all rows, newest tables first because they refer to older ones. `counters` comes last: deletions
        change it.
        """
        tables = [name for name, kind, is_part in self._new if kind in "rp" and not is_part and name != "meta"]
        sequences = [name for name, kind, _ in self._new if kind == "S"]
        statements = [f"DELETE FROM {schema}.{name}" for name in [*tables, "counters"]]
        statements += [f"SELECT setval('{schema}.{name}', 1, false)" for name in sequences]
        statements += [f"DELETE FROM {schema}.meta WHERE name <> 'schema'"]
        self._db.execute(";".join(statements).encode())


@pytest.fixture(scope="module")
def schemas(postgres: str) -> Iterator[Schemas]:
    """Return the pool of schemas of this module."""
    with psycopg.connect(postgres, autocommit=True, options="-c lock_timeout=30s") as db:
        found = Schemas(postgres, db)
        yield found
        found.drop()


@pytest.fixture
def url(schemas: Schemas) -> Iterator[str]:
    """Return the URL of an empty schema."""
    schema = schemas.take()
    yield schemas.url(schema)
    schemas.give_back(schema)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Check all behaviours with --full. Otherwise leave out most payloads: they are one column of bytes here, and the
    SQLite store is checked with all of them. Text with NUL, which PostgreSQL has no type for, stays.
    """
    if "behaviour" in metafunc.fixturenames:
        found = behaviours(PostgresBackend.capabilities)
        if not metafunc.config.getoption("--full"):
            payloads = [each for each in found if each.topic == "payloads"]
            kept = {*payloads[::EVERY], payloads[-1], *(each for each in payloads if "nul-" in str(each))}
            found = [each for each in found if each.topic != "payloads" or each in kept]
        metafunc.parametrize("behaviour", found, ids=str)


def test_postgres_store_conforms(behaviour: Behaviour, url: str) -> None:
    """Check each behaviour in an empty schema."""
    behaviour.run(
        Harness(
            backend=lambda clock: PostgresBackend(url, clock),
            child=("limpet.stores.postgres:PostgresBackend", url),
        )
    )
