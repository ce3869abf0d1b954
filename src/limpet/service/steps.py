"""Steps as all interfaces show them: read a page at a time, with values as JSON and large ones by reference."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

from limpet.errors import BlobDamaged, NotFound
from limpet.events import Failure, Payload, Spent, canonical
from limpet.journal import load_steps
from limpet.redaction import hide_secrets
from limpet.service.views import load_payloads
from limpet.state.log_view import AttemptStatus, AttemptView, StepStatus, StepView
from limpet.stores import Store
from limpet.stores.api.base import LARGEST_PAGE
from limpet.stores.blobs import INLINE
from limpet.stores.fork_reads import StepRange
from limpet.times import format_time, to_datetime, to_datetime_or_none
from limpet.view import View

__all__ = [
    "AttemptInfo",
    "FailureInfo",
    "StepInfo",
    "attempt_info",
    "bounded_value",
    "call_text",
    "describe_failure",
    "describe_step",
    "failure_info",
    "infos_of",
    "plain_value",
    "result_text",
    "short",
    "some_steps",
    "step_infos",
    "used",
    "whole_value",
]

# Attempts that are shown of a step: the first ones and the last ones.
FIRST_ATTEMPTS, LAST_ATTEMPTS = 2, 8
# Why the outcome of a step is unknown.
REASONS = {"died": "its worker died", "lost": "its worker lost the run", "error": "the error does not tell"}
# How the actual outcome of a step was found out.
FOUND_BY = {
    "verify": "`verify` found it",
    "person": "a person said it was",
    "declared": "the error declared it",
    "late": "a late result showed it was",
}
# Maximum length of arguments and results in a step's text.
MAX_TEXT = 200
# Maximum size of a value that is shown as a whole, in bytes.
MAX_WHOLE = 1_000_000


class FailureInfo(View, frozen=True, kw_only=True):
    """An error that was recorded."""

    type: str
    """Qualified name of the exception."""
    message: str
    """Text of the error."""
    traceback: str = ""
    """Traceback, as it was recorded."""


class AttemptInfo(View, frozen=True, kw_only=True):
    """One attempt of a step."""

    number: int
    """Number of the attempt, from 1."""
    status: AttemptStatus
    """How the attempt ended."""
    started: datetime
    """When the attempt started."""
    ended: datetime | None
    """When the attempt ended; null while it runs."""
    error: FailureInfo | None
    """The error of a failed attempt."""
    reason: str
    """Why the outcome is unknown."""
    retry_at: datetime | None
    """When the next attempt starts."""
    outcome: Literal["applied", "not_applied", "unknown"] | None
    """The actual outcome, if it was unknown at first."""
    found_by: Literal["verify", "person", "declared", "late"] | None
    """How that was found out."""


class StepInfo(View, frozen=True, kw_only=True):
    """A step, with its attempts."""

    number: int
    """Step number, from 1."""
    name: str
    """Identity in the log: scopes, name and occurrence."""
    tool: str
    """Name of the tool."""
    kind: Literal["tool", "model", "read"] = "tool"
    """Whether it calls a tool, a model or reads."""
    effect: Literal["none", "idempotent", "once", "transaction"] | None
    """Null if the step was refused before it started."""
    status: StepStatus | Literal["refused"]
    """Current status."""
    args: Any = None
    """The arguments as used. A value above 8 KB is `{"blob": …, "bytes": …}`."""
    result: Any = None
    """The result. A value above 8 KB is `{"blob": …, "bytes": …}`."""
    error: FailureInfo | None = None
    """The last error, even if a later attempt succeeded."""
    attempts: tuple[AttemptInfo, ...] = ()
    """The attempts; of many, the first ones and the last ones."""
    attempt_count: int = 1
    """Number of attempts."""
    started: datetime
    """When the first attempt started."""
    ended: datetime | None = None
    """When it was settled or undone; null while it is open."""
    key: str = ""
    """The idempotency key."""
    item: int | None = None
    """Index of the plan's current item when the step started."""
    risk: str | None = None
    """Risk of the tool."""
    grant: str | None = None
    """The approval that it used."""
    granted_by: str = ""
    """Who approved it."""
    spent: Mapping[str, float] = {}
    """Usage, such as tokens and cost."""
    note: str = ""
    """The tool's last progress note."""
    fraction: float | None = None
    """Progress that the tool reported, from 0 to 1."""
    stubbed: bool = False
    """Whether the tool was not called: the fork is stubbed."""
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


async def some_steps(store: Store, run: str, numbers: Iterable[int], *, upto: int) -> list[StepInfo]:
    """Return some steps by number, as they were after an event. Only their events are read."""
    found: list[StepView] = []
    for first, last in _ranges(sorted(set(numbers))):
        steps = StepRange(after=first - 1, before=last + 1, limit=last - first + 1, upto=upto)
        found += await load_steps(store, run, steps)
    return await infos_of(store, found)


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of consecutive numbers: 1, 2, 3, 7 are (1, 3) and (7, 7)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1 and number - found[-1][0] < LARGEST_PAGE:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


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
        attempts=tuple(map(attempt_info, attempts)),
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
        text=f"{call_text(view.tool, plain[0])}{_outcome(view, plain[1])}",
    )


def attempt_info(attempt: AttemptView) -> AttemptInfo:
    """Return an attempt for display."""
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
    name = failure.type.removeprefix("builtins.")
    return f"{name}: {failure.message}" if failure.message else name


