"""What must be there before a step begins: a budget that allows it, and a person's word where its risk needs one.

Also what a person is asked when nobody knows what came of an effect. A request that belongs to a step has an identity
below the step's, so that it is found again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from limpet.clock import earliest
from limpet.engine.approvals.freshness import Freshness
from limpet.engine.definitions.tools import Tool
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.spending import NOTHING, spent_before
from limpet.engine.replay.history import Record
from limpet.engine.waits.waits import RequestOutcome, Waits
from limpet.errors import BudgetExceeded, Expired, InvalidAnswer, InvalidValue, Rejected
from limpet.events import Spent, digest, inline
from limpet.events import bodies as b
from limpet.policy import budget, risk

__all__ = ["CHOICES", "OUTCOMES", "ApprovalGate"]

Outcome = Literal["applied", "not_applied", "gave_up"]
Kind = Literal["unknown", "budget", "escalation"]
OUTCOMES: tuple[Outcome, ...] = ("applied", "not_applied", "gave_up")
CHOICES = ("retry", "fail")
# How often a person is asked again because what they had seen has changed.
MOST_CHANGES = 3
# What a person is asked before a step begins.
WORDS = ("approval", "budget", "pressure")


class FailureDecision(NamedTuple):
    """What a person says to a step that has failed."""

    what: Literal["retry", "fail", "result"]
    result: Any
    request: str


class StartPermission(NamedTuple):
    """What a new step may begin with."""

    grant: str | None
    args: dict[str, Any]
    """As they are used."""
    heard: int | None = None
    """Of a standing permission: what was heard when it was looked at, since it may be revoked meanwhile."""
    is_fresh: bool = False
    """What the tool goes by was read again for this start."""


@dataclass
class _Asking:
    """What a person is asked for one step."""

    tool: Tool[..., Any, Any]
    name: str
    number: int
    args: dict[str, Any]
    """As shown: those that a person has edited are shown the next time."""
    ask: risk.AskPerson
    earlier: "_Earlier | None" = None
    changes: int = 0
    """How often the person was asked again because what they had seen has changed."""


class _Earlier(NamedTuple):
    """An approval that could not be used: the person is asked again, and told why."""

    request: str
    why: Literal["changed", "late"]
    words: str


class ApprovalGate:
    """What the steps of one execution are allowed."""

    def __init__(self, execution: Execution, waits: Waits, freshness: Freshness) -> None:
        self._x = execution
        self._waits = waits
        self._freshness = freshness

    async def request_start(
        self, tool: Tool[..., Any, Any], name: str, number: int, args: dict[str, Any]
    ) -> StartPermission:
        """The grant that a new step uses, if it needs one, and its arguments, perhaps edited by a person."""
        await self.afford(name, number, tool.traits.most)
        is_effect, effects = tool.traits.effect != "none", self._x.effects
        always = is_effect and effects == "ask"
        if tool.traits.risk is None and not always:
            return StartPermission(None, args)
        asking = _Asking(tool, name, number, args, risk.AskPerson(to=(), expires=None, escalate=()))
        if is_effect and effects == "stub":  # it is not done, so nobody is asked; a no that was said before stands
            return await self._ask(asking, risk.Free()) if self._is_refused(name) else StartPermission(None, args)
        fold, heard = self._x.journal.fold, self._x.journal.heard
        constraints, approvals = fold.working.constraints, self._x.agent.rules.approvals
        found = risk.decide(
            tool.traits.risk, tool.name, approvals=approvals, constraints=constraints, grants=fold.grants, always=always
        )
        if isinstance(found, risk.Free) and f"{name}/approval#1" not in self._x.history.records:
            return StartPermission(found.grant, args, heard if found.grant is not None else None)
        if isinstance(found, risk.AskPerson):
            asking.ask = found
        return await self._ask(asking, found)

    def _is_refused(self, name: str) -> bool:
        """Whether somebody has said no to a step."""
        record = self._x.history.records.get(f"{name}/approval#1")
        if record is None or not isinstance(record.opened, b.RequestOpened):
            return False
        found = self._x.history.answer_to(record.opened.request)
        return found is not None and found[1].decision == "rejected"

    def number_of(self, name: str) -> int | None:
        """The number of a step that has not begun, if a person was shown it."""
        records = self._x.history.records
        shown = [record.opened for each in WORDS if (record := records.get(f"{name}/{each}#1")) is not None]
        return next((each.number for each in shown if isinstance(each, b.RequestOpened)), None)

    # Approvals

    async def _ask(self, asking: "_Asking", found: risk.AskPerson | risk.Free) -> StartPermission:
        """A person's word; one that was given stands, though the policy would not ask any more."""
        heard, is_free = self._x.journal.heard, isinstance(found, risk.Free)
        for occurrence in count(1):
            request = f"{asking.name}/approval#{occurrence}"
            record = self._x.find(request, b.RequestOpened)
            if record is None and isinstance(found, risk.Free):
                return StartPermission(found.grant, asking.args, heard if found.grant is not None else None)
            if await self._is_superseded(asking, occurrence):
                continue
            opened = self._approval(asking, request)
            if record is not None and not self._is_for(record, opened, free=is_free):
                continue  # what was shown is not what would be done now
            if record is None:
                await self._check_new(asking, request)
            decided = await self._waits.request(record, opened)
            permit = await self._use(asking, request, decided)
            if permit is not None:
                return permit
        raise AssertionError

    async def _is_superseded(self, asking: "_Asking", occurrence: int) -> bool:
        """Whether a later request stands for this one; it shows the arguments that a person had edited."""
        after = self._x.history.records.get(f"{asking.name}/approval#{occurrence + 1}")
        if after is None:
            return False
        assert isinstance(after.opened, b.RequestOpened)
        asking.changes += after.opened.again == "changed"
        if after.opened.instead_of is not None:
            asking.args = await self._edited(after.opened.instead_of) or asking.args
        return True

    async def _check_new(self, asking: "_Asking", request: str) -> None:
        """Nobody is asked for code that has diverged, nor for what would not start on what is known."""
        await self._x.check_new(request)
        if asking.earlier is None and (source := self._freshness.stale(asking.tool)) is not None:
            await self._freshness.refuse(asking.tool, asking.name, source)

    async def _use(self, asking: "_Asking", request: str, decided: RequestOutcome) -> StartPermission | None:
        """What an approval allows; nothing if it cannot be used any more, and the person must be asked again."""
        tool, answer = asking.tool, decided.answer
        if answer is None:
            raise self._x.attribute_error(self._expired(decided), request)
        if answer.decision != "approved":
            raise self._x.attribute_error(_rejected(tool.name, asking.number, answer), request)
        edited = await self._edited(decided.request)
        if edited is not None:
            asking.args = self._checked(tool, edited, decided, request)
        opened = self._x.history.records[request].opened
        assert isinstance(opened, b.RequestOpened)
        changed = await self._changed(asking, opened, answer)  # also if it is late: what is asked again must be fresh
        asking.earlier = changed or self._late(decided, answer)
        if asking.earlier is not None:
            return None
        await self.afford(asking.name, asking.number, tool.traits.most)  # others went on meanwhile
        sources = {each.source for each in opened.seen}
        return StartPermission(decided.request, asking.args, is_fresh=sources.issuperset(tool.traits.fresh))

    async def _edited(self, request: str) -> Any:
        """The arguments that a person made of those that they were shown, if they did."""
        found = self._x.history.answer_to(request)
        return None if found is None else await self._x.unpack(found[1].args)

    def _late(self, decided: RequestOutcome, answer: b.RequestAnswered) -> "_Earlier | None":
        """Whether an approval was not used in its time."""
        grants = (each for each in self._x.journal.fold.grants if each.grant == decided.request)
        expires = next((each.expires for each in grants), None)
        if expires is None or self._x.kit.now() < expires:
            return None
        return _Earlier(decided.request, "late", f"{answer.by} approved this before, and it was not done in time.")

    async def _changed(
        self, asking: "_Asking", opened: b.RequestOpened, answer: b.RequestAnswered
    ) -> "_Earlier | None":
        """Whether what the person saw has changed; after too many changes, the code is told."""
        found = await self._freshness.changes(asking.tool, opened.name, opened.seen)
        if not found:
            return None
        if asking.changes == MOST_CHANGES:
            await self._freshness.refuse(asking.tool, asking.name, found[0].source)
        asking.changes += 1
        words = "; ".join(each.words for each in found)
        return _Earlier(opened.request, "changed", f"{answer.by} approved this before, but {words}.")

    def _is_for(self, record: Record, opened: b.RequestOpened, *, free: bool) -> bool:
        """Whether a request shows what is asked for now; one that does not leaves the inbox.

        Where nobody would be asked now, what was decided for just this call stands.
        """
        assert isinstance(record.opened, b.RequestOpened)
        if record.opened.request in self._x.history.used:
            return False  # a step that failed, and is resumed, needs a word of its own
        if record.opened.digest == opened.digest or self._stands(record, opened, free=free):
            return True
        if record.settled is None and self._x.journal.fold.is_asking(record.opened.request):
            withdrawn = b.WaitEnded(name=record.name, how="withdrawn", request=record.opened.request)
            self._x.journal.add(withdrawn)
        return False

    def _stands(self, record: Record, opened: b.RequestOpened, *, free: bool) -> bool:
        """Whether this very call was decided: a no stands, whoever would be asked today; a yes, if nobody would.

        So does that the code took it back: a permission that came later is not for that.
        """
        assert isinstance(record.opened, b.RequestOpened)
        shown = record.opened
        if (shown.tool, shown.args) != (opened.tool, opened.args):
            return False
        found = self._x.history.answer_to(shown.request)
        if found is not None:
            return free or found[1].decision == "rejected"
        if record.settled is None:
            return free  # whoever was asked is waited for
        how = record.settled.how if isinstance(record.settled, b.WaitEnded) else ""
        return how == "timeout" or (free and how == "withdrawn")

    def _checked(self, tool: Tool[..., Any, Any], edited: Any, decided: RequestOutcome, name: str) -> dict[str, Any]:
        """Arguments that a person edited, if the tool takes them."""
        try:
            tool.unbind(edited)
        except (InvalidValue, TypeError, KeyError) as error:
            reason = f"{tool.name} does not take the edited arguments: {error}"
            raise self._x.attribute_error(InvalidAnswer(request=decided.request, reason=reason), name) from error
        found: dict[str, Any] = edited
        return found

    def _approval(self, asking: "_Asking", name: str) -> b.RequestOpened:
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
            expires=earliest(expires, self._x.deadline),
            escalate=ask.escalate,
            number=asking.number,
            tool=tool.name,
            args=self._x.shown(args),
            schema=self._x.shown(tool.schema),
            risk=tool.traits.risk,
            seen=self._freshness.seen(tool),
            valid=ask.valid,
            instead_of=None if earlier is None else earlier.request,
            again=None if earlier is None else earlier.why,
        )

    def _expired(self, decided: RequestOutcome) -> Expired:
        return Expired(request=decided.request, expired_at=decided.expires or self._x.deadline or 0)

    # Budgets

    async def afford(self, name: str, number: int, most: Spent | None) -> None:
        """Whether an attempt fits into the budget, if it uses up the most; a person may be asked to extend it.

        That it does not fit is recorded: the code is told the same again, though something may have come back since.
        """
        refused = self._x.find(f"{name}/refused#1", b.ValueRecorded)
        if refused is not None:
            told = await self._x.recall(refused, b.ValueRecorded)
            raise self._x.attribute_error(BudgetExceeded(**told.value.value()), refused.name)
        for occurrence in count(1):
            request = f"{name}/budget#{occurrence}"
            if request in self._x.history.records:  # what was said then stands, whatever the budget is now
                await self._ask_for_more(request, number, None)
                continue
            limits = self._x.journal.fold.working.budget
            if limits is None:
                return
            found = budget.decide(limits, spent_before(self._x, number), replace(most or NOTHING, steps=1))
            if isinstance(found, budget.Fits):
                await self._press(name, number, found.pressure)
                return
            if found.then == "fail":
                exceeded, refusal = _exceeded(found), f"{name}/refused#1"
                await self._x.record(refusal, exceeded.facts)
                raise self._x.attribute_error(exceeded, refusal)
            await self._ask_for_more(request, number, found)

    async def _ask_for_more(self, request: str, number: int, found: budget.Exhausted | None) -> None:
        """Ask a person to extend the budget; raises BudgetExceeded if they do not."""
        exceeded = _exceeded(found)
        if found is not None:
            await self._x.check_new(request)
        question = f"The budget is used up: {exceeded.limit} = {exceeded.allowed:g}. Extend it?"
        decided = await self._ask_person(request, "budget", question, number=number, args=inline(exceeded.facts))
        if decided.answer is None or decided.answer.decision == "rejected":
            raise self._x.attribute_error(self._as_told(request, exceeded), request)

    def _as_told(self, request: str, exceeded: BudgetExceeded) -> BudgetExceeded:
        """The error as the code was told it first."""
        opened = self._x.history.records[request].opened
        assert isinstance(opened, b.RequestOpened)
        return exceeded if opened.args is None else BudgetExceeded(**opened.args.value())

    async def _press(self, name: str, number: int, pressure: tuple[str, ...]) -> None:
        """Say once that a limit is near; an agent that escalates this asks a person whether it may go on."""
        request, escalate = f"{name}/pressure#1", self._x.agent.rules.escalate
        is_asked = request in self._x.history.records
        is_fresh = self._flag(pressure) if pressure else False
        if not is_asked and not (is_fresh and escalate is not None and escalate.budget):
            return
        if not is_asked:
            await self._x.check_new(request)
        question = f"80 % of the budget are used up ({', '.join(pressure)}). Go on?"
        limits = self._x.journal.fold.working.budget
        near = [(limit, getattr(limits, limit)) for limit in pressure]
        told = {"limit": near[0][0], "allowed": near[0][1], "wanted": near[0][1]} if near else {}
        options = self._x.shown(["go on", "stop"])
        decided = await self._ask_person(
            request, "escalation", question, number=number, options=options, args=inline(told)
        )
        if decided.answer is None or await self._x.unpack(decided.answer.answer) != "go on":
            raise self._x.attribute_error(self._as_told(request, _exceeded(None)), request)

    def _flag(self, pressure: tuple[str, ...]) -> bool:
        """Raise the flags of limits that are near; whether one of them is new."""
        detail = "80 % of this limit are used up"
        raised = [self._x.raise_flag(f"budget pressure: {limit}", detail) for limit in pressure]
        return any(raised)

    # Whoever is asked instead of a failure

    async def escalate(
        self, tool: Tool[..., Any, Any], name: str, failed: b.StepFailed, args: Mapping[str, Any]
    ) -> FailureDecision:
        """What a person says to a step that has failed: try it again, let it fail, or a result."""
        times = f"{failed.attempt} attempt{'' if failed.attempt == 1 else 's'}"
        question = f"{tool.name} failed after {times}: {failed.failure.message}. What now?"
        decided = await self._ask_person(
            f"{name}/escalation#{self._x.history.records[name].escalations}",
            "escalation",
            question,
            options=self._x.shown(list(CHOICES)),
            number=failed.number,
            **self._about(tool, args),
        )
        said = await self._x.unpack(decided.answer.answer) if decided.answer is not None else "fail"
        if isinstance(said, dict) and "result" in said:
            return FailureDecision("result", said["result"], decided.request)
        return FailureDecision("retry" if said == "retry" else "fail", None, decided.request)

    async def confirm(self, decision: b.DecisionMade) -> b.DecisionMade:
        """A choice that is not sure enough, as a person makes it."""
        name = f"{decision.name}/confirm#1"
        question = f"{decision.question} The agent would choose {decision.chosen.value()!r}: {decision.because}"
        decided = await self._ask_person(name, "escalation", question, options=decision.options)
        if decided.answer is None:
            raise self._x.attribute_error(self._expired(decided), name)
        because = f"{decided.answer.by} decided; the agent said: {decision.because}"
        assert decided.answer.answer is not None
        return replace(decision, chosen=inline(await self._x.unpack(decided.answer.answer)), because=because)

    def _about(self, tool: Tool[..., Any, Any], args: Mapping[str, Any]) -> dict[str, Any]:
        """What a person must know of a step, and what its result looks like."""
        return {
            "tool": tool.name,
            "args": self._x.shown(dict(args)),
            "schema": self._x.shown(tool.result_schema),
            "risk": tool.traits.risk,
        }

    async def _ask_person(self, name: str, kind: Kind, question: str, **more: Any) -> RequestOutcome:
        """Ask whoever an agent escalates to."""
        x, escalate = self._x, self._x.agent.rules.escalate
        expires = None if escalate is None or escalate.expires is None else x.kit.now() + escalate.expires
        opened = b.RequestOpened(
            request=x.kit.ids.new(),
            name=name,
            kind=kind,
            question=question,
            to=self._people(),
            expires=earliest(expires, x.deadline),
            **more,
        )
        return await self._waits.request(x.find(name, b.RequestOpened), opened)

    def _people(self) -> tuple[str, ...]:
        rules = self._x.agent.rules
        asked = rules.escalate or rules.approvals
        return asked.to if asked is not None else ("anyone",)

    # What nobody knows

    def is_settling(self, name: str) -> bool:
        """Whether a person was asked already what came of a step: then it is for them to say."""
        return self.unknown_name(name) in self._x.history.records

    def unknown_name(self, name: str) -> str:
        """The identity of the question what came of a step."""
        before = self._x.history.records.get(name)
        return f"{name}/unknown#{1 + (before.resolutions if before is not None else 0)}"

    async def settle_unknown(
        self, tool: Tool[..., Any, Any], name: str, unknown: b.StepUnknown, args: Mapping[str, Any]
    ) -> tuple[Outcome, Any, str]:
        """What a person says came of an attempt: applied (with its result), not applied, or given up."""
        decided = await self._ask_person(
            self.unknown_name(name),
            "unknown",
            f"Nobody knows whether {tool.name} was applied ({unknown.reason}). What came of it?",
            options=self._x.shown(list(OUTCOMES)),
            number=unknown.number,
            **self._about(tool, args),
        )
        if decided.answer is None or decided.answer.decision == "rejected":
            return "gave_up", None, decided.request
        said = await self._x.unpack(decided.answer.answer)
        if isinstance(said, dict) and "applied" in said:
            return "applied", said["applied"], decided.request
        return (said if said in OUTCOMES else "gave_up"), None, decided.request


def _exceeded(found: budget.Exhausted | None) -> BudgetExceeded:
    if found is None:
        return BudgetExceeded(limit="", allowed=0, wanted=0)
    return BudgetExceeded(limit=found.limit, allowed=found.allowed, wanted=found.wanted)


def _rejected(tool: str, number: int, answer: b.RequestAnswered) -> Rejected:
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
