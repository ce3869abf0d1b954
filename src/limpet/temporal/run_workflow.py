"""The workflow of a run: have the run driven, and wait until it is due or something happened, until it has ended.

It knows ids and positions of the log, and nothing of what the run does. Changing it changes how workflows replay that
are under way: give it a new name, and serve both, if a change is ever needed.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ApplicationError

__all__ = ["AGENT", "CANCEL", "DRIVE", "POKE", "STATUS", "WORKFLOW", "Driven", "RunArgs", "RunWorkflow"]

WORKFLOW, DRIVE, CANCEL, POKE = "limpet.run", "limpet.drive", "limpet.cancel", "limpet.poke"
AGENT, STATUS = SearchAttributeKey.for_keyword("LimpetAgent"), SearchAttributeKey.for_keyword("LimpetStatus")

# A history of at most 200 events: one loop adds up to 20.
LONG = 150
# A drive lasts as long as the run does not park. Only missing heartbeats end it.
LONGEST_DRIVE = timedelta(days=365)
# After a worker died, the next one is asked soon, however often that happened before in the same drive. A drive that
# cannot begin now says itself when to ask again, and each such attempt counts, too.
RETRIES = RetryPolicy(initial_interval=timedelta(seconds=0.5), backoff_coefficient=1)
CANCEL_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True)
class RunArgs:
    """The run of a workflow, and who drives it."""

    run: str
    queue: str
    """Task queue of the workers that serve the agent in the run's version."""
    heartbeat: float
    """Seconds without a heartbeat after which another worker is asked."""
    has_attributes: bool
    """Whether the namespace has the search attributes."""


@dataclass(frozen=True)
class Driven:
    """The result of a drive; see `Drive`."""

    outcome: str
    status: str
    seq: int
    delay: float | None
    """Seconds until the run is due."""


@workflow.defn(name=WORKFLOW)
class RunWorkflow:
    """Has one run driven until it has ended."""

    def __init__(self) -> None:
        self._told = 0
        """Latest sequence that a poke named since the last drive began."""
        self._is_cancelling = False
        self._status = workflow.info().typed_search_attributes.get(STATUS)

    @workflow.signal(name=POKE)
    def poke(self, seq: int) -> None:
        """Note that the log has an event with this sequence, which may make the run continue."""
        self._told = max(self._told, seq)

    @workflow.run
    async def run(self, args: RunArgs) -> str:
        """Return the status with which the run ended."""
        while True:
            self._told = 0
            self._show(args, "running")
            driven = await self._drive(args)
            if driven is not None and self._told <= driven.seq:
                if driven.outcome != "parked":
                    return self._end(args, driven)
                self._show(args, driven.status)
                await self._wait(args, driven)
            if self._is_long():
                workflow.continue_as_new(args)

    def _is_long(self) -> bool:
        """Return whether to continue with a new history."""
        return workflow.info().get_current_history_length() > LONG and not self._is_cancelling

    async def _drive(self, args: RunArgs) -> Driven | None:
        """Have the run driven, and return the result.

        Return None if the run must be driven again. If many pokes have made the history long, the drive of the next
        execution joins this one, or waits for it. If the drive ended just when the workflow was cancelled, it did not
        see the cancellation.
        """
        driving = workflow.start_activity(
            DRIVE,
            args.run,
            task_queue=args.queue,
            result_type=Driven,
            start_to_close_timeout=LONGEST_DRIVE,
            heartbeat_timeout=timedelta(seconds=args.heartbeat),
            retry_policy=RETRIES,
        )
        while True:
            try:
                await workflow.wait_condition(lambda: driving.done() or self._is_long())
            except asyncio.CancelledError:
                is_over = driving.done()
                await self._cancel(args)  # the drive sees the cancellation in the log
                if is_over:
                    return None
            else:
                return await driving if driving.done() else None

    async def _wait(self, args: RunArgs, driven: Driven) -> None:
        """Wait until the run is due, or was poked for an event that the drive did not see."""
        try:
            await workflow.wait_condition(lambda: self._told > driven.seq, timeout=driven.delay)
        except TimeoutError:
            return
        except asyncio.CancelledError:
            await self._cancel(args)

    async def _cancel(self, args: RunArgs) -> None:
        """Cancel the run, because its workflow was cancelled."""
        self._is_cancelling = True
        await workflow.execute_local_activity(
            CANCEL, args=[args.run, workflow.info().run_id], start_to_close_timeout=CANCEL_TIMEOUT
        )

    def _show(self, args: RunArgs, status: str) -> None:
        if args.has_attributes and status != self._status:
            self._status = status
            workflow.upsert_search_attributes([STATUS.value_set(status)])

    def _end(self, args: RunArgs, driven: Driven) -> str:
        """Return the status, or end the workflow as failed or cancelled."""
        self._show(args, driven.status or driven.outcome)
        if driven.outcome == "moved":  # failed, so that the run can come back under the same id
            raise ApplicationError(f"{args.run} is driven by another engine now", type="limpet.Moved")
        if driven.status == "failed":  # a resumed run starts it again
            raise ApplicationError(f"{args.run} failed; `limpet show {args.run}` says why", type="limpet.RunFailed")
        if driven.status == "cancelled" and self._is_cancelling:
            raise asyncio.CancelledError
        return driven.status or driven.outcome
