"""Context windows: every prompt fits, calls and results stay together, and omissions are mentioned."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import limpet
from limpet import testing
from limpet.context.slice import Known, SliceMessage, describe, slice_of
from limpet.context.window import EACH, Item, _select_part, select, short, tokens, units
from limpet.events import Fact, PlanItem, StatePatch, canonical
from limpet.events import bodies as b
from limpet.events.values import encode
from limpet.journal import ConversationWriter
from limpet.llm.model import Prompt, PromptMessage, Reply, ToolCall
from limpet.llm.prompt import MAX_REPLY, SUMMARY
from limpet.llm.transcript import UNDER_WAY, StoredMessage, repair
from limpet.state import AgentState
from limpet.state.patch import Working
from limpet.testing import ScriptedModel, calls
from tests.laws.values import characters

pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")  # generated inputs are large
WINDOW = 8_000
TEXTS = st.one_of(
    st.text(characters, max_size=40),
    st.builds(lambda text, times: text * times, st.text(characters, min_size=1, max_size=8), st.integers(1, 4_000)),
)
SOME = TEXTS.filter(bool)
IDS = st.sampled_from("abcdefgh")
CALLS = st.builds(lambda name, args: ToolCall(id=name, name="look", args=canonical({"x": args}).decode()), IDS, TEXTS)
MESSAGES = st.one_of(
    st.builds(lambda text: PromptMessage(role="user", text=text), TEXTS),
    st.builds(
        lambda text, made: PromptMessage(role="assistant", text=text, calls=tuple(made)),
        TEXTS,
        st.lists(CALLS, max_size=3),
    ),
    st.builds(lambda text, name: PromptMessage(role="tool", text=text, call=name), TEXTS, IDS),
)
SAID = st.lists(st.tuples(MESSAGES, st.integers(0, 5).map(lambda number: number == 0)), max_size=30).map(
    lambda found: [StoredMessage(place, message, pinned) for place, (message, pinned) in enumerate(found, 2)]
)


def window_use(request: Prompt) -> int:
    """Return the tokens that a prompt and its reply need."""
    texts = sum(each.size for each in request.messages)
    tools = sum(
        tokens(each.name) + tokens(each.description) + tokens(canonical(each.schema).decode()) for each in request.tools
    )
    return texts + tools + (request.max_tokens or 0)


def check_pairs(messages: Any) -> None:
    """Check that each call is followed by its result, and that there is no other result."""
    open_: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.call == open_.pop(0)
        else:
            assert open_ == []
            open_ = [call.id for call in message.calls]
    assert open_ == []


@given(TEXTS, st.integers(-5, 3_000))
def test_a_text_is_truncated_only_if_it_does_not_fit(text: str, room: int) -> None:
    """A truncated text mentions how much is left out."""
    found = short(text, room)
    assert tokens(found) <= max(room, 0)
    assert found == text or tokens(text) > room
    if found != text and room > 30:
        assert "characters are left out" in found


@settings(max_examples=50)
@given(SAID)
def test_a_repaired_conversation_is_valid_and_needs_no_second_repair(said: list[StoredMessage]) -> None:
    """Calls have results, ids are distinct, and only results are added."""
    whole = repair(said)
    check_pairs([each.message for each in whole.messages])
    made = [call.id for each in whole.messages for call in each.message.calls]
    assert len(made) == len(set(made))
    assert {each.seq for each in whole.messages} <= {0, *(each.seq for each in said)}
    stored = [*said, *(StoredMessage(100 + n, each.message) for n, each in enumerate(whole.messages) if each.seq == 0)]
    again = repair(stored)
    assert all(each.seq for each in again.messages)
    assert [each.message for each in again.messages] == [each.message for each in whole.messages]


@settings(max_examples=50)
@given(SAID, st.integers(0, 4_000))
def test_selected_messages_fit_and_keep_calls_with_results(said: list[StoredMessage], room: int) -> None:
    """The newest messages, and pinned ones as far as they can be truncated."""
    items = [each.item for each in repair(said).messages]
    chosen = select(items, room)
    assert chosen.size <= room
    assert chosen.left_out == len(items) - len(chosen.places)
    seen = set(chosen.places)
    least = 0
    for unit in units(items):
        members = [items[place] for place in unit.places]
        assert {*unit.places} <= seen or not {*unit.places} & seen
        assert unit.pinned == any(item.pinned for item in members)
        assert unit.size == sum(item.size + EACH for item in members)
        if unit.pinned or unit.places.stop == len(items):
            least += sum(min(item.least or 0, item.size) + EACH for item in members)
    if least <= room:
        assert {n for n, item in enumerate(items) if item.pinned} <= seen
        assert not items or len(items) - 1 in seen
    if sum(item.size + EACH for item in items) <= room:
        assert chosen.left_out == 0
    flat = [seq for first, last in chosen.ranges for seq in range(first, last + 1)]
    assert flat == sorted({item.seq for n, item in enumerate(items) if n in seen} - {0})


@settings(max_examples=50)
@given(SAID, st.integers(0, 50))
def test_messages_that_all_fit_are_selected_as_in_a_smaller_room(said: list[StoredMessage], more: int) -> None:
    """The short way for messages that fit, and the way for those that do not, agree."""
    items = [each.item for each in repair(said).messages]
    room = sum(item.size + EACH for item in items) + more
    assert select(items, room) == _select_part(items, room)


FACTS = st.dictionaries(st.text(characters, min_size=1, max_size=20), TEXTS, max_size=12)


def state_of(goal: str, facts: dict[str, str], plan: list[str], questions: list[str]) -> AgentState:
    """Return a state with these contents."""
    working = Working(AgentState())
    known = tuple(Fact(key=key, value=msgspec.Raw(canonical(value))) for key, value in facts.items())
    working.apply(
        StatePatch(goal=goal, facts=known, plan=tuple(PlanItem(item=each) for each in plan), questions=tuple(questions))
    )
    return working.freeze()


@given(TEXTS, FACTS, st.lists(SOME, max_size=4), st.lists(SOME, max_size=4, unique=True), st.integers(20, 2_000))
def test_the_described_state_fits_and_mentions_omissions(
    goal: str, facts: dict[str, str], plan: list[str], questions: list[str], room: int
) -> None:
    state = state_of(goal, facts, plan, questions)
    text = describe(state, since=None, room=room)
    assert tokens(text) <= room
    assert text == describe(state, since=None, room=1 << 40) or "more are not shown)" in text or "[…" in text
    said = [SliceMessage(role="user", text=each) for each in questions]
    found = slice_of(Known(state, status="running", task="a task"), messages=said, max_tokens=room, max_bytes=2 * room)
    assert len(encode(found)) <= 2 * room or found.goal == "" == "".join(map(str, (*found.facts, *found.messages)))
    assert found.goal in ("", goal or "a task") or "[…" in found.goal
    for part, there in (("facts", facts), ("plan", plan), ("open_questions", questions), ("messages", said)):
        assert len(getattr(found, part)) + found.left_out.get(part, 0) == len(there)
    assert [fact.key for fact in found.facts] == [key for key in reversed(facts) if key in {f.key for f in found.facts}]


async def add_messages(app: testing.TestApp, said: list[StoredMessage]) -> None:
    """Append messages to a conversation."""
    talk = ConversationWriter(app.store, "c", lambda: 1, "test", b.ConversationCreated())
    for each in said:
        message = each.message
        content: Any = message.text
        if message.calls:
            content = {"text": message.text, "calls": [msgspec.to_builtins(call) for call in message.calls]}
        packed, blobs = app.store.pack(content)
        added = b.MessageAdded(
            message=f"m{each.seq}", role=message.role, content=packed, call=message.call or None, pinned=each.pinned
        )
        await talk.append(added, blobs=blobs)


# A long task


@settings(max_examples=12)
@given(SAID, FACTS)
async def test_every_prompt_fits_the_window(said: list[StoredMessage], facts: dict[str, str]) -> None:
    """For any messages and facts. Calls have results, and omissions are mentioned."""

    def says(request: Prompt) -> Any:
        if request.messages[0].text == SUMMARY:
            return "in short"
        if request.messages[-1].role == "tool" or not facts:
            return "done"
        return tuple(calls("note_fact", key=key, value=value) for key, value in facts.items())

    model = ScriptedModel(says)
    agent = limpet.llm_agent("windows_any", model=model, instructions="Go on.", window=WINDOW)
    async with testing.app(agent) as app:
        await add_messages(app, said)
        try:
            assert await app.run(agent, "go on", id="r", conversation="c") == "done"
        except limpet.RunFailed as failed:
            if failed.error_type != "limpet.ContextTooSmall":
                raise
            return
        for request in model.prompts:
            assert window_use(request) <= WINDOW
            check_pairs(request.messages[1:])
        asked = [each for each in model.prompts if each.messages[0].text != SUMMARY]
        assert asked[0].messages[-1].text == "go on"
        for request in asked:
            system, shown = request.messages[0].text, len(request.messages) - 1
            there = len(repair(said).messages) + 1
            assert shown >= there or "earlier messages are not shown" in system or "in short" in system


def long_agent(name: str, turns: int, model: list[ScriptedModel], **more: Any) -> Any:
    """Return an agent with many turns, whose model takes the turn number from the last result."""

    @limpet.tool(effect="none", name=f"{name}_step")
    async def step(n: int) -> str:
        """One step of many."""
        return f"n={n} " + "x" * 30

    def says(request: Prompt) -> Any:
        if request.messages[0].text == SUMMARY:
            return "in short: steps were made"
        results = [each.text for each in request.messages if each.role == "tool" and each.text.startswith("n=")]
        n = int(results[-1].split()[0][2:]) if results else 0
        if n >= turns:
            return "done"
        if n == 2 and "Fact secret" not in request.messages[0].text:
            return calls("note_fact", key="secret", value="swordfish")
        return calls(f"{name}_step", n=n + 1)

    model.append(ScriptedModel(says))
    return limpet.llm_agent(
        name, model=model[0], instructions="Go on.", tools=[step], window=WINDOW, max_turns=2 * turns, **more
    )


async def test_five_hundred_turns_fit_a_small_window(full: bool) -> None:
    """A fact of the third turn stays visible, there are summaries, and all messages are kept.

    Without --full, there are 200 turns.
    """
    turns = 500 if full else 200
    models: list[ScriptedModel] = []
    agent = long_agent("windows_long", turns, models)
    async with testing.app(agent) as app:
        handle = await app.start(agent, "begin", id="r")
        assert await handle.result() == "done"
        requests = models[0].prompts
        assert all(window_use(each) <= WINDOW for each in requests)
        asked = [each for each in requests if each.messages[0].text != SUMMARY]
        assert len(asked) == turns + 2
        assert all('Fact secret = "swordfish"' in each.messages[0].text for each in asked[4:])
        assert len(requests) - len(asked) >= turns // 100
        for each in asked:
            check_pairs(each.messages[1:])
        shown = await app.messages("r.chat", last=1000)
        assert [each.is_summary for each in shown].count(True) == 1
        assert len(shown) < turns
        page = await app.messages("r.chat", whole=True, last=1000)
        whole = [*page]
        while page.next is not None:
            page = await app.messages("r.chat", whole=True, last=1000, cursor=page.next)
            whole = [*page, *whole]
        results = [each.text.split()[0] for each in whole if each.text.startswith("n=")]
        assert results == [f"n={n}" for n in range(1, turns + 1)]
        if full:
            assert (await app.replay("r")).value == "done"


async def test_a_summary_can_be_removed_and_made_again() -> None:
    """After its removal all messages are shown; the next turn that exceeds the limit summarises again."""
    models: list[ScriptedModel] = []
    agent = long_agent("windows_undone", 60, models, compact=limpet.Compaction(above=900, keep=300))
    async with testing.app(agent) as app:
        assert await app.run(agent, "begin", id="r", conversation="c") == "done"
        log = [app.store.decode(each) async for each in app.store.log("c")]
        made = [each for each in log if isinstance(each, b.ConversationCompacted)]
        assert len(made) > 2
        assert [each.level for each in made] == [*range(1, len(made) + 1)]
        assert {each.first for each in made} == {2}
        whole = await app.messages("c", whole=True, last=1000)
        talk = ConversationWriter(app.store, "c", lambda: 1, "test", b.ConversationCreated())
        for each in reversed(made):
            await talk.append(b.ConversationCompacted(first=each.first, last=each.last, summary=None))
        assert await app.messages("c", last=1000) == whole
        again = models[0].prompts
        again.clear()
        assert await app.run(agent, "once more", id="s", conversation="c") == "done"
        assert any(each.messages[0].text == SUMMARY for each in again)
        assert all(window_use(each) <= WINDOW for each in again)
        assert any(each.is_summary for each in await app.messages("c", last=1000))
        assert (await app.messages("c", whole=True, last=1000))[: len(whole)] == whole


@pytest.mark.parametrize("fails", [limpet.Permanent("no summary today"), ""])
async def test_a_failed_summary_changes_nothing(fails: Any) -> None:
    """The messages that fit are shown, and the run continues."""

    def says(request: Prompt) -> Any:
        return fails if request.messages[0].text == SUMMARY else "done"

    model = ScriptedModel(says)
    agent = limpet.llm_agent("windows_fails", model=model, instructions="Go on.", window=WINDOW)
    async with testing.app(agent) as app:
        await add_messages(
            app, [StoredMessage(n, PromptMessage(role="user", text=f"{n} " + "x" * 900)) for n in range(2, 30)]
        )
        before = await app.messages("c", last=1000)
        assert await app.run(agent, "go on", id="r", conversation="c") == "done"
        after = await app.messages("c", last=1000)
        assert after[: len(before)] == before
        assert not any(each.is_summary for each in after)
        last = model.prompts[-1]
        assert window_use(last) <= WINDOW
        assert "earlier messages are not shown" in last.messages[0].text
        assert (await app.replay("r")).value == "done"


@pytest.mark.parametrize(
    "fails", [limpet.Permanent("no"), "", " \n", Reply(text="I cannot do that.", finish="refused")]
)
@pytest.mark.parametrize("dies", [None, "before", "after"])
async def test_a_failed_summary_is_retried_only_after_many_more_messages(fails: Any, dies: Any, full: bool) -> None:
    """It is flagged once, the same in every execution. Without --full, the process dies after one kind of failure."""
    if dies and fails != "" and not full:
        pytest.skip("runs with --full (make chaos); a death after an empty summary is tested")
    turns = 60
    models: list[ScriptedModel] = []
    agent = long_agent("windows_again", turns, models, compact=limpet.Compaction(above=900, keep=300))
    says = models[0]._replies[0]
    models[0]._replies = (lambda request: fails if request.messages[0].text == SUMMARY else says(request),)
    async with testing.app(agent) as app:
        handle = await app.start(agent, "begin", id="r", conversation="c")
        for nth in (1, 20, 20) if dies else ():
            app.crash_at(dies, "risk.flagged" if nth == 1 else "step.completed", nth=nth)
            await app.settle()
        assert await handle.result() == "done"
        asked = [each for each in models[0].prompts if each.messages[0].text == SUMMARY]
        assert 2 <= len(asked) <= 12 + app.crashes
        kinds = [each.body["flag"] for each in await app.log("r") if each.kind == "risk.flagged"]
        assert kinds == ["the conversation was not summarised"]
        assert not any(each.is_summary for each in await app.messages("c", last=1000))
        assert (await app.replay("r")).value == "done"


async def test_pieces_of_a_truncated_answer_are_not_summarised() -> None:
    """They are one answer, even if little is kept."""
    pieces = ["a" * 3_000, "b" * 3_000, "c"]
    replies = [Reply(text=each, finish="stop" if each == "c" else "length") for each in pieces]
    model = ScriptedModel(lambda request: "short" if request.messages[0].text == SUMMARY else replies.pop(0))
    agent = limpet.llm_agent(
        "windows_pieces", model=model, instructions="Say.", compact=limpet.Compaction(above=500, keep=100)
    )
    async with testing.app(agent) as app:
        assert await app.run(agent, "go", id="r") == "".join(pieces)


async def test_a_pending_call_of_another_run_is_not_summarised() -> None:
    """Otherwise the call would be forgotten, and made again."""
    paid: list[str] = []

    @limpet.tool(effect="once", risk="money", name="windows_pay")
    async def pay() -> str:
        """Pay."""
        paid.append("paid")
        return "receipt"

    def says(request: Prompt) -> Any:
        said = [each.text for each in request.messages]
        if said[0] == SUMMARY:
            return "in short"
        if "receipt" in said:
            return "done"
        return "hello " * 40 if UNDER_WAY in said else calls("windows_pay")

    agent = limpet.llm_agent(
        "windows_shared",
        model=ScriptedModel(says),
        instructions="Pay.",
        tools=[pay],
        approvals=limpet.Approvals("money"),
        compact=limpet.Compaction(above=300, keep=100),
    )
    async with testing.app(agent) as app:
        handle = await app.start(agent, "pay", id="one", conversation="c")
        await app.settle()
        for place in range(6):
            await app.start(agent, f"hi {place}", conversation="c")
            await app.settle()
        assert any(each.is_summary for each in await app.messages("c", last=1000))
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == "done"
        assert paid == ["paid"]


async def test_pinned_messages_survive_summaries() -> None:
    """With the results of their calls, after any number of summaries."""
    models: list[ScriptedModel] = []
    agent = long_agent("windows_pinned", 60, models, compact=limpet.Compaction(above=900, keep=300))
    async with testing.app(agent) as app:
        wanted = PromptMessage(role="assistant", calls=(ToolCall(id="p", name="look", args="{}"),))
        await add_messages(
            app,
            [
                StoredMessage(2, wanted, pinned=True),
                StoredMessage(3, PromptMessage(role="tool", text="seen", call="p")),
            ],
        )
        assert await app.run(agent, "begin", id="r", conversation="c") == "done"
        asked = [each for each in models[0].prompts if each.messages[0].text != SUMMARY]
        assert all([each.text for each in request.messages].count("seen") == 1 for request in asked)
        for request in asked:
            check_pairs(request.messages[1:])
        assert "the conversation was repaired" not in (await app.state("r")).risk_flags


def test_tools_and_the_reply_count_toward_the_window() -> None:
    agent = long_agent("windows_costs", 1, [])
    llm = agent.llm.frame
    assert llm.room + MAX_REPLY + sum(each.size for each in llm.tools) < llm.window
    assert isinstance(StoredMessage(2, PromptMessage(role="user", text="x")).item, Item)
    with pytest.raises(limpet.ContextTooSmall):
        limpet.llm_agent("windows_tiny", model=ScriptedModel("x"), instructions="Go on.", window=4_000)
