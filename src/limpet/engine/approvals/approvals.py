"""Checks before a step starts: the budget must allow it, and a person must approve it if its risk needs that.

This module also asks a person about an unknown outcome. The name of a request that belongs to a step starts with the
step's name, so that replay finds it.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import count
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from limpet.engine.approvals.freshness import Freshness
from limpet.engine.approvals.refusals import (
    LATE,
    OVER_BUDGET,
    STALE,
    NewStep,
    refusal_in,
    refusal_value,
    refused_facts,
)
from limpet.engine.definitions.tools import Tool, idempotency_key
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.spending import NOTHING, spent_before
from limpet.engine.replay.history import Record
from limpet.engine.waits.waits import RequestOutcome, Waits
from limpet.errors import BudgetExceeded, Expired, InvalidAnswer, InvalidValue, Rejected
from limpet.events import Spent, canonical, digest, inline
from limpet.events import bodies as b
from limpet.policy import budget, risk

__all__ = ["AFTER_EXPIRY", "AFTER_REFUSAL", "CHOICES", "OUTCOMES", "ApprovalGate", "rejection"]

Outcome = Literal["applied", "not_applied", "gave_up"]
Kind = Literal["unknown", "budget", "escalation"]
# Answers to the question whether an effect was applied. "unknown" is stored as the outcome "gave_up".
OUTCOMES = ("applied", "not_applied", "unknown")
CHOICES = ("retry", "fail")
AFTER_EXPIRY = "Run `limpet resume` on the failed run to ask again, or catch limpet.Expired."
BUDGET_PRESSURE = "budget_pressure"
AFTER_REFUSAL = "Run `limpet resume` on the failed run to ask again, or catch limpet.BudgetExceeded."
# How often a person is asked again because the data they saw has changed.
MAX_CHANGES = 3
# Kinds of requests before a step starts, as they appear in identities.
REQUESTS_BEFORE_START = ("approval", "budget", "pressure")


class FailureDecision(NamedTuple):
    """A person's decision about a failed step."""

    what: Literal["retry", "fail", "result"]
    result: Any
    request: str


class StartPermission(NamedTuple):
    """Permission to start a new step."""

    grant: str | None
    args: dict[str, Any]
    """Arguments as used."""
    last_seen: int | None = None
    """For a standing approval, the last command seen when it was checked, because it may be revoked meanwhile."""
    is_fresh: bool = False
    """Whether the data of the tool's sources was read again for this start."""


class _ApprovalRequest(Struct):
    """A request for approval of one step."""

    tool: Tool[..., Any, Any]
    name: str
    number: int
    args: dict[str, Any]
    """Arguments as shown. If a person edits them, the next request shows the edited ones."""
    ask: risk.AskPerson
    earlier: "_UnusedApproval | None" = None
    changes: int = 0
    """How often the person was asked again because the data they saw has changed."""

    @property
    def step(self) -> NewStep:
        """The step that the request is about."""
        return NewStep(self.tool.name, self.name, self.number, self.args)


class _UnusedApproval(NamedTuple):
    """An approval that could not be used; the next request gives the reason."""

    request: str
    why: Literal["changed", "late"]
    words: str


