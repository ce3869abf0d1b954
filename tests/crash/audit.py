"""A process that writes the audit log until it is killed."""

import asyncio
from itertools import count
from multiprocessing.connection import Connection

from limpet import open_store
from limpet.clock import SystemClock
from limpet.engine.execution.principal import Principal
from limpet.ids import RandomIds
from limpet.service.audit import AuditEvent, AuditLog

__all__ = ["record_until_killed"]

CALLERS = 8


async def record_until_killed(pipe: Connection, url: str, name: str) -> None:
    """Record events of several callers, and report each one that is acknowledged."""
    async with open_store(url) as store:
        log, who = AuditLog(store, RandomIds(SystemClock())), Principal(name=name)

        async def call(caller: int) -> None:
            for number in count():
                action = f"{name}-{caller}-{number}"
                await log.record(AuditEvent(action=action, who=who))
                pipe.send(action)

        await asyncio.gather(*map(call, range(CALLERS)))
