"""Compaction for agents of any kind: `run.compact` and `app.compact`."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.events import bodies as b
from limpet.events import inline
from limpet.journal import ConversationWriter
from limpet.llm.model import Prompt, Reply
from limpet.testing import ScriptedModel, calls
from limpet.testing.app import TestApp

LINE = "about thirty tokens of text, " * 3


def counted(messages: list[limpet.Message]) -> str:
    """Summarise messages by their numbers; also those that an earlier summary counted."""
    before = [each.text for each in messages if each.is_summary]
    return " ".join([*before, f"[{len(messages) - len(before)} messages]"])


@limpet.agent(name="compaction_chat")
async def chat(run: limpet.Run, turns: int) -> int:
    """Say something at every turn, and summarise when it becomes too much."""
    made = 0
    async for turn in run.turns(max=turns):
        await run.say(f"{turn.number}: {LINE}")
        made += await run.compact(counted, above=300, keep=100)
    return len(await run.messages())


async def texts(app: TestApp, conversation: str, **how: Any) -> list[str]:
    """Return the beginning of each message."""
    return [each.text.split(":")[0] for each in await app.messages(conversation, **how)]


async def test_an_agent_without_a_model_compacts_its_conversation() -> None:
    """The newest messages stay, the originals are kept, and each summary includes the one before it."""
    async with testing.app(chat) as app:
        assert await app.run(chat, 20, id="r") == len(await app.messages("r.chat"))
        found = await app.messages("r.chat")
        assert found[0].is_summary
        assert found[0].text.count("messages") > 2
        replaced = sum(int(part.split()[0]) for part in found[0].text.strip("[]").split("] ["))
        assert replaced + len(found) - 1 == 20
        assert found[-1].text.startswith("20: ")
        assert await texts(app, "r.chat", whole=True) == [str(each) for each in range(1, 21)]
        steps = await app.steps("r")
        assert {each.tool for each in steps} == {"summary"}
        assert (found[0].run, found[0].step) == ("r", steps[-1].number)
        assert (await app.replay("r")).value == len(found)
        assert (await app.verify()).conversations == 1


async def test_a_compacted_run_resumes_after_every_commit_with_the_same_result() -> None:
    await testing.always_resume(chat, 8)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["step.started", "step.completed", "message.said"])
async def test_a_crash_during_a_compaction_replaces_messages_once(when: Any, kind: str) -> None:
    """The commits of the step, and the one that adds the summary to the conversation."""
    async with testing.app(chat) as app:
        await app.run(chat, 10, id="whole")
        expected = await texts(app, "whole.chat")
        app.crash_at(when, kind, nth=1 if kind != "message.said" else 9)
        await app.run(chat, 10, id="r")
        assert app.crashes == 1
        assert await texts(app, "r.chat") == expected
        assert [each.is_summary for each in await app.messages("r.chat")].count(True) == 1


async def test_a_blocking_agent_compacts_its_conversation() -> None:

    @limpet.agent(name="compaction_blocking")
    def blocking(run: limpet.sync.Run, text: str) -> bool:
        for _ in range(6):
            run.say(text)
        return run.compact(counted, above=100, keep=50)

    async with testing.app(blocking) as app:
        assert await app.run(blocking, LINE, id="r")
        assert (await app.messages("r.chat"))[0].is_summary


async def test_nothing_is_summarised_below_the_limit_or_in_an_empty_conversation() -> None:

    @limpet.agent(name="compaction_small")
    async def small(run: limpet.Run) -> list[bool]:
        empty = await run.compact(counted, above=0, keep=0)
        await run.say(LINE)
        return [empty, await run.compact(counted), await run.compact(counted, above=10, keep=1_000)]

    async with testing.app(small) as app:
        assert await app.run(small, id="r") == [False, False, False]
        assert await app.steps("r") == []


async def test_a_failing_summary_changes_nothing_and_is_tried_again_when_the_conversation_has_grown() -> None:
    """The run goes on with a risk flag that says why."""
    tried: list[int] = []

    def broken(messages: list[limpet.Message]) -> str:
        tried.append(len(messages))
        raise limpet.Permanent("no idea")

    @limpet.agent(name="compaction_broken")
    async def talks(run: limpet.Run) -> list[bool]:
        found = []
        for _ in range(12):
            await run.say(LINE)
            found.append(await run.compact(broken, above=200, keep=50))
        return found

    async with testing.app(talks) as app:
        assert await app.run(talks, id="r") == [False] * 12
        assert 2 <= len(tried) < 8
        state = await app.state("r")
        assert "the conversation was not summarised" in state.working.risk_flags
        assert len(await app.messages("r.chat")) == 12


@pytest.mark.parametrize("answer", ["", "  ", 7, None])
async def test_a_summary_that_is_no_text_changes_nothing(answer: Any) -> None:

    @limpet.agent(name="compaction_untyped")
    async def talks(run: limpet.Run) -> bool:
        await run.say(LINE)
        return await run.compact(lambda _: answer, above=0, keep=0)

    async with testing.app(talks) as app:
        assert not await app.run(talks, id="r")
        with pytest.raises(limpet.InvalidArgument, match="return a text that is not empty"):
            await app.compact("r.chat", lambda _: answer, keep=0)
        assert [each.is_summary for each in await app.messages("r.chat")] == [False]


# Models


def a_summary(request: Prompt) -> Any:
    """Return how long the text to summarise is."""
    return f"they talked, {len(request.messages[1].text)} characters"


async def test_a_model_summarises_for_an_agent_without_a_model_and_its_tokens_count() -> None:
    """Its prompt can be rebuilt, also the second one, which contains the first summary."""

    @limpet.agent(name="compaction_model", budget=limpet.Budget(max_llm_tokens=100_000))
    async def talks(run: limpet.Run) -> bool:
        done = False
        for _ in range(2):
            for _ in range(6):
                await run.say(LINE)
            done = await run.compact(limpet.summarise_with(model), above=100, keep=50)
        return done

    model = ScriptedModel(a_summary, name="openai:tiny")
    async with testing.app(talks) as app:
        assert await app.run(talks, id="r")
        assert (await app.state("r")).whole.spent.tokens > 0
        for step in (1, 2):
            seen = await app.prompt("r", step=step)
            assert (seen.is_exact, seen.model) == (True, "openai:tiny")
            assert seen.prompt == model.prompts[step - 1]
        assert "they talked" in model.prompts[1].messages[1].text
        assert [each.kind for each in await app.steps("r")] == ["model", "model"]


async def test_the_budget_refuses_a_summary_that_may_use_too_many_tokens() -> None:

    @limpet.agent(name="compaction_budget", budget=limpet.Budget(max_llm_tokens=1_000))
    async def talks(run: limpet.Run) -> bool:
        await run.say(LINE)
        return await run.compact(limpet.summarise_with(ScriptedModel("short")), above=0, keep=0)

    async with testing.app(talks) as app:
        handle = await app.start(talks, id="r")
        with pytest.raises(limpet.RunFailed, match="budget"):
            await handle.result()
        assert not (await app.messages("r.chat"))[0].is_summary


async def test_a_model_that_refuses_or_a_window_that_is_too_small_is_reported() -> None:
    with pytest.raises(limpet.ContextTooSmall):
        limpet.summarise_with("openai:gpt-5-mini", window=4_000, max_reply=4_000)
    with pytest.raises(limpet.DefinitionError, match="the model"):
        limpet.summarise_with("gpt")
    refuses = limpet.summarise_with(ScriptedModel(Reply(text="I will not.", finish="refused")))
    async with testing.app(chat) as app:
        await app.run(chat, 2, id="r")
        with pytest.raises(limpet.InvalidArgument, match="summary"):
            await app.compact("r.chat", refuses, keep=0)


# From outside


async def test_an_operator_replaces_the_older_messages_by_a_text() -> None:
    """Once for a command id. The sender is recorded, and None means that nothing was left to replace."""
    async with testing.app(chat) as app:
        await app.run(chat, 6, id="r")
        await app.say("r.chat", "and now?")
        done = await app.compact("r.chat", "They talked.", keep=40, by="ann", command_id="c-1")
        assert done is not None
        assert (done.first, done.last, done.kept) == (2, 7, 0)
        found = await app.messages("r.chat")
        assert [(each.text, each.is_summary, each.by, each.run) for each in found[:1]] == [
            ("They talked.", True, "ann", None)
        ]
        assert [each.text for each in found[1:]] == ["and now?"]
        assert len(await app.messages("r.chat", whole=True)) == 7
        assert await app.compact("r.chat", "They talked.", keep=40, command_id="c-1") == done
        assert await app.compact("r.chat", "Again.", keep=40) is None
        assert (await app.verify()).conversations == 1


async def test_a_function_or_a_model_summarises_from_outside() -> None:
    """A function gets the summary so far; a long conversation is summarised in pieces that fit the model's window."""
    model = limpet.summarise_with(ScriptedModel(a_summary), window=800, max_reply=100)
    async with testing.app(chat) as app:
        talk = ConversationWriter(app.store, "c", lambda: 1, "test", b.ConversationCreated())
        for number in range(60):
            await talk.append(b.MessageAdded(message=f"m{number}", role="user", content=inline(f"{number}: {LINE}")))
        pieces = 0
        while await app.compact("c", model, keep=100) is not None:
            pieces += 1
        assert pieces > 2
        assert (await texts(app, "c"))[-1] == "59"
        assert len(await app.messages("c")) < 6
        assert len(await app.messages("c", whole=True)) == 60
        await app.compact("c", counted, keep=0)
        [left] = await app.messages("c")
        assert left.text.startswith("they talked")


