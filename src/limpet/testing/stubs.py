"""Call tools in tests: record their arguments, and return stubbed results."""

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

__all__ = ["EffectLog", "Stubs"]


class EffectLog:
    """Records the outcome of effects by idempotency key, to answer questions about unknown outcomes. A file survives
    kills.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, list[Any]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._known.update(json.loads(line))

    def record(self, key: str, *result: Any) -> None:
        """Record that an effect started, or its result."""
        line = canonical({key: [*result]}) + b"\n"
        self._known[key] = [*result]
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(line)

    def answer(self, key: str) -> Any:
        """Return the answer to a request of kind "unknown", or None if the outcome is unknown."""
        known = self._known.get(key)
        if known is None:
            return "not_applied"
        return {"applied": known[0]} if known else None


class Stubs(UserCode):
    """Calls tools as a worker does, unless they are stubbed."""

    def __init__(self) -> None:
        super().__init__()
        self.effect_log = EffectLog()
        self._results: dict[str, list[Any]] = {}
        self.calls: dict[str, list[Mapping[str, Any]]] = {}

    def stub(self, tool: Tool[..., Any, Any], results: tuple[Any, ...]) -> None:
        """Set what a tool returns or raises, one value per call. The last one is used for all further calls."""
        if not results:
            raise ValueError(f"pass at least one result or exception for {tool.name}")
        self._results[tool.name] = list(results)

    async def __call__(self, tool: Tool[..., Any, Any], /, fn: Callable[..., Any], args: Bound, call: Call) -> Any:
        """Return the stubbed result, or call the function."""
        if fn is not tool.fn:
            return await super().__call__(tool, fn, args, call)
        self._note(tool, args)
        if tool.traits.effect == "none":
            return await self._result(tool, args, call)
        self.effect_log.record(call.key)
        result = await self._result(tool, args, call)
        with suppress(InvalidValue):  # the engine reports results that cannot be stored
            self.effect_log.record(call.key, tool.plain_result(result))
        return result

    async def _result(self, tool: Tool[..., Any, Any], args: Bound, call: Call) -> Any:
        return self._next(tool) if tool.name in self._results else await super().__call__(tool, tool.fn, args, call)

    def is_stubbed(self, tool: Tool[..., Any, Any]) -> bool:
        """Return whether a tool is stubbed."""
        return tool.name in self._results

    def call_inline(self, tool: Tool[..., Any, Any], args: Bound, call: Call) -> Any:
        """Return the stubbed result of a transaction, or call the function."""
        self._note(tool, args)
        return self._next(tool) if tool.name in self._results else super().call_inline(tool, args, call)

    def _note(self, tool: Tool[..., Any, Any], args: Bound) -> None:
        self.calls.setdefault(tool.name, []).append(tool.passed(*args))

    def _next(self, tool: Tool[..., Any, Any]) -> Any:
        results = self._results[tool.name]
        result = results.pop(0) if len(results) > 1 else results[0]
        if isinstance(result, BaseException):
            raise result
        return result
