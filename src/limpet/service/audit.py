"""The audit log of a store: who did what, from where, and how it ended.

Each month has a log of its own, a stream like any other: sealed by the store with its own time, in a hash chain, and
encrypted if the store is. Several processes may write at the same time, since the store puts their events in order.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from copy import copy
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from limpet.engine.execution.principal import Principal
from limpet.errors import InvalidArgument, InvalidBundle, NotFound, StoreBusy
from limpet.events import PLAIN, START, VOCABULARY, Event, Head, seal, verify
from limpet.events import bodies as b
from limpet.ids import Ids
from limpet.service.bundles import EventLine
from limpet.service.page import Page
from limpet.service.resolve import each_run
from limpet.service.verify import Verified
from limpet.stores import Create, RunFilter, RunRow, Store
from limpet.stores.writes import AUDIT
from limpet.times import to_datetime
from limpet.view import View

__all__ = ["AuditEvent", "AuditFilter", "AuditInfo", "AuditLog", "audit_page", "export_audit", "verify_audit"]

# Number of events that may wait to be written, and of those that are written together.
MOST_WAITING = 10_000
BATCH = 200
# Longest text of a field, in characters. Names and addresses may come from callers.
LONGEST = 300
# Number of events that are examined for one page.
MOST_EXAMINED = 20_000
PAGE = 1_000
LOGS = RunFilter(type="audit")
STRANGER = Principal(name="")


class AuditEvent(Struct, frozen=True, kw_only=True):
    """Something to record. It has no payloads and no secrets."""

    action: str
    """Name of the operation, or of what happened, such as `login`, `refusal` or `token.created`."""
    who: Principal = STRANGER
    """The caller; by default an unknown one."""
    subject: str = ""
    """Id of the run, request, conversation or token that it was done to."""
    outcome: str = "done"
    """`done`, or the code of the error."""
    request: str = ""
    """Id of the caller's request."""
    count: int = 1
    """Number of equal events that this one stands for."""


class AuditInfo(View, frozen=True, kw_only=True):
    """An event of the audit log."""

    log: str
    """Id of the log of its month."""
    seq: int
    """Number of the event in its log."""
    time: datetime
    """Time by the store's clock."""
    who: str
    """Name of the caller; empty if it is unknown."""
    kind: str
    """Kind of the caller: `person`, `service` or `agent`; empty if it is unknown."""
    tenant: str
    """Tenant of the caller; empty if the server has one store."""
    action: str
    """Name of the operation, or of what happened, such as `login` or `token.created`."""
    subject: str
    """Id of the run, request, conversation or token that it was done to."""
    outcome: str
    """`done`, or the code of the error."""
    door: str
    """The interface: `python`, `cli`, `http` or `mcp`."""
    address: str
    """Network address of the caller."""
    request: str
    """Id of the caller's request."""
    count: int
    """Number of equal events that this one stands for."""


class AuditFilter(NamedTuple):
    """A filter of audit events; every field that is set must match."""

    who: str | None = None
    action: str | None = None
    outcome: str | None = None
    since: int = 0
    """Only events from this time on, in microseconds."""

    def matches(self, body: b.AuditRecorded) -> bool:
        """Return whether an event matches, apart from its time."""
        wanted = ((self.who, body.by), (self.action, body.action), (self.outcome, body.outcome))
        return all(want in (None, have) for want, have in wanted)