async def test_a_wrong_conversation_is_refused() -> None:
    async with testing.app(chat) as app:
        await app.run(chat, 1, id="r")
        with pytest.raises(limpet.NotFound):
            await app.compact("c-9", "text")
        with pytest.raises(limpet.InvalidArgument, match=r"is a run; pass its conversation, 'r\.chat'"):
            await app.compact("r", "text")
        with pytest.raises(limpet.InvalidArgument, match="keep"):
            await app.compact("r.chat", "text", keep=-1)
        wrong: Any
        for wrong in (str, lambda: "text", lambda one, two: one + two, 7):
            with pytest.raises(limpet.InvalidArgument, match="summary"):
                await app.compact("r.chat", wrong, keep=0)


async def test_a_call_stays_with_its_result_however_messages_are_interleaved() -> None:
    """A call whose result is missing, and one whose result is among the newest messages, are not summarised."""
    said: list[tuple[str, Any, str | None]] = [
        ("user", f"old {LINE}", None),
        ("assistant", {"text": "", "calls": [{"id": "a", "name": "x", "args": "{}"}]}, None),
        ("user", f"between {LINE}", None),
        ("tool", "result a", "a"),
        ("assistant", {"text": "", "calls": [{"id": "b", "name": "x", "args": "{}"}]}, None),
        ("user", f"later {LINE}", None),
        ("assistant", {"text": "", "calls": [{"id": "d", "name": "x", "args": "{}"}]}, None),
        ("user", f"last {LINE}", None),
        ("tool", "result d", "d"),
    ]
    async with testing.app(chat) as app:
        talk = ConversationWriter(app.store, "c", lambda: 1, "test", b.ConversationCreated())
        for number, (role, content, call) in enumerate(said):
            added: Any = {"message": f"m{number}", "role": role, "content": inline(content), "call": call}
            await talk.append(b.MessageAdded(**added))
        done = await app.compact("c", "old and between, later", keep=60)
        assert done is not None
        found = [each for each in await app.messages("c") if not each.is_summary]
        left = [(each.role, each.text.split()[:1], each.calls) for each in found]
        assert left == [
            ("assistant", [], ("x({})",)),
            ("assistant", [], ("x({})",)),
            ("user", ["last"], ()),
            ("tool", ["result"], ()),
        ]


