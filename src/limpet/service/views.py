"""Convert rows and events into the views that users get."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec
from msgspec import UnsetType
from msgspec.structs import asdict, replace

from limpet.clock import earliest
from limpet.context.brief import ENDS, STEPS, brief
from limpet.engine.execution.views import EventView as Shown
from limpet.engine.execution.views import PositionInfo, Request, RunInfo, Status, WaitsFor
from limpet.engine.run.conversation import conversation_of
from limpet.errors import BlobDamaged, InvalidArgument, NotFound
from limpet.events import AnyBody, Event, Payload, inline
from limpet.events import bodies as b
from limpet.events.values import encode
from limpet.journal import load, load_steps
from limpet.redaction import hide_secrets
from limpet.state import ENDED, Position
from limpet.stores import RequestRow, RunRow, Store
from limpet.stores.blobs import INLINE
from limpet.stores.fork_reads import StepRange
from limpet.stores.writes import AUDIT, RECORD
from limpet.times import format_time, to_datetime, to_datetime_or_none

__all__ = [
    "LIVE",
    "Ended",
    "event_views",
    "load_payloads",
    "load_values",
    "not_a_run",
    "one_line",
    "position_info",
    "read_end",
    "request_of",
    "run_info",
    "short_text",
    "wait_info",
    "waiting_patches",
    "waits_for_operator",
    "waits_for_worker",
]

LIVE: tuple[Status, ...] = ("pending", "running", "waiting")
Ended = b.RunCompleted | b.RunFailed | b.RunCancelled
CONVERSATION_EVENTS = b.ConversationCreated | b.ConversationForked | b.MessageAdded | b.ConversationCompacted

# Maximum length of an event on one line. Its body has everything.
MAX_LINE = 400
# Fields that are not shown on one line.
HIDDEN_FIELDS = frozenset(
    {"asked", "command", "contract", "digest", "key", "mro", "number", "attempt", "schema", "traceback", "versions"}
)
# Maximum length of a run's input and output in its report.
MAX_TEXT = 300
# Fields of a failure that are not shown on one line.
HIDDEN_IN_FAILURES = frozenset({"code", "facts", "mro", "traceback"})
# Fields that are shown first on one line, since its end may be cut.
FIRST_FIELDS = ("tool", "args", "output", "failure", "decision", "by", "because", "question", "chosen", "reason")
# Fields in microseconds since 1970.
TIMES = frozenset({"deadline", "expires", "retry_at", "stale_at", "start_at", "timeout_at", "wake"})


def run_info(row: RunRow, waits_for: Sequence[WaitsFor]) -> RunInfo:
    """Return the summary of a run, for lists. What it waits for depends on the live workers."""
    return RunInfo(
        id=row.id,
        agent=row.agent,
        version=row.agent_version,
        status=cast("Status", row.status),
        waits_for=tuple(waits_for),
        position=position_info(Position(seq=row.seq, step=row.step, steps=row.steps, item=row.item, items=row.items)),
        goal=row.goal,
        created=to_datetime(row.created),
        updated=to_datetime(row.time),
        ended=to_datetime_or_none(row.ended),
        deadline=to_datetime_or_none(row.deadline),
        cost=row.cost,
        engine=row.engine,
        user=row.user,
        session=row.session,
        conversation=row.conversation or conversation_of(row.id),
        parent=row.parent,
        fork_of=row.origin,
        labels=row.labels,
    )


def position_info(position: Position) -> PositionInfo:
    """Return a position with its text."""
    return PositionInfo(**asdict(position), text=str(position))


def wait_info(text: str) -> WaitsFor:
    """Return a condition from its text, such as "person:q-1" or "time"."""
    what, _, key = text.partition(":")
    return WaitsFor(what=cast("Any", what), key=key, text=text)


def waits_for_operator(run: RunInfo) -> bool:
    """Return whether a run continues only when it is resumed."""
    return any(wait.what == "operator" for wait in run.waits_for)


def waits_for_worker(run: RunInfo) -> bool:
    """Return whether a run is ready and no live worker serves it."""
    return any(wait.what == "worker" for wait in run.waits_for)


def waiting_patches(count: int, status: Status) -> str:
    """Return what became of patches from outside that no turn has applied."""
    return (
        f"{count} not applied: the run ended before its next turn" if status in ENDED else f"{count} for the next turn"
    )


def not_a_run(id: str) -> InvalidArgument:
    """Return the error for the id of a conversation, a record or an audit log where a run's id is required."""
    if id.startswith(AUDIT):
        return InvalidArgument(path="run", reason=f"{id!r} is an audit log; use `audit`")
    if id.startswith(RECORD):
        return InvalidArgument(path="run", reason=f"{id!r} is a shared record; use `record`")
    return InvalidArgument(path="run", reason=f"{id!r} is a conversation; use `messages` or `say`")


AFTER_END = (b.AgentReturned, b.BudgetExtended, b.DeadlineExtended, b.RunMoved, b.ScoreGiven, b.ScoreWithdrawn)
# Number of events after the end to read at a time.
AFTER_END_PAGE = 100


