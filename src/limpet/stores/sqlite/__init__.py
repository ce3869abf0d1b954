"""SQLite, embedded: the default store. Any number of processes on one machine may share a file."""

from limpet.stores.sqlite.backend import HEALING, SqliteBackend, is_store

__all__ = ["HEALING", "SqliteBackend", "is_store"]
