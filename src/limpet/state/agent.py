"""The agent's working state: goal, facts, plan and questions. Its JSON has the names that agent frameworks commonly
use.

`plan` is a list of strings, with `plan_status` beside it. `data` is the user's own state, kept as raw JSON.
"""

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from limpet.errors import InvalidValue
from limpet.events import (
    Artifact,
    Constraints,
    Fact,
    Limits,
    OpenQuestion,
    PlanItem,
    PlanStatus,
    RiskFlag,
    approval_levels,
    canonical,
    parse,
)
from limpet.events.parts import Part
from limpet.events.values import encode

__all__ = ["NO_DATA", "AgentState", "check_constraints", "current_item"]


NO_DATA = Raw(b"{}")
LOOP = "human_in_the_loop"


class AgentState(Part, frozen=True, kw_only=True):
    """The agent's working state at one point of its run."""

    goal: str = ""
    """Goal of the agent."""
    constraints: Constraints | None = None
    """Restrictions on the agent."""
    budget: Limits | None = None
    """Limits on what it may use."""
    plan: tuple[str, ...] = ()
    """Items of the plan."""
    plan_status: tuple[PlanStatus, ...] = ()
    """One status per item of the plan; omitted while all are pending."""
    known_facts: tuple[Fact, ...] = ()
    """Facts, the newest last."""
    open_questions: tuple[str, ...] = ()
    """Questions that are not answered."""
    question_steps: dict[str, int] = {}
    """The step after which a question was asked, where it is known."""
    artifacts: tuple[Artifact, ...] = ()
    """Artifacts that the run has stored."""
    risk_flags: tuple[str, ...] = ()
    """Risk flags."""
    risk_details: dict[str, str] = {}
    """Details of some of the flags."""
    data: Raw | UnsetType = UNSET
    """Omitted while empty."""
    data_versions: dict[str, int] = {}
    """Versions of the user's types in `data`, where they are not the first."""

    @classmethod
    def from_json(cls, data: bytes | str) -> "AgentState":
        """Parse a state. Raises InvalidValue for unknown fields, and for a state that no patch could produce."""
        try:
            state = msgspec.json.decode(encode(parse(data)), type=cls)  # Encoding again makes raw values canonical.
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `$")
            raise InvalidValue(path=f"${path.rstrip('`')}", reason=reason) from error
        _check(state)
        return msgspec.structs.replace(
            state,
            plan_status=state.plan_status if set(state.plan_status) - {"pending"} else (),
            data=UNSET if state.data == NO_DATA else state.data,
        )

    def to_json(self) -> bytes:
        """Return the state as JSON, without fields that are empty."""
        return encode(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain JSON values, without fields that are empty."""
        plain: dict[str, Any] = msgspec.json.decode(encode(self))
        return plain

    @property
    def items(self) -> tuple[PlanItem, ...]:
        """The plan, each item with its status."""
        if not self.plan:
            return ()
        if not self.plan_status:
            return tuple(PlanItem(item=item) for item in self.plan)
        return tuple(
            PlanItem(item=item, status=status) for item, status in zip(self.plan, self.plan_status, strict=True)
        )

    @property
    def questions(self) -> tuple[OpenQuestion, ...]:
        """The open questions, each with its step."""
        if not self.open_questions:
            return ()
        return tuple(OpenQuestion(question=each, step=self.question_steps.get(each)) for each in self.open_questions)

    @property
    def flags(self) -> tuple[RiskFlag, ...]:
        """The risk flags, each with its detail."""
        if not self.risk_flags:
            return ()
        return tuple(RiskFlag(flag=each, detail=self.risk_details.get(each, "")) for each in self.risk_flags)

    @property
    def position(self) -> int | None:
        """Index of the plan's current or next item, from 0; None if there is none."""
        return current_item([item.status for item in self.items])


def current_item(statuses: Sequence[PlanStatus]) -> int | None:
    """Return the index of the plan's current or next item, from 0; None if there is none."""
    for wanted in ("doing", "pending"):
        if wanted in statuses:
            return statuses.index(wanted)
    return None


def _check(state: AgentState) -> None:
    """Raise InvalidValue for a state that no patch could produce."""
    _check_list("known_facts", [fact.key for fact in state.known_facts])
    _check_list("open_questions", state.open_questions)
    _check_list("artifacts", [artifact.artifact_id for artifact in state.artifacts])
    _check_list("risk_flags", state.risk_flags)
    if any(artifact.bytes < 0 for artifact in state.artifacts):
        raise InvalidValue(path="$.artifacts", reason="a size is negative")
    _check_names("question_steps", state.question_steps, state.open_questions)
    _check_names("risk_details", state.risk_details, state.risk_flags)
    check_constraints(state.constraints)
    if state.plan_status and len(state.plan_status) != len(state.plan):
        raise InvalidValue(path="$.plan_status", reason="must have one status per item of the plan")


def check_constraints(constraints: Constraints | None) -> None:
    """Raise InvalidValue for constraints that cannot be stored, or whose `human_in_the_loop` is invalid."""
    if constraints is None:
        return
    canonical(constraints)
    for name in constraints:
        if name != LOOP and (name.startswith("human") or get_close_matches(name, [LOOP], cutoff=0.8)):
            raise InvalidValue(path=f"$.constraints.{name}", reason=f"unknown; {LOOP} is the one that is enforced")
    try:
        approval_levels(constraints)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        raise InvalidValue(path=f"$.constraints.human_in_the_loop{path.rstrip('`')}", reason=reason) from error


def _check_names(field: str, given: Collection[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise InvalidValue(path=f"$.{field}", reason=f"{name!r} is not in the list")


def _check_list(field: str, keys: list[str] | tuple[str, ...]) -> None:
    if len(set(keys)) != len(keys):
        raise InvalidValue(path=f"$.{field}", reason="contains a duplicate")
    if "" in keys:
        raise InvalidValue(path=f"$.{field}", reason="contains an empty entry")
