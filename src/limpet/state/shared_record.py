"""The state of a shared record: facts, questions, a plan and data that several writers patch. Computed from its log.

A patch names the version that its writer had read. It conflicts with a later patch if both change the same unit: the
same fact, question or key of the data, or the plan. Otherwise both apply.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import Raw, UnsetType, json
from msgspec.structs import replace

from limpet.errors import InvalidPatch, Tampered
from limpet.events import Event, PlanItem, PlanStatus, RecordPatch
from limpet.events import bodies as b
from limpet.events.parts import Part
from limpet.events.vocabulary import AnyBody

__all__ = [
    "RecordFact",
    "RecordFold",
    "RecordQuestion",
    "RecordState",
    "RecordUnit",
    "check_patch",
    "common_units",
    "units",
]


class RecordFact(Part, frozen=True, kw_only=True):
    """A fact in a shared record, with its writer."""

    key: str
    value: Raw
    source: str = ""
    derived_from: tuple[str, ...] = ()
    by: str = ""
    """The person or service that wrote it; if `via` is "run", the id of the run."""
    via: str = ""
    step: int | None = None
    """The step of that run."""
    time: int = 0
    version: int
    """Version of the record with which it came."""


class RecordQuestion(Part, frozen=True, kw_only=True):
    """A question in a shared record, and its answer."""

    id: str
    question: str
    by: str = ""
    via: str = ""
    step: int | None = None
    time: int = 0
    version: int
    answer: str | None = None
    """None while it is open."""
    answered_by: str = ""


class RecordState(Part, frozen=True, kw_only=True):
    """A shared record at one version."""

    version: int = 0
    """Number of the events in its log; 0 for a record that does not exist."""
    hash: str = ""
    """Hash of the last of them, in hex: another record of the same name has another one."""
    plan: tuple[str, ...] = ()
    plan_status: tuple[PlanStatus, ...] = ()
    known_facts: tuple[RecordFact, ...] = ()
    """Facts, the newest last."""
    questions: tuple[RecordQuestion, ...] = ()
    data: dict[str, Raw] = {}

    @property
    def items(self) -> tuple[PlanItem, ...]:
        """The plan, each item with its status."""
        if not self.plan_status:
            return tuple(PlanItem(item=item) for item in self.plan)
        pairs = zip(self.plan, self.plan_status, strict=True)
        return tuple(PlanItem(item=item, status=status) for item, status in pairs)


class RecordUnit(NamedTuple):
    """A part of a record that one patch changes at a time."""

    part: str
    """`fact`, `question`, `plan` or `data`."""
    key: str = ""

    def __str__(self) -> str:
        return f"{self.part} {self.key}" if self.key else self.part


def units(patch: RecordPatch) -> frozenset[RecordUnit]:
    """Return the units that a patch changes."""
    return frozenset(
        [
            *(RecordUnit("fact", each.key) for each in patch.facts),
            *(RecordUnit("fact", key) for key in patch.retract),
            *(RecordUnit("question", id) for id in (*patch.questions, *patch.answered, *patch.close)),
            *(RecordUnit("data", key) for key in (*patch.data, *patch.unset)),
            *([] if isinstance(patch.plan, UnsetType) else [RecordUnit("plan")]),
        ]
    )


def common_units(patch: RecordPatch, later: Iterable[RecordPatch]) -> frozenset[RecordUnit]:
    """Return the units of a patch that later patches have changed, too."""
    changed: frozenset[RecordUnit] = frozenset().union(*(units(each) for each in later))
    return units(patch) & changed


def check_patch(state: RecordState, patch: RecordPatch) -> None:
    """Raise InvalidPatch for a patch that does not match the record, changes a unit twice, or changes nothing."""
    facts, questions = {each.key for each in state.known_facts}, {each.id for each in state.questions}
    _check_part(("retract", "facts"), patch.retract, [each.key for each in patch.facts], facts)
    _check_part(("close", "questions"), patch.close, patch.questions, questions)
    _check_part(("unset", "data"), patch.unset, patch.data, state.data)
    _check_part(("answered", "questions"), (*patch.answered,), (*patch.questions, *patch.close), questions)
    if not units(patch):
        raise InvalidPatch(part="patch", reason="it changes nothing")


def _check_part(parts: tuple[str, str], gone: Collection[str], new: Collection[str], known: Collection[str]) -> None:
    for key in gone:
        if key in new:
            raise InvalidPatch(part=parts[0], reason=f"{key!r} is changed twice")
        if key not in known:
            raise InvalidPatch(part=parts[0], reason=f"there is no {key!r}")
    for part, keys in zip(parts, (gone, new), strict=True):
        if len(set(keys)) != len(keys):
            raise InvalidPatch(part=part, reason="the same key is there twice")
        if "" in keys:
            raise InvalidPatch(part=part, reason="a key is empty")


class RecordFold:
    """Computes the state of a record from its log, event by event."""

    def __init__(self, state: RecordState | None = None) -> None:
        state = state or RecordState()
        self._version, self._hash = state.version, state.hash
        self._plan = state.items
        self._facts = {each.key: each for each in state.known_facts}
        self._questions = {each.id: each for each in state.questions}
        self._data = dict(state.data)

    @property
    def version(self) -> int:
        """Version of the record so far."""
        return self._version

    def add(self, event: Event, body: AnyBody) -> None:
        """Apply the next event. Raises Tampered for one that does not belong in a record's log."""
        match body:
            case b.RecordCreated() if not self._version:
                pass
            case b.RecordPatched() if self._version:
                self._apply(event, body)
            case _:
                raise Tampered(run=event.run, seq=event.seq, reason=f"{event.kind} does not belong here")
        self._version, self._hash = event.seq, event.hash.hex()

    def _apply(self, event: Event, body: b.RecordPatched) -> None:
        patch, version = body.patch, event.seq
        written: dict[str, Any] = {"by": body.by, "via": body.via, "step": body.number, "time": event.time}
        for key in (*patch.retract, *(each.key for each in patch.facts)):
            self._facts.pop(key, None)  # a fact that is replaced is the newest, too
        for fact in patch.facts:
            known: dict[str, Any] = {
                "key": fact.key,
                "value": fact.value,
                "source": fact.source,
                "derived_from": fact.derived_from,
            }
            self._facts[fact.key] = RecordFact(version=version, **known, **written)
        for id in patch.close:
            self._questions.pop(id, None)
        for id, question in patch.questions.items():
            self._questions[id] = RecordQuestion(id=id, question=question, version=version, **written)
        for id in patch.answered.keys() & self._questions.keys():
            answer: dict[str, Any] = {"answer": patch.answered[id], "answered_by": body.by, "version": version}
            self._questions[id] = replace(self._questions[id], **answer)
        if not isinstance(patch.plan, UnsetType):
            self._plan = patch.plan
        self._data = {key: value for key, value in self._data.items() if key not in patch.unset} | patch.data

    def freeze(self) -> RecordState:
        """Return the current state."""
        statuses = tuple(each.status for each in self._plan)
        return RecordState(
            version=self._version,
            hash=self._hash,
            plan=tuple(each.item for each in self._plan),
            plan_status=statuses if set(statuses) - {"pending"} else (),
            known_facts=tuple(self._facts.values()),
            questions=tuple(self._questions.values()),
            data=dict(self._data),
        )


def plain_data(data: Mapping[str, Raw]) -> dict[str, Any]:
    """Return the data of a record as JSON values."""
    return {key: json.decode(value) for key, value in data.items()}
