"""The agent's working state for its code: facts as a mapping, the user's data as the declared type."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, TypedDict, get_args

import msgspec
from msgspec import Raw, Struct, UnsetType
from msgspec.structs import asdict, replace
from typing_extensions import TypeVar

from limpet.arguments import brief
from limpet.engine.definitions.agents import Budget
from limpet.engine.definitions.types import TypeCodec
from limpet.errors import InvalidArgument, InvalidValue, WrongCall
from limpet.events import (
    Artifact,
    Constraints,
    Fact,
    Limits,
    PlanItem,
    PlanStatus,
    Revision,
    RiskFlag,
    StatePatch,
    approval_levels,
    canonical,
)
from limpet.redaction import NOTHING, Redaction
from limpet.secret import hidden
from limpet.state import AgentState, derived
from limpet.state.agent import LOOP, check_constraints
from limpet.state.patch import Working, keep_statuses

__all__ = ["PatchOptions", "SentPatch", "State", "StateChange", "revisions"]

NO_DATA = (
    "Call `await run.patch(data=...)` first, give the fields defaults, pass `data=` to @limpet.agent, or start the run "
    'with `state={"data": {...}}`.'
)

S = TypeVar("S", default=dict[str, Any])


class State(Generic[S]):
    """The agent's working state at one point of its code."""

    def __init__(self, working: AgentState, data: TypeCodec, default: Callable[[], Any] | None = None) -> None:
        self.working = working
        """The state in its stored form."""
        self._data, self._default = data, default

    @property
    def goal(self) -> str:
        """Goal of the agent."""
        return self.working.goal

    @property
    def plan(self) -> list[str]:
        """Items of the plan, in order."""
        return list(self.working.plan)

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """Values of the known facts, by key."""
        return MappingProxyType({fact.key: msgspec.json.decode(fact.value) for fact in self.working.known_facts})

    def derived_from(self, key: str) -> list[Fact]:
        """Return the facts that depend on a fact, directly or indirectly. They are not changed when it is."""
        return list(derived(self.working, key))

    @property
    def open_questions(self) -> list[str]:
        """Questions that are still open."""
        return list(self.working.open_questions)

    @property
    def artifacts(self) -> list[Artifact]:
        """Artifacts that the run has stored or received."""
        return list(self.working.artifacts)

    @property
    def risk_flags(self) -> list[str]:
        """Risk flags, shown to people."""
        return list(self.working.risk_flags)

    @property
    def flags(self) -> list[RiskFlag]:
        """Risk flags, each with its detail."""
        return list(self.working.flags)

    @property
    def constraints(self) -> Mapping[str, Any]:
        """Restrictions that the run was started with, and those that its code added."""
        return MappingProxyType(self.working.constraints or {})

    @property
    def data(self) -> S:
        """The user's own data; before the first patch, the agent's default or the declared type without arguments."""
        raw = self.working.data
        if isinstance(raw, UnsetType):
            return self._first_data()
        try:
            loaded: S = self._data.load(msgspec.json.decode(raw), self.working.data_versions)
        except InvalidValue as error:
            reason = f"does not match the declared type: {error.at('data')}"
            raise InvalidValue(path="$.data", reason=reason) from error
        return loaded

    def _first_data(self) -> S:
        """Return the data of a run whose state has none. Raises InvalidValue if the declared type needs arguments."""
        try:
            first: S = self._data.load({} if self._default is None else self._data.dump(self._default()))
        except InvalidValue as error:
            what = f"{self._data.name}()" if self._default is None else "the agent's data="
            reason = f"The run has no data yet, and {what} does not make a valid {self._data.name}: {error.reason}"
            raise WrongCall(reason=reason, fix=NO_DATA) from error
        return first

    def __repr__(self) -> str:
        return f"State({self.working!r})"


class SentPatch(TypedDict, total=False):
    """Parts of a patch that may also come from outside."""

    goal: str | None
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
    questions: Sequence[str]
    """Questions to add."""
    answered: Mapping[str, str] | None
    """Open questions to close, with their answers."""
    flags: Sequence[str] | Mapping[str, str]
    """Risk flags to add, or a mapping from flags to details."""
    lower: Sequence[str]
    """Risk flags to remove."""


class PatchOptions(SentPatch, Generic[S], total=False):
    """Arguments of `run.patch`."""

    revise: Mapping[str, PlanStatus] | None
    """New statuses of items of the plan."""
    discard: Sequence[str]
    """Ids of artifacts to remove from the state. Their content stays stored."""
    data: S
    """The user's own data, whole."""
    budget: Budget | None
    """Lower limits for the rest of the run."""
    constraints: Mapping[str, Any] | None
    """Constraints to add."""


