"""Was this call already made? The hardest question of the house, answered from a history. Pure.

Divergence is judged when an unrecorded effect is about to start, not at the call: while recorded effects of the same
scope have not been asked for, the code is somewhere else than it was, and doing something new could do it twice.
"""

from collections.abc import Iterator

from limpet.engine.definitions.upgrades import NOTHING, Versions
from limpet.engine.replay.history import History, Record, scope_of
from limpet.errors import Divergence

__all__ = ["Lookup"]


def _around(scope: str) -> Iterator[str]:
    """A scope and all those that it lies in."""
    yield scope
    while scope:
        scope = scope_of(scope.removesuffix("/"))
        yield scope


class Lookup:
    """One execution of an agent's code against what is recorded."""

    def __init__(self, run: str, history: History) -> None:
        self._run = run
        self._history = history
        self._unasked: dict[str, dict[str, Record]] = {}
        self._shared: dict[str, dict[str, Record]] = {}
        for record in history.records.values():
            if record.has_effect:
                waiting = self._shared if record.shared else self._unasked
                waiting.setdefault(scope_of(record.name), {})[record.name] = record

    def find(self, name: str, kind: type[object], asked: str = "", versions: Versions = NOTHING) -> Record | None:
        """The record of a call, or nothing if it is new; raises Divergence if it was another call.

        The record of a patch, a decision or a value stands, whatever the code asks for now.
        """
        record = self._history.records.get(name)
        if record is None:
            return None
        for waiting in (self._unasked, self._shared):
            waiting.get(scope_of(name), {}).pop(name, None)
        if not isinstance(record.opened, kind):
            raise self._divergence(name, f"it is recorded as {type(record.opened).__name__}")
        runs_again = record.settled is None and not record.has_effect
        if record.is_other(asked, versions) and not runs_again and not record.shared:
            raise self._divergence(name, "it is recorded with other arguments")
        return record

    def new_number(self) -> int:
        """The number of a step that is not recorded."""
        self._history.last_number += 1
        return self._history.last_number

    def chooses_new(self, scope: str) -> bool:
        """Which side of a change an unrecorded `version` is on: the old one, while recorded effects wait."""
        return not self._unasked.get(scope) and not self._shared.get(scope)

    def check_new(self, name: str) -> None:
        """Refuse an effect that is not recorded while recorded ones wait to be asked for: of its scope, or around it.

        Those around it count too: what was moved into a new scope would be done twice.
        """
        for scope in _around(scope_of(name)):
            for waiting in self._unasked.get(scope, {}):
                raise self._divergence(name, f"{waiting} is recorded there, and the code has not come to it")

    def check_end(self) -> None:
        """Refuse the end of the code while recorded effects were not asked for."""
        for scope in self._unasked.values():
            for name in scope:
                raise self._divergence(name, "it is recorded, and the code ended without it")

    def _divergence(self, name: str, reason: str) -> Divergence:
        return Divergence(run=self._run, verb=name, reason=reason)
