"""The base of the store's topics: its backend, codec and writer, and how they are called."""

from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Any, TypeVar

from limpet.clock import SECOND, Duration, SystemClock, microseconds
from limpet.errors import (
    ConnectionLost,
    InvalidAppend,
    InvalidArgument,
    LimpetError,
    NotFound,
    ReadOnlyStore,
    StaleServer,
    StoreBusy,
    StoreUnavailable,
)
from limpet.events import PLAIN, AnyBody, Codec, Event, Plain, Sealed
from limpet.ids import Ids, RandomIds
from limpet.redaction import NOTHING, Redaction
from limpet.stores import writes
from limpet.stores.backend import Backend, Capabilities, Outcome
from limpet.stores.cipher import MasterKeys
from limpet.stores.recent_values import RecentValues
from limpet.stores.row_encryption import reveal_row
from limpet.stores.rows import ReadyRun, RunRow
from limpet.stores.threads import Executor, Threads
from limpet.stores.watch import Watching
from limpet.stores.writer import FULL_BATCH, Writer

__all__ = ["LARGEST_PAGE", "StoreBase", "check_page"]

LARGEST_PAGE = 1_000
PATIENCE = "20s"
PAUSE = SECOND // 10
CLOCK = SystemClock()
T = TypeVar("T")
Events = TypeVar("Events", bound=Sequence[Event])


class StoreBase:
    """The base of the store's topics."""

    def __init__(
        self,
        backend: Backend,
        handover: Executor | None = None,
        *,
        keys: MasterKeys | None = None,
        compress: bool = False,
        ids: Ids | None = None,
        patience: Duration | None = None,
    ) -> None:
        self.patience = microseconds(PATIENCE if patience is None else patience)
        """How long callers wait for an unavailable or busy store, in microseconds."""
        self._backend = backend
        self._handover = handover or Threads()
        self._keys = keys
        self._ids = ids or RandomIds(CLOCK)
        self.codec: Codec = Plain(compress=True) if compress else PLAIN
        """Codec of everything that is written here."""
        self.redaction: Redaction = NOTHING
        """Redaction of values before they are packed. Secrets are hidden in any case."""
        self.on_ready: Callable[[Sequence[ReadyRun]], object] = lambda _: None
        """Called with runs of other engines that can continue because of an append here."""
        self._compress = compress
        self._recent_values = RecentValues()
        self._watching = Watching(backend, self._handover)
        lane = self._handover.lane("limpet-write")
        enough = FULL_BATCH if backend.capabilities.own_process else None
        self._writer = Writer(lane, self._commit, self._commit_now, backend, self._watching, enough=enough)

    @property
    def capabilities(self) -> Capabilities:
        """Features that this store supports."""
        return self._backend.capabilities

    @property
    def failure(self) -> StoreUnavailable | None:
        """Why nothing can be written although the store has waited; a worker process exits then."""
        return self._writer.failure or self._backend.failure

    @property
    def read_only(self) -> ReadOnlyStore | None:
        """Why this process can read the store but not write to it; None if it can."""
        return copy(self._backend.read_only)

    async def now(self) -> int:
        """Return the store's time, in microseconds."""
        return await self._ask(self._backend.now)

    def decode(self, event: Event) -> AnyBody:
        """Return the body of an event."""
        return event.decode(self.codec)

    async def get(self, run: str) -> RunRow:
        """Return a run's row. Raises NotFound."""
        row = await self._ask(lambda: self._backend.get(run))
        if row is None:
            raise NotFound(what="run", id=run)
        return reveal_row(self.codec, row)

    async def _ask(self, work: Callable[[], T]) -> T:
        """Read outside the event loop, waiting for an unavailable store."""
        return await self._retrying(lambda: self._handover.call(work), ConnectionLost, StaleServer, StoreBusy)

    async def _submit(self, op: writes.Op[T]) -> T:
        """Write, waiting for a busy store.

        The backend waits for an unavailable store, since only it can find out whether a commit took place.
        """
        return await self._retrying(lambda: self._writer.submit(op), StoreBusy)

    async def _retrying(self, ask: Callable[[], Awaitable[T]], *passing: type[LimpetError]) -> T:
        """Retry on transient errors until the patience is used up."""
        deadline = CLOCK.ticks() + self.patience
        while True:
            try:
                return await ask()
            except passing:
                if CLOCK.ticks() >= deadline:
                    raise
            await CLOCK.sleep(PAUSE)

    def _commit(self, batch: Sequence[writes.Op[Any]]) -> list[Outcome]:
        return self._backend.commit(batch, self.codec)

    def _commit_now(self, extension: writes.Extension) -> bool | None:
        return self._backend.commit_now(extension)

    def _known(self, events: Events) -> Events:
        """Load new keys here, outside the event loop."""
        if self.codec.is_private:
            self.codec.learn({event.key_id for event in events})
        return events

    def _check_codec(self, events: Sequence[Sealed]) -> None:
        """Raise InvalidAppend for events in plain text in an encrypted store, and the reverse."""
        for sealed in events:
            if bool(sealed.event.key_id) != self.codec.is_private:
                reason = f"event {sealed.event.seq} was not sealed by this store's codec"
                raise InvalidAppend(run=sealed.event.run, reason=reason)


def check_page(limit: int, most: int = LARGEST_PAGE) -> None:
    """Raise InvalidArgument for a page size that is not allowed."""
    if not 1 <= limit <= most:
        raise InvalidArgument(path="limit", reason=f"must be between 1 and {most}")
