"""The benchmark baseline on PostgreSQL, in a temporary schema."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg

from limpet.errors import StoreUnavailable
from limpet.stores.baseline import DATA, DIGEST, RUNS, Baseline
from limpet.stores.postgres.connection import Address, query
from limpet.stores.sql_files import load

__all__ = ["bare", "in_schema"]

TYPES = ["int8", "int8", "int8", "text", "bytea", "bytea"]


def in_schema(url: str, schema: str) -> str:
    """Return the URL of another schema on the same server."""
    parts = urlsplit(url)
    more = [(name, value) for name, value in parse_qsl(parts.query) if name != "schema"]
    return parts._replace(query=urlencode([*more, ("schema", schema)], quote_via=quote)).geturl()


@contextmanager
def bare(url: str) -> Iterator[Baseline]:
    """Create the schema that the URL names, and drop it afterwards with everything in it."""
    address = Address.parse(url)
    sql = load(__package__, "bare.sql", schema=f'"{address.schema}"')
    try:
        with psycopg.connect(address.server, autocommit=True, connect_timeout=10) as db:
            query(db, sql["make_schema"])
            try:
                query(db, sql["layout"])
                yield Baseline(lambda seq: _single(db, sql["insert"], seq), lambda seq: _batch(db, sql["copy"], seq))
            finally:
                query(db, sql["drop_schema"])
    except psycopg.Error as error:
        raise StoreUnavailable(
            reason=f"cannot create a schema for the benchmark: {str(error).splitlines()[0]}"
        ) from error


def _single(db: psycopg.Connection, statement: str, seq: int) -> None:
    db.execute(statement.encode(), (RUNS, seq, seq, "step.completed", DATA, DIGEST))


def _batch(db: psycopg.Connection, statement: str, seq: int) -> None:
    with db.cursor().copy(statement.encode()) as copy:
        copy.set_types(TYPES)
        for run in range(RUNS):
            copy.write_row((run, seq, seq, "step.completed", DATA, DIGEST))
