"""The pieces that events are made of: what a failure was, what was spent, what a run waits for, how state changes."""

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

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
    "Outside",
    "Part",
    "PlanItem",
    "PlanStatus",
    "Revision",
    "Seen",
    "Spent",
    "StatePatch",
    "Wait",
]


class Part(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A piece of stored data: frozen, without unknown fields; a new field is a new version of its event.

    Nothing here can be part of a reference cycle, so the garbage collector need not look at it.
    """


class Failure(Part, frozen=True, kw_only=True):
    """An error as data: enough to branch on it, show it and explain it; nothing of it is ever revived."""

    type: str
    """Qualified name of the exception's class."""
    mro: tuple[str, ...] = ()
    """Qualified names of the class and all its bases, so that `e.was(…)` answers on replay."""
    message: str = ""
    code: str = ""
    """Limpet's own code, where it was a LimpetError."""
    facts: Payload | None = None
    traceback: str = ""


class Spent(Part, frozen=True, kw_only=True):
    """What a step or a child used up."""

    steps: int = 0
    tokens: int = 0
    cost: float = 0.0
    wall_us: int = 0

    def __post_init__(self) -> None:
        check_finite("cost", self.cost)


class Limits(Part, frozen=True, kw_only=True):
    """What a run may use up, under the names that agents already use."""

    max_steps: int | None = None
    max_wall_time_ms: int | None = None
    max_llm_tokens: int | None = None
    max_artifact_bytes_in_context: int | None = None
    max_cost: float | None = None
    exhausted: Literal["fail", "ask"] = "fail"

    def __post_init__(self) -> None:
        check_finite("max_cost", self.max_cost)

    def most(self) -> Spent:
        """What can be spent within these limits; nothing where there is none."""
        return Spent(
            steps=self.max_steps or 0,
            tokens=self.max_llm_tokens or 0,
            cost=self.max_cost or 0.0,
            wall_us=(self.max_wall_time_ms or 0) * 1000,
        )


class HumanInTheLoop(Part, frozen=True, kw_only=True):
    """Which risks need a person."""

    required_for_risk_levels: tuple[str, ...] = ()


class Constraints(Part, frozen=True, kw_only=True):
    """What the agent may not do by itself."""

    human_in_the_loop: HumanInTheLoop | None = None


class Seen(Part, frozen=True, kw_only=True):
    """What a source outside had said when a person was asked."""

    source: str
    key: str
    """Digest of what it was asked."""
    args: Payload | None
    value: Payload


class Lineage(Part, frozen=True, kw_only=True):
    """Where a run comes from: the run that called, started or handed over to it."""

    run: str
    name: str = ""
    """The verb of the parent that made it."""
    mode: Literal["call", "start", "handoff", "notify"] = "call"
    slots: tuple[str, ...] = ()
    """Exclusive slots that runs above hold: this one is in them."""


class Wait(Part, frozen=True, kw_only=True):
    """One thing that a parked run waits for; `key` is a request, timer, signal, child run or reason."""

    what: Literal["person", "time", "signal", "run", "operator"]
    key: str

    def __str__(self) -> str:
        return f"{self.what}:{self.key}"


Effects = Literal["ask", "stub", "live"]
"""What becomes of effects: a person is asked before each, their results are made up, or they are done."""

Outside = Literal["reads", "model"]
"""What else of the outside there is: tools without an effect with sources, and models."""

PlanStatus = Literal["pending", "doing", "done", "skipped"]


class PlanItem(Part, frozen=True, kw_only=True):
    """One line of the plan."""

    item: str
    status: PlanStatus = "pending"


class Revision(Part, frozen=True, kw_only=True):
    """A change of one line of the plan, counted from 0."""

    index: int
    status: PlanStatus


class Fact(Part, frozen=True, kw_only=True):
    """Something the agent knows, from where, and the step that wrote it."""

    key: str
    value: Raw
    source: str = ""
    step: int | None = None
    derived_from: tuple[str, ...] = ()
    """Keys of the facts that it was concluded from."""


class Artifact(Part, frozen=True, kw_only=True):
    """Something big, out of the way: what it is, how long, and the step that made it."""

    artifact_id: str
    type: str
    summary: str
    bytes: int
    step: int | None = None


class StatePatch(Part, frozen=True, kw_only=True):
    """A change of the agent's working state, applied as a whole or not at all.

    Facts, questions, artifacts and flags are lists without repetition: adding one that is there moves it to the end (a
    fact is superseded), taking away one that is not there is refused.
    """

    goal: str | UnsetType = UNSET
    constraints: Constraints | UnsetType | None = UNSET
    budget: Limits | UnsetType | None = UNSET
    plan: tuple[PlanItem, ...] | UnsetType = UNSET
    revise: tuple[Revision, ...] = ()
    facts: tuple[Fact, ...] = ()
    retract: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    answered: dict[str, str] = {}
    """Questions that are closed, each with its answer, which may be empty."""
    artifacts: tuple[Artifact, ...] = ()
    discard: tuple[str, ...] = ()
    """Artifacts that leave the state; what they hold stays stored."""
    flags: tuple[str, ...] = ()
    lower: tuple[str, ...] = ()
    """Flags that no longer hold."""
    data: Raw | UnsetType = UNSET
    """The user's own state, whole."""
    data_versions: dict[str, int] = {}
    """The versions of the user's types that it was written with, by name, where they are not the first."""
