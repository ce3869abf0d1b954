"""What must be there before a step begins: a budget that allows it, and a person's word where its risk needs one.

Also what a person is asked when nobody knows what came of an effect. A request that belongs to a step has an identity
below the step's, so that it is found again.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec.structs import replace

from limpet.engine.execution import Execution
from limpet.engine.history import Record
from limpet.engine.tools import Tool
from limpet.engine.waits import Decided, Waits
from limpet.errors import BudgetExceeded, Expired, InvalidAnswer, InvalidValue, Rejected
from limpet.events import Spent, digest
from limpet.events import bodies as b
from limpet.policy import budget, risk
from limpet.policy.deadline import wake as earliest

__all__ = ["OUTCOMES", "Permits"]

Outcome = Literal["applied", "not_applied", "gave_up"]
OUTCOMES: tuple[Outcome, ...] = ("applied", "not_applied", "gave_up")
NOTHING = Spent()


class Permits:
    """What the steps of one execution are allowed."""

    def __init__(self, execution: Execution, waits: Waits) -> None:
        self._x = execution
        self._waits = waits

    async def permit(
        self, tool: Tool[..., Any, Any], name: str, number: int, args: dict[str, Any]
    ) -> tuple[str | None, dict[str, Any]]:
        """The grant that a new step uses, if it needs one, and its arguments, perhaps edited by a person."""
        await self.afford(name, number, tool.traits.most)
        if tool.traits.risk is None:
            return None, args
        fold = self._x.journal.fold
        constraints, approvals = fold.working.constraints, self._x.agent.rules.approvals
        found = risk.decide(
            tool.traits.risk, tool.name, approvals=approvals, constraints=constraints, grants=fold.grants
        )
        if isinstance(found, risk.Free):
            return found.grant, args
        return await self._ask(tool, name, number, args, found)

    # Approvals

    async def _ask(
        self, tool: Tool[..., Any, Any], name: str, number: int, args: dict[str, Any], ask: risk.AskPerson
    ) -> tuple[str, dict[str, Any]]:
        occurrence = 1
        while True:
            request = f"{name}/approval#{occurrence}"
            opened = self._approval(tool, request, number, args, ask)
            record = self._x.find(request, b.RequestOpened)
            if record is not None and not self._is_for(record, opened):
                occurrence += 1  # what was shown is not what would be done now
                continue
            decided = await self._waits.request(record, opened)
            answer = decided.answer
            if answer is None:
                raise self._x.blame(self._expired(decided), request)
            if answer.decision != "approved":
                raise self._x.blame(_rejected(tool.name, number, answer), request)
            if decided.expires is None or self._x.kit.now() < decided.expires:
                edited = await self._x.unpack(answer.args)
                return decided.request, args if edited is None else self._checked(tool, edited, decided, request)
            occurrence += 1  # it was given, and not used in its time

    def _is_for(self, record: Record, opened: b.RequestOpened) -> bool:
        """Whether a request shows what is asked for now; one that does not leaves the inbox."""
        assert isinstance(record.opened, b.RequestOpened)
        if record.opened.digest == opened.digest:
            return True
        if record.settled is None and self._x.journal.fold.is_asking(record.opened.request):
            withdrawn = b.WaitEnded(name=record.name, how="withdrawn", request=record.opened.request)
            self._x.journal.add(withdrawn)
        return False

    def _checked(self, tool: Tool[..., Any, Any], edited: Any, decided: Decided, name: str) -> dict[str, Any]:
        """Arguments that a person edited, if the tool takes them."""
        try:
            tool.unbind(edited)
        except (InvalidValue, TypeError, KeyError) as error:
            reason = f"{tool.name} does not take the edited arguments: {error}"
            raise self._x.blame(InvalidAnswer(request=decided.request, reason=reason), name) from error
        found: dict[str, Any] = edited
        return found

    def _approval(
        self, tool: Tool[..., Any, Any], name: str, number: int, args: dict[str, Any], ask: risk.AskPerson
    ) -> b.RequestOpened:
        shown = {"tool": tool.name, "args": args, "risk": tool.traits.risk, "to": list(ask.to)}
        expires = None if ask.expires is None else self._x.kit.now() + ask.expires
        return b.RequestOpened(
            request=self._x.kit.ids.new(),
            name=name,
            kind="approval",
            question=f"May {tool.name} run with these arguments?",
            to=ask.to,
            digest=digest(shown),
            expires=earliest(expires, self._x.deadline),
            escalate=ask.escalate,
            number=number,
            tool=tool.name,
            args=self._x.kit.store.pack(args, inline=1 << 30)[0],
            risk=tool.traits.risk,
        )

    def _expired(self, decided: Decided) -> Expired:
        return Expired(request=decided.request, expired_at=decided.expires or self._x.deadline or 0)

    # Budgets

    async def afford(self, name: str, number: int, most: Spent | None) -> None:
        """Whether an attempt fits into the budget, if it uses up the most; a person may be asked to extend it."""
        occurrence = 1
        while (limits := self._x.journal.fold.working.budget) is not None:
            found = budget.decide(limits, self._spent(number), replace(most or NOTHING, steps=1))
            if isinstance(found, budget.Fits):
                self._flag(found.pressure)
                return
            exceeded = BudgetExceeded(limit=found.limit, allowed=found.allowed, wanted=found.wanted)
            if found.then == "fail":
                raise self._x.blame(exceeded, name)
            if not await self._ask_for_more(f"{name}/budget#{occurrence}", number, exceeded):
                raise self._x.blame(exceeded, f"{name}/budget#{occurrence}")
            occurrence += 1

    def _spent(self, number: int) -> Spent:
        """What was used up before this step: steps by their numbers, since parallel ones may not be in the log yet."""
        fold = self._x.journal.fold
        spent = fold.spent
        lent = [child.budget.most() for child in fold.children if child.budget is not None]
        gone = [*lent, *self._unsettled(number)]
        return replace(
            spent,
            steps=number - 1 + spent.steps - fold.step + sum(each.steps for each in lent),
            tokens=spent.tokens + sum(each.tokens for each in gone),
            cost=spent.cost + sum(each.cost for each in gone),
            wall_us=spent.wall_us + max(self._x.kit.now() - fold.time, 0),
        )

    def _unsettled(self, number: int) -> list[Spent]:
        """What is put aside for other steps under way, and what was used up since the last flush."""
        journal = self._x.journal
        reserved, used = journal.fold.reserved, []
        for body in journal.pending:
            if isinstance(body, b.BudgetReserved):
                reserved[body.number] = Spent(tokens=body.tokens, cost=body.cost)
            elif isinstance(body, b.StepCompleted | b.StepFailed | b.StepUnknown):
                before = reserved.pop(body.number, None)
                used.append(body.spent or (before if isinstance(body, b.StepUnknown) else None) or NOTHING)
        return [*used, *(each for step, each in reserved.items() if step != number)]

    def _flag(self, pressure: tuple[str, ...]) -> None:
        """Say once that a limit is near."""
        if not pressure:
            return
        raised = set(self._x.journal.fold.working.freeze().risk_flags) | self._x.flagged
        for limit in pressure:
            flag = f"budget pressure: {limit}"
            if flag not in raised:
                self._x.flagged.add(flag)
                self._x.journal.add(b.RiskFlagged(flag=flag, detail="80 % of this limit are used up"))
                self._x.flag(flag)

    async def _ask_for_more(self, name: str, number: int, exceeded: BudgetExceeded) -> bool:
        opened = b.RequestOpened(
            request=self._x.kit.ids.new(),
            name=name,
            kind="budget",
            question=f"The budget is used up: {exceeded.limit} = {exceeded.allowed:g}. Extend it?",
            to=self._people(),
            expires=self._x.deadline,
            number=number,
        )
        decided = await self._waits.request(self._x.find(name, b.RequestOpened), opened)
        return decided.answer is not None and decided.answer.decision != "rejected"

    def _people(self) -> tuple[str, ...]:
        approvals = self._x.agent.rules.approvals
        return approvals.to if approvals is not None else ("anyone",)

    # What nobody knows

    def is_settling(self, name: str) -> bool:
        """Whether a person was asked already what came of a step: then it is for them to say."""
        return self._unknown(name) in self._x.history.records

    def _unknown(self, name: str) -> str:
        before = self._x.history.records.get(name)
        return f"{name}/unknown#{1 + (before.resolutions if before is not None else 0)}"

    async def settle_unknown(
        self, tool: Tool[..., Any, Any], name: str, unknown: b.StepUnknown, args: Mapping[str, Any]
    ) -> tuple[Outcome, Any, str]:
        """What a person says came of an attempt: applied (with its result), not applied, or given up."""
        request = self._unknown(name)
        opened = b.RequestOpened(
            request=self._x.kit.ids.new(),
            name=request,
            kind="unknown",
            question=f"Nobody knows whether {tool.name} was applied ({unknown.reason}). What came of it?",
            to=self._people(),
            options=self._x.kit.store.pack(list(OUTCOMES))[0],
            expires=self._x.deadline,
            number=unknown.number,
            tool=tool.name,
            args=self._x.kit.store.pack(dict(args), inline=1 << 30)[0],
            risk=tool.traits.risk,
        )
        decided = await self._waits.request(self._x.find(request, b.RequestOpened), opened)
        if decided.answer is None or decided.answer.decision == "rejected":
            return "gave_up", None, decided.request
        said = await self._x.unpack(decided.answer.answer)
        if isinstance(said, dict) and "applied" in said:
            return "applied", said["applied"], decided.request
        return (said if said in OUTCOMES else "gave_up"), None, decided.request


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
