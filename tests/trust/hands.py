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
    def copy(self, table: str) -> None:
        """Keep a table as it is."""

    @contextmanager
    def changed(self, *tables: str) -> Iterator[None]:
        """What is done to these tables inside is undone."""
        try:
            yield
        finally:
            for table in tables:
                self.run(f"DELETE FROM {{{table}}}")
                self.run(f"INSERT INTO {{{table}}} SELECT * FROM kept_{table}")


class SqliteHand(Hand):
    """On a file; nothing is refused but what is no row at all."""

    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(str(path))
        for setting in ("synchronous = OFF", "foreign_keys = OFF", "ignore_check_constraints = ON"):
            self._db.execute(f"PRAGMA {setting}")
        for (trigger,) in self._db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            self._db.execute(f"DROP TRIGGER {trigger}")  # they would mend some of it

    def run(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        return list(self._db.execute(_named(statement, "limpet_"), values).fetchall())

    def copy(self, table: str) -> None:
        self.run(f"CREATE TEMP TABLE kept_{table} AS SELECT * FROM {{{table}}}")

    def tables(self) -> list[str]:
        """The names of all tables of the store."""
        found = self.run("SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'limpet_%'")
        return [str(name).removeprefix("limpet_") for (name,) in found]

    def columns(self, table: str) -> dict[str, tuple[str, bool]]:
        """The columns of a table, each with its type and whether it may hold nothing."""
        found = self.run(f"PRAGMA table_info(limpet_{table})")
        return {str(name): (str(kind), not (notnull or key)) for _, name, kind, notnull, _, key in found}

    def close(self) -> None:
        self._db.close()


class PostgresHand(Hand):
    """On a schema of a server."""

    def __init__(self, url: str) -> None:
        address, _, schema = url.partition("?schema=")
        self._db = psycopg.connect(address, autocommit=True)
        self._db.execute(f"SET search_path = {schema.partition('&')[0]}")
        self._db.execute("SET session_replication_role = replica")  # no trigger, no foreign key

    def run(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        with self._db.cursor() as cursor:
            cursor.execute(_named(statement, "").replace("?", "%s").encode(), values)
            return list(cursor.fetchall()) if cursor.description else []

    def copy(self, table: str) -> None:
        self.run(f"CREATE TEMP TABLE kept_{table} AS SELECT * FROM {{{table}}}")

    def close(self) -> None:
        self._db.close()


def _named(statement: str, prefix: str) -> str:
    return statement.replace("{", prefix).replace("}", "")
