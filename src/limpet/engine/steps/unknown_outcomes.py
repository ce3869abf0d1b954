"""Resolution of unknown outcomes: by the tool's `verify`, by a person, or by the function itself if it returns late."""

import asyncio
from typing import Any

from limpet.clock import SECOND
from limpet.engine.approvals.approvals import ApprovalGate
from limpet.engine.definitions.call_context import Call
from limpet.engine.definitions.tools import Done
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.failures import failure_of
from limpet.engine.execution.step import Step
from limpet.engine.steps.attempts import within
from limpet.engine.waits.waits import Waits
from limpet.errors import InvalidValue
from limpet.events import bodies as b
from limpet.stores.blobs import Blob

__all__ = ["UnknownOutcomes"]

# Timeout of a `verify` without its own.
VERIFY_TIMEOUT = 60 * SECOND


class UnknownOutcomes:
    """Resolves the unknown outcomes of one execution."""

    def __init__(self, execution: Execution, waits: Waits, approvals: ApprovalGate) -> None:
        self._x = execution
        self._waits = waits
        self._approvals = approvals

    async def resolve(self, step: Step, unknown: b.StepUnknown) -> b.StepResolved:
        """Resolve an unknown outcome: ask `verify`, then a person. An idempotent effect is repeated instead."""
        place = step.place(unknown.attempt)
        asks = self.escalates and unknown.reason in ("error", "timeout")
        if step.tool.traits.effect != "once" and not asks:
            return self._add(b.StepResolved(**place, how="declared", outcome="not_applied"))
        if not self._approvals.is_asked_outcome(step.name):
            verified = await self._verify(step, unknown)
            if verified is not None:
                return verified
        asking = asyncio.ensure_future(self._approvals.settle_unknown(step.tool, step.name, unknown, step.args))
        while await self._returns_late(step, asking):
            late = await self._resolve_late(step, unknown)
            if late is not None:
                asking.cancel()
                await asyncio.wait({asking})
                return late
            await asyncio.sleep(0)  # noqa: TID251 - one loop iteration, in which an answer may arrive
        outcome, result, request = await asking
        output, blobs = step.pack(self._x.kit.store, result) if outcome == "applied" else (None, ())
        body = b.StepResolved(
            **place,
            how="person",
            outcome=outcome,
            output=output,
            failure=unknown.failure,
            request=request,
        )
        self._x.journal.add(body, blobs=blobs)
        return body

    @property
    def escalates(self) -> bool:
        """Whether a person is asked about idempotent effects, too, instead of raising an error."""
        escalate = self._x.agent.rules.escalate
        return escalate is not None and escalate.unknown

    async def _returns_late(self, step: Step, asking: "asyncio.Future[Any]") -> bool:
        """Wait until the function returns on its thread or a person decides. Returns whether the function was first."""
        late = step.call.late if step.call is not None else None
        try:
            await asyncio.wait({asking} if late is None else {asking, late}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            asking.cancel()
            await asyncio.wait({asking})
            raise
        return not asking.done()

    async def _resolve_late(self, step: Step, unknown: b.StepUnknown) -> b.StepResolved | None:
        """Record a late result and withdraw the request in one append. Returns None if it was decided first."""
        assert step.call is not None
        assert step.call.late is not None
        place, blobs = step.place(unknown.attempt), tuple[Blob, ...]()
        try:
            output, blobs = step.pack_output(self._x.kit.store, step.call.late.result())
            body = b.StepResolved(**place, how="late", outcome="applied", output=output)
        except InvalidValue as error:
            body = b.StepResolved(**place, how="late", outcome="applied", failure=failure_of(error))
        name = self._approvals.unknown_name(step.name)
        step.ticket = ticket = self._x.return_order.defer_ticket()
        if await self._waits.withdraw(name, body, blobs=blobs, on_placed=ticket.issue):
            return body
        ticket.cancel()
        return None

    async def _verify(self, step: Step, unknown: b.StepUnknown) -> b.StepResolved | None:
        x, verify = self._x, step.tool.hooks.verify
        if verify is None:
            return None
        place = step.place(unknown.attempt)
        await x.gate.wait_until_open()
        with x.gate.work():
            await x.recorder.flush()
            call = Call(step.key, unknown.attempt)
            try:
                work = x.kit.perform(step.tool, verify, step.bound(), call)
                found = await within(x, work, step.tool.traits.timeout or VERIFY_TIMEOUT)
                if isinstance(found, Done):
                    output, blobs = step.pack_output(x.kit.store, found.result)
                    body = b.StepResolved(**place, how="verify", outcome="applied", output=output)
                    x.journal.add(body, blobs=blobs)
                    return body
            except Exception as error:  # noqa: BLE001 - `verify` cannot tell, so a person is asked
                x.journal.add(b.RiskFlagged(flag=f"verify failed: {step.tool.name}", detail=failure_of(error).message))
                return None
        return self._add(b.StepResolved(**place, how="verify", outcome="not_applied", failure=unknown.failure))

    def _add(self, body: b.StepResolved) -> b.StepResolved:
        self._x.journal.add(body)
        return body
