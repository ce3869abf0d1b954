"""openai: models of OpenAI's chat completions API, and of any compatible server.

    model = limpet.adapters.openai.OpenAIModel("gpt-5-mini")

The client reads OPENAI_API_KEY and OPENAI_BASE_URL, unless one is given; with OPENAI_BASE_URL, no key is needed. The
client never retries: the step does, and records it. Reasoning data before tool calls, such as `reasoning_content`, is
sent back to its server under the same name. The package `openai` is imported at the first call, so that agents can be
defined, listed and inspected without it.
"""

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.engine.steps.verdict import Permanent
from limpet.errors import ExtraMissing
from limpet.llm.model import Prompt, PromptMessage, Reply, ToolCall, ToolSpec, Usage
from limpet.llm.providers import (
    PerLoop,
    error_of,
    finish_of,
    format_name,
    join_surrogates,
    kept_by,
    message_of,
    thoughts_of,
    unique_calls,
)
from limpet.secret import Secret

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

__all__ = ["OpenAIModel"]

NO_KEY = "no-key"
"""Sent to a server that needs no key, because the client requires one."""
OPENAI = (".openai.com", ".openai.azure.com")
"""Hosts whose newer models reject `max_tokens`. Other servers often know only that."""
OPTIONS = ("extra_headers", "extra_query", "timeout")
"""Settings of the client, which are not part of the request body."""
STREAMING = ("stream", "stream_options")
THOUGHTS: dict[str, type] = {"reasoning_details": list, "reasoning_content": str, "reasoning": str}
"""Fields for reasoning data, which servers want back. Servers with several of them send the same in each."""
OF_CALL = "extra_content"
"""Field for data that belongs to a call, such as a signature."""
PIECES = ("text", "summary", "data")
"""Fields of a reasoning detail that arrive in pieces."""
SPENT = ("insufficient_quota", "billing_hard_limit_reached")
# Keywords of schemas in strict mode; schemas with others would be rejected.
STRICT = {"type", "title", "description", "properties", "required", "additionalProperties", "items", "enum", "const"}
STRICT |= {"anyOf", "$defs", "$ref"}


