"""Reasoning of a model is sent back unchanged, only to the same model, and is stored once."""

import asyncio
import json
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

import limpet
from bench import conversations
from limpet import testing
from limpet.adapters.openai import OpenAIModel
from limpet.adapters.pydantic_ai import PydanticAIModel
from limpet.events import bodies as b
from limpet.llm.model import Prompt, PromptMessage, Reply, Thoughts, ToolCall, ToolSpec
from limpet.llm.prompt import SUMMARY, digest_of
from limpet.testing import ScriptedModel, calls
from tests.behaviour.llm.reasoning_agent import reasoning_agent, run_agent
from tests.crash.processes import Child
from tests.crash.test_runs import KILLED
from tests.servers.openai_server import Answer, OpenAIServer, call

HELLO = Prompt(messages=(PromptMessage(role="user", text="hello"),))
LOOK = ToolSpec(name="thoughts_look", description="Look there.", schema={"type": "object", "properties": {"place": {}}})

both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def noise(what: str, bytes: int = 3_000) -> str:
    """Return text that hardly compresses, the same for the same seed text."""
    digests = b"".join(sha256(f"{what} {n}".encode()).digest() for n in range(bytes // 32))
    return b64encode(digests).decode()[:bytes]


def prompt_after(reply: Reply, asked: Prompt = HELLO) -> Prompt:
    """Return the prompt that follows a stored reply and the results of its calls."""
    stored = msgspec.json.decode(msgspec.json.encode(reply), type=Reply)
    said = PromptMessage(role="assistant", text=stored.text, calls=stored.calls, thoughts=stored.thoughts)
    results = (PromptMessage(role="tool", text="found", call=each.id, tool=each.name) for each in stored.calls)
    return msgspec.structs.replace(asked, messages=(*asked.messages, said, *results))


async def rebuilt_prompts(app: limpet.App, *runs: str) -> list[str]:
    """Rebuild the prompts of these runs, check that they are exact, and return their digests."""
    found = []
    for run in runs:
        started = [each.body for each in await app.log(run) if each.kind == "step.started"]
        for number in sorted({body["number"] for body in started if body.get("kind") == "model"}):
            made = await app.prompt(run, step=number)
            assert made.is_exact
            found.append(digest_of(made.prompt))
    return found


def sent_prompts(model: ScriptedModel) -> list[str]:
    """Return the distinct digests of all prompts sent."""
    return list(dict.fromkeys(map(digest_of, model.prompts)))


# OpenAI-compatible servers


def thinks(request: dict[str, Any]) -> Answer:
    """Reason and call a tool, twice after each user message; then answer."""
    place = len(request["messages"])
    asked = max(at for at, each in enumerate(request["messages"]) if each["role"] == "user")
    if sum(each["role"] == "assistant" for each in request["messages"][asked:]) == 2:
        return Answer(pieces=[{"reasoning_content": "that is all"}, {"content": "nothing"}])
    wanted = {**call("thoughts_look", {"place": f"at {place}"}), "id": f"call_{place}", "index": 0}
    return Answer(
        pieces=[
            {"reasoning_content": f"I think at {place}, "},
            {"reasoning_content": "therefore I look"},
            {"tool_calls": [{**wanted, "extra_content": {"google": {"thought_signature": f"sig {place}"}}}]},
        ],
        finish="tool_calls",
    )


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    """A server whose model reasons."""
    with OpenAIServer(thinks) as found:
        yield found


def model_at(server: OpenAIServer, name: str = "thinks-1", host: str = "127.0.0.1") -> OpenAIModel:
    """Return the model of a server."""
    url = server.url.replace("127.0.0.1", host)
    return OpenAIModel(name, client=AsyncOpenAI(base_url=url, api_key="none"))


def reasoning_in(request: dict[str, Any]) -> list[Any]:
    """Return the reasoning of each assistant message of a request, with the signature of its call."""
    return [
        (each.get("reasoning_content"), *(one.get("extra_content") for one in each.get("tool_calls", ())))
        for each in request["messages"]
        if each["role"] == "assistant"
    ]


def expected_reasoning(*places: int) -> list[Any]:
    """Return the expected value of `reasoning_in`."""
    signed = [{"google": {"thought_signature": f"sig {place}"}} for place in places]
    return [(f"I think at {place}, therefore I look", each) for place, each in zip(places, signed, strict=True)]


async def test_reasoning_is_sent_back_until_the_answer(server: OpenAIServer) -> None:
    """With the signatures of the calls; after the answer it is dropped."""
    agent = reasoning_agent(model_at(server))
    async with testing.app(agent) as app:
        assert await app.run(agent, "look", id="r1", conversation="c") == "nothing"
        assert await app.run(agent, "again", id="r2", conversation="c") == "nothing"
        first, second = server.requests[:3], server.requests[3:]
        assert [reasoning_in(each) for each in first] == [[], expected_reasoning(2), expected_reasoning(2, 4)]
        old: list[Any] = [(None, None), (None, None), (None,)]
        assert [reasoning_in(each) for each in second] == [
            old,
            [*old, *expected_reasoning(8)],
            [*old, *expected_reasoning(8, 10)],
        ]
        assert len(await rebuilt_prompts(app, "r1", "r2")) == 6
        assert (await app.replay("r1")).value == "nothing"


def test_reasoning_is_sent_back_after_a_crash(server: OpenAIServer, tmp_path: Path) -> None:
    """The process that received it is killed before it could send it."""
    url, die = f"sqlite:///{tmp_path / 'limpet.db'}", tmp_path / "die"
    die.touch()
    assert Child(run_agent, url, server.url, die).end() == KILLED
    assert len(server.requests) == 1
    second = Child(run_agent, url, server.url, die)
    assert second.receive() == "nothing"
    assert second.end() == 0
    assert [reasoning_in(each) for each in server.requests] == [[], expected_reasoning(2), expected_reasoning(2, 4)]


async def until_asked(app: limpet.App, agent: limpet.Agent[str, str]) -> None:
    """Start a run, and wait until it opens a request."""
    handle = await app.start(agent, "look", id="r", conversation="c")
    async for event in handle.events():
        if event.kind == "request.opened":
            return


@pytest.fixture
async def parked_run(server: OpenAIServer, tmp_path: Path) -> str:
    """A store with a run whose model reasoned before it asked a person."""
    url, asks = f"sqlite:///{tmp_path / 'limpet.db'}", call("ask_person", {"question": "where?"})
    pieces: list[dict[str, Any]] = [{"reasoning_content": "whom?"}, {"tool_calls": [{**asks, "id": "q", "index": 0}]}]
    server.fail(Answer(pieces=pieces, finish="tool_calls"))
    agent = reasoning_agent(model_at(server))
    async with limpet.open(url, agents=[agent]) as app:
        await until_asked(app, agent)
    return url


async def continue_with(url: str, model: Any) -> None:
    """Continue the parked run in another process with this model."""
    async with limpet.open(url, agents=[reasoning_agent(model)]) as app:
        [request] = await app.inbox()
        await app.answer(request, "there", by="ann")
        assert await (await app.get("r")).result(timeout="30s")
        assert len(await rebuilt_prompts(app, "r")) >= 2


async def test_reasoning_is_sent_back_after_a_person_answered(server: OpenAIServer, parked_run: str) -> None:
    await continue_with(parked_run, model_at(server))
    assert reasoning_in(server.requests[1]) == [("whom?", None)]


@pytest.mark.parametrize("other", [{"name": "thinks-2"}, {"host": "localhost"}], ids=["model", "server"])
async def test_reasoning_is_not_sent_to_another_model_or_server(
    server: OpenAIServer, parked_run: str, other: dict[str, str]
) -> None:
    """It is sent only the text and the calls."""
    await continue_with(parked_run, model_at(server, **other))
    assert reasoning_in(server.requests[1]) == [(None, None)]
    assert server.requests[1]["messages"][2]["tool_calls"][0]["id"] == "q"


async def test_reasoning_is_not_sent_through_another_adapter(parked_run: str) -> None:
    """Each adapter stores reasoning in its own form."""
    heard: list[Any] = []

    async def stream(seen: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
        heard.append(seen)
        yield "so"

    await continue_with(parked_run, PydanticAIModel(FunctionModel(stream_function=stream)))
    assert [part.part_kind for part in heard[0][1].parts] == ["tool-call"]


@both
async def test_streamed_reasoning_details_are_merged(server: OpenAIServer, stream: bool) -> None:
    """Pieces with the same index and type are one. The redundant plain text is not kept."""
    whole = [
        {"type": "reasoning.text", "text": "one two", "index": 0, "format": "f", "signature": "s"},
        {"type": "reasoning.encrypted", "data": "xyz", "index": 1},
    ]
    pieces: list[dict[str, Any]] = [
        {
            "reasoning": "one",
            "reasoning_details": [{"type": "reasoning.text", "text": "one", "index": 0, "format": "f"}],
        },
        {"reasoning": " two", "reasoning_details": [{"type": "reasoning.text", "text": " two", "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": None, "index": 0, "signature": "s"}, whole[1]]},
        {"tool_calls": [{**call("thoughts_look", {}), "id": "a", "index": 0}]},
    ]
    message = {
        "reasoning": "one two",
        "reasoning_details": whole,
        "tool_calls": [{**call("thoughts_look", {}), "id": "a"}],
    }
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "model": "m"}
    server.fail(Answer(pieces=pieces, finish="tool_calls") if stream else Answer(body=body))
    model = model_at(server)
    reply = await model.reply(HELLO, on_text=(lambda _: None) if stream else None)
    await model.reply(prompt_after(reply), on_text=lambda _: None)
    again = server.requests[-1]["messages"][1]
    assert again["reasoning_details"] == whole
    assert again.keys() == {"role", "content", "tool_calls", "reasoning_details"}
    assert again["tool_calls"][0].keys() == {"id", "type", "function"}


@both
@pytest.mark.parametrize("odd", [7, {"a": 1}, None, ["x"]])
async def test_invalid_reasoning_fields_are_ignored(server: OpenAIServer, stream: bool, odd: Any) -> None:
    """Empty text is valid and is sent back."""
    fields = {"reasoning": odd, "reasoning_details": odd if odd != ["x"] else [], "reasoning_content": ""}
    message = {**fields, "tool_calls": [{**call("thoughts_look", {}), "id": "a", "index": 0}]}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "model": "m"}
    server.fail(Answer(pieces=[message], finish="tool_calls") if stream else Answer(body=body))
    reply = await model_at(server).reply(HELLO, on_text=(lambda _: None) if stream else None)
    assert reply.thoughts is not None
    assert list(reply.thoughts.kept["message"].values()) in ([""], [[]])
    assert len(reply.calls) == 1


# pydantic-ai models


def function_model(*seen: list[Any], stream: bool) -> FunctionModel:
    """Return a pydantic-ai model that reasons and calls tools."""
    [messages] = seen
    parts: list[Any] = [
        ThinkingPart("first", signature="s1", provider_name="function", id="t1"),
        TextPart("I "),
        ThinkingPart("", signature="s2", provider_name="function", provider_details={"raw": [1]}),
        TextPart("look", id="m1", provider_name="function"),
        ToolCallPart("thoughts_look", {"place": "up"}, "a"),
        ToolCallPart("thoughts_look", {}, "b", provider_name="function", provider_details={"thought_signature": "z"}),
    ]

    def answer(given: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        messages.append(given)
        return ModelResponse(parts=parts, provider_name="function")

    async def pieces(given: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
        messages.append(given)
        yield {0: DeltaThinkingPart(content="fir")}
        yield {0: DeltaThinkingPart(content="st", signature="s1")}
        yield "I look"
        yield {2: DeltaToolCall("thoughts_look", '{"place":"up"}', tool_call_id="a")}

    return FunctionModel(stream_function=pieces) if stream else FunctionModel(answer)


@both
async def test_pydantic_ai_parts_are_sent_back_in_order_with_their_signatures(stream: bool) -> None:
    """Text and arguments are taken from the message and not stored twice."""
    seen: list[Any] = []
    model = PydanticAIModel(function_model(seen, stream=stream))
    reply = await model.reply(HELLO, on_text=(lambda _: None) if stream else None)
    assert reply.text == "I look"
    assert b"look" not in msgspec.json.encode(reply.thoughts)
    await model.reply(prompt_after(reply), on_text=(lambda _: None) if stream else None)
    parts = [
        (part.part_kind, getattr(part, "content", None), getattr(part, "signature", None)) for part in seen[1][1].parts
    ]
    if stream:
        assert parts == [("thinking", "first", "s1"), ("text", "I look", None), ("tool-call", None, None)]
        return
    assert parts == [
        ("thinking", "first", "s1"),
        ("text", "I ", None),
        ("thinking", "", "s2"),
        ("text", "look", None),
        ("tool-call", None, None),
        ("tool-call", None, None),
    ]
    first, _, second, text, one, two = seen[1][1].parts
    assert (first.id, second.provider_details, text.id, seen[1][1].provider_name) == (
        "t1",
        {"raw": [1]},
        "m1",
        "function",
    )
    assert (one.tool_call_id, one.args, one.provider_details) == ("a", '{"place":"up"}', None)
    assert (two.tool_call_id, two.args, two.provider_details) == ("b", "{}", {"thought_signature": "z"})


async def test_a_truncated_message_keeps_its_reasoning_signatures() -> None:
    """Its text is sent as one part. Unreadable reasoning is left out."""
    seen: list[Any] = []
    model = PydanticAIModel(function_model(seen, stream=False))
    reply = await model.reply(HELLO)
    await model.reply(prompt_after(msgspec.structs.replace(reply, text="I […]")))
    assert [part.content for part in seen[1][1].parts if part.part_kind == "text"] == ["I […]"]
    assert [part.signature for part in seen[1][1].parts if part.part_kind == "thinking"] == ["s1", "s2"]
    assert reply.thoughts is not None
    odd_ones: list[Any] = [{"parts": [{"part_kind": "thinking"}]}, {"parts": []}, {}, 7, {"parts": [{}]}]
    for kept in odd_ones:
        odd = msgspec.structs.replace(reply, thoughts=Thoughts(by=reply.thoughts.by, kept=kept))
        await model.reply(prompt_after(odd))
        assert [part.part_kind for part in seen[-1][1].parts] == ["text", "tool-call", "tool-call"]


async def test_a_reply_without_reasoning_stores_none() -> None:
    """Even if its parts have ids."""
    parts: list[Any] = [
        TextPart("so", id="m", provider_name="p"),
        ToolCallPart("thoughts_look", {}, "a", id="f", provider_name="p"),
    ]
    model = PydanticAIModel(FunctionModel(lambda _, __: ModelResponse(parts=parts)))
    assert (await model.reply(HELLO)).thoughts is None


ITEM: dict[str, Any] = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": None}
CALL = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "thoughts_look", "status": "completed"}


def response_events(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the event stream of OpenAI's Responses API: reasoning and a call, or an answer."""
    base = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-x", "output": [], "tools": []}
    base |= {"status": "in_progress", "parallel_tool_calls": True, "tool_choice": "auto"}
    usage: dict[str, Any] = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 1}}
    done = {**base, "status": "completed", "usage": usage}
    if any(each.get("type") == "function_call_output" for each in request["input"]):
        item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": []}
        at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        part = {"type": "output_text", "text": "", "annotations": []}
        return [
            {"type": "response.created", "response": base},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.content_part.added", **at, "part": part},
            {"type": "response.output_text.delta", **at, "delta": "nothing", "logprobs": []},
            {"type": "response.completed", "response": done},
        ]
    summary = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
    args = '{"place":"up"}'
    return [
        {"type": "response.created", "response": base},
        {"type": "response.output_item.added", "output_index": 0, "item": ITEM},
        {"type": "response.reasoning_summary_part.added", **summary, "part": {"type": "summary_text", "text": ""}},
        {"type": "response.reasoning_summary_text.delta", **summary, "delta": "I think"},
        {"type": "response.output_item.done", "output_index": 0, "item": {**ITEM, "encrypted_content": "ENCRYPTED"}},
        {"type": "response.output_item.added", "output_index": 1, "item": {**CALL, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 1, "delta": args},
        {"type": "response.output_item.done", "output_index": 1, "item": {**CALL, "arguments": args}},
        {"type": "response.completed", "response": done},
    ]


@contextmanager
def event_server(script: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> Iterator[tuple[str, list[Any]]]:
    """Run a server of event streams. Yields its URL and the received requests."""
    requests: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            told = (each | {"sequence_number": place} for place, each in enumerate(script(requests[-1])))
            data = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in told).encode()
            self.send_response_only(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_openai_responses_reasoning_items_are_sent_back() -> None:
    """Encrypted, and before the call that followed."""
    with event_server(response_events) as (url, requests):
        theirs = OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(base_url=url, api_key="none"))
        agent = reasoning_agent(PydanticAIModel(theirs))
        async with testing.app(agent) as app:
            assert await app.run(agent, "look", id="r") == "nothing"
            assert len(await rebuilt_prompts(app, "r")) == 2
        item, called, result = requests[1]["input"][-3:]
        assert item["encrypted_content"] == "ENCRYPTED"
        assert (item["id"], item["summary"]) == ("rs_1", [{"text": "I think", "type": "summary_text"}])
        assert (called["id"], called["call_id"], called["arguments"]) == ("fc_1", "call_1", '{"place":"up"}')
        assert (result["type"], result["call_id"]) == ("function_call_output", "call_1")


# Storage


def reasoning_reply(kept: Any, *said: Any) -> Reply:
    """Return a reply with reasoning."""
    text = "".join(each for each in said if isinstance(each, str))
    made = tuple(each for each in said if isinstance(each, ToolCall))
    finish: Any = "calls" if made else "stop"
    return Reply(text=text, calls=made, finish=finish, thoughts=Thoughts(by="me", kept=kept), model="scripted-dated")


def scripted_looks(turns: int, bytes: int = 3_000) -> Callable[[Prompt], Any]:
    """Reason and call a tool `turns` times, then answer."""

    def says(request: Prompt) -> Any:
        if request.messages[0].text == SUMMARY:
            return "They looked."
        seen = [each for each in request.messages if each.role == "tool"]
        number = int(seen[-1].text.rsplit(" ", 1)[1]) + 1 if seen else 0
        if number >= turns:
            return reasoning_reply("no more", "done")
        wanted = calls("thoughts_look", place=f"at {number}")
        return reasoning_reply(noise(f"thought {number}", bytes), wanted) if bytes else wanted

    return says


BIG = 30_000
KINDS = ("step.started", "step.completed", "message.said", "decision.made", "value.recorded", "turn.started")


@pytest.mark.parametrize("kind", KINDS)
async def test_reasoning_is_sent_back_unchanged_after_a_crash_at_any_commit(kind: str) -> None:
    """All prompts can be rebuilt exactly."""
    for when in ("before", "after"):
        for nth in (1, 2, 4):
            model = ScriptedModel(scripted_looks(3))
            agent = reasoning_agent(model)
            async with testing.app(agent) as app:
                handle = await app.start(agent, "look", id="r")
                app.crash_at(when, kind, nth=nth)
                await app.settle()
                assert await handle.result() == "done"
                assert await rebuilt_prompts(app, "r") == sent_prompts(model)
                for request in model.prompts:
                    kept = [each.thoughts.kept for each in request.messages if each.thoughts]
                    assert kept == [noise(f"thought {n}") for n in range(len(request.messages) // 2 - 1)]


async def test_reasoning_is_stored_once(tmp_path: Path) -> None:
    """One blob is shared by the step and the message. Without reasoning, no bytes are added."""
    sizes = {}
    for bytes in (0, BIG):
        agent = reasoning_agent(ScriptedModel(scripted_looks(20, bytes)), window=1_000_000)
        url = f"sqlite:////{tmp_path / str(bytes)}.db"
        async with limpet.open(url, agents=[agent]) as app:
            assert await (await app.start(agent, "look", id="r", conversation="c")).result(timeout="60s") == "done"
            log = [app.store.decode(each) async for each in app.store.log("c")]
            replies = [each.reply for each in log if isinstance(each, b.MessageAdded) and each.reply is not None]
            done = [app.store.decode(each) async for each in app.store.log("r") if each.kind == "step.completed"]
            outputs = [each.output.blob for each in done if isinstance(each, b.StepCompleted) and each.output]
            assert len(replies) == (20 if bytes else 0)
            assert {each.blob for each in replies} <= set(outputs)
            assert all("thoughts" in each for each in await app.store.unpack_all(replies))
            said = [await app.store.unpack(each.content) for each in log if isinstance(each, b.MessageAdded)]
            assert not any("thoughts" in each for each in said if isinstance(each, dict))
        sizes[bytes] = conversations.size(tmp_path / f"{bytes}.db")
    assert sizes[BIG] - sizes[0] < 1.2 * 20 * BIG


async def test_reasoning_is_kept_in_forks_and_bundles(tmp_path: Path) -> None:
    model = ScriptedModel(scripted_looks(3))
    agent = reasoning_agent(model)
    async with testing.app(agent) as app:
        assert await app.run(agent, "look", id="r", conversation="c") == "done"
        before = await rebuilt_prompts(app, "r")
        fork = await app.fork("r", at=5, id="f", patch={"facts": {"told": "otherwise"}})
        assert await fork.result() == "done"
        assert [each.thoughts is None for each in model.prompts[-1].messages if each.calls] == [False] * 3
        await rebuilt_prompts(app, "f")
        await app.export("f", tmp_path / "f.zip")
    async with testing.app(agent) as other:
        await other.load(tmp_path / "f.zip")
        assert await rebuilt_prompts(other, "r") == before
        await rebuilt_prompts(other, "f")


async def test_reasoning_with_a_secret_is_neither_recorded_nor_sent_back(tmp_path: Path) -> None:
    """A provider would refuse redacted reasoning."""
    key = "ghp_" + "a1B2" * 9
    replies = [reasoning_reply({"text": f"the token is {key}"}, calls("thoughts_look", place="up"))]
    replies += [reasoning_reply({"text": "none"}, calls("thoughts_look", place="down"))]
    model = ScriptedModel(*replies, "done")
    agent = reasoning_agent(model)
    url = f"sqlite:////{tmp_path}/limpet.db"
    async with limpet.open(url, agents=[agent], redact=True) as app:
        assert await (await app.start(agent, "look", id="r", conversation="c")).result(timeout="30s") == "done"
        assert [
            [each.thoughts and each.thoughts.kept for each in request.messages[2::2]] for request in model.prompts
        ] == [
            [],
            [None],
            [None, {"text": "none"}],
        ]
        assert await rebuilt_prompts(app, "r") == sent_prompts(model)
        await app.export("r", tmp_path / "r.zip")
    assert key.encode() not in (tmp_path / "limpet.db").read_bytes()


async def test_reasoning_with_a_secret_from_choose_is_not_kept(tmp_path: Path) -> None:
    chosen = reasoning_reply("ghp_" + "a1B2" * 9, calls("thoughts_look", place="up"))

    async def choose(_: Any, request: Prompt, ask: Any) -> Reply:
        return chosen if request.messages[-1].role == "user" else await ask(request)

    agent = reasoning_agent(model := ScriptedModel(lambda _: "done"), choose=choose)
    async with limpet.open(f"sqlite:////{tmp_path}/limpet.db", agents=[agent], redact=True) as app:
        assert await (await app.start(agent, "look", id="r")).result(timeout="30s") == "done"
    assert [each.thoughts for each in model.prompts[0].messages if each.calls] == [None]


# Prompts


async def test_reasoning_counts_toward_the_window_and_leaves_with_its_calls() -> None:
    """In a small window with summaries, over many turns."""
    model = ScriptedModel(scripted_looks(30))
    agent = reasoning_agent(model, window=16_000, max_turns=40)
    async with testing.app(agent) as app:
        assert await app.run(agent, "look", id="r") == "done"
        assert any(each.messages[0].text == SUMMARY for each in model.prompts)
        for request in model.prompts:
            assert sum(each.size for each in request.messages) + (request.max_tokens or 0) < 16_000
            wanting = [each for each in request.messages if each.calls]
            assert all(each.thoughts is not None for each in wanting)
        assert max(len([each for each in request.messages if each.thoughts]) for request in model.prompts) > 2
        assert await rebuilt_prompts(app, "r") == sent_prompts(model)
        assert (await app.replay("r")).value == "done"


@pytest.mark.parametrize(("bytes", "is_there"), [(6_000, True), (60_000, False)])
async def test_reasoning_is_sent_whole_or_not_at_all(bytes: int, is_there: bool) -> None:
    """Other parts of the prompt are truncated first."""

    @limpet.tool(effect="none", name="thoughts_long")
    async def long() -> str:
        """Find much."""
        return "much " * 20_000

    model = ScriptedModel(reasoning_reply(noise("t", bytes), calls("thoughts_long"), calls("thoughts_long")), "done")
    agent = limpet.llm_agent("thoughts_long_one", model=model, instructions="Go.", tools=[long], window=16_000)
    async with testing.app(agent) as app:
        assert await app.run(agent, "look", id="r") == "done"
        [wanting] = [each for each in model.prompts[-1].messages if each.calls]
        assert (wanting.thoughts is not None) is is_there
        assert wanting.thoughts is None or wanting.thoughts.kept == noise("t", bytes)
        assert await rebuilt_prompts(app, "r") == sent_prompts(model)


async def test_old_reasoning_does_not_displace_messages() -> None:
    model = ScriptedModel(
        lambda request: (
            reasoning_reply(noise("t", 60_000), calls("thoughts_look", place="up"))
            if request.messages[-1].role == "user"
            else "done"
        )
    )
    agent = reasoning_agent(model, window=16_000, compact=limpet.Compaction(above=1 << 30))
    async with testing.app(agent) as app:
        for number in range(8):
            assert await app.run(agent, f"look {number}", conversation="c") == "done"
        texts = [each.text for each in model.prompts[-1].messages]
        assert [f"look {number}" for number in range(8)] == [text for text in texts if text.startswith("look ")]
        assert "not shown" not in texts[0]


async def test_an_answer_of_another_run_does_not_drop_reasoning() -> None:
    """Two runs share a conversation: the second answers while the first is inside a tool."""
    in_tool, continue_with = asyncio.Event(), asyncio.Event()

    @limpet.tool(effect="none", name="thoughts_slow")
    async def slow() -> str:
        in_tool.set()
        await continue_with.wait()
        return "done"

    reply = Reply(
        calls=(ToolCall(id="c1", name="thoughts_slow", args="{}"),),
        thoughts=Thoughts(by="scripted", kept={"signed": "abc"}),
    )
    first, second = ScriptedModel(reply, "", "ready"), ScriptedModel("", "hello")
    one = limpet.llm_agent("thoughts_one", model=first, instructions="Do.", tools=[slow])
    other = limpet.llm_agent("thoughts_other", model=second, instructions="Talk.")
    async with limpet.open("memory:", agents=[one, other]) as app:
        handle = await app.start(one, "do it", id="one", conversation="c")
        await in_tool.wait()
        assert await app.run(other, "hi", id="other", conversation="c") == "hello"
        continue_with.set()
        assert await handle.result() == "ready"
        [called] = [each for each in first.prompts[-1].messages if each.calls]
        assert called.thoughts == reply.thoughts
        assert (await app.prompt("one", step=3)).is_exact
