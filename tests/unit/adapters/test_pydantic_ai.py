"""The pydantic-ai adapter: pydantic-ai's test models, and its OpenAI model against a server."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from pydantic_ai import exceptions
from pydantic_ai.messages import ModelMessage, ModelResponse, SystemPromptPart, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

import limpet
from limpet.adapters.models import model_of
from limpet.adapters.openai import OpenAIModel
from limpet.adapters.pydantic_ai import PydanticAIModel
from limpet.engine.execution.failures import failure_of
from limpet.llm.model import Model, Prompt, PromptMessage, Reply, ToolCall, ToolSpec, Usage
from limpet.testing import ScriptedModel
from tests.servers.openai_server import Answer, OpenAIServer, call

HELLO = Prompt(messages=(PromptMessage(role="user", text="hello"),))
LOOK = ToolSpec(name="look", description="Look it up.", schema={"type": "object", "properties": {"id": {}}})
OUTPUT = {"type": "object", "title": "My answer", "properties": {"ok": {"type": "boolean"}}}
KEY = "not-a-real-key-but-long"
CHAT = "openai-chat:gpt-x"

both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    """Return a server that answers "hi" and needs no key."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with OpenAIServer(lambda _: "hi") as found:
        monkeypatch.setenv("OPENAI_BASE_URL", found.url)
        yield found


async def say(request: Prompt = HELLO, *, stream: bool = False, model: Any = CHAT, **settings: Any) -> Reply:
    """Return the model's reply. If it was streamed, check that the streamed text is that of the reply."""
    pieces: list[str] = []
    asked: Model = PydanticAIModel(model, settings=settings)
    reply = await asked.reply(request, on_text=pieces.append if stream else None)
    assert not stream or "".join(pieces) in (reply.text, "")
    return reply


# pydantic-ai's test models.


async def test_a_test_model_calls_each_tool_and_then_answers() -> None:
    request = Prompt(messages=HELLO.messages, tools=(LOOK,))
    first = await say(request, model=TestModel())
    assert (first.finish, [each.name for each in first.calls]) == ("calls", ["look"])
    answered = PromptMessage(role="tool", call=first.calls[0].id, tool="look", text="found")
    after = msgspec.structs.replace(
        request, messages=(*HELLO.messages, PromptMessage(role="assistant", calls=first.calls), answered)
    )
    then = await say(after, model=TestModel(), stream=True)
    assert (then.finish, then.text, then.raw) == ("stop", '{"look":"found"}', None)


async def test_messages_and_replies_are_converted() -> None:
    seen: list[tuple[list[ModelMessage], AgentInfo]] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append((messages, info))
        parts: list[Any] = [
            ThinkingPart("hm"),
            TextPart("so "),
            TextPart("be it"),
            ToolCallPart("look", {"id": 1}, "c"),
        ]
        usage = RequestUsage(input_tokens=9, output_tokens=3, cache_read_tokens=4)
        return ModelResponse(parts=parts, usage=usage, finish_reason="tool_call")

    calls = (ToolCall(id="a", name="look", args='{"id": 1}'), ToolCall(id="b", name="look", args="{wrong"))
    request = Prompt(
        messages=(
            PromptMessage(role="system", text="be brief"),
            PromptMessage(role="user", text="hello"),
            PromptMessage(role="assistant", text="so", calls=calls),
            PromptMessage(role="tool", text="one", call="a", tool="look"),
            PromptMessage(role="tool", text="two", call="b", tool="look"),
            PromptMessage(role="user", text="well?"),
        ),
        tools=(LOOK,),
        must_call=True,
        max_tokens=9,
        settings={"temperature": 0.5},
    )
    reply = await say(request, model=FunctionModel(answer, model_name="mine"), seed=1)
    [(messages, info)] = seen
    assert [[(part.part_kind, getattr(part, "tool_call_id", "")) for part in each.parts] for each in messages] == [
        [("system-prompt", ""), ("user-prompt", "")],
        [("text", ""), ("tool-call", "a"), ("tool-call", "b")],
        [("tool-return", "a"), ("tool-return", "b"), ("user-prompt", "")],
    ]
    assert [getattr(part, "args", None) for part in messages[1].parts] == [None, '{"id": 1}', "{wrong"]
    assert info.model_settings == {"max_retries": 0, "max_tokens": 9, "seed": 1, "temperature": 0.5} | {
        "tool_choice": "required"
    }
    [tool] = info.function_tools
    assert (tool.name, tool.description, tool.parameters_json_schema) == ("look", "Look it up.", LOOK.schema)
    assert reply.text == "so be it"
    assert reply.calls == (ToolCall(id="c", name="look", args='{"id":1}'),)
    assert (reply.finish, reply.model) == ("calls", "mine")
    assert reply.usage == Usage(input_tokens=9, output_tokens=3, cached_tokens=4)
    assert [part["part_kind"] for part in reply.raw["parts"]] == ["thinking", "text", "text", "tool-call"]
    assert msgspec.json.decode(msgspec.json.encode(reply), type=Reply) == reply


