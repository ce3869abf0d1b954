"""Migrate a database to the newest schema: numbered .sql files, each in the transaction that records it."""

from collections.abc import Mapping

import apsw

from limpet.errors import newer_store
from limpet.stores.sql_files import scripts

__all__ = ["migrate", "newest", "schema_version"]


def migrate(db: apsw.Connection, sql: Mapping[str, str]) -> None:
    """Run the missing migrations; the caller holds the gate. A store is never downgraded."""
    migrations = scripts(__package__, "migrations")
    found = schema_version(db, sql)
    if found > len(migrations):
        raise newer_store(found, len(migrations))
    for version, script in enumerate(migrations[found:], found + 1):
        db.execute(sql["begin"])
        try:
            db.execute(script.read_text(encoding="utf-8")).fetchall()
            db.execute(sql["set_schema_version"], (str(version),))
            db.execute(sql["commit"])
        except BaseException:
            if db.in_transaction:
                db.execute(sql["rollback"])
            raise


def newest() -> int:
    """Return the schema version that this version of Limpet creates."""
    return len(scripts(__package__, "migrations"))


def schema_version(db: apsw.Connection, sql: Mapping[str, str]) -> int:
    """Return the database's schema version, 0 for none."""
    if not db.execute(sql["has_schema"]).fetchall():
        return 0
    [(found,)] = db.execute(sql["schema_version"]).fetchall()
    return int(str(found))
