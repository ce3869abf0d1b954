"""Migrate a database to the newest schema: numbered .sql files, each in the transaction that records it."""

from collections.abc import Mapping

from limpet.errors import StoreUnavailable, newer_store
from limpet.stores.postgres.connection import Connection, query
from limpet.stores.sql_files import scripts

__all__ = ["migrate", "newest", "schema_version"]


def migrate(db: Connection, schema: str, sql: Mapping[str, str]) -> None:
    """Run the missing migrations, one process at a time. A store is never downgraded."""
    migrations = scripts(__package__, "migrations")
    while (found := schema_version(db, schema, sql)) < len(migrations):
        with db.transaction():
            query(db, sql["migration_lock"], (f"limpet.{schema}",))
            if schema_version(db, schema, sql) == found:
                _run(db, schema, sql, found + 1, migrations[found].read_text(encoding="utf-8"))
    if found > len(migrations):
        raise newer_store(found, len(migrations))
    if query(db, sql["restored"]):
        with db.transaction():
            query(db, sql["migration_lock"], (f"limpet.{schema}",))
            query(db, sql["stamp_anew"])
            query(db, sql["new_life"])


def newest() -> int:
    """Return the schema version that this version of Limpet creates."""
    return len(scripts(__package__, "migrations"))


def schema_version(db: Connection, schema: str, sql: Mapping[str, str]) -> int:
    """Return the database's schema version, 0 for none."""
    [(_, made)] = query(db, sql["has_schema"], (f'"{schema}"', f'"{schema}".meta'))
    if not made:
        return 0
    found = query(db, sql["schema_version"])
    if not found:
        raise StoreUnavailable(reason=f"the schema {schema} belongs to another application; use another (?schema=...)")
    return int(found[0][0])


def _run(db: Connection, schema: str, sql: Mapping[str, str], version: int, script: str) -> None:
    [(there, _)] = query(db, sql["has_schema"], (f'"{schema}"', f'"{schema}".meta'))
    if not there:
        query(db, sql["create_schema"])
    for statement in script.replace("{schema}", f'"{schema}"').split("\n\n"):
        query(db, statement)
    query(db, sql["set_schema_version"], (str(version),))
