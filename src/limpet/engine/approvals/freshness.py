"""Steps that need fresh data, `fresh=[source]`: the data that a person saw when they approved must still be valid.

A person may take days to answer, longer than any data is valid. So the request records the data, and after the approval
exactly that is read again. If it is the same, the step runs. If it has changed, the person is asked again, with both
values.
"""

import logging
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple, NoReturn

from limpet.engine.approvals.externals import External, ExternalReads, fact_key
from limpet.engine.approvals.refusals import STALE, NewStep, refusal_value, refused_facts
from limpet.engine.definitions.tools import Tool
from limpet.engine.execution.execution import Execution
from limpet.errors import Stale
from limpet.events import Seen, canonical
from limpet.events import bodies as b

__all__ = ["Freshness", "SourceChange"]

log = logging.getLogger("limpet")

# Maximum length of a value in a question, in characters.
MAX_SHOWN = 200


class SourceChange(NamedTuple):
    """A source whose data has changed since a person approved."""

    source: str
    text: str


class Freshness:
    """Checks whether the external data that the steps of one execution depend on is fresh."""

    def __init__(self, execution: Execution, reads: ExternalReads) -> None:
        self._x, self._reads = execution, reads

    def stale(self, tool: Tool[..., Any, Any]) -> str | None:
        """Return the first source of a tool without valid data, or None."""
        return self._x.memory.stale(tool.traits.fresh, self._x.kit.now())

    async def recall(self, name: str) -> None:
        """Raise Stale again, if it was recorded for this step."""
        refused = self._x.find(f"{name}{STALE}", b.ValueRecorded)
        if refused is not None:
            recorded = await self._x.recorder.recall(refused, b.ValueRecorded)
            raise self._x.attribute_error(Stale(**refused_facts(recorded)), refused.name)

    async def refuse(self, step: NewStep, source: str) -> NoReturn:
        """Refuse a step with out-of-date data: record it, raise a risk flag, and raise Stale."""
        stale, refusal = Stale(tool=step.tool, source=source), f"{step.name}{STALE}"
        self._x.state.raise_flag(f"stale: {step.tool}", stale.summary)
        await self._x.recorder.record(refusal, refusal_value(step, stale))
        raise self._x.attribute_error(stale, refusal)

    def seen(self, tool: Tool[..., Any, Any]) -> tuple[Seen, ...]:
        """Return the valid data of a tool's sources."""
        now, names = self._x.kit.now(), tool.traits.fresh
        return tuple(
            Seen(source=source, key=key, args=read.args, value=read.output)
            for (source, key), read in self._x.memory.reads.items()
            if source in names and read.stale_at > now
        )

    async def changes(self, tool: Tool[..., Any, Any], request: str, seen: Sequence[Seen]) -> list[SourceChange]:
        """Read the data again that a person saw and that has expired; return the changes."""
        sources = {source.name: source for source in tool.fresh if isinstance(source, External)}
        found = []
        for each in seen:
            source = sources.get(each.source)
            if source is None:
                continue  # the current code does not depend on it
            before = await self._x.recorder.unpack(each.value)
            after = await self._current(source, each, f"{request}/{source.tool.step_name}:{each.key[:8]}")
            if not _is_same(source, before, after, each):
                args = await self._x.recorder.unpack(each.args) if each.args is not None else {}
                what = fact_key(source.name, args)
                found.append(SourceChange(source.name, f"{what} has changed from {_brief(before)} to {_brief(after)}"))
        return found

    async def _current(self, source: External[..., Any], seen: Seen, name: str) -> Any:
        """Return the current data of a source: valid data that the run has, or a new read."""
        x = self._x
        for occurrence in count(1):
            step = f"{name}#{occurrence}"
            is_recorded = step in x.history.records
            known = x.memory.reads.get((seen.source, seen.key))
            if not is_recorded and known is not None and known.stale_at > x.kit.now():
                return await x.recorder.unpack(known.output)
            value = await self._reads.read_again(source, seen, step)
            if not is_recorded:
                return value
        raise AssertionError


def _is_same(source: External[..., Any], before: Any, after: Any, seen: Seen) -> bool:
    """Return whether two values mean the same. If the comparison fails, a person decides."""
    try:
        return source.is_same(before, after, seen.value.versions)
    except Exception:
        log.exception("source %s: comparing the old and new data failed; asking the person again", source.name)
        return False


def _brief(value: Any) -> str:
    text = canonical(value).decode()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
