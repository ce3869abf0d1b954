"""The short path of plain steps writes the same log as the general path, byte for byte, for generated programs."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import limpet
from limpet import testing
from limpet.engine.steps.plain_steps import PlainSteps
from limpet.events import Event
from tests.laws.values import law_settings

Program = list[Any]
FAILED: Counter[str] = Counter()


@dataclass
class Order:
    """An argument and a result with fields."""

    id: int
    note: str = ""


@limpet.tool(effect="none", name="plain_read")
async def read(value: Any, more: int = 3, *, tag: str | None = None) -> Any:
    return [value, more, tag]


@limpet.tool(effect="idempotent", name="plain_effect")
async def effect(value: Any) -> str:
    return f"{limpet.idempotency_key()} {value}"


@limpet.tool(effect="once", name="plain_once")
async def once(value: int) -> int:
    return value + 1


@limpet.tool(effect="none", name="plain_thread")
def thread(value: int) -> int:
    return value


@limpet.tool(effect="none", name="plain_order")
async def order(value: Order) -> Order:
    return Order(value.id + 1, value.note)


@limpet.tool(effect="none", name="plain_fails", retry=2)
async def fails(value: str) -> str:
    FAILED[value] += 1
    if FAILED[value] % 3:
        raise ValueError(value)
    return value


@limpet.tool(effect="idempotent", name="plain_breaks")
async def breaks(value: str) -> str:
    raise KeyError(value)


@limpet.tool(effect="none", name="plain_odd")
async def odd(value: int) -> Any:
    return [float("nan"), b"bytes", "x" * 9000, Order(1), (1, 2)][value % 5]


@limpet.tool(effect="idempotent", name="plain_mistyped")
async def mistyped(value: int) -> int:
    return str(value)  # type: ignore[return-value]


@limpet.tool(effect="none", name="plain_reports")
async def reports(value: str) -> str:
    call = limpet.current()
    call.progress(value, 0.5)
    call.partial(value)
    call.spent(tokens=3)
    return value


@limpet.tool(effect="idempotent", name="plain_risky", risk="pay")
async def risky(value: int) -> int:
    return value


@limpet.tool(effect="idempotent", name="plain_free", risk="low")
async def free(value: int) -> int:
    return value


TOOLS: dict[str, limpet.Tool[..., Any, Any]] = {
    tool.name: tool for tool in (read, effect, once, thread, order, fails, breaks, odd, mistyped, reports, risky, free)
}


@limpet.agent(name="plain_program", approvals=limpet.Approvals("pay", to="boss"))
async def program(run: limpet.Run, todo: Program) -> list[str]:
    return await execute(run, todo)


async def execute(run: limpet.Run, todo: Program) -> list[str]:
    """Execute instructions, and return what they gave."""
    found: list[str] = []
    for place, (what, *how) in enumerate(todo):
        try:
            found.append(repr(await one(run, what, how, place)))
        except (limpet.StepFailed, limpet.BudgetExceeded, limpet.InvalidValue) as error:
            found.append(type(error).__name__)
    return found


async def one(run: limpet.Run, what: str, how: list[Any], place: int) -> Any:  # noqa: C901 - one case per instruction
    match what, how:
        case "step", [name, value, more]:
            given = Order(1, str(value)) if name == order.name else value
            return await run.step(TOOLS[name], given, **more)
        case "patch", [key]:
            return await run.patch(facts={key: 1})
        case "plan", [items]:
            return await run.patch(plan=items)
        case "budget", [steps]:
            return await run.patch(budget=limpet.Budget(max_steps=steps))
        case "constrain", []:
            return await run.patch(constraints={"human_in_the_loop": {"required_for_risk_levels": ["low"]}})
        case "now", []:
            return run.now()
        case "scope", [name, inner]:
            async with run.scope(name):
                return await execute(run, inner)
        case "parallel", [branches]:

            async def branch(number: int) -> list[str]:
                async with run.scope(f"branch{place}-{number}"):
                    return await execute(run, branches[number])

            return await asyncio.gather(*map(branch, range(len(branches))))
        case "turns", [count, inner]:
            return [await execute(run, inner) async for _ in run.turns(max=count)]
        case _:
            raise AssertionError(what)


_values = st.sampled_from([0, 7, -1, True, None, 1.5, "a", "é", [1, {"b": None}], {"k": [1]}, "y" * 9000])
_steps: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.just("step"), st.just(read.name), _values, st.sampled_from([{}, {"more": 3}, {"tag": "t"}])),
    st.tuples(st.just("step"), st.sampled_from([effect.name, order.name]), _values, st.just({})),
    st.tuples(st.just("step"), st.sampled_from([fails.name, breaks.name, reports.name]), st.just("v"), st.just({})),
    st.tuples(st.just("step"), st.sampled_from([once.name, odd.name, mistyped.name]), st.integers(0, 9), st.just({})),
)
_simple = st.one_of(
    _steps,
    st.tuples(st.just("patch"), st.sampled_from("ab")),
    st.tuples(st.just("plan"), st.sampled_from([["one", "two"], ["s"]])),
    st.tuples(st.just("now")),
)
_programs = st.lists(
    st.one_of(
        _simple,
        _simple,
        st.tuples(st.just("budget"), st.integers(1, 12)),
        st.tuples(st.just("constrain")),
        st.tuples(st.just("step"), st.sampled_from([risky.name, thread.name, free.name]), st.just(1), st.just({})),
        st.tuples(st.just("scope"), st.sampled_from("st"), st.lists(_simple, max_size=3)),
        st.tuples(st.just("parallel"), st.lists(st.lists(_simple, max_size=3), min_size=2, max_size=3)),
        st.tuples(st.just("turns"), st.integers(1, 3), st.lists(_simple, max_size=3)),
    ),
    min_size=1,
    max_size=6,
)


async def log_of(todo: Program, crash: tuple[Any, int] | None) -> list[Event]:
    """Return the log of a program, with a person who approves, and perhaps with a crash."""
    FAILED.clear()
    async with testing.app(program) as app:
        if crash is not None:
            app.crash_at(crash[0], nth=crash[1])
        await app.start(program, todo, id="r")
        for _ in range(20):
            await app.settle()
            for request in await app.inbox():
                if request.kind == "approval":
                    await app.approve(request, by="boss")
                else:
                    await app.answer(request, "not_applied", by="boss")
            if (await app.info("r")).status in ("completed", "failed"):
                break
            await app.advance("1h")
        return [event async for event in app.store.log("r")]


def without_short_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step take the general path."""
    monkeypatch.setattr(PlainSteps, "find", lambda *_: None)


