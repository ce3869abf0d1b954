"""Structs that events consist of: failures, usage, waits, and changes of state."""

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, convert

from limpet.events.values import Payload, check_finite

__all__ = [
    "Artifact",
    "Constraints",
    "Effects",
    "Fact",
    "Failure",
    "HumanInTheLoop",
    "Limits",
    "Lineage",
    "OpenQuestion",
    "Outside",
    "Part",
    "PlanItem",
    "PlanStatus",
    "RecordPatch",
    "Revision",
    "RiskFlag",
    "Seen",
    "Spent",
    "StatePatch",
    "Wait",
    "approval_levels",
]


class Part(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A piece of stored data: frozen, without unknown fields. A new field needs a new version of its event.

    No part can be in a reference cycle, so the garbage collector need not track it.
    """


class Failure(Part, frozen=True, kw_only=True):
    """An error as data: enough to branch on it, show it and explain it. The exception itself is never restored."""

    type: str
    """Qualified name of the exception's class."""
    mro: tuple[str, ...] = ()
    """Qualified names of the class and all its bases, so that `e.was(…)` works on replay."""
    message: str = ""
    code: str = ""
    """Limpet's error code, if it was a LimpetError."""
    facts: Payload | None = None
    traceback: str = ""


class Spent(Part, frozen=True, kw_only=True):
    """Usage of a step or a child run."""

    steps: int = 0
    tokens: int = 0
    cost: float = 0.0
    wall_us: int = 0

    def __post_init__(self) -> None:
        check_finite("cost", self.cost)


class Limits(Part, frozen=True, kw_only=True):
    """Limits on what a run may use, with the names that agent frameworks commonly use."""

    max_steps: int | None = None
    """Maximum number of steps."""
    max_wall_time_ms: int | None = None
    """Maximum time while a worker drives the run, in milliseconds."""
    max_llm_tokens: int | None = None
    """Maximum number of tokens of models."""
    max_artifact_bytes_in_context: int | None = None
    """Maximum size of tool results in a prompt, in bytes."""
    max_cost: float | None = None
    """Maximum cost."""
    exhausted: Literal["fail", "ask"] = "fail"
    """Whether the run fails at a limit, or asks for more."""

    def __post_init__(self) -> None:
        check_finite("max_cost", self.max_cost)

    def most(self) -> Spent:
        """Return the most that can be spent within these limits; 0 where there is no limit."""
        return Spent(
            steps=self.max_steps or 0,
            tokens=self.max_llm_tokens or 0,
            cost=self.max_cost or 0.0,
            wall_us=(self.max_wall_time_ms or 0) * 1000,
        )


class HumanInTheLoop(Part, frozen=True, kw_only=True):
    """Risk levels that need a person."""

    required_for_risk_levels: tuple[str, ...] = ()


Constraints = dict[str, Any]
"""Restrictions on the agent, as JSON: `human_in_the_loop` is enforced, the others are the user's own."""


def approval_levels(constraints: Constraints | None) -> tuple[str, ...]:
    """Return the risk levels that need a person. Raises msgspec.ValidationError if `human_in_the_loop` is invalid."""
    found = (constraints or {}).get("human_in_the_loop")
    return () if found is None else convert(found, HumanInTheLoop).required_for_risk_levels


class Seen(Part, frozen=True, kw_only=True):
    """Data from an external source, as shown to a person in a request."""

    source: str
    key: str
    """Digest of the arguments."""
    args: Payload | None
    value: Payload


class Lineage(Part, frozen=True, kw_only=True):
    """Origin of a run: the run that called it, started it or handed off to it."""

    run: str
    name: str = ""
    """The call of the parent that created the run."""
    mode: Literal["call", "start", "handoff", "notify"] = "call"
    slots: tuple[str, ...] = ()
    """Exclusive slots that ancestor runs hold; this run shares them."""


class Wait(Part, frozen=True, kw_only=True):
    """One thing that a parked run waits for; `key` is a request, timer, signal, child run or reason."""

    what: Literal["person", "time", "signal", "run", "operator"]
    key: str

    def __str__(self) -> str:
        return f"{self.what}:{self.key}"


Effects = Literal["ask", "stub", "live"]
"""How effects are handled: a person approves each, their results are stubbed, or they are live."""

Outside = Literal["reads", "model"]
"""Other external inputs: tools without an effect and sources ("reads"), and models."""

PlanStatus = Literal["pending", "doing", "done", "skipped"]


class PlanItem(Part, frozen=True, kw_only=True):
    """One line of the plan."""

    item: str
    status: PlanStatus = "pending"


class Revision(Part, frozen=True, kw_only=True):
    """A change of one line of the plan; `index` starts at 0."""

    index: int
    status: PlanStatus


class Fact(Part, frozen=True, kw_only=True):
    """A fact that the agent knows, with its source and the step that wrote it."""

    key: str
    """Key of the fact."""
    value: Raw
    """Value of the fact."""
    source: str = ""
    """Where it comes from."""
    step: int | None = None
    """The step that recorded it."""
    derived_from: tuple[str, ...] = ()
    """Keys of the facts that it was derived from."""


class OpenQuestion(Part, frozen=True, kw_only=True):
    """A question that the agent has not answered yet, and the step after which it was asked."""

    question: str
    step: int | None = None


class RiskFlag(Part, frozen=True, kw_only=True):
    """Something that people should see: its name, such as `budget_pressure`, and a detail."""

    flag: str
    detail: str = ""


class Artifact(Part, frozen=True, kw_only=True):
    """A large value that is stored separately: its type, summary and size, and the step that stored it."""

    artifact_id: str
    """Artifact id."""
    type: str
    """Type of the content."""
    summary: str
    """Summary, for people and models."""
    bytes: int
    """Size of the content."""
    step: int | None = None
    """The step after which it was stored. An artifact of a tool's result has the step of that tool."""


class StatePatch(Part, frozen=True, kw_only=True):
    """A change of the agent's working state, applied as a whole or not at all.

    Facts, questions, artifacts and flags are lists without duplicates. Adding an existing entry moves it to the end and
    replaces a fact; removing a missing entry is refused.
    """

    goal: str | UnsetType = UNSET
    constraints: Constraints | UnsetType | None = UNSET
    budget: Limits | UnsetType | None = UNSET
    plan: tuple[PlanItem, ...] | UnsetType = UNSET
    revise: tuple[Revision, ...] = ()
    facts: tuple[Fact, ...] = ()
    retract: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    question_steps: dict[str, int] = {}
    """The step after which each question was asked, where it is known."""
    answered: dict[str, str] = {}
    """Closed questions with their answers, which may be empty."""
    artifacts: tuple[Artifact, ...] = ()
    discard: tuple[str, ...] = ()
    """Artifacts to remove from the state. Their content stays stored."""
    flags: tuple[str, ...] = ()
    details: dict[str, str] = {}
    """Details of some of the flags."""
    lower: tuple[str, ...] = ()
    """Flags to remove."""
    data: Raw | UnsetType = UNSET
    """The user's own state, whole."""
    data_versions: dict[str, int] = {}
    """Versions of the user's types in `data`, by name, where they are not the first."""


class RecordPatch(Part, frozen=True, kw_only=True):
    """A change of a shared record, applied as a whole or not at all.

    Each part that it changes is a unit: a fact, a question, the whole plan, a key of the data. Changes of different
    units do not conflict.
    """

    facts: tuple[Fact, ...] = ()
    """Facts to add or replace."""
    retract: tuple[str, ...] = ()
    """Keys of facts to remove."""
    plan: tuple[PlanItem, ...] | UnsetType = UNSET
    """The new plan, whole."""
    questions: dict[str, str] = {}
    """Questions to add or ask again, by id."""
    answered: dict[str, str] = {}
    """Answers, by the id of the question."""
    close: tuple[str, ...] = ()
    """Ids of questions to remove."""
    data: dict[str, Raw] = {}
    """Values to set, by top-level key."""
    unset: tuple[str, ...] = ()
    """Top-level keys to remove from the data."""
