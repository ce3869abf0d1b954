"""Errors name the argument, the expected type and the given one, wherever a value has a declared type."""

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

import limpet
from limpet import testing


@dataclass
class Order:
    cents: int
    tags: list[str]


class Customer(BaseModel):
    name: str


made: list[Any] = []


@limpet.tool(effect="once", name="invalid_pay")
def pay(cents: int, order: Order | None = None, *more: int, customer: Customer | None = None) -> str:
    """Pay."""
    made.append(cents)
    return "paid"


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "text": (("900",), {}, "Invalid cents: expected int, got str."),
    "bool": ((True,), {}, "Invalid cents: expected int, got bool."),
    "float": ((1.0,), {}, "Invalid cents: expected int, got float."),
    "member": ((1, Order(cents="9", tags=[])), {}, "Invalid order.cents: expected int, got str."),  # type: ignore[arg-type]
    "item": ((1, Order(cents=9, tags=["a", 2])), {}, "Invalid order.tags[1]: expected str, got int."),  # type: ignore[list-item]
    "more": ((1, None, 2, "3"), {}, "Invalid more: expected int, got str."),
    "model": ((1,), {"customer": {"name": "ann"}}, "Invalid customer: expected Customer, got dict."),
}


@pytest.mark.parametrize("what", CALLS)
async def test_an_invalid_argument_of_a_tool_is_refused_before_the_step_starts(what: str) -> None:
    """The tool is not called, no step is recorded, and the corrected code continues the failed run."""
    args, named, text = CALLS[what]

    def agent(call: Any) -> Any:
        @limpet.agent(name="invalid_agent")
        async def pays(run: limpet.Run) -> str:
            found: str = await call(run)
            return found

        return pays

    made.clear()
    async with testing.app(agent(lambda run: run.step(pay, *args, **named))) as app:
        handle = await app.start("invalid_agent", id="r")
        with pytest.raises(limpet.RunFailed) as failed:
            await handle.result()
        assert text in failed.value.summary
        assert "invalid_pay was not called. It takes " in failed.value.hint
        assert (made, await app.steps("r"), await app.inbox()) == ([], [], [])
        app.deploy(agent(lambda run: run.step(pay, 900)))
        await app.crash()
        await app.resume("r")
        assert await handle.result() == "paid"
        assert made == [900]


async def test_a_dict_is_not_a_model_of_pydantics() -> None:
    """Although it is JSON that would load as one."""

    @limpet.tool(effect="none", name="invalid_greet")
    async def greet(customer: Customer) -> str:
        return customer.name

    @limpet.agent(name="invalid_greets")
    async def greets(run: limpet.Run) -> str:
        given: Any = {"name": "ann"}
        with pytest.raises(limpet.InvalidArgument, match="customer: expected Customer, got dict"):
            await run.step(greet, given)
        return await run.step(greet, Customer(**given))

    async with testing.app(greets) as app:
        assert await app.run(greets) == "ann"


async def test_the_code_can_catch_an_invalid_argument() -> None:
    """It says which argument. Later steps get the same numbers after a crash."""

    @limpet.agent(name="invalid_catches")
    async def catches(run: limpet.Run) -> str:
        wrong: Any = "x"
        try:
            await run.step(pay, wrong)
        except limpet.InvalidArgument as error:
            await run.patch(facts={"why": f"{error.path}: {error.reason}"})
        return await run.step(pay, 1)

    async with testing.app(catches) as app:
        app.crash_at("after", "step.started")
        handle = await app.start(catches, id="r")
        await app.settle()
        assert app.crashes == 1
        await app.answer((await app.inbox())[0], "not_applied", by="ann")
        assert await handle.result() == "paid"
        assert dict((await app.state("r")).facts) == {"why": "cents: expected int, got str"}
        assert [each.number for each in await app.steps("r")] == [1]
        assert (await app.replay("r")).value == "paid"


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("no", "result: expected int, got str; invalid_result is annotated to return int"),
        (None, "result: expected int, got None; invalid_result is annotated to return int"),
        (object(), "result: builtins.object is not a JSON type; invalid_result is annotated to return int"),
    ],
)
async def test_a_bad_return_value_names_the_tool_the_step_and_the_annotation(result: Any, reason: str) -> None:

    @limpet.tool(effect="none", name="invalid_result")
    def returns() -> int:
        """Return something else."""
        found: int = result
        return found

    @limpet.agent(name="invalid_returns")
    async def agent(run: limpet.Run) -> int:
        return await run.step(returns)

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r")
        with pytest.raises(limpet.RunFailed) as failed:
            await handle.result()
        assert f"Step 1 (invalid_result) was applied, but its output cannot be stored or read: {reason}" in str(
            failed.value
        )
        [error] = await app.errors(run="r")
        assert reason in error.message


