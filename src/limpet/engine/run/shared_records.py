"""Shared records: facts, questions, a plan and data that several runs, people and services read and patch.

A run reads a record as a step, whose result is the record at one version. It patches the record from that version, as
another step, which is stored together with the patch: both or neither.
"""

from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypedDict, get_args

import msgspec
from msgspec import Raw, UnsetType

from limpet.arguments import brief
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.traits import Traits
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.principal import sent_by_run
from limpet.engine.run.working_state import revisions
from limpet.engine.steps.steps import Steps
from limpet.errors import InvalidArgument, InvalidPatch, LimpetError, RecordConflict, StepFailed
from limpet.events import Fact, PlanItem, PlanStatus, RecordPatch, canonical
from limpet.events import bodies as b
from limpet.events.values import encode
from limpet.journal import conflict_of, read_record, record_id
from limpet.policy.retry import READ_RETRY
from limpet.redaction import Redaction
from limpet.secret import hidden
from limpet.state.patch import keep_statuses
from limpet.state.shared_record import RecordState, check_patch, plain_data
from limpet.stores import Missed, SendCommands, Store
from limpet.stores.writes import RECORD
from limpet.times import to_datetime
from limpet.view import View

__all__ = [
    "RecordChange",
    "RunRecords",
    "SharedFact",
    "SharedQuestion",
    "SharedRecord",
    "patch_to_write",
    "shown_record",
]

STATUSES = f"must map items of the plan to {', '.join(get_args(PlanStatus))}"
# Maximum size of a patch, in bytes of JSON.
LARGEST_PATCH = 64_000
# Maximum size of a record, in bytes of JSON.
LARGEST_RECORD = 1_000_000


class SharedFact(View, frozen=True, kw_only=True):
    """A fact in a shared record."""

    key: str
    """Key of the fact."""
    value: Any
    """Value of the fact."""
    source: str
    """Where it comes from, as its writer said."""
    derived_from: tuple[str, ...]
    """Keys of the facts that it was derived from."""
    by: str
    """The person or service that wrote it; if `via` is "run", the id of the run."""
    via: str
    """The interface through which it was written."""
    step: int | None
    """The step of that run."""
    time: datetime
    """When it was written."""
    version: int
    """Version of the record with which it came."""


class SharedQuestion(View, frozen=True, kw_only=True):
    """A question in a shared record."""

    id: str
    """Id of the question."""
    question: str
    """The question."""
    answer: str | None
    """None while it is open."""
    by: str
    """Who asked."""
    answered_by: str
    """Who answered."""
    time: datetime
    """When it was asked."""


@dataclass(frozen=True, kw_only=True)
class SharedRecord:
    """A shared record at one version."""

    name: str
    """Name of the record."""
    version: int
    """Its version, which a patch names; 0 if there is no such record."""
    known_facts: tuple[SharedFact, ...]
    """Facts, the newest last."""
    questions: tuple[SharedQuestion, ...]
    """Questions, open and answered."""
    plan: tuple[str, ...]
    """Items of the plan."""
    plan_status: tuple[PlanStatus, ...]
    """One status per item of the plan."""
    data: Mapping[str, Any]
    """Other values, by key."""

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """Values of the facts, by key."""
        return MappingProxyType({each.key: each.value for each in self.known_facts})

    @property
    def open_questions(self) -> tuple[SharedQuestion, ...]:
        """Questions without an answer."""
        return tuple(each for each in self.questions if each.answer is None)


class RecordChange(TypedDict, total=False):
    """A change of a shared record."""

    facts: Mapping[str, Any] | None
    """Facts to add or replace, by key."""
    retract: Sequence[str]
    """Keys of facts to remove."""
    source: str | None
    """Source of the facts."""
    derived_from: Sequence[str]
    """Keys of the facts that these facts were derived from."""
    plan: Sequence[str] | None
    """The new plan. Items that stay keep their status."""
    revise: Mapping[str, PlanStatus] | None
    """New statuses of items of the plan."""
    questions: Mapping[str, str] | None
    """Questions to ask, by an id of your own."""
    answered: Mapping[str, str] | None
    """Answers, by the id of the question."""
    close: Sequence[str]
    """Ids of questions to remove."""
    data: Mapping[str, Any] | None
    """Values to set, by key."""
    unset: Sequence[str]
    """Keys to remove from the data."""


