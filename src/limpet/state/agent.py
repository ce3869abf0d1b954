"""The agent's working state: goal, facts, plan and questions. Its JSON has the names that agent frameworks commonly
use.

`plan` is a list of strings, with `plan_status` beside it. `data` is the user's own state, kept as raw JSON.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw, UnsetType

from limpet.errors import InvalidValue
from limpet.events import Artifact, Constraints, Fact, Limits, PlanItem, PlanStatus, parse
from limpet.events.parts import Part
from limpet.events.values import encode

__all__ = ["NO_DATA", "AgentState", "current_item", "from_json", "to_json"]


NO_DATA = Raw(b"{}")


class AgentState(Part, frozen=True, kw_only=True):
    """The agent's working state at one point of its run."""

    goal: str = ""
    constraints: Constraints | None = None
    budget: Limits | None = None
    plan: tuple[str, ...] = ()
    plan_status: tuple[PlanStatus, ...] = ()
    """One status per item of the plan; omitted while all are pending."""
    known_facts: tuple[Fact, ...] = ()
    open_questions: tuple[str, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    risk_flags: tuple[str, ...] = ()
    data: Raw | UnsetType = UNSET
    """Omitted while empty."""
    data_versions: dict[str, int] = {}
    """Versions of the user's types in `data`, where they are not the first."""

    @property
    def items(self) -> tuple[PlanItem, ...]:
        """The plan, each item with its status."""
        if not self.plan_status:
            return tuple(PlanItem(item=item) for item in self.plan)
        return tuple(
            PlanItem(item=item, status=status) for item, status in zip(self.plan, self.plan_status, strict=True)
        )

    @property
    def position(self) -> int | None:
        """Index of the plan's current or next item, from 0; None if there is none."""
        return current_item([item.status for item in self.items])


_decoder = msgspec.json.Decoder(AgentState)


def to_json(state: AgentState) -> bytes:
    """Return the state as JSON."""
    return encode(state)


def from_json(data: bytes | str) -> AgentState:
    """Parse a state from JSON. Raises InvalidValue for unknown fields, and for a state that no patch could produce."""
    try:
        state = _decoder.decode(encode(parse(data)))  # Encoding again makes raw values canonical.
    except msgspec.ValidationError as error:
        raise InvalidValue(path="$", reason=str(error)) from error
    _check_list("known_facts", [fact.key for fact in state.known_facts])
    _check_list("open_questions", state.open_questions)
    _check_list("artifacts", [artifact.artifact_id for artifact in state.artifacts])
    _check_list("risk_flags", state.risk_flags)
    if any(artifact.bytes < 0 for artifact in state.artifacts):
        raise InvalidValue(path="$.artifacts", reason="a size is negative")
    if state.plan_status and len(state.plan_status) != len(state.plan):
        raise InvalidValue(path="$.plan_status", reason="must have one status per item of the plan")
    return msgspec.structs.replace(
        state,
        plan_status=state.plan_status if set(state.plan_status) - {"pending"} else (),
        data=UNSET if state.data == NO_DATA else state.data,
    )


def current_item(statuses: Sequence[PlanStatus]) -> int | None:
    """Return the index of the plan's current or next item, from 0; None if there is none."""
    for wanted in ("doing", "pending"):
        if wanted in statuses:
            return statuses.index(wanted)
    return None


def _check_list(field: str, keys: list[str] | tuple[str, ...]) -> None:
    if len(set(keys)) != len(keys):
        raise InvalidValue(path=f"$.{field}", reason="contains a duplicate")
    if "" in keys:
        raise InvalidValue(path=f"$.{field}", reason="contains an empty entry")
