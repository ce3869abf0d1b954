"""Sixty broken conversations: each is loaded and repaired with marks, the run continues, and a provider accepts it.

The provider is a strict OpenAI-compatible server behind the real client.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter

import limpet
from limpet import testing
from limpet.events import bodies as b
from limpet.journal import ConversationWriter
from tests.servers.openai_server import Answer, OpenAIServer, call

TYPES: TypeAdapter[Any] = TypeAdapter(list[ChatCompletionMessageParam])
FIT = re.compile("[A-Za-z0-9_-]{1,64}")


def u(text: Any = "hello") -> tuple[str, Any, str]:
    """A user message."""
    return ("user", text, "")


def a(*ids: Any, text: Any = "", **more: Any) -> tuple[str, Any, str]:
    """An assistant message with tool calls."""
    return ("assistant", {"text": text, "calls": [{"id": id, "name": "look", "args": "{}", **more} for id in ids]}, "")


def raw(*calls: Any) -> tuple[str, Any, str]:
    """An assistant message with calls in any form."""
    return ("assistant", {"text": "", "calls": list(calls)}, "")


def t(id: str, text: Any = "seen") -> tuple[str, Any, str]:
    """A tool result."""
    return ("tool", text, id)


def s(text: Any) -> tuple[str, Any, str]:
    """An assistant message with text."""
    return ("assistant", text, "")


HUGE = "x" * 400_000
NESTED: Any = "deep"
for _ in range(20):
    NESTED = {"in": [NESTED]}
BROKEN: dict[str, list[tuple[str, Any, str]]] = {
    "nothing at all": [],
    "only what a system says": [("system", "be kind", "")],
    "only a result": [t("a")],
    "only results": [t("a"), t("b"), t("a")],
    "only an assistant": [s("hello")],
    "only a call": [a("a")],
    "an orphan call": [u(), a("a")],
    "an orphan call in the middle": [u(), a("a"), u("well?"), s("yes")],
    "many orphan calls": [u(), a("a"), u(), a("b"), u(), a("c")],
    "orphans of parallel calls": [u(), a("a", "b", "c"), t("b")],
    "an orphan behind a pair": [u(), a("a"), t("a"), a("b")],
    "a result twice": [u(), a("a"), t("a"), t("a", "again")],
    "a result five times": [u(), a("a"), *[t("a", str(n)) for n in range(5)]],
    "a result twice, far away": [u(), a("a"), t("a"), u(), s("yes"), t("a", "late")],
    "a result before its call": [u(), t("a"), a("a")],
    "all results before all calls": [t("a"), t("b"), a("a"), a("b")],
    "results in another order": [u(), a("a", "b", "c"), t("c"), t("a"), t("b")],
    "a result of nothing": [u(), t("zzz"), s("well")],
    "a result of nothing between a pair": [u(), a("a"), t("b"), t("a")],
    "a result without an id": [u(), a("a"), t("")],
    "an empty user": [u("")],
    "an empty assistant": [u(), s("")],
    "an assistant with no calls in a list": [u(), a()],
    "an empty result": [u(), a("a"), t("a", "")],
    "empty everything": [u(""), s(""), t("", ""), ("system", "", "")],
    "a user between call and result": [u(), a("a"), u("and?"), t("a")],
    "users between parallel results": [u(), a("a", "b"), u("1"), t("a"), u("2"), t("b"), u("3")],
    "an assistant between call and result": [u(), a("a"), s("hm"), t("a")],
    "a call between call and result": [u(), a("a"), a("b"), t("a"), t("b")],
    "crossed pairs": [u(), a("a"), a("b"), t("b"), t("a")],
    "an id twice in one message": [u(), a("a", "a"), t("a"), t("a", "2")],
    "an id twice in one message, one result": [u(), a("a", "a"), t("a")],
    "an id in two messages": [u(), a("a"), t("a"), a("a"), t("a", "2")],
    "an id in two messages, one result": [u(), a("a"), a("a"), t("a")],
    "an id in five messages, no result": [a("a"), a("a"), a("a"), a("a"), a("a")],
    "calls without ids": [u(), raw({"name": "look", "args": "{}"}, {"name": "look", "args": "{}"})],
    "calls without ids, again": [u(), raw({"name": "look"}), raw({"name": "look"})],
    "ids that are empty": [u(), a("", ""), t("")],
    "ids that are numbers": [u(), a(7), t("7")],
    "ids that are null": [u(), a(None)],
    "ids with odd characters": [u(), a("é/ö .{}"), t("é/ö .{}")],
    "ids that are long": [u(), a("i" * 500), t("i" * 500)],
    "calls without names": [u(), raw({"id": "a", "args": "{}"})],
    "names with odd characters": [u(), a("a", name="look at: this!"), t("a")],
    "names that are long": [u(), a("a", name="n" * 300), t("a")],
    "names that are lists": [u(), a("a", name=["look"])],
    "args that are no JSON": [u(), a("a", args="{look: "), t("a")],
    "args that are cut": [u(), a("a", args='{"path": "/var/lo')],
    "args that are no object": [u(), a("a", args="[1, 2]"), t("a")],
    "args that are an object already": [u(), a("a", args={"x": {"y": 1}}), t("a")],
    "args that are null or not there": [u(), a("a", args=None), raw({"id": "b", "name": "look"}), t("a"), t("b")],
    "calls that are no calls": [u(), raw("look", 7, None, ["look"], {})],
    "calls that are no list": [u(), ("assistant", {"text": "hm", "calls": "look"}, "")],
    "contents of wrong types": [u(7), u(None), u([{"type": "text", "text": "hi"}]), u(True), s({"text": 5})],
    "a text that is no text": [u(), a("a", text=["a", 1]), t("a", {"is": "an object"})],
    "calls of a user": [("user", {"text": "hi", "calls": [{"id": "a", "name": "look", "args": "{}"}]}, ""), t("a")],
    "cut in the middle of a stream": [u(), s("I will now lo"), a("a", text="and th", args='{"a')],
    "huge": [u(HUGE), a("a", args=json.dumps({"x": HUGE})), t("a", HUGE), u(HUGE)],
    "unicode": [u("\u200b\u202e😀é漢\ufffd"), a("a", text="😀" * 100, args='{"é": "漢"}'), t("a", "\x00\x1b[31m")],
    "nested": [u(NESTED), a("a", args=NESTED), t("a", NESTED)],
    "a thousand of everything": [each for n in range(250) for each in (u(), a(f"i{n % 7}"), t(f"i{n % 5}"), t("no"))],
}


def strict(request: dict[str, Any]) -> Answer:
    """Reply as a strict provider: check the request, note a fact first, then answer."""
    check(request["messages"])
    is_begun = any(each["content"] == "noted" for each in request["messages"] if each["role"] == "tool")
    if is_begun:
        return Answer(text="done")
    return Answer(calls=[call("note_fact", {"key": "seen", "value": "yes"}, id="call_of_mine")])


def check(messages: list[dict[str, Any]]) -> None:
    """Check messages by the client's types and by the rules of a strict provider."""
    for found in TYPES.validate_python(messages):
        list(found.get("tool_calls") or ())  # pydantic validates the list lazily
    open_: list[str] = []
    for each in messages:
        if each["role"] == "tool":
            assert each["tool_call_id"] == open_.pop(0), "a result without its call"
            continue
        assert not open_, "a call without its result"
        assert each.get("content") or each.get("tool_calls"), "an empty message"
        open_ = [wanted["id"] for wanted in each.get("tool_calls") or ()]
        for wanted in each.get("tool_calls") or ():
            assert FIT.fullmatch(wanted["id"]), "an odd id"
            assert FIT.fullmatch(wanted["function"]["name"]), "an odd name"
            assert isinstance(json.loads(wanted["function"]["arguments"]), dict), "odd arguments"
    assert not open_, "a call without its result"
    ids = [wanted["id"] for each in messages for wanted in each.get("tool_calls") or ()]
    assert len(ids) == len(set(ids)), "an id twice"
    assert any(each["role"] == "user" for each in messages), "no user"


