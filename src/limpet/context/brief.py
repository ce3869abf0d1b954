"""The brief of a request, for a quick decision: what was wanted and done, why the run stopped, what each choice causes.

It is built from the log before the request. Secrets are redacted first; then long texts are cut and show their full
length.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from limpet.events import AnyBody, Failure, Limits, Payload, Spent
from limpet.events import bodies as b
from limpet.redaction import hide_secrets, hide_secrets_in
from limpet.state import RunState

__all__ = ["Brief", "Choice", "Chosen", "Did", "brief"]

# Maximum number of each that is shown; the newest are kept.
STEPS, DECISIONS, ERRORS, FACTS = 20, 10, 5, 20
SHORT, LONG = 200, 2000
# Characters after the cut that redaction still reads, for secrets that start before the cut.
BEYOND = 20_000


@dataclass(frozen=True, kw_only=True)
class Did:
    """A step that the agent ran."""

    number: int
    tool: str
    status: str
    """`running`, `completed`, `failed`, `retrying` or `unknown`."""
    attempts: int
    result: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A decision that the agent recorded."""

    question: str
    chosen: str
    because: str
    confidence: float | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One possible answer to a request, and its effect."""

    say: str
    causes: str


@dataclass(frozen=True, kw_only=True)
class Brief:
    """The facts that a person needs to decide a request."""

    agent: str
    input: str
    why: str
    """Why the run stopped."""
    choices: tuple[Choice, ...]
    silence: str
    """The consequence of no answer before the expiry."""
    goal: str = ""
    did: tuple[Did, ...] = ()
    left_out: int = 0
    """Number of earlier steps that are not shown."""
    decisions: tuple[Chosen, ...] = ()
    errors: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict)
    budget: Mapping[str, float] = field(default_factory=dict)


def brief(state: RunState, log: Iterable[AnyBody], opened: b.RequestOpened, input: str | None = None) -> Brief:
    """Build the brief of a request from the state before it, the end of the log before it, and the request itself.

    `input` is the run's input as text, if it is too large for its event.
    """
    bodies = list(log)
    did = _did(bodies)
    working = state.working
    return Brief(
        agent=state.agent,
        input=shown(state.input, LONG) if input is None else _cut(input, LONG),
        why=_why(opened, state),
        choices=_choices(opened),
        silence=_silence(opened),
        goal=hide_secrets(working.goal),
        did=did[-STEPS:],
        left_out=max(state.position.step - len(did[-STEPS:]), 0),
        decisions=tuple(_chosen(body) for body in bodies if isinstance(body, b.DecisionMade))[-DECISIONS:],
        errors=tuple(_errors(bodies))[-ERRORS:],
        facts=hide_secrets_in(
            {fact.key: _cut(bytes(fact.value).decode(), SHORT) for fact in working.known_facts[-FACTS:]}
        ),
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


def _cut(text: str, most: int) -> str:
    said = hide_secrets(text[: most + BEYOND])
    return said if len(text) <= most else f"{said[:most]}… ({len(text)} characters)"


def _did(bodies: Sequence[AnyBody]) -> tuple[Did, ...]:
    steps: dict[int, Did] = {}
    for body in bodies:
        match body:
            case b.StepStarted():
                steps[body.number] = Did(number=body.number, tool=body.tool, status="running", attempts=body.attempt)
            case b.StepCompleted() if body.number in steps:
                steps[body.number] = _now(steps[body.number], "completed", result=shown(body.output))
            case b.StepFailed() if body.number in steps:
                status = "failed" if body.is_final else "retrying"
                steps[body.number] = _now(steps[body.number], status, error=_error(body.failure))
            case b.StepUnknown() if body.number in steps:
                error = body.reason if body.failure is None else _error(body.failure)
                steps[body.number] = _now(steps[body.number], "unknown", error=error)
            case b.StepResolved() if body.number in steps:
                status = {"applied": "completed", "not_applied": "retrying", "gave_up": "failed"}[body.outcome]
                steps[body.number] = _now(steps[body.number], status, result=shown(body.output))
            case _:
                pass
    return tuple(steps[number] for number in sorted(steps))


def _now(step: Did, status: str, *, result: str = "", error: str = "") -> Did:
    return replace(step, status=status, result=result, error=error or step.error)


def _chosen(body: b.DecisionMade) -> Chosen:
    because = _cut(body.because, SHORT)
    return Chosen(
        question=hide_secrets(body.question), chosen=shown(body.chosen), because=because, confidence=body.confidence
    )


def _errors(bodies: Iterable[AnyBody]) -> Iterable[str]:
    for body in bodies:
        if isinstance(body, b.StepFailed | b.StepUnknown) and body.failure is not None:
            yield f"step {body.number}, attempt {body.attempt}: {_error(body.failure)}"


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


def _choices(opened: b.RequestOpened) -> tuple[Choice, ...]:
    match opened.kind:
        case "approval":
            return (
                Choice(say="approve", causes=f"{opened.tool} runs once, with exactly these arguments."),
                Choice(say="approve with other arguments", causes=f"{opened.tool} runs once, with those."),
                Choice(
                    say="reject",
                    causes=f"{opened.tool} does not run; the agent gets the reason and continues without it.",
                ),
            )
        case "unknown":
            return (
                Choice(say='{"applied": its result}', causes="The step is completed with that result."),
                Choice(say="applied", causes="The step is completed without a known result."),
                Choice(say="not_applied", causes="The step is retried if its `retry` allows; otherwise it has failed."),
                Choice(say="unknown", causes="The agent gets OutcomeUnknown."),
            )
        case "budget":
            return (
                Choice(say='new limits, such as {"max_steps": 50}', causes="The run continues with these limits."),
                Choice(say="reject", causes="The step does not run, and the agent gets BudgetExceeded."),
            )
        case "escalation" if opened.tool is not None:
            return (
                Choice(say="retry", causes=f"{opened.tool} is retried."),
                Choice(say="fail", causes="The agent gets the error."),
                Choice(say='{"result": …}', causes="The agent gets that as the step's result."),
            )
        case "compensation":
            return (
                Choice(say="retry", causes="The compensation is retried."),
                Choice(say="skip", causes="The step is not compensated; the others are."),
            )
        case _:
            return _answers(opened)


def _answers(opened: b.RequestOpened) -> tuple[Choice, ...]:
    options = opened.options.value() if opened.options is not None and opened.options.is_inline else ()
    if options:
        return tuple(Choice(say=str(each), causes=f"The agent continues with {each!r}.") for each in options)
    if opened.schema is not None and opened.schema.is_inline and opened.schema.value() == {"type": "boolean"}:
        return (
            Choice(say="approve", causes="The agent continues with yes."),
            Choice(say="reject", causes="The agent continues with no."),
        )
    return (Choice(say="an answer that matches the schema", causes="The agent continues with it."),)


def _silence(opened: b.RequestOpened) -> str:
    if opened.expires is None:
        return "The request stays open until a person decides."
    if opened.escalate:
        return f"The request then goes to {', then '.join(opened.escalate)}."
    if opened.default is not None:
        return f"The answer is then {shown(opened.default)}."
    return "The agent then gets Expired."
