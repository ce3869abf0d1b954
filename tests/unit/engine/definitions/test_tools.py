"""Tools: their definitions, their calls, and the encoding of their arguments."""

from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from limpet.engine.definitions.call_context import Call, enter_agent, in_tool
from limpet.engine.definitions.tools import Tool, find_tool, idempotency_key, tool
from limpet.engine.definitions.traits import Traits
from limpet.errors import DefinitionError, InvalidValue, WrongCall
from limpet.events import digest
from limpet.policy.retry import Retry


@dataclass
class Order:
    """A typed argument."""

    id: str
    cents: int


@tool(effect="none")
async def find_order(order: str, *, fresh: bool = False) -> Order:
    """Return an order."""
    return Order(order, 900 if fresh else 800)


@tool(effect="idempotent", risk="external_action", retry=Retry(5), timeout="10s")
def pay_back(order: Order, cents: int = 100, *notes: str, **more: int) -> str:
    """An effect."""
    return f"{order.id}:{cents}:{notes}:{more}"


# Definitions


def test_a_tool_has_the_name_documentation_and_traits_of_its_function() -> None:
    assert (pay_back.name, pay_back.__doc__, pay_back.traits.effect) == ("pay_back", "An effect.", "idempotent")
    assert (pay_back.traits.risk, pay_back.traits.timeout) == ("external_action", 10_000_000)
    assert find_tool("pay_back") is pay_back
    assert find_tool("missing") is None
    assert (find_order.is_async, pay_back.is_async) == (True, False)
    assert repr(pay_back) == "<tool pay_back, effect 'idempotent'>"


def test_a_tool_without_an_effect_is_refused() -> None:
    """The error names the choices."""
    for given in ({}, {"effect": "maybe"}):
        with pytest.raises(DefinitionError) as raised:
            tool(**given)  # type: ignore[arg-type]
        assert all(effect in str(raised.value) for effect in ("none", "idempotent", "once", "transaction"))


def test_the_same_function_can_be_defined_again() -> None:
    """A reload or a notebook defines the same function again; another function under that name is refused."""

    def define() -> Tool[[], None, None]:
        @tool(effect="none", name="defined-twice")
        def work() -> None:
            """Do nothing."""

        return work

    define()
    second = define()
    assert find_tool("defined-twice") is second
    with pytest.raises(DefinitionError, match="already used by"):

        @tool(effect="none", name="defined-twice")
        def other() -> None:
            """Do something else."""


def test_a_transaction_must_be_a_blocking_function() -> None:
    with pytest.raises(DefinitionError, match="plain function"):

        @tool(effect="transaction")
        async def work() -> None:
            """Return, asynchronously."""


def test_options_change_the_traits_but_not_the_identity() -> None:
    """The registered name, the function and its compensation stay."""
    patient = pay_back.options(name="pay_back-again", retry=Retry(9), timeout=timedelta(minutes=1))
    assert (patient.name, patient.step_name, patient.traits.timeout) == ("pay_back", "pay_back-again", 60_000_000)
    assert patient.traits.retry == Retry(9)
    assert (patient.traits.risk, patient.fn, patient.hooks) == (pay_back.traits.risk, pay_back.fn, pay_back.hooks)
    assert (pay_back.step_name, pay_back.traits.retry) == ("pay_back", Retry(5))
    assert find_tool("pay_back") is pay_back


def test_a_tool_for_one_call_has_the_same_arguments_and_other_traits() -> None:
    """Both tools share the properties of the signature; the traits decide whether steps are plain."""
    template: Tool[..., Any, Any] = Tool(find_order.fn, "find_other", Traits(effect="none"))
    assert template.plain_call is not None

    async def other(order: str, *, fresh: bool = False) -> Order:
        return Order(order, 700 if fresh else 600)

    made = template.with_call(other, Traits(effect="none", timeout=1))
    assert (made.fn, made.name, made.traits.timeout) == (other, "find_other", 1)
    assert made._codecs is template._codecs
    assert made.plain_call is None
    assert template.fn is find_order.fn


