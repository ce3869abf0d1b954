"""The life of one claimed run in one worker: enter its function, attend to it, and write down how it left.

The function runs in a task of its own; beside it, one loop attends: it ends waits that have ended, parks the run when
it only waits, and stops it when somebody wants that. Whatever happens, effects under way are finished first.
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
from limpet.engine.execution.execution import Execution, Kit, set_scope
from limpet.engine.execution.failures import failure_of, was
from limpet.engine.execution.user_code import wait_within
from limpet.engine.replay.history import History
from limpet.engine.replay.learned import Learned
from limpet.engine.replay.return_order import QUIET
from limpet.engine.replay.scopes import Scope
from limpet.engine.run.blocking import run_blocking
from limpet.engine.run.conversation import USER, RunConversation
from limpet.engine.run.run import Run
from limpet.engine.steps.compensation import Compensation, effects_to_undo
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
from limpet.stores.blobs import INLINE, SAID, Blob
from limpet.stores.store import LogPosition

__all__ = ["RunDriver"]

log = logging.getLogger("limpet")

# How long code that does not let itself be cancelled is waited for.
LAST_WORDS = 5 * SECOND
Why = Literal["done", "parked", "cancel", "drain", "stopped"]
Outcome = Literal["completed", "failed", "cancelled", "rejected", "expired"]
Ended = b.RunCompleted | b.RunFailed | b.RunCancelled


class RunDriver:
    """One claimed run, driven until it parks, ends, is given back or is lost."""

    def __init__(self, kit: Kit, claimed: Claimed, agent: Agent[Any, Any]) -> None:
        self._kit, self._claimed, self._agent = kit, claimed, agent
        self.run, self.agent = claimed.row.id, agent.name
        self.fence = claimed.row.fence
        self.wake_at: int | None = None
        """When the run that was parked here must be looked at again."""
        self._memory = Learned()
        self._look = asyncio.Event()
        self._draining = False
        self._journal: Journal | None = None
        self._x: Execution | None = None
        self._waits: Waits | None = None
        self._task: asyncio.Task[Any] | None = None

    # From outside

    @property
    def wants_changes(self) -> bool:
        """Whether it would not hear of a command by itself soon: it waits, or has not written for a while."""
        x = self._x
        return x is not None and (bool(self._waits and self._waits.open) or x.is_silent)

    @property
    def waiting(self) -> "asyncio.Task[Any] | None":
        """The task of its code, while that only waits."""
        only_waits = self._x is not None and self._waits is not None and self._waits.open and self._x.is_idle
        return self._task if only_waits else None

    @property
    def is_suspect(self) -> bool:
        """Whether it may be why its workers died: it has settled nothing since."""
        deaths = self._claimed.row.deaths if self._journal is None else self._journal.fold.deaths
        return deaths >= SUSPECT

    @property
    def end_place(self) -> LogPosition | None:
        """Where its log has come to its end, if it has."""
        journal = self._journal
        if journal is None or journal.fold.status not in ENDED:
            return None
        return LogPosition(journal.head.seq, self.fence, journal.fold.status)

    @property
    def seq(self) -> int:
        """How much of the log it knows."""
        return self._journal.head.seq if self._journal is not None else 0

    async def catch_up(self, seq: int, fence: int) -> None:
        """There is more in the log than this drive knows."""
        if self._journal is None or self._x is None:
            return
        if fence != self.fence:
            self._x.stop(LeaseLost(run=self.run, fence=self.fence, current=fence))
            return
        if seq > self._journal.head.seq:
            try:
                await self._journal.refresh()
            except (ConnectionLost, StoreBusy):
                return  # it hears the next time
            except LimpetError as error:
                self._x.stop(error)
        self._look.set()

    def lose_lease(self) -> None:
        """The worker was told that the run is not its own any more."""
        if self._x is not None:
            self._x.stop(LeaseLost(run=self.run, fence=self.fence, current=self.fence + 1))

    def drain(self) -> None:
        """Give the run back as soon as effects under way have finished."""
        self._draining = True
        self._look.set()

    def kill(self) -> list["asyncio.Task[Any]"]:
        """End as in a killed process; the code that is still to end."""
        if self._x is not None:
            self._x.close("its process was killed")
        return [] if self._task is None else [self._task]

    # From inside

    async def drive(self) -> None:
        """Until the run has left this worker."""
        self._journal = journal = await Journal.open(
            self._kit.store, self._claimed, self._kit.now, learner=self._memory
        )
        self._x = x = self._execution()
        undoing = self._memory.history.undoing
        if await self._is_poison(journal):
            await self._quarantine(journal)
            return
        try:
            refused = await self._unfit(journal.fold.cancel is not None, undoing is not None)
        except ContractError as error:
            await self._reject(error)
            return
        if refused is not None:
            await self._park_for_operator(*refused)
        elif journal.fold.cancel is not None:
            await self._cancel()
        elif undoing is not None:
            await self._go_on_failing(undoing.because or Failure(type="limpet.Suspended"))
        else:
            await self._enter(x)

    def _execution(self) -> Execution:
        assert self._journal is not None
        x = Execution(self._kit, self._journal, self._memory, self._agent)
        x.changed = self._look.set
        self._x, self._waits = x, Waits(x)
        return x

    async def _unfit(self, is_cancelled: bool, is_undoing: bool) -> tuple[str, str] | None:
        """Why the run must not be resumed by itself: a key, and why in words.

        Raises ContractError for what another run sent, and does not fit: it is sent back, and nothing begins.
        """
        rules = self._agent.rules
        if is_cancelled or is_undoing:
            return None  # its function is not entered again
        if rules.max_age is not None and self._kit.now() - self._memory.lay_since > rules.max_age:
            return "too old", "it lay still for longer than its agent allows"
        try:
            await self._input()
        except ContractError as error:
            if self._is_called and not self._memory.history.records:
                raise
            return "input", f"its input is not what {self._agent.name} declares now: {error.reason}"
        return None

    async def _is_poison(self, journal: Journal) -> bool:
        """Whether it killed worker after worker; one that was cancelled since then may be cancelled first."""
        fold = journal.fold
        if not is_poison(fold.solo, fold.quarantines):
            return False
        return fold.cancel is None or not await self._is_cancelled_since()

    async def _quarantine(self, journal: Journal) -> None:
        """Park it until its parole, or, after the last one, until an operator decides."""
        fold, parole = journal.fold, self._kit.parole
        wake = self._kit.now() + parole[fold.quarantines] if fold.quarantines < len(parole) else None
        await self._park_for_operator(QUARANTINED.key, f"{fold.solo} workers died while they tried it alone", wake)

    async def _is_cancelled_since(self) -> bool:
        """Whether it was cancelled after the last worker died with it: that is tried once."""
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

    async def _enter(self, x: Execution) -> None:
        """Enter the agent's function, and see it through."""
        assert self._waits is not None
        run: Run[Any] = Run(x, self._waits)
        args = (await self._input(),) if self._agent.takes_input else ()
        task = asyncio.create_task(self._function(run, args), name=f"limpet:{self.run}")
        why = await self._attend(x, task)
        match why:
            case "done":
                await self._conclude(x, task)
            case "cancel":
                x.close("it is being cancelled")
                await self._cut(task)
                await self._cancel()
            case "drain":
                await self._give_back(x, task)
            case "stopped":
                await self._stopped(x, task)
            case "parked":
                x.close("it is parked")
                await self._cut(task)

    async def _input(self) -> Any:
        given = self._memory.created.input
        return self._agent.load_input(await self._kit.store.unpack(given), given.versions)

    async def _function(self, run: Run[Any], args: Sequence[Any]) -> Any:
        enter_agent()
        if not self._agent.is_async:
            return await run_blocking(self._agent.fn, run, args)
        set_scope(Scope("", asyncio.current_task()))
        result = await self._agent.fn(run, *args)
        run.calls.check_all_awaited()
        return result

    # Attending

    async def _attend(self, x: Execution, task: "asyncio.Task[Any]") -> Why:
        """Until the function has ended, the run is parked, or must stop; then nothing of it is under way."""
        assert self._waits is not None
        self._task = task
        task.add_done_callback(lambda _: self._look.set())
        while True:
            self._look.clear()
            heard = x.journal.heard
            self._waits.check()
            why = self._why(x, task)
            if why is not None:
                x.hold()
                if x.is_idle:
                    return why
            elif await self._settled(x, heard):
                return "parked"
            elif not x.journal.fold.pausing and x.stopped is None:
                x.reopen()
            await self._pause(x, held=why is not None)

    def _why(self, x: Execution, task: "asyncio.Task[Any]") -> Why | None:
        """Why the run must not go on here."""
        if task.done():
            return "done"
        if x.stopped is not None:
            return "stopped"
        if x.journal.fold.cancel is not None and not x.is_undoing:
            return "cancel"
        return "drain" if self._draining else None

    async def _settled(self, x: Execution, heard: int) -> bool:
        """Write down what is due; whether the run is parked."""
        assert self._waits is not None
        try:
            if await self._waits.expire():
                self._look.set()
                return False
            if x.journal.fold.pausing and not x.is_undoing:
                x.hold()
                return x.is_idle and await self._park(x, (PAUSED,), None, heard)
            if (name := self._waits.overdue()) is not None:
                reason = "the code cancelled it before, and does not cancel it now"
                x.stop(Divergence(run=self.run, verb=name, reason=reason))
                return False
            if not self._has_lingered(x) or not await _is_quiet(x) or (self._task is not None and self._task.done()):
                return False
            waits = dict.fromkeys((*(slot.wait for slot in self._waits.open), *x.subscribers))
            return await self._park(x, tuple(waits), self._waits.next_wake, heard)
        except (ConnectionLost, StoreBusy):
            return False
        except LimpetError as error:
            x.stop(error)
            return False

    def _has_lingered(self, x: Execution) -> bool:
        assert self._waits is not None
        if not self._waits.open or self._waits.left or not x.is_idle or x.return_order.is_busy:
            return False
        return self._kit.clock.ticks() >= x.touched + self._linger

    @property
    def _linger(self) -> int:
        """How long it waits in memory; a suspect not at all: it would die with the next worker, for nothing."""
        return 0 if self._claimed.row.deaths >= SUSPECT else self._kit.linger

    async def _park(self, x: Execution, waits: tuple[Wait, ...], wake: int | None, heard: int) -> bool:
        """Leave the run to whoever comes when what it waits for is there; not if something came meanwhile."""
        x.hold()
        waiting = b.RunWaiting(waits=waits, wake=wake)
        if await x.retry_store(lambda: x.journal.append_if_current(waiting, heard=heard)):
            self.wake_at = wake
            return True
        self._look.set()
        return False

    async def _pause(self, x: Execution, *, held: bool) -> None:
        """Wait until something happens, or something is due."""
        assert self._waits is not None
        due = [] if held else [wake - self._kit.now() for slot in self._waits.open if (wake := slot.wake) is not None]
        if not held and self._waits.open and not self._waits.left and x.is_idle and not x.return_order.is_busy:
            due.append(x.touched + self._linger - self._kit.clock.ticks())
        if self._look.is_set():
            return
        take_back = self._kit.clock.call_later(max(min(due), 0), self._look.set) if due else None
        try:
            await self._look.wait()
        finally:
            if take_back is not None:
                take_back()

    async def _cut(self, task: "asyncio.Task[Any]") -> None:
        """End code that must not go on; nothing that it still does takes effect."""
        task.cancel()
        await wait_within(self._kit.clock, {task}, LAST_WORDS)
        if not task.done():
            log.warning("the code of run %s does not end although it was cancelled", self.run)
        elif not task.cancelled():
            task.exception()  # somebody has looked

    # Leaving

    async def _conclude(self, x: Execution, task: "asyncio.Task[Any]") -> None:
        """The function has returned or raised."""
        x.close("its function has ended")
        error = asyncio.CancelledError("the code cancelled itself") if task.cancelled() else task.exception()
        if x.stopped is not None:
            await self._stopped(x, task)
            return
        try:
            x.lookup.check_end()
            if error is None:
                output = self._agent.dump_output(task.result())
                packed, blobs = self._kit.store.pack(output, inline=INLINE if self._agent.llm is None else SAID)
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
        failure = failure_of(error)
        if not await self._undo(failure):
            return
        number = getattr(error, "number", None)
        verb = _verb_of(error, self._memory.history)
        ended = b.RunFailed(failure=failure, name=verb, number=number if isinstance(number, int) else None)
        await self._end(ended)

    async def _reject(self, error: ContractError) -> None:
        """What was sent is not what this agent takes: whoever sent it is told so."""
        await self._end(b.RunFailed(failure=failure_of(error)), outcome="rejected")

    async def _go_on_failing(self, failure: Failure) -> None:
        """It has failed before, and is being undone: its function is not entered again."""
        if await self._undo(failure):
            await self._end(b.RunFailed(failure=failure))

    async def _cancel(self) -> None:
        """Nothing of it is under way: withdraw what it asks, cancel its children, undo what it did."""
        assert self._journal is not None
        state = self._journal.state
        reason = state.cancel or ""
        withdrawn = [
            b.WaitEnded(name=request.name, how="withdrawn", request=request.request) for request in state.requests
        ]
        if withdrawn and not self._memory.history.is_undoing:
            self._journal.add(*withdrawn)
        for child in state.children:
            await self._cancel_child(child.run, reason)
        if await self._undo(None):
            await self._end(b.RunCancelled(reason=reason))

    async def _cancel_child(self, run: str, reason: str) -> None:
        """Tell a run that this one called; one that has ended by now needs no telling."""
        command = b.CancelRequested(command=f"{self.run}:cancel", reason=f"{self.run} was cancelled: {reason}")
        assert self._x is not None
        with suppress(WrongState, NotFound):
            await self._x.retry_store(lambda: self._kit.store.send_commands(run, command, actor=self._kit.worker))

    async def _undo(self, because: Failure | None) -> bool:
        """Undo what the run did; false if that is waited for, or was stopped."""
        if not await self._write_all():
            return False
        own = self._kit.store.log(self.run, after=self._claimed.row.origin_at or 0)  # a fork undoes its own steps only
        log_ = (self._kit.store.decode(event) async for event in own)
        steps = await effects_to_undo(log_)
        if not steps:
            return True
        x = self._execution()
        x.is_undoing, x.deadline = True, None
        assert self._waits is not None
        task = asyncio.create_task(Compensation(x, self._waits).run(steps, because), name=f"limpet:{self.run}:undo")
        why = await self._attend(x, task)
        match why:
            case "done":
                task.result()
                return True
            case "parked":
                x.close("it is parked")
                await self._cut(task)
            case "drain":
                await self._give_back(x, task)
            case _:
                await self._stopped(x, task)
        return False

    async def _write_all(self) -> bool:
        assert self._x is not None
        try:
            await self._x.retry_store(self._x.journal.flush)
        except LimpetError as error:
            self._x.stop(error)
            await self._stopped(self._x, None)
            return False
        return True

    async def _end(self, ended: Ended, *, blobs: Sequence[Blob] = (), outcome: Outcome | None = None) -> None:
        """Write the last event, and tell the run that called this one."""
        x = self._x
        assert x is not None
        try:
            while True:
                heard = x.journal.heard
                if x.journal.fold.cancel is not None and not isinstance(ended, b.RunCancelled):
                    await self._cancel()
                    return
                kept = () if isinstance(ended, b.RunFailed) else await self._kept()  # that one may be resumed
                write = partial(
                    x.journal.append_if_current,
                    ended,
                    heard=heard,
                    blobs=blobs,
                    legs=(*self._told_parent(ended, outcome), *kept),
                )
                if await x.retry_store(write):
                    return
        except LimpetError as error:
            x.stop(error)
            await self._stopped(x, None)

    async def _kept(self) -> tuple[Leg, ...]:
        """What people said in its conversation, and it did not take, stays there."""
        history = self._memory.history
        left = [history.commands[seq] for seq in history.signals.get(USER, ())]
        if not left:
            return ()
        assert self._x is not None
        talks = RunConversation(self._x)
        if not await talks.is_there():
            return ()  # nobody talked: it is a signal like any other
        return (await talks.keep([each for each in left if isinstance(each, b.SignalReceived)]),)

    @property
    def _is_called(self) -> bool:
        """Whether another run waits for this one."""
        parent = self._memory.created.parent
        return parent is not None and parent.mode in ("call", "handoff")

    def _told_parent(self, ended: Ended, outcome: Outcome | None) -> tuple[Leg, ...]:
        assert self._journal is not None
        parent = self._memory.created.parent
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
        )
        return (SendCommands(run=parent.run, bodies=(returned,), actor=self._kit.worker, optional=True),)

    async def _stopped(self, x: Execution, task: "asyncio.Task[Any] | None") -> None:
        """The code cannot go on here: it has diverged, somebody else has the run, or the store fails."""
        error = x.stopped
        x.close("it was stopped")
        if task is not None:
            await self._cut(task)
        match error:
            case Divergence():
                await self._park_for_operator("diverged", str(error))
            case LeaseLost():
                log.info("run %s is driven elsewhere now", self.run)
                with suppress(LimpetError):
                    await x.journal.keep_late()
            case Retryable() | StoreUnavailable() | StaleServer() | None:
                log.error("run %s cannot go on here: %s", self.run, error)
                with suppress(LimpetError):
                    self.wake_at = self._kit.now() + SECOND
                    await self._release(f"its worker could not go on: {error}", retry_at=self.wake_at)
            case NotStubbed():
                await self._park_for_operator("model", str(error))
            case NewerVersion() | DamagedEvent():  # a newer worker may be able to read it
                raise error
            case _:  # the next one would come to just the same
                x.journal.abandon()
                await self._park_for_operator("refused", str(error))

    async def _park_for_operator(self, key: str, why: str, wake: int | None = None) -> None:
        """Park it with the reason; without `wake`, only an operator lets it go on. Nothing was done."""
        assert self._x is not None
        journal = self._x.journal
        log.warning("run %s waits for an operator: %s", self.run, why)
        flagged = b.RiskFlagged(flag=key, detail=why[:2000])
        waiting = b.RunWaiting(waits=(Wait(what="operator", key=key),), wake=wake)
        self.wake_at = wake
        try:
            while not await self._x.retry_store(
                partial(journal.append_if_current, flagged, waiting, heard=journal.heard)
            ):
                if journal.fold.cancel is not None:
                    await self._cancel()
                    return
        except LimpetError as error:
            log.error("run %s could not be parked: %s", self.run, error)  # noqa: TRY400 - the error says it all

    async def _give_back(self, x: Execution, task: "asyncio.Task[Any]") -> None:
        x.close("its worker is going")
        await self._cut(task)
        try:
            await x.journal.flush()
            await self._release("its worker is going")
        except LeaseLost as lost:
            x.stop(lost)
            await self._stopped(x, None)
        except LimpetError as error:
            log.warning("run %s could not be given back: %s", self.run, error)

    async def _release(self, reason: str, *, retry_at: int | None = None) -> None:
        await self._kit.store.release(
            self.run, fence=self.fence, worker=self._kit.worker, reason=reason[:500], retry_at=retry_at
        )


async def _is_quiet(x: Execution) -> bool:
    """Whether the code does nothing for some turns of the event loop."""
    seen = x.activity
    for _ in range(QUIET):
        await asyncio.sleep(0)  # noqa: TID251 - turns of the event loop, not time
    return x.activity == seen and x.is_idle


def _outcome_of(ended: Ended) -> Outcome:
    """How a run ended, as the run that called it is told."""
    match ended:
        case b.RunCompleted():
            return "completed"
        case b.RunCancelled():
            return "cancelled"
        case b.RunFailed():
            return "expired" if was(ended.failure, DeadlineExceeded) else "failed"


def _verb_of(error: BaseException | None, history: History) -> str | None:
    """The verb whose error it is, or was before it was wrapped in another.

    Not one that the code had caught and gone on from: taking that failure back would do both.
    """
    seen = 0
    while error is not None and seen < 20:
        verb = error.__dict__.get("limpet_verb")
        if isinstance(verb, str):
            return verb if history.is_last(verb) or verb not in history.records else None
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None
