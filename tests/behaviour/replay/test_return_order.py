"""Calls that race return to the code in the same order on replay, whatever kind they are.

Each of these runs starts calls of two kinds at the same time, on a store whose writes and reads take turns of the event
loop, and returns the order in which they came back.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import shake_128
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.engine.definitions.tools import Tool

ROUNDS, CALLS = 8, 6
LARGE = "x" * 100_000
Racer = Callable[["limpet.Run[Any]", int], Awaitable[object]]


@limpet.tool(effect="none", name="order_look")
async def look(turns: int) -> int:
    """Return after some iterations of the event loop."""
    for _ in range(turns):
        await asyncio.sleep(0.0003)  # noqa: TID251 - real time, while the store writes
    return turns


@limpet.tool(effect="none", name="order_fail", retry=limpet.Retry(1))
async def fail(turns: int) -> None:
    """Fail after some iterations of the event loop."""
    await look(turns)
    raise ValueError(turns)


@limpet.tool(effect="none", name="order_large")
async def large(_: int) -> str:
    """Return a value that is stored as a blob."""
    return LARGE


@limpet.tool(effect="transaction", name="order_transact")
def transact(number: int) -> int:
    """Commit together with the event."""
    return number


@limpet.tool(effect="once", name="order_send")
async def send(number: int) -> int:
    """Have an effect."""
    return number


@limpet.external(ttl="1h", name="order_price")
async def price(number: int) -> str:
    """Return a large value from outside."""
    return f"{number} {LARGE}"


@limpet.agent(name="order_leaf")
async def leaf(run: limpet.Run, text: str) -> str:
    """Return a value that is stored as a blob."""
    return LARGE + text


async def failing(run: limpet.Run, number: int) -> None:
    """Call a tool that fails."""
    with suppress(limpet.StepFailed):
        await run.step(fail, number % 4)


async def reading(run: limpet.Run, number: int) -> None:
    """Store a large artifact, and read it."""
    stored = await run.artifact(LARGE, type="text", summary=f"{number}")
    await run.content(stored)


async def keeping(run: limpet.Run, number: int) -> None:
    """Read a shared record, and patch it."""
    record = await run.record("order")
    with suppress(limpet.RecordConflict):
        await run.patch_record(record, facts={f"n{number}": number})


async def receiving(run: limpet.Run, number: int) -> None:
    """Send a large signal to this run, and receive it."""
    await run.signal(run.id, f"s{number % 2}", LARGE)
    with suppress(limpet.Expired):
        await run.receive(f"s{number % 2}", str, timeout="1s")


CALLED: dict[str, Racer] = {
    "step": lambda run, number: run.step(look, number % 4),
    "failed step": failing,
    "large result": lambda run, number: run.step(large, number),
    "transaction": lambda run, number: run.step(transact, number),
    "effect": lambda run, number: run.step(send, number),
    "external read": lambda run, number: run.read(price, number % 3),
    "call": lambda run, number: run.call(leaf, f"{number}"),
    "start": lambda run, number: run.start(leaf, f"{number}"),
    "expired request": lambda run, number: run.ask(f"{number}?", expires="1ms", default=True),
    "timer": lambda run, number: run.sleep("1ms"),  # noqa: ARG005
    "signal": receiving,
    "patch": lambda run, number: run.patch(goal=f"{number}"),
    "decision": lambda run, number: run.decide("which?", choose=number, over=[number], because="one is left"),
    "artifact": reading,
    "shared record": keeping,
    "message": lambda run, number: run.say(f"{number}"),
    "messages": lambda run, number: run.messages(last=3),  # noqa: ARG005
    "context": lambda run, number: run.context(max_tokens=1_000),  # noqa: ARG005
}


@limpet.agent(name="order_racer")
async def racer(run: limpet.Run, given: tuple[str, int]) -> list[list[str]]:
    """Start calls of a kind, and steps and messages, at the same time; return the order of their ends."""
    kind, seed = given
    chosen, orders = iter(shake_128(bytes([seed])).digest(2 * ROUNDS * CALLS)), list[list[str]]()
    await run.say("hello")
    for turn in range(ROUNDS):
        order = list[str]()

        async def call(name: str, number: int, scope: str, order: list[str] = order) -> None:
            async with run.scope(scope):
                await CALLED[name](run, number)
            order.append(scope)

        kinds = [(kind, kind, "step", "message")[next(chosen) % 4] for _ in range(CALLS)]
        numbers = [n + next(chosen) % 4 for n in range(CALLS)]
        calls = [call(kinds[n], numbers[n], f"{turn}-{n} {kinds[n]}") for n in range(CALLS)]
        tasks = list(map(asyncio.ensure_future, calls))
        while not all(each.done() for each in tasks):
            await asyncio.wait([each for each in tasks if not each.done()], return_when=asyncio.FIRST_COMPLETED)
            order.append(f"{sum(each.done() for each in tasks)} are done")
        orders.append(order)
    return orders


@pytest.fixture(autouse=True)
def tools_of_this_module(own_tools: None) -> None:
    """Register the tools again, which another fixture has removed."""
    from limpet.engine.definitions import tools  # noqa: PLC0415

    tools._tools.update({each.name: each for each in globals().values() if isinstance(each, Tool)})


@pytest.mark.parametrize("kind", CALLED)
async def test_racing_calls_return_in_the_same_order_on_replay(tmp_path: Path, kind: str) -> None:
    async with limpet.open(f"sqlite:///{tmp_path}/limpet.db", agents=[racer, leaf]) as app:
        for seed in range(3):
            handle = await app.start(racer, (kind, seed))
            live = await handle.result()
            assert (await app.replay(handle.id)).value == live


@limpet.tool(effect="once", name="order_mail")
async def mail(number: int) -> int:
    """Have an effect that the code cancels before it starts."""
    return number


@pytest.mark.parametrize("loser", ["effect", "start", "read"])
async def test_a_call_that_the_code_cancelled_before_it_began_is_not_made_on_replay(tmp_path: Path, loser: str) -> None:
    """The log has nothing of it. The recorded results, after which the code cancels it, return first."""
    calls: dict[str, Racer] = {
        "effect": lambda run, number: run.step(mail, number),
        "start": lambda run, number: run.start(leaf, f"{number}"),
        "read": lambda run, number: run.step(large, number),
    }
    begins = False

    @limpet.agent(name="order_canceller")
    async def canceller(run: limpet.Run) -> int:
        async def lose() -> None:
            async with run.scope("loser"):
                await calls[loser](run, 1)

        losing = asyncio.create_task(lose() if begins else asyncio.sleep(60))  # noqa: TID251 - cancelled at once
        await asyncio.sleep(0)  # noqa: TID251 - the other branch makes its call
        found = await run.step(look, 1) + await run.step(look, 2)
        losing.cancel()
        await asyncio.wait([losing])
        async with run.scope("later"):
            assert await run.ask("go on?")
        return found

    url = f"sqlite:///{tmp_path}/limpet.db"
    async with limpet.open(url, agents=[canceller, leaf]) as app:
        await app.start(canceller, id="r")
        await until_waiting(app)
    begins = True
    async with limpet.open(url, agents=[canceller, leaf]) as app:
        replayed = await app.replay("r")
        assert replayed.how == "waits"
        [request] = await app.inbox()
        await app.answer(request, True, by="ann")
        handle = await app.get("r")
        assert await handle.result() == 3
        kinds = [event.kind async for event in handle.events()]
        assert kinds.count("step.started") == (3 if loser == "read" else 2)
        assert "agent.called" not in kinds


async def until_waiting(app: limpet.App) -> None:
    """Wait until the run waits for a person."""
    with app.store.watch() as watch:
        while (await app.store.get("r")).status != "waiting":
            await watch.changed()
