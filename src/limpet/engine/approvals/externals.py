"""The outside world as a run knows it: sources that are read, how long that holds, and what must not go by old news.

A read is a step like any other. Within its time to live it is not made again: the run is given what it knows. What it
knows is a fact, as of the step that read it.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, Never, ParamSpec, Protocol, TypeVar, overload

from msgspec import Raw

from limpet.arguments import brief, defining
from limpet.clock import Duration, microseconds
from limpet.engine.definitions.tools import Tool, check_function
from limpet.engine.definitions.traits import Traits
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.step import Step
from limpet.engine.replay.history import Record
from limpet.engine.replay.learned import Read
from limpet.errors import DefinitionError
from limpet.events import Fact, Payload, Seen, StatePatch, canonical, digest
from limpet.events import bodies as b
from limpet.policy.retry import Retry

__all__ = ["External", "ExternalReads", "external", "fact_key"]

P = ParamSpec("P")
T = TypeVar("T")
Same = Callable[[Any, Any], bool]
"""Whether what a source says now means the same as what it said before."""
# A source that does not answer is asked again a few times.
PATIENCE = Retry(3)


class External(Generic[P, T]):
    """A source outside, and how long what it says holds."""

    def __init__(self, fn: Callable[..., Any], name: str, ttl: int, same: Same | None = None) -> None:
        self.name, self.ttl, self._same = name, ttl, same
        self.tool: Tool[..., Any, Any] = Tool(fn, name, Traits(effect="none", retry=PATIENCE))
        self.tool.step_name, self.tool.kind = f"read:{name}", "read"

    def __repr__(self) -> str:
        return f"<external {self.name}>"

    def is_same(self, before: Any, after: Any, versions: Mapping[str, int]) -> bool:
        """Whether two results, as JSON, are equal, or mean the same by the source's own rule."""
        if canonical(before) == canonical(after):
            return True
        return self._same is not None and bool(
            self._same(self.tool.load_result(before, versions), self.tool.load_result(after))
        )


class _Define(Protocol):
    """What makes a function a source."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[T]], /) -> External[P, T]: ...

    @overload
    def __call__(self, fn: Callable[P, T], /) -> External[P, T]: ...


class _Steps(Protocol):
    """What runs the steps that reads are."""

    def find(
        self, tool: Tool[..., Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str | None = None
    ) -> tuple[Step, Record | None]: ...

    async def run(self, step: Step, record: Record | None) -> Any: ...


@defining
def external(*bare: Never, ttl: Duration = 0, name: str | None = None, same: Same | None = None) -> _Define:
    """Declare a source outside: what `run.read` gives of it holds for a time.

    `same(before, after)` tells whether a value that was read again after an approval still means what the person saw;
    without it, the values must be equal.
    """
    lives = 0 if bare else microseconds(ttl)
    if lives <= 0:
        reason = "what it says must hold for some time: say @limpet.external(ttl='5m')"
        raise DefinitionError(what=name or "A source", reason=reason)

    def define(fn: Callable[..., Any], /) -> Any:
        check_function("A source", fn, name)
        return External(fn, name or fn.__name__, lives, same)

    return define


class ExternalReads:
    """What one execution reads outside."""

    def __init__(self, execution: Execution, steps: _Steps) -> None:
        self._x, self._steps = execution, steps

    def find(
        self, source: External[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """The read that the code asks for now: what is known, if that still holds, else a step."""
        _check_source(source)
        x, tool = self._x, source.tool
        bound = tool.bind(args, kwargs, x.kit.store.redaction)
        name, key = x.take_name(tool.step_name), digest(bound)
        before = x.history.records.get(name)
        known = x.memory.reads.get((source.name, key))
        if before is None and known is not None and known.stale_at > x.kit.now():
            return self._known(source, name, known.output, None)
        if before is not None and isinstance(before.opened, b.ValueRecorded):
            return self._known(source, name, before.opened.value, x.find(name, b.ValueRecorded))
        step, record = self._steps.find(tool, args, kwargs, name)
        return self._read(source, key, step, record)

    async def again(self, source: External[..., Any]) -> Any:
        """The same that was read last, once more where that does not hold any more."""
        _check_source(source)
        x = self._x
        record = x.history.records.get(x.peek_name(source.tool.step_name))
        opened = record.opened if record is not None else None
        asked = opened.args if isinstance(opened, b.StepStarted) else x.memory.last_asked(source.name)
        given = source.tool.renew(await x.unpack(asked), asked.versions) if asked is not None else {}
        args, kwargs = source.tool.unbind(given)
        return await self.find(source, args, kwargs)

    async def once_more(self, source: External[..., Any], seen: Seen, name: str) -> Any:
        """Read what a person saw again, as a step of this name; the result as JSON."""
        given = source.tool.renew(await self._x.unpack(seen.args), seen.args.versions) if seen.args is not None else {}
        args, kwargs = source.tool.unbind(given)
        x = self._x
        step, record = self._steps.find(source.tool, args, kwargs, name)
        step.is_check = True
        plain = source.tool.plain_result(await self._steps.run(step, record))
        if record is None:  # the code is not told: it would not be told again when it is resumed
            until = x.kit.now() + source.ttl
            x.journal.add(b.ExternalRead(source=source.name, key=seen.key, number=step.number, stale_at=until))
            output, _ = step.pack(x.kit.store, x.kit.store.redaction.value(plain))
            x.memory.note_read(source.name, seen.key, Read(output, until, step.packed))
        return plain

    async def _known(self, source: External[..., Any], name: str, output: Payload, record: Record | None) -> Any:
        """What was read before, the same in every execution."""
        x = self._x
        await x.wait_until_open()
        if record is not None:
            await x.recall(record, b.ValueRecorded)
        else:
            await x.finish(x.settle(b.ValueRecorded(name=name, value=output)))
        return source.tool.load_result(await x.unpack(output), output.versions)

    async def _read(self, source: External[..., Any], key: str, step: Step, record: Record | None) -> Any:
        x, name = self._x, f"{step.name}/fact#1"
        found = await self._steps.run(step, record)
        noted = x.find(name, b.StatePatched)
        if noted is not None:
            patch = (await x.recall(noted, b.StatePatched)).patch
        else:
            plain = x.kit.store.redaction.value(source.tool.plain_result(found))
            fact = Fact(
                key=fact_key(source.name, step.args),
                value=Raw(canonical(plain)),
                source=f"{source.name} (made up)" if step.made_up else source.name,
                step=step.number,
            )
            patch, until = StatePatch(facts=(fact,)), x.kit.now() + source.ttl
            x.journal.add(b.ExternalRead(source=source.name, key=key, number=step.number, stale_at=until))
            ticket = x.settle(b.StatePatched(name=name, patch=patch, number=step.number))
            output, _ = step.pack(x.kit.store, plain)
            x.memory.note_read(source.name, key, Read(output, until, step.packed))
            await x.finish(ticket, "patch_returns")
        x.learn(lambda working: working.apply(patch))
        return found


def _check_source(given: object) -> None:
    """Refuse what is no source, where one is wanted."""
    if not isinstance(given, External):
        reason = "it is no source: put @limpet.external(ttl=...) on the function"
        raise DefinitionError(what=f"A read of {brief(given)}", reason=reason)


def fact_key(source: str, args: Mapping[str, Any]) -> str:
    """What a read is called among the facts."""
    said = ", ".join(f"{name}={canonical(value).decode()}" for name, value in args.items())
    return f"{source}({said})"[:200] if said else source