def shown_record(name: str, state: RecordState) -> SharedRecord:
    """Return a record with its values as Python objects."""
    return SharedRecord(
        name=name,
        version=state.version,
        known_facts=tuple(
            SharedFact(
                key=each.key,
                value=msgspec.json.decode(each.value),
                source=each.source,
                derived_from=each.derived_from,
                by=each.by,
                via=each.via,
                step=each.step,
                time=to_datetime(each.time),
                version=each.version,
            )
            for each in state.known_facts
        ),
        questions=tuple(
            SharedQuestion(
                id=each.id,
                question=each.question,
                answer=each.answer,
                by=each.by,
                answered_by=each.answered_by,
                time=to_datetime(each.time),
            )
            for each in state.questions
        ),
        plan=state.plan,
        plan_status=tuple(each.status for each in state.items),
        data=plain_data(state.data),
    )


async def patch_to_write(
    store: Store, name: str, read: int, change: RecordChange, *, command: str, seen: str | None = None
) -> RecordPatch:
    """Return a change of a record that was read at a version, checked against that version. Raises InvalidArgument.

    `seen` is the hash of the record that was read, if it is known. Raises RecordConflict if it was another record, in
    another store. The record must not become too large, unless an earlier attempt has sent the same command.
    """
    newest = await read_record(store, name)
    if seen is not None and read > newest.version:
        raise _another(name, read, newest.version)
    state = RecordState()
    if read:
        state = newest if read == newest.version else await read_record(store, name, read)
    if seen is not None and seen != state.hash:
        raise _another(name, read, newest.version)
    patch = patch_of(state, change, store.redaction)
    try:
        _check_record_size(newest, patch)
    except InvalidArgument:
        if not await store.has_command(record_id(name), command):
            raise
    return patch


def _another(name: str, read: int, version: int) -> RecordConflict:
    changes = ("this store has another record of that name",)
    return RecordConflict(record=name, read=read, version=version, changes=changes)


def patch_of(state: RecordState, change: RecordChange, redaction: Redaction) -> RecordPatch:
    """Return a change in its stored form, checked against the record that its writer has read.

    Raises InvalidArgument for a change that is malformed or too large, or that does not fit the record.
    """
    _check_types(change)
    given: dict[str, Any] = {name: value for name, value in change.items() if value is not None}
    plan: tuple[PlanItem, ...] | UnsetType = msgspec.UNSET
    if doubled := [item for item, count in Counter(given.get("plan", ())).items() if count > 1]:
        reason = f"has {doubled[0]!r} twice; items are told apart by their text"
        raise InvalidArgument(path="plan", reason=reason)
    if "plan" in given or "revise" in given:
        plan = keep_statuses(state.items, redaction.texts(given.get("plan", state.plan)))
        for revision in revisions(plan, redaction.value(dict(given.get("revise", {})))):
            changed = PlanItem(item=plan[revision.index].item, status=revision.status)
            plan = (*plan[: revision.index], changed, *plan[revision.index + 1 :])
    facts = tuple(
        Fact(
            key=key,
            value=Raw(canonical(value)),
            source=redaction.text(given.get("source", "")),
            derived_from=redaction.texts(given.get("derived_from", ())),
        )
        for key, value in redaction.value(hidden(dict(given.get("facts", {})))).items()
    )
    data = redaction.value(hidden(dict(given.get("data", {}))))
    patch = RecordPatch(
        facts=facts,
        retract=tuple(given.get("retract", ())),
        plan=plan,
        questions=redaction.value(dict(given.get("questions", {}))),
        answered=redaction.value(dict(given.get("answered", {}))),
        close=tuple(given.get("close", ())),
        data={key: Raw(canonical(value)) for key, value in data.items()},
        unset=tuple(given.get("unset", ())),
    )
    try:
        check_patch(state, patch)
    except InvalidPatch as error:
        raise InvalidArgument(path=error.part, reason=error.reason) from error
    _check_size(patch)
    return patch


def _check_types(change: RecordChange) -> None:
    """Raise InvalidArgument for an unknown part, or one with a wrong type."""
    for name, value in change.items():
        if name not in _PARTS:
            raise InvalidArgument(path=name, reason=f"is not a part of a record; there are {', '.join(_PARTS)}")
        try:
            if value is not None:
                msgspec.convert(value, _PARTS[name])
        except msgspec.ValidationError as error:
            wanted = STATUSES if name == "revise" else f"{error}"
            raise InvalidArgument(path=name, reason=f"{wanted}, not {brief(value)}") from error


def _check_size(patch: RecordPatch) -> None:
    try:
        size = len(msgspec.json.encode(patch))
    except TypeError as error:  # a subclass of str
        raise InvalidArgument(path="patch", reason=str(error)) from error
    if size > LARGEST_PATCH:
        reason = f"has {size:,} bytes, more than {LARGEST_PATCH:,}; store large values as artifacts, and name them here"
        raise InvalidArgument(path="patch", reason=reason)


