"""Drives one claimed run in one worker: call its function, supervise it, and record how it ended.

The function runs in its own task. Beside it, one loop ends waits, parks the run when it only waits, and stops it on a
cancel, a shutdown or an error. In every case, running effects finish first.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from limpet.clock import SECOND
from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.call_context import enter_agent
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.failures import failure_of, reason_of, was
from limpet.engine.execution.kit import Kit
from limpet.engine.execution.principal import sent_by_run
from limpet.engine.execution.run_log import RunLog
from limpet.engine.execution.strands import set_scope
from limpet.engine.execution.user_code import wait_within
from limpet.engine.replay.learned import Learned
from limpet.engine.replay.return_order import QUIET
from limpet.engine.replay.scopes import Scope
from limpet.engine.run.blocking import run_blocking
from limpet.engine.run.conversation import USER, RunConversation
from limpet.engine.run.run import Run
from limpet.engine.steps.compensation import Compensation, effects_to_undo
from limpet.engine.waits.notifications import run_notices
from limpet.engine.waits.waits import Waits
from limpet.errors import (
    ConnectionLost,
    ContractError,
    DamagedEvent,
    DeadlineExceeded,
    Divergence,
    LeaseLost,
    LimpetError,
    NewerVersion,
    NotFound,
    NotStubbed,
    Retryable,
    StaleServer,
    StoreBusy,
    StoreUnavailable,
    WrongState,
)
from limpet.events import Failure, Wait
from limpet.events import bodies as b
from limpet.journal import Journal
from limpet.policy.quarantine import SUSPECT, is_poison
from limpet.state import ENDED
from limpet.state.fold import PAUSED, QUARANTINED
from limpet.stores import Claimed, Leg, SendCommands
from limpet.stores.api.logs import LogPosition
from limpet.stores.blobs import INLINE, MESSAGE_INLINE, Blob

__all__ = ["RunDriver"]

# Time that cancelled code has to end, in microseconds.
CANCEL_TIMEOUT = 5 * SECOND
StopReason = Literal["done", "parked", "cancel", "drain", "stopped"]
Outcome = Literal["completed", "failed", "cancelled", "rejected", "expired"]
Ended = b.RunCompleted | b.RunFailed | b.RunCancelled


class RunDriver:
    """One claimed run, driven until it parks, ends, is released or is lost."""

    def __init__(self, kit: Kit, claimed: Claimed, agent: Agent[Any, Any]) -> None:
        self._kit, self._claimed, self._agent = kit, claimed, agent
        self.run, self.agent = claimed.row.id, agent.name
        self.fence = claimed.row.fence
        self.log = RunLog(self.run, agent.name, claimed.row.agent_version)
        self.wake_at: int | None = None
        """When a parked run is due again, in microseconds of the store's clock."""
        self._learned = Learned()
        self._changed = asyncio.Event()
        self._draining = False
        self._journal: Journal | None = None
        self._x: Execution | None = None
        self._waits: Waits | None = None
        self._task: asyncio.Task[Any] | None = None
        self._loaded_input: tuple[Any] | None = None
        self._flushing: asyncio.Task[None] | None = None
        """A flush that the worker's sweep started."""
        self._silent_at, self._silent_since = 0, kit.clock.ticks()
        """The last event that the listener has seen in `known_seq`, and when it first saw that one."""

    # Called by the worker

    def known_seq(self) -> int | None:
        """Return the sequence of the last known event if the driver needs notifications of later ones, else None.

        It needs them while the code waits, or has not appended for a while: each append shows new commands.
        """
        x, seq, now = self._x, self.seq, self._kit.clock.ticks()
        if seq != self._silent_at:
            self._silent_at, self._silent_since = seq, now
        is_silent = now >= self._silent_since + self._kit.silent_after
        return seq if x is not None and (x.gate.waiting or is_silent) else None

    @property
    def waiting_task(self) -> "asyncio.Task[Any] | None":
        """The task of the run's code, if that only waits now; otherwise None."""
        only_waits = self._x is not None and self._waits is not None and self._waits.open and self._x.gate.is_idle
        return self._task if only_waits else None

    @property
    def is_suspect(self) -> bool:
        """Whether the run may have killed its workers: it has settled no step since they died."""
        deaths = self._claimed.row.deaths if self._journal is None else self._journal.fold.deaths
        return deaths >= SUSPECT

    @property
    def end_place(self) -> LogPosition | None:
        """Position of the log's last event, if the run has ended; otherwise None."""
        journal = self._journal
        if journal is None or journal.fold.status not in ENDED:
            return None
        return LogPosition(journal.head.seq, self.fence, journal.fold.status)

    @property
    def matters_to_others(self) -> bool:
        """Whether other runs may wait for this one to end: its caller, or those that share its exclusive slot."""
        row = self._claimed.row
        return row.parent is not None or row.exclusive is not None

    @property
    def seq(self) -> int:
        """Sequence of the last event that the driver knows."""
        return self._journal.head.seq if self._journal is not None else 0

    async def catch_up(self, seq: int, fence: int) -> None:
        """Read new events of the log, or stop if the run has another fence."""
        if self._journal is None or self._x is None:
            return
        if fence != self.fence:
            self._x.gate.stop(LeaseLost(run=self.run, fence=self.fence, current=fence))
            return
        if seq > self._journal.head.seq:
            try:
                await self._journal.refresh()
            except (ConnectionLost, StoreBusy):
                return  # the next notification repeats this
            except LimpetError as error:
                self._x.gate.stop(error)
        self._changed.set()

    def lose_lease(self) -> None:
        """Stop because another worker has claimed the run."""
        if self._x is not None:
            self._x.gate.stop(LeaseLost(run=self.run, fence=self.fence, current=self.fence + 1))

    def drain(self) -> None:
        """Release the run as soon as running effects have finished."""
        self._draining = True
        self._changed.set()

    def kill(self) -> list["asyncio.Task[Any]"]:
        """Close the run as in a killed process, and return the tasks that are still to end."""
        kept = () if self._x is None else self._x.gate.kept
        if self._x is not None:
            self._x.close("process killed")
        return [task for task in (self._task, self._flushing, *kept) if task is not None]

    def flush_overdue(self, last: int, now: int) -> None:
        """Start to flush events that have waited for long, so that other processes see what the run does now.

        The worker calls this in each sweep, with the monotonic times of the last one and of this one. A run that is
        held is about to park, end or be released, and flushes its events then.
        """
        x = self._x
        if x is not None and x.gate.is_open and self._flushing is None and x.journal.sweep(last, now):
            self._flushing = asyncio.create_task(self._flush_now(x), name=f"limpet:{self.run}:flush")

    async def _flush_now(self, x: Execution) -> None:
        try:
            await x.journal.flush()
        except (ConnectionLost, StoreBusy):
            await self._kit.clock.sleep(SECOND)  # then the next sweep repeats it
        except LimpetError as error:
            x.gate.stop(error)
        finally:
            self._flushing = None

    def stop_flushing(self) -> None:
        """Cancel a flush that has nothing left to write, because the run has left this worker."""
        if self._flushing is not None:
            self._flushing.cancel()

    # Driving

    async def drive(self) -> None:
        """Drive the run until it leaves this worker."""
        self._journal = journal = await Journal.open(
            self._kit.store, self._claimed, self._kit.now, learner=self._learned
        )
        journal.on_heard = self._changed.set
        self._x = x = self._execution()
        self._log_claim(journal.fold.step)
        undoing = self._learned.history.undoing
        if await self._is_poison(journal):
            await self._quarantine(journal)
            return
        try:
            refused = await self._refusal(journal.fold.cancel is not None, undoing is not None)
        except ContractError as error:
            await self._reject(error)
            return
        if refused is not None:
            await self._park_for_operator(*refused)
        elif journal.fold.cancel is not None:
            await self._cancel()
        elif undoing is not None:
            await self._resume_failing(undoing.because or Failure(type="limpet.Suspended"))
        else:
            await self._run_agent(x)

    def _log_claim(self, step: int) -> None:
        if self._claimed.died:
            self.log.info("taken over by worker %s: the worker before died", self._kit.worker, step=step)
        else:
            self.log.info(f"{'claimed' if self.fence == 1 else 'resumed'} by worker %s", self._kit.worker, step=step)

    def _execution(self, *, is_undoing: bool = False) -> Execution:
        assert self._journal is not None
        x = Execution(self._kit, self._journal, self._learned, self._agent, is_undoing=is_undoing)
        x.gate.wake_driver = self._changed.set
        self._x, self._waits = x, Waits(x)
        return x

    async def _refusal(self, is_cancelled: bool, is_undoing: bool) -> tuple[str, str] | None:
        """Return why the run must not resume (a key and a text), or None.

        Raises ContractError if the run was called with an input that does not match the contract, and has not started.
        """
        rules = self._agent.rules
        if is_cancelled or is_undoing:
            return None  # the function is not called again
        if rules.max_age is not None and self._kit.now() - self._learned.idle_since > rules.max_age:
            return "too old", "the run was idle for longer than max_age"
        try:
            await self._input()
        except ContractError as error:
            if self._is_called and not self._learned.history.records:
                raise
            return "input", f"the input no longer matches the contract of {self._agent.name}: {error.reason}"
        return None

    async def _is_poison(self, journal: Journal) -> bool:
        """Return whether the run must be quarantined.

        A run that was cancelled since the last death may be cancelled first.
        """
        fold = journal.fold
        if not is_poison(fold.solo, fold.quarantines):
            return False
        return fold.cancel is None or not await self._is_cancelled_since()

    async def _quarantine(self, journal: Journal) -> None:
        """Park the run until its next retry on parole, or, after the last one, until an operator decides."""
        fold, parole = journal.fold, self._kit.parole
        wake = self._kit.now() + parole[fold.quarantines] if fold.quarantines < len(parole) else None
        await self._park_for_operator(QUARANTINED.key, f"{fold.solo} workers died while driving the run alone", wake)

    async def _is_cancelled_since(self) -> bool:
        """Return whether the run was cancelled after its last worker died; that is tried once."""
        found = False
        async for event in self._kit.store.log(self.run):
            match self._kit.store.decode(event):
                case b.CancelRequested():
                    found = True
                case b.RunClaimed(died=True) | b.RunReleased(died=True):
                    found = False
                case _:
                    pass
        return found

    async def _run_agent(self, x: Execution) -> None:
        """Call the agent's function, and handle the way it ends."""
        assert self._waits is not None
        run: Run[Any] = Run(x, self._waits)
        args = (await self._input(),) if self._agent.takes_input else ()
        task = asyncio.create_task(self._call_function(run, args), name=f"limpet:{self.run}")
        why = await self._supervise(x, task)
        match why:
            case "done":
                await self._conclude(x, task)
            case "cancel":
                x.close("being cancelled")
                await self._cancel_code(task)
                await self._cancel()
            case "drain":
                await self._drain(x, task)
            case "stopped":
                await self._handle_stop(x, task)
            case "parked":
                x.close("parked")
                await self._cancel_code(task)

    async def _input(self) -> Any:
        """Return the input of the run, which is loaded once."""
        if self._loaded_input is None:
            given = self._learned.created.input
            self._loaded_input = (self._agent.load_input(await self._kit.store.unpack(given), given.versions),)
        return self._loaded_input[0]

    async def _call_function(self, run: Run[Any], args: Sequence[Any]) -> Any:
        enter_agent()
        if not self._agent.is_async:
            return await run_blocking(self._agent.fn, run, args)
        set_scope(Scope("", asyncio.current_task()))
        result = await self._agent.fn(run, *args)
        run.calls.check_all_awaited()
        return result

    # Supervising

    async def _supervise(self, x: Execution, task: "asyncio.Task[Any]") -> StopReason:
        """Supervise the code until it has ended, is parked or must stop, and return why.

        When this returns, no effect is running.
        """
        assert self._waits is not None
        self._task = task
        task.add_done_callback(lambda _: self._changed.set())
        while True:
            self._changed.clear()
            last_seen = x.journal.last_seen
            self._waits.check()
            why = self._stop_reason(x, task)
            if why is not None:
                x.gate.hold()
                if x.gate.is_idle:
                    return why
            elif await self._expire_or_park(x, last_seen):
                return "parked"
            elif not x.journal.fold.pausing and x.gate.stopped is None:
                x.gate.reopen()
            await self._pause(x, held=why is not None)

    def _stop_reason(self, x: Execution, task: "asyncio.Task[Any]") -> StopReason | None:
        """Return why the run must stop here, or None."""
        if task.done():
            return "done"
        if x.gate.stopped is not None:
            return "stopped"
        if x.journal.fold.cancel is not None and not x.is_undoing:
            return "cancel"
        return "drain" if self._draining else None

    async def _expire_or_park(self, x: Execution, last_seen: int) -> bool:
        """Write expired waits, and park the run if it only waits. Returns whether the run is parked."""
        assert self._waits is not None
        if not (x.gate.waiting or self._waits.awaiting_cancel or x.journal.fold.pausing):
            return False
        try:
            if await self._waits.expire():
                self._changed.set()
                return False
            if x.journal.fold.pausing and not x.is_undoing:
                x.gate.hold()
                return x.gate.is_idle and await self._park(x, (PAUSED,), None, last_seen)
            if (name := self._waits.overdue()) is not None:
                reason = "the log has a cancellation of this call, but the code does not cancel it"
                x.gate.stop(Divergence(run=self.run, verb=name, reason=reason))
                return False
            if not self._has_lingered(x) or not await _is_quiet(x) or (self._task is not None and self._task.done()):
                return False
            waits = dict.fromkeys((*(slot.wait for slot in self._waits.open), *x.subscribers))
            return await self._park(x, tuple(waits), self._waits.next_wake, last_seen)
        except (ConnectionLost, StoreBusy):
            return False
        except LimpetError as error:
            x.gate.stop(error)
            return False

    def _has_lingered(self, x: Execution) -> bool:
        assert self._waits is not None
        if not self._waits.open or self._waits.awaiting_cancel or not x.gate.is_idle or x.return_order.is_busy:
            return False
        return self._kit.clock.ticks() >= x.gate.active_at + self._linger

    @property
    def _linger(self) -> int:
        """Time that a waiting run stays in memory; 0 for a suspect, so that it does not die with another worker."""
        return 0 if self._claimed.row.deaths >= SUSPECT else self._kit.linger

    async def _park(self, x: Execution, waits: tuple[Wait, ...], wake: int | None, last_seen: int) -> bool:
        """Park the run. Returns False if other events arrived first."""
        x.gate.hold()
        waiting = b.RunWaiting(waits=waits, wake=wake)
        write = partial(
            x.journal.append_if_current,
            waiting,
            last_seen=last_seen,
            legs=run_notices(x, self._agent.name, "waits", waits),
        )
        if await x.recorder.retry_store(write):
            self.wake_at = wake
            self.log.info("waits for %s", ", ".join(map(str, waits)), step=x.journal.fold.step)
            return True
        self._changed.set()
        return False

    async def _pause(self, x: Execution, *, held: bool) -> None:
        """Wait until something happens or is due."""
        assert self._waits is not None
        if self._changed.is_set():
            return
        due: list[int] = []
        if x.gate.waiting and not held:
            wake = self._waits.next_wake
            if wake is not None:
                due.append(wake - self._kit.now())
            if not self._waits.awaiting_cancel and x.gate.is_idle and not x.return_order.is_busy:
                due.append(x.gate.active_at + self._linger - self._kit.clock.ticks())
        cancel_timer = self._kit.clock.call_later(max(min(due), 0), self._changed.set) if due else None
        try:
            await self._changed.wait()
        finally:
            if cancel_timer is not None:
                cancel_timer()

    async def _cancel_code(self, task: "asyncio.Task[Any]") -> None:
        """Cancel code that must not continue; what it still does has no effect."""
        task.cancel()
        await wait_within(self._kit.clock, {task}, CANCEL_TIMEOUT)
        if not task.done():
            self.log.warning("agent code ignores cancellation")
        elif not task.cancelled():
            task.exception()  # marks the exception as retrieved

    # Leaving

    async def _conclude(self, x: Execution, task: "asyncio.Task[Any]") -> None:
        """Write how the function ended: it has returned or raised."""
        x.close("function ended")
        error = asyncio.CancelledError("the code cancelled itself") if task.cancelled() else task.exception()
        if x.gate.stopped is not None:
            await self._handle_stop(x, task)
            return
        try:
            x.lookup.check_end()
            if error is None:
                output = self._agent.dump_output(task.result())
                packed, blobs = self._kit.store.pack(
                    output, inline=INLINE if self._agent.llm is None else MESSAGE_INLINE
                )
                await self._end(b.RunCompleted(output=packed.under(self._agent.output_codec.versions)), blobs=blobs)
                return
        except Divergence as diverged:
            await self._park_for_operator("diverged", str(diverged))
            return
        except LimpetError as refused:
            error = refused
        await self._fail(error)

    async def _fail(self, error: BaseException | None) -> None:
        assert error is not None
        assert self._x is not None
        failure, unhandled, history = failure_of(error), self._x.unhandled, self._learned.history
        if not await self._undo(failure):
            return
        number = getattr(reason_of(error), "number", None)
        ended = b.RunFailed(
            failure=failure,
            name=unhandled.cause_of(error),
            number=number if isinstance(number, int) else None,
            voids=unhandled.behind(error, history),
        )
        await self._end(ended, error=error)

    async def _reject(self, error: ContractError) -> None:
        """Fail the run and tell its caller that the input violates the contract."""
        await self._end(b.RunFailed(failure=failure_of(error)), outcome="rejected", error=error)

    async def _resume_failing(self, failure: Failure) -> None:
        """Continue a failed run whose compensation had started; its function is not called again."""
        if await self._undo(failure):
            await self._end(b.RunFailed(failure=failure))

    async def _cancel(self) -> None:
        """Cancel the run after its effects have finished: withdraw requests, cancel called runs, undo its effects."""
        assert self._journal is not None
        state = self._journal.state
        reason = state.cancel or ""
        withdrawn = [
            b.WaitEnded(name=request.name, how="withdrawn", request=request.request) for request in state.requests
        ]
        if withdrawn and not self._learned.history.is_undoing:
            self._journal.add(*withdrawn)
        for child in state.children:
            await self._cancel_child(child.run, reason)
        if await self._undo(None):
            asked = state.commands.get("cancel")
            by, via = ("", "") if asked is None else (asked.by, asked.via)
            await self._end(b.RunCancelled(reason=reason, by=by, via=via))

    async def _cancel_child(self, run: str, reason: str) -> None:
        """Cancel a run that this one called, unless it has ended."""
        why = f"{self.run} was cancelled: {reason}"
        command = b.CancelRequested(command=f"{self.run}:cancel", reason=why, **sent_by_run(self.run))
        assert self._x is not None
        with suppress(WrongState, NotFound):
            await self._x.recorder.retry_store(
                lambda: self._kit.store.send_commands(run, command, actor=self._kit.worker)
            )

    async def _undo(self, because: Failure | None) -> bool:
        """Undo the run's effects. Returns False if the compensation waits or was stopped."""
        if not await self._flush():
            return False
        steps = await effects_to_undo(self._kit.store, self.run)
        if not steps:
            return True
        x = self._execution(is_undoing=True)
        assert self._waits is not None
        task = asyncio.create_task(Compensation(x, self._waits).run(steps, because), name=f"limpet:{self.run}:undo")
        why = await self._supervise(x, task)
        match why:
            case "done":
                task.result()
                return True
            case "parked":
                x.close("parked")
                await self._cancel_code(task)
            case "drain":
                await self._drain(x, task)
            case _:
                await self._handle_stop(x, task)
        return False

    async def _flush(self) -> bool:
        assert self._x is not None
        try:
            await self._x.recorder.retry_store(self._x.journal.flush)
        except LimpetError as error:
            self._x.gate.stop(error)
            await self._handle_stop(self._x, None)
            return False
        return True

    async def _end(
        self,
        ended: Ended,
        *,
        blobs: Sequence[Blob] = (),
        outcome: Outcome | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Write the last event, and notify the run that called this one in the same append."""
        x = self._x
        assert x is not None
        try:
            if self._is_called:  # The caller is charged for everything, also for what is not stored yet.
                await x.recorder.retry_store(x.journal.flush)
            while True:
                last_seen = x.journal.last_seen
                if x.journal.fold.cancel is not None and not isinstance(ended, b.RunCancelled):
                    await self._cancel()
                    return
                # A failed run may be resumed, and receive its messages then.
                kept = () if isinstance(ended, b.RunFailed) else await self._unread_messages()
                notices = run_notices(x, self._agent.name, _ending_of(ended))
                write = partial(
                    x.journal.append_if_current,
                    ended,
                    last_seen=last_seen,
                    blobs=blobs,
                    legs=(*self._return_to_parent(ended, outcome), *kept, *notices),
                )
                if await x.recorder.retry_store(write):
                    self._note_end(ended, error, x.journal)
                    return
        except LimpetError as failed:
            x.gate.stop(failed)
            await self._handle_stop(x, None)

    def _note_end(self, ended: Ended, error: BaseException | None, journal: Journal) -> None:
        """Log how the run ended, and tell that to the code of this process that has a handle on it."""
        port = self._kit.port
        local = None if port is None else port.local_runs.find(self.run)
        if local is not None:
            local.end(ended, error, journal.head.seq)
        match ended:
            case b.RunFailed():
                is_awaited = local is not None and local.waiters > 0
                # Code that waits for the run gets the exception itself.
                level = logging.INFO if is_awaited else logging.ERROR
                what = f"{ended.failure.type}: {ended.failure.message}"
                self.log.write(level, "failed: %s", what, step=ended.number or journal.fold.step, error=error)
            case b.RunCompleted():
                self.log.info("completed", step=journal.fold.step)
            case b.RunCancelled():
                self.log.info("cancelled: %s", ended.reason, step=journal.fold.step)

    async def _unread_messages(self) -> tuple[Leg, ...]:
        """Keep messages in the conversation that the run has not received."""
        history = self._learned.history
        left = [history.commands[seq] for seq in history.signals.get(USER, ())]
        if not left:
            return ()
        assert self._x is not None
        await self._x.recorder.retry_store(self._x.journal.flush)
        conversation = RunConversation(self._x)
        if not await conversation.exists():
            return ()  # not in a conversation: an ordinary signal
        return (await conversation.keep_unread([each for each in left if isinstance(each, b.SignalReceived)]),)

    @property
    def _is_called(self) -> bool:
        """Whether another run waits for this one."""
        parent = self._learned.created.parent
        return parent is not None and parent.mode in ("call", "handoff")

    def _return_to_parent(self, ended: Ended, outcome: Outcome | None) -> tuple[Leg, ...]:
        assert self._journal is not None
        parent = self._learned.created.parent
        if parent is None or not self._is_called:
            return ()
        returned = b.AgentReturned(
            command=f"{self.run}:end-{self.fence}",
            run=self.run,
            outcome=outcome or _outcome_of(ended),
            output=ended.output if isinstance(ended, b.RunCompleted) else None,
            failure=ended.failure if isinstance(ended, b.RunFailed) else None,
            spent=self._journal.fold.owed,
            contract=self._agent.contract_hash,
            number=ended.number if isinstance(ended, b.RunFailed) else None,
            **sent_by_run(self.run),
        )
        return (SendCommands(run=parent.run, bodies=(returned,), actor=self._kit.worker, optional=True),)

    async def _handle_stop(self, x: Execution, task: "asyncio.Task[Any] | None") -> None:
        """Handle an error that stops the run here: a divergence, a lost lease, or a failure of the store."""
        error = x.gate.stopped
        x.close("stopped")
        if task is not None:
            await self._cancel_code(task)
        match error:
            case Divergence():
                await self._park_for_operator("diverged", str(error))
            case LeaseLost():
                self.log.info("another worker has taken over", step=x.journal.fold.step)
                with suppress(LimpetError):
                    await x.journal.keep_late()
            case StoreUnavailable() | StaleServer():  # Released with a growing pause, if the store accepts that.
                raise error
            case Retryable() | None:
                self.log.error("released after an error: %s", error, step=x.journal.fold.step)
                with suppress(LimpetError):
                    self.wake_at = self._kit.now() + SECOND
                    await self._release(f"worker error: {error}", retry_at=self.wake_at)
            case NotStubbed():
                await self._park_for_operator("model", str(error))
            case NewerVersion() | DamagedEvent():  # a newer worker may be able to read the log
                raise error
            case _:  # any other worker would get the same error
                x.journal.abandon()
                await self._park_for_operator("refused", str(error))

    async def _park_for_operator(self, key: str, why: str, wake: int | None = None) -> None:
        """Park the run with the reason. Without `wake`, only an operator can resume it."""
        assert self._x is not None
        journal = self._x.journal
        state = "quarantined" if key == QUARANTINED.key else f"parked for an operator ({key})"
        self.log.warning("%s: %s", state, why, step=journal.fold.step)
        flagged = b.RiskFlagged(flag=key, detail=why[:2000])
        waiting = b.RunWaiting(waits=(Wait(what="operator", key=key),), wake=wake)
        self.wake_at = wake
        notices = run_notices(self._x, self._agent.name, "waits", waiting.waits)
        try:
            while not await self._x.recorder.retry_store(
                partial(journal.append_if_current, flagged, waiting, last_seen=journal.last_seen, legs=notices)
            ):
                if journal.fold.cancel is not None:
                    await self._cancel()
                    return
        except LimpetError as error:
            self.log.error("parking failed: %s", error)  # noqa: TRY400

    async def _drain(self, x: Execution, task: "asyncio.Task[Any]") -> None:
        x.close("worker stopping")
        await self._cancel_code(task)
        try:
            await x.journal.flush()
            await self._release("worker stopping")
            self.log.info("released: the worker stops", step=x.journal.fold.step)
        except LeaseLost as lost:
            x.gate.stop(lost)
            await self._handle_stop(x, None)
        except LimpetError as error:
            self.log.warning("release failed: %s", error)

    async def _release(self, reason: str, *, retry_at: int | None = None) -> None:
        await self._kit.store.release(
            self.run, fence=self.fence, worker=self._kit.worker, reason=reason[:500], retry_at=retry_at
        )


async def _is_quiet(x: Execution) -> bool:
    """Return whether the code does nothing for some iterations of the event loop."""
    seen = x.gate.activity
    for _ in range(QUIET):
        await asyncio.sleep(0)  # noqa: TID251 - iterations of the event loop, not time
    return x.gate.activity == seen and x.gate.is_idle


def _outcome_of(ended: Ended) -> Outcome:
    """Return the outcome of a run for the run that called it."""
    is_late = isinstance(ended, b.RunFailed) and (
        was(ended.failure, DeadlineExceeded) or ended.failure.code == DeadlineExceeded.code
    )
    return "expired" if is_late else _ending_of(ended)


def _ending_of(ended: Ended) -> Literal["completed", "cancelled", "failed"]:
    """Return the status with which a run ended."""
    match ended:
        case b.RunCompleted():
            return "completed"
        case b.RunCancelled():
            return "cancelled"
        case b.RunFailed():
            return "failed"