class OpenAIModel:
    """A model of the chat completions API.

    `name` is the provider's name for the model. `client` is used instead of one from the environment. `settings` are
    sent with every request, such as `{"temperature": 0}`; those of the prompt take precedence.
    """

    def __init__(
        self, name: str, *, client: "AsyncOpenAI | None" = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        if find_spec("openai") is None:
            raise ExtraMissing(extra="openai")
        self._model, self._settings = name, dict(settings or {})
        self._given = None if client is None else client.with_options(max_retries=0)
        self._key: Secret | None = None
        self._clients: PerLoop[AsyncOpenAI] = PerLoop(self._new_client)

    @property
    def name(self) -> str:
        """Name such as `openai:gpt-5-mini`."""
        return f"openai:{self._model}"

    async def reply(self, prompt: Prompt, /, *, on_text: Callable[[str], object] | None = None) -> Reply:
        """Return the model's reply. With `on_text`, the reply is streamed."""
        client = self._given or await self._clients.get()
        openai = importlib.import_module("openai")
        self._hide(client)
        try:
            if on_text is None:
                return await self._ask(client, prompt)
            return await self._stream(client, prompt, on_text)
        except openai.APIStatusError as error:
            meant = self._meaning(error)
            if meant is None:
                raise
            raise meant from error

    async def _ask(self, client: "AsyncOpenAI", request: Prompt) -> Reply:
        create: Any = client.chat.completions.with_raw_response.create
        answer = await create(**self._arguments(client, request))
        sent: Any = None
        try:
            sent = msgspec.json.decode(answer.http_response.content)
            [choice, *_] = sent["choices"]
            return self._reply(self._place(client), request, choice, sent, raw=sent)
        except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
            says = message_of(sent["error"]) if isinstance(sent, dict) and "error" in sent else repr(error)
            raise ConnectionError(f"{self.name} sent an invalid reply: {says}") from error

    async def _stream(self, client: "AsyncOpenAI", request: Prompt, on_text: Callable[[str], object]) -> Reply:
        create: Any = client.chat.completions.create
        options = {"stream": True, "stream_options": {"include_usage": True}}
        received = _Stream()
        async with await create(**self._arguments(client, request, **options)) as stream:
            async for chunk in stream:
                piece = received.add(chunk.to_dict(warnings=False))
                if piece:
                    on_text(piece)
        if received.finish is None:
            raise ConnectionError(f"{self.name}: the reply was cut off")
        choice = {"message": received.message, "finish_reason": received.finish}
        return self._reply(self._place(client), request, choice, received.about)

    def _arguments(self, client: "AsyncOpenAI", request: Prompt, **options: Any) -> dict[str, Any]:
        """Return the arguments for the client: those of the prompt, and other settings in the body."""
        most = "max_completion_tokens" if str(client.base_url.host).endswith(OPENAI) else "max_tokens"
        ours = {
            "model": self._model,
            "messages": [_message(each, kept_by(self._place(client), each) or {}) for each in request.messages],
            **options,
            **_tools(request),
            **({} if request.output is None else {"response_format": _response_format(request.output)}),
            **({} if request.max_tokens is None else {most: request.max_tokens}),
        }
        settings = {**self._settings, **request.settings}
        settings |= settings.pop("extra_body", None) or {}
        known = {*ours, *OPTIONS, *STREAMING}
        return {
            **ours,
            **{name: settings[name] for name in OPTIONS if name in settings},
            "extra_body": {name: each for name, each in settings.items() if name not in known},
        }

    def _place(self, client: "AsyncOpenAI") -> str:
        """Return the origin of reasoning data: this model, at this server. Only its own is sent back."""
        return f"{self.name} at {client.base_url.host}"

    def _reply(
        self, place: str, request: Prompt, choice: dict[str, Any], about: dict[str, Any], raw: Any = None
    ) -> Reply:
        message, finish = choice["message"], choice.get("finish_reason")
        calls = unique_calls(_calls(message.get("tool_calls") or ()), request.messages)
        refusal = message.get("refusal") or ""
        return Reply(
            text=_text(message.get("content")) or refusal,
            calls=calls,
            usage=_usage(about.get("usage") or {}),
            finish=finish_of("content_filter" if refusal else finish, calls),
            model=about.get("model") or self._model,
            raw=raw,
            thoughts=thoughts_of(place, _kept(message)),
        )

    def _meaning(self, error: "APIStatusError") -> Exception | None:
        says = message_of(error.body) or error.message
        headers = error.response.headers
        return error_of(self.name, error.status_code, says, headers, spent=error.code in SPENT)

    def _new_client(self) -> "AsyncOpenAI":
        openai = importlib.import_module("openai")
        has_address = bool(os.environ.get("OPENAI_BASE_URL"))
        key = os.environ.get("OPENAI_API_KEY") or (NO_KEY if has_address else None)
        try:
            client: AsyncOpenAI = openai.AsyncOpenAI(api_key=key, max_retries=0)
        except openai.OpenAIError as error:
            raise Permanent(f"{self.name} needs OPENAI_API_KEY, or OPENAI_BASE_URL for another server") from error
        _ = client.chat.completions  # imports most of the package
        return client

    def _hide(self, client: "AsyncOpenAI") -> None:
        """Register the key as a secret, so that it is removed from anything a server says about it."""
        key = client.api_key
        if key and key != NO_KEY and (self._key is None or self._key.reveal() != key):
            self._key = Secret(key)


class _Stream:
    """A streamed reply so far."""

    def __init__(self) -> None:
        self.finish: str | None = None
        self.about: dict[str, Any] = {}
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._thoughts: dict[str, Any] = {}

    def add(self, chunk: dict[str, Any]) -> str:
        """Add the next chunk, and return the text that it adds."""
        self.about |= {name: chunk[name] for name in ("model", "usage") if chunk.get(name)}
        if not chunk.get("choices"):
            return ""
        choice = chunk["choices"][0]
        self.finish = choice.get("finish_reason") or self.finish
        delta = choice.get("delta") or {}
        for each in delta.get("tool_calls") or ():
            self._add_call(each)
        for name in _thought(delta):
            self._thoughts[name] = _joined(self._thoughts.get(name), delta[name])
        text, refusal = _text(delta.get("content")), delta.get("refusal") or ""
        self._text.append(text)
        self._refusal.append(refusal)
        return text + refusal

    @property
    def message(self) -> dict[str, Any]:
        """The complete message, as if it had not been streamed."""
        calls = [
            {
                "id": each["id"],
                "function": {**each, "arguments": join_surrogates(each["arguments"])},
                OF_CALL: each.get(OF_CALL),
            }
            for each in self._calls
        ]
        said = {"content": join_surrogates("".join(self._text)), "refusal": join_surrogates("".join(self._refusal))}
        return {**said, "tool_calls": calls, **self._thoughts}

    def _add_call(self, delta: dict[str, Any]) -> None:
        """Add a piece of a call, by its index; if a server's indexes are wrong, by its id."""
        index, id, function = delta.get("index"), delta.get("id") or "", delta.get("function") or {}
        begun = [each for each in self._calls if index is None or each["index"] == index]
        if not begun or (id and begun[-1]["id"] not in ("", id)):
            begun = [{"index": index, "id": "", "name": "", "arguments": ""}]
            self._calls += begun
        call, name = begun[-1], function.get("name") or ""
        call["id"] = call["id"] or id
        call["name"] += "" if name == call["name"] else name  # some servers repeat the name
        call["arguments"] += function.get("arguments") or ""
        if delta.get(OF_CALL):
            call[OF_CALL] = delta[OF_CALL]


def _joined(before: Any, piece: Any) -> Any:
    """Join reasoning data: texts are appended; a detail is appended to the last one of the same type and index."""
    if isinstance(piece, str):
        return f"{before or ''}{piece}"
    found = list(before or ())
    for each in (each for each in piece if isinstance(each, dict)):
        is_more = bool(found) and all(found[-1].get(name) == each.get(name) for name in ("type", "index"))
        last = found.pop() if is_more else {}
        texts = {name: f"{last.get(name) or ''}{each[name]}" for name in PIECES if each.get(name)}
        found.append({**last, **{name: value for name, value in each.items() if value is not None}, **texts})
    return found


def _thought(message: Mapping[str, Any]) -> list[str]:
    """Return the fields of a message or chunk that have reasoning data."""
    return [name for name, kind in THOUGHTS.items() if isinstance(message.get(name), kind)]


def _kept(message: dict[str, Any]) -> dict[str, Any]:
    """Return the reasoning data of a message and of each of its calls, verbatim."""
    name = max(_thought(message), key=lambda name: bool(message[name]), default=None)
    own = {} if name is None else {name: message[name]}
    of_calls = [each.get(OF_CALL) for each in message.get("tool_calls") or () if each.get("function")]
    return ({"message": own} if own else {}) | ({"calls": of_calls} if any(of_calls) else {})


def _message(message: PromptMessage, kept: Mapping[str, Any]) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call, "content": message.text}
    if not message.calls:
        return {"role": message.role, "content": message.text}
    calls: list[dict[str, Any]] = [
        {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.args or "{}"}}
        for each in message.calls
    ]
    for call, more in zip(calls, kept.get("calls", ()), strict=False):
        call.update({OF_CALL: more} if more else {})
    return {"role": message.role, "content": message.text or None, "tool_calls": calls, **kept.get("message", {})}


