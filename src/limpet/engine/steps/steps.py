"""Steps: record the intent before the effect, make attempts durable, and return results unchanged.

The last event of a step determines what happens next. If it is `step.started`, the worker died during that attempt.
`run` continues from event to event until the step is settled, so a step whose worker was killed continues like any
other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar

from msgspec.structs import replace

from limpet.clock import SECOND
from limpet.engine.approvals.approvals import ApprovalGate
from limpet.engine.approvals.externals import ExternalReads
from limpet.engine.approvals.freshness import Freshness
from limpet.engine.approvals.refusals import NewStep, recall_late, refuse_late
from limpet.engine.definitions.call_context import Call
from limpet.engine.definitions.tools import StepCommand, Tool, check_tool, idempotency_key
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.failures import failure_of
from limpet.engine.execution.recorder import NOT_SERVED
from limpet.engine.execution.step import Latest, PackedResult, Step
from limpet.engine.replay.history import Record
from limpet.engine.steps.attempts import ProgressReports, TimedOut, within
from limpet.engine.steps.stub_results import StubResults
from limpet.engine.steps.unknown_outcomes import UnknownOutcomes
from limpet.engine.steps.verdict import FailStep, FindOut, TryAgain, judge, may_help
from limpet.engine.waits.waits import Waits
from limpet.errors import (
    ConnectionLost,
    InvalidValue,
    LeaseLost,
    LimpetError,
    NotStubbed,
    OutcomeUnknown,
    OutputUnavailable,
    Stale,
    StepFailed,
    StoreBusy,
    StoreUnavailable,
)
from limpet.events import AnyBody, Failure, canonical
from limpet.events import bodies as b
from limpet.policy.checkpoint import Moment
from limpet.secret import MARK
from limpet.stores import Missed
from limpet.stores.blobs import Blob

__all__ = ["Step", "Steps"]

NO_MODEL = "this fork makes no model calls"
ALLOW_MODEL = "Fork the original run again, with `--model live` (in Python, model='live')."
ANSWER_WITH_RESULT = 'Run `limpet resume` on the failed run, and answer {"applied": RESULT} when it asks again.'
NO_RESULT = Failure(type="", message="no result was given")
WORKER_DIED = Failure(type="", message="the worker died during the call")
# The marker of a secret in encoded arguments.
MARKED = MARK.encode()


Written = TypeVar("Written", bound=bool | Missed)
Note = TypeVar("Note", b.StepFailed, b.StepUnknown, b.StepResolved, b.StepCompleted)


class Steps:
    """All steps of one execution."""

    def __init__(self, execution: Execution, waits: Waits) -> None:
        self._x = execution
        self._waits = waits
        self.reads = ExternalReads(execution, self)
        self._freshness = Freshness(execution, self.reads)
        self.approvals = ApprovalGate(execution, waits, self._freshness)
        self._unknowns = UnknownOutcomes(execution, waits, self.approvals)
        self._stub_results = StubResults(execution)

    def find(
        self, tool: Tool[..., Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str | None = None
    ) -> tuple[Step, Record | None]:
        """Return the step that the code calls now, and its record. This assigns the step's name in the log and its
        number.

        Raises InvalidArgument if the tool's annotations do not accept the arguments. The arguments of a model call are
        not compared with the log, so that instructions can be edited.
        """
        check_tool(tool)
        redaction = self._x.kit.store.redaction
        bound = tool.bind(args, kwargs, redaction)
        encoded = canonical(bound)
        asked = "" if tool.kind == "model" else sha256(encoded).hexdigest()
        name = name or self._x.take_name(tool.step_name)
        record = self._x.find(name, b.StepStarted, asked, tool.args_versions)
        is_live = redaction.is_on or tool.has_secret_default or MARKED in encoded
        live = tool.live(args, kwargs, redaction) if is_live else {}
        if record is None:
            tool.unbind(bound, live)  # before it starts: an invalid argument must not leave an unknown outcome
        number = self.approvals.number_of(name)
        if record is not None and isinstance(record.opened, b.StepStarted):
            number = record.opened.number
        step = Step(tool, name, number or self._x.lookup.new_number(), asked, encoded)
        step.live = live
        self._x.lookup.note_step(name, step.number)
        return step, record

    async def run(self, step: Step, record: Record | None) -> Any:
        """Return the result of the step, recorded or new. Raises StepFailed or a subclass."""
        x = self._x
        await x.gate.wait_until_open()
        if record is not None and record.settled is not None:
            assert record.end is not None
            with x.noting_cancellation(step.name):
                await x.recorder.enter(record.end)
            return await self.outcome(step, record.settled)
        await recall_late(x, step.name)
        return await self.finish(step, await self._last_event(step, record))

    async def finish(self, step: Step, latest: Latest) -> Any:
        """Continue a step from its last event until it is settled, and return its result."""
        x = self._x
        with x.noting_cancellation(step.name):
            settled = await self._settle(step, latest)
            ticket = x.return_order.issue_ticket() if step.ticket is None else step.ticket.take()
            await x.recorder.finish(ticket, _checkpoint_moment(step.tool, settled) if step.tool.is_flushed else None)
        return await self.outcome(step, settled)

    async def _settle(self, step: Step, latest: Latest) -> AnyBody:
        """Continue a step from its last event until it is settled, and return the event that settles it."""
        try:
            while not _is_settled(latest):
                latest = await self._next(step, latest)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                self.note_cancelled(step, latest)
            if step.ticket is not None:
                step.ticket.cancel()
            raise
        assert latest is not None
        self._invalidate(step, latest)
        return latest

    def _invalidate(self, step: Step, latest: Latest) -> None:
        """Mark data from the sources that the step changes as out of date, unless nothing was applied."""
        if isinstance(latest, b.StepFailed):
            return
        for source in step.tool.traits.invalidates:
            self._x.journal.add(b.ExternalInvalidated(source=source, number=step.number))
            self._x.memory.forget_reads(source)

    async def _last_event(self, step: Step, record: Record | None) -> Latest:
        """Return the last event of an unsettled step."""
        x, traits = self._x, step.tool.traits
        if record is None:
            return None
        opened = record.opened
        assert isinstance(opened, b.StepStarted)
        args = step.args
        if traits.effect != "none" or opened.grant is not None:
            # An effect keeps the arguments with which it was started, because a person may have edited them.
            args = step.tool.renew(await x.recorder.unpack(opened.args), opened.args.versions)
        self._prepare(step, args)
        step.key = opened.key or step.key
        latest = record.latest
        assert latest is None or isinstance(
            latest, b.StepStarted | b.StepFailed | b.StepUnknown | b.StepResolved | b.StepCompleted
        )
        if record.cancelled_at:
            await self._waits.until_cancelled(record)
        if not _is_settled(latest):
            return latest
        voided = _restart_point(latest)
        if voided is None:  # the step starts over and needs a new approval, because the old one was used
            step.packed = None
        return voided

    async def _get_permission(self, step: Step) -> None:
        """Get permission for a new step, and the arguments that it may use."""
        if step.tool.traits.fresh:
            await self._freshness.recall(step.name)
        if self._x.is_late and not self.approvals.is_considered(step.name):
            await refuse_late(self._x, _new(step))
        if step.is_check:
            self._prepare(step, step.args)
            return
        permit = await self.approvals.request_start(step.tool, step.name, step.number, step.args)
        if step.tool.traits.effect != "none":
            await self._x.check_new(step.name)
        step.grant, step.last_seen, step.is_budget_checked, step.is_fresh = (
            permit.grant,
            permit.last_seen,
            True,
            permit.is_fresh,
        )
        self._prepare(step, permit.args)

    def _prepare(self, step: Step, args: dict[str, Any]) -> None:
        """Set the arguments that the tool is called with, and the step's idempotency key."""
        used = step.args_digest
        if args is not step.args:
            step.decoded, step.encoded = args, canonical(args)
            used = sha256(step.encoded).hexdigest()
        packed, step.blobs = self._x.kit.store.pack_canonical(step.encoded)
        step.packed = packed.under(step.tool.args_versions)
        if step.tool.traits.effect != "none":
            step.key = idempotency_key(self._x.run, step.number, step.tool.name, used)

    async def _next(self, step: Step, latest: Latest) -> Latest:
        match latest:
            case None:
                if step.packed is None:
                    await self._get_permission(step)
                return await self._attempt(step, 1)
            case b.StepStarted():
                return await self._after_death(step, latest)
            case b.StepFailed(escalated=True):
                return await self._escalate(step, latest)
            case b.StepFailed():
                assert latest.retry_at is not None
                await self._waits.pause(step.name, latest.retry_at)
                return await self._attempt(step, latest.attempt + 1, nothing_left=True)
            case b.StepUnknown():
                return await self._unknowns.resolve(step, latest)
            case b.StepResolved():
                return await self._after_not_applied(step, latest)
            case _:
                raise AssertionError(latest)

    async def _after_death(self, step: Step, started: b.StepStarted) -> Latest:
        """Continue after the worker died: repeat the attempt if that is declared safe, else the outcome is unknown."""
        if started.stubbed:  # nothing was started
            return await self._attempt(step, started.attempt)
        verdict = judge(step.tool.traits, started.attempt, None, self._x.random_fraction())
        unknown = b.StepUnknown(**step.place(started.attempt), reason="died")
        if isinstance(verdict, FindOut):
            return self._add(unknown)
        if step.tool.traits.effect != "none" or step.tool.traits.max_spend is not None:
            self._add(unknown)  # `step.unknown` charges the budget for the attempt that died.
        return await self._attempt(step, started.attempt)

    async def _after_not_applied(self, step: Step, resolved: b.StepResolved) -> Latest:
        """Continue after it turned out that nothing was applied.

        After a death, the attempt is repeated. After an error, `retry` decides whether another attempt follows.
        """
        retry, failure = step.tool.traits.retry, resolved.failure
        if failure is None:
            return await self._attempt(step, resolved.attempt, nothing_left=True)
        if retry and resolved.attempt < retry.attempts and may_help(retry, failure):
            return await self._attempt(step, resolved.attempt + 1, nothing_left=True)
        return self._add(b.StepFailed(**step.place(resolved.attempt), failure=failure))

    async def _escalate(self, step: Step, failed: b.StepFailed) -> Latest:
        """Ask a person whether to retry the step, fail it, or use a given result."""
        place = step.place(failed.attempt)
        with self._x.gate.work():
            await self._x.recorder.flush()
        decision = await self.approvals.escalate(step.tool, step.name, failed, step.args)
        if decision.what == "retry":
            return await self._attempt(step, failed.attempt + 1)
        if decision.what == "fail":
            return self._add(b.StepFailed(**place, failure=failed.failure))
        output, blobs = step.pack(self._x.kit.store, decision.result)
        body = b.StepResolved(**place, how="person", outcome="applied", output=output, request=decision.request)
        self._x.journal.add(body, blobs=blobs)
        return body

    def _add(self, body: Note) -> Note:
        self._x.journal.add(body)
        return body

    # Attempts

    async def _attempt(self, step: Step, attempt: int, *, nothing_left: bool = False) -> Latest:
        """Make one attempt. `nothing_left` means that no earlier attempt was applied."""
        x = self._x
        if x.is_late:
            await refuse_late(x, _new(step))
        if step.tool.traits.max_spend is not None and not step.is_budget_checked:
            await self.approvals.check_budget(_new(step), step.tool.traits.max_spend)
        is_fresh = step.is_fresh
        step.is_budget_checked = step.is_fresh = False
        await x.gate.wait_until_open()
        if (
            not is_fresh
            and not x.is_stubbed(step.tool)
            and (stale := await self._stale(step, attempt, nothing_left)) is not None
        ):
            return stale
        with x.gate.work():
            if x.is_stubbed(step.tool):
                return await self._stub(step, attempt)
            if step.tool.traits.effect == "transaction" and not x.kit.perform.is_stubbed(step.tool):
                return await self._transact(step, attempt)
            if step.tool.command is not None and not x.kit.perform.is_stubbed(step.tool):
                return await self._send_command(step, attempt, step.tool.command)
            if not await self._record_start(step, attempt):
                await x.recorder.flush()
                step.packed = None  # needs a new approval
                return None
            body = await self._call_tool(step, attempt)
            await self.flush_failed(body)
            return body

    async def flush_failed(self, latest: AnyBody) -> None:
        """Flush a failed attempt before the pause until the next one, if the checkpoint strategy says so."""
        recorder = self._x.recorder
        if isinstance(latest, b.StepFailed) and not latest.is_final and recorder.must_flush("step_returns"):
            await recorder.flush()

    async def _stale(self, step: Step, attempt: int, nothing_left: bool) -> Latest:
        """Return None if the data of the tool's sources is fresh. Otherwise refuse the attempt.

        Raises Stale if the step never started. Fails the step if nothing was applied, else gives up with an unknown
        outcome.
        """
        x, traits = self._x, step.tool.traits
        source = self._freshness.stale(step.tool)
        if source is None:
            return None
        record = x.history.records.get(step.name)
        if record is None:
            await self._freshness.refuse(_new(step), source)
        place, failure = step.place(attempt), failure_of(Stale(tool=step.tool.name, source=source))
        if traits.effect == "none" or nothing_left or isinstance(record.latest, b.StepFailed):
            return self._add(b.StepFailed(**place, failure=failure))
        if not isinstance(record.latest, b.StepUnknown):
            x.journal.add(b.StepUnknown(**place, reason="died"))
        return self._add(b.StepResolved(**place, how="declared", outcome="gave_up", failure=failure))

    async def _stub(self, step: Step, attempt: int) -> Latest:
        """Record a stubbed result instead of calling the tool, in a fork without live effects."""
        x, started = self._x, replace(self._started(step, attempt), stubbed=True)
        if step.tool.kind == "model":
            await x.gate.halt(NotStubbed(tool=step.tool.name, number=step.number, reason=NO_MODEL, fix=ALLOW_MODEL))
        try:
            result, step.made_up = await self._stub_results.result(step)
            started = replace(started, made_up=step.made_up)
            packed, blobs = step.pack(x.kit.store, result)
        except NotStubbed as error:
            failed = b.StepFailed(**step.place(attempt), failure=failure_of(error))
            x.journal.add(started, failed, blobs=step.blobs)
            return failed
        body = b.StepCompleted(**step.place(attempt), output=packed)
        x.journal.add(started, body, blobs=(*step.blobs, *blobs))
        return body

    async def _record_start(self, step: Step, attempt: int) -> bool:
        """Record the start of an attempt. Returns False if the standing approval that it uses may have been revoked."""
        x, opening = self._x, self._start_events(step, attempt)
        last_seen, step.last_seen = step.last_seen, None
        if last_seen is not None:
            return await self._record_start_if_current(step, attempt, opening, last_seen)
        x.journal.add(*opening, blobs=step.blobs)
        step.attempt, step.grant, step.call = attempt, None, None  # an approval is used once
        if step.tool.traits.effect != "none":
            await x.recorder.flush()
        return True

    async def _record_start_if_current(
        self, step: Step, attempt: int, opening: Sequence[AnyBody], last_seen: int
    ) -> bool:
        """Record the start of an attempt unless other events arrived first."""
        journal = self._x.journal
        return await self._write_start(
            step, attempt, lambda: journal.append_if_current(*opening, last_seen=last_seen, blobs=step.blobs)
        )

    async def _write_start(self, step: Step, attempt: int, write: Callable[[], Awaitable[Written]]) -> Written:
        """Write the start of an attempt, and return whether it was written: True, or the reason why not.

        If the code cancels the step meanwhile, its outcome is recorded as unknown.
        """
        x, is_left = self._x, False

        async def write_all() -> Written:
            with x.gate.work():
                done = await x.recorder.write_until_stored(write)
                if done is True and is_left and not x.gate.is_closed:
                    x.journal.add(b.StepUnknown(**step.place(attempt), reason="cancelled"))
            return done

        writing = asyncio.ensure_future(write_all())
        try:
            await asyncio.shield(writing)
        finally:
            is_left = not writing.done()
            # The code may also cancel the step between the write and this line: then `note_cancelled` records that.
            if writing.done() and not writing.cancelled() and not writing.exception() and writing.result() is True:
                step.attempt, step.grant, step.call = attempt, None, None
        return writing.result()

    async def _call_tool(
        self, step: Step, attempt: int
    ) -> b.StepCompleted | b.StepFailed | b.StepUnknown | b.StepResolved:
        """Call the function, and record the outcome."""
        x, reports = self._x, ProgressReports(self._x, step.number, attempt)
        redaction = x.kit.store.redaction
        call = Call(step.key, attempt, sends=step.key, on_change=reports.notify, redaction=redaction)
        step.call = reports.call = call
        if not step.tool.is_async:
            call.late = asyncio.get_running_loop().create_future()
        with x.gate.running_tool():
            try:
                output = await self._perform(step, call)
            except Exception as error:  # noqa: BLE001 - every error of a tool is recorded
                if not (step.tool.is_for_store and isinstance(error, NOT_SERVED)):
                    return self.note_failed(step, attempt, call, error)
                refused = error
            else:
                return self.note_completed(step, attempt, output, call)
            finally:
                reports.close()
        return await x.gate.halt(refused)

    def _start_events(self, step: Step, attempt: int) -> Sequence[AnyBody]:
        """Return the events that start an attempt. If the budget is limited, they reserve what the attempt may use."""
        most, started = step.tool.traits.max_spend, self._started(step, attempt)
        limits = self._x.journal.working.budget
        if most is None or limits is None or not (limits.max_llm_tokens or limits.max_cost):
            return (started,)
        return started, b.BudgetReserved(number=step.number, tokens=most.tokens, cost=most.cost)

    def _started(self, step: Step, attempt: int) -> b.StepStarted:
        traits = step.tool.traits
        assert step.packed is not None
        timeout_at = None if traits.timeout is None else self._x.kit.now() + traits.timeout
        return b.StepStarted(
            name=step.name,
            tool=step.tool.name,
            number=step.number,
            attempt=attempt,
            asked=step.args_digest,
            args=step.packed,
            effect=traits.effect,
            key=step.key,
            risk=traits.risk,
            grant=step.grant,
            timeout_at=timeout_at,
            kind=step.tool.kind,
            granted_by="" if step.grant is None else self._granted_by(step.grant),
            item=self._x.state.working.position,
        )

    def _granted_by(self, grant: str) -> str:
        return next((each.by for each in self._x.journal.fold.grants if each.grant == grant), "")

    async def _perform(self, step: Step, call: Call) -> Any:
        """Call the function, within its timeout and the run's deadline."""
        x = self._x
        work = x.kit.perform(step.tool, step.tool.fn, step.bound(), call)
        timeout = step.tool.traits.timeout
        return await work if timeout is None and x.deadline is None else await within(x, work, timeout)

    def note_completed(self, step: Step, attempt: int, output: Any, call: Call) -> b.StepCompleted:
        """Record what an attempt returned."""
        try:
            result = step.pack_output(self._x.kit.store, output)
        except InvalidValue as error:
            unavailable = _result_failure(step, error)
            return self._add(b.StepCompleted(**step.place(attempt), unavailable=unavailable, spent=call.total))
        return self.note_result(step, attempt, call, result)

    def note_result(self, step: Step, attempt: int, call: Call, result: PackedResult) -> b.StepCompleted:
        """Record the result of an attempt."""
        packed, blobs = result
        body = b.StepCompleted(**step.place(attempt), output=packed, spent=call.total)
        self._x.journal.add(body, blobs=blobs)
        return body

    def note_failed(
        self, step: Step, attempt: int, call: Call, error: Exception
    ) -> b.StepFailed | b.StepUnknown | b.StepResolved:
        """Record the error of an attempt, and what follows from it."""
        x, place = self._x, step.place(attempt)
        timed_out = isinstance(error, TimedOut)
        failure = failure_of(error)
        self._keep_partial(step, attempt, call)
        unknown = b.StepUnknown(**place, reason="timeout" if timed_out else "error", failure=failure, spent=call.total)
        match judge(step.tool.traits, attempt, error, x.random_fraction()):
            case TryAgain(after):
                body = b.StepFailed(**place, failure=failure, retry_at=x.kit.now() + after, spent=call.total)
            case FailStep(unknown=False):
                escalate = x.agent.rules.escalate
                asks = escalate is not None and escalate.asks_after(failure, attempt)
                body = b.StepFailed(**place, failure=failure, escalated=asks, spent=call.total)
            case FailStep() if self._unknowns.escalates:
                return self._add(unknown)
            case FailStep():
                x.journal.add(unknown)
                return self._add(b.StepResolved(**place, how="declared", outcome="gave_up", failure=failure))
            case FindOut():
                return self._add(unknown)
        return self._add(body)

    def _keep_partial(self, step: Step, attempt: int, call: Call) -> None:
        if call.partial_value is not None:
            self._x.journal.add(
                b.StepProgressed(number=step.number, attempt=attempt, note=call.note, partial=call.partial_value)
            )

    def note_cancelled(self, step: Step, latest: Latest) -> None:
        """Record that the code cancelled the step.

        On replay the step does not start again, but waits for the same cancellation.
        """
        x = self._x
        if x.gate.is_closed or x.gate.stopped is not None or (step.attempt == 0 and latest is None):
            return
        attempt = step.attempt or (latest.attempt if latest is not None else 1)
        spent = None
        if step.call is not None:
            self._keep_partial(step, attempt, step.call)
            spent = step.call.total
        x.journal.add(b.StepUnknown(**step.place(attempt), reason="cancelled", spent=spent))

    async def _transact(self, step: Step, attempt: int) -> Latest:
        """Commit the tool's writes and the step's events together, so the outcome is never unknown."""
        x = self._x
        call = Call(step.key, attempt, sends=step.key, redaction=x.kit.store.redaction)
        done: list[b.StepCompleted] = []

        def work(connection: Any) -> tuple[Sequence[AnyBody], Sequence[Blob]]:
            call.transaction = connection
            output = x.kit.perform.call_inline(step.tool, step.bound(), call)
            packed, blobs = step.pack_output(x.kit.store, output)
            completed = b.StepCompleted(**step.place(attempt), output=packed, spent=call.total)
            done[:] = [completed]
            return (self._started(step, attempt), completed), (*step.blobs, *blobs)

        last_seen, step.last_seen = step.last_seen, None
        step.ticket = ticket = x.return_order.defer_ticket()
        while True:
            try:
                await x.journal.transact(work, last_seen=last_seen, on_placed=ticket.issue)
                return done[0]
            except (ConnectionLost, StoreBusy):
                await x.kit.clock.sleep(SECOND)
                await x.recorder.write_until_stored(x.journal.refresh)
                record = x.history.records.get(step.name)
                if record is not None and isinstance(record.settled, b.StepCompleted):
                    return record.settled
                if last_seen is not None and last_seen < x.journal.last_seen:
                    step.packed = None  # a standing approval may have been revoked
                    ticket.cancel()
                    return None
            except (LeaseLost, StoreUnavailable) as error:
                await x.gate.halt(error)
            except Exception as error:  # noqa: BLE001 - every error of a tool is recorded
                ticket.cancel()
                x.journal.add(self._started(step, attempt), blobs=step.blobs)
                step.grant = None  # the approval was used
                return self.note_failed(step, attempt, call, error)

    async def _send_command(self, step: Step, attempt: int, command: StepCommand) -> Latest:
        """Record the start of the step and send its command in one append. A repeated attempt sends nothing new."""
        x = self._x
        call = Call(step.key, attempt, redaction=x.kit.store.redaction)
        last_seen, step.last_seen = step.last_seen, None
        started = self._started(step, attempt)
        try:
            leg = await x.recorder.ask_store(lambda: command.prepare(step.args, step.key, step.number))
            done = await self._write_start(
                step,
                attempt,
                lambda: x.journal.append_with_command(started, leg=leg, last_seen=last_seen, blobs=step.blobs),
            )
            if isinstance(done, Missed):
                raise await x.recorder.ask_store(lambda: command.refusal(leg, done))
        except LimpetError as error:
            x.journal.add(started, blobs=step.blobs)
            step.grant = None  # the approval was used
            return self.note_failed(step, attempt, call, error)
        if done is not True:
            step.packed = None  # a standing approval may have been revoked
            return None
        return self.note_completed(step, attempt, None, call)

    # Results

    async def outcome(self, step: Step, settled: AnyBody) -> Any:
        """Return the result of a settled step, or raise its error."""
        match settled:
            case b.StepResolved(outcome="applied", output=None):
                raise self._error(
                    OutputUnavailable, step, settled.attempt, settled.failure or NO_RESULT, fix=ANSWER_WITH_RESULT
                )
            case b.StepCompleted(unavailable=None) | b.StepResolved(outcome="applied"):
                assert isinstance(settled, b.StepCompleted | b.StepResolved)
                return await self._output(step, settled)
            case b.StepCompleted():
                assert settled.unavailable is not None
                raise self._error(OutputUnavailable, step, settled.attempt, settled.unavailable)
            case b.StepResolved():
                raise self._error(OutcomeUnknown, step, settled.attempt, settled.failure or WORKER_DIED)
            case b.StepFailed():
                raise self._error(StepFailed, step, settled.attempt, settled.failure)
            case _:
                raise AssertionError(settled)

    async def _output(self, step: Step, settled: b.StepCompleted | b.StepResolved) -> Any:
        """Return the recorded result. Raises OutputUnavailable if it does not match the tool's type."""
        versions = settled.output.versions if settled.output is not None else {}
        output = await self._x.recorder.unpack(settled.output if step.result is None else step.result)
        try:
            return step.tool.load_result(output, versions)
        except InvalidValue as error:
            failure, fix = _result_failure(step, error), ""
            if isinstance(settled, b.StepResolved):
                fix = ANSWER_WITH_RESULT
                if output is None:  # a person answered without a result
                    failure = replace(failure, message=NO_RESULT.message)
            raise self._error(OutputUnavailable, step, settled.attempt, failure, fix=fix) from error

    def _error(self, kind: type[StepFailed], step: Step, attempts: int, failure: Failure, **more: str) -> StepFailed:
        error = kind(
            tool=step.tool.name,
            number=step.number,
            attempts=attempts,
            error_type=failure.type,
            message=failure.message,
            error_types=failure.mro,
            **more,
        )
        if failure.traceback:
            error.add_note(failure.traceback.rstrip())  # not as `__cause__`, which a replay could not restore
        return self._x.attribute_error(error, step.name)


