"""Change the working state: apply a patch, compute the patch between two states, and describe it in words.

`Working` is the mutable form, so that a fold over many patches is linear. `apply` is the pure function around it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec import UNSET, UnsetType, json, to_builtins
from msgspec.structs import asdict, replace

from limpet.errors import InvalidPatch
from limpet.events import (
    Artifact,
    Constraints,
    Fact,
    Limits,
    OpenQuestion,
    PlanItem,
    PlanStatus,
    Revision,
    RiskFlag,
    StatePatch,
)
from limpet.events.bodies import ArtifactStored
from limpet.state.agent import NO_DATA, AgentState, current_item

__all__ = ["Change", "Working", "apply", "changes_plan", "describe_patch", "diff", "origin_of"]

T = TypeVar("T")


def apply(state: AgentState, patch: StatePatch) -> AgentState:
    """Return the state after the patch. Raises InvalidPatch, with nothing changed, if any part is invalid."""
    working = Working(state)
    working.apply(patch)
    return working.freeze()


def changes_plan(patch: StatePatch) -> bool:
    """Return whether a patch replaces the plan or changes the status of an item."""
    return bool(patch.revise) or not isinstance(patch.plan, UnsetType)


class Working:
    """A working state under construction."""

    def __init__(self, state: AgentState) -> None:
        self.goal = state.goal
        self._constraints = state.constraints
        self.budget = state.budget
        """The run's budget, if it has one."""
        self._plan = list(state.items)
        self._facts = {fact.key: fact for fact in state.known_facts}
        self._questions = {each.question: each for each in state.questions}
        self._artifacts = {artifact.artifact_id: artifact for artifact in state.artifacts}
        self._flags = {each.flag: each for each in state.flags}
        self._data, self._data_versions = state.data, state.data_versions

    def copy(self) -> "Working":
        """Return a copy that changes independently."""
        other = Working.__new__(Working)  # not `copy.copy`, which is slow
        other.__dict__.update(self.__dict__)
        other._plan, other._facts, other._questions = self._plan.copy(), self._facts.copy(), self._questions.copy()
        other._artifacts, other._flags = self._artifacts.copy(), self._flags.copy()
        return other

    def apply(self, patch: StatePatch) -> None:
        """Apply a patch in place. Every part is checked before the first change."""
        self._check(patch)
        self._set(patch)
        for revision in patch.revise:
            self._plan[revision.index] = PlanItem(item=self._plan[revision.index].item, status=revision.status)
        _replace(self._facts, patch.retract, {fact.key: fact for fact in patch.facts})
        questions = {each: OpenQuestion(question=each, step=patch.question_steps.get(each)) for each in patch.questions}
        _replace(self._questions, patch.answered, questions)
        _replace(self._artifacts, patch.discard, {artifact.artifact_id: artifact for artifact in patch.artifacts})
        flags = {each: RiskFlag(flag=each, detail=patch.details.get(each, "")) for each in patch.flags}
        _replace(self._flags, patch.lower, flags)

    def put_stored(self, body: ArtifactStored) -> Artifact:
        """Add a stored artifact."""
        artifact = Artifact(
            artifact_id=body.artifact_id, type=body.type, summary=body.summary, bytes=body.bytes, step=body.number
        )
        _replace(self._artifacts, (), {artifact.artifact_id: artifact})
        return artifact

    def flag(self, flag: str, detail: str) -> None:
        """Add a flag that a policy raised."""
        _replace(self._flags, (), {flag: RiskFlag(flag=flag, detail=detail)})

    def flag_detail(self, flag: str) -> str | None:
        """Return the detail of a flag, or None if it is not set."""
        return self._flags[flag].detail if flag in self._flags else None

    def extend(self, limits: Limits) -> None:
        """Raise the limits that were extended. The others stay, and so does `exhausted`."""
        if self.budget is not None:
            self.budget = extended(self.budget, limits)

    @property
    def facts(self) -> Collection[Fact]:
        """The known facts, the newest last."""
        return self._facts.values()

    @property
    def constraints(self) -> Constraints | None:
        """Restrictions on what the agent may do without a person."""
        return self._constraints

    @property
    def plan(self) -> tuple[PlanItem, ...]:
        """The plan, each item with its status."""
        return tuple(self._plan)

    @property
    def position(self) -> int | None:
        """Index of the plan's current or next item, from 0; None if there is none."""
        return current_item([item.status for item in self._plan]) if self._plan else None

    def item(self, name: str) -> int | None:
        """Return the index of the first plan item with this name, from 0."""
        return next((index for index, item in enumerate(self._plan) if item.item == name), None)

    def freeze(self) -> AgentState:
        """Return the current state."""
        return AgentState(
            goal=self.goal,
            constraints=self._constraints,
            budget=self.budget,
            plan=tuple(item.item for item in self._plan),
            plan_status=_statuses(self._plan),
            known_facts=tuple(self._facts.values()),
            open_questions=tuple(self._questions),
            question_steps={each.question: each.step for each in self._questions.values() if each.step is not None},
            artifacts=tuple(self._artifacts.values()),
            risk_flags=tuple(self._flags),
            risk_details={each.flag: each.detail for each in self._flags.values() if each.detail},
            data=self._data,
            data_versions=self._data_versions,
        )

    def _check(self, patch: StatePatch) -> None:
        size = len(self._plan) if isinstance(patch.plan, UnsetType) else len(patch.plan)
        for revision in patch.revise:
            if not 0 <= revision.index < size:
                raise InvalidPatch(part="revise", reason=f"the plan has no item {revision.index}")
        _check_list("facts", self._facts, patch.retract, [fact.key for fact in patch.facts])
        _check_list("questions", self._questions, patch.answered, patch.questions)
        _check_list("artifacts", self._artifacts, patch.discard, [each.artifact_id for each in patch.artifacts])
        _check_list("flags", self._flags, patch.lower, patch.flags)
        if any(artifact.bytes < 0 for artifact in patch.artifacts):
            raise InvalidPatch(part="artifacts", reason="a size is negative")

    def _set(self, patch: StatePatch) -> None:
        if not isinstance(patch.goal, UnsetType):
            self.goal = patch.goal
        if not isinstance(patch.constraints, UnsetType):
            self._constraints = patch.constraints
        if not isinstance(patch.budget, UnsetType):
            self.budget = patch.budget
        if not isinstance(patch.plan, UnsetType):
            self._plan = list(patch.plan)
        if not isinstance(patch.data, UnsetType):
            self._data = UNSET if patch.data == NO_DATA else patch.data
            self._data_versions = {} if patch.data == NO_DATA else patch.data_versions


