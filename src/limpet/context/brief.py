"""The brief of a request, for a quick decision: what was wanted and done, why the run stopped, what each choice causes.

It is built from the state and the steps before the request. Secrets are redacted first; then long texts are cut and
show their full length. A long input keeps its beginning and its end, and reasons are never cut.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from limpet.events import Fact, Failure, Limits, Payload, Spent
from limpet.events import bodies as b
from limpet.redaction import hide_secrets, hide_secrets_in
from limpet.state import RunState, outdated
from limpet.state.log_view import StepStatus, StepView
from limpet.state.run import Decision
from limpet.times import to_datetime, to_datetime_or_none
from limpet.view import View

__all__ = ["ENDS", "Brief", "BriefFact", "BriefStep", "Choice", "Chosen", "brief", "chosen_of"]

# Maximum number of each that is shown; the newest are kept.
STEPS, DECISIONS, ERRORS, FACTS, PLAN = 20, 10, 5, 20, 20
SHORT, LONG = 200, 2000
# Characters after the cut that redaction still reads, for secrets that start before the cut.
BEYOND = 20_000
# Bytes of each end of a long input that a brief needs.
ENDS = 2 * LONG + BEYOND


class BriefStep(View, frozen=True, kw_only=True):
    """A step that the agent ran."""

    number: int
    """Step number."""
    tool: str
    """Name of the tool."""
    status: StepStatus
    """Status of the step."""
    attempts: int
    """Number of attempts."""
    result: str = ""
    """The result, shortened."""
    error: str = ""
    """The error, shortened."""


class Chosen(View, frozen=True, kw_only=True):
    """A decision that the agent recorded."""

    question: str
    """The question."""
    chosen: str
    """The option that was chosen."""
    because: str
    """Reason of the choice."""
    confidence: float | None = None
    """Confidence of the agent, from 0 to 1."""


class BriefFact(View, frozen=True, kw_only=True):
    """A fact that the agent knew, and how old it is."""

    key: str
    """Key of the fact."""
    value: str
    """Value of the fact, shortened."""
    source: str
    """Where it comes from."""
    step: int | None
    """The step that recorded it."""
    time: datetime | None
    """When it was recorded; None if the log does not say."""
    valid_until: datetime | None
    """Until when it is valid, if it was read from an external source."""
    is_needed: bool
    """Whether the tool of the request relies on this source."""
    changed: tuple[str, ...]
    """Facts that it was derived from and that changed since."""

    def text(self, now: datetime) -> str:
        """Return the fact with its age: "price = 40 from quotes, read 40 min ago, ttl 5 min: stale"."""
        parts = [f"{self.key} = {self.value}{f' from {self.source}' if self.source else ''}"]
        if self.time is not None:
            verb = "recorded" if self.valid_until is None else "read"
            parts.append(f"{verb} {_rounded(now - self.time)} ago")
            if self.valid_until is not None:
                stale = ": stale" if self.valid_until <= now else ""
                parts.append(f"ttl {_rounded(self.valid_until - self.time)}{stale}")
        if self.changed:
            parts.append(f"derived from {', '.join(self.changed)}, which changed since")
        return ", ".join(parts)


class Choice(View, frozen=True, kw_only=True):
    """One possible answer to a request, and its effect."""

    answer: str
    """The answer to give."""
    effect: str
    """The consequence of that answer."""


class Brief(View, frozen=True, kw_only=True):
    """The facts that a person needs to decide a request."""

    agent: str
    """Name of the agent."""
    input: str
    """Input of the run, shortened."""
    why: str
    """Why the run stopped."""
    choices: tuple[Choice, ...]
    """Possible answers and the effect of each."""
    if_unanswered: str
    """The consequence if the request expires without an answer."""
    goal: str = ""
    """Goal of the run."""
    key: str = ""
    """Idempotency key of the call that would be approved."""
    plan: tuple[str, ...] = ()
    """The items of the plan that have not begun."""
    steps: tuple[BriefStep, ...] = ()
    """The last steps."""
    earlier_steps: int = 0
    """Number of earlier steps, which are not shown."""
    decisions: tuple[Chosen, ...] = ()
    """The last decisions of the agent."""
    errors: tuple[str, ...] = ()
    """The last errors."""
    facts: tuple[BriefFact, ...] = ()
    """Facts that the decision rests on: those that the tool relies on first, then the newest."""
    flags: tuple[str, ...] = ()
    """Risk flags."""
    spent: Mapping[str, float] = {}
    """Usage, such as tokens and cost."""
    budget: Mapping[str, float] = {}
    """Limits of the run."""


def brief(
    state: RunState, steps: Sequence[StepView], opened: b.RequestOpened, ends: tuple[bytes, bytes] | None = None
) -> Brief:
    """Build the brief of a request from the state before it, the last steps before it, and the request itself.

    `ends` are the first and last bytes of the run's input, up to `ENDS` of each, if it is too large for its event.
    """
    working = state.working
    return Brief(
        agent=state.agent,
        input=_input(state, ends),
        why=_why(opened, state),
        choices=_choices(opened),
        if_unanswered=_if_unanswered(opened, state.deadline),
        goal=hide_secrets(working.goal),
        key=opened.key,
        plan=tuple(_cut(each.item, SHORT) for each in working.items if each.status == "pending")[:PLAN],
        steps=tuple(_step(step) for step in steps[-STEPS:]),
        earlier_steps=max(state.position.step - len(steps[-STEPS:]), 0),
        decisions=tuple(chosen_of(decision) for decision in state.decisions)[-DECISIONS:],
        errors=tuple(_errors(steps))[-ERRORS:],
        facts=tuple(_facts(state, {each.source for each in opened.seen}))[:FACTS],
        flags=tuple(hide_secrets(flag) for flag in working.risk_flags),
        spent=_spent(state.spent),
        budget=_limits(working.budget),
    )


def shown(payload: Payload | None, most: int = SHORT) -> str:
    """Return a value as text, cut if it is long; a blob by name and size."""
    if payload is None:
        return ""
    if not payload.is_inline:
        return f"{payload.bytes} bytes in blob {payload.blob}"
    return _cut(msgspec.json.encode(payload.value()).decode(), most)


def _input(state: RunState, ends: tuple[bytes, bytes] | None) -> str:
    """Return the input as text. The middle of a long one is left out, with the command that prints the whole."""
    size, half, unit = state.input.bytes, LONG // 2, "bytes"
    if ends is None or len(ends[0] + ends[1]) >= size:
        text = msgspec.json.encode(state.input.value()).decode() if ends is None else (ends[0] + ends[1]).decode()
        if len(text) <= LONG:
            return hide_secrets(text)
        size, unit = len(text), "characters"
        first, last = text[: half + BEYOND], text[-half - BEYOND :]
    else:
        first, last = (each.decode(errors="ignore") for each in ends)
    first, last = hide_secrets(first)[:half], hide_secrets(last)[-half:]
    left = size - (len(first + last) if unit == "characters" else len((first + last).encode()))
    return f"{first}… ({left} {unit} left out; whole: limpet input {state.run}) …{last}"


def _facts(state: RunState, needed: Collection[str]) -> Iterator[BriefFact]:
    """Yield the facts, those of needed sources first, then the newest first."""
    old = outdated(state.working)
    newest = state.working.known_facts[::-1]
    for fact in sorted(newest, key=lambda fact: fact.source not in needed):
        age = state.fact_ages.get(fact.key)
        yield BriefFact(
            key=hide_secrets(fact.key),
            value=_value(fact),
            source=fact.source,
            step=fact.step,
            time=None if age is None else to_datetime(age.time),
            valid_until=None if age is None else to_datetime_or_none(age.until),
            is_needed=fact.source in needed,
            changed=tuple(old.get(fact.key, ())),
        )


def _value(fact: Fact) -> str:
    """Return the value of a fact as text. The key may say that it is a secret."""
    hidden = hide_secrets_in({fact.key: msgspec.json.decode(fact.value)})
    return _cut(msgspec.json.encode(next(iter(hidden.values()))).decode(), SHORT)


def _rounded(duration: timedelta) -> str:
    """Return a duration in its largest unit."""
    seconds = max(round(duration.total_seconds()), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _cut(text: str, most: int) -> str:
    said = hide_secrets(text[: most + BEYOND])
    return said if len(text) <= most else f"{said[:most]}… ({len(text)} characters)"


def _step(step: StepView) -> BriefStep:
    reason = step.attempts[-1].reason if step.status == "unknown" else ""
    return BriefStep(
        number=step.number,
        tool=step.tool,
        status=step.status,
        attempts=len(step.attempts),
        result=shown(step.result),
        error=_error(step.error) if step.error is not None else reason,
    )


def chosen_of(made: Decision) -> Chosen:
    """Return a decision for people."""
    because = hide_secrets(made.because)
    return Chosen(
        question=hide_secrets(made.question), chosen=shown(made.chosen), because=because, confidence=made.confidence
    )


def _errors(steps: Iterable[StepView]) -> Iterable[str]:
    """Return the errors of all attempts, in the order in which they happened."""
    found = [(attempt.ended or 0, step.number, attempt) for step in steps for attempt in step.attempts]
    for _, number, attempt in sorted(found, key=lambda each: each[:2]):
        if attempt.error is not None:
            yield f"step {number}, attempt {attempt.number}: {_error(attempt.error)}"


def _error(failure: Failure) -> str:
    return _cut(f"{failure.type}: {failure.message}", SHORT)


def _spent(spent: Spent) -> dict[str, float]:
    found = {
        "steps": spent.steps,
        "llm_tokens": spent.tokens,
        "cost": spent.cost,
        "wall_time_ms": spent.wall_us // 1000,
    }
    return {name: number for name, number in found.items() if number}


def _limits(limits: Limits | None) -> dict[str, float]:
    plain = {} if limits is None else msgspec.to_builtins(limits)
    return {name: number for name, number in plain.items() if isinstance(number, int | float)}


def _why(opened: b.RequestOpened, state: RunState) -> str:
    match opened.kind:
        case "approval":
            return _why_asked(opened, state)
        case "unknown":
            return f"Step {opened.number} ({opened.tool}) started, and its outcome is unknown."
        case "budget":
            return "The budget is used up."
        case "compensation":
            return f"The run is being compensated, and the compensation of step {opened.number} ({opened.tool}) failed."
        case "escalation" if opened.tool is not None:
            failed = "" if state.error is None else f": {_error(state.error)}"
            return f"Step {opened.number} ({opened.tool}) failed{failed}."
        case "escalation":
            return "The agent continues only with a person's decision."
        case "ask":
            return "The agent asks a person."


def _why_asked(opened: b.RequestOpened, state: RunState) -> str:
    """Return why a tool needs approval: its risk, or else because the run is a fork or was called by one."""
    fork = "was called by a fork" if state.fork is None else f"is a fork of {state.fork.run}"
    if opened.risk is None:
        return f"A fork asks before each effect, and the run {fork}."
    has = f"{opened.tool} has the risk {opened.risk!r}"
    if state.fork is None:
        return f"{has}, which needs approval before it runs."
    return f"{has}, and the run {fork}: it needs approval before it runs."


def _undo(opened: b.RequestOpened) -> str:
    match opened.undo:
        case "compensated":
            return "Its compensation undoes it if the run is cancelled later."
        case "never":
            return "It cannot be undone."
        case None:
            return "It declares no way to undo it."


def _choices(opened: b.RequestOpened) -> tuple[Choice, ...]:
    match opened.kind:
        case "approval":
            return (
                Choice(
                    answer="approve", effect=f"{opened.tool} runs once, with exactly these arguments. {_undo(opened)}"
                ),
                Choice(answer="approve with other arguments", effect=f"{opened.tool} runs once, with those."),
                Choice(
                    answer="reject",
                    effect=f"{opened.tool} does not run. The agent gets Rejected with the reason; the run fails unless "
                    "its code catches that.",
                ),
            )
        case "unknown":
            return (
                Choice(answer='{"applied": its result}', effect="The step is completed with that result."),
                Choice(answer="applied", effect="The step is completed without a known result."),
                Choice(
                    answer="not_applied", effect="The step is retried if its `retry` allows; otherwise it has failed."
                ),
                Choice(answer="unknown", effect="The agent gets OutcomeUnknown."),
            )
        case "budget":
            return (
                Choice(answer='new limits, such as {"max_steps": 50}', effect="The run continues with these limits."),
                Choice(answer="reject", effect="The step does not run, and the agent gets BudgetExceeded."),
            )
        case "escalation" if opened.tool is not None:
            return (
                Choice(answer="retry", effect=f"{opened.tool} is retried."),
                Choice(answer="fail", effect="The agent gets the error."),
                Choice(answer='{"result": …}', effect="The agent gets that as the step's result."),
            )
        case "compensation":
            return (
                Choice(answer="retry", effect="The compensation is retried."),
                Choice(answer="skip", effect="The step is not compensated; the others are."),
            )
        case _:
            return _answers(opened)


def _answers(opened: b.RequestOpened) -> tuple[Choice, ...]:
    options = opened.options.value() if opened.options is not None and opened.options.is_inline else ()
    if options:
        return tuple(Choice(answer=str(each), effect=f"The agent continues with {each!r}.") for each in options)
    if opened.schema is not None and opened.schema.is_inline and opened.schema.value() == {"type": "boolean"}:
        return (
            Choice(answer="approve", effect="The agent continues with yes."),
            Choice(answer="reject", effect="The agent continues with no."),
        )
    return (Choice(answer="an answer that matches the schema", effect="The agent continues with it."),)


def _if_unanswered(opened: b.RequestOpened, deadline: int | None) -> str:
    if opened.expires is None and deadline is None:
        return "The request stays open until a person decides."
    if opened.escalate:
        return f"The request then goes to {', then '.join(opened.escalate)}."
    if opened.default is not None:
        return f"The answer is then {shown(opened.default)}."
    return "The agent then gets Expired; the run fails unless its code catches that."
