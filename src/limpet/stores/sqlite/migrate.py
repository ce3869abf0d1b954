"""Bringing a database to the newest schema: numbered .sql files, each in the transaction that records it."""

from collections.abc import Mapping
from importlib.resources import files

import apsw

from limpet.errors import SchemaTooNew

__all__ = ["migrate"]


def migrations() -> list[str]:
    """The scripts in order; the first leads to schema 1."""
    folder = files(__package__).joinpath("migrations")
    names = sorted(each.name for each in folder.iterdir() if each.name.endswith(".sql"))
    return [folder.joinpath(name).read_text(encoding="utf-8") for name in names]


def migrate(db: apsw.Connection, sql: Mapping[str, str]) -> None:
    """Run what is missing; the caller holds the gate. A store is never taken back to an older schema."""
    scripts = migrations()
    found = schema_version(db, sql)
    if found > len(scripts):
        raise SchemaTooNew(found=found, known=len(scripts))
    for version, script in enumerate(scripts[found:], found + 1):
        db.execute(sql["begin"])
        try:
            db.execute(script).fetchall()
            db.execute(sql["set_schema_version"], (str(version),))
            db.execute(sql["commit"])
        except BaseException:
            if db.in_transaction:
                db.execute(sql["rollback"])
            raise


def schema_version(db: apsw.Connection, sql: Mapping[str, str]) -> int:
    """The schema that the database has, 0 for none."""
    if not db.execute(sql["has_schema"]).fetchall():
        return 0
    [(found,)] = db.execute(sql["schema_version"]).fetchall()
    return int(str(found))