async def read_end(store: Store, run: str) -> tuple[Event, Ended] | None:
    """Return the event with which a run ended, or None if it has not.

    The end is the last event of its log, except that a run can be scored, the budget and deadline of a failed one can
    be extended, it can move to another engine, and a run that it called can return.
    """
    before, limit = None, 1
    while page := await store.read(run, before=before, limit=limit, backwards=True):
        for event in page:
            body = store.decode(event)
            if isinstance(body, Ended):
                return event, body
            if isinstance(body, CONVERSATION_EVENTS):
                raise not_a_run(run)
            if not isinstance(body, AFTER_END):
                return None
        before, limit = page[-1].seq, AFTER_END_PAGE
    raise NotFound(what="run", id=run)


async def event_views(store: Store, events: Sequence[Event]) -> list[Shown]:
    """Return events with their bodies as plain JSON."""
    bodies = await load_values(store, [store.decode(event) for event in events])
    return [
        Shown(
            run=event.run,
            seq=event.seq,
            kind=event.kind,
            time=to_datetime(event.time),
            body=msgspec.json.decode(encode(body)),
        )
        for event, body in zip(events, bodies, strict=True)
    ]


def one_line(body: Mapping[str, Any]) -> str:
    """Return the body of an event as one line of text."""
    line = " ".join(_members(body))
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"


def _members(body: Mapping[str, Any]) -> Iterator[str]:
    if "number" in body and body["number"] is not None:
        tries = f", attempt {body['attempt']}" if body.get("attempt", 1) > 1 else ""
        yield f"{'turn' if 'loop' in body else 'step'} {body['number']}{tries}"
    for name in sorted(body, key=lambda each: FIRST_FIELDS.index(each) if each in FIRST_FIELDS else len(FIRST_FIELDS)):
        value = body[name]
        if name not in HIDDEN_FIELDS and value not in (None, "", {}, [], False):
            yield f"{name}={format_time(value) if name in TIMES else _brief(value)}"


def _brief(value: Any) -> str:
    if isinstance(value, dict) and "json" in value:
        return _brief(value["json"])
    if isinstance(value, dict) and "blob" in value:
        return f"({value.get('bytes', 0)} bytes)"
    if isinstance(value, dict):
        is_failure = "type" in value and not value.keys().isdisjoint(("message", "mro", "traceback"))
        shown = {
            name: each
            for name, each in value.items()
            if not (is_failure and name in HIDDEN_IN_FAILURES) and each not in (None, "", {}, [])
        }
        return "{" + ", ".join(f"{name}: {_brief(each)}" for name, each in shown.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_brief, value)) + "]"
    return repr(value) if isinstance(value, str) and " " in value else str(value)


async def short_text(store: Store, payload: Payload | None) -> str:
    """Return a short text of a run's input or output. A large one is shown by its size."""
    if payload is None:
        return ""
    value: Any = {"blob": "", "bytes": payload.size}
    if payload.size <= INLINE:
        with suppress(BlobDamaged, NotFound):  # a damaged blob must not hide the rest; `verify` reports it
            value = await store.unpack(payload)
    text = "" if value is None else value if isinstance(value, str) else _brief(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


async def load_payloads(store: Store, payloads: Sequence[Payload | None]) -> list[Payload | None]:
    """Load payloads from their blobs, so that people can read them. Large ones are left as they are."""
    small = {
        place: each
        for place, each in enumerate(payloads)
        if each is not None and not each.is_inline and each.bytes <= INLINE
    }
    if not small:
        return list(payloads)
    try:
        values = dict(zip(small, await store.unpack_all(list(small.values())), strict=True))
    except (BlobDamaged, NotFound):  # A damaged blob must not hide the others; `verify` reports it.
        return list(payloads)
    return [
        inline(values[place]).under(small[place].versions) if place in small else each
        for place, each in enumerate(payloads)
    ]


async def load_values(store: Store, bodies: Sequence[AnyBody]) -> list[AnyBody]:
    """Return events with their payloads loaded from blobs. Large ones are left as they are."""
    names = [_PAYLOADS.get(type(body)) for body in bodies]
    payloads = [None if name is None else getattr(body, name) for name, body in zip(names, bodies, strict=True)]
    loaded = await load_payloads(store, payloads)
    return [
        body if name is None or new is old else replace(body, **{name: new})
        for body, name, old, new in zip(bodies, names, payloads, loaded, strict=True)
    ]


_PAYLOADS: Mapping[type, str] = {
    b.AgentReturned: "output",
    b.MessageAdded: "content",
    b.RunCreated: "input",
    b.RunCompleted: "output",
    b.SignalReceived: "value",
    b.StepCompleted: "output",
}


async def request_of(store: Store, row: RequestRow) -> Request:
    """Return a request with its question, from its event, and its context, from the state and steps before it."""
    state = await load(store, row.run, at_most=row.seq)
    [event] = await store.read(row.run, after=row.seq - 1, limit=1)
    opened = store.decode(event)
    assert isinstance(opened, b.RequestOpened)
    steps = await load_steps(store, row.run, StepRange(limit=STEPS, backwards=True, upto=row.seq))

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
        opened=to_datetime(row.opened),
        expires=to_datetime_or_none(earliest(row.expires, (await store.get(row.run)).deadline)),
        digest=row.digest,
        context=brief(state, steps[::-1], opened, await _ends(store, state.input)),
        self_approval=opened.self_approval,
    )


async def _ends(store: Store, payload: Payload) -> tuple[bytes, bytes] | None:
    """Return the first and last bytes of a blob, as far as a brief needs them."""
    return None if isinstance(payload.blob, UnsetType) else await store.read_ends(payload.blob, ENDS)
