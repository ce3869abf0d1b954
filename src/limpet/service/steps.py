"""Steps as all interfaces show them: read a page at a time, with values as JSON and large ones by reference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from limpet.clock import to_datetime, to_datetime_or_none
from limpet.events import Failure, Payload, Spent, canonical
from limpet.journal import load_steps
from limpet.redaction import hide_secrets
from limpet.service.views import load_payloads
from limpet.state.log_view import AttemptStatus, AttemptView, StepStatus, StepView
from limpet.stores import Store
from limpet.stores.blobs import INLINE
from limpet.stores.fork_reads import StepRange

__all__ = [
    "AttemptInfo",
    "FailureInfo",
    "StepInfo",
    "bounded_value",
    "call_text",
    "describe_failure",
    "failure_info",
    "infos_of",
    "plain_value",
    "short",
    "step_infos",
    "used",
]

# Attempts that are shown of a step: the first ones and the last ones.
FIRST_ATTEMPTS, LAST_ATTEMPTS = 2, 8
# Maximum length of arguments and results in a step's text.
MAX_TEXT = 200


@dataclass(frozen=True, kw_only=True)
class FailureInfo:
    """An error that was recorded."""

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class AttemptInfo:
    """One attempt of a step."""

    number: int
    status: AttemptStatus
    started: datetime
    ended: datetime | None
    error: FailureInfo | None
    reason: str
    """Why the outcome is unknown."""
    retry_at: datetime | None
    """When the next attempt starts."""
    outcome: Literal["applied", "not_applied", "unknown"] | None
    """The actual outcome, if it was unknown at first."""
    found_by: Literal["verify", "person", "declared", "late"] | None
    """How that was found out."""


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """A step, with its attempts."""

    number: int
    name: str
    """Identity in the log: scopes, name and occurrence."""
    tool: str
    kind: Literal["tool", "model", "read"] = "tool"
    effect: Literal["none", "idempotent", "once", "transaction"] | None
    """Null if the step was refused before it started."""
    status: StepStatus | Literal["refused"]
    args: Any = None
    """The arguments as used. A value above 8 KB is `{"blob": …, "bytes": …}`."""
    result: Any = None
    error: FailureInfo | None = None
    """The last error, even if a later attempt succeeded."""
    attempts: tuple[AttemptInfo, ...] = ()
    """The attempts; of many, the first ones and the last ones."""
    attempt_count: int = 1
    started: datetime
    ended: datetime | None = None
    key: str = ""
    """The idempotency key."""
    item: int | None = None
    """Index of the plan's current item when the step started."""
    risk: str | None = None
    grant: str | None = None
    """The approval that it used."""
    granted_by: str = ""
    spent: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    """The tool's last progress note."""
    fraction: float | None = None
    stubbed: bool = False
    made_up: bool = False
    """Whether the result is a sample of its type, in a stubbed fork."""
    late: bool = False
    """Whether the result arrived after the worker had lost the run."""
    shared: bool = False
    """Whether a fork shares the step with its origin."""
    edited: bool = False
    """Whether a fork replaced the result."""
    compensation: str | None = None
    """Status of its compensation: `running`, `failed`, `completed` or `skipped`."""
    text: str = ""
    """The call and its outcome, in one line."""


async def step_infos(store: Store, run: str, steps: StepRange) -> list[StepInfo]:
    """Return a page of steps."""
    return await infos_of(store, await load_steps(store, run, steps))


async def infos_of(store: Store, views: Sequence[StepView]) -> list[StepInfo]:
    """Return steps for display. Values of medium size are loaded from their blobs."""
    args = await load_payloads(store, [view.args for view in views])
    results = await load_payloads(store, [view.result for view in views])
    return [_info(view, *values) for view, *values in zip(views, args, results, strict=True)]


def _info(view: StepView, args: Payload | None, result: Payload | None) -> StepInfo:
    attempts = view.attempts
    if len(attempts) > FIRST_ATTEMPTS + LAST_ATTEMPTS:
        attempts = (*attempts[:FIRST_ATTEMPTS], *attempts[-LAST_ATTEMPTS:])
    plain = plain_value(args), plain_value(result)
    return StepInfo(
        number=view.number,
        name=view.name,
        tool=view.tool,
        kind=view.kind,
        effect=view.effect,
        status=view.status,
        args=plain[0],
        result=plain[1],
        error=failure_info(view.error),
        attempts=tuple(map(_attempt, attempts)),
        attempt_count=len(view.attempts),
        started=to_datetime(view.started),
        ended=to_datetime_or_none(view.ended),
        key=view.key,
        item=view.item,
        risk=view.risk,
        grant=view.grant,
        granted_by=view.granted_by,
        spent=used(view.spent),
        note=view.note,
        fraction=view.fraction,
        stubbed=view.stubbed,
        made_up=view.made_up,
        late=view.late,
        shared=view.shared,
        edited=view.edited,
        compensation=None if view.compensation is None else view.compensation.status,
        text=f"{call_text(view.tool, plain[0])}{_outcome(view, result)}",
    )


def _attempt(attempt: AttemptView) -> AttemptInfo:
    return AttemptInfo(
        number=attempt.number,
        status=attempt.status,
        started=to_datetime(attempt.started),
        ended=to_datetime_or_none(attempt.ended),
        error=failure_info(attempt.error),
        reason=attempt.reason,
        retry_at=to_datetime_or_none(attempt.retry_at),
        outcome="unknown" if attempt.outcome == "gave_up" else attempt.outcome,
        found_by=attempt.found_by,
    )


def failure_info(failure: Failure | None) -> FailureInfo | None:
    """Return a failure for display."""
    if failure is None:
        return None
    return FailureInfo(type=failure.type, message=failure.message, traceback=failure.traceback)


class Described(Protocol):
    """A failure with a type and a message."""

    @property
    def type(self) -> str: ...

    @property
    def message(self) -> str: ...


def describe_failure(failure: Described) -> str:
    """Return the type and message of a failure, in one line."""
    return f"{failure.type}: {failure.message}" if failure.message else failure.type


def used(spent: Spent) -> dict[str, float]:
    """Return what was used, without zeros."""
    found = {"tokens": spent.tokens, "cost": spent.cost}
    return {name: number for name, number in found.items() if number}


def call_text(tool: str, args: Any) -> str:
    """Return a call in one line, with shortened arguments."""
    named = isinstance(args, dict) and not ("blob" in args and "bytes" in args)
    text = ", ".join(f"{name}={value!r}" for name, value in args.items()) if named else str(args)
    return f"{tool}({short(text)})"


def _outcome(view: StepView, result: Payload | None) -> str:
    if view.status in ("completed", "undone") and result is not None:
        return f" → {short(repr(plain_value(result)))}"
    return f" ✗ {describe_failure(view.error)}" if view.error is not None and view.status != "completed" else ""


def short(text: str) -> str:
    """Return a text without secrets, shortened to one that fits into a line or two."""
    text = hide_secrets(text)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def bounded_value(value: Any) -> Any:
    """Return a value, or only its size if it is large."""
    size = len(canonical(value))
    return value if size <= INLINE else {"bytes": size}


def plain_value(payload: Payload | None) -> Any:
    """Return the value of a payload; a large one as a reference to its blob."""
    if payload is None:
        return None
    return payload.value() if payload.is_inline else {"blob": payload.blob, "bytes": payload.bytes}
