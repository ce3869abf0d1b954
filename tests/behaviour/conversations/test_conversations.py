"""Conversations: streams of messages that runs and people write to."""

import asyncio
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.events import bodies as b
from limpet.events import inline, verify
from limpet.journal import ConversationWriter, latest
from limpet.testing import ScriptedModel
from limpet.testing.app import TestApp


async def roles_and_texts(app: TestApp, conversation: str, **how: Any) -> list[tuple[str, str]]:
    """Return role and text of each message."""
    return [(each.role, each.text) for each in await app.messages(conversation, **how)]


async def test_a_run_writes_each_message_once() -> None:
    """After a crash and on replay, in order; what the run reads stays the same."""
    seen: list[list[str]] = []

    @limpet.agent(name="talks_sayer")
    async def sayer(run: limpet.Run, first: str) -> str:
        await run.say("hello")
        seen.append([each.text for each in await run.messages()])
        answer = await run.receive("user", str)
        await run.say(answer, role="user")
        await run.say("bye")
        return " ".join([each.text for each in await run.messages(last=2)])

    async with testing.app(sayer) as app:
        handle = await app.start(sayer, "hi", id="r", conversation="c", session="s")
        await app.settle()
        await app.say("c", "how are you?")
        app.crash_at("after", "message.said")
        assert await handle.result() == "how are you? bye"
        assert await roles_and_texts(app, "c") == [
            ("user", "hi"),
            ("assistant", "hello"),
            ("user", "how are you?"),
            ("assistant", "bye"),
        ]
        assert all(each == ["hi", "hello"] for each in seen)
        assert app.crashes == 1
        assert (await app.conversations(session="s"))[0].id == "c"
        [session] = await app.sessions()
        assert (session.id, session.runs, session.conversations) == ("s", 1, 1)
        found = await app.verify()
        assert (found.runs, found.conversations) == (1, 1)


async def test_a_run_without_a_conversation_gets_its_own() -> None:
    """It is created with the first message."""

    @limpet.agent(name="talks_alone")
    async def alone(run: limpet.Run) -> int:
        assert await run.messages() == []
        await run.say("one", role="system")
        return len(await run.messages())

    async with testing.app(alone) as app:
        assert await app.run(alone, id="r") == 1
        assert await roles_and_texts(app, "r.chat") == [("system", "one")]
        with pytest.raises(limpet.NotFound):
            await app.messages("nowhere")


async def test_an_unread_message_stays_in_the_conversation() -> None:
    """A message sent without a run is kept for the next one; so is one that a run had not received when it ended."""

    @limpet.agent(name="talks_deaf")
    async def deaf(run: limpet.Run, first: str) -> int:
        await run.ask("go on?")
        return len(await run.messages())

    async with testing.app(deaf) as app:
        await app.say("c", "is anybody there?")
        handle = await app.start(deaf, "hello", conversation="c")
        await app.settle()
        await app.say("c", "are you deaf?")
        assert len(await roles_and_texts(app, "c")) == 2
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == 2
        assert [text for _, text in await roles_and_texts(app, "c")] == ["is anybody there?", "hello", "are you deaf?"]


async def test_starting_a_run_twice_adds_its_message_once() -> None:
    """The same id and input are the same run and the same message."""

    @limpet.agent(name="talks_twice")
    async def twice(run: limpet.Run, first: str) -> int:
        return len(await run.messages())

    async with testing.app(twice) as app:
        for _ in range(2):
            assert await app.run(twice, "hi", id="r") == 0
        for _ in range(3):
            handle = await app.start(twice, "hi", id="s", conversation="c")
        assert await handle.result() == 1
        with pytest.raises(limpet.IdConflict):
            await app.start(twice, "else", id="s", conversation="c")
        assert await roles_and_texts(app, "c") == [("user", "hi")]


async def test_concurrent_writers_do_not_lose_or_duplicate_a_message() -> None:

    @limpet.agent(name="talks_many")
    async def many(run: limpet.Run, name: str) -> None:
        for n in range(5):
            await run.say(f"{name}{n}")

    async with testing.app(many) as app:
        for name in "abcd":
            await app.start(many, name, id=name, conversation="all")
        await asyncio.gather(app.settle(), *(app.store.get(name) for name in "abcd"))
        texts = [text for _, text in await roles_and_texts(app, "all")]
        assert sorted(texts) == sorted([*"abcd", *(f"{name}{n}" for name in "abcd" for n in range(5))])
        for name in "abcd":
            mine = [text for text in texts if text.startswith(name) and len(text) == 2]
            assert mine == sorted(mine)


async def test_a_fork_writes_to_its_own_conversation() -> None:
    """Messages before the fork point are shared. The original conversation does not change."""

    @limpet.tool(effect="none", name="talks_look")
    async def look(n: int) -> int:
        return n

    @limpet.agent(name="talks_forked")
    async def forked(run: limpet.Run, first: str) -> list[str]:
        await run.say("one")
        await run.step(look, 1)
        await run.say(f"two {run.id}")
        return [each.text for each in await run.messages()]

    async with testing.app(forked) as app:
        for run, talk in (("r", "c"), ("s", "s.chat")):
            await app.start(forked, "hi", id=run, conversation="c" if run == "r" else None)
            await app.settle()
            await app.advance("1s")
            before = await roles_and_texts(app, talk)
            fork = await app.fork(run, at=1)
            texts = await fork.result()
            assert texts[-1] == f"two {fork.id}"
            assert texts[:-1] == [text for _, text in before[:-1]]
            assert await roles_and_texts(app, talk) == before
            log = [event async for event in app.store.log(f"{fork.id}.chat")]
            assert verify(log).seq == len(log)


