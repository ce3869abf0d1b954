"""Compensation: undo a run's effects in reverse order, once each, when the run fails or is cancelled.

The log determines what is left to undo, so any worker can continue a compensation.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from limpet.engine.definitions.call_context import Call
from limpet.engine.definitions.tools import Tool, find_tool
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.failures import failure_of, was
from limpet.engine.steps.attempts import within
from limpet.engine.steps.verdict import LEAVES_NOTHING, NOTHING_APPLIED, may_help
from limpet.engine.waits.waits import Waits
from limpet.events import Failure
from limpet.events import bodies as b
from limpet.journal import load_log_view
from limpet.policy.retry import Again, Attempt, Retry, decide
from limpet.state.log_view import AttemptView, StepView
from limpet.stores import Store

__all__ = ["Compensation", "effects_to_undo"]

PATIENCE = Retry(3)


async def effects_to_undo(store: Store, run: str) -> list[StepView]:
    """Return the effects of a run that may have been applied and that have a compensation or are irreversible.

    The newest comes first; effects that were already undone are included. The list is empty if none of them has a
    compensation.
    """
    steps = (await load_log_view(store, run)).steps
    applied = [step for _, step in sorted(steps.items(), reverse=True) if _may_be_applied(step)]
    found = [step for step in applied if _tool(step) is not None]
    return found if any(_hook(step) is not None for step in found) else []


def _may_be_applied(step: StepView) -> bool:
    """Return whether an effect was applied, or may have been. A partial value counts as applied."""
    if step.effect == "none" or step.stubbed or step.shared:  # a fork undoes only its own steps
        return False
    return step.result is not None or step.partial is not None or any(map(partial(_applied, step), _in_question(step)))


def _in_question(step: StepView) -> Sequence[AttemptView]:
    """Return the attempts since it was last found out that nothing had been applied."""
    known = [place for place, attempt in enumerate(step.attempts) if attempt.outcome == "not_applied"]
    return step.attempts[known[-1] + 1 :] if known else step.attempts


def _applied(step: StepView, attempt: AttemptView) -> bool:
    """Return whether an attempt was applied, or may have been: its error may mean that it was not."""
    return attempt.status != "failed" or attempt.error is None or not _means_not_applied(step, attempt.error)


def _is_done(step: StepView) -> bool:
    return step.compensation is not None and step.compensation.status in ("completed", "skipped")


def _tool(step: StepView) -> Tool[..., Any, Any] | None:
    tool = find_tool(step.tool)
    return tool if tool is not None and (tool.hooks.compensate is not None or tool.traits.irreversible) else None


def _hook(step: StepView) -> Any:
    tool = _tool(step)
    return tool.hooks.compensate if tool is not None else None


def _means_not_applied(step: StepView, failure: Failure) -> bool:
    """Return whether an error means that nothing was applied."""
    tool = find_tool(step.tool)
    kinds = (*NOTHING_APPLIED, *(tool.traits.not_applied if tool is not None else ()))
    return step.effect in LEAVES_NOTHING or any(was(failure, kind) for kind in kinds)


class Compensation:
    """The compensation of one run."""

    def __init__(self, execution: Execution, waits: Waits) -> None:
        self._x = execution
        self._waits = waits
        self._because: Failure | None = None

    async def run(self, steps: list[StepView], because: Failure | None) -> None:
        """Undo the steps in the given order.

        The first event that is written also stores `because`, the failure that started the compensation.
        """
        self._because = None if self._x.history.is_undoing else because
        for step in steps:
            tool = _tool(step)
            if _is_done(step) or tool is None:
                continue
            number = step.number
            if tool.hooks.compensate is None:
                skipped = b.CompensationSkipped(number=number, reason="irreversible", because=self._first())
                self._x.journal.add(skipped)
            else:
                await self._undo(step, tool)

    def _first(self) -> Failure | None:
        because, self._because = self._because, None
        return because

    async def _undo(self, step: StepView, tool: Tool[..., Any, Any]) -> None:
        before = step.compensation
        x, number, attempt = self._x, step.number, 1 if before is None else max(before.attempts, 1)
        failure = None if before is None else before.error  # of an attempt whose follow-up is not recorded yet
        retry_at = None if before is None else before.retry_at
        if x.effects == "ask" and not await self._may_undo(tool, step):
            reason = "skipped by a person"
            x.journal.add(b.CompensationSkipped(number=number, reason=reason, because=self._first()))
            return
        while True:
            if failure is None:
                await x.gate.wait_until_open()
                with x.gate.work():
                    failed = await self._attempt(step, tool, attempt)
                if failed is None:
                    return
                failure, retry_at = failed.failure, failed.retry_at
            if retry_at is not None:
                await self._waits.pause(f"undo/{number}", retry_at)
            elif not await self._should_retry(tool, number, attempt, failure):
                x.journal.add(b.CompensationSkipped(number=number, reason="skipped by a person"))
                return
            attempt, failure = attempt + 1, None

    async def _attempt(self, step: StepView, tool: Tool[..., Any, Any], attempt: int) -> b.CompensationFailed | None:
        x, number = self._x, step.number
        key = f"{step.key}:undo"
        await x.recorder.append(b.CompensationStarted(number=number, attempt=attempt, key=key, because=self._first()))
        call = Call(key, attempt, sends=key, undoes=step.key)
        try:
            output = step.result or step.partial
            result = None if output is None else tool.load_result(await x.recorder.unpack(output), output.versions)
            stored = step.args
            args, named = tool.unbind(tool.renew(await x.recorder.unpack(stored), stored.versions))
            assert tool.hooks.compensate is not None
            work = x.kit.perform(tool, tool.hooks.compensate, ((result, *args), named), call)
            await (work if tool.traits.timeout is None else within(x, work, tool.traits.timeout))
        except Exception as error:  # noqa: BLE001 - every error is recorded
            failure = failure_of(error)
            retry_at = self._retry_at(tool, attempt, failure)
            failed = b.CompensationFailed(number=number, attempt=attempt, failure=failure, retry_at=retry_at)
            await x.recorder.append(failed)
            return failed
        await x.recorder.append(b.CompensationCompleted(number=number, attempt=attempt))
        return None

    def _retry_at(self, tool: Tool[..., Any, Any], attempt: int, failure: Failure) -> int | None:
        """Return when the next attempt is due; None if a person decides."""
        retry = tool.traits.retry or PATIENCE
        failed = Attempt(number=attempt, error=Exception(), permanent=not may_help(retry, failure))
        again = decide(retry, failed, self._x.random_fraction())
        return self._x.kit.now() + again.after if isinstance(again, Again) else None

    async def _may_undo(self, tool: Tool[..., Any, Any], step: StepView) -> bool:
        """Ask whether to undo a step, in a fork with effects="ask". A started compensation continues without asking."""
        number = step.number
        question = f"Undo {tool.name} (step {number})?"
        return step.compensation is not None or await self._ask(
            tool, number, f"undo/{number}/approval#1", question, ("undo", "skip")
        )

    async def _should_retry(self, tool: Tool[..., Any, Any], number: int, attempt: int, failure: Failure) -> bool:
        """Ask whether to retry a failed compensation."""
        question = f"Undoing {tool.name} (step {number}) failed: {failure.message.removesuffix('.')}. Retry or skip?"
        return await self._ask(tool, number, f"undo/{number}/request#{attempt}", question, ("retry", "skip"))

    async def _ask(
        self, tool: Tool[..., Any, Any], number: int, name: str, question: str, choices: tuple[str, str]
    ) -> bool:
        """Return whether a person approves, or chooses the first option."""
        x, approvals = self._x, self._x.agent.rules.approvals
        opened = b.RequestOpened(
            request=x.kit.ids.new(),
            name=name,
            kind="compensation",
            question=question,
            to=approvals.to if approvals is not None else ("anyone",),
            options=x.recorder.shown(list(choices)),
            number=number,
            tool=tool.name,
        )
        decided = await self._waits.request(x.find(name, b.RequestOpened), opened)
        if decided.answer is None or decided.answer.decision == "rejected":
            return False
        return decided.answer.decision == "approved" or await x.recorder.unpack(decided.answer.answer) == choices[0]
