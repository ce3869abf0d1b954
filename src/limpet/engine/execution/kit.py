"""Dependencies and settings that a worker shares with the runs that it drives."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct

from limpet.clock import SECOND, Clock
from limpet.engine.definitions.call_context import Call
from limpet.engine.definitions.tools import Tool
from limpet.engine.execution.handle import Port
from limpet.engine.execution.user_code import Bound
from limpet.ids import Ids
from limpet.policy.quarantine import PAROLE
from limpet.stores import Store

__all__ = ["Kit", "NoticeKind", "ToolCaller"]

NoticeKind = Literal["asks", "waits", "completed", "failed", "cancelled"]
"""Kinds of notices: a request, a run that waits for people or programs outside, and how a run ended."""


class ToolCaller(Protocol):
    """Calls the functions of tools."""

    async def __call__(self, tool: Tool[..., Any, Any], /, fn: Callable[..., Any], args: Bound, call: Call) -> Any:
        """Call a function and return its result; `current()` is this call."""

    def call_inline(self, tool: Tool[..., Any, Any], args: Bound, call: Call) -> Any:
        """Call the tool's function on this thread, for a transaction."""

    def is_stubbed(self, tool: Tool[..., Any, Any]) -> bool:
        """Return whether a test provides the tool's result; then no transaction is needed."""


class Kit(Struct, frozen=True, kw_only=True):
    """Dependencies and settings that a worker shares with the runs it drives."""

    store: Store
    clock: Clock
    ids: Ids
    worker: str
    perform: ToolCaller
    now: Callable[[], int]
    """Returns an estimate of the store's clock, in microseconds."""
    linger: int = SECOND
    """How long a run that only waits stays in memory, in microseconds."""
    silent_after: int = SECOND // 10
    """How long a run may be busy before commands to it are polled, in microseconds."""
    backoffs: bool = True
    """Whether to wait between attempts."""
    port: Port | None = None
    """Access to other runs for their handles."""
    channels: Mapping[str, frozenset[NoticeKind]] = {}
    """The kinds of notices that each channel gets."""
    parole: tuple[int, ...] = PAROLE
    """Rest of a quarantined run before each retry, in microseconds."""
    engine: str = ""
    """The engine that has the runs of this worker driven; their children belong to it, too."""
