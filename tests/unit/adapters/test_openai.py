"""The OpenAI adapter with OpenAI's own client, against a scripted server."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest

import limpet
from limpet import testing
from limpet.adapters.openai import OpenAIModel
from limpet.engine.execution.failures import failure_of
from limpet.llm.model import Model, Prompt, PromptMessage, Reply, ToolCall, ToolSpec, Usage
from tests.servers.openai_server import Answer, OpenAIServer, ServerProcess, call

HELLO = Prompt(messages=(PromptMessage(role="user", text="hello"),))
LOOK = ToolSpec(name="look", description="Look it up.", schema={"type": "object", "properties": {"id": {}}})
KEY = "not-a-real-key-but-long"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    """Return a server that answers "hi" and needs no key."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with OpenAIServer(lambda _: "hi") as found:
        monkeypatch.setenv("OPENAI_BASE_URL", found.url)
        yield found


async def say(request: Prompt = HELLO, *, stream: bool = False, **settings: Any) -> Reply:
    """Return the model's reply. If it was streamed, check that the streamed text is that of the reply."""
    streamed: list[str] = []
    model: Model = OpenAIModel("gpt-x", settings=settings)
    reply = await model.reply(request, on_text=streamed.append if stream else None)
    assert not stream or "".join(streamed) == reply.text
    return reply


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def test_a_reply_has_the_raw_response(server: OpenAIServer) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}, "cost": 0.25}
    server.fail(Answer(text="fine", usage=usage))
    reply = await say()
    assert (reply.text, reply.calls, reply.finish, reply.model) == ("fine", (), "stop", "gpt-x")
    assert reply.usage == Usage(input_tokens=100, output_tokens=5, cached_tokens=64, cost=0.25)
    assert reply.raw["choices"][0]["message"] == {"role": "assistant", "content": "fine", "refusal": None}
    assert reply.raw["usage"] == {"total_tokens": 105, **usage}
    assert msgspec.json.decode(msgspec.json.encode(reply), type=Reply) == reply


async def test_streamed_text_is_passed_on_in_pieces_with_usage(server: OpenAIServer) -> None:
    server.fail(Answer(text="all is well"))
    streamed: list[str] = []
    reply = await OpenAIModel("gpt-x").reply(HELLO, on_text=streamed.append)
    assert streamed == ["all", " is", " well"]
    assert reply == Reply(text="all is well", usage=Usage(input_tokens=11, output_tokens=7), model="gpt-x")
    assert server.requests[0]["stream_options"] == {"include_usage": True}


@both
async def test_messages_are_sent_in_the_providers_format(server: OpenAIServer, stream: bool) -> None:
    calls = (ToolCall(id="a", name="look", args='{"id": 1}'), ToolCall(id="b", name="look", args=""))
    request = Prompt(
        messages=(
            PromptMessage(role="system", text="be brief"),
            PromptMessage(role="user", text="hello"),
            PromptMessage(role="assistant", calls=calls),
            PromptMessage(role="tool", text="one", call="a", tool="look"),
            PromptMessage(role="tool", text="", call="b", tool="look"),
            PromptMessage(role="assistant", text="so", calls=calls[:1]),
            PromptMessage(role="assistant", text=""),
        )
    )
    await say(request, stream=stream)
    wanted = [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"id": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    assert server.requests[0]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": wanted},
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "assistant", "content": "so", "tool_calls": wanted[:1]},
        {"role": "assistant", "content": ""},
    ]
    assert server.requests[0].keys() - {"stream", "stream_options"} == {"model", "messages"}


@both
async def test_tools_output_schema_and_limits_are_sent(server: OpenAIServer, stream: bool) -> None:
    schema = {"type": "object", "title": "My answer", "properties": {"ok": {"type": "boolean", "default": True}}}
    request = Prompt(messages=HELLO.messages, tools=(LOOK,), must_call=True, output=schema, max_tokens=9)
    await say(request, stream=stream)
    asked = server.requests[0]
    about = {"name": "look", "description": "Look it up.", "parameters": LOOK.schema}
    assert asked["tools"] == [{"type": "function", "function": about}]
    assert (asked["tool_choice"], asked["max_tokens"]) == ("required", 9)
    assert asked["response_format"] == {"type": "json_schema", "json_schema": {"name": "My_answer", "schema": schema}}