def test_an_invalid_compensation_is_refused() -> None:
    """Reads and irreversible tools have no compensation, and a tool has at most one."""

    @tool(effect="once", irreversible=True)
    def launch() -> None:
        """Do something irreversible."""

    @tool(effect="once")
    def book() -> str:
        """Do something reversible."""
        return "B-1"

    def unlaunch(result: None) -> None:
        """Compensate an irreversible tool."""

    def unfetch(result: Order | None, order: str, *, fresh: bool = False) -> None:
        """Compensate a read."""

    with pytest.raises(DefinitionError, match="irreversible"):
        launch.compensate(unlaunch)
    with pytest.raises(DefinitionError, match="no effect"):
        find_order.compensate(unfetch)

    @book.compensate
    def unbook(result: str | None) -> None:
        """Compensate a reversible tool."""

    with pytest.raises(DefinitionError, match="already defined"):

        @book.compensate
        def unbook_otherwise(result: str | None) -> None:
            """Compensate a reversible tool a second time."""

    assert book.options(name="x").hooks.compensate is unbook


# Calls


async def test_outside_an_agent_a_tool_is_called_directly() -> None:
    """This applies inside another tool, too."""
    assert await find_order("o1", fresh=True) == Order("o1", 900)
    with in_tool(Call("", 1)):
        assert pay_back(Order("o1", 1)) == "o1:100:():{}"


def test_a_direct_call_in_an_agent_is_refused() -> None:
    """The result would not be recorded. A tool that a step runs may call other tools."""

    def in_agent() -> None:
        enter_agent()
        with pytest.raises(WrongCall, match=r"run\.step\(pay_back"):
            pay_back(Order("o1", 1))
        with in_tool(Call("", 1)):
            assert pay_back(Order("o1", 1)) == "o1:100:():{}"

    copy_context().run(in_agent)


# Arguments


def test_arguments_are_recorded_by_name() -> None:
    """Positional and keyword arguments give the same JSON, and defaults are omitted."""
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((Order("o1", 1), 100), {}),
        ((Order("o1", 1),), {"cents": 100}),
        ((), {"order": Order("o1", 1)}),
    ]
    assert [pay_back.bind(args, kwargs) for args, kwargs in given] == [{"order": {"id": "o1", "cents": 1}}] * 3
    assert pay_back.bind((Order("o1", 1), 5, "a", "b"), {"x": 1}) == {
        "order": {"id": "o1", "cents": 1},
        "cents": 5,
        "notes": ["a", "b"],
        "more": {"x": 1},
    }


def test_recorded_arguments_call_the_function_with_typed_values() -> None:
    """The function gets values of the declared types."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((Order("o1", 1),), {}),
        ((Order("o1", 1), 5, "a", "b"), {"x": 1, "y": 2}),
        ((), {"order": Order("o2", 3), "cents": 7}),
    ]
    for args, kwargs in calls:
        again, named = pay_back.unbind(pay_back.bind(args, kwargs))
        assert pay_back.fn(*again, **named) == pay_back.fn(*args, **kwargs)
    assert find_order.unbind(find_order.bind(("o1",), {"fresh": True})) == ((), {"order": "o1", "fresh": True})


def test_wrong_arguments_are_refused_before_the_call() -> None:
    """Wrong arguments raise TypeError with the tool's name; values that are not JSON raise InvalidValue."""
    with pytest.raises(TypeError, match="pay_back: missing a required argument: 'order'"):
        pay_back.bind((), {})
    with pytest.raises(InvalidValue):
        pay_back.unbind({"order": {"id": 5}})


def test_a_result_is_loaded_as_its_declared_type() -> None:
    """This applies to async functions, too."""
    stored = find_order.plain_result(Order("o1", 5))
    assert stored == {"id": "o1", "cents": 5}
    assert find_order.load_result(stored) == Order("o1", 5)


def test_idempotency_keys_never_change() -> None:
    """The key of an action in progress must be the same in every version."""
    assert idempotency_key("ticket-42", 6, "pay_back", digest({"order": "o1", "cents": 900})) == (
        "ticket-42:step_6:pay_back:" + FROZEN
    )
    assert idempotency_key("r", 1, "t", digest({"b": 1, "a": [True, None, "é"]})) == f"r:step_1:t:{FROZEN_TOO}"


FROZEN = "a52e8681a6279b3c"
FROZEN_TOO = "17c8c6f7f948ee1c"
