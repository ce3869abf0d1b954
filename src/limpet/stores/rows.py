"""What a store tells about runs, requests, workers and agents, for lists, for claiming and for calls.

What is made from events can be made again from the log; the log is the truth.
"""

from typing import Literal, NamedTuple

from limpet.events import Event, Head
from limpet.events.parts import Part
from limpet.state import Status

__all__ = [
    "ContractRow",
    "Feed",
    "KeyRow",
    "Late",
    "Page",
    "Recent",
    "RequestFilter",
    "RequestRow",
    "RequestStatus",
    "RunFilter",
    "RunRow",
    "Snapshot",
    "WorkerRow",
]

RequestStatus = Literal["open", "answered", "approved", "rejected", "used", "expired", "withdrawn"]


class RunRow(Part, frozen=True, kw_only=True):
    """A stream as lists show it and as claiming needs it."""

    number: int
    """The store's own integer for it; it changes when a run moves to another store."""
    id: str
    type: Literal["run", "conversation"] = "run"
    agent: str = ""
    agent_version: str = ""
    status: Status | Literal["open"] = "pending"
    """A conversation is `open`."""
    waits: tuple[str, ...] = ()
    ready_at: int | None = None
    """From when on a worker may claim it; nothing while it waits for something else than time."""
    seq: int = 0
    hash: bytes = b""
    time: int = 0
    """Of its last event."""
    fence: int = 0
    worker: str | None = None
    deaths: int = 0
    alone: bool = False
    """Whether it is the only suspect in the worker that has it."""
    created: int = 0
    start_at: int | None = None
    """Before this it is not to begin."""
    ended: int | None = None
    user: str | None = None
    session: str | None = None
    conversation: str | None = None
    parent: str | None = None
    exclusive: str | None = None
    goal: str = ""
    step: int = 0
    steps: int | None = None
    item: int | None = None
    items: int = 0
    undoing: bool = False
    """A compensation has begun: once failed, the run cannot be resumed any more."""
    cancelling: bool = False
    """A cancel was asked for."""
    origin: str | None = None
    """Of a fork: the stream whose beginning it shares."""
    origin_at: int | None = None
    """The last event that is shared."""
    labels: dict[str, str] = {}

    @property
    def head(self) -> Head:
        """What the next event is sealed to."""
        return Head(self.seq, self.hash, self.time)


class RequestRow(Part, frozen=True, kw_only=True):
    """A request as the inbox shows it; what it asks is in its event."""

    id: str
    run: str
    seq: int
    """The event that opened it."""
    kind: str
    status: RequestStatus = "open"
    to: tuple[str, ...] = ()
    risk: str | None = None
    tool: str | None = None
    opened: int
    expires: int | None = None
    digest: str = ""
    """Of what it shows; an answer must name the same."""
    by: str | None = None
    """Who decided it."""


class WorkerRow(Part, frozen=True, kw_only=True):
    """A process that claims runs, alive while its lease lasts."""

    id: str
    host: str = ""
    """What identifies its process, for others on the same machine."""
    agents: dict[str, tuple[str, ...]] = {}
    """The agents it serves, each with the versions it accepts."""
    started: int = 0
    lease_until: int = 0


class ContractRow(Part, frozen=True, kw_only=True):
    """What an agent takes and gives, as its app said when it opened, for callers in other processes."""

    agent: str
    version: str
    hash: str
    """Hex digest of the canonical contract."""
    contract: bytes
    """Canonical JSON, as given."""
    saved: int = 0
    """The store's clock, when it was last saved."""
    codec: str = ""
    """How the contract is packed, in a row as it is stored."""
    key_id: str = ""


class Snapshot(NamedTuple):
    """A cached state; deleting it changes no answer."""

    seq: int
    hash: bytes
    """Of the event at `seq`: a snapshot of another history is not used."""
    time: int
    data: bytes
    codec: str = ""
    key_id: str = ""


class KeyRow(NamedTuple):
    """A key that the store's contents were encrypted with, itself encrypted with a master key."""

    id: str
    purpose: Literal["data", "index"]
    """`data` encrypts, the newest one what is new; `index` names blobs and what must be findable, for ever."""
    master: str
    """The id of the master key that it is wrapped with."""
    wrapped: bytes
    created: int


class Feed(NamedTuple):
    """A page of all logs: events in the order in which they became visible, and where the next page begins."""

    events: tuple[Event, ...]
    next: str


class Recent(NamedTuple):
    """Events of some kinds among the latest of all logs, the newest first, and where those before them begin."""

    events: tuple[Event, ...]
    next: str | None
    """Nothing if these went back to the beginning."""
    time: int = 0
    """When the oldest event was written that was looked at, of whatever kind."""


class Late(NamedTuple):
    """What a superseded worker brought: kept and shown, never folded."""

    event: Event
    """As it would have been; it is not part of any log."""
    time: int


class RunFilter(Part, frozen=True, kw_only=True):
    """Which runs to list; every field that is given must match."""

    type: Literal["run", "conversation"] = "run"
    status: tuple[str, ...] = ()
    agent: str | None = None
    session: str | None = None
    user: str | None = None
    parent: str | None = None
    origin: str | None = None
    conversation: str | None = None
    labels: dict[str, str] = {}
    created_from: int | None = None
    created_before: int | None = None
    text: str | None = None
    """Contained in id, agent, goal or a label's value, in any case of ASCII letters."""


class RequestFilter(Part, frozen=True, kw_only=True):
    """Which requests to list, the oldest first."""

    status: RequestStatus | None = "open"
    id: str | None = None
    run: str | None = None
    to: str | None = None
    risk: str | None = None


class Page(NamedTuple):
    """Some rows, newest first, and where the next page begins."""

    rows: tuple[RunRow, ...]
    next: int | None