async def test_must_call_is_not_sent_without_tools(server: OpenAIServer) -> None:
    await say(Prompt(messages=HELLO.messages, must_call=True))
    assert server.requests[0].keys() == {"model", "messages"}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}, True),
        ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, False),
        ({"properties": {"a": {"type": "string"}}, "additionalProperties": False}, False),
        ({"properties": {"a": {"minLength": 1}}, "required": ["a"], "additionalProperties": False}, False),
        ({"properties": {"a": {"items": True}}, "required": ["a"], "additionalProperties": False}, False),
        ({"properties": {}, "additionalProperties": False, "$defs": {"B": {"type": "object"}}}, False),
    ],
)
async def test_a_schema_is_strict_only_if_the_provider_accepts_it(
    server: OpenAIServer, schema: dict[str, Any], strict: bool
) -> None:
    await say(Prompt(messages=HELLO.messages, output={"type": "object", **schema}))
    asked = server.requests[0]["response_format"]["json_schema"]
    assert (asked["name"], asked.get("strict", False)) == ("output", strict)


async def test_settings_are_sent_but_cannot_override_the_prompt(server: OpenAIServer) -> None:
    settings = {"temperature": 0.5, "top_k": 3, "seed": 1, "stream": True, "messages": [], "tool_choice": "none"}
    more = {"seed": 2, "extra_body": {"mine": {"deep": 1}}, "extra_headers": {"X-Mine": "yes"}, "timeout": 60}
    request = Prompt(messages=HELLO.messages, tools=(LOOK,), must_call=True, settings=more)
    await OpenAIModel("gpt-x", settings=settings).reply(request)
    asked = server.requests[0]
    assert {name: asked.get(name) for name in ("temperature", "top_k", "seed", "mine", "tool_choice", "stream")} == {
        "temperature": 0.5,
        "top_k": 3,
        "seed": 2,
        "mine": {"deep": 1},
        "tool_choice": "required",
        "stream": None,
    }
    assert asked["messages"] == [{"role": "user", "content": "hello"}]
    assert "timeout" not in asked
    assert "extra_headers" not in asked
    assert server.headers[0]["x-mine"] == "yes"


async def test_openai_gets_the_limit_as_max_completion_tokens() -> None:
    asked: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(msgspec.json.decode(request.content))
        return httpx2.Response(200, json={"choices": [{"message": {"content": "hi"}}]})

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    client = openai.AsyncOpenAI(api_key=KEY, base_url="https://api.openai.com/v1", http_client=http)
    async with client:
        model = OpenAIModel("gpt-x", client=client)
        reply = await model.reply(Prompt(messages=HELLO.messages, max_tokens=9))
    assert (asked[0]["max_completion_tokens"], "max_tokens" in asked[0]) == (9, False)
    assert (reply.text, reply.finish, reply.model, reply.usage) == ("hi", "stop", "gpt-x", Usage())


