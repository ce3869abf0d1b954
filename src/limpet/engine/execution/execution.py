"""One execution of a run's code by one worker: the state that all methods of `Run` share."""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.call_context import is_in_tool, made_in_tool
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.upgrades import NOTHING, Versions
from limpet.engine.execution.code_state import CodeState
from limpet.engine.execution.gate import Gate
from limpet.engine.execution.kit import Kit
from limpet.engine.execution.recorder import Recorder
from limpet.engine.execution.strands import current_scope, current_strand
from limpet.engine.execution.unhandled import UnhandledEnds
from limpet.engine.replay.history import Opening, Record
from limpet.engine.replay.learned import Learned
from limpet.engine.replay.lookup import Lookup
from limpet.engine.replay.return_order import LONGEST, QUIET, ReturnOrder
from limpet.errors import (
    DeadlineExceeded,
    Divergence,
    HandedOff,
)
from limpet.events import Effects, Limits, Outside, Wait
from limpet.journal import Journal

__all__ = ["Execution"]

log = logging.getLogger("limpet")

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Opened = TypeVar("Opened", bound=Opening)


class Execution:
    """State that the methods of one run share while a worker drives it: the parts of one execution, and its calls."""

    def __init__(
        self, kit: Kit, journal: Journal, memory: Learned, agent: Agent[Any, Any], *, is_undoing: bool = False
    ) -> None:
        self.kit, self.journal, self.agent, self.memory = kit, journal, agent, memory
        self.run, self.history = journal.run, memory.history
        self.is_undoing = is_undoing
        """Whether this execution is the run's compensation."""
        self.lookup = Lookup(self.run, self.history)
        self.return_order = ReturnOrder(self.history.records.values())
        self.gate = Gate(kit, self.run, journal.fold, ignores_commands=is_undoing)
        """Whether calls may start."""
        self.state = CodeState(journal, memory, self.return_order)
        """The working state at this point of the code."""
        self.recorder = Recorder(kit, journal, self.gate, self.return_order, self.state, agent.rules.checkpoint)
        """Writes the log, and lets calls return."""
        self.unhandled = UnhandledEnds(self.run)
        """Calls that failed or were cancelled, until the code goes on from that."""
        self.user, self.session = memory.created.user, memory.created.session
        self.children = self.history.last_child
        """Number in the last generated id of a called run."""
        self.lent: dict[str, Limits] = {}
        """Budgets of called runs whose calls may not be in the log yet, by run."""
        self.subscribers: dict[Wait, Callable[[], object]] = {}
        """Callbacks for other conditions that the code subscribes to; these also wake a parked run."""
        self.versions: dict[str, dict[str, bool]] = {}
        """Choices of `run.version` made here, which may not be in the log yet, by scope."""
        self.loops: dict[str, Hashable] = {}
        """The strands that are in a loop of turns, by the loop's name."""
        self.handed_to: str | None = None
        """The agent that this run was handed off to."""
        self.is_dry_run = False
        """Whether this is a dry run, which starts nothing new."""
        self.on_step: Callable[[int], object] | None = None
        """Called with the number of each step that the code reaches, synchronously."""

    def close(self, reason: str) -> None:
        """Make every further call raise Suspended, and cancel all waiting calls."""
        self.gate.close(reason)
        self.return_order.cancel_all()

    # Calls

    def take_name(self, name: str) -> str:
        """Return the name in the log of a call that the code makes now."""
        if self.handed_to is not None and not self.gate.is_closed:
            raise HandedOff(run=self.run, agent=self.handed_to)
        strand = current_strand()
        self.note_call(strand)
        return current_scope().take(name, strand)

    def peek_name(self, name: str) -> str:
        """Return the name in the log that the next call with this name will have here."""
        return current_scope().peek(name)

    def last_step(self) -> int | None:
        """Return the last step that the code called in its scope, or else around it; None if there is none.

        After a resume, steps of finished turns are not called again: then this is the last step in the log.
        """
        return self.lookup.last_step(current_scope().path) or self.journal.fold.step or None

    def note_call(self, strand: Hashable) -> None:
        """Note that a strand of the code makes a durable call. Raises Suspended once the execution is closed.

        Raises WrongCall in a tool.
        """
        if is_in_tool():
            raise made_in_tool()
        self.gate.note_call()
        self.return_order.note_call(strand)
        if self.unhandled.by_strand:
            self.unhandled.go_on(strand)

    def find(self, name: str, kind: type[object], asked: str = "", versions: Versions = NOTHING) -> Record | None:
        """Return the record of a call, or None if it is new. A record of a different call stops the run."""
        try:
            record = self.lookup.find(name, kind, asked, versions)
        except Divergence as error:
            self.gate.stop(error)
            raise
        if record is None:
            self.state.apply_overrides()
            return None
        self.return_order.calls.note_made(record.seq)
        if record.shared and record.has_other_args(asked, versions):
            self.state.raise_flag(
                f"{name} has other arguments than before the fork", "the recorded result is used, as before the fork"
            )
        return record

    async def catch_up(self) -> None:
        """Wait before a call that is not recorded, while recorded ones return: the code may cancel it then."""
        quiet = waited = 0
        seen, left = self.gate.activity, self.return_order.recorded
        while left and quiet < 2 * QUIET and waited < LONGEST:
            await asyncio.sleep(0)  # noqa: TID251 - an iteration of the event loop, not time
            quiet = quiet + 1 if seen == self.gate.activity else 0
            waited = waited + 1 if left == self.return_order.recorded else 0
            seen, left = self.gate.activity, self.return_order.recorded

    async def check_new(self, name: str) -> None:
        """Stop the run before an effect that diverges from the log, after waiting until the code is quiet."""
        if self.return_order.recorded:
            await self.catch_up()
            await self.gate.wait_until_open()  # The run may have begun to park or stop meanwhile.
        try:
            try:
                self.lookup.check_new(name)
            except Divergence:
                await self.gate.wait_until_quiet()
                self.lookup.check_new(name)
        except Divergence as error:
            self.gate.stop(error)
            raise

    @property
    def effects(self) -> Effects:
        """How effects are handled in this run: executed, asked for, or stubbed."""
        return self.memory.created.effects

    def is_stubbed(self, tool: Tool[..., Any, Any]) -> bool:
        """Return whether a tool is not called here: effects are stubbed, unless the fork allows this kind of call."""
        if self.effects != "stub":
            return False
        outside: Outside = "model" if tool.kind == "model" else "reads"
        return tool.traits.effect != "none" or outside not in self.memory.created.live

    @property
    def deadline(self) -> int | None:
        """Deadline of the run, which may be extended while it runs. A compensation has none."""
        return None if self.is_undoing else self.history.deadline

    def deadline_of(self, verb: str) -> int | None:
        """Return the deadline of the run when a call ended; the current one if it has not ended yet."""
        record = self.history.records.get(verb)
        return self.deadline if record is None or record.end is None else self.history.deadline_at(record.end)

    @property
    def is_late(self) -> bool:
        """Whether the run's deadline has passed."""
        return self.deadline is not None and self.kit.now() >= self.deadline

    def deadline_error(self, verb: str) -> DeadlineExceeded:
        """Return the error of a call that the deadline ended."""
        return self.attribute_error(DeadlineExceeded(deadline=self.deadline_of(verb) or 0), verb)

    def attribute_error(self, error: E, verb: str) -> E:
        """Return the error, marked with the call that raises it now.

        If the run fails with this error, a resume makes the call again.
        """
        self.unhandled.note(verb, error)
        return error

    @contextmanager
    def noting_cancellation(self, verb: str) -> Iterator[None]:
        """Note it if the code cancels this call. If the run fails then, a resume makes the call again."""
        try:
            yield
        except asyncio.CancelledError as error:
            self.unhandled.note(verb, error)
            raise

    def random_fraction(self) -> float:
        """Return a random number from 0 to 1."""
        return float(self.kit.ids.bits(53)) / (1 << 53)
