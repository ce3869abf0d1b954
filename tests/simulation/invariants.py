"""What must hold after every event, whatever went wrong."""

from collections import Counter
from typing import Any

from limpet.events import Event
from limpet.events import bodies as b
from limpet.stores.memory import MemoryBackend

TERMINAL = (b.RunCompleted, b.RunFailed, b.RunCancelled)


class Watcher:
    """Reads all logs as they grow."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self._place = ""
        self._fences = Counter[str]()
        self._seqs = Counter[str]()
        self._times = Counter[str]()
        self._ended: dict[str, Any] = {}
        self._decided: dict[str, Any] = {}
        self._started: dict[tuple[str, str], Any] = {}
        self._settled: dict[tuple[str, str], Any] = {}
        self._keys: dict[tuple[str, int], str] = {}
        self.answered: set[str] = set()
        self.signals = Counter[str]()
        self.cancelled: set[str] = set()
        self.received: dict[str, list[int]] = {}
        self.events = 0
        self.broken: AssertionError | None = None

    def look(self) -> None:
        """Check every event since the last look; the first thing that does not hold is kept."""
        while self.broken is None:
            page = self._backend.feed(self._place, 1000)
            self._place = page.next
            try:
                for event in page.events:
                    self._check(event, event.decode())
            except AssertionError as error:
                self.broken = error
            if not page.events:
                return

    def _check(self, event: Event, body: Any) -> None:
        run = event.run
        self.events += 1
        assert event.seq == self._seqs[run] + 1, "I2: a gap"
        assert event.fence >= self._fences[run], "I3: a lower fence"
        assert event.time >= self._times[run], "time runs backwards"
        self._seqs[run], self._fences[run], self._times[run] = event.seq, event.fence, event.time
        self._check_end(run, event, body)
        self._check_step(run, body)
        if isinstance(body, b.RequestAnswered):
            assert body.request not in self._decided, "I6: decided twice"
            self._decided[body.request] = body
        if isinstance(body, b.SignalReceived):
            self.received.setdefault(run, []).append(body.value.value())

    def _check_end(self, run: str, event: Event, body: Any) -> None:
        ended = self._ended.get(run)
        if isinstance(body, b.ResumeRequested) and isinstance(ended, b.RunFailed):
            self._ended.pop(run)
        elif isinstance(ended, b.RunFailed):
            assert isinstance(body, b.AgentReturned | b.BudgetExtended), f"I5: {event.kind} after it failed"
        else:
            assert ended is None, f"I5: {event.kind} after {type(ended).__name__}"
        if isinstance(body, TERMINAL):
            self._ended[run] = body

    def _check_step(self, run: str, body: Any) -> None:
        """I4: an attempt starts when nothing is known of the one before, or that repeating it is safe."""
        match body:
            case b.StepStarted():
                step = (run, body.name)
                before = self._started.get(step)
                assert step not in self._settled or isinstance(self._settled[step], b.StepFailed | b.StepResolved)
                if body.effect == "once" and before is not None:
                    assert isinstance(before, b.StepFailed | b.StepResolved), f"I4: repeated blindly after {before}"
                    assert not isinstance(before, b.StepResolved) or before.outcome == "not_applied", "I4: done already"
                key = self._keys.setdefault((run, body.number), body.key)
                assert key == body.key, "I4: another key on a retry"
                self._started[step] = body
            case b.StepCompleted() | b.StepFailed() | b.StepUnknown() | b.StepResolved():
                step = (run, body.name)
                assert step in self._started, "an end without a start"
                self._started[step] = body
                if isinstance(body, b.StepCompleted):
                    assert step not in self._settled, "I2: completed twice"
                    self._settled[step] = body
            case _:
                pass