class ApprovalGate:
    """Decides whether the steps of one execution may start."""

    def __init__(self, execution: Execution, waits: Waits, freshness: Freshness) -> None:
        self._x = execution
        self._waits = waits
        self._freshness = freshness

    async def request_start(
        self, tool: Tool[..., Any, Any], name: str, number: int, args: dict[str, Any]
    ) -> StartPermission:
        """Return the grant that a new step uses, if it needs one, and its arguments, perhaps edited by a person."""
        await self.check_budget(NewStep(tool.name, name, number, args), tool.traits.max_spend)
        is_effect, effects = tool.traits.effect != "none", self._x.effects
        always = is_effect and effects == "ask"
        if tool.traits.risk is None and not always:
            return StartPermission(None, args)
        asking = _ApprovalRequest(tool, name, number, args, risk.AskPerson(to=(), expires=None, escalate=()))
        if is_effect and effects == "stub":  # stubbed, so it needs no approval; an earlier rejection still applies
            return await self._ask(asking, risk.Free()) if self._is_refused(name) else StartPermission(None, args)
        fold, last_seen = self._x.journal.fold, self._x.journal.last_seen
        constraints, approvals = self._x.journal.working.constraints, self._x.agent.rules.approvals
        found = risk.decide(
            tool.traits.risk, tool.name, approvals=approvals, constraints=constraints, grants=fold.grants, always=always
        )
        if isinstance(found, risk.Free) and f"{name}/approval#1" not in self._x.history.records:
            return StartPermission(found.grant, args, last_seen if found.grant is not None else None)
        if isinstance(found, risk.AskPerson):
            asking.ask = found
        return await self._ask(asking, found)

    def _is_refused(self, name: str) -> bool:
        """Return whether a person has rejected a step."""
        record = self._x.history.records.get(f"{name}/approval#1")
        if record is None or not isinstance(record.opened, b.RequestOpened):
            return False
        found = self._x.history.answer_to(record.opened.request)
        return found is not None and found[1].decision == "rejected"

    def number_of(self, name: str) -> int | None:
        """Return the number that a step had in an earlier request or refusal, if it has not started; else None."""
        for body in self._considered(name):
            if isinstance(body, b.RequestOpened):
                return body.number
            if isinstance(body, b.ValueRecorded) and (refusal := refusal_in(body)) is not None:
                return refusal.number
        return None

    def is_considered(self, name: str) -> bool:
        """Return whether the log has a request or refusal for a step that has not started; that is decided first."""
        return next(self._considered(name), None) is not None

    def _considered(self, name: str) -> Iterator[object]:
        records = self._x.history.records
        if name not in self._x.history.considered:
            return
        for each in (*(f"/{request}#1" for request in REQUESTS_BEFORE_START), STALE, OVER_BUDGET, LATE):
            if (record := records.get(f"{name}{each}")) is not None:
                yield record.opened

    # Approvals

    async def _ask(self, asking: "_ApprovalRequest", found: risk.AskPerson | risk.Free) -> StartPermission:
        """Ask for approval. An earlier decision still applies, even if the policy would no longer ask."""
        last_seen, is_free = self._x.journal.last_seen, isinstance(found, risk.Free)
        for occurrence in count(1):
            request = f"{asking.name}/approval#{occurrence}"
            record = self._x.find(request, b.RequestOpened)
            if record is None and isinstance(found, risk.Free):
                return StartPermission(found.grant, asking.args, last_seen if found.grant is not None else None)
            if await self._is_superseded(asking, occurrence):
                continue
            opened = self._approval(asking, request)
            if record is not None and not self._matches(record, opened, free=is_free):
                continue  # the request shows something other than what would run now
            if record is None:
                await self._check_new(asking, request)
            decided = await self._waits.request(record, opened)
            permit = await self._use(asking, request, decided)
            if permit is not None:
                return permit
        raise AssertionError

    async def _is_superseded(self, asking: "_ApprovalRequest", occurrence: int) -> bool:
        """Return whether a later request replaces this one; take over the arguments that a person edited."""
        after = self._x.history.records.get(f"{asking.name}/approval#{occurrence + 1}")
        if after is None:
            return False
        assert isinstance(after.opened, b.RequestOpened)
        asking.changes += after.opened.again == "changed"
        if after.opened.instead_of is not None:
            asking.args = await self._edited(after.opened.instead_of) or asking.args
        return True

    async def _check_new(self, asking: "_ApprovalRequest", request: str) -> None:
        """Raise if the code has diverged, or if the step would not start because of out-of-date data."""
        await self._x.check_new(request)
        if asking.earlier is None and (source := self._freshness.stale(asking.tool)) is not None:
            await self._freshness.refuse(asking.step, source)

    async def _use(self, asking: "_ApprovalRequest", request: str, decided: RequestOutcome) -> StartPermission | None:
        """Return what an approval permits, or None if it can no longer be used and the person must be asked again."""
        tool, answer = asking.tool, decided.answer
        if answer is None:
            raise self._x.attribute_error(self._expired(decided), request)
        if answer.decision != "approved":
            raise self._x.attribute_error(rejection(tool.name, asking.number, answer), request)
        edited = await self._edited(decided.request)
        if edited is not None:
            asking.args = self._checked(tool, edited, decided, request)
        opened = self._x.history.records[request].opened
        assert isinstance(opened, b.RequestOpened)
        changed = await self._changed(asking, opened, answer)  # also if late: a new request must show current data
        asking.earlier = changed or self._late(decided, answer)
        if asking.earlier is not None:
            return None
        await self.check_budget(asking.step, tool.traits.max_spend)  # others may have used the budget
        sources = {each.source for each in opened.seen}
        return StartPermission(decided.request, asking.args, is_fresh=sources.issuperset(tool.traits.fresh))

    async def _edited(self, request: str) -> Any:
        """Return the arguments as edited by the person, or None."""
        found = self._x.history.answer_to(request)
        return None if found is None else await self._x.recorder.unpack(found[1].args)

    def _late(self, decided: RequestOutcome, answer: b.RequestAnswered) -> "_UnusedApproval | None":
        """Return the approval as earlier if it was not used in time, else None."""
        grants = (each for each in self._x.journal.fold.grants if each.grant == decided.request)
        expires = next((each.expires for each in grants), None)
        if expires is None or self._x.kit.now() < expires:
            return None
        return _UnusedApproval(
            decided.request, "late", f"{answer.by} approved this before, but the step did not start in time."
        )

    async def _changed(
        self, asking: "_ApprovalRequest", opened: b.RequestOpened, answer: b.RequestAnswered
    ) -> "_UnusedApproval | None":
        """Return the earlier approval if the data that the person saw has changed, else None.

        Raises Stale after too many changes.
        """
        found = await self._freshness.changes(asking.tool, opened.name, opened.seen)
        if not found:
            return None
        if asking.changes == MAX_CHANGES:
            await self._freshness.refuse(asking.step, found[0].source)
        asking.changes += 1
        words = "; ".join(each.text for each in found)
        return _UnusedApproval(opened.request, "changed", f"{answer.by} approved this before, but {words}.")

    def _matches(self, record: Record, opened: b.RequestOpened, *, free: bool) -> bool:
        """Return whether a request shows what would run now. One that does not is withdrawn.

        If no approval would be needed now, an earlier decision about exactly this call still applies.
        """
        assert isinstance(record.opened, b.RequestOpened)
        if record.opened.request in self._x.history.used:
            return False  # a resumed step needs a new approval
        if record.opened.digest == opened.digest or self._still_applies(record, opened, free=free):
            return True
        if record.settled is None and self._x.journal.fold.is_asking(record.opened.request):
            withdrawn = b.WaitEnded(name=record.name, how="withdrawn", request=record.opened.request)
            self._x.journal.add(withdrawn)
        return False

    def _still_applies(self, record: Record, opened: b.RequestOpened, *, free: bool) -> bool:
        """Return whether an earlier decision about exactly this call still applies.

        A rejection always applies; an approval applies if no approval would be needed now. A withdrawal by the code
        also applies then: a permission that came later does not cover it.
        """
        assert isinstance(record.opened, b.RequestOpened)
        shown = record.opened
        if (shown.tool, shown.args) != (opened.tool, opened.args):
            return False
        found = self._x.history.answer_to(shown.request)
        if found is not None:
            return free or found[1].decision == "rejected"
        if record.settled is None:
            return free  # an open request is still awaited
        how = record.settled.how if isinstance(record.settled, b.WaitEnded) else ""
        return how == "timeout" or (free and how == "withdrawn")

    def _checked(self, tool: Tool[..., Any, Any], edited: Any, decided: RequestOutcome, name: str) -> dict[str, Any]:
        """Return the edited arguments. Raises InvalidAnswer if the tool does not accept them."""
        try:
            tool.unbind(edited)
        except (InvalidValue, TypeError, KeyError) as error:
            why = error.at("arguments") if isinstance(error, InvalidValue) else str(error)
            reason = f"{tool.name} does not accept the edited arguments: {why}"
            raise self._x.attribute_error(InvalidAnswer(request=decided.request, reason=reason), name) from error
        found: dict[str, Any] = edited
        return found

    def _approval(self, asking: "_ApprovalRequest", name: str) -> b.RequestOpened:
        tool, args, ask, earlier = asking.tool, asking.args, asking.ask, asking.earlier
        policy = {"to": list(ask.to), "expires": ask.expires, "escalate": list(ask.escalate)}
        shown = {"tool": tool.name, "args": args, "schema": tool.schema, "risk": tool.traits.risk, "policy": policy}
        expires = None if ask.expires is None else self._x.kit.now() + ask.expires
        return b.RequestOpened(
            request=self._x.kit.ids.new(),
            name=name,
            kind="approval",
            question=f"May {tool.name} run with these arguments?{f' {earlier.words}' if earlier is not None else ''}",
            to=ask.to,
            digest=digest(shown),
            expires=expires,
            escalate=ask.escalate,
            number=asking.number,
            tool=tool.name,
            args=self._x.recorder.shown(args),
            schema=self._x.recorder.shown(tool.schema),
            risk=tool.traits.risk,
            seen=self._freshness.seen(tool),
            valid=ask.valid,
            self_approval=ask.self_approval,
            instead_of=None if earlier is None else earlier.request,
            again=None if earlier is None else earlier.why,
            key=self._key(asking),
            undo="never" if tool.traits.irreversible else "compensated" if tool.hooks.compensate is not None else None,
        )

    def _key(self, asking: "_ApprovalRequest") -> str:
        if asking.tool.traits.effect == "none":
            return ""
        used = sha256(canonical(asking.args)).hexdigest()
        return idempotency_key(self._x.run, asking.number, asking.tool.name, used)

    def _expired(self, decided: RequestOutcome) -> Expired:
        return Expired(request=decided.request, expired_at=decided.expires or 0, fix=AFTER_EXPIRY)

    # Budgets

    async def check_budget(self, step: NewStep, most: Spent | None) -> None:
        """Check that an attempt which uses at most `most` fits the budget.

        If it does not, raise BudgetExceeded or ask a person to extend the budget. A refusal is recorded, so that replay
        raises the same error even if some budget has been returned since.
        """
        name, number = step.name, step.number
        refused = self._x.find(f"{name}{OVER_BUDGET}", b.ValueRecorded)
        if refused is not None:
            recorded = await self._x.recorder.recall(refused, b.ValueRecorded)
            raise self._x.attribute_error(BudgetExceeded(**refused_facts(recorded)), refused.name)
        for occurrence in count(1):
            request = f"{name}/budget#{occurrence}"
            if request in self._x.history.records:  # an earlier answer still applies, whatever the budget is now
                await self._ask_for_more(request, number, None)
                continue
            limits = self._x.journal.working.budget
            if limits is None:
                return
            found = budget.decide(limits, spent_before(self._x, number), replace(most or NOTHING, steps=1))
            if isinstance(found, budget.Fits):
                await self._check_pressure(name, number, found.pressure)
                return
            if found.then == "fail":
                exceeded, refusal = _exceeded(found), f"{name}{OVER_BUDGET}"
                await self._x.recorder.record(refusal, refusal_value(step, exceeded))
                raise self._x.attribute_error(exceeded, refusal)
            await self._ask_for_more(request, number, found)

    async def _ask_for_more(self, request: str, number: int, found: budget.Exhausted | None) -> None:
        """Ask a person to extend the budget. Raises BudgetExceeded if they do not."""
        exceeded = _exceeded(found)
        if found is not None:
            await self._x.check_new(request)
        question = f"The budget is used up: {exceeded.limit} = {exceeded.allowed:g}. Extend it?"
        decided = await self._ask_person(request, "budget", question, number=number, args=inline(exceeded.facts))
        if decided.answer is None or decided.answer.decision == "rejected":
            raise self._x.attribute_error(self._as_recorded(request, exceeded), request)

    def _as_recorded(self, request: str, exceeded: BudgetExceeded) -> BudgetExceeded:
        """Return the error with the values that were recorded first."""
        opened = self._x.history.records[request].opened
        assert isinstance(opened, b.RequestOpened)
        return exceeded if opened.args is None else BudgetExceeded(**opened.args.value(), fix=AFTER_REFUSAL)

    async def _check_pressure(self, name: str, number: int, pressure: tuple[str, ...]) -> None:
        """Raise a risk flag once when a limit is near.

        With `Escalate(budget=True)`, also ask a person whether to continue.
        """
        request, escalate = f"{name}/pressure#1", self._x.agent.rules.escalate
        is_asked = request in self._x.history.records
        is_fresh = self._flag(pressure) if pressure else False
        if not is_asked and not (is_fresh and escalate is not None and escalate.budget):
            return
        if not is_asked:
            await self._x.check_new(request)
        question = f"80% of the budget is used up ({', '.join(pressure)}). Go on?"
        limits = self._x.journal.working.budget
        near = [(limit, getattr(limits, limit)) for limit in pressure]
        exceeded = {"limit": near[0][0], "allowed": near[0][1], "wanted": near[0][1]} if near else {}
        options = self._x.recorder.shown(["go on", "stop"])
        decided = await self._ask_person(
            request, "escalation", question, number=number, options=options, args=inline(exceeded)
        )
        if decided.answer is None or await self._x.recorder.unpack(decided.answer.answer) != "go on":
            raise self._x.attribute_error(self._as_recorded(request, _exceeded(None)), request)

    def _flag(self, pressure: tuple[str, ...]) -> bool:
        """Raise a flag with the limits that are near, and return whether one of them is new."""
        detail = self._x.journal.working.flag_detail(BUDGET_PRESSURE)
        known = detail.split(", ") if detail else []
        new = [limit for limit in pressure if limit not in known]
        if new:
            self._x.state.raise_flag(BUDGET_PRESSURE, ", ".join([*known, *new]), again=True)
        return bool(new)

    # Escalation

    async def escalate(
        self, tool: Tool[..., Any, Any], name: str, failed: b.StepFailed, args: Mapping[str, Any]
    ) -> FailureDecision:
        """Ask a person about a failed step: retry it, let it fail, or use a given result."""
        times = f"{failed.attempt} attempt{'' if failed.attempt == 1 else 's'}"
        question = (
            f"{tool.name} failed after {times}: {failed.failure.message}. Retry it, let it fail, or give its result?"
        )
        decided = await self._ask_person(
            f"{name}/escalation#{self._x.history.records[name].escalations}",
            "escalation",
            question,
            options=self._x.recorder.shown(list(CHOICES)),
            number=failed.number,
            **self._about(tool, args),
        )
        answer = await self._x.recorder.unpack(decided.answer.answer) if decided.answer is not None else "fail"
        if isinstance(answer, dict) and "result" in answer:
            return FailureDecision("result", answer["result"], decided.request)
        return FailureDecision("retry" if answer == "retry" else "fail", None, decided.request)

    async def confirm(self, decision: b.DecisionMade) -> b.DecisionMade:
        """Return a decision with low confidence as a person makes it."""
        name = f"{decision.name}/confirm#1"
        question = f"{decision.question} The agent would choose {decision.chosen.value()!r}: {decision.because}"
        decided = await self._ask_person(name, "escalation", question, options=decision.options)
        if decided.answer is None:
            raise self._x.attribute_error(self._expired(decided), name)
        because = f"{decided.answer.by} decided; the agent's reason was: {decision.because}"
        assert decided.answer.answer is not None
        return replace(decision, chosen=inline(await self._x.recorder.unpack(decided.answer.answer)), because=because)

    def _about(self, tool: Tool[..., Any, Any], args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that describe a step to a person, and the schema of its result."""
        return {
            "tool": tool.name,
            "args": self._x.recorder.shown(dict(args)),
            "schema": self._x.recorder.shown(tool.result_schema),
            "risk": tool.traits.risk,
        }

    async def _ask_person(self, name: str, kind: Kind, question: str, **more: Any) -> RequestOutcome:
        """Ask the people that the agent escalates to."""
        x, escalate = self._x, self._x.agent.rules.escalate
        expires = None if escalate is None or escalate.expires is None else x.kit.now() + escalate.expires
        opened = b.RequestOpened(
            request=x.kit.ids.new(),
            name=name,
            kind=kind,
            question=question,
            to=self._people(),
            expires=expires,
            **more,
        )
        return await self._waits.request(x.find(name, b.RequestOpened), opened)

    def _people(self) -> tuple[str, ...]:
        rules = self._x.agent.rules
        asked = rules.escalate or rules.approvals
        return asked.to if asked is not None else ("anyone",)

    # Unknown outcomes

    def is_asked_outcome(self, name: str) -> bool:
        """Return whether a person was already asked about the outcome of a step; then they decide."""
        return self.unknown_name(name) in self._x.history.records

    def unknown_name(self, name: str) -> str:
        """Return the name in the log of the request about the outcome of a step."""
        before = self._x.history.records.get(name)
        return f"{name}/unknown#{1 + (before.resolutions if before is not None else 0)}"

    async def settle_unknown(
        self, tool: Tool[..., Any, Any], name: str, unknown: b.StepUnknown, args: Mapping[str, Any]
    ) -> tuple[Outcome, Any, str]:
        """Ask a person for the outcome of an attempt: applied (and its result), not applied, or unknown ("gave_up")."""
        decided = await self._ask_person(
            self.unknown_name(name),
            "unknown",
            f"Unknown whether {tool.name} was applied ({unknown.reason}). What was the outcome?",
            options=self._x.recorder.shown(list(OUTCOMES)),
            number=unknown.number,
            **self._about(tool, args),
        )
        if decided.answer is None or decided.answer.decision == "rejected":
            return "gave_up", None, decided.request
        answer = await self._x.recorder.unpack(decided.answer.answer)
        if isinstance(answer, dict) and "applied" in answer:
            return "applied", answer["applied"], decided.request
        return (answer if answer in ("applied", "not_applied") else "gave_up"), None, decided.request


def _exceeded(found: budget.Exhausted | None) -> BudgetExceeded:
    if found is None:
        return BudgetExceeded(limit="", allowed=0, wanted=0)
    return BudgetExceeded(limit=found.limit, allowed=found.allowed, wanted=found.wanted)


def rejection(tool: str, number: int, answer: b.RequestAnswered) -> Rejected:
    """Return the error of a step that a person rejected."""
    return Rejected(
        tool=tool,
        number=number,
        attempts=0,
        error_type="limpet.Rejected",
        message=answer.because,
        error_types=("limpet.Rejected",),
        because=answer.because,
        by=answer.by,
    )
