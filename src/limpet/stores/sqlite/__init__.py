"""SQLite, embedded: the default store. Any number of processes on one machine may share a file."""

from limpet.stores.sqlite.backend import SqliteBackend, is_store

__all__ = ["SqliteBackend", "is_store"]
