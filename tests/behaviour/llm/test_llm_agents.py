"""LLM agents: the loop survives crashes, and every model call is a step."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import limpet
from limpet import testing
from limpet.events import bodies as b
from limpet.events import inline
from limpet.journal import ConversationWriter
from limpet.llm.model import Prompt, Reply
from limpet.testing import ScriptedModel, calls


class Report(BaseModel):
    fixed: bool
    what: str


def devops(model: Any, done: list[Any], **more: Any) -> Any:
    """Return the example agent that frees disk space."""

    @limpet.tool(effect="none", name="llm_check_disk")
    def check_disk() -> str:
        """Check current disk usage."""
        done.append("check")
        return "95 %"

    @limpet.tool(effect="idempotent", risk="write_local", name="llm_clean_logs")
    def clean_logs(older_than_days: int) -> str:
        """Delete old logs to free space."""
        done.append(older_than_days)
        return "freed 20 GB"

    return limpet.llm_agent(
        "llm_devops",
        model=model,
        instructions="You are an autonomous DevOps agent.",
        output=more.pop("output", Report),
        tools=[check_disk, clean_logs],
        **more,
    )


def script() -> ScriptedModel:
    """Return a model with the replies of the example."""
    return ScriptedModel(
        ("I look first.", calls("llm_check_disk")),
        ("Too full.", calls("llm_clean_logs", older_than_days=30)),
        Report(fixed=True, what="cleaned the logs"),
    )


async def test_the_devops_example_from_start_to_end(tmp_path: Path) -> None:
    """Approval by risk with edited arguments, a decision per turn, and typed output."""
    done: list[Any] = []
    model = script()
    agent = devops(model, done, approvals=limpet.Approvals("write_local", to="oncall"))
    async with testing.app(agent) as app:
        handle = await app.start(agent, "I'm out of disk space. Fix it.", id="r", user="ann")
        await app.settle()
        [request] = await app.inbox(to="oncall")
        assert (request.tool, request.args) == ("llm_clean_logs", {"older_than_days": 30})
        await app.approve(request, by="oncall", args={"older_than_days": 7})
        assert await handle.result() == Report(fixed=True, what="cleaned the logs")
        assert done == ["check", 7]
        state = await app.state("r")
        assert [each.chosen for each in state.decisions] == ['"llm_check_disk"', '"llm_clean_logs"', '"answer"']
        assert state.decisions[1].because == "Too full."
        assert state.whole.spent.tokens > 0
        said = [(each.role, each.text) for each in await app.messages("r.chat")]
        assert [role for role, _ in said] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
        assert said[4] == ("tool", 'A person changed the arguments to {"older_than_days":7}. freed 20 GB')
        offered = {each.name: each.description for each in model.prompts[0].tools}
        assert offered["llm_check_disk"] == "Check current disk usage."
        assert "note_fact" in offered
        again = await app.replay("r")
        assert again.value == {"fixed": True, "what": "cleaned the logs"}
        assert len(model.prompts) == 3
        fork = await app.fork("r", at=3, effects="stub", model="live")
        await fork.result()
        for run in ("r", fork.id):
            await app.export(run, tmp_path / f"{run}.zip")
    assert await testing.still_replays(agent, bundles=tmp_path) == []
    async with testing.app(agent) as other:
        for run in (fork.id, "r"):
            handle = await other.load(tmp_path / f"{run}.zip")
            assert (await other.replay(handle.id)).value == {"fixed": True, "what": "cleaned the logs"}
        found = await other.verify()
        assert (found.runs, found.conversations) == (2, 2)


async def test_a_crash_at_any_commit_does_not_change_the_conversation() -> None:
    """The result is the same, and no recorded model call or effect is repeated."""
    kinds = ("step.started", "step.completed", "message.said", "decision.made", "turn.started", "run.claimed")
    for kind in kinds:
        for when in ("before", "after"):
            for nth in (1, 2, 3):
                done: list[Any] = []
                model = script()
                agent = devops(model, done)
                async with testing.app(agent) as app:
                    handle = await app.start(agent, "Fix it.", id="r")
                    app.crash_at(when, kind, nth=nth)
                    assert await handle.result() == Report(fixed=True, what="cleaned the logs")
                    assert done.count(30) <= 1 + app.crashes  # idempotent: repeated with the same key
                    assert len(model.prompts) <= 3 + app.crashes
                    roles = [each.role for each in await app.messages("r.chat")]
                    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


async def test_a_model_is_sent_an_error_for_each_mistake() -> None:
    """Unknown tools, invalid arguments, failed tools, rejections and invalid answers."""

    @limpet.tool(effect="once", risk="money", name="llm_pay")
    async def pay(cents: int) -> str:
        """Pay."""
        raise limpet.Permanent("the bank is closed")

    model = ScriptedModel(
        calls("llm_fly", to="the moon"),
        (calls("llm_pay", cents="many"), calls("llm_pay", cents=1), calls("llm_pay", cents=2)),
        "I am done",
        '{"fixed": "perhaps"}',
        '```json\n{"fixed": false, "what": "nothing"}\n```',
    )
    agent = limpet.llm_agent(
        "llm_wrong",
        model=model,
        instructions="Pay.",
        output=Report,
        tools=[pay],
        approvals=limpet.Approvals("money"),
    )
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r")
        await app.settle()
        first, second = sorted(await app.inbox(), key=lambda each: each.args["cents"])
        await app.reject(first, by="ann", because="too little")
        await app.approve(second, by="ann")
        assert await handle.result() == Report(fixed=False, what="nothing")
        texts = [each.text for each in await app.messages("r.chat") if each.role == "tool"]
        assert texts[0].startswith("There is no tool 'llm_fly'. There are: note_fact")
        assert "The arguments do not fit" in texts[1]
        assert texts[2] == "ann did not allow it: too little"
        assert texts[3] == "It failed: limpet.Permanent: the bank is closed"
        users = [each.text for each in await app.messages("r.chat") if each.role == "user"]
        assert [text.split(":")[0] for text in users[1:]] == ["Your answer does not fit what is asked for"] * 2


async def test_built_in_tools_change_state_ask_people_and_read_artifacts() -> None:
    """The model plans, notes facts, asks a person, and reads the rest of a large result."""

    @limpet.tool(effect="none", name="llm_big")
    async def big() -> str:
        """A lot."""
        return "0123456789" * 5_000

    def opens(request: Prompt) -> Any:
        text = request.messages[-1].text
        artifact = text.split("artifact ")[1].split(";")[0]
        return calls("open_artifact", artifact_id=artifact, start=49_990)

    model = ScriptedModel(
        (calls("set_plan", items=["look", "tell"]), calls("note_fact", key="colour", value="red")),
        calls("set_plan", done=["look"]),
        calls("set_plan", done=["read"]),
        calls("note_question", question="how many?"),
        calls("ask_person", question="How many?"),
        calls("note_question", question="how many?", answer="seven"),
        calls("llm_big"),
        opens,
        "done",
    )
    agent = limpet.llm_agent("llm_builtin", model=model, instructions="Work.", tools=[big])
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r")
        await app.settle()
        [request] = await app.inbox()
        await app.answer(request, "seven", by="ann")
        assert await handle.result() == "done"
        state = await app.state("r")
        assert (state.plan, dict(state.facts), state.open_questions) == (["look", "tell"], {"colour": "red"}, [])
        texts = [each.text for each in await app.messages("r.chat") if each.role == "tool"]
        assert texts[-1] == "0123456789"
        assert texts[2:4] == ["noted", "There is no item 'read'; the plan has: look; tell"]
        assert (await app.info("r")).position.text == "step 2 of 2"
        assert "Plan 1: look (done)" in model.prompts[-1].messages[0].text
        assert "put away as artifact" in texts[-2]
        assert "Fact colour" in model.prompts[-1].messages[0].text


async def test_an_agent_can_be_a_tool_and_new_messages_reach_the_next_turn() -> None:

    @limpet.agent(name="llm_helper")
    async def helper(run: limpet.Run, n: int) -> int:
        """Doubles a number."""
        await run.ask("may I?")
        return 2 * n

    model = ScriptedModel(calls("llm_helper", input=21), "forty-two")
    agent = limpet.llm_agent("llm_boss", model=model, instructions="Delegate.", tools=[helper])
    async with testing.app(agent, helper) as app:
        handle = await app.start(agent, "go", id="r", conversation="c")
        await app.settle()
        await app.say("c", "hurry up")
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == "forty-two"
        assert [(each.role, each.text) for each in model.prompts[-1].messages[1:]] == [
            ("user", "go"),
            ("assistant", ""),
            ("tool", "42"),
            ("user", "hurry up"),
        ]


async def test_repeated_calls_and_too_many_turns_fail_the_run() -> None:

    @limpet.tool(effect="none", name="llm_spin")
    async def spin(n: int) -> int:
        """Spin."""
        return n

    for model, reason in (
        (ScriptedModel(lambda _: calls("llm_spin", n=1)), "same arguments"),
        (ScriptedModel(lambda request: calls("llm_spin", n=len(request.messages))), "no answer after 8 turns"),
    ):
        agent = limpet.llm_agent("llm_spinner", model=model, instructions="Spin.", tools=[spin], max_turns=8)
        async with testing.app(agent) as app:
            handle = await app.start(agent, "go", id="r")
            with pytest.raises(limpet.RunFailed, match=reason):
                await handle.result()


async def test_a_long_task_fits_the_window_through_summaries() -> None:
    """Facts stay visible, every prompt fits, and the original messages are kept."""
    turns = 60

    @limpet.tool(effect="none", name="llm_step")
    async def step(n: int) -> str:
        """One step of many."""
        return f"result {n}: " + "x" * 600

    def says(request: Prompt) -> Any:
        if request.messages[0].text.startswith("Summarise"):
            return "in short: steps were made"
        made = list(app_made)
        if len(made) >= turns:
            return "done"
        app_made.append(1)
        if len(made) == 3:
            return calls("note_fact", key="secret", value="swordfish")
        return calls("llm_step", n=len(made))

    app_made: list[int] = []
    model = ScriptedModel(says)
    agent = limpet.llm_agent("llm_long", model=model, instructions="Go on.", tools=[step], window=12_000, max_turns=200)
    async with testing.app(agent) as app:
        handle = await app.start(agent, "begin", id="r")
        assert await handle.result() == "done"
        summaries = [each for each in await app.messages("r.chat") if each.is_summary]
        assert len(summaries) == 1
        whole = await app.messages("r.chat", whole=True, last=1000)
        assert len([each for each in whole if each.role == "tool"]) == turns
        for request in model.prompts:
            size = sum(len(each.text) + sum(len(call.args) for call in each.calls) for each in request.messages)
            assert size < 12_000 * 3
        assert "Fact secret" in model.prompts[-1].messages[0].text


async def test_tokens_streams_the_reply_to_followers() -> None:
    model = ScriptedModel("one two three")
    agent = limpet.llm_agent("llm_talker", model=model, instructions="Talk.")
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r")
        await app.settle()
        assert "".join([piece async for piece in handle.tokens()]) == "one two three"


async def test_a_tool_call_without_a_result_is_repaired_and_flagged() -> None:
    """A placeholder result is added once and marked as repaired."""
    model = ScriptedModel(lambda _: "done")
    agent = limpet.llm_agent("llm_repair", model=model, instructions="Go on.")
    async with testing.app(agent) as app:
        talk = ConversationWriter(app.store, "c", lambda: 1, "test", b.ConversationCreated())
        wanted = {"text": "", "calls": [{"id": "a", "name": "x", "args": "{}"}]}
        await talk.append(
            b.MessageAdded(message="1", role="user", content=inline("hello")),
            b.MessageAdded(message="2", role="assistant", content=inline(wanted)),
        )
        handle = await app.start(agent, "go on", id="r", conversation="c")
        assert await handle.result() == "done"
        shown = [(each.role, each.text[:10]) for each in model.prompts[0].messages[1:]]
        assert shown == [("user", "hello"), ("assistant", ""), ("tool", "[no result"), ("user", "go on")]
        assert "the conversation was repaired" in (await app.state("r")).risk_flags
        log = [app.store.decode(each) async for each in app.store.log("c")]
        assert sum(isinstance(each, b.MessageAdded) and each.repaired for each in log) == 1


async def test_a_truncated_answer_is_continued() -> None:
    """A refusal, or an answer that is truncated every time, fails the run."""
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