def used(spent: Spent) -> dict[str, float]:
    """Return what was used, without zeros."""
    found = {"tokens": spent.tokens, "cost": spent.cost}
    return {name: number for name, number in found.items() if number}


def call_text(tool: str, args: Any) -> str:
    """Return a call in one line, with shortened arguments; the call of a model by the model's name."""
    named = isinstance(args, dict) and not _is_blob(args)
    if named and args.keys() == {"reference"} and "model" in args["reference"]:
        return f"{tool} {args['reference']['model']}"
    text = ", ".join(f"{name}={value!r}" for name, value in args.items()) if named else _text(args)
    return f"{tool}({short(text)})"


def _is_blob(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"blob", "bytes"}


def _text(value: Any) -> str:
    return f"{value['bytes']} bytes" if _is_blob(value) else repr(value)


def describe_step(step: StepInfo) -> str:
    """Return what a step did, in one sentence: the call, who approved it, its attempts, outcome, key and cost."""
    return "; ".join(_clauses(step))


def _clauses(step: StepInfo) -> Iterator[str]:
    marks = [name for name, is_so in _marks(step) if is_so]
    verb = "asked" if step.kind == "model" else "called"
    approved = f", approved by {step.granted_by}" if step.granted_by else ""
    yield f"step {step.number} {verb} {call_text(step.tool, step.args)}{approved}" + "".join(f", {m}" for m in marks)
    if step.attempt_count > 1:
        yield f"{step.attempt_count} attempts ({', '.join(map(_attempt_text, step.attempts[:-1]))})"
    last = step.attempts[-1] if step.attempts else None
    if last is not None and last.outcome is not None:
        yield f"its {_found_out(last)}"
    yield _status_text(step, last)
    if step.key and step.effect != "none":
        yield f"key {step.key}"
    if step.spent:
        yield ", ".join(f"{name} {number:g}" for name, number in step.spent.items())
    if step.compensation is not None:
        yield f"compensation {step.compensation}"


def _marks(step: StepInfo) -> Iterator[tuple[str, bool]]:
    yield "stubbed", step.stubbed and not step.made_up
    yield "with a made-up result", step.made_up
    yield "shared with the origin", step.shared
    yield "result replaced by the fork", step.edited
    yield "with a late result", step.late


def _attempt_text(attempt: AttemptInfo) -> str:
    if attempt.error is not None:
        return short(describe_failure(attempt.error))
    return _found_out(attempt) if attempt.status == "unknown" or attempt.outcome is not None else attempt.status


def _found_out(attempt: AttemptInfo) -> str:
    text = f"outcome was unknown ({REASONS.get(attempt.reason, attempt.reason)})"
    if attempt.outcome is None:
        return text
    return f"{text}, {FOUND_BY[attempt.found_by or 'declared']} {attempt.outcome.replace('_', ' ')}"


def _status_text(step: StepInfo, last: AttemptInfo | None) -> str:
    match step.status:
        case "completed" | "undone" if last is None or last.status == "completed" or step.edited:
            return f"{'said' if step.kind == 'model' else 'result'} {result_text(step.kind, step.result)}"
        case "retrying" if last is not None and last.retry_at is not None:
            return f"{_error_text(step)}, next attempt at {format_time(last.retry_at)}"
        case "unknown":
            reason = "" if last is None else last.reason
            return f"its outcome is unknown ({REASONS.get(reason, reason)})"
        case "escalated":
            return f"{_error_text(step)}, waits for a person"
        case "running":
            return f"running since {format_time(last.started if last is not None else step.started)}" + (
                f" ({step.note})" if step.note else ""
            )
        case _:
            return _error_text(step)


def _error_text(step: StepInfo) -> str:
    return "failed" if step.error is None else f"failed: {short(describe_failure(step.error))}"


def result_text(kind: str, result: Any) -> str:
    """Return a result in one line, shortened; the reply of a model as its text and calls."""
    if kind == "model" and isinstance(result, dict) and isinstance(result.get("calls"), list):
        said = [repr(result["text"])] if result.get("text") else []
        said += [f"{call.get('name')}({_named(call.get('args'))})" for call in result["calls"]]
        return short(", ".join(said))
    return short(_text(result))


def _named(args: Any) -> str:
    """Return the arguments of a model's call as the model wrote them: JSON, perhaps invalid."""
    try:
        plain = msgspec.json.decode(args)
    except (msgspec.MsgspecError, TypeError):
        return str(args)
    return ", ".join(f"{name}={value!r}" for name, value in plain.items()) if isinstance(plain, dict) else str(args)


def _outcome(view: StepView, result: Any) -> str:
    if view.status in ("completed", "undone") and view.result is not None:
        return f" → {result_text(view.kind, result)}"
    return f" ✗ {describe_failure(view.error)}" if view.error is not None and view.status != "completed" else ""


def short(text: str) -> str:
    """Return a text in one line, without secrets, cut if it is long."""
    text = " ".join(hide_secrets(text).split("\n"))
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


async def whole_value(store: Store, payload: Payload | None) -> Any:
    """Return the value of a payload, loaded from its blob; one above 1 MB as a reference to its blob."""
    if payload is None or payload.size > MAX_WHOLE:
        return plain_value(payload)
    try:
        return await store.unpack(payload)
    except (BlobDamaged, NotFound):  # A damaged blob must not hide the rest; `verify` reports it.
        return plain_value(payload)