class StateChange(Struct, frozen=True, kw_only=True):
    """A change of the working state, as code gives it: the fields of `PatchOptions`."""

    goal: str | None = None
    facts: Mapping[str, Any] | None = None
    plan: Sequence[str] | None = None
    revise: Mapping[str, PlanStatus] | None = None
    questions: Sequence[str] = ()
    answered: Mapping[str, str] | None = None
    flags: Sequence[str] | Mapping[str, str] = ()
    lower: Sequence[str] = ()
    discard: Sequence[str] = ()
    data: Any = msgspec.UNSET
    budget: Budget | None = None
    constraints: Mapping[str, Any] | None = None
    source: str | None = None
    retract: Sequence[str] = ()
    derived_from: Sequence[str] = ()

    def _check(self) -> None:
        """Raise InvalidArgument for a wrong type: the value would be stored, but could not be read."""
        for name, fits, wanted in _PARTS:
            given = getattr(self, name)
            if given is not None and not fits(given):
                raise InvalidArgument(path=name, reason=f"must be {wanted}, not {brief(given)}")

    def patch(self, codec: TypeCodec, step: int | None, before: Working, redaction: Redaction = NOTHING) -> StatePatch:
        """Return the change in its stored form. `before` is the state so far: items of a plan keep their status, a
        budget only gets lower, and constraints are only added.
        """
        self._check()
        plan = before.plan
        more: dict[str, Any] = {}
        if self.goal is not None:
            more["goal"] = redaction.text(self.goal)
        if self.plan is not None:
            more["plan"] = plan = keep_statuses(before.plan, redaction.texts(self.plan))
        if not isinstance(self.data, UnsetType):
            more["data"] = Raw(canonical(redaction.value(codec.dump(self.data))))
            more["data_versions"] = dict(codec.versions)
        if self.budget is not None:
            more["budget"] = _lowered(before.budget, self.budget.limits)
        if self.constraints is not None:
            more["constraints"] = _tightened(before.constraints or {}, redaction.value(dict(self.constraints)))
        facts = tuple(
            Fact(
                key=key,
                value=Raw(canonical(value)),
                source=redaction.text(self.source or ""),
                step=step,
                derived_from=redaction.texts(self.derived_from or ()),
            )
            for key, value in redaction.value(hidden(dict(self.facts or {}))).items()
        )
        return StatePatch(
            facts=facts,
            retract=redaction.texts(self.retract or ()),
            questions=redaction.texts(self.questions or ()),
            revise=revisions(plan, {redaction.text(item): status for item, status in (self.revise or {}).items()}),
            question_steps={} if step is None else dict.fromkeys(redaction.texts(self.questions or ()), step),
            answered=redaction.value(dict(self.answered or {})),
            flags=redaction.texts(list(self.flags or ())),
            details=redaction.value(dict(self.flags)) if isinstance(self.flags, Mapping) else {},
            lower=redaction.texts(self.lower or ()),
            discard=tuple(self.discard or ()),
            **more,
        )


def _lowered(budget: Limits | None, wanted: Limits) -> Limits:
    """Return a budget with lower limits. Raises InvalidArgument for a higher one."""
    has = asdict(budget or Limits())
    new = {name: value for name, value in asdict(wanted).items() if value is not None and name != "exhausted"}
    for name, value in new.items():
        if has[name] is not None and value > has[name]:
            reason = f"the code of a run can only lower a limit, which is {has[name]:g}; `limpet extend` raises it"
            raise InvalidArgument(path=f"budget.{name}", reason=reason)
    return replace(budget or Limits(exhausted=wanted.exhausted), **new)


def _tightened(constraints: Constraints, wanted: Constraints) -> Constraints:
    """Return constraints with more of them. Raises InvalidArgument if one would be loosened or changed."""
    try:
        check_constraints(wanted)
    except InvalidValue as error:
        raise InvalidArgument(path=error.path.removeprefix("$."), reason=error.reason) from error
    for name, value in wanted.items():
        is_kept = name not in constraints or constraints[name] == value
        if name == LOOP:
            is_kept = set(approval_levels(constraints)) <= set(approval_levels(wanted))
        if not is_kept:
            reason = f"is {constraints[name]!r}; the code of a run can add constraints, not change them"
            raise InvalidArgument(path=f"constraints.{name}", reason=reason)
    return {**constraints, **wanted}


def revisions(plan: Sequence[PlanItem], wanted: Mapping[str, PlanStatus]) -> tuple[Revision, ...]:
    """Return the items of a plan whose status is to change, by index; of equal ones, the first that has another."""
    found = []
    for name, status in wanted.items():
        indexes = [index for index, each in enumerate(plan) if each.item == name]
        if not indexes:
            listed = ", ".join(repr(each.item) for each in plan) or "nothing"
            raise InvalidArgument(path="revise", reason=f"{name!r} is not in the plan, which has {listed}")
        index = next((each for each in indexes if plan[each].status != status), indexes[-1])
        found.append(Revision(index=index, status=status))
    return tuple(found)


def _is_text(given: Any) -> bool:
    return isinstance(given, str)


def _is_texts(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str | bytes) and all(map(_is_text, given))


def _is_named(given: Any) -> bool:
    return isinstance(given, Mapping) and all(map(_is_text, given))


_PARTS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("goal", _is_text, "a str"),
    ("source", _is_text, "a str"),
    ("plan", _is_texts, "a list of str"),
    ("questions", _is_texts, "a list of str"),
    (
        "flags",
        lambda given: _is_texts(given) or (_is_named(given) and _is_texts(list(given.values()))),
        "a list of str, or a mapping from str to str",
    ),
    ("lower", _is_texts, "a list of str"),
    ("discard", _is_texts, "a list of str"),
    ("budget", lambda given: isinstance(given, Budget), "a Budget"),
    ("constraints", _is_named, "a mapping with str keys"),
    ("retract", _is_texts, "a list of str"),
    ("derived_from", _is_texts, "a list of str"),
    ("facts", _is_named, "a mapping with str keys"),
    (
        "revise",
        lambda given: _is_named(given) and set(given.values()) <= {*get_args(PlanStatus)},
        "a mapping from items of the plan to pending, doing, done or skipped",
    ),
    ("answered", lambda given: _is_named(given) and _is_texts(list(given.values())), "a mapping from str to str"),
)
