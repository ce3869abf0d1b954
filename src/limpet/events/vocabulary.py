"""The frozen vocabulary: the kinds of events with their versions and writers, and how bytes become bodies.

Stored names are data, never Python paths. A kind's version grows when its struct changes; `upcasts` lift bodies of
older versions, one version at a time, before they are decoded. An unknown kind or version raises `NewerVersion`, so
that a newer worker can continue the run; no event is ever dropped.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from limpet.errors import DamagedEvent, InvalidArgument, NewerVersion
from limpet.events import bodies as b
from limpet.events.values import encode

__all__ = ["KINDS", "VOCABULARY", "AnyBody", "Kind", "Vocabulary", "WrittenBy"]

AnyBody = (
    b.StepStarted
    | b.StepCompleted
    | b.StepFailed
    | b.StepUnknown
    | b.StepResolved
    | b.StepProgressed
    | b.StatePatched
    | b.DecisionMade
    | b.TurnStarted
    | b.ValueRecorded
    | b.VersionChosen
    | b.RunCreated
    | b.RunForked
    | b.RunClaimed
    | b.RunReleased
    | b.RunWaiting
    | b.RunCompleted
    | b.RunFailed
    | b.RunCancelled
    | b.ArtifactStored
    | b.RiskFlagged
    | b.RequestOpened
    | b.RequestAnswered
    | b.RequestExpired
    | b.GrantGiven
    | b.GrantRevoked
    | b.AgentCalled
    | b.AgentReturned
    | b.SignalReceived
    | b.PatchReceived
    | b.TimerSet
    | b.WaitOpened
    | b.WaitEnded
    | b.MessageSaid
    | b.ExternalRead
    | b.ExternalInvalidated
    | b.BudgetReserved
    | b.BudgetExtended
    | b.DeadlineExtended
    | b.CancelRequested
    | b.PauseRequested
    | b.ResumeRequested
    | b.RunMoved
    | b.ScoreGiven
    | b.ScoreWithdrawn
    | b.CompensationStarted
    | b.CompensationCompleted
    | b.CompensationFailed
    | b.CompensationSkipped
    | b.ConversationCreated
    | b.ConversationForked
    | b.ConversationCompacted
    | b.MessageAdded
    | b.AuditStarted
    | b.AuditRecorded
    | b.RecordCreated
    | b.RecordPatched
)


class WrittenBy(Enum):
    """Who may write a kind."""

    CREATOR = "creator"
    """The creator of the stream; this is its first event."""
    OWNER = "owner"
    """The worker that holds the run, under the fence of its claim."""
    COMMAND = "command"
    """Any process; the store seals it after checking its guard."""
    STORE = "store"
    """The store, when a worker claims a run or the store releases one."""
    SPEAKER = "speaker"
    """A writer that knows the head of a conversation; there is no fence."""


class Kind(NamedTuple):
    """One kind of event: its stored name, version, struct and writer."""

    name: str
    version: int
    body: type[AnyBody]
    writer: WrittenBy


Upcasts = Mapping[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]]


class Vocabulary:
    """A closed list of kinds, which decodes bytes to bodies."""

    def __init__(self, kinds: Iterable[Kind], upcasts: Upcasts) -> None:
        self.kinds = {kind.name: kind for kind in kinds}
        self._by_body = {kind.body: kind for kind in self.kinds.values()}
        self._decoders = {kind.name: msgspec.json.Decoder(kind.body) for kind in self.kinds.values()}
        self._newest = {(kind.name, kind.version): self._decoders[kind.name].decode for kind in self.kinds.values()}
        self._upcasts = dict(upcasts)

    def kind_of(self, body: AnyBody) -> Kind:
        """Return the kind of a body."""
        return self._by_body[type(body)]

    def check(self, body: AnyBody) -> None:
        """Raise InvalidArgument, with the field, for a body that would decode to something else once stored.

        msgspec encodes any Python object that it knows, whatever the field's type says.
        """
        try:
            decoded = self._decoders[self.kind_of(body).name].decode(encode(body))
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `$.")
            raise InvalidArgument(path=path.rstrip("`") or "$", reason=reason) from error
        except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
            raise InvalidArgument(path=_changed(body), reason=_refused(error)) from error
        if decoded != body:
            field = _changed(body, decoded)
            raise InvalidArgument(path=field, reason=f"{type(getattr(body, field)).__name__} is not the field's type")

    def decode(self, name: str, version: int, data: bytes) -> AnyBody:
        """Return the body, lifted to its newest version.

        Raises NewerVersion for an unknown kind or version, and DamagedEvent for a body that does not match its struct.
        """
        decode = self._newest.get((name, version)) or self._decode_older(name, version)
        try:
            return decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError) as error:
            raise DamagedEvent(
                kind=name, version=version, reason=f"the body does not match its struct ({error})"
            ) from error

    def _decode_older(self, name: str, version: int) -> Callable[[bytes], AnyBody]:
        """Return a function that decodes bodies of an older version. Raises NewerVersion for one that is unknown."""
        kind = self.kinds.get(name)
        if kind is None:
            raise NewerVersion(what=f"event {name!r} version {version}", reason="unknown kind")
        if not 1 <= version <= kind.version:
            reason = f"this version of Limpet supports up to {kind.version}"
            raise NewerVersion(what=f"event {name!r} version {version}", reason=reason)
        return lambda data: self._decoders[name].decode(self._lift(kind, version, data))

    def _lift(self, kind: Kind, version: int, data: bytes) -> bytes:
        body = msgspec.json.decode(data, type=dict[str, Any])
        for old in range(version, kind.version):
            body = self._upcasts[kind.name, old](body)
        return encode(body)


def _changed(body: AnyBody, decoded: AnyBody | None = None) -> str:
    """Return the first field that cannot be encoded, or that was decoded to something else."""
    for field in body.__struct_fields__:
        value = getattr(body, field)
        if decoded is None and not _encodes(value):
            return field
        if decoded is not None and getattr(decoded, field) != value:
            return field
    return "$"


def _encodes(value: object) -> bool:
    try:
        encode(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _refused(error: Exception) -> str:
    return "contains a lone surrogate" if isinstance(error, UnicodeEncodeError) else str(error)


_CREATOR, _OWNER, _COMMAND, _STORE, _SPEAKER = WrittenBy

KINDS = (
    Kind("run.created", 6, b.RunCreated, _CREATOR),
    Kind("run.forked", 6, b.RunForked, _CREATOR),
    Kind("run.claimed", 2, b.RunClaimed, _STORE),
    Kind("run.released", 2, b.RunReleased, _STORE),
    Kind("run.waiting", 1, b.RunWaiting, _OWNER),
    Kind("run.completed", 1, b.RunCompleted, _OWNER),
    Kind("run.failed", 2, b.RunFailed, _OWNER),
    Kind("run.cancelled", 2, b.RunCancelled, _OWNER),
    Kind("turn.started", 1, b.TurnStarted, _OWNER),
    Kind("step.started", 3, b.StepStarted, _OWNER),
    Kind("step.progressed", 1, b.StepProgressed, _OWNER),
    Kind("step.completed", 1, b.StepCompleted, _OWNER),
    Kind("step.failed", 1, b.StepFailed, _OWNER),
    Kind("step.unknown", 1, b.StepUnknown, _OWNER),
    Kind("step.resolved", 1, b.StepResolved, _OWNER),
    Kind("decision.made", 1, b.DecisionMade, _OWNER),
    Kind("state.patched", 3, b.StatePatched, _OWNER),
    Kind("artifact.stored", 1, b.ArtifactStored, _OWNER),
    Kind("value.recorded", 1, b.ValueRecorded, _OWNER),
    Kind("version.chosen", 1, b.VersionChosen, _OWNER),
    Kind("risk.flagged", 1, b.RiskFlagged, _OWNER),
    Kind("request.opened", 3, b.RequestOpened, _OWNER),
    Kind("request.answered", 1, b.RequestAnswered, _COMMAND),
    Kind("request.expired", 1, b.RequestExpired, _OWNER),
    Kind("grant.given", 2, b.GrantGiven, _COMMAND),
    Kind("grant.revoked", 2, b.GrantRevoked, _COMMAND),
    Kind("agent.called", 1, b.AgentCalled, _OWNER),
    Kind("agent.returned", 2, b.AgentReturned, _COMMAND),
    Kind("signal.received", 2, b.SignalReceived, _COMMAND),
    Kind("patch.received", 1, b.PatchReceived, _COMMAND),
    Kind("timer.set", 1, b.TimerSet, _OWNER),
    Kind("wait.opened", 1, b.WaitOpened, _OWNER),
    Kind("wait.ended", 1, b.WaitEnded, _OWNER),
    Kind("message.said", 1, b.MessageSaid, _OWNER),
    Kind("external.read", 1, b.ExternalRead, _OWNER),
    Kind("external.invalidated", 1, b.ExternalInvalidated, _OWNER),
    Kind("budget.reserved", 1, b.BudgetReserved, _OWNER),
    Kind("budget.extended", 2, b.BudgetExtended, _COMMAND),
    Kind("deadline.extended", 1, b.DeadlineExtended, _COMMAND),
    Kind("cancel.requested", 2, b.CancelRequested, _COMMAND),
    Kind("pause.requested", 2, b.PauseRequested, _COMMAND),
    Kind("resume.requested", 2, b.ResumeRequested, _COMMAND),
    Kind("run.moved", 1, b.RunMoved, _COMMAND),
    Kind("score.given", 1, b.ScoreGiven, _COMMAND),
    Kind("score.withdrawn", 1, b.ScoreWithdrawn, _COMMAND),
    Kind("compensation.started", 1, b.CompensationStarted, _OWNER),
    Kind("compensation.completed", 1, b.CompensationCompleted, _OWNER),
    Kind("compensation.failed", 1, b.CompensationFailed, _OWNER),
    Kind("compensation.skipped", 1, b.CompensationSkipped, _OWNER),
    Kind("conversation.created", 1, b.ConversationCreated, _CREATOR),
    Kind("conversation.forked", 1, b.ConversationForked, _CREATOR),
    Kind("conversation.compacted", 2, b.ConversationCompacted, _SPEAKER),
    Kind("message.added", 2, b.MessageAdded, _SPEAKER),
    Kind("audit.started", 1, b.AuditStarted, _CREATOR),
    Kind("audit.recorded", 1, b.AuditRecorded, _COMMAND),
    Kind("record.created", 1, b.RecordCreated, _CREATOR),
    Kind("record.patched", 1, b.RecordPatched, _COMMAND),
)


def _unchanged(body: dict[str, Any]) -> dict[str, Any]:
    """Lift a body to a version that only adds fields with defaults."""
    return body


def _void_its_call(body: dict[str, Any]) -> dict[str, Any]:
    """Lift `run.failed` to version 2, which names all calls that a resume makes again, not only the one that failed."""
    return {**body, "voids": [body["name"]] if body.get("name") else []}


# One function per version step of a kind: ("step.completed", 1) lifts a body of version 1 to version 2.
UPCASTS: Upcasts = {
    ("request.opened", 1): _unchanged,  # version 2 adds `seen`, `valid`, `instead_of` and `again`
    ("request.opened", 2): _unchanged,  # version 3 adds `key` and `undo`
    ("run.created", 1): _unchanged,  # version 2 adds `live`
    ("run.forked", 1): _unchanged,  # version 2 adds `live`
    ("step.started", 1): _unchanged,  # version 2 adds `made_up`
    ("step.started", 2): _unchanged,  # version 3 adds `granted_by` and `item`
    ("state.patched", 1): _unchanged,  # version 2 adds `item` and `items`
    ("state.patched", 2): _unchanged,  # version 3 adds `event`, and `question_steps` and `details` in its patch
    ("run.claimed", 1): _unchanged,  # version 2 adds `alone`
    ("run.released", 1): _unchanged,  # version 2 adds `retry_at` and `fruitless`
    ("run.created", 2): _unchanged,  # version 3 adds `by` and `via`
    ("run.forked", 2): _unchanged,  # version 3 adds `by` and `via`
    ("run.created", 3): _unchanged,  # version 4 adds `question_steps` and `details` in its patch
    ("run.forked", 3): _unchanged,  # version 4 adds `question_steps` and `details` in its patch
    ("run.created", 4): _unchanged,  # version 5 adds `asked`
    ("run.forked", 4): _unchanged,  # version 5 adds `asked`
    ("run.created", 5): _unchanged,  # version 6 adds `engine`
    ("run.forked", 5): _unchanged,  # version 6 adds `engine`
    ("run.failed", 1): _void_its_call,
    ("run.cancelled", 1): _unchanged,  # version 2 adds `via`
    ("message.added", 1): _unchanged,  # version 2 adds `by` and `via`
    ("conversation.compacted", 1): _unchanged,  # version 2 adds `by`, `via` and `command`
    ("signal.received", 1): _unchanged,  # version 2 adds `via`
    ("budget.extended", 1): _unchanged,  # version 2 adds `via`
    ("cancel.requested", 1): _unchanged,  # version 2 adds `via`
    ("pause.requested", 1): _unchanged,  # version 2 adds `via`
    ("resume.requested", 1): _unchanged,  # version 2 adds `via`
    ("grant.given", 1): _unchanged,  # version 2 adds `via`
    ("grant.revoked", 1): _unchanged,  # version 2 adds `via`
    ("agent.returned", 1): _unchanged,  # version 2 adds `by` and `via`
}

VOCABULARY = Vocabulary(KINDS, UPCASTS)