async def test_an_input_a_result_and_a_called_agents_input_name_their_place() -> None:

    @limpet.agent(name="invalid_inner")
    async def inner(run: limpet.Run, order: Order) -> list[int]:
        wrong: Any = [1, "2"]
        found: list[int] = wrong
        return found

    @limpet.agent(name="invalid_outer")
    async def outer(run: limpet.Run, order: dict[str, Any]) -> Any:
        try:
            return await run.call("invalid_inner", order)
        except (limpet.ContractError, limpet.AgentFailed) as error:
            return str(error.summary)

    async with testing.app(inner, outer) as app:
        for wrong, text in ((7, "order: expected "), ({"cents": "9", "tags": []}, "cents: expected int, got str")):
            with pytest.raises(limpet.ContractError, match=text):
                await app.start("invalid_inner", wrong)
        assert "tags[0]: expected str, got int" in await app.run(outer, {"cents": 1, "tags": [1]})
        assert "result[1]: expected int, got str" in await app.run(outer, {"cents": 1, "tags": []})


async def test_a_signal_of_another_type_names_the_signal_and_the_place() -> None:

    @limpet.agent(name="invalid_hears")
    async def hears(run: limpet.Run) -> int:
        return (await run.receive("order", Order)).cents

    async with testing.app(hears) as app:
        handle = await app.start(hears, id="r")
        await app.signal("r", "order", {"cents": "9", "tags": []})
        with pytest.raises(limpet.RunFailed) as failed:
            await handle.result()
        assert "Invalid value at signal order.cents: expected int, got str." in failed.value.summary
        assert "`run.receive('order', …)` expects Order" in failed.value.hint


@pytest.mark.parametrize(
    ("kind", "wrong", "right"),
    [
        (int, ("3", 3.0, True, None), 3),
        (bool, (1, 0, "yes", "true", None), True),
        (str, (3, None, ["a"]), "3"),
        (float, ("3", True), 3),
        (list[int], ([1, "2"], "1"), [1, 2]),
    ],
)
async def test_an_answer_of_another_type_is_refused_and_the_request_stays_open(
    kind: Any, wrong: tuple[Any, ...], right: Any
) -> None:
    """No answer is converted."""

    @limpet.agent(name="invalid_asks")
    async def asks(run: limpet.Run) -> Any:
        return await run.ask("Which?", answer=kind)

    async with testing.app(asks) as app:
        handle = await app.start(asks, id="r")
        await app.settle()
        [request] = await app.inbox()
        for each in wrong:
            with pytest.raises(limpet.InvalidAnswer, match=r"answer(\[\d\])?: expected .*, got "):
                await app.answer(request, each, by="ann")
        await app.answer(request, right, by="ann")
        found = await handle.result()
        assert (type(found), found) == (float if kind is float else type(right), right)


async def test_an_option_of_another_type_is_refused() -> None:
    """1 is not "1"."""

    @limpet.agent(name="invalid_chooses")
    async def chooses(run: limpet.Run) -> str:
        return await run.ask("Which?", options=["1", "2"])

    async with testing.app(chooses) as app:
        await app.start(chooses, id="r")
        await app.settle()
        with pytest.raises(limpet.InvalidAnswer, match="pass one of 1, 2"):
            await app.answer((await app.inbox())[0], 1, by="ann")


async def test_a_number_as_an_id_is_refused_with_the_string_to_pass() -> None:

    @limpet.agent(name="invalid_id")
    async def starts(run: limpet.Run) -> None:
        wrong: Any = 43
        await run.start(starts, None, id=wrong)

    async with testing.app(starts) as app:
        wrong: Any = 42
        with pytest.raises(
            limpet.InvalidArgument, match="Invalid id: must be str or None, not int; pass the string '42'"
        ):
            await app.start(starts, id=wrong)
        with pytest.raises(limpet.InvalidArgument, match="Invalid run: must be str, not int; pass the string '42'"):
            await app.info(wrong)
        handle = await app.start(starts, id="r")
        with pytest.raises(limpet.RunFailed, match="pass the string '43'"):
            await handle.result()


def test_an_option_of_another_type_is_refused_with_its_values() -> None:
    wrong: Any = len
    with pytest.raises(limpet.DefinitionError, match="must be 'session' or 'user' or None, not builtin"):

        @limpet.agent(name="invalid_exclusive", exclusive=wrong)
        async def alone(run: limpet.Run) -> None: ...


async def test_a_model_is_told_which_argument_is_wrong() -> None:
    model = testing.ScriptedModel(testing.calls("invalid_pay", cents="9"), "done")
    agent = limpet.llm_agent("invalid_llm", model=model, instructions="Pay.", tools=[pay])
    async with testing.app(agent) as app:
        await app.run(agent, "go", id="r")
        [said] = [each.text for each in await app.messages("r.chat") if each.role == "tool"]
        assert said == "The arguments do not fit: cents: expected int, got str"
