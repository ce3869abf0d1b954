"""Finds the recorded call for a call that the code makes now, and detects divergence. Pure.

Divergence is checked when an unrecorded effect is about to start, not at the call. While the log has effects in the
same scope that the code has not called, the code has taken another path, and a new effect could be a repetition.
"""

from limpet.engine.definitions.upgrades import NOTHING, Versions
from limpet.engine.replay.history import History, Record, enclosing_scopes, scope_of
from limpet.errors import Divergence

__all__ = ["Lookup"]


class Lookup:
    """One execution of an agent's code, compared with the recorded calls."""

    def __init__(self, run: str, history: History) -> None:
        self._run = run
        self._history = history
        self._last_steps: dict[str, int] = {}
        """Number of the last step that the code called, by scope; steps of inner scopes count."""
        self._not_reached: dict[str, dict[str, Record]] = {}
        self._shared: dict[str, dict[str, Record]] = {}
        for record in history.records.values():
            if record.has_effect:
                waiting = self._shared if record.shared else self._not_reached
                waiting.setdefault(scope_of(record.name), {})[record.name] = record

    def find(self, name: str, kind: type[object], asked: str = "", versions: Versions = NOTHING) -> Record | None:
        """Return the record of a call, or None if it is new. Raises Divergence if the log has a different call.

        The record of a patch, a decision or a value is used, whatever the code passes now.
        """
        record = self._history.records.get(name)
        if record is None:
            return None
        self.reach(name)
        if not isinstance(record.opened, kind):
            raise self._divergence(name, f"the log has {type(record.opened).__name__} at this point")
        runs_again = record.settled is None and not record.has_effect
        if record.has_other_args(asked, versions) and not runs_again and not record.shared:
            raise self._divergence(name, "the log has this call with other arguments")
        return record

    def reach(self, name: str) -> None:
        """Note that the code calls a recorded effect."""
        if self._not_reached:
            self._not_reached.get(scope_of(name), {}).pop(name, None)
        if self._shared:
            self._shared.get(scope_of(name), {}).pop(name, None)

    def new_number(self) -> int:
        """Return the number of a step that is not recorded."""
        self._history.last_number += 1
        return self._history.last_number

    def note_step(self, name: str, number: int) -> None:
        """Note that the code called a step."""
        self._last_steps[""] = number
        if "/" not in name:
            return
        for scope in enclosing_scopes(scope_of(name)):
            self._last_steps[scope] = number

    def last_step_in(self, scope: str) -> int | None:
        """Return the last step that the code called in a scope."""
        return self._last_steps.get(scope)

    def last_step(self, scope: str) -> int | None:
        """Return the last step that the code called in a scope, or else around it."""
        found = (self._last_steps.get(each) for each in enclosing_scopes(scope))
        return next((number for number in found if number is not None), None)

    @property
    def has_unreached(self) -> bool:
        """Whether the log has effects that the code has not called."""
        return any(self._not_reached.values())

    def chooses_new(self, scope: str) -> bool:
        """Return the choice of an unrecorded `run.version`: False while recorded effects in its scope are ahead."""
        return not self._not_reached.get(scope) and not self._shared.get(scope)

    def check_new(self, name: str) -> None:
        """Raise Divergence before an unrecorded effect, if the code has not called all recorded effects in its scope.

        Scopes around it count, too, because code that was moved into a new scope would repeat its effects.
        """
        for scope in enclosing_scopes(scope_of(name)):
            for waiting in self._not_reached.get(scope, {}):
                raise self._divergence(name, f"the log has {waiting} at this point, which the code did not call")

    def check_end(self) -> None:
        """Raise Divergence if the code ended without calling recorded effects."""
        for scope in self._not_reached.values():
            for name in scope:
                raise self._divergence(name, "the log has this call, but the code ended without it")

    def _divergence(self, name: str, reason: str) -> Divergence:
        return Divergence(run=self._run, verb=name, reason=reason)
