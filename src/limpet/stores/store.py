"""The store: an asynchronous interface in terms of the domain, over any backend.

Writes go through one writer, which groups them; reads run in parallel. The event loop never waits for a disk.
"""

from contextlib import suppress
from typing import Self

from limpet.errors import StoreBusy, WrongKeys
from limpet.events import Codec
from limpet.stores import writes
from limpet.stores.api.changes import Changes
from limpet.stores.api.leases import Leases
from limpet.stores.api.lists import Lists
from limpet.stores.api.maintenance import Maintenance
from limpet.stores.api.snapshots import Snapshots
from limpet.stores.api.tokens import Tokens
from limpet.stores.backend import StoreInfo
from limpet.stores.cipher import Cipher, rotated

__all__ = ["Store"]


class Store(Leases, Snapshots, Lists, Tokens, Changes, Maintenance):
    """A store of logs. Use `async with`, or `await store.open()` and `await store.close()`."""

    async def exists(self) -> bool:
        """Return whether a store exists at the URL, opened or not. Never creates one."""
        return await self._ask(self._backend.exists)

    async def open(self, *, to_write: bool = False) -> Self:
        """Connect, create or migrate the schema, and unwrap the keys.

        A store that can only be read is opened without any write; see `read_only`. With `to_write`, a standby is waited
        for until it is promoted, and any other such store raises ReadOnlyStore.
        """
        try:
            await self._connect(to_write=to_write)
            await self._unwrap_keys()
            if await self._ask(lambda: self._backend.setting(writes.DERIVED)) is None:
                await self._derive_rows()
        except BaseException:
            await self.close()
            raise
        return self

    async def _connect(self, *, to_write: bool) -> None:
        async def connect() -> None:
            await self._writer.run_between(self._backend.open)
            if to_write and self.read_only is not None and self.read_only.is_standby:
                raise StoreBusy(reason=self.read_only.reason)

        with suppress(StoreBusy):  # It is still a standby.
            await self._retrying(connect, StoreBusy)
        if to_write and self.read_only is not None:
            raise self.read_only

    async def close(self) -> None:
        """Finish pending operations and release all resources."""
        self._backend.interrupt()
        await self._handover.call(self._close)
        self._handover.close()

    async def reopen(self) -> None:
        """Reconnect and verify what is stored, as happens automatically after a failure."""
        await self._writer.run_between(self._backend.reopen)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def identity(self) -> str:
        """Return the random id of this store, which other systems use to tell it from others."""
        known = await self._ask(lambda: self._backend.setting(writes.IDENTITY))
        return await self._submit(writes.Identify(id=self._ids.new())) if known is None else known

    async def about(self) -> StoreInfo:
        """Return the database behind the store."""
        return await self._ask(self._backend.about)

    async def _unwrap_keys(self) -> None:
        """Unwrap the store's keys, or create the first ones. A store is created encrypted or not, and stays so."""
        settled = await self._ask(lambda: self._backend.setting(writes.ENCRYPTED))
        encrypted = settled == writes.YES
        if settled is None and self.read_only is None:  # Readers do not wait for writers.
            encrypted = await self._submit(writes.Settle(encrypted=self._keys is not None))
        if self._keys is None:
            if encrypted:
                raise WrongKeys(reason="the store is encrypted, and no keys were given")
            return
        if not encrypted:
            raise WrongKeys(reason="the store was created without encryption")
        if not await self._ask(self._backend.keys):
            first = rotated((), self._keys, await self.now())
            await self._submit(writes.SaveKeys(before=(), after=first))
        self.codec = await self._ask(self._cipher)

    def _cipher(self) -> Codec:
        assert self._keys is not None
        return Cipher(self._keys, self._backend.keys, compress=self._compress)

    def _close(self) -> None:
        self._watching.close()
        self._writer.close()
        self._backend.close()
