"""External sources: data that a run reads, how long it is valid, and which steps need it fresh.

A read is a step. Within the time to live, the run gets the data it already has instead of a new read. Each read records
a fact, with the step that read it.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, Never, ParamSpec, Protocol, TypeVar, overload

from msgspec import Raw

from limpet.arguments import brief, defining
from limpet.clock import Duration, microseconds
from limpet.engine.definitions.call_context import Call
from limpet.engine.definitions.tools import Tool, check_function
from limpet.engine.definitions.traits import Traits
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.step import Step
from limpet.engine.replay.history import Record
from limpet.engine.replay.learned import Read
from limpet.errors import DefinitionError
from limpet.events import Fact, Payload, Seen, StatePatch, canonical, digest
from limpet.events import bodies as b
from limpet.policy.retry import READ_RETRY

__all__ = ["External", "ExternalReads", "external", "fact_key"]

P = ParamSpec("P")
T = TypeVar("T")
Same = Callable[[Any, Any], bool]
"""Returns whether the current data of a source means the same as the earlier data."""
# A failed read is retried.


class External(Generic[P, T]):
    """An external source, and how long its data is valid. Create one with `@limpet.external`."""

    def __init__(self, fn: Callable[..., Any], name: str, ttl: int, same: Same | None = None) -> None:
        self.name, self.ttl, self._same = name, ttl, same
        self.tool: Tool[..., Any, Any] = Tool(fn, name, Traits(effect="none", retry=READ_RETRY))
        self.tool.step_name, self.tool.kind = f"read:{name}", "read"

    def __repr__(self) -> str:
        return f"<external {self.name}>"

    def valid_for(self, call: Call | None) -> int:  # noqa: ARG002 - other sources use it
        """Return how many microseconds the data that this call read is valid."""
        return self.ttl

    def is_same(self, before: Any, after: Any, versions: Mapping[str, int]) -> bool:
        """Return whether two results, as JSON, are equal, or mean the same according to the source's own rule."""
        if canonical(before) == canonical(after):
            return True
        return self._same is not None and bool(
            self._same(self.tool.load_result(before, versions), self.tool.load_result(after))
        )


class _Define(Protocol):
    """Decorator that turns a function into a source."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[T]], /) -> External[P, T]: ...

    @overload
    def __call__(self, fn: Callable[P, T], /) -> External[P, T]: ...


class _Steps(Protocol):
    """Runs the steps of reads."""

    def find(
        self, tool: Tool[..., Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str | None = None
    ) -> tuple[Step, Record | None]: ...

    async def run(self, step: Step, record: Record | None) -> Any: ...


@defining
def external(*bare: Never, ttl: Duration = 0, name: str | None = None, same: Same | None = None) -> _Define:
    """Return a decorator that turns a function into an external source, which `run.read` reads.

    `ttl` is how long its data is valid. `name` defaults to the function's name. After an approval, Limpet reads the
    data again that the person saw: `same(before, after)` returns whether it still means the same. Without it, the
    values must be equal.
    """
    ttl_us = 0 if bare else microseconds(ttl)
    if ttl_us <= 0:
        reason = "pass a ttl above 0, such as @limpet.external(ttl='5m')"
        raise DefinitionError(what=name or "a source", reason=reason)

    def define(fn: Callable[..., Any], /) -> Any:
        check_function("a source", fn, name)
        return External(fn, name or fn.__name__, ttl_us, same)

    return define


class ExternalReads:
    """The external reads of one execution."""

    def __init__(self, execution: Execution, steps: _Steps) -> None:
        self._x, self._steps = execution, steps

    def find(
        self, source: External[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Return a coroutine for the read that the code calls now: valid data that the run has, or a step."""
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
        """Repeat the last read of a source, if its data has expired."""
        _check_source(source)
        x = self._x
        record = x.history.records.get(x.peek_name(source.tool.step_name))
        opened = record.opened if record is not None else None
        stored = opened.args if isinstance(opened, b.StepStarted) else x.memory.last_args(source.name)
        given = source.tool.renew(await x.recorder.unpack(stored), stored.versions) if stored is not None else {}
        args, kwargs = source.tool.unbind(given)
        return await self.find(source, args, kwargs)

    async def read_again(self, source: External[..., Any], seen: Seen, name: str) -> Any:
        """Repeat a read that a person saw, as a step with this name, and return the result as JSON."""
        x, given = self._x, {}
        if seen.args is not None:
            given = source.tool.renew(await x.recorder.unpack(seen.args), seen.args.versions)
        args, kwargs = source.tool.unbind(given)
        step, record = self._steps.find(source.tool, args, kwargs, name)
        step.is_check = True
        plain = source.tool.plain_result(await self._steps.run(step, record))
        if record is None:  # the code does not see this read, because it would not see it on replay
            until = x.kit.now() + source.valid_for(step.call)
            x.journal.add(b.ExternalRead(source=source.name, key=seen.key, number=step.number, stale_at=until))
            output, _ = step.pack(x.kit.store, x.kit.store.redaction.value(plain))
            x.memory.note_read(source.name, seen.key, Read(output, until, step.packed))
        return plain

    async def _known(self, source: External[..., Any], name: str, output: Payload, record: Record | None) -> Any:
        """Return data that the run already has, the same in every execution."""
        x = self._x
        await x.gate.wait_until_open()
        if record is not None:
            await x.recorder.recall(record, b.ValueRecorded)
        else:
            await x.recorder.finish(x.recorder.settle(b.ValueRecorded(name=name, value=output)))
        return source.tool.load_result(await x.recorder.unpack(output), output.versions)

    async def _read(self, source: External[..., Any], key: str, step: Step, record: Record | None) -> Any:
        x, name = self._x, f"{step.name}/fact#1"
        found = await self._steps.run(step, record)
        noted = x.find(name, b.StatePatched)
        if noted is not None:
            patch = (await x.recorder.recall(noted, b.StatePatched)).patch
        else:
            plain = x.kit.store.redaction.value(source.tool.plain_result(found))
            fact = Fact(
                key=fact_key(source.name, step.args),
                value=Raw(canonical(plain)),
                source=f"{source.name} (stubbed)" if step.made_up else source.name,
                step=step.number,
            )
            patch, until = StatePatch(facts=(fact,)), x.kit.now() + source.valid_for(step.call)
            x.journal.add(b.ExternalRead(source=source.name, key=key, number=step.number, stale_at=until))
            ticket = x.recorder.settle(b.StatePatched(name=name, patch=patch, number=step.number))
            output, _ = step.pack(x.kit.store, plain)
            x.memory.note_read(source.name, key, Read(output, until, step.packed))
            await x.recorder.finish(ticket, "patch_returns")
        x.state.learn(lambda working: working.apply(patch))
        return found


def _check_source(given: object) -> None:
    """Raise DefinitionError if an object is not an external source."""
    if not isinstance(given, External):
        reason = "not a source; decorate the function with @limpet.external(ttl=...)"
        raise DefinitionError(what=f"a read of {brief(given)}", reason=reason)


def fact_key(source: str, args: Mapping[str, Any]) -> str:
    """Return the key of a read's fact."""
    shown = ", ".join(f"{name}={canonical(value).decode()}" for name, value in args.items())
    return f"{source}({shown})"[:200] if shown else source
