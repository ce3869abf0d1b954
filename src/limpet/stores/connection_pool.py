"""A connection pool."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event as Flag
from threading import Lock
from typing import Generic, Protocol, TypeVar

from limpet.errors import StoreUnavailable
from limpet.stores.threads import CLOSED

__all__ = ["ConnectionPool"]


class Closable(Protocol):
    """A resource that can be closed."""

    def close(self) -> None:
        """Close it."""


C = TypeVar("C", bound=Closable)


class ConnectionPool(Generic[C]):
    """A pool without a limit. A connection on which an exception was raised is closed, not reused."""

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._spare: list[C] = []
        self._closed = Flag()

    @contextmanager
    def connection(self) -> Iterator[C]:
        """Borrow a connection."""
        with self._lock:
            if self._closed.is_set():
                raise StoreUnavailable(reason=CLOSED)
            kept = self._spare.pop() if self._spare else None
        db = self._connect() if kept is None else kept
        try:
            yield db
        except BaseException:
            db.close()
            raise
        with self._lock:
            self._spare.append(db)
            closed = self._closed.is_set()
        if closed:
            self.clear()

    def clear(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            spare, self._spare = self._spare, []
        for db in spare:
            db.close()

    def close(self) -> None:
        """Close the pool. Connections in use are closed when they are returned."""
        with self._lock:
            self._closed.set()
        self.clear()
