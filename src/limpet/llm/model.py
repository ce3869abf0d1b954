"""The protocol between the LLM loop and model providers: prompts, replies, and a model with one method.

A model knows nothing about runs. The step that calls it records, counts and retries.
"""

from collections.abc import Callable, Iterable
from functools import cached_property
from hashlib import sha256
from operator import attrgetter
from typing import Any, Literal, Protocol

from msgspec import Struct, structs

from limpet.context.window import EACH, LEAST, tokens, tokens_of
from limpet.events.values import canonical, encode

__all__ = [
    "Finish",
    "Model",
    "Prompt",
    "PromptMessage",
    "Reply",
    "Thoughts",
    "ToolCall",
    "ToolSpec",
    "Usage",
    "size_of",
]

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "calls", "length", "refused"]
# Arguments with up to this many tokens are never cut.
SMALL_ARGS = 16


class ToolCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call that the model requests."""

    id: str
    """Id that links the result to the call; unique in a conversation."""
    name: str
    """Name of the tool."""
    args: str
    """Arguments as JSON, as the model wrote them; possibly invalid."""


class Thoughts(Struct, frozen=True, kw_only=True):
    """Opaque reasoning data of a provider. It is sent back unchanged, and only to the model that produced it."""

    by: str
    """The model that produced the data and accepts it."""
    kept: Any
    """JSON: reasoning, signatures, ids."""


class PromptMessage(Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """One message of a prompt."""

    role: Role
    """Who said it."""
    text: str = ""
    """The text."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls that the assistant requests."""
    call: str = ""
    """For a tool's result: the id of its call."""
    tool: str = ""
    """For a tool's result: the name of the tool."""
    thoughts: Thoughts | None = None
    """Reasoning data that belongs to an assistant's calls."""

    @cached_property
    def size(self) -> int:
        """Approximate number of tokens."""
        calls = sum(tokens(call.args) + tokens(call.name) + tokens(call.id) + EACH for call in self.calls)
        thoughts = 0 if self.thoughts is None else tokens_of(len(encode(self.thoughts)))
        return self._text_size + tokens(self.call) + calls + thoughts + EACH

    @cached_property
    def least_size(self) -> int:
        """Approximate number of tokens that it can be cut to."""
        bare = self.without_text().size if self.calls else self.size - self._text_size
        return bare + min(self._text_size, LEAST)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the message as JSON."""
        return sha256(encode(self)).digest()

    @cached_property
    def _text_size(self) -> int:
        return tokens(self.text)

    def without_text(self) -> "PromptMessage":
        """Return the message without its text and without long arguments."""
        calls = tuple(
            call
            if tokens(call.args) <= SMALL_ARGS
            else structs.replace(call, args=f'{{"left_out":"{len(call.args)} characters"}}')
            for call in self.calls
        )
        return structs.replace(self, text="", calls=calls)


_SIZE = attrgetter("size")


def size_of(messages: Iterable[PromptMessage]) -> int:
    """Return the approximate number of tokens of messages."""
    return sum(map(_SIZE, messages))


class ToolSpec(Struct, frozen=True, kw_only=True, dict=True):
    """Description of a tool for a model."""

    name: str
    """Name of the tool."""
    description: str
    """Description for the model."""
    schema: dict[str, Any]
    """Arguments, as a JSON Schema of type object."""

    @cached_property
    def size(self) -> int:
        """Approximate number of tokens."""
        return tokens(self.name) + tokens(self.description) + tokens(canonical(self.schema).decode()) + EACH


class Prompt(Struct, frozen=True, kw_only=True):
    """Everything that is sent to a model in one call."""

    messages: tuple[PromptMessage, ...]
    """Messages, in order."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the model may call."""
    must_call: bool = False
    """Whether the model must call a tool."""
    output: dict[str, Any] | None = None
    """JSON Schema of the answer, if the model does not call a tool."""
    max_tokens: int | None = None
    """Maximum number of tokens in the reply."""
    settings: dict[str, Any] = {}
    """Further settings in the provider's terms, such as temperature."""

    @property
    def size(self) -> int:
        """Approximate number of tokens of its messages and tools."""
        return size_of(self.messages) + sum(each.size for each in self.tools)


class Usage(Struct, frozen=True, kw_only=True):
    """Resources that a reply used."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens that were cached, and cheaper."""
    cost: float = 0.0
    """Cost, if the provider reports it."""


class Reply(Struct, frozen=True, kw_only=True):
    """The reply of a model."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    finish: Finish = "stop"
    model: str = ""
    """Name of the model that answered, as reported by the provider."""
    raw: Any = None
    """Response of the provider as JSON, verbatim; None if it was streamed."""
    thoughts: Thoughts | None = None
    """Reasoning data to send back with this message."""


class Model(Protocol):
    """A language model. Implement this to connect your own provider."""

    @property
    def name(self) -> str:
        """Name such as `openai:gpt-5-mini`. It is recorded with every call, and selects the price."""

    async def reply(self, prompt: Prompt, /, *, on_text: Callable[[str], object] | None = None) -> Reply:
        """Return the model's reply. `on_text` is called with each piece of text as it arrives.

        Raises limpet.RetryAfter if the provider requests a delay, limpet.Permanent if a retry cannot help (a wrong key,
        a rejected request), and any other exception for an error that may disappear.
        """
