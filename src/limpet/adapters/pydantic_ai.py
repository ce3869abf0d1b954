"""pydantic-ai: use any model that it supports. Its agents and their loop are not used.

    model = limpet.adapters.pydantic_ai.PydanticAIModel("anthropic:claude-sonnet-4-5")

The package is imported at the first call. Reasoning data before tool calls is sent back to the model with its
signatures, in pydantic-ai's format.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any

from limpet.engine.steps.verdict import Permanent, RetryAfter
from limpet.errors import ExtraMissing
from limpet.llm.model import Prompt, PromptMessage, Reply, ToolCall, Usage
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
from limpet.redaction import hide_secrets
from limpet.secret import Secret

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model as TheirModel
    from pydantic_ai.models import ModelRequestParameters

__all__ = ["PydanticAIModel"]

MADE_UP = "pyd_ai_"
"""Prefix of ids that pydantic-ai generates if the model sends none."""
OURS = ("content", "tool_name", "tool_call_id", "args")
"""Fields of a text or call that the message has, too."""


class PydanticAIModel:
    """A model of pydantic-ai.

    `model` is its name, such as "anthropic:claude-sonnet-4-5", or a model object of pydantic-ai. `settings` are sent
    with every request; those of the prompt take precedence.
    """

    def __init__(self, model: "str | TheirModel", *, settings: Mapping[str, Any] | None = None) -> None:
        if find_spec("pydantic_ai") is None:
            raise ExtraMissing(extra="openai")
        self._model, self._settings = model, dict(settings or {})
        self._key: Secret | None = None
        self._models: PerLoop[TheirModel] = PerLoop(self._new_model)

    @property
    def name(self) -> str:
        """Name such as `anthropic:claude-sonnet-4-5`."""
        return self._model if isinstance(self._model, str) else self._model.model_id

    async def reply(self, prompt: Prompt, /, *, on_text: Callable[[str], object] | None = None) -> Reply:
        """Return the model's reply. With `on_text`, the reply is streamed."""
        model = await self._models.get()
        errors = importlib.import_module("pydantic_ai.exceptions")
        try:
            response = await self._response(model, prompt, on_text)
        except errors.UserError as error:
            raise self._unusable(error) from error
        except errors.ModelAPIError as error:
            meant = self._meaning(error, errors)
            if meant is None:
                raise
            raise meant from error
        return self._reply(prompt, response, is_streamed=on_text is not None)

    @property
    def _place(self) -> str:
        """Origin of reasoning data: this model, in pydantic-ai's format. Only its own is sent back."""
        return f"pydantic-ai {self.name}"

    async def _response(
        self, model: "TheirModel", request: Prompt, on_text: Callable[[str], object] | None
    ) -> "ModelResponse":
        direct = importlib.import_module("pydantic_ai.direct")
        parameters = _parameters(model, request)
        asked: dict[str, Any] = {
            "messages": model.prepare_messages(_messages(request.messages, self._place), parameters),
            "model_settings": self._all_settings(model, request),
            "model_request_parameters": parameters,
        }
        if on_text is None:
            answer: ModelResponse = await direct.model_request(model, **asked)
            return answer
        async with direct.model_request_stream(model, **asked) as stream:
            async for event in stream:
                piece = _piece(event)
                if piece:
                    on_text(piece)
        received: ModelResponse = stream.get()
        self._check_complete(received)
        return received

    def _all_settings(self, model: "TheirModel", request: Prompt) -> dict[str, Any]:
        settings = {"max_retries": 0, **self._settings, **request.settings}  # the step retries
        if "max_retries" in model.unsupported_settings:
            del settings["max_retries"]
        if request.max_tokens is not None:
            settings["max_tokens"] = request.max_tokens
        if request.must_call and request.tools:
            settings["tool_choice"] = "required"
        return settings

    def _check_complete(self, response: "ModelResponse") -> None:
        """Raise ConnectionError for a stream that was cut off: it has neither a finish reason nor a usage."""
        silent = response.usage.unmeasured_requests and not (response.provider_details or {}).get("finish_reason")
        refused = response.finish_reason == "content_filter"
        if response.state != "complete" or (silent and not refused):
            raise ConnectionError(f"{self.name}: the reply was cut off")

    def _reply(self, request: Prompt, response: "ModelResponse", *, is_streamed: bool) -> Reply:
        calls = unique_calls((_call(each) for each in response.tool_calls), request.messages)
        text = "".join(part.content for part in response.parts if part.part_kind == "text")
        if response.finish_reason == "error" and not text and not calls:
            raise ConnectionError(f"{self.name} returned an error instead of a reply")
        refusal, plain = (response.provider_details or {}).get("refusal"), _plain(response)
        return Reply(
            text=join_surrogates(text) or str(refusal or ""),
            calls=calls,
            usage=_usage(response),
            finish=finish_of(response.finish_reason, calls),
            model=response.model_name or self.name,
            raw=None if is_streamed else plain,
            thoughts=thoughts_of(self._place, _kept(plain)),
        )

    def _meaning(self, error: Any, errors: Any) -> Exception | None:
        """Return the exception for an error response, by its status, or by pydantic-ai's class if it has no status."""
        says, spent = message_of(error.body) or str(error), isinstance(error, errors.ModelQuotaExceededError)
        if isinstance(error, errors.ModelHTTPError):
            return error_of(self.name, error.status_code, says, error.headers or {}, spent=spent)
        if spent or isinstance(error, errors.ModelRequestRejectedError):
            return Permanent(hide_secrets(f"{self.name} refused: {says}"))
        if isinstance(error, errors.ModelRateLimitError) and error.retry_after is not None:
            return RetryAfter(error.retry_after, hide_secrets(f"{self.name} refused: {says}"))
        return None

    def _unusable(self, error: Exception) -> Permanent:
        return Permanent(hide_secrets(f"{self.name} cannot be used: {error}"))

    def _new_model(self) -> "TheirModel":
        """Create the model with its connections."""
        importlib.import_module("pydantic_ai.direct")
        models, errors = (importlib.import_module(f"pydantic_ai.{each}") for each in ("models", "exceptions"))
        try:
            model: TheirModel = models.infer_model(self._model)
        except (errors.UserError, ImportError) as error:  # a missing key or package, which the error names
            raise self._unusable(error) from error
        key = getattr(getattr(model.provider, "client", None), "api_key", None)
        self._key = Secret(key) if isinstance(key, str) and key else None  # redacted everywhere
        return model


