"""A step: a call of a tool by the code, and its current state."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from msgspec import Raw, Struct

from limpet.engine.definitions.call_context import Call
from limpet.engine.definitions.tools import LiveArgument, Tool
from limpet.events import Payload
from limpet.events import bodies as b
from limpet.stores import Store
from limpet.stores.blobs import INLINE, MESSAGE_INLINE, Blob

__all__ = ["AttemptRef", "Latest", "Step"]

Latest = b.StepStarted | b.StepFailed | b.StepUnknown | b.StepResolved | b.StepCompleted | None


class AttemptRef(TypedDict):
    """Fields that identify the attempt of an event."""

    name: str
    number: int
    attempt: int


class Step(Struct):
    """A call of a tool by the code."""

    tool: Tool[..., Any, Any]
    name: str
    number: int
    args: dict[str, Any]
    """Arguments as used; a person may edit them."""
    args_digest: str
    encoded: bytes
    """The arguments as canonical JSON."""
    key: str = ""
    packed: Payload | None = None
    blobs: Sequence[Blob] = ()
    grant: str | None = None
    last_seen: int | None = None
    """Last command seen when a standing approval was checked."""
    is_budget_checked: bool = False
    """Whether the budget was checked for the next attempt."""
    is_fresh: bool = False
    """Whether the data of the tool's sources was checked for the next attempt."""
    is_check: bool = False
    """Whether the step only checks that an approval is still valid; the code does not see it."""
    made_up: bool = False
    """Whether the result is a sample, in a fork without live effects."""
    attempt: int = 0
    """Number of the last attempt that started here."""
    call: Call | None = None
    live: Mapping[str, LiveArgument] = {}
    """Arguments whose recorded form differs from the value in the code."""
    result: Payload | None = None
    """The result that was packed here last, inline."""

    def pack(self, store: Store, result: Any) -> tuple[Payload, tuple[Blob, ...]]:
        """Return a JSON result in its stored form."""
        encoded, versions = store.encode(result), self.tool.result_versions
        packed, blobs = store.pack_canonical(encoded, inline=MESSAGE_INLINE if self.tool.kind == "model" else INLINE)
        self.result = Payload(json=Raw(encoded))
        return packed.under(versions), blobs

    def place(self, attempt: int) -> AttemptRef:
        """Return the fields that identify an attempt in an event."""
        return {"name": self.name, "number": self.number, "attempt": attempt}

    def bound(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for the function."""
        return self.tool.unbind(self.args, self.live)
