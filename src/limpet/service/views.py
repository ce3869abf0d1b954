"""From rows and events to what users see."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec
from msgspec import UnsetType
from msgspec.structs import replace

from limpet.clock import format_time
from limpet.context.brief import brief
from limpet.engine.execution.views import EventView as Shown
from limpet.engine.execution.views import Request, RunInfo, Status
from limpet.errors import BlobDamaged, InvalidArgument, NotFound
from limpet.events import AnyBody, Event, Payload, inline
from limpet.events import bodies as b
from limpet.events.values import encode
from limpet.journal import load
from limpet.redaction import hide_secrets
from limpet.state import Fold, Position, RunState
from limpet.stores import RequestRow, RunRow, Store
from limpet.stores.blobs import INLINE

__all__ = [
    "LIVE",
    "Ended",
    "end_of",
    "entries_of",
    "in_brief",
    "info_of",
    "no_run",
    "readable",
    "request_of",
    "said_in",
    "waits_for_operator",
    "waits_for_worker",
]

LIVE: tuple[Status, ...] = ("pending", "running", "waiting")
Ended = b.RunCompleted | b.RunFailed | b.RunCancelled
TALK = b.ConversationCreated | b.ConversationForked | b.MessageAdded | b.ConversationCompacted

# How many events before a request are looked at for what led to it.
RECENT = 120
# Of what an event says in brief; all of it is in its body.
LONGEST = 400
# What tells nobody anything at a glance.
QUIET = frozenset(
    {"asked", "command", "contract", "digest", "key", "mro", "number", "attempt", "schema", "traceback", "versions"}
)
# Of what a run was given, and of what came of it, on its page.
SHORT = 300
# Of a failure, in it.
LONG = frozenset({"mro", "traceback"})
# What is said in microseconds since 1970.
TIMES = frozenset({"deadline", "expires", "retry_at", "stale_at", "start_at", "timeout_at", "wake"})


def info_of(row: RunRow, waits_for: str | None) -> RunInfo:
    """A run as lists show it; what it waits for depends on who lives."""
    position = Position(seq=row.seq, step=row.step, steps=row.steps, item=row.item, items=row.items)
    return RunInfo(
        id=row.id,
        agent=row.agent,
        version=row.agent_version,
        status=cast("Status", row.status),
        waits_for=waits_for,
        position=str(position),
        goal=row.goal,
        created=row.created,
        updated=row.time,
        ended=row.ended,
        user=row.user,
        session=row.session,
        parent=row.parent,
        fork_of=row.origin,
        labels=row.labels,
    )


def waits_for_operator(run: RunInfo) -> bool:
    """Whether a run goes on only when it is resumed, whatever else happens to it."""
    return "operator:" in (run.waits_for or "")


def waits_for_worker(run: RunInfo) -> bool:
    """Whether a run could go on, and no live worker serves it."""
    return (run.waits_for or "").startswith("worker:")


def no_run(id: str) -> InvalidArgument:
    """What is said where a conversation is named, and a run is wanted."""
    return InvalidArgument(path="run", reason=f"{id!r} is a conversation, for `messages` and `say`")


async def end_of(store: Store, run: str) -> Ended | None:
    """How a run has ended, if it has: the last event of its log, but for what may still be told to a failed one."""
    before = None
    while page := await store.read(run, before=before, limit=1, backwards=True):
        body = store.decode(page[0])
        if isinstance(body, Ended):
            return body
        if isinstance(body, TALK):
            raise no_run(run)
        if not isinstance(body, b.AgentReturned | b.BudgetExtended):
            return None
        before = page[0].seq
    raise NotFound(what="run", id=run)


async def entries_of(store: Store, events: Sequence[Event]) -> list[Shown]:
    """Events with their bodies as plain JSON."""
    bodies = await readable(store, [store.decode(event) for event in events])
    return [
        Shown(run=event.run, seq=event.seq, kind=event.kind, time=event.time, body=msgspec.json.decode(encode(body)))
        for event, body in zip(events, bodies, strict=True)
    ]


def in_brief(body: Mapping[str, Any]) -> str:
    """What the body of an event says, in a line for people."""
    words = " ".join(_members(body))
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}…"


def _members(body: Mapping[str, Any]) -> Iterator[str]:
    if "number" in body and body["number"] is not None:
        tries = f"/{body['attempt']}" if body.get("attempt", 1) > 1 else ""
        yield f"{'turn' if 'loop' in body else 'step'} {body['number']}{tries}"
    for name, value in body.items():
        if name not in QUIET and value not in (None, "", {}, [], False):
            yield f"{name}={format_time(value) if name in TIMES else _brief(value)}"


def _brief(value: Any) -> str:
    if isinstance(value, dict) and "json" in value:
        return _brief(value["json"])
    if isinstance(value, dict) and "blob" in value:
        return f"({value.get('bytes', 0)} bytes)"
    if isinstance(value, dict):
        shown = {name: each for name, each in value.items() if name not in LONG and each not in (None, "", {}, [])}
        return "{" + ", ".join(f"{name}: {_brief(each)}" for name, each in shown.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_brief, value)) + "]"
    return repr(value) if isinstance(value, str) and " " in value else str(value)


async def said_in(store: Store, payload: Payload | None) -> str:
    """What was given to a run, or came of it, in short; what is very big by its size."""
    if payload is None:
        return ""
    value: Any = {"blob": "", "bytes": payload.size}
    if payload.size <= INLINE:
        with suppress(BlobDamaged, NotFound):  # whoever looks at what is broken sees the rest; `verify` says what is
            value = await store.unpack(payload)
    said = "" if value is None else value if isinstance(value, str) else _brief(value)
    return said if len(said) <= SHORT else f"{said[:SHORT]}…"


async def readable(store: Store, bodies: Sequence[AnyBody]) -> list[AnyBody]:
    """What events say, for people: what was said, and is stored once, is there."""
    found = [(place, _SAID[type(body)]) for place, body in enumerate(bodies) if type(body) in _SAID]
    payloads = {place: getattr(bodies[place], name) for place, name in found}
    small = {place: each for place, each in payloads.items() if each and not each.is_inline and each.bytes <= INLINE}
    if not small:
        return list(bodies)
    try:
        values = dict(zip(small, await store.unpack_all(list(small.values())), strict=True))
    except (BlobDamaged, NotFound):  # whoever looks at what is broken sees the rest; `verify` says what is
        return list(bodies)
    names = dict(found)
    return [
        replace(body, **{names[place]: inline(values[place]).under(small[place].versions)}) if place in small else body
        for place, body in enumerate(bodies)
    ]


_SAID: Mapping[type, str] = {
    b.AgentReturned: "output",
    b.MessageAdded: "content",
    b.RunCreated: "input",
    b.RunCompleted: "output",
    b.SignalReceived: "value",
    b.StepCompleted: "output",
}


async def request_of(store: Store, row: RequestRow) -> Request:
    """A request with what it asks, which is in its event, and what led to it, which is in the log before it."""
    log, state = await _before(store, row)
    opened = log.pop()
    assert isinstance(opened, b.RequestOpened)

    async def value(payload: Any) -> Any:
        return None if payload is None else await store.unpack(payload)

    return Request(
        id=row.id,
        run=row.run,
        kind=row.kind,
        question=hide_secrets(opened.question),
        to=row.to,
        tool=opened.tool,
        args=await value(opened.args) or {},
        options=tuple(await value(opened.options) or ()),
        schema=await value(opened.schema),
        risk=opened.risk,
        opened=row.opened,
        expires=row.expires,
        digest=row.digest,
        context=brief(state, log, opened, await _beginning(store, state.input)),
    )


async def _beginning(store: Store, payload: Payload) -> str | None:
    """The beginning of what is in a blob, as text."""
    if isinstance(payload.blob, UnsetType):
        return None
    async for part in store.read_blob(payload.blob):
        return part.decode(errors="replace")
    return ""


async def _before(store: Store, row: RequestRow) -> tuple[list[AnyBody], RunState]:
    """The end of the log up to a request, and the state there."""
    page = await store.read(row.run, before=row.seq + 1, limit=RECENT, backwards=True)
    recent = await readable(store, [store.decode(event) for event in reversed(page)])
    if row.seq > RECENT:
        return recent, await load(store, row.run, at_most=row.seq)
    folding = Fold()
    for event, body in zip(reversed(page), recent, strict=True):
        folding.add(event, body)
    return recent, folding.freeze()
