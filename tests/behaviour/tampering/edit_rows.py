"""Whoever has the database and no key to anything: changes rows behind the store's back, and puts them back."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import psycopg

__all__ = ["Hand", "PostgresHand", "SqliteHand"]


class Hand(ABC):
    """A connection of its own; `{events}` in a statement is that table's name, `?` a value."""

    @abstractmethod
    def run(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        """What a statement gives."""

    @abstractmethod
    def tables(self) -> list[str]:
        """The names of all tables of the store."""

    @abstractmethod
    def columns(self, table: str) -> dict[str, tuple[str, bool]]:
        """The columns of a table, each with its type and whether it may hold nothing."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""

    def copy(self, table: str) -> None:
        """Keep a table as it is."""
        self.run(f"CREATE TEMP TABLE kept_{table} AS SELECT * FROM {{{table}}}")

    def change(self, table: str, row: Sequence[Any], column: str, value: Any) -> bool:
        """Put another value into one row; false if the schema has no place for it."""
        where, keys = self._only(table, row)
        return self._is_done(f'UPDATE {{{table}}} SET "{column}" = ? WHERE {where}', value, *keys)

    def delete(self, table: str, row: Sequence[Any]) -> bool:
        """Take one row away."""
        where, keys = self._only(table, row)
        return self._is_done(f"DELETE FROM {{{table}}} WHERE {where}", *keys)

    def add(self, table: str, row: Sequence[Any]) -> bool:
        """Put a row there; false if the schema has no place for it."""
        names = ", ".join(f'"{name}"' for name in self.columns(table))
        places = ", ".join("?" * len(row))
        return self._is_done(f"INSERT INTO {{{table}}} ({names}) {self.as_given} VALUES ({places})", *row)

    as_given = ""
    """What lets a row say its own number."""
    refusals: tuple[type[Exception], ...]

    def _is_done(self, statement: str, *values: Any) -> bool:
        try:
            self.run(statement, *values)
        except self.refusals:
            return False
        return True

    def _only(self, table: str, row: Sequence[Any]) -> tuple[str, list[Any]]:
        """What is true of one row alone; its numbers and words tell it apart from the others."""
        known = [(name, value) for name, value in zip(self.columns(table), row, strict=True) if value is not None]
        return " AND ".join(f'"{name}" = ?' for name, _ in known), [value for _, value in known]

    @contextmanager
    def changed(self, *tables: str) -> Iterator[None]:
        """What is done to these tables inside is undone."""
        try:
            yield
        finally:
            for table in tables:
                self.run(f"DELETE FROM {{{table}}}")
                self.run(f"INSERT INTO {{{table}}} {self.as_given} SELECT * FROM kept_{table}")


class SqliteHand(Hand):
    """On a file; nothing is refused but what is no row at all."""

    refusals = (apsw.ConstraintError, apsw.MismatchError)

    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(str(path))
        for setting in ("synchronous = OFF", "foreign_keys = OFF", "ignore_check_constraints = ON"):
            self._db.execute(f"PRAGMA {setting}")
        for (trigger,) in self._db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            self._db.execute(f"DROP TRIGGER {trigger}")  # they would mend some of it

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


class PostgresHand(Hand):
    """On a schema of a server; what its constraints do not allow is refused."""

    as_given = "OVERRIDING SYSTEM VALUE"
    refusals = (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.GeneratedAlways)

    def __init__(self, url: str) -> None:
        address, _, schema = url.partition("?schema=")
        self._db = psycopg.connect(address, autocommit=True)
        self._db.execute(f"SET search_path = {schema.partition('&')[0]}")
        self._db.execute("SET session_replication_role = replica")  # no trigger, no foreign key

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
            " WHERE table_schema = current_schema() AND table_name = ? ORDER BY ordinal_position",
            table,
        )
        return {str(name): (str(kind), nullable == "YES") for name, kind, nullable in found}

    def close(self) -> None:
        self._db.close()


def _named(statement: str, prefix: str) -> str:
    return statement.replace("{", prefix).replace("}", "")