def _result_failure(step: Step, error: InvalidValue) -> Failure:
    """Return the failure of a result that cannot be stored, or does not have the tool's type."""
    text = f"{error.at('result')}; {step.tool.name} is annotated to return {step.tool.returns}"
    return replace(failure_of(error), message=text)


def _new(step: Step) -> NewStep:
    return NewStep(step.tool.name, step.name, step.number, step.args)


def _checkpoint_moment(tool: Tool[..., Any, Any], settled: AnyBody) -> Moment:
    """Return the checkpoint moment of a step that returns.

    The reply of a model is always flushed before the code continues, because it was paid for; a result in a blob, so
    that large results do not gather in memory.
    """
    if tool.kind == "model":
        return "model_returns"
    if isinstance(settled, b.StepCompleted) and settled.output is not None and not settled.output.is_inline:
        return "blob_returns"
    return "step_returns" if tool.traits.effect == "none" else "effect_returns"


def _is_settled(latest: AnyBody | None) -> bool:
    match latest:
        case b.StepCompleted():
            return True
        case b.StepFailed():
            return latest.is_final
        case b.StepResolved():
            return latest.outcome != "not_applied"
        case _:
            return False


def _restart_point(latest: AnyBody | None) -> Latest:
    """Return where a step restarts after a resume undid its failure.

    StepUnknown if the outcome is still unknown, None to start over.
    """
    if isinstance(latest, b.StepResolved):
        return b.StepUnknown(
            name=latest.name, number=latest.number, attempt=latest.attempt, reason="error", failure=latest.failure
        )
    return None
