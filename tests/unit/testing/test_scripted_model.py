"""The scripted model for tests."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

import limpet
from limpet import testing
from limpet.llm.model import Model, Prompt, PromptMessage, Reply, ToolCall, ToolSpec, Usage
from limpet.testing import ScriptedModel, calls


def asked(turns: int = 0, text: str = "hello") -> Prompt:
    """Return a prompt with this many messages of an assistant."""
    turns_before = [PromptMessage(role="assistant", text=f"turn {number}") for number in range(turns)]
    return Prompt(messages=(PromptMessage(role="user", text=text), *turns_before))


class Verdict(BaseModel):
    ok: bool
    why: str = ""


@dataclass
class Order:
    id: str
    cents: int


class Parcel(msgspec.Struct):
    weight: int


async def test_reply_n_answers_a_prompt_with_n_assistant_messages() -> None:
    model: Model = ScriptedModel("first", calls("look", id=1), "last")
    found = [await model.reply(asked(turn)) for turn in (2, 0, 1, 0)]
    assert [each.text for each in found] == ["last", "first", "", "first"]
    assert found[2].calls == (ToolCall(id="call_1", name="look", args='{"id":1}'),)
    assert [each.finish for each in found] == ["stop", "stop", "calls", "stop"]
    again = ScriptedModel("first", calls("look", id=1), "last")  # as in another process
    assert await again.reply(asked(1)) == found[2]


async def test_in_order_replies_are_given_one_after_another() -> None:
    model = ScriptedModel(OSError("busy"), "first", "second", in_order=True)
    with pytest.raises(OSError, match="busy"):
        await model.reply(asked())
    assert [(await model.reply(asked())).text for _ in range(2)] == ["first", "second"]
    with pytest.raises(limpet.Permanent, match="has only 3 replies, and this is prompt 4"):
        await model.reply(asked())


async def test_a_script_without_a_next_reply_raises() -> None:
    model = ScriptedModel("first", name="mine")
    with pytest.raises(limpet.Permanent, match="'mine' has only 1 replies, and the prompt has 1 messages of"):
        await model.reply(asked(1))
    with pytest.raises(limpet.Permanent, match="has only 0 replies"):
        await ScriptedModel().reply(asked())


@pytest.mark.parametrize("kind", [tuple, list])
async def test_several_calls_of_a_reply_have_distinct_ids(kind: Any) -> None:
    model = ScriptedModel("x", kind(["let me see", calls("look", id=1), calls("look", id=1), calls("act", name="a")]))
    before = PromptMessage(role="assistant", calls=(ToolCall(id="call_1", name="look", args="{}"),))
    reply = await model.reply(Prompt(messages=(before,)))
    assert (reply.text, reply.finish) == ("let me see", "calls")
    assert [(each.id, each.name, each.args) for each in reply.calls] == [
        ("call_2", "look", '{"id":1}'),
        ("call_3", "look", '{"id":1}'),
        ("call_4", "act", '{"name":"a"}'),
    ]


async def test_arguments_can_be_typed_values() -> None:
    reply = await ScriptedModel(calls("act", order=Order("o-1", 5), verdict=Verdict(ok=True))).reply(asked())
    assert reply.calls[0].args == '{"order":{"id":"o-1","cents":5},"verdict":{"ok":true,"why":""}}'


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (Verdict(ok=True), '{"ok":true,"why":""}'),
        (Order("o-1", 5), '{"id":"o-1","cents":5}'),
        (Parcel(weight=3), '{"weight":3}'),
        ({"a": [1, None, Order("o-1", 5)]}, '{"a":[1,null,{"id":"o-1","cents":5}]}'),
        ("", ""),
    ],
    ids=["pydantic", "dataclass", "struct", "dict", "nothing"],
)
async def test_typed_output_is_returned_as_json(output: Any, text: str) -> None:
    reply = await ScriptedModel(output).reply(asked())
    assert (reply.text, reply.finish, reply.calls) == (text, "stop", ())


async def test_a_reply_object_is_returned_unchanged() -> None:
    reply = Reply(text="no", finish="refused", usage=Usage(input_tokens=1, cost=0.5), model="other", raw={"a": 1})
    assert await ScriptedModel(reply).reply(asked()) == reply


@pytest.mark.parametrize("error", [limpet.RetryAfter("1s"), ValueError("no"), TimeoutError])
async def test_an_error_in_the_script_is_raised_each_time(error: Any) -> None:
    model = ScriptedModel(error, "later")
    for _ in range(2):
        with pytest.raises(error if isinstance(error, type) else type(error)):
            await model.reply(asked())
    assert (await model.reply(asked(1))).text == "later"
    assert len(model.prompts) == 3


async def test_a_function_in_the_script_gets_the_prompt() -> None:
    def first(request: Prompt) -> str:
        return request.messages[0].text.upper()

    async def second(request: Prompt) -> Any:
        return calls("look", turns=len(request.messages))

    def third(_: Prompt) -> Any:
        return OSError("busy")

    model = ScriptedModel(first, second, third)
    assert (await model.reply(asked())).text == "HELLO"
    assert (await model.reply(asked(1))).calls[0].args == '{"turns":2}'
    with pytest.raises(OSError, match="busy"):
        await model.reply(asked(2))
    with pytest.raises(limpet.Permanent):
        await model.reply(asked(3))


async def test_a_single_function_answers_every_prompt() -> None:
    model = ScriptedModel(lambda request: f"turn {len(request.messages)}")
    assert [(await model.reply(asked(turn))).text for turn in range(3)] == ["turn 1", "turn 2", "turn 3"]


async def test_text_is_streamed_word_by_word() -> None:
    pieces: list[str] = []
    reply = await ScriptedModel(" all is\n well ").reply(asked(), on_text=pieces.append)
    assert pieces == [" all", " is", "\n well", " "]
    assert "".join(pieces) == reply.text


async def test_tokens_are_counted_by_length() -> None:
    call = ToolCall(id="a", name="look", args='{"id":1}')
    request = Prompt(
        messages=(PromptMessage(role="user", text="hello"), PromptMessage(role="assistant", calls=(call,)))
    )
    reply = await ScriptedModel("x", ("so", calls("look", id=1))).reply(request)
    assert reply.usage == Usage(input_tokens=2 + 2, output_tokens=1 + 2)
    assert (reply.model, reply.raw) == ("scripted", None)


async def test_prompts_are_recorded() -> None:
    model = ScriptedModel("so")
    tool = ToolSpec(name="look", description="", schema={"type": "object"})
    request = Prompt(messages=(PromptMessage(role="user", text="hello"),), tools=(tool,), settings={"seed": 1})
    await model.reply(request)
    assert model.prompts == [request]


async def test_an_invalid_scripted_reply_is_refused() -> None:
    with pytest.raises(TypeError, match="a reply must be text"):
        await ScriptedModel(7).reply(asked())


scripted = ScriptedModel(calls("look", id=1), calls("look", id=2), "found")


@limpet.tool(effect="none")
async def scripted_ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    request = Prompt(messages=msgspec.convert(tuple(messages), tuple[PromptMessage, ...]))
    reply: dict[str, Any] = msgspec.to_builtins(await scripted.reply(request))
    return reply


@limpet.agent()
async def looks_up(run: limpet.Run, _: None = None) -> list[str]:
    """Run a model loop by hand."""
    messages: list[dict[str, Any]] = [{"role": "user", "text": "look"}]
    while True:
        reply = await run.step(scripted_ask, messages)
        messages = [*messages, {"role": "assistant", "text": reply["text"], "calls": reply["calls"]}]
        if not reply["calls"]:
            return [call["id"] for each in messages for call in each.get("calls", ())]
        messages += [{"role": "tool", "text": "ok", "call": each["id"]} for each in reply["calls"]]


async def test_a_resumed_run_gets_the_reply_of_its_turn() -> None:
    async with testing.app(looks_up) as app:
        app.crash_at("before", "step.completed", nth=1)
        app.crash_at("after", "step.completed", nth=3)
        assert await app.run(looks_up) == ["call_1", "call_2"]
        assert app.crashes == 2
