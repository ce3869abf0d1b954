"""The activities of a worker: drive a run, and cancel one."""

import asyncio
from collections import deque
from contextlib import suppress
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from limpet.clock import SECOND
from limpet.engine.execution.user_code import wait_within
from limpet.engine.worker.run_host import Drive, NotNow, RunHost
from limpet.errors import LimpetError, NotFound, WrongState
from limpet.events import bodies as b
from limpet.temporal.run_workflow import CANCEL, DRIVE, Driven

__all__ = ["Activities"]

# Time between two heartbeats; the SDK sends only as many as are needed.
BEAT = SECOND // 2
RETRY = timedelta(seconds=1)
# Runs that ended a moment ago: how many to remember, and for how long.
MOST_ENDED, JUST = 500, 10 * SECOND


class Activities:
    """The activities of one worker."""

    def __init__(self, host: RunHost) -> None:
        self._host = host
        self._ended: deque[tuple[int, str]] = deque(maxlen=MOST_ENDED)
        """When runs ended here, in monotonic microseconds."""

    @property
    def just_ended(self) -> list[str]:
        """Runs that ended here a moment ago, whose workflows may still be open."""
        since = self._host.kit.clock.ticks() - JUST
        return [run for at, run in self._ended if at >= since]

    @activity.defn(name=DRIVE)
    async def drive(self, run: str) -> Driven:
        """Drive a run until it parks or ends.

        The drive goes on if this activity is cancelled: Temporal may give up on a worker that is alive, and only the
        store decides whose run it is. If the activity is delivered again here, it joins the drive.
        """
        driving = asyncio.ensure_future(self._host.drive(run))
        try:
            while not driving.done():
                activity.heartbeat()
                await wait_within(self._host.kit.clock, {driving}, BEAT)
            found = driving.result()
        except asyncio.CancelledError:
            raise _retry(NotNow(why="Temporal gave up on this delivery", delay=BEAT)) from None
        except LimpetError as error:
            raise ApplicationError(f"{error.summary} [{error.code}]", type=error.code, next_retry_delay=RETRY) from None
        finally:
            driving.cancel()
        if isinstance(found, NotNow):
            raise _retry(found)
        if found.outcome != "parked":
            self._ended.append((self._host.kit.clock.ticks(), run))
        return _driven(found)

    @activity.defn(name=CANCEL)
    async def cancel(self, run: str, workflow_run: str) -> None:
        """Cancel a run whose workflow was cancelled."""
        reason = "its workflow was cancelled in Temporal"
        command = b.CancelRequested(command=f"temporal-cancel:{workflow_run}", reason=reason, via="temporal")
        with suppress(NotFound, WrongState):  # it has ended, or is being cancelled
            await self._host.store.send_commands(run, command, actor=self._host.id)


def _retry(found: NotNow) -> ApplicationError:
    """Return what makes Temporal ask again later, here or elsewhere. Retries add nothing to the history."""
    later = timedelta(microseconds=found.delay)
    return ApplicationError(found.why, next_retry_delay=later, category=ApplicationErrorCategory.BENIGN)


def _driven(found: Drive) -> Driven:
    delay = None if found.delay is None else found.delay / SECOND
    return Driven(outcome=found.outcome, status=found.status, seq=found.seq, delay=delay)