async def test_a_summary_replaces_the_messages_that_it_covers() -> None:
    """Messages stay stored and pinned ones stay visible. A summary can be removed, made again, and itself be
    summarised.
    """
    async with testing.app() as app:
        store = app.store
        talk = ConversationWriter(store, "c", lambda: 1, "test", b.ConversationCreated())
        for n in range(2, 32):
            added = b.MessageAdded(message=f"m{n}", role="user", content=inline(f"{n}"), pinned=n == 5)
            assert await talk.append(added) == n

        async def shown(last: int = 100, **how: Any) -> list[str]:
            return [each.text for each in await app.messages("c", last=last, **how)]

        everything = [str(n) for n in range(2, 32)]
        assert await shown() == everything
        first = await talk.append(
            b.ConversationCompacted(first=2, last=11, summary=inline("2 to 11"), pinned=(5,)),
        )
        assert await shown() == ["5", "2 to 11", *everything[10:]]
        second = await talk.append(
            b.ConversationCompacted(first=12, last=21, summary=inline("12 to 21"), previous=first),
        )
        assert await shown() == ["5", "2 to 11", "12 to 21", *everything[20:]]
        assert await shown(whole=True) == everything
        assert await shown(3) == everything[-3:]
        await talk.append(b.ConversationCompacted(first=12, last=21, summary=None))
        assert await shown() == ["5", "2 to 11", *everything[10:]]
        await talk.append(b.ConversationCompacted(first=12, last=21, summary=inline("again"), previous=first))
        assert await shown() == ["5", "2 to 11", "again", *everything[20:]]
        third = b.ConversationCompacted(first=2, last=21, summary=inline("2 to 21"), level=2, pinned=(5,))
        await talk.append(third)
        assert await shown() == ["5", "2 to 21", *everything[20:]]
        assert len(await latest(store, "c", last=None, upto=second - 1)) == 22


async def test_the_last_messages_of_a_long_conversation_read_few_events() -> None:
    async with testing.app() as app:
        talk = ConversationWriter(app.store, "c", lambda: 1, "test", b.ConversationCreated())
        for start in range(0, 5000, 500):
            some = [b.MessageAdded(message=f"m{start + n}", role="user", content=inline("x")) for n in range(500)]
            await talk.append(*some)
        read, counted = app.store.read, list[int]()

        async def counting(*args: Any, **how: Any) -> Any:
            found = await read(*args, **how)
            counted.append(len(found))
            return found

        app.store.read = counting  # type: ignore[method-assign]
        assert len(await app.messages("c", last=40)) == 40
        assert sum(counted) <= 100


async def test_a_conversation_id_is_refused_where_a_run_id_is_expected() -> None:
    """And vice versa. The error says what the id is."""

    @limpet.agent(name="talk_none")
    async def none(run: limpet.Run) -> None:
        pass

    async with testing.app(none) as app:
        await app.run(none, id="r")
        await app.say("c", "hello")
        with pytest.raises(limpet.NotFound, match="No conversation 'nowhere'"):
            await app.messages("nowhere")
        with pytest.raises(limpet.InvalidArgument, match=r"'r' is a run; pass its conversation, 'r\.chat'"):
            await app.messages("r")
        looks: list[Any] = [app.state, app.context, app.diff, app.timeline, app.info, app.grants, app.get, app.replay]
        acts = [
            app.result("c", None),
            app.resume("c"),
            app.pause("c"),
            app.cancel("c", reason="x"),
            app.signal("c", "x", 1),
        ]
        for each in (*(look("c") for look in looks), *acts, app.fork("c", at=1), app.compare("r", "c")):
            with pytest.raises(limpet.InvalidArgument, match="'c' is a conversation"):
                await each


async def test_a_fork_at_the_first_step_contains_the_user_message() -> None:
    """But not the reply to it, although both have the same time."""
    agent = limpet.llm_agent("regress_talk", model=testing.ScriptedModel(lambda _: "hi"), instructions="Talk.")
    async with testing.app(agent) as app:
        await app.run(agent, "hello", id="r", conversation="c")
        await app.fork("r", at=1, id="f", effects="stub", model="live")
        await app.settle()
        assert [each.text for each in await app.messages("f.chat")][:1] == ["hello"]
        [first] = [each for each in await app.log("f") if each.kind == "step.started"][:1]
        assert first.body["args"]["json"]["reference"]["ranges"] == [[2, 2]]


@pytest.mark.parametrize(("id", "conversation"), [("x", "x"), ("x.chat", None), ("y", "there")])
async def test_a_run_and_a_conversation_cannot_share_an_id(id: str, conversation: str | None) -> None:
    agent = limpet.llm_agent("again_names", model=ScriptedModel("done", "done"), instructions="Say.")
    async with testing.app(agent) as app:
        await app.run(agent, "go", id="there")
        with pytest.raises(limpet.InvalidArgument, match="conversation"):
            await app.start(agent, "go", id=id, conversation=conversation)
        with pytest.raises(limpet.InvalidArgument, match=r"pass its conversation, 'there\.chat'"):
            await app.say("there", "hello")
        assert [each.id for each in await app.runs()] == ["there"]