@settings(law_settings(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_programs, st.none() | st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 12)))
def test_both_paths_write_the_same_log(todo: Program, crash: tuple[Any, int] | None) -> None:
    """Also if the worker dies before or after a commit, and another one continues."""
    short = asyncio.run(log_of(todo, crash))
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_short_path(monkeypatch)
        general = asyncio.run(log_of(todo, crash))
    assert [(event.kind, event.body) for event in short] == [(event.kind, event.body) for event in general]
    assert short == general


STEP: Any = ("step", read.name, 1, {})


@pytest.mark.parametrize(
    ("todo", "taken"),
    [
        ([STEP, ("step", effect.name, 1, {}), ("step", once.name, 1, {}), ("step", thread.name, 1, {})], 4),
        ([("scope", "s", [STEP]), ("turns", 2, [STEP]), ("parallel", [[STEP], [STEP]])], 5),
        ([("step", order.name, 1, {}), ("step", breaks.name, "v", {}), ("step", odd.name, 2, {})], 3),
        ([("step", free.name, 1, {})], 1),
        ([("step", risky.name, 1, {})], 0),
        ([("constrain",), ("step", free.name, 1, {})], 0),
        ([("budget", 9), STEP], 0),
        ([("step", read.name, "y" * 9000, {})], 0),
    ],
    ids=["tools", "scopes", "errors", "risk", "approval", "constraint", "budget", "large argument"],
)
def test_plain_steps_take_the_short_path(todo: Program, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes it unless something must be checked first."""
    calls: list[str] = []
    real = PlainSteps._call

    async def counted(self: PlainSteps, *args: Any) -> Any:
        calls.append("call")
        return await real(self, *args)

    monkeypatch.setattr(PlainSteps, "_call", counted)
    asyncio.run(log_of(todo, None))
    assert len(calls) == taken
