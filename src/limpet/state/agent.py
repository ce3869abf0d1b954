"""The agent's working state: what it wants, knows, plans and asks; in JSON, under the names that agents already use.

`plan` is a list of strings, with `plan_status` beside it; `data` is the user's own, kept as raw JSON.
"""

import msgspec
from msgspec import UNSET, Raw, UnsetType

from limpet.errors import InvalidValue
from limpet.events import Artifact, Constraints, Fact, Limits, PlanItem, PlanStatus, parse
from limpet.events.parts import Part
from limpet.events.values import encode

__all__ = ["NO_DATA", "AgentState", "from_json", "to_json"]


NO_DATA = Raw(b"{}")


class AgentState(Part, frozen=True, kw_only=True):
    """What the agent knows at one point of its run."""

    goal: str = ""
    constraints: Constraints | None = None
    budget: Limits | None = None
    plan: tuple[str, ...] = ()
    plan_status: tuple[PlanStatus, ...] = ()
    """One for each item of the plan; left out while all are pending."""
    known_facts: tuple[Fact, ...] = ()
    open_questions: tuple[str, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    risk_flags: tuple[str, ...] = ()
    data: Raw | UnsetType = UNSET
    """Left out while it is empty."""
    data_versions: dict[str, int] = {}
    """The versions of the user's types that it was written with, where they are not the first."""

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
        """The item of the plan that is being done, or comes next, counted from 0."""
        statuses = [item.status for item in self.items]
        for wanted in ("doing", "pending"):
            if wanted in statuses:
                return statuses.index(wanted)
        return None


_decoder = msgspec.json.Decoder(AgentState)


def to_json(state: AgentState) -> bytes:
    """The state as JSON."""
    return encode(state)


def from_json(data: bytes | str) -> AgentState:
    """The state that JSON says; refuses unknown fields, and whatever no patch could have led to."""
    try:
        state = _decoder.decode(encode(parse(data)))  # once more, so that raw values are canonical
    except msgspec.ValidationError as error:
        raise InvalidValue(path="$", reason=str(error)) from error
    _check_list("known_facts", [fact.key for fact in state.known_facts])
    _check_list("open_questions", state.open_questions)
    _check_list("artifacts", [artifact.artifact_id for artifact in state.artifacts])
    _check_list("risk_flags", state.risk_flags)
    if any(artifact.bytes < 0 for artifact in state.artifacts):
        raise InvalidValue(path="$.artifacts", reason="a size is negative")
    if state.plan_status and len(state.plan_status) != len(state.plan):
        raise InvalidValue(path="$.plan_status", reason="it needs one status for each item of the plan")
    return msgspec.structs.replace(
        state,
        plan_status=state.plan_status if set(state.plan_status) - {"pending"} else (),
        data=UNSET if state.data == NO_DATA else state.data,
    )


def _check_list(field: str, keys: list[str] | tuple[str, ...]) -> None:
    if len(set(keys)) != len(keys):
        raise InvalidValue(path=f"$.{field}", reason="the same one is there twice")
    if "" in keys:
        raise InvalidValue(path=f"$.{field}", reason="one is empty")
