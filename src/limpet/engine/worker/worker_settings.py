"""Settings of a worker, the intervals of its loops, and its estimate of the store's clock."""

from collections.abc import Sequence

from limpet.arguments import defining
from limpet.clock import SECOND, Clock, Duration, microseconds
from limpet.engine.worker.duties import Retention
from limpet.errors import DefinitionError

__all__ = ["StoreClock", "Timing", "Worker"]


@defining
class Worker:
    """Settings of a worker.

    `concurrency` is the maximum number of concurrent runs, and `lease` the time for which the worker counts as alive
    without renewing. When the worker stops, running effects have `grace` to finish. `parole` lists how long a
    quarantined run rests before each retry; after the last one, an operator decides. With `keep`, the workers of a
    store delete runs that ended long ago, one worker at a time. `relaxed_gc` lets Python's garbage collector run less
    often in this process while the worker runs, which `limpet worker` does.
    """

    def __init__(
        self,
        *,
        concurrency: int = 100,
        lease: Duration = "10s",
        grace: Duration = "10s",
        parole: Sequence[Duration] = ("1m", "10m", "1h"),
        keep: Retention | None = None,
        relaxed_gc: bool = False,
    ) -> None:
        if concurrency < 1 or microseconds(lease) < 1000:
            raise DefinitionError(what="a worker", reason="concurrency must be at least 1, and lease at least 1 ms")
        self.concurrency, self.lease, self.grace = concurrency, microseconds(lease), microseconds(grace)
        self.parole = tuple(microseconds(each) for each in parole)
        """Rest of a quarantined run before each retry, in microseconds; after the last retry, an operator decides."""
        self.keep = keep
        """Which runs the worker deletes after their end; None for no run."""
        self.relaxed_gc = relaxed_gc
        """Whether the garbage collector of the process runs less often."""


class Timing:
    """Intervals of the worker loop, in microseconds."""

    def __init__(
        self,
        *,
        poll: int = SECOND,
        idle: int = SECOND // 100,
        look: int = SECOND // 20,
        sweep: int = SECOND // 10,
        lease_thread: bool = True,
    ) -> None:
        self.poll = poll
        """Maximum time between two rounds of claims: how late a due timer or a dead worker is noticed."""
        self.idle = idle
        """Pause after each round of claims; 0 for none."""
        self.look = look
        """Time between two looks at suspects, while the worker drives some."""
        self.sweep = sweep
        """Time between two sweeps for events that wait for a flush, while the worker drives runs."""
        self.lease_thread = lease_thread
        """Whether to renew the lease on a separate thread, so that a blocked event loop does not lose it immediately.
        """


class StoreClock:
    """Local estimate of the store's clock: the last time it reported, plus the monotonic time since then.

    Setting the machine's clock does not change it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.now() - clock.ticks()

    def now(self) -> int:
        """Return the estimated store time, in microseconds."""
        return self._clock.ticks() + self._offset

    def sync(self, now: int) -> None:
        """Set the estimate to a time that the store just reported."""
        self._offset = now - self._clock.ticks()
