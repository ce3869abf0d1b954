"""Tools in tests: what they are called with is kept, and what they return can be said."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from limpet.engine.call import Call
from limpet.engine.functions import Bound, Functions
from limpet.engine.tools import Tool

__all__ = ["Stubs"]


class Stubs(Functions):
    """Calls functions as a worker does, unless a tool is stubbed."""

    def __init__(self) -> None:
        super().__init__()
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
        if tool.name not in self._results:
            return await super().__call__(tool, fn, args, call)
        return self._next(tool)

    def directly(self, tool: Tool[..., Any, Any], args: Bound, call: Call) -> Any:
        """The same for a function that is a transaction."""
        self._note(tool, args)
        return self._next(tool) if tool.name in self._results else super().directly(tool, args, call)

    def _note(self, tool: Tool[..., Any, Any], args: Bound) -> None:
        bound = inspect.signature(tool.fn).bind(*args[0], **args[1])
        self.calls.setdefault(tool.name, []).append(dict(bound.arguments))

    def _next(self, tool: Tool[..., Any, Any]) -> Any:
        results = self._results[tool.name]
        result = results.pop(0) if len(results) > 1 else results[0]
        if isinstance(result, BaseException):
            raise result
        return result