def extended(budget: Limits, limits: Limits) -> Limits:
    """Return a budget with some limits raised. It never gets lower, and gets no new limits."""
    pairs = zip(asdict(budget).items(), asdict(limits).values(), strict=True)
    raised = {field: max(old, new) for (field, old), new in pairs if field != "exhausted" and None not in (old, new)}
    return replace(budget, **raised)


def keep_statuses(before: Sequence[PlanItem], wanted: Sequence[str]) -> tuple[PlanItem, ...]:
    """Return a new plan, in which items of the old one keep their status; of equal ones, in order."""
    kept = list(before)
    plan = []
    for name in wanted:
        item = next((each for each in kept if each.item == name), PlanItem(item=name))
        if item in kept:
            kept.remove(item)
        plan.append(item)
    return tuple(plan)


def rebased(working: Working, patch: StatePatch) -> StatePatch:
    """Return a patch from outside as it applies now: items of its plan keep the status that they have now."""
    plan = patch.plan if isinstance(patch.plan, UnsetType) else tuple(each.item for each in patch.plan)
    fitting = still_fits(working, patch)
    return fitting if isinstance(plan, UnsetType) else replace(fitting, plan=keep_statuses(working.plan, plan))


def still_fits(working: Working, patch: StatePatch) -> StatePatch:
    """Drop the parts of a patch whose targets no longer exist."""
    state = working.freeze()
    facts, artifacts = {each.key for each in state.known_facts}, {each.artifact_id for each in state.artifacts}
    return replace(
        patch,
        retract=tuple(each for each in patch.retract if each in facts),
        answered={each: answer for each, answer in patch.answered.items() if each in state.open_questions},
        discard=tuple(each for each in patch.discard if each in artifacts),
        lower=tuple(each for each in patch.lower if each in state.risk_flags),
    )


