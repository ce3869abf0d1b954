"""A step, as the code asks for it, and where it may be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from limpet.engine.definitions.call_context import Call
from limpet.engine.definitions.tools import LiveArgument, Tool
from limpet.events import Payload
from limpet.events import bodies as b
from limpet.stores import Store
from limpet.stores.blobs import INLINE, SAID, Blob

__all__ = ["AttemptRef", "Latest", "Step"]

Latest = b.StepStarted | b.StepFailed | b.StepUnknown | b.StepResolved | b.StepCompleted | None


class AttemptRef(TypedDict):
    """Which attempt an event is about."""

    name: str
    number: int
    attempt: int


@dataclass
class Step:
    """A call of a tool by the code."""

    tool: Tool[..., Any, Any]
    name: str
    number: int
    args: dict[str, Any]
    """As used: a person may edit them."""
    asked: str
    encoded: bytes
    """The same as bytes."""
    key: str = ""
    packed: Payload | None = None
    blobs: Sequence[Blob] = ()
    grant: str | None = None
    heard: int | None = None
    """What was heard when a standing permission was looked at."""
    is_afforded: bool = False
    """The budget was asked for the attempt that comes next."""
    is_fresh: bool = False
    """What the tool goes by was read again for the attempt that comes next."""
    is_check: bool = False
    """It only looks whether an approval still holds: the code does not know of it."""
    made_up: bool = False
    """Its result is a sample, in a fork that only tries."""
    attempt: int = 0
    """The last one that was begun here."""
    call: Call | None = None
    live: Mapping[str, LiveArgument] = field(default_factory=dict)
    """Arguments that the log does not hold as the code gave them."""

    def pack(self, store: Store, result: Any) -> tuple[Payload, tuple[Blob, ...]]:
        """A result, which is JSON, as it is stored."""
        packed, blobs = store.pack(result, inline=SAID if self.tool.kind == "model" else INLINE)
        return packed.under(self.tool.result_versions), blobs

    def place(self, attempt: int) -> AttemptRef:
        """What an event about an attempt begins with."""
        return {"name": self.name, "number": self.number, "attempt": attempt}

    def bound(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its arguments as the function takes them."""
        return self.tool.unbind(self.args, self.live)