async def test_a_custom_server_needs_no_key(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    await say()
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    await say()
    assert [each["authorization"] for each in server.headers] == ["Bearer no-key", f"Bearer {KEY}"]


async def test_a_missing_key_is_reported_when_the_model_is_called(
    monkeypatch: pytest.MonkeyPatch, server: OpenAIServer
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL")
    model = OpenAIModel("gpt-x")
    assert model.name == "openai:gpt-x"
    for _ in range(2):
        with pytest.raises(limpet.Permanent, match="OPENAI_API_KEY"):
            await model.reply(HELLO)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    assert (await model.reply(HELLO)).text == "hi"


async def test_a_given_client_is_used_without_its_retries(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL")
    server.fail(Answer(status=500), times=2)
    async with openai.AsyncOpenAI(api_key=KEY, base_url=server.url, max_retries=5) as client:
        with pytest.raises(openai.InternalServerError):
            await OpenAIModel("gpt-x", client=client).reply(HELLO)
    assert len(server.requests) == 1


@both
async def test_parallel_calls_keep_the_models_order_and_arguments(server: OpenAIServer, stream: bool) -> None:
    server.fail(Answer(text="let me see", calls=[call("look", {"id": "ä"}), call("look", "{not json")]))
    reply = await say(stream=stream)
    assert (reply.text, reply.finish) == ("let me see", "calls")
    assert reply.calls == (
        ToolCall(id="call_0_0", name="look", args='{"id": "\\u00e4"}'),
        ToolCall(id="call_0_1", name="look", args="{not json"),
    )


@both
async def test_calls_get_ids_that_are_unique_in_the_conversation(server: OpenAIServer, stream: bool) -> None:
    before = PromptMessage(role="assistant", calls=(ToolCall(id="call_0", name="look", args="{}"),))
    request = Prompt(messages=(*HELLO.messages, before))
    ids = ["call_0", "x", "x", "", ""]
    server.fail(Answer(calls=[call("look", {}, each) for each in ids]), times=2)
    replies = [await say(request, stream=stream) for _ in range(2)]
    assert [each.id for each in replies[0].calls] == ["call_0_1", "x", "x_1", "call_1", "call_2"]
    assert replies[0].calls == replies[1].calls


@pytest.mark.parametrize(
    "pieces",
    [
        [{"id": "a", "function": {"name": "look", "arguments": '{"id"'}}, {"function": {"arguments": ": 1}"}}],
        [
            {"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"id"'}},
            {"index": 0, "id": "a", "function": {"name": "look", "arguments": ": 1}"}},
        ],
        [
            {"index": 0, "id": "a", "function": {"name": "lo"}},
            {"index": 0, "function": {"name": "ok", "arguments": '{"id": 1}'}},
        ],
    ],
    ids=["without an index", "everything repeated", "the name in pieces"],
)
async def test_a_call_streamed_in_pieces_is_assembled(server: OpenAIServer, pieces: list[Any]) -> None:
    other = {"index": 0, "id": "b", "function": {"name": "act", "arguments": "{}"}}
    server.fail(Answer(pieces=[{"tool_calls": [each]} for each in [*pieces, other]]))
    reply = await say(stream=True)
    assert reply.calls == (ToolCall(id="a", name="look", args='{"id": 1}'), ToolCall(id="b", name="act", args="{}"))
    assert reply.finish == "calls"


async def test_text_streamed_in_parts_is_joined(server: OpenAIServer) -> None:
    parts = [{"type": "text", "text": "so "}, {"type": "text", "text": "be it "}]
    server.fail(
        Answer(pieces=[{"content": parts}, {"content": "\ud83d"}, {"content": "\ude00"}, {"content": "\ud83d"}])
    )
    reply = await OpenAIModel("gpt-x").reply(HELLO, on_text=lambda _: None)
    assert reply.text == "so be it 😀�"


async def test_arguments_as_objects_and_content_in_parts_are_accepted(server: OpenAIServer) -> None:
    calls = [{"function": {"name": "look", "arguments": {"id": 1}}}, {"type": "custom", "custom": {}}]
    message = {"content": [{"type": "text", "text": "so"}], "tool_calls": calls}
    server.fail(Answer(body={"choices": [{"message": message}]}))
    reply = await say()
    assert (reply.text, reply.calls) == ("so", (ToolCall(id="call_1", name="look", args='{"id":1}'),))


@both
@pytest.mark.parametrize(
    ("answer", "finish", "text"),
    [
        (Answer(text="so", finish="length"), "length", "so"),
        (Answer(calls=[call("look", "{")], finish="length"), "length", ""),
        (Answer(calls=[call("look", "{}")], finish="stop"), "calls", ""),
        (Answer(finish="content_filter"), "refused", ""),
        (Answer(refusal="I will not"), "refused", "I will not"),
        (Answer(text="so", finish="eos"), "stop", "so"),
    ],
    ids=["length", "cut off call", "call that just stops", "filter", "refusal", "unknown"],
)
async def test_a_reply_has_its_finish_reason(
    server: OpenAIServer, stream: bool, answer: Answer, finish: str, text: str
) -> None:
    server.fail(answer)
    reply = await say(stream=stream)
    assert (reply.finish, reply.text) == (finish, text)


async def test_an_unstreamed_reply_without_a_finish_reason_is_a_stop(server: OpenAIServer) -> None:
    server.fail(Answer(text="so", finish=None))
    assert (await say()).finish == "stop"


@pytest.mark.parametrize("cut", ["torn", "quiet"])
async def test_a_truncated_stream_is_an_error(server: OpenAIServer, cut: Any) -> None:
    server.fail(Answer(text="one two three four five", cut=cut))
    streamed: list[str] = []
    with pytest.raises((openai.APIConnectionError, ConnectionError)) as raised:
        await OpenAIModel("gpt-x").reply(HELLO, on_text=streamed.append)
    assert "".join(streamed) == "one two three"
    assert not isinstance(raised.value, limpet.Permanent)


@both
@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
async def test_client_errors_are_permanent(server: OpenAIServer, stream: bool, status: int) -> None:
    server.fail(Answer(status=status, message="the model gpt-x is not there"), times=3)
    with pytest.raises(limpet.Permanent) as raised:
        await say(stream=stream)
    assert str(raised.value) == f"openai:gpt-x answered {status}: the model gpt-x is not there"
    assert len(server.requests) == 1


@both
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
async def test_transient_errors_are_raised_unchanged(server: OpenAIServer, stream: bool, status: int) -> None:
    server.fail(Answer(status=status), times=3)
    with pytest.raises(openai.APIStatusError) as raised:
        await say(stream=stream)
    assert raised.value.status_code == status
    assert len(server.requests) == 1


@both
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": "9", "retry-after-ms": "250"}, 0.25),
        ({"Retry-After": "Tue, 14 Nov 2023 22:14:20 GMT", "Date": "Tue, 14 Nov 2023 22:13:20 GMT"}, 60),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:20 GMT"}, 0),
        ({"Retry-After": "99999999999999999999"}, 86400),
    ],
    ids=["seconds", "parts of a second", "milliseconds", "date", "past", "absurd"],
)
async def test_a_retry_after_header_becomes_retry_after(
    server: OpenAIServer, stream: bool, status: int, headers: dict[str, str], seconds: float
) -> None:
    server.fail(Answer(status=status, headers=headers, message="slow down"))
    with pytest.raises(limpet.RetryAfter, match="slow down") as raised:
        await say(stream=stream)
    assert raised.value.after == seconds * 10**6


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", ""])
async def test_an_unreadable_retry_after_header_is_ignored(server: OpenAIServer, text: str) -> None:
    server.fail(Answer(status=429, headers={"Retry-After": text}))
    with pytest.raises(openai.RateLimitError):
        await say()


async def test_an_exhausted_quota_is_permanent(server: OpenAIServer) -> None:
    server.fail(Answer(status=429, headers={"Retry-After": "7"}, code="insufficient_quota"))
    with pytest.raises(limpet.Permanent):
        await say()


@pytest.mark.parametrize("body", ["<h1>no</h1>", {"detail": "no"}, {"message": "no"}, {"error": "no"}, {"no": 1}, "[]"])
async def test_error_bodies_of_any_form_are_reported(server: OpenAIServer, body: Any) -> None:
    server.fail(Answer(status=400, body=body))
    with pytest.raises(limpet.Permanent, match="answered 400: ") as raised:
        await say()
    assert "no" in str(raised.value) or body == "[]"


@pytest.mark.parametrize("status", [401, 500])
async def test_a_key_that_the_server_repeats_is_redacted(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.fail(Answer(status=status, message=f"wrong key: {KEY}"))
    model = OpenAIModel("gpt-x")
    with pytest.raises((limpet.Permanent, openai.APIStatusError)) as raised:
        await model.reply(HELLO)
    failure = failure_of(raised.value)
    assert KEY not in f"{failure.message} {failure.traceback}"
    assert "wrong key: [secret]" in failure.message


async def test_a_refused_connection_is_a_transient_error(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer([]) as gone:
        monkeypatch.setenv("OPENAI_BASE_URL", gone.url)
    with pytest.raises(openai.APIConnectionError):
        await say()


@both
async def test_a_timeout_is_a_transient_error(server: OpenAIServer, stream: bool) -> None:
    server.fail(Answer(hold=True))
    with pytest.raises(openai.APITimeoutError):
        await say(stream=stream, timeout=0.01)


async def test_a_cancelled_reply_ends_immediately(server: OpenAIServer) -> None:
    server.fail(Answer(hold=True))
    asked = asyncio.create_task(say())
    await asyncio.to_thread(server.wait_for, 1)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert (await say()).text == "hi"


@pytest.mark.parametrize(
    "body",
    [
        '{"choices": [',
        "hello",
        '"hello"',
        "{}",
        '{"choices": []}',
        '{"choices": [{}]}',
        '{"choices": [{"message": null}]}',
        '{"choices": [{"message": {"content": "\\ud800"}}]}',
        '{"error": {"message": "upstream", "code": 502}}',
        '{"choices": [{"message": {"tool_calls": [7]}}]}',
    ],
)
async def test_an_invalid_reply_is_a_transient_error(server: OpenAIServer, body: str) -> None:
    server.fail(Answer(body=body))
    with pytest.raises(ConnectionError, match="openai:gpt-x sent an invalid reply") as raised:
        await say()
    assert ("upstream" in body) is ("upstream" in str(raised.value))
    assert (await say()).text == "hi"


@pytest.mark.parametrize("data", ["{", '{"error": {"message": "upstream", "code": 502}}', '{"choices": null}', ""])
async def test_an_invalid_stream_is_a_transient_error(server: OpenAIServer, data: str) -> None:
    server.fail(Answer(body=f"data: {data}\n\n" if data else "", headers={"Content-Type": "text/event-stream"}))
    with pytest.raises(Exception) as raised:  # noqa: PT011 - raised by the client or by the adapter
        await say(stream=True)
    assert not isinstance(raised.value, limpet.Permanent)


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(limpet.ExtraMissing, match="limpet\\[openai\\]"):
        OpenAIModel("gpt-x")


def test_a_model_can_be_used_in_several_event_loops(server: OpenAIServer) -> None:
    model = OpenAIModel("gpt-x")

    async def ask() -> list[str]:
        return [reply.text for reply in await asyncio.gather(model.reply(HELLO), model.reply(HELLO))]

    assert [asyncio.run(ask()) for _ in range(2)] == [["hi", "hi"]] * 2


def test_provider_packages_are_imported_only_when_a_model_is_called() -> None:
    code = """
import sys, limpet, limpet.testing, limpet.adapters.models
from limpet.adapters.models import model_of
model_of("openai:gpt-x"), model_of("anthropic:claude-x")
print([name for name in ("openai", "pydantic_ai", "pydantic", "httpx2") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@limpet.tool(effect="none", retry=limpet.Retry(4))
async def openai_ask(text: str) -> str:
    return (await OpenAIModel("gpt-x").reply(Prompt(messages=(PromptMessage(role="user", text=text),)))).text


@limpet.agent()
async def asks_openai(run: limpet.Run, text: str) -> str:
    return await run.step(openai_ask, text)


async def test_a_step_retries_transient_errors_and_fails_on_permanent_ones(server: OpenAIServer) -> None:
    server.failures = {1: {"status": 500}, 2: {"status": 429, "headers": {"Retry-After": "1"}}, 3: {"body": "{"}}
    async with testing.app(asks_openai) as app:
        assert await app.run(asks_openai, "hello") == "hi"
        assert (len(server.requests), server.answered) == (4, 1)
        server.fail(Answer(status=401, message="no such key"))
        with pytest.raises(limpet.RunFailed, match="no such key"):
            await app.run(asks_openai, "hello again")
        assert len(server.requests) == 5


async def test_the_server_process_counts_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = {
        "replies": [{"calls": [call("look", {"id": 1})]}, "done"],
        "failures": {"2": {"status": 500}, "4": {"hold": True, "text": "at last"}},
    }
    path = tmp_path / "script.json"
    path.write_bytes(msgspec.json.encode(script))
    with ServerProcess(str(path), tmp_path) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        calls = (await say()).calls
        assert [each.name for each in calls] == ["look"]
        with pytest.raises(openai.InternalServerError):
            await say()
        answered = PromptMessage(role="tool", call=calls[0].id, tool="look", text="1")
        after = Prompt(messages=(*HELLO.messages, PromptMessage(role="assistant", calls=calls), answered))
        assert (await say(after, stream=True)).text == "done"
        late = asyncio.create_task(say())
        await asyncio.to_thread(server.release)
        assert (await late).text == "at last"
        stats = await asyncio.to_thread(server.stats)
    assert (stats["requests"], stats["answered"], stats["by_turn"]) == (4, 3, {"0": 3, "1": 1})
    assert stats["bodies"][2]["messages"][-1] == {"role": "tool", "tool_call_id": "call_0_0", "content": "1"}


async def test_a_server_script_can_be_a_python_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerProcess("tests.servers.openai_server:echo", tmp_path) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert (await say()).text == "hello"
