"""Tables of an MCP server: tools, resources and prompts. Each entry says who may use it and what it does.

A server has Limpet's own tables; tests add entries of their own.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import mcp_types as t
from mcp.server.context import ServerRequestContext
from mcp.shared.subscriptions import ServerEvent
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct
from msgspec.structs import replace

from limpet.engine.execution.principal import Principal
from limpet.service.access import may
from limpet.service.app import App
from limpet.service.decision_links import LinkKeys
from limpet.service.operation import Operation

__all__ = ["TASKS", "McpCall", "Offer", "PromptOffer", "ResourceOffer", "ToolOffer"]

TASKS = "io.modelcontextprotocol/tasks"
"""Name of the tasks extension."""

ToolReply = t.CallToolResult | t.InputRequiredResult | dict[str, Any]
"""Reply to a call of a tool; a dict for a reply of an extension."""


class McpCall(Struct, frozen=True, kw_only=True):
    """A request, its caller, and the app of the caller's tenant."""

    context: ServerRequestContext[Any]
    app: App
    who: Principal
    operations: Mapping[str, Operation]
    """All operations of the app by name."""
    publish: Callable[[ServerEvent], None]
    """Tell subscribers of this tenant about a change."""
    public_url: str = ""
    """Address of the server as people see it; empty if it has none."""
    link_keys: LinkKeys | None = None
    """Keys of links to decide requests, if the server has some."""

    async def run(self, operation: str, arguments: Mapping[str, Any], *, command_id: str | None = None) -> Any:
        """Run an operation for the caller, and return its result as plain JSON. Raises only LimpetError."""
        return await self.operations[operation].run(self.app, arguments, who=self.who, command_id=command_id)

    def may(self, operation: str) -> bool:
        """Return whether the caller's roles allow an operation."""
        return may(self.who, *self.operations[operation].needs)

    def confirmed(self) -> "McpCall":
        """Return this call as one that the person at the client has confirmed in a form."""
        return replace(self, who=replace(self.who, is_confirmed=True))

    @property
    def is_modern(self) -> bool:
        """Whether the client speaks protocol 2026-07-28 or later."""
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def has_forms(self) -> bool:
        """Whether the client shows forms to a person."""
        known = self.context.session.client_capabilities
        found = None if known is None else known.elicitation
        return found is not None and (found.form is not None or found.url is None)

    @property
    def has_tasks(self) -> bool:
        """Whether this request accepts a task as its result."""
        known = self.context.session.client_capabilities
        return self.is_modern and known is not None and TASKS in (known.extensions or {})


class ToolOffer(Struct, frozen=True, kw_only=True):
    """A tool: how clients see it, who may use it, and what it does."""

    name: str
    shown: Callable[[Principal], t.Tool]
    """Returns the tool as a caller sees it."""
    run: Callable[[McpCall, t.CallToolRequestParams], Awaitable[ToolReply]]
    """Raises LimpetError, which the client gets as a result with `isError`."""
    may_use: Callable[[Principal], bool] = lambda _: True
    is_listed: bool = True
    """Whether `tools/list` has it. A tool that is not listed can still be called."""


class ResourceOffer(Struct, frozen=True, kw_only=True):
    """A kind of resource: one URI, or a template of URIs."""

    template: str
    name: str
    description: str
    read: Callable[[McpCall, str, Mapping[str, str]], Awaitable[t.ReadResourceResult]]
    """Read the resource with a URI and the values of its variables. Raises LimpetError."""
    mime: str = "application/json"
    may_use: Callable[[Principal], bool] = lambda _: True
    watches: Callable[[McpCall, Mapping[str, str]], Awaitable[str]] | None = None
    """Returns what a change of the resource is announced under, such as `run:ticket-42`. None if none is announced."""

    @property
    def is_template(self) -> bool:
        """Whether it stands for many URIs."""
        return "{" in self.template


class PromptOffer(Struct, frozen=True, kw_only=True):
    """A prompt: how clients see it, who may use it, and its messages."""

    shown: t.Prompt
    messages: Callable[[McpCall, Mapping[str, str]], Awaitable[Sequence[t.PromptMessage] | t.InputRequiredResult]]
    """Returns the messages, or what a person has to fill in first. Raises LimpetError."""
    may_use: Callable[[Principal], bool] = lambda _: True


class Offer(Struct, frozen=True, kw_only=True):
    """Further entries of a server's tables."""

    tools: Sequence[ToolOffer] = ()
    resources: Sequence[ResourceOffer] = ()
    prompts: Sequence[PromptOffer] = ()
    instructions: str = ""
