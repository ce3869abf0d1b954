"""Inject crashes: a store whose worker dies just before or after a commit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from limpet.errors import ConnectionLost, DefinitionError, LimpetError
from limpet.events import KINDS, VOCABULARY, AnyBody
from limpet.events import bodies as b
from limpet.stores import Backend, Create, Extend, Inline, Missed, SendCommands, Store, Taken, Transacted, writes
from limpet.stores.backend import Outcome

__all__ = ["CrashPoint", "FaultyStore", "When", "describe_events", "events"]

When = Literal["before", "after"]
Bodies = Sequence[AnyBody]


@dataclass
class CrashPoint:
    """A crash point: before or after the n-th commit of matching events."""

    when: When
    matches: Callable[[Bodies], bool]
    nth: int = 1

    def is_here(self, when: When, bodies: Bodies) -> bool:
        """Count a matching commit, and return whether the crash happens here."""
        if when != self.when or not self.matches(bodies):
            return False
        self.nth -= 1
        return self.nth == 0


def events(kind: str, facts: Mapping[str, Any]) -> Callable[[Bodies], bool]:
    """Return a predicate for commits with an event of this kind and these fields; for any commit, if both are empty."""
    if kind and kind not in {each.name for each in KINDS}:
        raise DefinitionError(what="a crash point", reason=f"unknown kind of event {kind!r}")
    _check_facts(kind, facts)

    def fits(body: AnyBody) -> bool:
        named = not kind or VOCABULARY.kind_of(body).name == kind
        return named and all(getattr(body, name, None) == value for name, value in facts.items())

    return lambda bodies: not (kind or facts) or any(map(fits, bodies))


def _check_facts(kind: str, facts: Mapping[str, Any]) -> None:
    """Raise DefinitionError for fields that no such event has: they would never match."""
    known = [each.body.__struct_fields__ for each in KINDS if kind in ("", each.name)]
    if not any(facts.keys() <= set(names) for names in known):
        have = f"{kind} has {', '.join(known[0]) or 'none'}" if kind else "no event has all of them"
        raise DefinitionError(what="a crash point", reason=f"unknown fields {', '.join(facts)}; {have}")


def describe_events(bodies: Bodies) -> str:
    """Return events as text: `step.started pay#1`, `turn.started turns#1/2`."""
    names = [getattr(body, "name", None) or "" for body in bodies]
    turns = [f"{body.loop}/{body.number}" if isinstance(body, b.TurnStarted) else "" for body in bodies]
    kinds = [VOCABULARY.kind_of(body).name for body in bodies]
    return ", ".join(" ".join(filter(None, each)) for each in zip(kinds, names, turns, strict=True)) or "a transaction"


class FaultyStore(Store):
    """A store whose worker dies at crash points: its calls then fail, and write nothing. Other processes are not
    affected.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend, Inline())
        self.faults: list[CrashPoint] = []
        self.died_at = ""
        """Description of the events of the commit at which the worker died."""
        self.is_down = False
        self.die: Callable[[], object] = lambda: None
        """Called when the worker dies."""

    def _commit(self, batch: Sequence[writes.Op[Any]]) -> list[Outcome]:
        return [self._one(op) for op in batch]

    def _commit_now(self, extension: writes.Extension) -> None:
        """Do nothing: every commit passes the crash points."""

    def _one(self, op: writes.Op[Any]) -> Outcome:
        self._check_faults("before", self._bodies(op))
        if self._is_from_dead_worker(op):
            return _no_reply(op)
        [done] = super()._commit([op])
        if done is not False and not isinstance(done, LimpetError | Missed | Taken):
            self._check_faults(
                "after", [each.body for each in done.events] if isinstance(done, Transacted) else self._bodies(op)
            )
        return _no_reply(op) if self._is_from_dead_worker(op) else done

    def _bodies(self, op: writes.Op[Any]) -> Bodies | None:
        """Return the events of a write, or None if it appends none on its own."""
        if isinstance(op, writes.Extension):
            return [self.decode(event) for event in op.events]
        if isinstance(op, writes.Append):
            sealed = [each.body for leg in op.legs if isinstance(leg, Extend) for each in leg.events]
            return [
                *sealed,
                *(body for leg in op.legs if isinstance(leg, Create | SendCommands) for body in leg.bodies),
            ]
        return () if isinstance(op, writes.Transact) else None

    def _check_faults(self, when: When, bodies: Bodies | None) -> None:
        if bodies is None or self.is_down:
            return
        here = [fault.is_here(when, bodies) for fault in self.faults]  # count every fault
        if any(here):
            self.is_down, self.died_at = True, describe_events(bodies)
            self.die()

    def _is_from_dead_worker(self, op: writes.Op[Any]) -> bool:
        """Return whether a write comes from the dead worker: creations and commands come from other processes."""
        others = isinstance(op, writes.Append) and all(isinstance(leg, Create | SendCommands) for leg in op.legs)
        return self.is_down and not others


def _no_reply(op: writes.Op[Any]) -> Outcome:
    return () if isinstance(op, writes.Claim) else ConnectionLost(reason="the process was killed")
