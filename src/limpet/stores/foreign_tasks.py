"""Read a table `agent_tasks` that another program keeps, in a SQLite file or a PostgreSQL database."""

import importlib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from limpet.errors import ExtraMissing, InvalidTasks
from limpet.stores.sql_files import load

__all__ = ["COLUMNS", "is_database", "read_file", "read_server"]

COLUMNS = ("id", "user_input", "state", "result", "error", "created_at", "updated_at")
HEADER = b"SQLite format 3\0"

Rows = list[dict[str, Any]]


def is_database(path: Path) -> bool:
    """Return whether a file is a SQLite database."""
    with path.open("rb") as file:
        return file.read(len(HEADER)) == HEADER


def read_file(path: Path) -> Rows:
    """Return the rows of a SQLite file. Raises InvalidTasks if it has no such table."""
    statement = load("limpet.stores.sqlite", "statements.sql")["foreign_tasks"]
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            return _rows(db.execute(statement).fetchall())
    except apsw.Error as error:
        raise InvalidTasks(path=str(path), problems=(str(error),)) from error


def read_server(url: str) -> Rows:
    """Return the rows of a PostgreSQL database, where the table is on the search path. Raises InvalidTasks."""
    try:
        psycopg = importlib.import_module("psycopg")
        connection = importlib.import_module("limpet.stores.postgres.connection")
    except ImportError as error:
        raise ExtraMissing(extra="postgres") from error
    statement = load("limpet.stores.postgres", "statements.sql", schema="", channel="")["foreign_tasks"]
    try:
        with closing(connection.connect(connection.Address.parse(url).server)) as db:
            return _rows(db.execute(statement).fetchall())
    except psycopg.Error as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidTasks(path="the database", problems=(reason,)) from error


def _rows(found: Sequence[Sequence[Any]]) -> Rows:
    return [dict(zip(COLUMNS, each, strict=True)) for each in found]
