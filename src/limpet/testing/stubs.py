"""Tools in tests: what they are called with is kept, and what they return can be said."""

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from limpet.engine.definitions.call_context import Call
from limpet.engine.definitions.tools import Tool
from limpet.engine.execution.user_code import Bound, UserCode
from limpet.errors import InvalidValue
from limpet.events import canonical

__all__ = ["Stubs", "Witness"]


class Witness:
    """What came of effects, by their keys: what a person finds out who is asked. In a file it outlives a process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, list[Any]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._known.update(json.loads(line))

    def note(self, key: str, *result: Any) -> None:
        """An effect began, or gave a result."""
        line = canonical({key: [*result]}) + b"\n"
        self._known[key] = [*result]
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(line)

    def say(self, key: str) -> Any:
        """What came of it, as a request of kind "unknown" is answered; nothing if that cannot be known."""
        known = self._known.get(key)
        if known is None:
            return "not_applied"
        return {"applied": known[0]} if known else None


class Stubs(UserCode):
    """Calls functions as a worker does, unless a tool is stubbed."""

    def __init__(self) -> None:
        super().__init__()
        self.witness = Witness()
        self._results: dict[str, list[Any]] = {}
        self.calls: dict[str, list[Mapping[str, Any]]] = {}

    def stub(self, tool: Tool[..., Any, Any], results: tuple[Any, ...]) -> None:
        """What a tool returns or raises, call by call; the last one for all further calls."""
        if not results:
            raise ValueError(f"say what {tool.name} returns, or the error that it raises")
        self._results[tool.name] = list(results)

    async def __call__(self, tool: Tool[..., Any, Any], /, fn: Callable[..., Any], args: Bound, call: Call) -> Any:
        """What the stub says, else what the function returns."""
        if fn is not tool.fn:
            return await super().__call__(tool, fn, args, call)
        self._note(tool, args)
        if tool.traits.effect == "none":
            return await self._result(tool, args, call)
        self.witness.note(call.key)
        result = await self._result(tool, args, call)
        with suppress(InvalidValue):  # it cannot be stored: whoever stores it says so
            self.witness.note(call.key, tool.plain_result(result))
        return result

    async def _result(self, tool: Tool[..., Any, Any], args: Bound, call: Call) -> Any:
        return self._next(tool) if tool.name in self._results else await super().__call__(tool, tool.fn, args, call)

    def is_stubbed(self, tool: Tool[..., Any, Any]) -> bool:
        """Whether a test says what it returns."""
        return tool.name in self._results

    def call_inline(self, tool: Tool[..., Any, Any], args: Bound, call: Call) -> Any:
        """The same for a function that is a transaction."""
        self._note(tool, args)
        return self._next(tool) if tool.name in self._results else super().call_inline(tool, args, call)

    def _note(self, tool: Tool[..., Any, Any], args: Bound) -> None:
        bound = inspect.signature(tool.fn).bind(*args[0], **args[1])
        self.calls.setdefault(tool.name, []).append(dict(bound.arguments))

    def _next(self, tool: Tool[..., Any, Any]) -> Any:
        results = self._results[tool.name]
        result = results.pop(0) if len(results) > 1 else results[0]
        if isinstance(result, BaseException):
            raise result
        return result
