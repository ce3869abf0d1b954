"""What a model thought before its calls goes back to it as it was, and to no other; it is stored once."""

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
from limpet.llm.prompt import SUMMARY, digest_of, size_of
from limpet.testing import ScriptedModel, calls
from tests.behaviour.llm.reasoning_agent import drive, thinker
from tests.crash.processes import Child
from tests.crash.test_runs import KILLED
from tests.servers.openai_server import Answer, OpenAIServer, call

HELLO = Prompt(messages=(PromptMessage(role="user", text="hello"),))
LOOK = ToolSpec(name="thoughts_look", description="Look there.", schema={"type": "object", "properties": {"place": {}}})

both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def noise(what: str, bytes: int = 3_000) -> str:
    """Text that hardly compresses, the same for the same words."""
    digests = b"".join(sha256(f"{what} {n}".encode()).digest() for n in range(bytes // 32))
    return b64encode(digests).decode()[:bytes]


def after(reply: Reply, asked: Prompt = HELLO) -> Prompt:
    """What is asked when a reply was stored, and its calls were made."""
    stored = msgspec.json.decode(msgspec.json.encode(reply), type=Reply)
    said = PromptMessage(role="assistant", text=stored.text, calls=stored.calls, thoughts=stored.thoughts)
    results = (PromptMessage(role="tool", text="found", call=each.id, tool=each.name) for each in stored.calls)
    return msgspec.structs.replace(asked, messages=(*asked.messages, said, *results))


async def exact(app: limpet.App, *runs: str) -> list[str]:
    """Digests of what models were asked in some runs, made again; all of it exact."""
    found = []
    for run in runs:
        started = [each.body for each in await app.log(run) if each.kind == "step.started"]
        for number in sorted({body["number"] for body in started if body.get("kind") == "model"}):
            made = await app.prompt(run, step=number)
            assert made.is_exact
            found.append(digest_of(made.prompt))
    return found


def sent(model: ScriptedModel) -> list[str]:
    """Digests of what a model was asked, each once."""
    return list(dict.fromkeys(map(digest_of, model.prompts)))


# Servers that speak like OpenAI


def thinks(request: dict[str, Any]) -> Answer:
    """Think and look, twice after each question; then answer."""
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
    """A server whose model thinks."""
    with OpenAIServer(thinks) as found:
        yield found


def at(server: OpenAIServer, name: str = "thinks-1", host: str = "127.0.0.1") -> OpenAIModel:
    """The model at a server."""
    url = server.url.replace("127.0.0.1", host)
    return OpenAIModel(name, client=AsyncOpenAI(base_url=url, api_key="none"))


def thought(request: dict[str, Any]) -> list[Any]:
    """What was thought, by each message of an assistant in a request, with the signature of its call."""
    return [
        (each.get("reasoning_content"), *(one.get("extra_content") for one in each.get("tool_calls", ())))
        for each in request["messages"]
        if each["role"] == "assistant"
    ]


def thought_at(*places: int) -> list[Any]:
    """The same, as it must be."""
    signed = [{"google": {"thought_signature": f"sig {place}"}} for place in places]
    return [(f"I think at {place}, therefore I look", each) for place, each in zip(places, signed, strict=True)]


async def test_what_led_to_calls_goes_back_until_there_is_an_answer(server: OpenAIServer) -> None:
    """With the signatures of the calls; before the answer nothing of it is wanted any more."""
    agent = thinker(at(server))
    async with testing.app(agent) as app:
        assert await app.run(agent, "look", id="r1", conversation="c") == "nothing"
        assert await app.run(agent, "again", id="r2", conversation="c") == "nothing"
        first, second = server.requests[:3], server.requests[3:]
        assert [thought(each) for each in first] == [[], thought_at(2), thought_at(2, 4)]
        old: list[Any] = [(None, None), (None, None), (None,)]
        assert [thought(each) for each in second] == [old, [*old, *thought_at(8)], [*old, *thought_at(8, 10)]]
        assert len(await exact(app, "r1", "r2")) == 6
        assert (await app.replay("r1")).value == "nothing"


def test_across_a_kill_it_goes_back(server: OpenAIServer, tmp_path: Path) -> None:
    """The process that heard it is dead before it could send it; the next one does."""
    url, die = f"sqlite:///{tmp_path / 'limpet.db'}", tmp_path / "die"
    die.touch()
    assert Child(drive, url, server.url, die).end() == KILLED
    assert len(server.requests) == 1
    second = Child(drive, url, server.url, die)
    assert second.hear() == "nothing"
    assert second.end() == 0
    assert [thought(each) for each in server.requests] == [[], thought_at(2), thought_at(2, 4)]


async def until_asked(app: limpet.App, agent: limpet.Agent[str, str]) -> None:
    """Start a run, and wait until a person is asked."""
    handle = await app.start(agent, "look", id="r", conversation="c")
    async for event in handle.events():
        if event.kind == "request.opened":
            return


@pytest.fixture
async def parked(server: OpenAIServer, tmp_path: Path) -> str:
    """A store with a run whose model thought before it asked a person."""
    url, asks = f"sqlite:///{tmp_path / 'limpet.db'}", call("ask_person", {"question": "where?"})
    pieces: list[dict[str, Any]] = [{"reasoning_content": "whom?"}, {"tool_calls": [{**asks, "id": "q", "index": 0}]}]
    server.fail(Answer(pieces=pieces, finish="tool_calls"))
    agent = thinker(at(server))
    async with limpet.open(url, agents=[agent]) as app:
        await until_asked(app, agent)
    return url


async def go_on(url: str, model: Any) -> None:
    """Another process goes on, maybe with another model; what was asked is known exactly."""
    async with limpet.open(url, agents=[thinker(model)]) as app:
        [request] = await app.inbox()
        await app.answer(request, "there", by="ann")
        assert await (await app.get("r")).result(timeout="30s")
        assert len(await exact(app, "r")) >= 2


async def test_the_same_model_is_given_it_after_a_while(server: OpenAIServer, parked: str) -> None:
    """When a person has answered."""
    await go_on(parked, at(server))
    assert thought(server.requests[1]) == [("whom?", None)]


@pytest.mark.parametrize("other", [{"name": "thinks-2"}, {"host": "localhost"}], ids=["model", "server"])
async def test_another_model_is_not_given_it(server: OpenAIServer, parked: str, other: dict[str, str]) -> None:
    """Nor the same one elsewhere: it gets the text and the calls."""
    await go_on(parked, at(server, **other))
    assert thought(server.requests[1]) == [(None, None)]
    assert server.requests[1]["messages"][2]["tool_calls"][0]["id"] == "q"


async def test_another_adapter_is_not_given_it(parked: str) -> None:
    """It keeps thoughts in a form of its own."""
    heard: list[Any] = []

    async def stream(seen: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
        heard.append(seen)
        yield "so"

    await go_on(parked, PydanticAIModel(FunctionModel(stream_function=stream)))
    assert [part.part_kind for part in heard[0][1].parts] == ["tool-call"]


@both
async def test_details_of_what_was_thought_are_put_together(server: OpenAIServer, stream: bool) -> None:
    """Pieces of the same place and kind are one; what says the same beside them is not kept."""
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
    model = at(server)
    reply = await model.reply(HELLO, on_text=(lambda _: None) if stream else None)
    await model.reply(after(reply), on_text=lambda _: None)
    again = server.requests[-1]["messages"][1]
    assert again["reasoning_details"] == whole
    assert again.keys() == {"role", "content", "tool_calls", "reasoning_details"}
    assert again["tool_calls"][0].keys() == {"id", "type", "function"}


@both
@pytest.mark.parametrize("odd", [7, {"a": 1}, None, ["x"]])
async def test_what_no_server_should_send_is_left_out(server: OpenAIServer, stream: bool, odd: Any) -> None:
    """And nothing fails; text that is empty is what was thought, and goes back."""
    fields = {"reasoning": odd, "reasoning_details": odd if odd != ["x"] else [], "reasoning_content": ""}
    message = {**fields, "tool_calls": [{**call("thoughts_look", {}), "id": "a", "index": 0}]}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "model": "m"}
    server.fail(Answer(pieces=[message], finish="tool_calls") if stream else Answer(body=body))
    reply = await at(server).reply(HELLO, on_text=(lambda _: None) if stream else None)
    assert reply.thoughts is not None
    assert list(reply.thoughts.kept["message"].values()) in ([""], [[]])
    assert len(reply.calls) == 1


# Models of pydantic-ai


def function(*seen: list[Any], stream: bool) -> FunctionModel:
    """A model that thinks and calls, as providers of pydantic-ai give it."""
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
async def test_parts_go_back_in_their_order_with_their_signatures(stream: bool) -> None:
    """Text and arguments are the message's own: they are not kept twice."""
    seen: list[Any] = []
    model = PydanticAIModel(function(seen, stream=stream))
    reply = await model.reply(HELLO, on_text=(lambda _: None) if stream else None)
    assert reply.text == "I look"
    assert b"look" not in msgspec.json.encode(reply.thoughts)
    await model.reply(after(reply), on_text=(lambda _: None) if stream else None)
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


async def test_a_message_that_was_cut_keeps_its_signatures() -> None:
    """What is shown of its text is one piece; what cannot be read is left out."""
    seen: list[Any] = []
    model = PydanticAIModel(function(seen, stream=False))
    reply = await model.reply(HELLO)
    await model.reply(after(msgspec.structs.replace(reply, text="I […]")))
    assert [part.content for part in seen[1][1].parts if part.part_kind == "text"] == ["I […]"]
    assert [part.signature for part in seen[1][1].parts if part.part_kind == "thinking"] == ["s1", "s2"]
    assert reply.thoughts is not None
    odd_ones: list[Any] = [{"parts": [{"part_kind": "thinking"}]}, {"parts": []}, {}, 7, {"parts": [{}]}]
    for kept in odd_ones:
        odd = msgspec.structs.replace(reply, thoughts=Thoughts(by=reply.thoughts.by, kept=kept))
        await model.reply(after(odd))
        assert [part.part_kind for part in seen[-1][1].parts] == ["text", "tool-call", "tool-call"]


async def test_a_reply_without_thoughts_keeps_nothing() -> None:
    """Whatever ids its parts have."""
    parts: list[Any] = [
        TextPart("so", id="m", provider_name="p"),
        ToolCallPart("thoughts_look", {}, "a", id="f", provider_name="p"),
    ]
    model = PydanticAIModel(FunctionModel(lambda _, __: ModelResponse(parts=parts)))
    assert (await model.reply(HELLO)).thoughts is None


ITEM: dict[str, Any] = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": None}
CALL = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "thoughts_look", "status": "completed"}


def events(request: dict[str, Any]) -> list[dict[str, Any]]:
    """What OpenAI's Responses stream: a thought and a call, or an answer."""
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
def streaming(script: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> Iterator[tuple[str, list[Any]]]:
    """A server of events: where it is, and what it was asked."""
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
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_items_of_openais_responses_go_back() -> None:
    """What was thought, encrypted, before the call that came of it."""
    with streaming(events) as (url, requests):
        theirs = OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(base_url=url, api_key="none"))
        agent = thinker(PydanticAIModel(theirs))
        async with testing.app(agent) as app:
            assert await app.run(agent, "look", id="r") == "nothing"
            assert len(await exact(app, "r")) == 2
        item, called, result = requests[1]["input"][-3:]
        assert item["encrypted_content"] == "ENCRYPTED"
        assert (item["id"], item["summary"]) == ("rs_1", [{"text": "I think", "type": "summary_text"}])
        assert (called["id"], called["call_id"], called["arguments"]) == ("fc_1", "call_1", '{"place":"up"}')
        assert (result["type"], result["call_id"]) == ("function_call_output", "call_1")


# What is stored


def thinking(kept: Any, *said: Any) -> Reply:
    """A reply with some thoughts."""
    text = "".join(each for each in said if isinstance(each, str))
    made = tuple(each for each in said if isinstance(each, ToolCall))
    finish: Any = "calls" if made else "stop"
    return Reply(text=text, calls=made, finish=finish, thoughts=Thoughts(by="me", kept=kept), model="scripted-dated")


def looks(turns: int, bytes: int = 3_000) -> Callable[[Prompt], Any]:
    """Think and look so many times, then answer; summarise in short."""

    def says(request: Prompt) -> Any:
        if request.messages[0].text == SUMMARY:
            return "They looked."
        seen = [each for each in request.messages if each.role == "tool"]
        number = int(seen[-1].text.rsplit(" ", 1)[1]) + 1 if seen else 0
        if number >= turns:
            return thinking("no more", "done")
        wanted = calls("thoughts_look", place=f"at {number}")
        return thinking(noise(f"thought {number}", bytes), wanted) if bytes else wanted

    return says


BIG = 30_000
KINDS = ("step.started", "step.completed", "message.said", "decision.made", "value.recorded", "turn.started")


@pytest.mark.parametrize("kind", KINDS)
async def test_killed_before_and_after_every_kind_of_commit(kind: str) -> None:
    """What was thought is in every request behind it, as it was; and it is known exactly."""
    for when in ("before", "after"):
        for nth in (1, 2, 4):
            model = ScriptedModel(looks(3))
            agent = thinker(model)
            async with testing.app(agent) as app:
                handle = await app.start(agent, "look", id="r")
                app.crash_at(when, kind, nth=nth)
                await app.settle()
                assert await handle.result() == "done"
                assert await exact(app, "r") == sent(model)
                for request in model.prompts:
                    kept = [each.thoughts.kept for each in request.messages if each.thoughts]
                    assert kept == [noise(f"thought {n}") for n in range(len(request.messages) // 2 - 1)]


async def test_it_is_stored_once(tmp_path: Path) -> None:
    """Each thought in one blob, of the step and of the message; without any, nothing is there that was not before."""
    sizes = {}
    for bytes in (0, BIG):
        agent = thinker(ScriptedModel(looks(20, bytes)), window=1_000_000)
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


async def test_it_goes_where_the_run_goes(tmp_path: Path) -> None:
    """Into a fork in the middle, and with a file into another store."""
    model = ScriptedModel(looks(3))
    agent = thinker(model)
    async with testing.app(agent) as app:
        assert await app.run(agent, "look", id="r", conversation="c") == "done"
        before = await exact(app, "r")
        fork = await app.fork("r", at=5, id="f", patch={"facts": {"told": "otherwise"}})
        assert await fork.result() == "done"
        assert [each.thoughts is None for each in model.prompts[-1].messages if each.calls] == [False] * 3
        await exact(app, "f")
        await app.export("f", tmp_path / "f.zip")
    async with testing.app(agent) as other:
        await other.load(tmp_path / "f.zip")
        assert await exact(other, "r") == before
        await exact(other, "f")


async def test_what_holds_a_secret_is_left_out(tmp_path: Path) -> None:
    """Altered it would be refused: it is neither recorded nor sent back. What holds none is."""
    key = "ghp_" + "a1B2" * 9
    replies = [thinking({"text": f"the token is {key}"}, calls("thoughts_look", place="up"))]
    replies += [thinking({"text": "none"}, calls("thoughts_look", place="down"))]
    model = ScriptedModel(*replies, "done")
    agent = thinker(model)
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
        assert await exact(app, "r") == sent(model)
        await app.export("r", tmp_path / "r.zip")
    assert key.encode() not in (tmp_path / "limpet.db").read_bytes()


async def test_nor_is_it_kept_when_somebody_chose_it(tmp_path: Path) -> None:
    """The same rule for a reply that no model gave."""
    chosen = thinking("ghp_" + "a1B2" * 9, calls("thoughts_look", place="up"))

    async def choose(_: Any, request: Prompt, ask: Any) -> Reply:
        return chosen if request.messages[-1].role == "user" else await ask(request)

    agent = thinker(model := ScriptedModel(lambda _: "done"), choose=choose)
    async with limpet.open(f"sqlite:////{tmp_path}/limpet.db", agents=[agent], redact=True) as app:
        assert await (await app.start(agent, "look", id="r")).result(timeout="30s") == "done"
    assert [each.thoughts for each in model.prompts[0].messages if each.calls] == [None]


# What a model sees


async def test_it_counts_and_the_oldest_go_with_their_calls() -> None:
    """In a small window, with summaries, over many turns; all of it is known exactly, and gone through again."""
    model = ScriptedModel(looks(30))
    agent = thinker(model, window=16_000, max_turns=40)
    async with testing.app(agent) as app:
        assert await app.run(agent, "look", id="r") == "done"
        assert any(each.messages[0].text == SUMMARY for each in model.prompts)
        for request in model.prompts:
            assert sum(map(size_of, request.messages)) + (request.max_tokens or 0) < 16_000
            wanting = [each for each in request.messages if each.calls]
            assert all(each.thoughts is not None for each in wanting)
        assert max(len([each for each in request.messages if each.thoughts]) for request in model.prompts) > 2
        assert await exact(app, "r") == sent(model)
        assert (await app.replay("r")).value == "done"


@pytest.mark.parametrize(("bytes", "is_there"), [(6_000, True), (60_000, False)])
async def test_where_it_does_not_fit_the_rest_is_cut_first(bytes: int, is_there: bool) -> None:
    """It is whole, or not there at all: then the model is asked without it."""

    @limpet.tool(effect="none", name="thoughts_long")
    async def long() -> str:
        """Find much."""
        return "much " * 20_000

    model = ScriptedModel(thinking(noise("t", bytes), calls("thoughts_long"), calls("thoughts_long")), "done")
    agent = limpet.llm_agent("thoughts_long_one", model=model, instructions="Go.", tools=[long], window=16_000)
    async with testing.app(agent) as app:
        assert await app.run(agent, "look", id="r") == "done"
        [wanting] = [each for each in model.prompts[-1].messages if each.calls]
        assert (wanting.thoughts is not None) is is_there
        assert wanting.thoughts is None or wanting.thoughts.kept == noise("t", bytes)
        assert await exact(app, "r") == sent(model)


async def test_old_thoughts_do_not_hide_what_was_said() -> None:
    """However much was thought, as much of a conversation is read as before."""
    model = ScriptedModel(
        lambda request: (
            thinking(noise("t", 60_000), calls("thoughts_look", place="up"))
            if request.messages[-1].role == "user"
            else "done"
        )
    )
    agent = thinker(model, window=16_000, compact=limpet.Compaction(above=1 << 30))
    async with testing.app(agent) as app:
        for number in range(8):
            assert await app.run(agent, f"look {number}", conversation="c") == "done"
        texts = [each.text for each in model.prompts[-1].messages]
        assert [f"look {number}" for number in range(8)] == [text for text in texts if text.startswith("look ")]
        assert "not shown" not in texts[0]


async def test_what_others_say_meanwhile_ends_nothing() -> None:
    """Two runs in one conversation: while one is in a tool, the other answers; the first keeps its thoughts."""
    in_tool, go_on = asyncio.Event(), asyncio.Event()

    @limpet.tool(effect="none", name="thoughts_slow")
    async def slow() -> str:
        in_tool.set()
        await go_on.wait()
        return "done"

    thinking = Reply(
        calls=(ToolCall(id="c1", name="thoughts_slow", args="{}"),),
        thoughts=Thoughts(by="scripted", kept={"signed": "abc"}),
    )
    first, second = ScriptedModel(thinking, "", "ready"), ScriptedModel("", "hello")
    one = limpet.llm_agent("thoughts_one", model=first, instructions="Do.", tools=[slow])
    other = limpet.llm_agent("thoughts_other", model=second, instructions="Talk.")
    async with limpet.open("memory:", agents=[one, other]) as app:
        handle = await app.start(one, "do it", id="one", conversation="c")
        await in_tool.wait()
        assert await app.run(other, "hi", id="other", conversation="c") == "hello"
        go_on.set()
        assert await handle.result() == "ready"
        [called] = [each for each in first.prompts[-1].messages if each.calls]
        assert called.thoughts == thinking.thoughts
        assert (await app.prompt("one", step=3)).is_exact