def _parameters(model: "TheirModel", request: Prompt) -> "ModelRequestParameters":
    from_models = importlib.import_module("pydantic_ai.models")
    definition = importlib.import_module("pydantic_ai.tools").ToolDefinition
    tools = [
        definition(name=each.name, description=each.description, parameters_json_schema=each.schema)
        for each in request.tools
    ]
    output = {} if request.output is None else _output(model, request.output, bool(tools))
    found: ModelRequestParameters = from_models.ModelRequestParameters(function_tools=tools, **output)
    return found


def _output(model: "TheirModel", schema: dict[str, Any], has_tools: bool) -> dict[str, Any]:
    """Return the output options: the provider's own feature if it works with tools, else the schema in the prompt."""
    profile: Mapping[str, Any] = model.profile
    native = profile.get("supports_json_schema_output", False)
    if has_tools and model.system.startswith("google"):
        native = native and profile.get("google_supports_tool_combination", False)
    wanted = importlib.import_module("pydantic_ai.output").OutputObjectDefinition(
        json_schema=schema, name=format_name(schema), description=schema.get("description")
    )
    return {"output_mode": "native" if native else "prompted", "output_object": wanted}


def _messages(messages: Iterable[PromptMessage], place: str) -> "list[ModelMessage]":
    """Convert messages to pydantic-ai's requests and responses. All messages between two replies are one request."""
    kinds = importlib.import_module("pydantic_ai.messages")
    found: list[ModelMessage] = []
    for is_reply, group in groupby(messages, lambda each: each.role == "assistant"):
        if is_reply:
            found += [_said(kinds, each, kept_by(place, each)) for each in group]
        else:
            found.append(kinds.ModelRequest(parts=[_part(kinds, each) for each in group]))
    return found