def _check_record_size(newest: RecordState, patch: RecordPatch) -> None:
    """Raise InvalidArgument if a patch would make a record too large. Removing something never does."""
    adds = patch.facts or patch.questions or patch.answered or patch.data or not isinstance(patch.plan, UnsetType)
    if adds and len(msgspec.json.encode(newest)) + len(msgspec.json.encode(patch)) > LARGEST_RECORD:
        reason = f"would make the record larger than {LARGEST_RECORD:,} bytes; remove what is no longer needed first"
        raise InvalidArgument(path="patch", reason=reason)


_PARTS: dict[str, Any] = {
    "facts": dict[str, Any],
    "retract": tuple[str, ...],
    "source": str,
    "derived_from": tuple[str, ...],
    "plan": tuple[str, ...],
    "revise": dict[str, PlanStatus],
    "questions": dict[str, str],
    "answered": dict[str, str],
    "close": tuple[str, ...],
    "data": dict[str, Any],
    "unset": tuple[str, ...],
}


class RunRecords:
    """The shared records that one execution reads and patches."""

    def __init__(self, execution: Execution, steps: Steps) -> None:
        self._x, self._steps = execution, steps
        self._store: Store = execution.kit.store
        self._seen: dict[tuple[str, int], str] = {}
        """Hashes of the records that were read, by name and version."""

    def read(self, name: str) -> Coroutine[Any, Any, SharedRecord]:
        """Read a record, as a step."""
        store = self._store
        record_id(name)

        async def read(record: str) -> Any:
            return msgspec.json.decode(encode(await read_record(store, record)))

        tool: Tool[..., Any, Any] = Tool(read, "limpet.record", _READ)
        tool.step_name, tool.is_for_store = f"record:{name}", True
        step, record = self._steps.find(tool, (name,), {})

        async def run() -> SharedRecord:
            found = msgspec.json.decode(encode(await self._steps.run(step, record)), type=RecordState)
            self._seen[name, found.version] = found.hash
            return shown_record(name, found)

        return run()

    def patch(self, name: str, read: int, change: RecordChange) -> Coroutine[Any, Any, None]:
        """Patch a record that was read at a version, as a step."""
        record_id(name)
        _check_types(change)
        tool: Tool[..., Any, Any] = Tool(_patch_record, "limpet.patch_record", _PATCH)
        tool.step_name, tool.command = f"patch_record:{name}", _PatchCommand(self._x, self._seen)
        step, record = self._steps.find(tool, (name, read, _plain(change)), {})

        async def run() -> None:
            try:
                await self._steps.run(step, record)
            except StepFailed as error:
                if error.was(RecordConflict):
                    raise self._x.attribute_error(self._conflict(step.name, name, read), step.name) from error
                raise

        return run()

    def _conflict(self, step: str, name: str, read: int) -> RecordConflict:
        """Return the recorded conflict of a step."""
        settled = self._x.history.records[step].settled
        failure = settled.failure if isinstance(settled, b.StepFailed) else None
        facts = failure.facts.value() if failure is not None and failure.facts is not None else {}
        changes = tuple(facts.get("changes", ()))
        return RecordConflict(record=name, read=read, version=facts.get("version", 0), changes=changes)


class _PatchCommand:
    """Sends the patch of a step to its record."""

    def __init__(self, execution: Execution, seen: Mapping[tuple[str, int], str]) -> None:
        self._x, self._store, self._seen = execution, execution.kit.store, seen

    async def prepare(self, args: Mapping[str, Any], key: str, number: int, /) -> SendCommands:
        """Return the patch, checked against the record at the version that was read.

        Raises RecordConflict if this store has another record of that name: the run came from another store.
        """
        name, read, change = args["record"], args["read"], args["change"]
        seen = self._seen.get((name, read))
        patch = await patch_to_write(self._store, name, read, change, command=key, seen=seen)
        body = b.RecordPatched(command=key, read=read, patch=patch, number=number, **sent_by_run(self._x.run))
        return SendCommands(run=record_id(name), bodies=(body,), actor=self._x.kit.worker)

    async def refusal(self, leg: SendCommands, missed: Missed, /) -> LimpetError:
        """Return the conflict."""
        [sent] = leg.bodies
        assert isinstance(sent, b.RecordPatched)
        return await conflict_of(self._store, leg.run.removeprefix(RECORD), sent, missed)


_READ = Traits(effect="none", retry=READ_RETRY)
# Nothing was applied if the record refused the patch, whose id is the step's idempotency key.
_PATCH = Traits(effect="idempotent", not_applied=(LimpetError,))


async def _patch_record(record: str, read: int, change: dict[str, Any]) -> None:
    """Stand for the function of a step that only sends a command."""
    raise AssertionError((record, read, change))


def _plain(change: RecordChange) -> dict[str, Any]:
    return {name: dict(each) if isinstance(each, Mapping) else each for name, each in change.items()}


assert set(_PARTS) == set(RecordChange.__annotations__)
