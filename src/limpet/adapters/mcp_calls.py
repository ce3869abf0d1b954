"""Tools and resources of an MCP server as tools and external sources of a run, with their own parameters."""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

import msgspec

from limpet.engine.approvals.externals import External
from limpet.engine.definitions.call_context import Call, current
from limpet.engine.definitions.schema_check import faults
from limpet.engine.definitions.tools import LiveArgument, Tool
from limpet.engine.definitions.traits import Traits
from limpet.errors import DefinitionError, InvalidArgument
from limpet.redaction import NOTHING, Redaction
from limpet.secret import Secret, hidden

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ReadResourceResult

__all__ = ["MCPResource", "MCPTool", "content_of", "result_of", "revealed"]

_VARIABLE = re.compile(r"\{(\w+)\}")


class MCPTool(Tool[..., Any, Any]):
    """A tool of an MCP server. Its parameters are the properties of the server's schema, and are passed by name."""

    def __init__(
        self, call: Callable[..., Awaitable[Any]], name: str, traits: Traits, listed: Mapping[str, Any]
    ) -> None:
        super().__init__(call, name, traits)
        self.listed = listed
        """The tool as the server listed it."""
        self.__doc__ = listed.get("description") or listed.get("title") or listed["name"]
        self.schema = listed["inputSchema"]  # in place of the one from a signature

    def bind(
        self, args: Sequence[object], kwargs: Mapping[str, object], redaction: Redaction = NOTHING
    ) -> dict[str, Any]:
        """Return the arguments as JSON by name, as the server gets them. Raises InvalidArgument if they do not fit."""
        recorded: dict[str, Any] = redaction.value(self._checked(args, kwargs))
        return recorded

    def live(
        self, args: Sequence[object], kwargs: Mapping[str, object], redaction: Redaction = NOTHING
    ) -> dict[str, LiveArgument]:
        """Return the arguments that are recorded differently: they contain a secret, or text that is redacted."""
        plain = self._checked(args, kwargs)
        found = {name: LiveArgument(redaction.value({name: plain[name]})[name], kwargs[name]) for name in kwargs}
        return {name: each for name, each in found.items() if each.recorded != each.value}

    def unbind(
        self, given: Mapping[str, Any], live: Mapping[str, LiveArgument] = MappingProxyType({})
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for the server from recorded, perhaps edited, ones. Raises InvalidArgument."""
        real = {name: each.value for name, each in live.items() if given.get(name, each.recorded) == each.recorded}
        named = {**given, **real}
        self._checked((), named)
        return (), named

    def passed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - by name only
        """Return the arguments of a call."""
        return dict(kwargs)

    def _checked(self, args: Sequence[object], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as JSON. Raises InvalidArgument if they do not fit the server's schema."""
        if args:
            names = ", ".join(self.schema.get("properties", {}))
            raise TypeError(f"{self.name}: pass its arguments by name; it takes {names or 'none'}")
        plain: dict[str, Any] = hidden(dict(kwargs))
        if wrong := faults(plain, self.schema, "arguments"):
            fix = f"{self.name} was not called. Pass the arguments that its server declares."
            raise InvalidArgument(path="arguments", reason="; ".join(wrong[:5]), fix=fix)
        return plain


class MCPResource(External[..., Any]):
    """A resource of an MCP server as an external source; the variables of a URI template are its parameters."""

    def __init__(
        self, read: Callable[[str], Awaitable["ReadResourceResult"]], uri: str, *, name: str, ttl: int | None
    ) -> None:
        self.uri, self._read, self._is_fixed = uri, read, ttl is not None
        self._told: WeakKeyDictionary[Call, int] = WeakKeyDictionary()
        variables = list(dict.fromkeys(_VARIABLE.findall(uri)))
        if "{" in _VARIABLE.sub("", uri):
            raise DefinitionError(what=name, reason=f"{uri}: only plain variables such as {{name}} are supported")
        super().__init__(_function(self._content, variables, f"Read {uri}."), name, ttl or 0)

    def valid_for(self, call: Call | None) -> int:
        """Return the time to live of a read: the one given, or the one that the server sent with the content."""
        return self.ttl if self._is_fixed or call is None else self._told.get(call, self.ttl)

    async def _content(self, **variables: str) -> Any:
        address = _VARIABLE.sub(lambda found: quote(variables[found[1]], safe=""), self.uri)
        found = await self._read(address)
        self._told[current()] = found.ttl_ms * 1000
        return content_of(found)


def _function(call: Callable[..., Awaitable[Any]], names: Sequence[str], doc: str) -> Callable[..., Awaitable[Any]]:
    """Return a coroutine function with these parameters, all text."""

    async def read(**variables: str) -> Any:
        return await call(**variables)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, annotation=str) for name in names]
    read.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    read.__annotations__ = dict.fromkeys(names, str) | {"return": Any}
    read.__doc__ = doc
    return read


def revealed(value: Any) -> Any:
    """Return a copy of arguments in which every secret is replaced by its value."""
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, dict):
        return {name: revealed(each) for name, each in value.items()}
    return [revealed(each) for each in value] if isinstance(value, list) else value


def result_of(answer: "CallToolResult") -> Any:
    """Return the result of a call as JSON: structured content unchanged, text as text, anything else as sent."""
    blocks = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in answer.content]
    text = "\n".join(each["text"] for each in blocks) if all(each["type"] == "text" for each in blocks) else None
    if answer.structured_content not in (None, {"result": text}):  # text that a server had to wrap
        return answer.structured_content
    return blocks if text is None else text


def content_of(found: "ReadResourceResult") -> Any:
    """Return the content of a resource: JSON as a value, one text as text, anything else as sent."""
    parts = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in found.contents]
    if len(parts) != 1 or "text" not in parts[0]:
        return parts
    text = parts[0]["text"]
    if parts[0].get("mimeType", "").partition(";")[0].endswith(("/json", "+json")):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return text
    return text
