"""A model for tests that replies from a script.

Agents are replayed in other processes and after crashes, and recorded replies are not requested again. So a reply is
chosen by the prompt itself: reply k answers a prompt that contains k messages of an assistant. A resumed run gets the
right reply from a new model object, and a retried prompt gets the same reply again.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

import msgspec
from msgspec import structs

from limpet.engine.definitions.types import codec_of
from limpet.engine.steps.verdict import Permanent
from limpet.llm.model import Prompt, Reply, ToolCall, Usage
from limpet.llm.providers import unique_calls

__all__ = ["ScriptedModel", "calls"]

CHARACTERS = 4
"""Number of characters that count as one token."""


def calls(name: str, /, **args: Any) -> Any:
    """Return a reply that calls a tool. A tuple of several makes parallel calls; it may also contain text."""
    return ToolCall(id="", name=name, args=_json(args))


class ScriptedModel:
    """A model that replies from a script. Each reply is one of:

    - text, a `calls(...)`, or a tuple or list of these (parallel calls);
    - a pydantic model, a dataclass, a struct or a dict: typed output, as JSON;
    - a `Reply`, used verbatim;
    - an exception, which is raised;
    - a function of the prompt, async or not, that returns one of these. A single function answers every prompt.

    Reply k answers a prompt with k messages of an assistant. With `in_order`, it answers the k-th prompt that this
    object receives, for tests in one process that compact messages or vary retries. After the last reply,
    `limpet.Permanent` is raised. `prompts` collects the prompts received in this process.
    """

    def __init__(self, *replies: Any, name: str = "scripted", in_order: bool = False) -> None:
        self.name = name
        self.prompts: list[Prompt] = []
        self._replies, self._in_order = replies, in_order

    async def reply(self, prompt: Prompt, /, *, on_text: Callable[[str], object] | None = None) -> Reply:
        """Return the scripted reply; call `on_text` with each word of it."""
        place = len(self.prompts) if self._in_order else sum(each.role == "assistant" for each in prompt.messages)
        self.prompts.append(prompt)
        reply = self._as_reply(await _now(self._at(place), prompt), prompt)
        if on_text is not None:
            for piece in re.findall(r"\s*\S+|\s+", reply.text):
                on_text(piece)
        return reply

    def _at(self, place: int) -> Any:
        if len(self._replies) == 1 and _is_function(self._replies[0]):
            return self._replies[0]
        if place >= len(self._replies):
            what = (
                f"this is prompt {place + 1}" if self._in_order else f"the prompt has {place} messages of an assistant"
            )
            raise Permanent(f"the script of {self.name!r} has only {len(self._replies)} replies, and {what}")
        return self._replies[place]

    def _as_reply(self, said: Any, request: Prompt) -> Reply:
        if isinstance(said, Reply):
            return structs.replace(said, calls=unique_calls(said.calls, request.messages))
        parts = said if isinstance(said, tuple | list) else [said]
        made = unique_calls((each for each in parts if isinstance(each, ToolCall)), request.messages)
        text = "".join(_text(each) for each in parts if not isinstance(each, ToolCall))
        return Reply(
            text=text,
            calls=made,
            usage=Usage(input_tokens=_tokens(*_texts(request)), output_tokens=_tokens(text, *(c.args for c in made))),
            finish="calls" if made else "stop",
            model=self.name,
        )


async def _now(reply: Any, request: Prompt) -> Any:
    """Return the reply for this prompt."""
    if _is_function(reply):
        reply = reply(request)
    if inspect.isawaitable(reply):
        reply = await reply
    if isinstance(reply, BaseException) or (isinstance(reply, type) and issubclass(reply, BaseException)):
        raise reply
    return reply


def _is_function(reply: Any) -> bool:
    return callable(reply) and not isinstance(reply, type)


def _text(said: Any) -> str:
    if isinstance(said, str):
        return said
    if isinstance(said, Mapping | msgspec.Struct) or is_dataclass(said) or hasattr(said, "model_dump"):
        return _json(said)
    raise TypeError(f"a reply must be text, calls(...), typed output, a Reply, an exception or a function: {said!r}")


def _json(value: Any) -> str:
    """Return a value as JSON, like tools and outputs with typed members."""
    return msgspec.json.encode(codec_of(dict[str, Any]).dump(value)).decode()


def _texts(request: Prompt) -> list[str]:
    found = [each.text for each in request.messages]
    return found + [call.args for each in request.messages for call in each.calls]


def _tokens(*texts: str) -> int:
    return sum(-(-len(text) // CHARACTERS) for text in texts)
