"""What is answered and what a model says: kept as it was meant, or refused."""

from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.llm.model import Reply, ToolCall


@limpet.agent(name="answers_asker")
async def asker(run: limpet.Run) -> Any:
    return await run.ask("What?", answer=Any)


@pytest.mark.parametrize("answer", [{1: 2}, {1, 2}, frozenset(), [{"a": {2: 3}}], {"a": [{1}]}, {None: 1}])
async def test_an_answer_that_json_would_change_is_refused(answer: Any) -> None:
    """Keys that are not text, and sets: the request stays open for a right one."""
    async with testing.app(asker) as app:
        handle = await app.start(asker)
        await app.settle()
        [request] = await app.inbox()
        with pytest.raises(limpet.InvalidAnswer):
            await app.answer(request, answer, by="ann")
        await app.answer(request, {"1": [2]}, by="ann")
        assert await handle.result() == {"1": [2]}


class Halves:
    """A model of the user's own, whose JSON holds half of a character, as servers send them."""

    name = "own:halves"

    def __init__(self) -> None:
        self.asked = 0

    async def reply(self, _: Any, /, *, on_text: Any = None) -> Reply:
        self.asked += 1
        if on_text is not None:
            on_text("half \ud83d")
            on_text("\ude00 a \ud800")
        if self.asked == 1:
            return Reply(
                text="a \ud800", calls=(ToolCall(id="c\ud800", name="answers_look", args='{"what": "\ud800"}'),)
            )
        return Reply(text="half \ud83d\ude00 a \ud800")


@limpet.tool(effect="none", name="answers_look")
async def look(what: str) -> str:
    return what


async def test_half_of_a_character_in_a_models_reply_is_paid_for_once() -> None:
    """It is replaced when the reply is taken: refusing it would ask, and pay, again and again."""
    model = Halves()
    bot = limpet.llm_agent("answers_bot", model=model, instructions="Help.", tools=[look])
    async with testing.app(bot) as app:
        assert await app.run(bot, "go", id="r1") == "half 😀 a \ufffd"
        assert model.asked == 2
        await app.verify("r1")


@pytest.mark.parametrize("note", [None, 5, "\ud800"])
async def test_what_a_tool_says_of_its_progress_is_checked_in_the_tool(note: Any) -> None:
    """The run goes on, and can be read."""

    @limpet.tool(effect="none")
    async def slow() -> str:
        with pytest.raises(limpet.InvalidArgument, match="note"):
            limpet.current().progress(note)
        with pytest.raises(limpet.InvalidArgument, match="cost"):
            limpet.current().spent(cost=float("nan"))
        return "done"

    @limpet.agent(name="answers_slow")
    async def agent(run: limpet.Run) -> str:
        return await run.step(slow)

    async with testing.app(agent) as app:
        assert await app.run(agent, id="r1") == "done"
        await app.verify("r1")


async def test_a_verb_with_a_wrong_argument_fails_the_run_readably() -> None:
    """As any other error of the code does: it names the argument, and the run does not wait for an operator."""

    @limpet.agent(name="answers_wrong")
    async def agent(run: limpet.Run) -> None:
        wrong: Any = None
        await run.decide("Which?", choose=1, over=[1, 2], because=wrong)

    async with testing.app(agent) as app:
        with pytest.raises(limpet.RunFailed, match="Invalid because"):
            await app.run(agent, id="r1")
        await app.verify("r1")
        assert [event.kind for event in await app.log("r1")] == ["run.created", "run.claimed", "run.failed"]


async def test_a_command_with_a_wrong_argument_is_not_taken_and_the_next_one_is() -> None:
    """`cancel(reason=None)` said success, and the run could never be cancelled again."""
    async with testing.app(asker) as app:
        handle = await app.start(asker, id="r1")
        await app.settle()
        wrong: Any = None
        with pytest.raises(limpet.InvalidArgument, match="reason"):
            await app.cancel("r1", reason=wrong)
        with pytest.raises(limpet.InvalidArgument, match="request"):
            await app.answer(5, True, by="ann")  # type: ignore[arg-type]
        await app.cancel("r1", reason="enough")
        with pytest.raises(limpet.RunCancelled, match="enough"):
            await handle.result()


async def test_a_question_that_is_not_yes_or_no_is_not_rejected() -> None:
    """It is answered."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        return await run.ask("which?", options=["a", "b"])

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        with pytest.raises(limpet.InvalidAnswer):
            await app.reject(request, by="ann", because="no")
        await app.answer(request, "b", by="ann")
        assert await handle.result() == "b"
