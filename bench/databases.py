"""Databases to measure on: new for every measurement, on the disk of the current folder."""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.servers.postgres import PostgresServer

__all__ = ["Ground", "grounds"]

Ground = Callable[[], AbstractContextManager[str]]
"""Creates a database, yields its URL, and deletes it."""

# Those of the server in `tests`, with the default of PostgreSQL where the tests are impatient.
SETTINGS = {"deadlock_timeout": "1s", "max_connections": "300", "shared_buffers": "256MB"}


@contextmanager
def grounds() -> Iterator[dict[str, Ground]]:
    """Yield the databases by name. LIMPET_TEST_POSTGRES names a server to use instead of a new one."""
    named = os.environ.get("LIMPET_TEST_POSTGRES")
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
        if named:
            yield {"SQLite": lambda: _sqlite(Path(folder)), "PostgreSQL": lambda: _postgres(named)}
            return
        with PostgresServer(folder=Path.cwd(), **SETTINGS) as server:
            yield {"SQLite": lambda: _sqlite(Path(folder)), "PostgreSQL": lambda: _postgres(server.url)}


@contextmanager
def _sqlite(folder: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        yield f"sqlite:///{own}/store.db"


@contextmanager
def _postgres(server: str) -> Iterator[str]:
    name = f"bench_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield urlsplit(server)._replace(path=f"/{name}").geturl()
        finally:
            db.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


_numbers = itertools.count(1)
