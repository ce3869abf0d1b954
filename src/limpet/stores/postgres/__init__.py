"""A store in PostgreSQL, which many processes on many machines may share."""

from limpet.stores.postgres.backend import PostgresBackend

__all__ = ["PostgresBackend"]
