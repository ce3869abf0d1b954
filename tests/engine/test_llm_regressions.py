"""What a review of the model's loop and of questions across runs found, each once and for all."""

import asyncio
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.engine.run.conversation import INTERRUPT
from limpet.llm.model import Prompt, Reply
from limpet.llm.transcript import UNDER_WAY
from limpet.testing import ScriptedModel, calls

paid: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    paid.clear()


def payer(**how: Any) -> Any:
    """A tool that pays."""

    @limpet.tool(effect="once", name="again_pay", **how)
    async def pay(order: str) -> str:
        paid.append(order)
        return f"receipt {order}"

    return pay


def pays(request: Prompt) -> Any:
    """Pays what it is told to, once; says hello to everybody else."""
    said = [each.text for each in request.messages[1:]]
    if "receipt o-1" in said:
        return "done"
    return "hello" if UNDER_WAY in said else calls("again_pay", order="o-1")


async def test_what_another_run_calls_is_left_alone() -> None:
    """A second run in the conversation makes up no result for what the first waits to do; nothing is paid twice."""
    agent = limpet.llm_agent(
        "again_desk",
        model=ScriptedModel(pays),
        instructions="Pay.",
        tools=[payer(risk="money")],
        approvals=limpet.Approvals("money"),
    )
    async with testing.app(agent) as app:
        await app.start(agent, "pay", id="one", conversation="c")
        await app.settle()
        assert await app.run(agent, "hi", id="two", conversation="c") == "hello"
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await (await app.get("one")).result() == "done"
        assert paid == ["o-1"]
        said = [(each.role, each.text) for each in await app.messages("c")]
        assert [text for role, text in said if role == "tool"] == ["receipt o-1"]
        for run, step in (("one", 1), ("one", 3), ("two", 1)):
            assert (await app.prompt(run, step=step)).is_exact


async def test_an_answer_that_is_cut_off_goes_on() -> None:
    """And a refusal is none; what is cut off for ever is said."""
    pieces = [
        Reply(text="Step 1: stop the ", finish="length"),
        Reply(text="pump."),
        Reply(text="No.", finish="refused"),
    ]
    agent = limpet.llm_agent("again_cut", model=ScriptedModel(*pieces), instructions="Say.")
    refusing = limpet.llm_agent("again_no", model=ScriptedModel(pieces[2]), instructions="Say.")
    endless = limpet.llm_agent("again_endless", model=ScriptedModel(lambda _: pieces[0]), instructions="Say.")
    async with testing.app(agent, refusing, endless) as app:
        assert await app.run(agent, "how?", id="r") == "Step 1: stop the pump."
        with pytest.raises(limpet.RunFailed, match="refused to answer: No"):
            await app.run(refusing, "how?")
        with pytest.raises(limpet.RunFailed, match="cut off after 4 replies"):
            await app.run(endless, "how?")


async def test_what_is_said_too_late_is_kept_where_it_was_said() -> None:
    """Also where the run was started in no conversation, and once only when a failed one is resumed."""
    broken = True

    async def fails(run: limpet.Run, request: Prompt, ask: Any) -> Reply:
        await app.say("r.chat", "also this")
        if broken:
            raise ValueError("it is down")
        reply: Reply = await ask(request)
        return reply

    agent = limpet.llm_agent("again_late", model=ScriptedModel("done", "done"), instructions="Say.", choose=fails)
    async with testing.app(agent) as app:
        await app.start(agent, "go", id="r")
        await app.settle()
        assert (await app.info("r")).status == "failed"
        broken = False
        await app.resume("r")
        await app.settle()
        said = [each.text for each in await app.messages("r.chat")]
        assert said.count("also this") == 2  # it was said in each life
        assert said[0] == "go"


