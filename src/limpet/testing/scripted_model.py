"""A model that says what a test tells it to.

Agents are executed again, in other processes and after crashes, and what is recorded is not asked for again. So a reply
is chosen by what the request itself says: reply k answers a request that holds k messages of an assistant. A resumed
run gets the right one, from a model that was made anew; the same request gets the same reply, also when it is retried.
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
from limpet.llm.providers import distinct

__all__ = ["ScriptedModel", "calls"]

CHARACTERS = 4
"""So many of them are a token here."""


def calls(name: str, /, **args: Any) -> Any:
    """A reply that calls a tool; several of them in a tuple are called at once, with text that is said before."""
    return ToolCall(id="", name=name, args=_json(args))


class ScriptedModel:
    """A model with a script. Each reply is one of

    - text, a `calls(...)`, or a tuple or list of these (parallel calls);
    - a pydantic model, a dataclass, a struct or a dict: typed output, as JSON;
    - a `Reply`, as it is;
    - an exception, which is raised;
    - a function of the request, async or not, that returns one of these. If it is the only one, it answers everything.

    Reply k answers a request with k messages of an assistant in it; with `in_order` it answers the k-th request that
    this object gets, for tests in one process whose messages are compacted, or whose retries get something else. When
    the script has run out, `limpet.Permanent` is raised. `requests` keeps what was asked, in this process.
    """

    def __init__(self, *replies: Any, name: str = "scripted", in_order: bool = False) -> None:
        self.name = name
        self.prompts: list[Prompt] = []
        self._replies, self._in_order = replies, in_order

    async def reply(self, prompt: Prompt, /, *, on_text: Callable[[str], object] | None = None) -> Reply:
        """What the script says; `told` hears it word by word."""
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
            what = f"this is request {place + 1}" if self._in_order else f"the request holds {place} of an assistant"
            raise Permanent(f"the script of {self.name!r} has run out: it has {len(self._replies)} replies, and {what}")
        return self._replies[place]

    def _as_reply(self, said: Any, request: Prompt) -> Reply:
        if isinstance(said, Reply):
            return structs.replace(said, calls=distinct(said.calls, request.messages))
        parts = said if isinstance(said, tuple | list) else [said]
        made = distinct((each for each in parts if isinstance(each, ToolCall)), request.messages)
        text = "".join(_text(each) for each in parts if not isinstance(each, ToolCall))
        return Reply(
            text=text,
            calls=made,
            usage=Usage(input_tokens=_tokens(*_texts(request)), output_tokens=_tokens(text, *(c.args for c in made))),
            finish="calls" if made else "stop",
            model=self.name,
        )


async def _now(reply: Any, request: Prompt) -> Any:
    """What a reply is for this request."""
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
    raise TypeError(f"a script holds text, calls(...), typed output, a Reply, an exception or a function: not {said!r}")


def _json(value: Any) -> str:
    """As tools and outputs are declared: with whatever types are inside."""
    return msgspec.json.encode(codec_of(dict[str, Any]).dump(value)).decode()


def _texts(request: Prompt) -> list[str]:
    found = [each.text for each in request.messages]
    return found + [call.args for each in request.messages for call in each.calls]


def _tokens(*texts: str) -> int:
    return sum(-(-len(text) // CHARACTERS) for text in texts)