async def test_streamed_pieces_are_passed_on_and_assembled() -> None:
    async def answer(_: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        yield "one "
        yield "two"
        yield {0: DeltaToolCall("look", '{"id"')}
        yield {0: DeltaToolCall(json_args=": 1}")}

    pieces: list[str] = []
    reply = await PydanticAIModel(FunctionModel(stream_function=answer)).reply(HELLO, on_text=pieces.append)
    assert (pieces, reply.text) == (["one ", "two"], "one two")
    assert reply.calls == (ToolCall(id="call_1", name="look", args='{"id": 1}'),)


@pytest.mark.parametrize("native", [True, False])
async def test_the_output_schema_uses_the_models_output_mode(native: bool) -> None:
    seen: list[Any] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info)
        return ModelResponse(parts=[TextPart('{"ok": true}')])

    profile = ModelProfile(supports_json_schema_output=native)
    model = FunctionModel(answer, profile=profile)
    reply = await say(Prompt(messages=HELLO.messages, output=OUTPUT), model=model)
    assert reply.text == '{"ok": true}'
    asked = seen[0].model_request_parameters
    assert asked.output_mode == ("native" if native else "prompted")
    assert ("My_answer" in (seen[0].instructions or "")) is not native
    assert asked.output_object.json_schema == OUTPUT


async def test_a_system_message_in_the_middle_is_prepared_for_the_model() -> None:
    seen: list[list[ModelMessage]] = []

    def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        seen.append(messages)
        return ModelResponse(parts=[TextPart("so")])

    messages = (
        *HELLO.messages,
        PromptMessage(role="assistant", text="hi"),
        PromptMessage(role="system", text="be brief"),
    )
    await say(Prompt(messages=messages), model=FunctionModel(answer))
    [part] = seen[0][-1].parts
    assert not isinstance(part, SystemPromptPart)
    assert "be brief" in str(getattr(part, "content", ""))


async def test_an_unsupported_setting_is_not_sent() -> None:
    class Plain(TestModel):
        unsupported_settings = frozenset({"max_retries"})

    assert (await say(model=Plain())).finish == "stop"


