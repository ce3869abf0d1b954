"""Conversations: streams of messages that runs and people say things in."""

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


async def said(app: TestApp, conversation: str, **how: Any) -> list[tuple[str, str]]:
    """Who said what."""
    return [(each.role, each.text) for each in await app.messages(conversation, **how)]


async def test_what_a_run_says_is_said_once() -> None:
    """Killed and resumed, live and replayed: each message once, in order, and what it reads stays the same."""
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
        assert await said(app, "c") == [
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


async def test_a_run_in_no_conversation_has_one_of_its_own() -> None:
    """It is made with the first message."""

    @limpet.agent(name="talks_alone")
    async def alone(run: limpet.Run) -> int:
        assert await run.messages() == []
        await run.say("one", role="system")
        return len(await run.messages())

    async with testing.app(alone) as app:
        assert await app.run(alone, id="r") == 1
        assert await said(app, "r.chat") == [("system", "one")]
        with pytest.raises(limpet.NotFound):
            await app.messages("nowhere")


async def test_what_nobody_takes_stays_in_the_conversation() -> None:
    """Without a run it is kept for the next one; what a run did not take when it ended, too."""

    @limpet.agent(name="talks_deaf")
    async def deaf(run: limpet.Run, first: str) -> int:
        await run.ask("go on?")
        return len(await run.messages())

    async with testing.app(deaf) as app:
        await app.say("c", "is anybody there?")
        handle = await app.start(deaf, "hello", conversation="c")
        await app.settle()
        await app.say("c", "are you deaf?")
        assert len(await said(app, "c")) == 2
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == 2
        assert [text for _, text in await said(app, "c")] == ["is anybody there?", "hello", "are you deaf?"]


async def test_started_twice_says_it_once() -> None:
    """The same id and input is the same run, and the same message."""

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
        assert await said(app, "c") == [("user", "hi")]


async def test_many_writers_do_not_lose_or_double_a_message() -> None:
    """Runs and people in one conversation at once."""

    @limpet.agent(name="talks_many")
    async def many(run: limpet.Run, name: str) -> None:
        for n in range(5):
            await run.say(f"{name}{n}")

    async with testing.app(many) as app:
        for name in "abcd":
            await app.start(many, name, id=name, conversation="all")
        await asyncio.gather(app.settle(), *(app.store.get(name) for name in "abcd"))
        texts = [text for _, text in await said(app, "all")]
        assert sorted(texts) == sorted([*"abcd", *(f"{name}{n}" for name in "abcd" for n in range(5))])
        for name in "abcd":
            mine = [text for text in texts if text.startswith(name) and len(text) == 2]
            assert mine == sorted(mine)


async def test_a_fork_says_it_in_a_conversation_of_its_own() -> None:
    """What was said until the cut is shared; the other conversation does not hear what the fork says."""

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
            before = await said(app, talk)
            fork = await app.fork(run, at=1)
            texts = await fork.result()
            assert texts[-1] == f"two {fork.id}"
            assert texts[:-1] == [text for _, text in before[:-1]]
            assert await said(app, talk) == before
            log = [event async for event in app.store.log(f"{fork.id}.chat")]
            assert verify(log).seq == len(log)


async def test_summaries_stand_for_what_they_were_made_of() -> None:
    """Messages stay; a summary can be taken back and made again; pinned ones are shown; levels go over levels."""
    async with testing.app() as app:
        store = app.store
        talk = ConversationWriter(store, "c", lambda: 1, "test", b.ConversationCreated())
        for n in range(2, 32):
            added = b.MessageAdded(message=f"m{n}", role="user", content=inline(f"{n}"), pinned=n == 5)
            assert await talk.append(added) == n

        async def shown(last: int | None = None, **how: Any) -> list[str]:
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


async def test_the_last_page_of_a_long_conversation_reads_little() -> None:
    """However long it is."""
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


async def test_a_conversation_and_a_run_are_not_taken_for_each_other() -> None:
    """What is not there is called what was asked for; what is something else is said to be that."""

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


async def test_a_fork_of_a_first_step_knows_what_was_said_before_it() -> None:
    """And not the reply that came of it, though no time has passed between the two."""
    agent = limpet.llm_agent("regress_talk", model=testing.ScriptedModel(lambda _: "hi"), instructions="Talk.")
    async with testing.app(agent) as app:
        await app.run(agent, "hello", id="r", conversation="c")
        await app.fork("r", at=1, id="f", effects="stub", model="live")
        await app.settle()
        assert [each.text for each in await app.messages("f.chat")][:1] == ["hello"]
        [first] = [each for each in await app.log("f") if each.kind == "step.started"][:1]
        assert first.body["args"]["json"]["reference"]["ranges"] == [[2, 2]]


@pytest.mark.parametrize(("id", "conversation"), [("x", "x"), ("x.chat", None), ("y", "there")])
async def test_runs_and_conversations_have_names_of_their_own(id: str, conversation: str | None) -> None:
    """One that would be both is refused before anything has happened."""
    agent = limpet.llm_agent("again_names", model=ScriptedModel("done", "done"), instructions="Say.")
    async with testing.app(agent) as app:
        await app.run(agent, "go", id="there")
        with pytest.raises(limpet.InvalidArgument, match="conversation"):
            await app.start(agent, "go", id=id, conversation=conversation)
        with pytest.raises(limpet.InvalidArgument, match=r"pass its conversation, 'there\.chat'"):
            await app.say("there", "hello")
        assert [each.id for each in await app.runs()] == ["there"]
