"""The working state as the code of one execution knows it, at the point that the code has reached."""

from collections.abc import Callable
from typing import TypeVar

from limpet.engine.replay.learned import Learned
from limpet.engine.replay.return_order import ReturnOrder
from limpet.events import StatePatch
from limpet.events import bodies as b
from limpet.journal import Journal
from limpet.state import AgentState
from limpet.state.patch import Working, still_fits

__all__ = ["CodeState"]

T = TypeVar("T")


class CodeState:
    """The working state at the current point of the code. On replay it follows the log, event by event."""

    def __init__(self, journal: Journal, memory: Learned, return_order: ReturnOrder) -> None:
        self._journal, self._memory, self._return_order = journal, memory, return_order
        self._working = Working(AgentState())
        if memory.created.initial is not None:
            self._working.apply(memory.created.initial)
        self.patched = 0
        """Counter of changes of `working`."""
        self.flags = list(memory.history.flags)
        """Recorded flags that the code has not got to yet, each with its sequence and detail."""
        self.overrides = list(memory.overrides)
        """Overrides of a fork that do not apply yet."""
        self._overridden = list[tuple[int, StatePatch]]()

    @property
    def working(self) -> Working:
        """The working state at this point of the code.

        A fork's overrides apply once the code has passed the shared events.
        """
        while self.overrides and not self._return_order.has_before(self.overrides[0][0]):
            self._override()
        return self._working

    def learn(self, change: Callable[[Working], T], end: int | None = None) -> T:
        """Change the working state, now or at a recorded end. A fork's later overrides are applied again."""
        self.patched += 1
        changed = change(self._working)
        for seq, patch in self._overridden:
            if end is not None and end < seq:
                self._working.apply(still_fits(self._working, patch))
        return changed

    def start_turn(self, loop: str) -> None:
        """Enter a loop at its current turn, with the state at the start of that turn."""
        self._working = Working(self._memory.states[loop])
        self.patched += 1
        start = self._memory.turn_starts.get(loop, 0)
        self.overrides = [each for each in self.overrides if each[0] > start]  # the others are part of that state
        self._overridden = []

    def apply_overrides(self) -> None:
        """Apply all overrides: the code has passed everything that the fork shares."""
        while self.overrides:
            self._override()

    def _override(self) -> None:
        seq, patch = self.overrides.pop(0)
        self.learn(lambda working: working.apply(still_fits(working, patch)))
        self._overridden.append((seq, patch))

    # Flags

    def pass_end(self, end: int) -> None:
        """Set the flags that were recorded before an end: the code has got there."""
        while self.flags and self.flags[0][0] < end:
            _, *flag = self.flags.pop(0)
            self._flag(*flag)

    def raise_flag(self, flag: str, detail: str, *, again: bool = False) -> None:
        """Record a risk flag for people, unless it is set; with `again`, also if it is set."""
        if again or self._journal.working.flag_detail(flag) is None:
            self._journal.add(b.RiskFlagged(flag=flag, detail=detail))
            self._flag(flag, detail)

    def _flag(self, flag: str, detail: str) -> None:
        self.learn(lambda working: working.flag(flag, detail))
