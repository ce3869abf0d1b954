"""The agent's working state for its code: facts as a mapping, the user's data as the declared type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, get_args

import msgspec
from msgspec import Raw, UnsetType
from typing_extensions import TypeVar

from limpet.engine.definitions.types import TypeCodec
from limpet.errors import InvalidArgument, InvalidValue
from limpet.events import Artifact, Fact, PlanItem, PlanStatus, Revision, StatePatch, canonical
from limpet.redaction import NOTHING, Redaction
from limpet.secret import hidden
from limpet.state import AgentState, derived

__all__ = ["State", "StateChange"]

S = TypeVar("S", default=dict[str, Any])


class State(Generic[S]):
    """The agent's working state at one point of its code."""

    def __init__(self, working: AgentState, data: TypeCodec) -> None:
        self.working = working
        """The state in its stored form."""
        self._data = data

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
    def data(self) -> S:
        """The user's own data; before the first patch, the declared type without arguments."""
        raw = self.working.data
        try:
            loaded: S = (
                self._data.load({})
                if isinstance(raw, UnsetType)
                else self._data.load(msgspec.json.decode(raw), self.working.data_versions)
            )
        except InvalidValue as error:
            reason = f"does not match the declared type: {error.at('data')}"
            raise InvalidValue(path="$.data", reason=reason) from error
        return loaded

    def __repr__(self) -> str:
        return f"State({self.working!r})"


@dataclass(frozen=True, kw_only=True)
class StateChange:
    """Arguments of `run.patch`."""

    goal: str | None = None
    facts: Mapping[str, Any] | None = None
    plan: Sequence[str] | None = None
    revise: Mapping[str, PlanStatus] | None = None
    questions: Sequence[str] = ()
    answered: Mapping[str, str] | None = None
    flags: Sequence[str] = ()
    data: Any = msgspec.UNSET
    source: str | None = None
    retract: Sequence[str] = ()
    derived_from: Sequence[str] = ()

    def _check(self) -> None:
        """Raise InvalidArgument for a wrong type: the value would be stored, but could not be read."""
        for name, fits, wanted in _PARTS:
            given = getattr(self, name)
            if given is not None and not fits(given):
                raise InvalidArgument(path=name, reason=f"must be {wanted}, not {given!r}")

    def patch(
        self, codec: TypeCodec, step: int | None, before: Sequence[PlanItem], redaction: Redaction = NOTHING
    ) -> StatePatch:
        """Return the change in its stored form. `before` is the plan so far: items that stay keep their status."""
        self._check()
        plan = before
        more: dict[str, Any] = {}
        if self.goal is not None:
            more["goal"] = redaction.text(self.goal)
        if self.plan is not None:
            more["plan"] = plan = _revised(before, redaction.texts(self.plan))
        if not isinstance(self.data, UnsetType):
            more["data"] = Raw(canonical(redaction.value(codec.dump(self.data))))
            more["data_versions"] = dict(codec.versions)
        facts = tuple(
            Fact(
                key=key,
                value=Raw(canonical(value)),
                source=redaction.text(self.source or ""),
                step=step,
                derived_from=redaction.texts(self.derived_from),
            )
            for key, value in redaction.value(hidden(dict(self.facts or {}))).items()
        )
        return StatePatch(
            facts=facts,
            retract=redaction.texts(self.retract),
            questions=redaction.texts(self.questions),
            revise=_revisions(plan, {redaction.text(item): status for item, status in (self.revise or {}).items()}),
            answered=redaction.value(dict(self.answered or {})),
            flags=redaction.texts(self.flags),
            **more,
        )


def _revised(before: Sequence[PlanItem], wanted: Sequence[str]) -> tuple[PlanItem, ...]:
    """Return a new plan, in which items of the old one keep their status; of equal ones, in order."""
    kept = list(before)
    plan = []
    for name in wanted:
        item = next((each for each in kept if each.item == name), PlanItem(item=name))
        if item in kept:
            kept.remove(item)
        plan.append(item)
    return tuple(plan)


def _revisions(plan: Sequence[PlanItem], wanted: Mapping[str, PlanStatus]) -> tuple[Revision, ...]:
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
    ("flags", _is_texts, "a list of str"),
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