async def test_an_error_response_is_a_transient_error() -> None:
    def answer(_: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[], finish_reason="error")

    with pytest.raises(ConnectionError, match="returned an error instead"):
        await say(model=FunctionModel(answer))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.UserError("tools are not supported"), limpet.Permanent),
        (exceptions.ModelQuotaExceededError("m", "no money"), limpet.Permanent),
        (exceptions.ModelContextWindowExceededError("m", "too long"), limpet.Permanent),
        (exceptions.ModelRateLimitError("m", "slow down", retry_after=2), limpet.RetryAfter),
        (exceptions.ModelRateLimitError("m", "slow down"), exceptions.ModelRateLimitError),
        (exceptions.ModelConnectionError("m", "gone"), exceptions.ModelConnectionError),
        (exceptions.UnexpectedModelBehavior("odd"), exceptions.UnexpectedModelBehavior),
        (exceptions.ModelHTTPError(400, "m", {"message": "no"}), limpet.Permanent),
        (exceptions.ModelHTTPError(500, "m", "no"), exceptions.ModelHTTPError),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else type(each).__name__,
)
async def test_errors_are_mapped_to_limpet_errors(error: Exception, kind: type[Exception]) -> None:
    def answer(_: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise error

    with pytest.raises(kind) as raised:
        await say(model=FunctionModel(answer))
    assert type(raised.value) is kind


# pydantic-ai's OpenAI model, over the wire.


@both
async def test_a_conversation_is_sent_over_the_wire(server: OpenAIServer, stream: bool) -> None:
    server.fail(Answer(text="let me see", calls=[call("look", {"id": 1}), call("look", {"id": 2})]))
    request = Prompt(
        messages=HELLO.messages, tools=(LOOK,), must_call=True, output=OUTPUT, max_tokens=9, settings={"top_p": 0.5}
    )
    reply = await say(request, stream=stream)
    assert (reply.text, reply.finish, reply.model) == ("let me see", "calls", "gpt-x")
    assert [(each.id, each.args) for each in reply.calls] == [("call_0_0", '{"id": 1}'), ("call_0_1", '{"id": 2}')]
    assert reply.usage == Usage(input_tokens=11, output_tokens=7)
    asked = server.requests[0]
    assert (asked["tool_choice"], asked["max_completion_tokens"], asked["top_p"]) == ("required", 9, 0.5)
    assert asked["tools"][0]["function"]["name"] == "look"
    assert asked["response_format"]["json_schema"]["name"] == "My_answer"
    answered = [PromptMessage(role="tool", call=each.id, tool="look", text=each.args) for each in reply.calls]
    after = (*HELLO.messages, PromptMessage(role="assistant", text=reply.text, calls=reply.calls), *answered)
    assert (await say(Prompt(messages=after), stream=stream)).text == "hi"
    assert [each["role"] for each in server.requests[1]["messages"]] == ["user", "assistant", "tool", "tool"]
    assert [each["tool_call_id"] for each in server.requests[1]["messages"][2:]] == ["call_0_0", "call_0_1"]


@both
async def test_calls_get_ids_that_are_unique_in_the_conversation(server: OpenAIServer, stream: bool) -> None:
    before = PromptMessage(role="assistant", calls=(ToolCall(id="call_0", name="look", args="{}"),))
    after = PromptMessage(role="tool", call="call_0", tool="look", text="")
    request = Prompt(messages=(*HELLO.messages, before, after))
    server.fail(Answer(calls=[call("look", {}, each) for each in ["call_0", "x", "x", "", ""]]), times=2)
    replies = [await say(request, stream=stream) for _ in range(2)]
    assert [each.id for each in replies[0].calls] == ["call_0_1", "x", "x_1", "call_1", "call_2"]
    assert replies[0].calls == replies[1].calls


@both
@pytest.mark.parametrize(
    ("answer", "finish", "text"),
    [
        (Answer(text="so", finish="length"), "length", "so"),
        (Answer(finish="content_filter"), "refused", ""),
        (Answer(refusal="I will not"), "refused", "I will not"),
        (Answer(calls=[call("look", "{}")], finish="stop"), "calls", ""),
    ],
    ids=["length", "filter", "refusal", "call that just stops"],
)
async def test_a_reply_has_its_finish_reason(
    server: OpenAIServer, stream: bool, answer: Answer, finish: str, text: str
) -> None:
    server.fail(answer)
    reply = await say(stream=stream)
    assert (reply.finish, reply.text) == (finish, text)


@both
@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_client_errors_are_permanent(server: OpenAIServer, stream: bool, status: int) -> None:
    server.fail(Answer(status=status, message="the model gpt-x is not there"), times=3)
    with pytest.raises(limpet.Permanent) as raised:
        await say(stream=stream)
    assert str(raised.value) == f"{CHAT} answered {status}: the model gpt-x is not there"
    assert len(server.requests) == 1


@both
@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_transient_errors_are_raised_unchanged(server: OpenAIServer, stream: bool, status: int) -> None:
    server.fail(Answer(status=status), times=3)
    with pytest.raises(exceptions.ModelHTTPError) as raised:
        await say(stream=stream)
    assert raised.value.status_code == status
    assert len(server.requests) == 1


@both
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"retry-after-ms": "250"}, 0.25),
        ({"Retry-After": "Tue, 14 Nov 2023 22:14:20 GMT", "Date": "Tue, 14 Nov 2023 22:13:20 GMT"}, 60),
    ],
    ids=["seconds", "milliseconds", "date"],
)
async def test_a_retry_after_header_becomes_retry_after(
    server: OpenAIServer, stream: bool, headers: dict[str, str], seconds: float
) -> None:
    server.fail(Answer(status=429, headers=headers))
    with pytest.raises(limpet.RetryAfter) as raised:
        await say(stream=stream)
    assert raised.value.after == seconds * 10**6


