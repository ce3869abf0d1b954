"""The actions of authenticated callers, for the audit log: every command, reads of payloads, logins and refusals.

A command is recorded each time. Equal reads, logins and refusals are recorded once in a while, with their number, so
that a page that is reloaded, or a flood of refused requests, does not fill the log.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Hashable

from msgspec.structs import replace

from limpet.clock import SECOND, Clock
from limpet.engine.execution.principal import Principal
from limpet.errors import LimpetError
from limpet.service.audit import AuditEvent, AuditLog
from limpet.stores import Store

__all__ = ["AuditTrail"]

log = logging.getLogger("limpet")
# How long equal events are counted as one, in microseconds.
READ, LOGIN, REFUSAL = 60 * SECOND, 3600 * SECOND, 60 * SECOND
# Events that are counted; the oldest is forgotten.
COUNTED = 10_000
# Refusals that are being written; further ones are only counted.
MOST_PENDING = 100


class AuditTrail:
    """Records what callers do in one store."""

    def __init__(self, audit_log: AuditLog, store: Store, clock: Clock) -> None:
        self._log, self._store, self._clock = audit_log, store, clock
        self._counts: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()
        self._pending: set[asyncio.Task[None]] = set()

    async def record_use(self, event: AuditEvent, *, is_command: bool) -> None:
        """Record that a caller used an operation; it is durable when this returns.

        Raises the error of a store that cannot be written. A store that can only be read has no audit log.
        """
        if self._store.read_only is not None:
            return
        if is_command or event.outcome != "done":
            await self._log.record(event)
            return
        key = ("read", event.who.tenant, event.who.name, event.who.address, event.action, event.subject)
        if count := self._count(key, READ):
            await self._log.record(_counted(event, count))

    def record_login(self, who: Principal) -> None:
        """Record in the background that a caller authenticated."""
        self._record_sometimes(AuditEvent(action="login", who=who), LOGIN)

    def record_refusal(self, code: str, address: str) -> None:
        """Record in the background that a request was refused before its caller was known."""
        stranger = Principal(name="", door="http", address=address)
        self._record_sometimes(AuditEvent(action="refusal", who=stranger, outcome=code), REFUSAL)

    def _record_sometimes(self, event: AuditEvent, every: int) -> None:
        if self._store.read_only is not None or len(self._pending) >= MOST_PENDING:
            return
        count = self._count((event.action, event.outcome, event.who.tenant, event.who.name, event.who.address), every)
        if count:
            task = asyncio.ensure_future(self._record(_counted(event, count)))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    async def _record(self, event: AuditEvent) -> None:
        try:
            await self._log.record(event)
        except LimpetError as error:
            log.warning("audit: %s of %s was not recorded: %s", event.action, event.who.name or "unknown", error)

    def _count(self, key: Hashable, every: int) -> int:
        """Count an event. Returns 0, or the number of equal events since the last one that is recorded, with this."""
        now = self._clock.ticks()
        since, skipped = self._counts.get(key, (now - every, 0))
        is_due = now - since >= every
        self._counts[key] = (now, 0) if is_due else (since, skipped + 1)
        self._counts.move_to_end(key)
        if len(self._counts) > COUNTED:
            self._counts.popitem(last=False)
        return skipped + 1 if is_due else 0


def _counted(event: AuditEvent, count: int) -> AuditEvent:
    return replace(event, count=count)