def diff(before: AgentState, after: AgentState) -> StatePatch:
    """Return the patch from one state to the other: apply(before, diff(before, after)) == after."""
    gone_facts, facts = _changes({f.key: f for f in before.known_facts}, {f.key: f for f in after.known_facts})
    closed, questions = _changes(_by_question(before), _by_question(after))
    discard, artifacts = _changes(_by_id(before.artifacts), _by_id(after.artifacts))
    lower, flags = _changes(_by_flag(before), _by_flag(after))
    return StatePatch(
        goal=UNSET if before.goal == after.goal else after.goal,
        constraints=UNSET if before.constraints == after.constraints else after.constraints,
        budget=UNSET if before.budget == after.budget else after.budget,
        plan=UNSET if before.plan == after.plan else after.items,
        revise=_revisions(before, after) if before.plan == after.plan else (),
        facts=tuple(facts.values()),
        retract=gone_facts,
        questions=tuple(questions),
        question_steps={each.question: each.step for each in questions.values() if each.step is not None},
        answered=dict.fromkeys(closed, ""),
        artifacts=tuple(artifacts.values()),
        discard=discard,
        flags=tuple(flags),
        details={each.flag: each.detail for each in flags.values() if each.detail},
        lower=lower,
        data=UNSET if _data(before) == _data(after) else after.data or NO_DATA,
        data_versions={} if _data(before) == _data(after) else after.data_versions,
    )


def _revisions(before: AgentState, after: AgentState) -> tuple[Revision, ...]:
    """Return the items of the same plan whose status differs."""
    pairs = enumerate(zip(before.items, after.items, strict=True))
    return tuple(Revision(index=index, status=new.status) for index, (old, new) in pairs if old != new)


def _data(state: AgentState) -> tuple[object, dict[str, int]]:
    return state.data, state.data_versions


class Change(NamedTuple):
    """One change of a working state, as data and as text."""

    part: Literal["goal", "constraints", "budget", "plan", "fact", "question", "artifact", "flag", "data"]
    key: str
    """The fact, question, artifact or flag; the index of a plan's item; "" for the others."""
    before: Any
    after: Any
    text: str


def describe_patch(before: AgentState, patch: StatePatch) -> list[Change]:
    """Describe what the patch changes in a state."""
    return [*_describe_plan(before, patch), *_describe_facts(before, patch), *_describe_lists(before, patch)]


def _describe_plan(before: AgentState, patch: StatePatch) -> Iterator[Change]:
    if not isinstance(patch.goal, UnsetType):
        text = f"goal: {patch.goal!r} (was {before.goal!r})" if before.goal else f"goal: {patch.goal!r}"
        yield Change("goal", "", before.goal, patch.goal, text)
    if not isinstance(patch.constraints, UnsetType):
        old, new = to_builtins(before.constraints), to_builtins(patch.constraints)
        yield Change("constraints", "", old, new, "constraints changed")
    if not isinstance(patch.budget, UnsetType):
        yield Change("budget", "", to_builtins(before.budget), to_builtins(patch.budget), "budget changed")
    plan = before.items
    if not isinstance(patch.plan, UnsetType):
        plan = patch.plan
        text = "plan: " + (" → ".join(f"{item.item} ({item.status})" for item in plan) or "none")
        yield Change("plan", "", to_builtins(before.items), to_builtins(plan), text)
    for revision in patch.revise:
        item = plan[revision.index]
        text = f"plan item {revision.index + 1} {item.item!r}: {revision.status}"
        yield Change("plan", str(revision.index), item.status, revision.status, text)


