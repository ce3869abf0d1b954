"""The rows of runs, requests, scores, workers and contracts, for lists, claims and calls.

Rows derived from events can be rebuilt from the log, which is the source of truth.
"""

from typing import Literal, NamedTuple

from limpet.events import Event, Head
from limpet.events.parts import Part
from limpet.state import Status

__all__ = [
    "ContractRow",
    "DutyRow",
    "Feed",
    "KeyRow",
    "Late",
    "Place",
    "ReadyRun",
    "Recent",
    "RequestFilter",
    "RequestRow",
    "RequestStatus",
    "RowPage",
    "RunFilter",
    "RunRow",
    "ScoreCondition",
    "ScoreFilter",
    "ScoreRow",
    "Snapshot",
    "StreamType",
    "TokenRow",
    "WorkerRow",
]

StreamType = Literal["run", "conversation", "audit", "record"]
RequestStatus = Literal["open", "answered", "approved", "rejected", "used", "expired", "withdrawn"]


class RunRow(Part, frozen=True, kw_only=True):
    """A stream, with the fields that lists and claiming need."""

    number: int
    """The store's own number of the stream; it changes when a run moves to another store."""
    id: str
    type: StreamType = "run"
    agent: str = ""
    agent_version: str = ""
    status: Status | Literal["open"] = "pending"
    """A conversation, an audit log and a shared record are `open`."""
    waits: tuple[str, ...] = ()
    ready_at: int | None = None
    """Time from which a worker may claim the run; None while it waits for something other than time."""
    seq: int = 0
    hash: bytes = b""
    time: int = 0
    """Time of the last event."""
    fence: int = 0
    worker: str | None = None
    deaths: int = 0
    alone: bool = False
    """Whether the run is the only suspect of the worker that holds it."""
    created: int = 0
    start_at: int | None = None
    """The run does not start before this time."""
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
    """A compensation has started: once failed, the run cannot be resumed."""
    cancelling: bool = False
    """A cancellation was requested."""
    origin: str | None = None
    """The stream from which a fork shares its first events."""
    origin_at: int | None = None
    """Sequence of the last shared event."""
    deadline: int | None = None
    """The run fails at this time, and its requests cannot be answered any more."""
    cost: float = 0.0
    """Recorded cost of its steps and of the runs that it called; for a fork, since it was forked."""
    engine: str = ""
    """The engine that has the run driven; empty for the workers of Limpet."""
    labels: dict[str, str] = {}

    @property
    def place(self) -> "Place":
        """The run's place in the list of runs by their last events."""
        return Place(self.time, self.number)

    @property
    def head(self) -> Head:
        """The head, to which the next event is sealed."""
        return Head(self.seq, self.hash, self.time)


class RequestRow(Part, frozen=True, kw_only=True):
    """A request, with the fields that the inbox needs. Its question is in its event."""

    id: str
    run: str
    seq: int
    """Sequence of the event that opened it."""
    kind: str
    status: RequestStatus = "open"
    to: tuple[str, ...] = ()
    risk: str | None = None
    tool: str | None = None
    opened: int
    expires: int | None = None
    digest: str = ""
    """Digest of what the request shows; an answer must carry the same."""
    by: str | None = None
    """The person who decided it."""


class ScoreRow(Part, frozen=True, kw_only=True):
    """The current score of one name, by one person, for a run or a step. Its comment is in its event."""

    run: str
    name: str
    by: str
    step: int = 0
    """The step that it is about; 0 for the run."""
    seq: int
    """Sequence of the event that gave it."""
    time: int
    """Time of that event."""
    number: float | None = None
    """The value, if it is a number; 1 for true, and 0 for false."""
    text: str | None = None
    """The value, if it is a category."""


class WorkerRow(Part, frozen=True, kw_only=True):
    """A process that claims runs. It is alive while its lease lasts."""

    id: str
    host: str = ""
    """Identity of its process, for others on the same machine."""
    agents: dict[str, tuple[str, ...]] = {}
    """The agents that it serves, each with the versions that it accepts."""
    started: int = 0
    lease_until: int = 0
    engine: str = ""
    """The engine whose runs it drives; empty for a worker that claims runs itself."""


class DutyRow(Part, frozen=True, kw_only=True):
    """Work that one worker at a time does for the whole store."""

    name: str
    every: int = 0
    """Time between two rounds, in microseconds."""
    worker: str | None = None
    """The worker that holds the duty now."""
    lease_until: int = 0
    """End of the worker's lease on the duty; then another may take it."""
    done: int | None = None
    """When a round was last completed."""
    done_by: str | None = None
    error: str = ""
    """Why the last round failed; "" if it did not."""


