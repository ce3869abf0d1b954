"""Identity of a call: `name#occurrence` within a scope, taken when it is called, whatever the order of results.

A scope belongs to one strand: the asyncio task or the thread that opened it. If two strands made calls in one scope,
their occurrences could differ in the next execution, and results would be swapped silently.
"""

from collections import Counter
from collections.abc import Hashable

from limpet.errors import WrongCall

__all__ = ["Scope", "unscoped"]


class Scope:
    """A scope in an agent's code, in which occurrences of names are counted."""

    def __init__(self, path: str, owner: Hashable, outer: "Scope | None" = None) -> None:
        self.path, self.owner, self.outer = path, owner, outer
        self._counts: Counter[str] = Counter()
        self._inner: dict[str, Hashable] = {}

    def take(self, name: str, strand: Hashable) -> str:
        """Return the name in the log of a call that is made now: scope, name and count."""
        self.count(name, strand)
        return f"{self.path}{name}#{self._counts[name]}"

    def count(self, name: str, strand: Hashable) -> None:
        """Count a call that is made now, like `take`, whose name in the log `peek` has returned."""
        if strand != self.owner:
            raise unscoped(name, self.path)
        self._counts[name] += 1

    def peek(self, name: str) -> str:
        """Return the name in the log that the next call with this name will have."""
        return f"{self.path}{name}#{self._counts[name] + 1}"

    def enter(self, name: str, strand: Hashable) -> "Scope":
        """Return a scope inside this one, for the strand that enters it. A name belongs to one strand."""
        if self._inner.setdefault(name, strand) != strand:
            raise unscoped(f"scope({name!r})", self.path)
        self._counts[f"{name}/"] += 1
        occurrence = self._counts[f"{name}/"]
        path = f"{self.path}{name}/" if occurrence == 1 else f"{self.path}{name}#{occurrence}/"
        return Scope(path, strand, self)

    def turn(self, loop: str, number: int) -> "Scope":
        """Return the scope of one turn of a loop."""
        return Scope(f"{loop}/{number}/", self.owner, self)


def unscoped(verb: str, path: str = "") -> WrongCall:
    """Return the error for parallel code without a scope of its own: after a crash its results could swap."""
    where = path or "the agent's body"
    reason = f"{verb} was called from parallel code in {where}, which belongs to another task or thread"
    fix = 'Wrap each branch: `async with run.scope("name"):`. A blocking agent has one; use `async def` for more.'
    return WrongCall(reason=reason, fix=fix)
