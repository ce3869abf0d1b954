"""An attacker with the database but without keys: changes rows behind the store's back, and restores them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import psycopg

__all__ = ["PostgresRowEditor", "RowEditor", "SqliteRowEditor"]


class RowEditor(ABC):
    """Edits rows over its own connection. In a statement, `{events}` is the name of that table and `?` a value."""

    @abstractmethod
    def run(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        """Execute a statement and return its rows."""

    @abstractmethod
    def tables(self) -> list[str]:
        """Return the names of all tables of the store."""

    @abstractmethod
    def columns(self, table: str) -> dict[str, tuple[str, bool]]:
        """Return the columns of a table with their types, and whether they may be NULL; not those that follow from
        others.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def copy(self, table: str) -> None:
        """Keep a copy of a table."""
        self.run(f"CREATE TEMP TABLE kept_{table} AS SELECT {self._names(table)} FROM {{{table}}}")

    def rows(self, table: str) -> list[Sequence[Any]]:
        """Return all rows of a table."""
        return self.run(f"SELECT {self._names(table)} FROM {{{table}}}")

    def _names(self, table: str) -> str:
        return ", ".join(f'"{name}"' for name in self.columns(table))

    def change(self, table: str, row: Sequence[Any], column: str, value: Any) -> bool:
        """Change a value of one row; return False if the schema refuses it."""
        where, keys = self._only(table, row)
        return self._is_done(f'UPDATE {{{table}}} SET "{column}" = ? WHERE {where}', value, *keys)

    def delete(self, table: str, row: Sequence[Any]) -> bool:
        """Delete one row; return False if the schema refuses it."""
        where, keys = self._only(table, row)
        return self._is_done(f"DELETE FROM {{{table}}} WHERE {where}", *keys)

    def add(self, table: str, row: Sequence[Any]) -> bool:
        """Insert a row; return False if the schema refuses it."""
        names, places = self._names(table), ", ".join("?" * len(row))
        return self._is_done(f"INSERT INTO {{{table}}} ({names}) {self.as_given} VALUES ({places})", *row)

    as_given = ""
    """SQL clause that allows inserting a generated number."""
    refusals: tuple[type[Exception], ...]

    def _is_done(self, statement: str, *values: Any) -> bool:
        try:
            self.run(statement, *values)
        except self.refusals:
            return False
        return True

    def _only(self, table: str, row: Sequence[Any]) -> tuple[str, list[Any]]:
        """Return a condition, with its values, that identifies one row."""
        known = [(name, value) for name, value in zip(self.columns(table), row, strict=True) if value is not None]
        return " AND ".join(f'"{name}" = ?' for name, _ in known), [value for _, value in known]

    @contextmanager
    def changed(self, *tables: str) -> Iterator[None]:
        """Undo all changes to these tables at the end of the block."""
        try:
            yield
        finally:
            for table in tables:
                self.run(f"DELETE FROM {{{table}}}")
                names = self._names(table)
                self.run(f"INSERT INTO {{{table}}} ({names}) {self.as_given} SELECT {names} FROM kept_{table}")


class SqliteRowEditor(RowEditor):
    """Edits an SQLite file. Only values that cannot be stored at all are refused."""

    refusals = (apsw.ConstraintError, apsw.MismatchError)

    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(str(path))
        for setting in ("synchronous = OFF", "foreign_keys = OFF", "ignore_check_constraints = ON"):
            self._db.execute(f"PRAGMA {setting}")
        for (trigger,) in self._db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            self._db.execute(f"DROP TRIGGER {trigger}")  # they would repair some changes

    def run(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        return list(self._db.execute(_named(statement, "limpet_"), values).fetchall())

    def tables(self) -> list[str]:
        found = self.run("SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'limpet_%'")
        return [str(name).removeprefix("limpet_") for (name,) in found]

    def columns(self, table: str) -> dict[str, tuple[str, bool]]:
        found = self.run(f"PRAGMA table_info(limpet_{table})")
        return {str(name): (str(kind), not (notnull or key)) for _, name, kind, notnull, _, key in found}

    def close(self) -> None:
        self._db.close()


class PostgresRowEditor(RowEditor):
    """Edits a schema of a PostgreSQL server. Its constraints refuse some changes."""

    as_given = "OVERRIDING SYSTEM VALUE"
    refusals = (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.GeneratedAlways)

    def __init__(self, url: str) -> None:
        address, _, schema = url.partition("?schema=")
        self._db = psycopg.connect(address, autocommit=True)
        self._db.execute(f"SET search_path = {schema.partition('&')[0]}")
        self._db.execute("SET session_replication_role = replica")  # no triggers, no foreign keys

    def run(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        with self._db.cursor() as cursor:
            cursor.execute(_named(statement, "").replace("?", "%s").encode(), values)
            return list(cursor.fetchall()) if cursor.description else []

    def tables(self) -> list[str]:
        found = self.run(
            "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
            " AND relkind IN ('r', 'p') AND NOT relispartition"
        )
        return [str(name) for (name,) in found]

    def columns(self, table: str) -> dict[str, tuple[str, bool]]:
        found = self.run(
            "SELECT column_name, data_type, is_nullable FROM information_schema.columns"
            " WHERE table_schema = current_schema() AND table_name = ? AND is_generated = 'NEVER'"
            " ORDER BY ordinal_position",
            table,
        )
        return {str(name): (str(kind), nullable == "YES") for name, kind, nullable in found}

    def close(self) -> None:
        self._db.close()


def _named(statement: str, prefix: str) -> str:
    return statement.replace("{", prefix).replace("}", "")
