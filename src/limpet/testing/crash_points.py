"""Faults: a store under a process that dies right before or right after a commit."""

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
    """Where a process dies: about the n-th commit of events that match."""

    when: When
    matches: Callable[[Bodies], bool]
    nth: int = 1

    def is_here(self, when: When, bodies: Bodies) -> bool:
        """Count down; whether this is the place."""
        if when != self.when or not self.matches(bodies):
            return False
        self.nth -= 1
        return self.nth == 0


def events(kind: str, facts: Mapping[str, Any]) -> Callable[[Bodies], bool]:
    """What matches commits with an event of a kind that says this; any commit, if nothing is said."""
    if kind and kind not in {each.name for each in KINDS}:
        raise DefinitionError(what="A crash", reason=f"no event is called {kind!r}")
    _check_facts(kind, facts)

    def fits(body: AnyBody) -> bool:
        named = not kind or VOCABULARY.kind_of(body).name == kind
        return named and all(getattr(body, name, None) == value for name, value in facts.items())

    return lambda bodies: not (kind or facts) or any(map(fits, bodies))


def _check_facts(kind: str, facts: Mapping[str, Any]) -> None:
    """Refuse what no such event ever says: it would never fit."""
    known = [each.body.__struct_fields__ for each in KINDS if kind in ("", each.name)]
    if not any(facts.keys() <= set(names) for names in known):
        says = f"{kind} says {', '.join(known[0]) or 'nothing'}" if kind else "no event says all of that"
        raise DefinitionError(what="A crash", reason=f"nothing has {', '.join(facts)}: {says}")


def describe_events(bodies: Bodies) -> str:
    """Events in words: `step.started pay#1`, `turn.started turns#1/2`."""
    names = [getattr(body, "name", None) or "" for body in bodies]
    turns = [f"{body.loop}/{body.number}" if isinstance(body, b.TurnStarted) else "" for body in bodies]
    kinds = [VOCABULARY.kind_of(body).name for body in bodies]
    return ", ".join(" ".join(filter(None, each)) for each in zip(kinds, names, turns, strict=True)) or "a transaction"


class FaultyStore(Store):
    """A store whose worker dies at faults: it hears of nothing any more, and writes nothing. Others go on."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend, Inline())
        self.faults: list[CrashPoint] = []
        self.died_at = ""
        """The events of the commit about which it died, in words."""
        self.is_down = False
        self.die: Callable[[], object] = lambda: None
        """Told when it dies."""

    def _commit(self, batch: Sequence[writes.Op[Any]]) -> list[Outcome]:
        return [self._one(op) for op in batch]

    def _one(self, op: writes.Op[Any]) -> Outcome:
        self._come("before", _bodies(op))
        if self._is_deaf(op):
            return _silence(op)
        [done] = super()._commit([op])
        if not isinstance(done, LimpetError | Missed | Taken):
            self._come("after", [each.body for each in done.events] if isinstance(done, Transacted) else _bodies(op))
        return _silence(op) if self._is_deaf(op) else done

    def _come(self, when: When, bodies: Bodies | None) -> None:
        if bodies is None or self.is_down:
            return
        here = [fault.is_here(when, bodies) for fault in self.faults]  # all of them count
        if any(here):
            self.is_down, self.died_at = True, describe_events(bodies)
            self.die()

    def _is_deaf(self, op: writes.Op[Any]) -> bool:
        """Whether it comes from the process that died: creations and commands come from others."""
        others = isinstance(op, writes.Append) and all(isinstance(leg, Create | SendCommands) for leg in op.legs)
        return self.is_down and not others


def _bodies(op: writes.Op[Any]) -> Bodies | None:
    """The events of a commit; nothing for one that adds none to a log by itself."""
    if isinstance(op, writes.Append):
        sealed = [each.body for leg in op.legs if isinstance(leg, Extend) for each in leg.events]
        return [*sealed, *(body for leg in op.legs if isinstance(leg, Create | SendCommands) for body in leg.bodies)]
    return () if isinstance(op, writes.Transact) else None


def _silence(op: writes.Op[Any]) -> Outcome:
    return () if isinstance(op, writes.Claim) else ConnectionLost(reason="its process was killed")
