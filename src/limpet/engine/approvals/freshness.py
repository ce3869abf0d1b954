"""Tools that must not go by old news, `fresh=[source]`: what a person saw when they approved one still has to hold.

A person may take days to answer, longer than any source holds. So the request records what the sources had said, and
after the approval exactly that is read again. If it is the same, the approval holds and the action runs; if it has
changed, the person is asked again, with both values.
"""

import logging
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple, NoReturn

from limpet.engine.approvals.externals import External, ExternalReads, fact_key
from limpet.engine.definitions.tools import Tool
from limpet.engine.execution.execution import Execution
from limpet.errors import Stale
from limpet.events import Seen, canonical
from limpet.events import bodies as b

__all__ = ["Freshness", "SourceChange"]

log = logging.getLogger("limpet")

# How much of a value is shown in a question.
BRIEF = 200


class SourceChange(NamedTuple):
    """A source that says something else than when a person approved."""

    source: str
    words: str


class Freshness:
    """What the tools of one execution know of the outside, and whether that still holds."""

    def __init__(self, execution: Execution, reads: ExternalReads) -> None:
        self._x, self._reads = execution, reads

    def stale(self, tool: Tool[..., Any, Any]) -> str | None:
        """The first source that a tool goes by, and of which nothing is known that still holds."""
        return self._x.memory.stale(tool.traits.fresh, self._x.kit.now())

    async def recall(self, name: str) -> None:
        """Raise what the code was told before of a step that would have gone by old news."""
        refused = self._x.find(f"{name}/stale#1", b.ValueRecorded)
        if refused is not None:
            told = await self._x.recall(refused, b.ValueRecorded)
            raise self._x.attribute_error(Stale(**told.value.value()), refused.name)

    async def refuse(self, tool: Tool[..., Any, Any], name: str, source: str) -> NoReturn:
        """Tell the code, and whoever looks at the run, that a step does not start on old news."""
        stale, refusal = Stale(tool=tool.name, source=source), f"{name}/stale#1"
        self._x.raise_flag(f"stale: {tool.name}", stale.summary)
        await self._x.record(refusal, stale.facts)
        raise self._x.attribute_error(stale, refusal)

    def seen(self, tool: Tool[..., Any, Any]) -> tuple[Seen, ...]:
        """What the sources of a tool have said that still holds."""
        now, names = self._x.kit.now(), tool.traits.fresh
        return tuple(
            Seen(source=source, key=key, args=read.args, value=read.output)
            for (source, key), read in self._x.memory.reads.items()
            if source in names and read.stale_at > now
        )

    async def changes(self, tool: Tool[..., Any, Any], request: str, seen: Sequence[Seen]) -> list[SourceChange]:
        """Read again what was seen and does not hold any more; what is different now."""
        sources = {source.name: source for source in tool.fresh if isinstance(source, External)}
        found = []
        for each in seen:
            source = sources.get(each.source)
            if source is None:
                continue  # today's tool does not go by it
            before = await self._x.unpack(each.value)
            after = await self._current(source, each, f"{request}/{source.tool.step_name}:{each.key[:8]}")
            if not _is_same(source, before, after, each):
                args = await self._x.unpack(each.args) if each.args is not None else {}
                what = fact_key(source.name, args)
                found.append(SourceChange(source.name, f"{what} was {_brief(before)} then, and is {_brief(after)} now"))
        return found

    async def _current(self, source: External[..., Any], seen: Seen, name: str) -> Any:
        """What a source says now: what is known, if that still holds, else what it says when it is read once more."""
        x = self._x
        for occurrence in count(1):
            step = f"{name}#{occurrence}"
            is_recorded = step in x.history.records
            known = x.memory.reads.get((seen.source, seen.key))
            if not is_recorded and known is not None and known.stale_at > x.kit.now():
                return await x.unpack(known.output)
            value = await self._reads.once_more(source, seen, step)
            if not is_recorded:
                return value
        raise AssertionError


def _is_same(source: External[..., Any], before: Any, after: Any, seen: Seen) -> bool:
    """Whether two values mean the same; if their comparison fails, a person decides."""
    try:
        return source.is_same(before, after, seen.value.versions)
    except Exception:
        log.exception("what %s said cannot be compared with what it says now: a person is asked again", source.name)
        return False


def _brief(value: Any) -> str:
    text = canonical(value).decode()
    return text if len(text) <= BRIEF else f"{text[:BRIEF]}…"