@pytest.fixture(scope="module")
def provider() -> Iterator[OpenAIServer]:
    """A strict provider for all tests of this module."""
    with OpenAIServer(strict) as server:
        yield server


async def add_messages(app: testing.TestApp, messages: list[tuple[str, Any, str]]) -> None:
    """Append messages to a conversation, as another program might have."""
    talk = ConversationWriter(app.store, "c", lambda: 1, "test", b.ConversationCreated())
    for place, (role, content, id) in enumerate(messages):
        packed, blobs = app.store.pack(content)
        added = b.MessageAdded(message=f"m{place}", role=role, content=packed, call=id or None)  # type: ignore[arg-type]
        await talk.append(added, blobs=blobs)


def test_there_are_at_least_sixty_broken_conversations() -> None:
    assert len(BROKEN) >= 60


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_conversation_is_repaired_once_and_accepted(
    name: str, provider: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent complete and in order. Added messages are marked, and the run is flagged."""
    monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
    agent = limpet.llm_agent("transcripts_any", model="openai:strict", instructions="Go on.", window=30_000)
    begin = len(provider.requests)
    async with testing.app(agent) as app:
        await add_messages(app, BROKEN[name])
        handle = await app.start(agent, "go on", id="r", conversation="c")
        assert await handle.result() == "done"
        sent = provider.requests[begin:]
        last = sent[-1]["messages"]
        assert last[-1] == {"role": "tool", "tool_call_id": "call_of_mine", "content": "noted"}
        assert "go on" in [each["content"] for each in last]
        log = [app.store.decode(each) async for each in app.store.log("c")]
        added = [each for each in log if isinstance(each, b.MessageAdded)]
        assert [each.message for each in added[: len(BROKEN[name])]] == [f"m{n}" for n in range(len(BROKEN[name]))]
        marked = [each.call for each in added if each.repaired]
        assert len(marked) == len(set(marked))
        if marked:
            assert "the conversation was repaired" in (await app.state("r")).risk_flags
        assert (await app.replay("r")).value == "done"
        assert len(provider.requests) == begin + len(sent)
        handle = await app.start(agent, "and again", id="s", conversation="c")
        assert await handle.result() == "done"
        log = [app.store.decode(each) async for each in app.store.log("c")]
        assert [each.call for each in log if isinstance(each, b.MessageAdded) and each.repaired] == marked