def _said(kinds: Any, message: PromptMessage, kept: Any) -> "ModelResponse":
    """Return a reply with its reasoning data; without it, if another version wrote it and it cannot be read."""
    if kept is not None:
        with suppress(LookupError, TypeError, ValueError):
            [found] = kinds.ModelMessagesTypeAdapter.validate_python([_whole_reply(message, kept)])
            response: ModelResponse = found
            return response
    text = [kinds.TextPart(message.text)] if message.text or not message.calls else []
    calls = [kinds.ToolCallPart(each.name, each.args, tool_call_id=each.id) for each in message.calls]
    return kinds.ModelResponse(parts=[*text, *calls])  # type: ignore[no-any-return]


def _kept(response: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reasoning data of a reply, with the positions of its texts and calls; empty if it has none.

    Files are not kept.
    """
    parts = [part for part in response["parts"] if part["part_kind"] != "file"]
    if not any(part["part_kind"] != "text" and (_is_opaque(part) or part.get("provider_details")) for part in parts):
        return {}
    about = {name: response.get(name) for name in ("provider_name", "canonical_system")}
    return {**_known(about), "parts": [_known(part if _is_opaque(part) else _mark(part)) for part in parts]}


def _is_opaque(part: Mapping[str, Any]) -> bool:
    return part["part_kind"] not in ("text", "tool-call")


def _mark(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a text or call without its content; for a text, with its length."""
    about = {name: value for name, value in part.items() if name not in OURS}
    return about | ({"length": len(join_surrogates(part["content"]))} if part["part_kind"] == "text" else {})


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _whole_reply(message: PromptMessage, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reply in pydantic-ai's format, from its reasoning data and its message."""
    lengths = [part["length"] for part in kept["parts"] if part["part_kind"] == "text"]
    if sum(lengths) != len(message.text):  # the text was cut or redacted
        lengths = [len(message.text), *(0 for _ in lengths[1:])]
    texts = [message.text[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
    calls = [{"tool_name": each.name, "args": each.args, "tool_call_id": each.id} for each in message.calls]
    parts = []
    for part in kept["parts"]:
        if part["part_kind"] == "text":
            text = texts.pop(0)
            parts += [{**part, "content": text}] if text else []
        else:
            parts.append(part if _is_opaque(part) else {**part, **calls.pop(0)})
    if texts or calls:
        raise ValueError("the message has more texts or calls than its record")
    return {**kept, "kind": "response", "parts": parts}


def _part(kinds: Any, message: PromptMessage) -> Any:
    if message.role == "system":
        return kinds.SystemPromptPart(message.text)
    if message.role == "user":
        return kinds.UserPromptPart(message.text)
    return kinds.ToolReturnPart(message.tool, message.text, tool_call_id=message.call)


def _piece(event: Any) -> str:
    """Return the text that a stream event adds."""
    if event.event_kind == "part_start" and event.part.part_kind == "text":
        return str(event.part.content)
    if event.event_kind == "part_delta" and event.delta.part_delta_kind == "text":
        return str(event.delta.content_delta)
    return ""


def _call(part: Any) -> ToolCall:
    id = "" if part.tool_call_id.startswith(MADE_UP) else part.tool_call_id
    args = part.args if isinstance(part.args, str) else part.args_as_json_str()
    return ToolCall(id=id, name=part.tool_name, args=join_surrogates(args))


def _usage(response: "ModelResponse") -> Usage:
    """Return the usage. It has a cost only if the provider or its gateway reports one."""
    usage = response.usage
    cost = (response.provider_details or {}).get("cost") if usage.cost is None else usage.cost
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cost=float(cost or 0),
    )


def _plain(response: "ModelResponse") -> Any:
    """Return the response in pydantic-ai's format; the provider's own response is not available."""
    adapter = importlib.import_module("pydantic_ai.messages").ModelMessagesTypeAdapter
    [plain] = adapter.dump_python([response], mode="json")
    return plain
