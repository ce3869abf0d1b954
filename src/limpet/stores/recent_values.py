"""The JSON of values that were packed or read last, in memory: most are needed again soon, by the code that made them.

A blob is named by the hash of its content, so content that is kept under a name never becomes wrong.
"""

from collections import OrderedDict
from threading import Lock

__all__ = ["RecentValues"]

# Maximum size of all kept values of a store, and of one of them, in bytes.
MOST = 4_000_000
LARGEST = 64_000


class RecentValues:
    """Small values of blobs, by name; the ones that were used last."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def keep(self, name: str, data: bytes) -> None:
        """Keep a value, and drop the oldest ones if there are too many."""
        if len(data) > LARGEST:
            return
        with self._lock:
            self._size += len(data) - len(self._values.pop(name, b""))
            self._values[name] = data
            while self._size > MOST:
                self._size -= len(self._values.popitem(last=False)[1])

    def get(self, name: str) -> bytes | None:
        """Return a value, or None if it is not kept."""
        with self._lock:
            found = self._values.get(name)
            if found is not None:
                self._values.move_to_end(name)
            return found

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self._values.clear()
            self._size = 0