async def test_a_pinned_message_is_still_shown() -> None:
    async with testing.app(chat) as app:
        talk = ConversationWriter(app.store, "c", lambda: 1, "test", b.ConversationCreated())
        for number in range(5):
            content = inline(f"{number}: {LINE}")
            await talk.append(b.MessageAdded(message=f"m{number}", role="user", content=content, pinned=number == 1))
        done = await app.compact("c", "short", keep=40)
        assert done is not None
        assert done.kept == 1
        assert await texts(app, "c") == ["1", "short", "4"]


async def test_an_llm_agent_continues_with_the_summary_of_an_operator() -> None:
    """It waits for a person in a tool call, which stays; the next prompt has the summary."""
    model = ScriptedModel(
        calls("ask_person", question="?"), lambda request: f"done, {len(request.messages)} messages", in_order=True
    )
    agent = limpet.llm_agent("compaction_llm", model=model, instructions="Talk.")
    async with testing.app(agent, chat) as app:
        await app.run(chat, 3, id="before", conversation="c")
        handle = await app.start(agent, "go", id="r", conversation="c")
        await app.settle()
        assert await app.compact("c", "They talked about text.", keep=0) is not None
        await app.crash()
        await app.answer((await app.inbox())[0], "yes", by="ann")
        assert await handle.result() == "done, 3 messages"
        assert "They talked about text." in model.prompts[-1].messages[0].text
        assert (await app.prompt("r", step=2)).is_exact
        assert (await app.replay("r")).value == "done, 3 messages"