def _tools(request: Prompt) -> dict[str, Any]:
    if not request.tools:
        return {}
    tools = {"tools": [_tool(each) for each in request.tools]}
    return tools | ({"tool_choice": "required"} if request.must_call else {})


def _tool(tool: ToolSpec) -> dict[str, Any]:
    about = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": about}


def _response_format(schema: dict[str, Any]) -> dict[str, Any]:
    strict = schema.get("type") == "object" and _is_strict(schema)
    about = {"name": format_name(schema), "schema": schema} | ({"strict": True} if strict else {})
    return {"type": "json_schema", "json_schema": about}


def _is_strict(schema: Any) -> bool:
    """Return whether a schema qualifies for strict mode: closed objects, all members required."""
    if not isinstance(schema, dict) or not schema.keys() <= STRICT or ("$ref" in schema and len(schema) > 1):
        return False
    members = schema.get("properties", {})
    if schema.get("type") == "object" and (
        schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(members)
    ):
        return False
    inner = [*members.values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    return all(_is_strict(each) for each in [*inner, *([schema["items"]] if "items" in schema else [])])


def _text(content: Any) -> str:
    """Return the text of a message, which some servers send in parts."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _calls(calls: Iterable[Any]) -> Iterable[ToolCall]:
    for each in calls:
        function = each.get("function")
        if function:
            args = function.get("arguments") or ""
            text = args if isinstance(args, str) else msgspec.json.encode(args).decode()
            yield ToolCall(id=each.get("id") or "", name=function.get("name") or "", args=text)


def _usage(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        input_tokens=int(usage.get("prompt_tokens") or 0),
        output_tokens=int(usage.get("completion_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
        cost=float(usage.get("cost") or 0),
    )
