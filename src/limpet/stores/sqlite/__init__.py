"""SQLite, embedded: the default store. Any number of processes on one machine may share a file."""

from limpet.stores.sqlite.backend import PATIENCE, SqliteBackend, is_store

__all__ = ["PATIENCE", "SqliteBackend", "is_store"]