class TokenRow(Part, frozen=True, kw_only=True):
    """An access token, with the caller that it stands for. Its secret is not stored."""

    id: str
    name: str
    """Name of the caller, which events record as the sender of a command."""
    kind: Literal["person", "service"] = "person"
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    rights: tuple[str, ...] = ()
    digest: bytes
    """SHA-256 of the whole token; encrypted in an encrypted store."""
    created: int = 0
    created_by: str = ""
    expires: int | None = None
    """The token is not valid from this time on; None if it does not expire."""
    revoked: int | None = None
    revoked_by: str = ""
    last_used: int | None = None
    """Time of the last recorded use; a use within a minute after it is not recorded."""
    purpose: Literal["token", "session", "login"] = "token"
    """A session of a browser and the code of a login link are tokens, too. Lists leave them out."""
    parent: str = ""
    """The token of the person who logged in. A session is only valid while its parent is."""


class ContractRow(Part, frozen=True, kw_only=True):
    """An agent's contract, as declared when its app was opened, for callers in other processes."""

    agent: str
    version: str
    hash: str
    """Hex digest of the canonical contract."""
    contract: bytes
    """Canonical JSON, as given."""
    saved: int = 0
    """Store's time when it was last saved."""
    codec: str = ""
    """Codec of the contract, in a stored row."""
    key_id: str = ""


class Snapshot(NamedTuple):
    """A cached state; deleting it changes no result."""

    seq: int
    hash: bytes
    """Hash of the event at `seq`; a snapshot of another log is ignored."""
    time: int
    data: bytes
    codec: str = ""
    key_id: str = ""


class KeyRow(NamedTuple):
    """A key that encrypts the store's content, itself encrypted with a master key."""

    id: str
    purpose: Literal["data", "index"]
    """`data` encrypts content, the newest key new content; `index` names blobs and hides findable text, permanently."""
    master: str
    """Id of the master key that wraps it."""
    wrapped: bytes
    created: int


class Feed(NamedTuple):
    """A page of all logs: events in the order in which they became visible, and the cursor of the next page."""

    events: tuple[Event, ...]
    next: str
    cursors: tuple[str, ...] = ()
    """For each event, the cursor of the page that continues after it."""


class Recent(NamedTuple):
    """Events of some kinds among the latest of all logs, newest first, and the cursor of older ones."""

    events: tuple[Event, ...]
    next: str | None
    """None if the first event was reached."""
    time: int = 0
    """Time of the oldest event that was examined, of any kind."""
    cursors: tuple[str, ...] = ()
    """For each event, the cursor of older ones."""


class Late(NamedTuple):
    """A late event of a superseded worker: stored and shown, never folded."""

    event: Event
    """The event as it would have been; it is not part of any log."""
    time: int


class ScoreCondition(NamedTuple):
    """A condition on the scores of a run: it has one with this name, and with such a value."""

    name: str
    least: float | None = None
    """Smallest number; None if any value is right, or only a category."""
    most: float | None = None
    """Largest number."""
    text: str | None = None
    """The category."""


class RunFilter(Part, frozen=True, kw_only=True):
    """A filter of runs; every field that is set must match."""

    type: StreamType = "run"
    status: tuple[str, ...] = ()
    waits: Literal["person", "signal", "run", "time", "operator"] | None = None
    """Only runs that wait for this."""
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
    """Contained in id, agent, goal or a label's value, ignoring the case of ASCII letters."""
    scored: ScoreCondition | None = None
    """Only runs with such a score, of the run itself or of a step."""


class RequestFilter(Part, frozen=True, kw_only=True):
    """A filter of requests, which are listed oldest first."""

    status: RequestStatus | None = "open"
    id: str | None = None
    run: str | None = None
    to: str | None = None
    risk: str | None = None
    opened_until: int | None = None
    """Only requests that were opened at this time or before."""
    after: tuple[int, str] | None = None
    """Only requests after the one with this opening time and id."""


class ScoreFilter(Part, frozen=True, kw_only=True):
    """A filter of scores, which are listed newest first."""

    run: str | None = None
    name: str | None = None
    by: str | None = None
    step: int | None = None
    time_from: int | None = None
    """Only scores that were given at this time or later."""
    before: tuple[int, str, int] | None = None
    """Only scores before the one with this time, run and sequence."""


class ReadyRun(NamedTuple):
    """A run of another engine that can continue now."""

    id: str
    agent: str
    version: str
    seq: int
    """Sequence of its last event."""
    engine: str


class Place(NamedTuple):
    """A place in the list of runs by their last events."""

    time: int
    """Time of the last event of a run."""
    number: int
    """The number of the run, which orders those with the same time."""


class RowPage(NamedTuple):
    """Some rows, newest first, and the start of the next page."""

    rows: tuple[RunRow, ...]
    next: int | None