class AuditLog:
    """Writes audit events. Those of concurrent callers are written together."""

    def __init__(self, store: Store, ids: Ids, *, actor: str = "app") -> None:
        self._store, self._ids, self._actor = store, ids, actor
        self._waiting: deque[tuple[b.AuditRecorded, asyncio.Future[None]]] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def record(self, event: AuditEvent) -> None:
        """Write an event; it is durable when this returns.

        Raises the error of a store that cannot be written, and StoreBusy if too many events wait.
        """
        if len(self._waiting) >= MOST_WAITING:
            raise StoreBusy(reason=f"{MOST_WAITING} audit events wait to be written")
        body = _body(event, self._ids.new())
        VOCABULARY.check(body)  # an event that cannot be stored must not hold up others
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((body, written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        await written

    async def drain(self) -> None:
        """Wait until all events are written, also those whose callers are gone."""
        if self._writing is not None and not self._writing.done():
            await self._writing

    async def _write_all(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            [outcome] = await asyncio.gather(self._append([body for body, _ in batch]), return_exceptions=True)
            for _, written in batch:
                if written.done():
                    continue  # its caller is gone
                if outcome is None:
                    written.set_result(None)
                else:
                    written.set_exception(copy(outcome))  # each caller adds to its own traceback

    async def _append(self, bodies: Sequence[b.AuditRecorded]) -> None:
        """Send the events to the log of this month, which the first ones create."""
        month = f"{to_datetime(await self._store.now()):%Y-%m}"
        log = f"{AUDIT}{month}"
        try:
            await self._store.send_commands(log, *bodies, actor=self._actor)
        except NotFound:
            await self._store.append(Create(run=log, bodies=(b.AuditStarted(month=month),), actor=self._actor))
            await self._store.send_commands(log, *bodies, actor=self._actor)


def _body(event: AuditEvent, id: str) -> b.AuditRecorded:
    return b.AuditRecorded(
        command=id,
        by=_short(event.who.name),
        via=_short(event.who.door),
        action=_short(event.action),
        kind=event.who.kind if event.who.name else "",
        tenant=_short(event.who.tenant),
        subject=_short(event.subject),
        outcome=_short(event.outcome),
        address=_short(event.who.address),
        request=_short(event.request),
        count=event.count,
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


class AuditPlace(NamedTuple):
    """The position of an event among all audit logs of a store."""

    number: int
    """The store's own number of the log."""
    seq: int

    @classmethod
    def of(cls, cursor: str | None) -> "AuditPlace | None":
        """Return the position that a cursor stands for. Raises InvalidArgument."""
        if cursor is None:
            return None
        number, dot, seq = cursor.partition(".")
        if not dot or any(not (each.isascii() and each.isdecimal()) or len(each) > 18 for each in (number, seq)):
            raise InvalidArgument(path="cursor", reason=f"{cursor!r} is not a cursor; pass `next` of the page before")
        return cls(int(number), int(seq))

    def __str__(self) -> str:
        return f"{self.number}.{self.seq}"


async def audit_page(store: Store, where: AuditFilter, *, limit: int, cursor: str | None = None) -> Page[AuditInfo]:
    """Return audit events that match, the newest first. A page may have fewer, or none, and still a next one."""
    found: list[tuple[AuditInfo, AuditPlace]] = []
    examined = 0
    async for row, event in _newest_first(store, AuditPlace.of(cursor)):
        if event.time < where.since:
            break
        place, examined = AuditPlace(row.number, event.seq), examined + 1
        body = store.decode(event)
        if isinstance(body, b.AuditRecorded) and where.matches(body):
            if len(found) == limit:
                return Page([info for info, _ in found], str(found[-1][1]))
            found.append((_info(event, body), place))
        if examined == MOST_EXAMINED:
            return Page([info for info, _ in found], str(place))
    return Page(info for info, _ in found)


async def _newest_first(store: Store, after: AuditPlace | None) -> AsyncIterator[tuple[RunRow, Event]]:
    """Yield the events of all audit logs, newest first, after a position."""
    async for row in each_run(store, LOGS, before=None if after is None else after.number + 1):
        before = after.seq if after is not None and after.number == row.number else None
        while page := await store.read(row.id, before=before, limit=PAGE, backwards=True):
            for event in page:
                yield row, event
            before = page[-1].seq


def _info(event: Event, body: b.AuditRecorded) -> AuditInfo:
    return AuditInfo(
        log=event.run,
        seq=event.seq,
        time=to_datetime(event.time),
        who=body.by,
        kind=body.kind,
        tenant=body.tenant,
        action=body.action,
        subject=body.subject,
        outcome=body.outcome,
        door=body.via,
        address=body.address,
        request=body.request,
        count=body.count,
    )


async def export_audit(store: Store, path: Path) -> Verified:
    """Write all audit logs to a file, one event per line with its hash, the oldest first. Returns their number.

    Keys stay in the store: the events of an encrypted store are written in plain text, and sealed again.
    """
    logs = sorted([row async for row in each_run(store, LOGS)], key=lambda row: row.number)
    events = 0
    with path.open("wb") as file:
        for row in logs:
            head = START
            while page := await store.read(row.id, after=head.seq, limit=PAGE):
                plain = _plain(store, page, head)
                await asyncio.to_thread(file.write, _lines(plain))
                head, events = plain[-1].head, events + len(plain)
    return Verified(runs=0, events=events, audits=len(logs))


def _plain(store: Store, events: Sequence[Event], head: Head) -> Sequence[Event]:
    """Return events in plain text, sealed after a head if they were encrypted."""
    if not store.codec.is_private:
        return events
    plain: list[Event] = []
    for event in events:
        sealed = seal(head, event.run, store.decode(event), time=event.time, fence=event.fence, actor=event.actor)
        plain.append(sealed.event)
        head = sealed.event.head
    return plain


def _lines(events: Iterable[Event]) -> bytes:
    return b"".join(msgspec.json.encode(EventLine.of(event)) + b"\n" for event in events)


def verify_audit(path: Path) -> Verified:
    """Check the hashes of exported audit logs. Raises Tampered, and InvalidBundle for another file."""
    heads: dict[str, Head] = {}
    events = 0
    try:
        with path.open("rb") as file:
            for line in file:
                event = msgspec.json.decode(line, type=EventLine).event()
                if not event.run.startswith(AUDIT) or not isinstance(event.decode(PLAIN), _BODIES):
                    raise InvalidBundle(path=str(path), reason=f"line {events + 1} is no audit event")
                heads[event.run] = verify([event], heads.get(event.run, START))
                events += 1
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidBundle(path=str(path), reason=f"line {events + 1} cannot be read ({error})") from error
    return Verified(runs=0, events=events, audits=len(heads))


_BODIES = b.AuditStarted | b.AuditRecorded
