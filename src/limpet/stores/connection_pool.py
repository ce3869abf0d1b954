"""Connections that are kept for the next one who needs one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event as Flag
from threading import Lock
from typing import Generic, Protocol, TypeVar

from limpet.errors import StoreUnavailable
from limpet.stores.threads import CLOSED

__all__ = ["ConnectionPool"]


class Closable(Protocol):
    """Something that is given up at the end."""

    def close(self) -> None:
        """Give it up."""


C = TypeVar("C", bound=Closable)


class ConnectionPool(Generic[C]):
    """As many connections as were ever needed at once; one on which something was raised is not used again."""

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._spare: list[C] = []
        self._closed = Flag()

    @contextmanager
    def connection(self) -> Iterator[C]:
        """A connection for oneself."""
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
        """Give up what nobody uses just now."""
        with self._lock:
            spare, self._spare = self._spare, []
        for db in spare:
            db.close()

    def close(self) -> None:
        """Give up everything; whoever still uses one gives it up by itself."""
        with self._lock:
            self._closed.set()
        self.clear()
