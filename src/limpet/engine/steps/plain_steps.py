"""Steps in the usual case: new ones that need no approval, budget or fresh data, and completed ones on replay.

A new one goes straight from its name in the log to the call and to the append; a completed one returns its recorded
result. Every other step takes the general path in `steps.py`, which writes the same events.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import UNSET, Raw

from limpet.engine.definitions.call_context import Call
from limpet.engine.definitions.plain_call import BoundArguments, PlainCall
from limpet.engine.definitions.tools import Tool, idempotency_key
from limpet.engine.definitions.traits import Traits
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.step import Latest, Step
from limpet.engine.execution.strands import current_scope, current_strand
from limpet.engine.replay.history import Record
from limpet.engine.steps.attempts import ProgressReports
from limpet.engine.steps.steps import Steps
from limpet.engine.waits.waits import Waits
from limpet.errors import InvalidValue
from limpet.events import Payload
from limpet.events import bodies as b
from limpet.stores.blobs import INLINE

__all__ = ["PlainSteps"]


def _is_completed(record: Record, bound: BoundArguments) -> bool:
    """Return whether a record has a plain result of the same call, made by this run itself.

    Only a person who approves a step can edit its arguments. So a step that was started without an approval, and with
    these arguments, was called with them: no digest is needed.
    """
    opened, settled = record.opened, record.settled
    if type(opened) is not b.StepStarted or type(settled) is not b.StepCompleted or record.shared:
        return False
    args, output = opened.args, settled.output
    if output is None or output.json is UNSET or output.versions or args.versions:
        return False
    is_as_started = opened.grant is None and args.json is not UNSET and bytes(args.json) == bound.encoded
    return is_as_started or opened.asked == bound.digest


class PlainSteps:
    """The short path of the steps of one execution."""

    def __init__(self, execution: Execution, waits: Waits) -> None:
        self._x, self._waits = execution, waits
        is_live = execution.effects == "live" and not execution.is_undoing and not execution.is_dry_run
        self._is_usual = is_live and not execution.kit.store.redaction.is_on
        approvals = execution.agent.rules.approvals
        self._asked_risks = frozenset() if approvals is None else approvals.risks
        self._records, self._considered = execution.history.records, execution.history.considered

    @cached_property
    def general(self) -> Steps:
        """The general path; many runs do not need it."""
        return Steps(self._x, self._waits)

    def find(
        self, tool: Tool[..., Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any] | None:
        """Return the coroutine of the step that the code calls now, after assigning its name and number.

        Returns None, with nothing done, if the step needs the general path.
        """
        x = self._x
        plain = tool.plain_call if self._is_usual and isinstance(tool, Tool) else None
        if plain is None or x.handed_to is not None or x.state.overrides:
            return None
        bound, scope = plain.bind(args, kwargs), current_scope()
        name = scope.peek(tool.step_name)
        if bound is None or name in self._considered:
            return None
        record = self._records.get(name)
        if record is not None and not _is_completed(record, bound):
            return None
        strand = current_strand()
        x.note_call(strand)
        scope.count(tool.step_name, strand)
        if record is None:
            step = Step(tool, name, x.lookup.new_number(), "", bound.encoded)
            x.lookup.note_step(name, step.number)
            return self._run(step, plain, bound)
        assert isinstance(record.opened, b.StepStarted)
        if record.opened.effect != "none":
            x.lookup.reach(name)
        x.return_order.calls.note_made(record.seq)
        x.lookup.note_step(name, record.opened.number)
        return self._recall(tool, bound, plain, record)

    async def _recall(self, tool: Tool[..., Any, Any], bound: BoundArguments, plain: PlainCall, record: Record) -> Any:
        """Return the recorded result of a step."""
        x, settled, end = self._x, record.settled, record.end
        assert isinstance(settled, b.StepCompleted)
        assert settled.output is not None
        assert end is not None
        if not x.gate.is_free:
            await x.gate.wait_until_open()
        if not x.recorder.enter_now(end):
            with x.noting_cancellation(record.name):
                await x.recorder.enter(end)
        try:
            output = plain.load_recorded(settled.output)
        except InvalidValue:
            step = Step(tool, record.name, record.number or 0, "", bound.encoded)
            return await self.general.outcome(step, settled)
        x.history.hand_over(record.name)
        return output

    async def _run(self, step: Step, plain: PlainCall, bound: BoundArguments) -> Any:
        """Record the start, call the tool, record the outcome, and return the result."""
        x, is_effect = self._x, step.tool.traits.effect != "none"
        step.args_digest = bound.digest
        if self._needs_more(step.tool.traits, is_effect=is_effect):
            return await self.general.run(step, None)
        if is_effect:
            step.key = idempotency_key(x.run, step.number, step.tool.name, step.args_digest)
        step.packed, step.attempt = Payload(json=Raw(bound.encoded)), 1
        started = b.StepStarted(
            name=step.name,
            tool=step.tool.name,
            number=step.number,
            attempt=1,
            asked=step.args_digest,
            args=step.packed,
            effect=step.tool.traits.effect,
            key=step.key,
            risk=step.tool.traits.risk,
            item=x.state.working.position,
        )
        x.gate.busy_calls += 1
        try:
            x.journal.note(started)
            if is_effect:
                await x.recorder.flush()
            latest, output = await self._call(step, plain, bound)
            if latest is not None:
                await self.general.flush_failed(latest)
        except asyncio.CancelledError as error:
            x.unhandled.note(step.name, error)
            self.general.note_cancelled(step, started)
            raise
        finally:
            x.gate.end_work()
        if latest is not None:
            return await self.general.finish(step, latest)
        x.history.hand_over(step.name)
        ticket = x.return_order.issue_ticket()
        try:
            await x.recorder.finish(ticket, "effect_returns" if is_effect else "step_returns")
        except asyncio.CancelledError as error:
            x.unhandled.note(step.name, error)
            raise
        return output

    def _needs_more(self, traits: Traits, *, is_effect: bool) -> bool:
        """Return whether something must be checked or asked before a step starts."""
        x, working = self._x, self._x.journal.working
        return (
            not x.gate.is_free
            or x.history.deadline is not None  # as `x.deadline`, since a compensation has no plain steps
            or working.budget is not None
            or (traits.risk is not None and (traits.risk in self._asked_risks or working.constraints is not None))
            or (is_effect and (x.lookup.has_unreached or x.return_order.recorded > 0))
        )

    async def _call(self, step: Step, plain: PlainCall, bound: BoundArguments) -> tuple[Latest, Any]:
        """Call the function, and record the outcome. Returns the result, or an event that the general path goes on
        from.
        """
        x, tool = self._x, step.tool
        reports = ProgressReports(x, step.number, 1)
        step.call = reports.call = call = Call(step.key, 1, sends=step.key, on_change=reports.notify)
        if not tool.is_async:
            call.late = asyncio.get_running_loop().create_future()
        x.gate.running_tools += 1
        try:
            try:
                output = await x.kit.perform(tool, tool.fn, ((), bound.passed), call)
            except Exception as error:  # noqa: BLE001 - every error of a tool is recorded
                return self.general.note_failed(step, 1, call, error), None
            finally:
                reports.close()
            stored = plain.encode(output)
            if stored is None:
                return self.general.note_completed(step, 1, output, call), None
            encoded, is_unchanged = stored
            if len(encoded) > INLINE:
                return self.general.note_result(step, 1, call, step.pack_encoded(x.kit.store, encoded)), None
            completed = b.StepCompleted(
                name=step.name, number=step.number, attempt=1, output=Payload(json=Raw(encoded)), spent=call.total
            )
            x.journal.note(completed)
        finally:
            x.gate.end_tool()
        try:
            return None, (output if is_unchanged else plain.load(encoded))
        except InvalidValue:
            return completed, None
