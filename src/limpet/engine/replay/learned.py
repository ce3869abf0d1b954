"""A worker's knowledge of a run's log while it drives the run, and how a snapshot stores that.

It is built from all events, or from a snapshot and the events after it. Finished turns are not needed, so a run with
many turns resumes as fast as a short one.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from limpet.engine.replay.history import History, Record
from limpet.errors import DamagedEvent, NewerVersion
from limpet.events import VOCABULARY, AnyBody, Event, Payload, StatePatch
from limpet.events import bodies as b
from limpet.events.values import encode
from limpet.state import AgentState, Fold

__all__ = ["Learned", "Read"]


class _Body(Struct, frozen=True, array_like=True):
    """An event body with its stored name."""

    kind: str
    version: int
    body: Raw


class _Record(Struct, frozen=True, array_like=True):
    opened: _Body
    seq: int
    time: int
    left: int
    end: int | None
    settled: _Body | None
    latest: _Body | None
    resolutions: int
    escalations: int = 0
    since: int = 0
    shared: bool = False


class Read(Struct, frozen=True, array_like=True):
    """Data read from an external source, and until when it is valid."""

    output: Payload
    stale_at: int
    args: Payload | None = None
    """Arguments of the read."""


class _Memory(Struct, frozen=True):
    created: _Body
    last: int
    lay_since: int
    states: dict[str, AgentState]
    records: list[_Record]
    commands: list[tuple[int, _Body]]
    expired: list[_Body]
    escalations: dict[str, list[_Body]]
    signals: dict[str, list[int]]
    flags: list[tuple[int, str, str]]
    turns: dict[str, int]
    last_number: int
    last_child: int
    undoing: _Body | None
    artifacts: dict[str, Payload]
    overrides: list[tuple[int, StatePatch]] = []
    turned: dict[str, int] = {}
    reads: list[tuple[str, str, Read]] = []
    used: list[str] = []
    reading: list[tuple[int, Payload, Payload | None]] = []
    deadlines: list[tuple[int, int | None]] = []
    patches: list[tuple[int, StatePatch]] = []


class Learned:
    """A run's history, and the agent's state at the start of each current turn."""

    def __init__(self) -> None:
        self.history = History()
        self.states: dict[str, AgentState] = {}
        """Working state at the start of the current turn of each loop."""
        self._created: b.RunCreated | None = None
        self.artifacts: dict[str, Payload] = {}
        """Contents of the run's artifacts, by id."""
        self.last = self.idle_since = 0
        """Times of the last event, and of the last event before the claim."""
        self.overrides: list[tuple[int, StatePatch]] = []
        """State patches of a fork and its origins, each with the sequence from which it applies."""
        self.turn_starts: dict[str, int] = {}
        """Sequence at which the current turn of each loop started."""
        self.reads: dict[tuple[str, str], Read] = {}
        """Latest data of external sources, by source and digest of the arguments."""
        self._reading: dict[int, tuple[Payload, Payload | None]] = {}

    @property
    def created(self) -> b.RunCreated:
        """The run's first event; for a fork, that of its origin with the fork's changes."""
        assert self._created is not None, "no event was added"
        return self._created

    def learn(self, event: Event, body: AnyBody, fold: Fold) -> None:
        """Add the next event."""
        self.history.learn(event, body)
        if type(body) is b.StepStarted or type(body) is b.StepCompleted:  # checked first: most events are about steps
            self.last = event.time
            if self._reading or (type(body) is b.StepStarted and body.kind == "read"):
                self._learn_reads(body)
            return
        if isinstance(body, b.RunClaimed):
            self.idle_since, self.last = self.last, event.time
            return
        self.last = event.time
        if isinstance(body, b.TurnStarted):
            inner = f"{body.loop}/"
            self.states = {loop: state for loop, state in self.states.items() if not loop.startswith(inner)}
            self.states[body.loop] = fold.working.freeze()
            self.turn_starts[body.loop] = event.seq
        elif isinstance(body, b.ArtifactStored):
            self.artifacts[body.artifact_id] = body.content
        elif isinstance(body, b.RunCreated):
            self._created, self.artifacts = body, dict(body.artifacts)
        elif isinstance(body, b.RunForked):
            self._apply_fork(event, body)
        else:
            self._learn_reads(body)

    def learn_step(
        self, started: Event, opened: b.StepStarted, completed: Event, settled: b.StepCompleted, fold: Fold
    ) -> None:
        """Add the start and the end of a step."""
        if self._reading or opened.kind == "read":
            self.learn(started, opened, fold)
            self.learn(completed, settled, fold)
        else:
            self.history.learn_step(started, opened, completed, settled)
            self.last = completed.time

    def _learn_reads(self, body: AnyBody) -> None:
        match body:
            case b.StepStarted(kind="read"):
                self._reading[body.number] = (body.args, None)
            case b.StepCompleted() if body.number in self._reading:
                self._reading[body.number] = (self._reading[body.number][0], body.output)
            case b.ExternalRead():
                args, output = self._reading.pop(body.number, (None, None))
                if output is not None:
                    self.note_read(body.source, body.key, Read(output, body.stale_at, args))
            case b.StepFailed(is_final=True):
                self._reading.pop(body.number, None)
            case b.ExternalInvalidated():
                self.forget_reads(body.source)
            case _:
                pass

    def note_read(self, source: str, key: str, read: Read) -> None:
        """Record data of a source."""
        self.reads.pop((source, key), None)  # the newest one is last
        self.reads[source, key] = read

    def forget_reads(self, source: str) -> None:
        """Mark the data of a source as out of date; its arguments are kept."""
        for key, read in self.reads.items():
            if key[0] == source:
                self.reads[key] = replace(read, stale_at=0)

    def last_args(self, source: str) -> Payload | None:
        """Return the arguments of the last read of a source, or None."""
        asked = [read.args for (name, _), read in self.reads.items() if name == source]
        return asked[-1] if asked else None

    def stale(self, sources: Sequence[str], now: int) -> str | None:
        """Return the first of these sources without valid data, or None."""
        fresh = {source for (source, _), read in self.reads.items() if read.stale_at > now}
        return next((source for source in sources if source not in fresh), None)

    def _apply_fork(self, event: Event, body: b.RunForked) -> None:
        """Apply the changes of a fork to the first event. A fork has no parent."""
        self._created = replace(
            self.created,
            agent_version=body.agent_version or self.created.agent_version,
            input=body.input or self.created.input,
            user=body.user or self.created.user,
            session=body.session or self.created.session,
            conversation=body.conversation or self.created.conversation,
            labels=body.labels or self.created.labels,
            parent=None,
            deadline=body.deadline,
            exclusive=body.exclusive,
            effects=body.effects,
            live=body.live,
        )
        if body.patch is not None:
            self.overrides.append((event.seq, body.patch))

    @property
    def is_partial(self) -> bool:
        """Whether a dump needs records that were dropped."""
        return self.history.is_partial and bool(self.history.turns)

    def fresh(self) -> "Learned":
        """Return a new object that has learnt nothing yet."""
        return Learned()

    def recover(self, fresh: "Learned", /) -> None:
        """Take over the records that were dropped, from a new object that has learnt the same log."""
        self.history.recover(fresh.history)

    def dump(self) -> bytes | None:
        """Return the form that a snapshot stores, or None if the run has no turns, because that would save nothing."""
        history = self.history
        if not history.turns:
            return None
        return encode(
            _Memory(
                created=_dump(self.created),
                last=self.last,
                lay_since=self.idle_since,
                states=self.states,
                records=[_dump_record(record) for record in history.records.values()],
                commands=[(seq, _dump(body)) for seq, body in history.commands.items()],
                expired=[_dump(body) for body in history.expired.values()],
                escalations={name: [_dump(each) for each in all] for name, all in history.escalations.items()},
                signals={name: seqs for name, seqs in history.signals.items() if seqs},
                flags=history.flags,
                turns=history.turns,
                last_number=history.recorded_number,
                last_child=history.last_child,
                undoing=None if history.undoing is None else _dump(history.undoing),
                artifacts=self.artifacts,
                overrides=self.overrides,
                turned={loop: seq for loop, seq in self.turn_starts.items() if loop in self.states},
                used=sorted(history.used),
                reading=[(number, *read) for number, read in self._reading.items()],
                deadlines=history.deadlines,
                patches=list(history.patches.items()),
                reads=[(source, key, read) for (source, key), read in self.reads.items()],
            )
        )

    def restore(self, data: bytes) -> bool:
        """Restore from a snapshot. Returns False, with nothing changed, if it cannot be read."""
        try:
            kept = msgspec.json.decode(data, type=_Memory)
            created, records = _load(kept.created), [_load_record(record) for record in kept.records]
            commands = {seq: _load(body) for seq, body in kept.commands}
            expired = {body.request: body for body in map(_load, kept.expired)}
            escalations = {name: [_load(each) for each in all] for name, all in kept.escalations.items()}
            undoing = None if kept.undoing is None else _load(kept.undoing)
        except (msgspec.MsgspecError, UnicodeDecodeError, NewerVersion, DamagedEvent):
            return False
        self._created = created
        self.last, self.idle_since, self.states = kept.last, kept.lay_since, kept.states
        self.artifacts = kept.artifacts
        self.overrides, self.turn_starts = kept.overrides, kept.turned
        self.reads = {(source, key): read for source, key, read in kept.reads}
        self._reading = {number: (args, output) for number, args, output in kept.reading}
        history = self.history
        for record in records:
            history.put(record)
        history.commands, history.expired, history.escalations = commands, expired, escalations
        history.signals, history.flags, history.turns = kept.signals, kept.flags, kept.turns
        history.last_number = history.recorded_number = kept.last_number
        history.last_child, history.used = kept.last_child, set(kept.used)
        history.undoing = undoing
        history.deadlines, history.patches = kept.deadlines, dict(kept.patches)
        return True


def _dump(body: AnyBody) -> _Body:
    kind = VOCABULARY.kind_of(body)
    return _Body(kind.name, kind.version, Raw(encode(body)))


def _load(stored: _Body) -> Any:
    return VOCABULARY.decode(stored.kind, stored.version, bytes(stored.body))


def _dump_record(record: Record) -> _Record:
    settled = None if record.settled is None else _dump(record.settled)
    latest = None if record.latest is None else _dump(record.latest)
    counts = (record.resolutions, record.escalations, record.ignored_return, record.shared)
    return _Record(
        _dump(record.opened), record.seq, record.time, record.cancelled_at, record.end, settled, latest, *counts
    )


def _load_record(stored: _Record) -> Record:
    opened: Any = _load(stored.opened)
    settled = None if stored.settled is None else _load(stored.settled)
    latest = None if stored.latest is None else _load(stored.latest)
    counts = (stored.resolutions, stored.escalations, stored.since, stored.shared)
    return Record(opened.name, opened, stored.seq, stored.time, stored.left, stored.end, settled, latest, *counts)
