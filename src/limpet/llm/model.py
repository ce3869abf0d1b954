"""What a language model is asked, and what it says: the same for every provider.

A model is a thing with one method. It knows nothing of runs: that a call is recorded, paid for and repeated is the
business of the step that makes it.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol

from msgspec import Struct

__all__ = ["Finish", "Model", "Prompt", "PromptMessage", "Reply", "Thoughts", "ToolCall", "ToolSpec", "Usage"]

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "calls", "length", "refused"]


class ToolCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that the model wants called."""

    id: str
    """What its result is found by; unique in a conversation."""
    name: str
    args: str
    """JSON, as the model wrote it: it may be wrong."""


class Thoughts(Struct, frozen=True, kw_only=True):
    """What only the provider understands that sent it: it goes back there as it is, and to nobody else."""

    by: str
    """Whose they are: a model takes none but its own."""
    kept: Any
    """JSON: what was thought, signatures, ids."""


class PromptMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message, as models take them."""

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    """What an assistant wants called."""
    call: str = ""
    """Of a tool's result: the call that it belongs to."""
    tool: str = ""
    """Of a tool's result: whose it is."""
    thoughts: Thoughts | None = None
    """What led an assistant to its calls."""


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool, as models are told of it."""

    name: str
    description: str
    schema: dict[str, Any]
    """Of its arguments: a JSON Schema of type object."""


class Prompt(Struct, frozen=True, kw_only=True):
    """What a model is asked."""

    messages: tuple[PromptMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    must_call: bool = False
    """It must call a tool, and not just answer."""
    output: dict[str, Any] | None = None
    """A JSON Schema that its answer must follow, if it does not call a tool."""
    max_tokens: int | None = None
    """Of its reply."""
    settings: dict[str, Any] = {}
    """More, as the provider knows it: temperature and the like."""


class Usage(Struct, frozen=True, kw_only=True):
    """What a reply used up."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Of the input, how many were cheaper."""
    cost: float = 0.0
    """Where the provider says so."""


class Reply(Struct, frozen=True, kw_only=True):
    """What a model said."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    finish: Finish = "stop"
    model: str = ""
    """The model that answered, as it calls itself."""
    raw: Any = None
    """What the provider sent, as JSON, verbatim; none if it was streamed."""
    thoughts: Thoughts | None = None
    """What is to come back with the message that this becomes."""


class Model(Protocol):
    """A language model."""

    @property
    def name(self) -> str:
        """Such as `openai:gpt-5-mini`: recorded with every call, and what prices go by."""

    async def reply(self, prompt: Prompt, /, *, on_text: Callable[[str], object] | None = None) -> Reply:
        """What it says; `told` hears the text piece by piece, as it comes.

        Raises limpet.RetryAfter when the provider says when, limpet.Permanent for what no repetition helps (a wrong
        key, a request that is refused), anything else for what may work the next time.
        """