async def test_two_compactions_at_the_same_time_leave_one_summary() -> None:
    """Both read the same messages; the conversation is intact and the originals are kept."""
    begun = asyncio.Barrier(2)

    async def slow(messages: list[limpet.Message]) -> str:
        await begun.wait()
        return counted(messages)

    async with testing.app(chat) as app:
        await app.run(chat, 5, id="r")
        await asyncio.gather(app.compact("r.chat", slow, keep=0), app.compact("r.chat", slow, keep=60))
        found = await app.messages("r.chat")
        assert [each.is_summary for each in found].count(True) == 1
        assert len(await app.messages("r.chat", whole=True)) == 5
        assert (await app.verify()).conversations == 1


async def test_a_fork_from_before_a_compaction_has_the_original_messages() -> None:
    """It makes its own summary. A fork from after the compaction shares the summary."""

    @limpet.tool(effect="none", name="compaction_mark")
    def mark() -> int:
        """Mark a place."""
        return 1

    @limpet.agent(name="compaction_fork")
    async def talks(run: limpet.Run) -> int:
        for _ in range(4):
            await run.say(LINE)
        await run.step(mark)
        await run.compact(counted, above=0, keep=50)
        await run.step(mark)
        return len(await run.messages())

    async with testing.app(talks) as app:
        whole = await app.run(talks, id="r")
        for step, by in ((1, "f1"), (3, "r")):
            fork = await app.fork("r", at=step, effects="live", id=f"f{step}")
            assert await fork.result() == whole
            [summary] = [each for each in await app.messages(f"f{step}.chat") if each.is_summary]
            assert summary.run == by
            assert len(await app.messages(f"f{step}.chat", whole=True)) == 4
        assert len(await app.messages("r.chat")) == whole


async def test_a_summary_is_redacted_encrypted_and_exported_like_a_message(tmp_path: Path) -> None:
    """A credential in a summary is replaced before it is stored, and no text of it is in the file."""
    url, key = f"sqlite:///{tmp_path / 'limpet.db'}", "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    store = limpet.open_store(url, keys=limpet.MasterKeys(lambda: bytes(32)))
    async with limpet.open(url, agents=[chat], redact=True).replace(store=store) as app:
        await app.run(chat, 3, id="r")
        await app.compact("r.chat", f"harbour, and {key}", keep=0)
        [found] = await app.messages("r.chat")
        assert "harbour" in found.text
        assert key not in found.text
        await app.export("r", tmp_path / "r.zip")
    assert b"harbour" not in b"".join(each.read_bytes() for each in tmp_path.glob("limpet.db*"))
    async with testing.app(chat) as other:
        await other.load(tmp_path / "r.zip")
        assert [each.is_summary for each in await other.messages("r.chat")] == [True]