def _describe_facts(before: AgentState, patch: StatePatch) -> Iterator[Change]:
    known: dict[str, Fact] = {fact.key: fact for fact in before.known_facts}
    for key in patch.retract:
        yield Change("fact", key, _value(known[key]), None, f"fact {key} retracted")
    for fact in patch.facts:
        old = known.get(fact.key)
        if fact == old:
            continue  # The fact only moved to another position.
        value = bytes(fact.value).decode()
        is_new = "is new:" if old is None else "is still" if old.value == fact.value else "is now"
        was = "" if old is None or old.value == fact.value else f", was {bytes(old.value).decode()}"
        text = f"fact {fact.key} {is_new} {value}{was}{origin_of(fact)}"
        yield Change("fact", fact.key, None if old is None else _value(old), _value(fact), text)


def origin_of(fact: Fact) -> str:
    """Return where a fact comes from, as text: its step and its source."""
    step = "" if fact.step is None else f", from step {fact.step}"
    return f"{step} ({fact.source})" if fact.source and step else f", from {fact.source}" if fact.source else step


def _describe_lists(before: AgentState, patch: StatePatch) -> Iterator[Change]:
    for question, answer in patch.answered.items():
        text = f"question closed: {question}" + (f" → {answer}" if answer else "")
        yield Change("question", question, "open", answer or "closed", text)
    for question in (each for each in patch.questions if each not in before.open_questions):
        yield Change("question", question, None, "open", f"question opened: {question}")
    for id in patch.discard:
        yield Change("artifact", id, "stored", None, f"artifact discarded: {id}")
    for each in (each for each in patch.artifacts if each not in before.artifacts):
        text = f"artifact {each.artifact_id}: {each.summary} ({each.bytes} bytes)"
        yield Change("artifact", each.artifact_id, None, each.summary, text)
    for flag in patch.lower:
        yield Change("flag", flag, True, False, f"flag lowered: {flag}")
    for flag in (flag for flag in patch.flags if flag not in before.risk_flags):
        yield Change("flag", flag, False, True, f"flag raised: {flag}")
    if not isinstance(patch.data, UnsetType):
        old_data = None if isinstance(before.data, UnsetType) else json.decode(before.data)
        yield Change("data", "", old_data, json.decode(patch.data), f"data = {bytes(patch.data).decode()}")


def _value(fact: Fact) -> Any:
    return json.decode(fact.value)


def _by_id(artifacts: Iterable[Artifact]) -> dict[str, Artifact]:
    return {artifact.artifact_id: artifact for artifact in artifacts}


def _by_question(state: AgentState) -> dict[str, OpenQuestion]:
    return {each.question: each for each in state.questions}


def _by_flag(state: AgentState) -> dict[str, RiskFlag]:
    return {each.flag: each for each in state.flags}


def _statuses(plan: list[PlanItem]) -> tuple[PlanStatus, ...]:
    return tuple(item.status for item in plan) if any(item.status != "pending" for item in plan) else ()


def _check_list(part: str, have: dict[str, T], gone: Collection[str], new: Collection[str]) -> None:
    if len(set(new)) != len(new) or len(set(gone)) != len(gone):
        raise InvalidPatch(part=part, reason="contains a duplicate")
    for key in gone:
        if key not in have:
            raise InvalidPatch(part=part, reason=f"{key!r} does not exist")
    if "" in new:
        raise InvalidPatch(part=part, reason="contains an empty entry")


def _replace(items: dict[str, T], gone: Iterable[str], new: dict[str, T]) -> None:
    """Remove some items, then append the new ones."""
    for key in gone:
        del items[key]
    for key, item in new.items():
        items.pop(key, None)
        items[key] = item


def _changes(before: dict[str, T], after: dict[str, T]) -> tuple[tuple[str, ...], dict[str, T]]:
    """Return what `_replace` needs to get from one dict to the other: keys to remove, items to append."""
    gone = tuple(key for key in before if key not in after)
    stays = [key for key in before if key in after]
    kept = 0
    for old, new in zip(stays, after, strict=False):
        if old != new or before[old] != after[new]:
            break
        kept += 1
    return gone, dict(list(after.items())[kept:])
