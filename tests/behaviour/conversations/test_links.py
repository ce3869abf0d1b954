"""Conversations and runs refer to each other: a run names its conversation, a message its run, step and time."""

from typing import Any

import limpet
from limpet import testing
from limpet.testing import ScriptedModel, calls


@limpet.tool(effect="none", name="links_look")
def look(place: str) -> str:
    """Look."""
    return f"nothing at {place}"


@limpet.agent(name="links_talk")
async def talk(run: limpet.Run, first: str) -> str:
    """Say what it found, and answer one message."""
    await run.say("one moment")
    await run.say(await run.step(look, first))
    await run.say(await run.receive("user", str), role="user")
    return "bye"


def links(messages: Any) -> list[tuple[str, str | None, int | None]]:
    """Return role, run and step of each message."""
    return [(each.role, each.run, each.step) for each in messages]


async def test_a_message_names_its_run_its_step_and_its_time() -> None:
    """The step is the last one before `run.say`. A user's message belongs to no step; after a crash, all stay."""
    async with testing.app(talk) as app:
        handle = await app.start(talk, "door", id="r", conversation="c", user="ann")
        started = (await app.info("r")).created
        await app.settle()
        await app.advance("1h")
        await app.crash()
        await app.say("c", "thanks", by="ann")
        assert await handle.result() == "bye"
        await app.say("c", "still there?")
        found = await app.messages("c")
        assert links(found) == [
            ("user", "r", None),
            ("assistant", "r", None),
            ("assistant", "r", 1),
            ("user", "r", None),
            ("user", None, None),
        ]
        assert [(each.time - started).total_seconds() for each in found] == [0, 0, 0, 3600, 3600]
        assert (await app.steps("r"))[0].number == found[2].step


async def test_messages_of_an_llm_agent_name_their_model_call_and_their_tool_calls() -> None:
    """Also a result of a call without a step of its own, which belongs to the model call."""
    model = ScriptedModel(
        (calls("note_fact", key="k", value="v"), calls("links_look", place="door"), calls("links_look", place="roof")),
        "done",
    )
    agent = limpet.llm_agent("links_llm", model=model, instructions="Look.", tools=[look])
    async with testing.app(agent) as app:
        app.crash_at("after", "step.completed", nth=2)
        await app.run(agent, "go", id="r")
        assert app.crashes == 1
        found = await app.messages("r.chat")
        steps = {each.number: each.text for each in await app.steps("r")}
        assert [(each.role, each.step) for each in found[:3]] == [("user", None), ("assistant", 1), ("tool", 1)]
        assert [(each.text, steps[each.step or 0].startswith("links_look")) for each in found[3:5]] == [
            ("nothing at door", True),
            ("nothing at roof", True),
        ]
        assert found[3].step != found[4].step
        assert (found[5].step, found[5].text) == (4, "done")


async def test_a_run_names_its_conversation_also_before_it_has_said_anything() -> None:
    """Following the link works at any time, in lists, in the report, and from a handoff's conversation."""

    @limpet.agent(name="links_silent")
    async def silent(run: limpet.Run) -> None:
        await run.receive("go", str)
        await run.say("hello")

    async with testing.app(silent, talk) as app:
        handle = await app.start(silent, id="s")
        await app.start(talk, "door", id="r", conversation="c")
        await app.settle()
        assert {each.id: each.conversation for each in await app.runs()} == {"r": "c", "s": "s.chat"}
        assert list(await app.messages("s.chat")) == []
        assert (await app.show("s")).messages == 0
        await app.signal("s", "go", "x")
        await handle.result()
        assert (await app.info("s")).conversation == "s.chat"
        assert [each.text for each in await app.messages("s.chat")] == ["hello"]
        assert [(await app.show(id)).messages for id in ("s", "r")] == [1, 3]


async def test_runs_and_conversations_are_filtered_by_user_and_conversation() -> None:
    """A run that owns its conversation is found, in its place in the list, page by page."""

    @limpet.agent(name="links_short")
    async def short(run: limpet.Run, text: str) -> str:
        await run.say(text)
        return text

    async with testing.app(short, talk) as app:
        await app.run(short, "a", id="r1", conversation="c", user="ann")
        await app.run(short, "b", id="r2", user="ann")
        await app.run(short, "c", id="r3", conversation="r2.chat", user="bob")
        await app.run(short, "d", id="r4", conversation="c", user="bob")
        await app.start(talk, "door", id="r5", conversation="r2.chat", user="ann")
        await app.settle()

        async def ids(**where: Any) -> list[str]:
            return [each.id for each in await app.runs(**where)]

        assert await ids(user="ann") == ["r5", "r2", "r1"]
        assert await ids(conversation="c") == ["r4", "r1"]
        assert await ids(conversation="c", user="bob") == ["r4"]
        assert await ids(conversation="r2.chat") == ["r5", "r3", "r2"]
        assert await ids(conversation="r2.chat", status="completed") == ["r3", "r2"]
        assert await ids(conversation="r2.chat", status="waiting") == ["r5"]
        assert await ids(conversation="r2.chat", agent="links_talk") == ["r5"]
        assert await ids(conversation="r2.chat", user="ann") == ["r5", "r2"]
        assert await ids(conversation="r2.chat", user="eve") == await ids(conversation="x.chat") == []
        page, found = await app.runs(conversation="r2.chat", last=1), []
        while True:
            found += [each.id for each in page]
            if page.next is None:
                break
            page = await app.runs(conversation="r2.chat", last=1, cursor=page.next)
        assert found == ["r5", "r3", "r2"]
        assert [each.id for each in await app.conversations(user="ann")] == ["r2.chat", "c"]


async def test_a_fork_keeps_the_links_of_the_messages_that_it_shares() -> None:
    """Shared messages belong to the original run; those after the fork to the fork."""
    async with testing.app(talk) as app:
        handle = await app.start(talk, "door", id="r", conversation="c")
        await app.settle()
        await app.say("c", "thanks")
        await handle.result()
        fork = await app.fork("r", at=1, effects="live", id="f")
        await app.settle()
        assert (await app.info("f")).conversation == "f.chat"
        assert links(await app.messages("f.chat")) == [
            ("user", "r", None),
            ("assistant", "r", None),
            ("assistant", "f", 1),
        ]
        assert [each.id for each in await app.runs(conversation="f.chat")] == [fork.id]