async def test_a_hand_over_is_interrupted_and_takes_along_what_was_said() -> None:
    """What people say while a turn hands over is heard by whoever goes on."""
    running, may_end = asyncio.Event(), asyncio.Event()

    @limpet.tool(effect="none", name="again_slow")
    async def slow() -> str:
        running.set()
        await may_end.wait()
        return "slow"

    def heard(request: Prompt) -> str:
        return "|".join(each.text for each in request.messages if each.role == "user")

    def first(request: Prompt) -> Any:
        if request.messages[-1].text == "stop":
            return "stopped"
        return (calls("again_slow"), calls("hand_over_to_again_second", input="x"))

    second = limpet.llm_agent("again_second", model=ScriptedModel(heard), instructions="Hear.")
    agent = limpet.llm_agent(
        "again_first", model=ScriptedModel(first), instructions="Go.", tools=[slow], handoffs=[second]
    )
    async with testing.app(agent, second) as app:
        for interrupt, result in ((True, "stopped"), (False, "go|stop|x")):
            running.clear()
            may_end.clear()
            handle = await app.start(agent, "go")
            await running.wait()
            await app.say(f"{handle.id}.chat", "stop", interrupt=interrupt)
            may_end.set()
            assert await handle.result() == result
            replayed = await app.replay(handle.id)
            assert (replayed.how, replayed.value) == ("returned", result)


async def test_an_interrupt_in_the_last_moment_is_nothing_to_a_replay() -> None:
    """It came before the end was written, and was not taken: gone through again, it is not taken either."""
    agent = limpet.llm_agent("again_last", model=ScriptedModel("done"), instructions="Say.")
    async with testing.app(agent) as app:
        app.crash_at("before", "run.completed")
        await app.start(agent, "go", id="r")
        while not app._test_settings.faulty.is_down and not await app.is_settled():
            await asyncio.sleep(0)  # noqa: TID251 - a turn
        await app.settle()
        await app.store.get("r")
        found = await app.replay("r")
        assert (found.how, found.value) == ("returned", "done")
        with pytest.raises(limpet.WrongState):
            await app.signal("r", INTERRUPT, None)


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


async def test_what_is_no_text_is_heard_as_it_is() -> None:
    """A signal by that name may hold anything."""
    agent = limpet.llm_agent(
        "again_signal", model=ScriptedModel(calls("ask_person", question="?"), "x", "y"), instructions="Say."
    )
    async with testing.app(agent) as app:
        await app.start(agent, "go", id="r")
        await app.settle()
        await app.signal("r", "user", {"a": 1})
        await app.answer((await app.inbox())[0], "yes", by="ann")
        await app.settle()
        assert '{"a":1}' in [each.text for each in await app.messages("r.chat")]


async def test_trials_know_the_agents_of_a_model() -> None:
    """Those that it calls, and those that it hands over to."""
    sub = limpet.llm_agent("again_sub", model=ScriptedModel("sub"), instructions="Sub.")
    agent = limpet.llm_agent(
        "again_main", model=ScriptedModel(calls("again_sub", input="x"), "main"), instructions="Main.", tools=[sub]
    )
    assert await testing.always_resume(agent, "go") > 0


async def test_questions_survive_what_is_big_odd_or_gone() -> None:
    """Arguments in blobs, quotes in what is searched for, runs that were pruned meanwhile, agents that never choose."""

    @limpet.tool(effect="none", name="again_note")
    async def note(cents: int, text: str) -> str:
        return 'he said "no"'

    @limpet.agent(name="again_noting")
    async def noting(run: limpet.Run, text: str) -> str:
        return await run.step(note, 500, text)

    async with testing.app(noting) as app:
        await app.run(noting, "z" * 9_000, id="r")
        assert [each.run for each in await app.tool_calls("again_note", where=["cents>100", "text~zzz"])] == ["r"]
        assert {each.kind for each in await app.search('said "no"')} == {"step.completed", "run.completed"}
        queries = app.store.get

        async def gone(run: str) -> Any:
            raise limpet.NotFound(what="run", id=run)

        app.store.get = gone  # type: ignore[method-assign]
        assert [each.agent for each in await app.tool_calls("again_note")] == [""]
        app.store.get = queries  # type: ignore[method-assign]
