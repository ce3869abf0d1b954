"""Answers, model replies and arguments are stored as given, or refused."""

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
    """Keys that are not strings, and sets. The request stays open."""
    async with testing.app(asker) as app:
        handle = await app.start(asker)
        await app.settle()
        [request] = await app.inbox()
        with pytest.raises(limpet.InvalidAnswer):
            await app.answer(request, answer, by="ann")
        await app.answer(request, {"1": [2]}, by="ann")
        assert await handle.result() == {"1": [2]}


class HalfCharacterModel:
    """A custom model whose replies contain unpaired surrogates, as some servers send them."""

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


async def test_an_unpaired_surrogate_in_a_reply_is_replaced() -> None:
    """Refusing the reply would call the model, and pay for it, over and over."""
    model = HalfCharacterModel()
    bot = limpet.llm_agent("answers_bot", model=model, instructions="Help.", tools=[look])
    async with testing.app(bot) as app:
        assert await app.run(bot, "go", id="r1") == "half 😀 a \ufffd"
        assert model.asked == 2
        await app.verify("r1")


@pytest.mark.parametrize("note", [None, 5, "\ud800"])
async def test_invalid_progress_raises_inside_the_tool(note: Any) -> None:
    """The tool can catch the error, and the log stays readable."""

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


async def test_an_invalid_argument_of_a_run_method_fails_the_run() -> None:
    """The error names the argument, and the run does not wait for an operator."""

    @limpet.agent(name="answers_wrong")
    async def agent(run: limpet.Run) -> None:
        wrong: Any = None
        await run.decide("Which?", choose=1, over=[1, 2], because=wrong)

    async with testing.app(agent) as app:
        with pytest.raises(limpet.RunFailed, match="Invalid because"):
            await app.run(agent, id="r1")
        await app.verify("r1")
        assert [event.kind for event in await app.log("r1")] == ["run.created", "run.claimed", "run.failed"]


async def test_a_command_with_an_invalid_argument_is_refused() -> None:
    """Regression: `cancel(reason=None)` returned success, and the run could never be cancelled again."""
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


async def test_a_request_with_options_cannot_be_rejected() -> None:

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