async def test_an_exhausted_quota_is_permanent(server: OpenAIServer) -> None:
    server.fail(Answer(status=429, headers={"Retry-After": "7"}, code="insufficient_quota"))
    with pytest.raises(limpet.Permanent):
        await say()


@pytest.mark.parametrize("cut", ["torn", "quiet"])
async def test_a_truncated_stream_is_an_error(server: OpenAIServer, cut: Any) -> None:
    server.fail(Answer(text="one two three four five", cut=cut))
    pieces: list[str] = []
    with pytest.raises((exceptions.ModelAPIError, ConnectionError)):
        await PydanticAIModel(CHAT).reply(HELLO, on_text=pieces.append)
    assert "".join(pieces) == "one two three"


@both
@pytest.mark.parametrize("body", ['{"choices": [', "hello"])
async def test_an_invalid_reply_is_a_transient_error(server: OpenAIServer, stream: bool, body: str) -> None:
    server.fail(Answer(body=f"data: {body}\n\n" if stream else body))
    with pytest.raises(Exception) as raised:  # noqa: PT011 - any exception
        await say(stream=stream)
    assert not isinstance(raised.value, limpet.Permanent)
    assert (await say(stream=stream)).text == "hi"


@pytest.mark.parametrize("status", [401, 500])
async def test_a_key_that_the_server_repeats_is_redacted(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.fail(Answer(status=status, message=f"wrong key: {KEY}"))
    model = PydanticAIModel(CHAT)
    with pytest.raises((limpet.Permanent, exceptions.ModelHTTPError)) as raised:
        await model.reply(HELLO)
    failure = failure_of(raised.value)
    assert KEY not in f"{failure.message} {failure.traceback}"
    assert "wrong key: [secret]" in failure.message


async def test_a_timeout_is_a_transient_error(server: OpenAIServer) -> None:
    server.fail(Answer(hold=True), times=2)
    with pytest.raises(exceptions.ModelTimeoutError):
        await say(timeout=0.01)
    with pytest.raises(exceptions.ModelRequestTimeout):
        await say(request_timeout=0.01)


async def test_a_missing_key_is_reported_by_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(limpet.Permanent, match="OPENAI_API_KEY"):
        await say()


async def test_a_missing_provider_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(limpet.Permanent, match="pydantic-ai-slim\\[anthropic\\]"):
        await say(model="anthropic:claude-x")


async def test_an_unknown_model_is_a_permanent_error() -> None:
    with pytest.raises(limpet.Permanent, match="unknown:x cannot be used: Unknown model"):
        await say(model="unknown:x")


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)
    with pytest.raises(limpet.ExtraMissing, match="limpet\\[openai\\]"):
        PydanticAIModel(CHAT)


@pytest.mark.parametrize("given", [False, True])
def test_a_model_can_be_used_in_several_event_loops(server: OpenAIServer, given: bool) -> None:
    settings = ModelSettings(seed=1)
    theirs = OpenAIChatModel("gpt-x", provider=OpenAIProvider(base_url=server.url, api_key="k"), settings=settings)
    model = PydanticAIModel(theirs if given else CHAT)

    async def ask() -> list[str]:
        return [reply.text for reply in await asyncio.gather(model.reply(HELLO), model.reply(HELLO))]

    assert [asyncio.run(ask()) for _ in range(2)] == [["hi", "hi"]] * 2
    assert model.name == ("openai:gpt-x" if given else CHAT)


# Choice of the adapter.


def test_a_model_is_found_by_its_name() -> None:
    found = model_of("openai:gpt-5-mini")
    assert isinstance(found, OpenAIModel)
    assert found.name == "openai:gpt-5-mini"
    other = model_of("openrouter:meta/llama:free")
    assert isinstance(other, PydanticAIModel)
    assert other.name == "openrouter:meta/llama:free"
    own = ScriptedModel("hi")
    assert model_of(own) is own


@pytest.mark.parametrize("spec", ["gpt-5-mini", "openai:", ":x", "", 7, None, ScriptedModel, OpenAIModel, TestModel()])
def test_an_invalid_model_is_refused_with_the_choices(spec: Any) -> None:
    with pytest.raises(limpet.DefinitionError, match=r"openai:gpt-5-mini.*provider:name.*ScriptedModel"):
        model_of(spec)
