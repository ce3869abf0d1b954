"""A step: a call of a tool by the code, and its current state."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from msgspec import Raw, Struct

from limpet.engine.definitions.call_context import Call
from limpet.engine.definitions.tools import LiveArgument, Tool
from limpet.engine.replay.return_order import DeferredTicket
from limpet.events import Payload
from limpet.events import bodies as b
from limpet.events.values import decode
from limpet.stores import Store
from limpet.stores.blobs import INLINE, MESSAGE_INLINE, Blob

__all__ = ["AttemptRef", "Latest", "PackedResult", "Step"]

Latest = b.StepStarted | b.StepFailed | b.StepUnknown | b.StepResolved | b.StepCompleted | None

PackedResult = tuple[Payload, tuple[Blob, ...]]
"""A result in its stored form, with its blob if it is large."""


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
    args_digest: str
    encoded: bytes
    """The arguments as used, as canonical JSON; a person may edit them."""
    decoded: dict[str, Any] | None = None
    """The same, decoded; None until `args` is needed."""
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
    ticket: DeferredTicket | None = None
    """Ticket of an end that was not buffered."""

    @property
    def args(self) -> dict[str, Any]:
        """The arguments as used, as JSON. They are shared: user code must not get them, since it may change them."""
        if self.decoded is None:
            self.decoded = decode(self.encoded)
        return self.decoded

    def pack(self, store: Store, result: Any) -> PackedResult:
        """Return a JSON result in its stored form."""
        return self.pack_encoded(store, store.encode(result))

    def pack_output(self, store: Store, output: object) -> PackedResult:
        """Return what the function returned in its stored form."""
        if store.redaction.is_on:
            return self.pack(store, self.tool.plain_result(output))
        return self.pack_encoded(store, self.tool.encode_result(output))

    def pack_encoded(self, store: Store, encoded: bytes) -> PackedResult:
        """Return a result that is canonical JSON in its stored form."""
        packed, blobs = store.pack_canonical(encoded, inline=MESSAGE_INLINE if self.tool.kind == "model" else INLINE)
        self.result = Payload(json=Raw(encoded))
        return packed.under(self.tool.result_versions), blobs

    def place(self, attempt: int) -> AttemptRef:
        """Return the fields that identify an attempt in an event."""
        return {"name": self.name, "number": self.number, "attempt": attempt}

    def bound(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return new arguments for the function, which may change them."""
        return self.tool.unbind(decode(self.encoded), self.live)
