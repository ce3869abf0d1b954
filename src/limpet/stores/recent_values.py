"""The JSON of values that were stored or read last, in memory: most are needed again soon, by the code that made them.

A blob is named by the hash of its content, so content that is kept under a name never becomes wrong. A value that was
packed is only found here after it was stored. The same value packed again, such as a message that is also the result of
a run, is neither hashed nor compressed again, unless it is encrypted: its key may have been deleted since.
"""

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

from limpet.stores.blobs import Blob

__all__ = ["RecentValues"]

# Maximum size of all kept values, of all kept blobs, and of one of them, in bytes.
MOST = 4_000_000
MOST_PACKED = 500_000
LARGEST = 64_000


class RecentValues:
    """Small values of blobs, by name; the ones that were used last."""

    def __init__(self) -> None:
        self._packed, self._stored = _Values(), _Values()
        self._blobs: OrderedDict[bytes, Blob] = OrderedDict()
        self._blobs_size = 0
        self._lock = Lock()

    def keep_packed(self, blob: Blob, data: bytes, *, is_private: bool) -> None:
        """Keep a value that is not stored yet."""
        with self._lock:
            self._packed.keep(blob.id, data)
            if is_private or len(data) > LARGEST or data in self._blobs:
                return
            self._blobs[data] = blob
            self._blobs_size += len(data)
            while self._blobs_size > MOST_PACKED:
                self._blobs_size -= len(self._blobs.popitem(last=False)[0])

    def blob_of(self, data: bytes) -> Blob | None:
        """Return the blob of a value that was packed lately, or None if it is not kept."""
        with self._lock:
            blob = self._blobs.get(data)
            if blob is not None:
                self._blobs.move_to_end(data)
                self._packed.keep(blob.id, data)
            return blob

    def note_stored(self, names: Iterable[str]) -> None:
        """Note that values were stored, which were packed here."""
        with self._lock:
            for name in names:
                if (data := self._packed.pop(name)) is not None:
                    self._stored.keep(name, data)

    def keep_stored(self, name: str, data: bytes) -> None:
        """Keep a value that was read."""
        with self._lock:
            self._stored.keep(name, data)

    def get(self, name: str) -> bytes | None:
        """Return a stored value, or None if it is not kept."""
        with self._lock:
            found = self._stored.pop(name)
            if found is not None:
                self._stored.keep(name, found)
            return found

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self._packed, self._stored = _Values(), _Values()
            self._blobs, self._blobs_size = OrderedDict(), 0


class _Values:
    """Values by name, the ones that were kept last."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    def keep(self, name: str, data: bytes) -> None:
        self.pop(name)
        if len(data) > LARGEST:
            return
        self._values[name] = data
        self._size += len(data)
        while self._size > MOST:
            self._size -= len(self._values.popitem(last=False)[1])

    def pop(self, name: str) -> bytes | None:
        found = self._values.pop(name, None)
        self._size -= len(found or b"")
        return found
