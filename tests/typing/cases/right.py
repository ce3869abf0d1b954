"""Correct user code for type checkers; never run."""

from collections.abc import Awaitable, Iterator
from datetime import datetime
from typing import Any, Literal, assert_type

from pydantic import BaseModel

import limpet
from limpet import sync, testing


class Ticket(BaseModel):
    order: str


class Verdict(BaseModel):
    cents: int


class Memory(BaseModel):
    seen: int = 0


@limpet.tool(effect="none")
async def fetch(order: str, *, fresh: bool = False) -> list[int]:
    return [len(order), fresh]


@limpet.tool(effect="idempotent", retry=limpet.Retry(5, first="1s"), timeout="10s")
def pay(cents: int) -> str:
    return limpet.idempotency_key()


@limpet.tool(effect="once")
async def mail(to: str) -> None: ...


@mail.verify
async def was_sent(to: str) -> limpet.Done[None] | None: ...


@pay.verify
def was_paid(cents: int) -> limpet.Done[str] | None:
    return limpet.Done("R-1")


@pay.compensate
def unpay(receipt: str | None, cents: int) -> None: ...


assert_type(fetch("o"), Awaitable[list[int]])
assert_type(pay(5), str)


@limpet.agent(version="2", accepts=["1"], steps=3, deadline="1h", budget=limpet.Budget(max_steps=9, exhausted="ask"))
async def support(run: limpet.Run, ticket: Ticket) -> Verdict:
    assert_type(run.id, str)
    assert_type(await run.step(fetch, ticket.order), list[int])
    assert_type(len(await run.step(fetch, ticket.order)), int)
    assert_type(await run.step(fetch, order="o", fresh=True), list[int])
    assert_type(await run.step(pay, 5), str)
    assert_type(await run.step(pay.options(name="pay again", retry=limpet.Retry(1), timeout=5), 5), str)
    assert_type(await run.step(mail, "ann"), None)
    assert_type(await run.ask("Go on?"), bool)
    assert_type(await run.ask("Go on?", to=["finance", "cfo"], expires="2d", default=False), bool)
    colours: list[Literal["red", "blue"]] = ["red", "blue"]
    assert_type(await run.ask("Which?", options=colours), Literal["red", "blue"])
    assert_type(await run.ask("Which?", options=["red", "blue"], default="red"), str)
    assert_type(await run.ask("How much?", answer=Verdict), Verdict)
    assert_type(await run.ask("How many?", answer=int | None, default=None), int | None)
    assert_type(await run.ask("Which ones?", answer=list[str], escalate=["cfo"]), list[str])
    assert_type(await run.decide("refund?", choose="full", over=["none", "full"], because="broken"), str)
    assert_type(await run.decide("how much?", choose=5, over=[0, 5], because="broken", confidence=0.9), int)
    assert_type(await run.receive("size", int, timeout="1d"), int)
    assert_type(await run.receive("verdict", Verdict), Verdict)
    assert_type(await run.call(child, ticket), int)
    assert_type(await run.call(child, ticket, budget=limpet.Budget(max_steps=1), deadline="1m"), int)
    assert_type(await run.call(alone, None), str)
    assert_type(await run.start(child, ticket, id="c-1"), limpet.Handle[int])
    await run.patch(goal="settle", facts={"cents": 5}, plan=["look"], data={"any": "thing"})
    await run.sleep("3d")
    async with run.scope("look"):
        assert_type(run.now(), datetime)
    assert_type(run.state.data, dict[str, Any])
    assert_type(run.version("new mail"), bool)
    return Verdict(cents=5)


@limpet.agent()
async def child(run: limpet.Run, ticket: Ticket) -> int:
    return 1


@limpet.agent()
async def alone(run: limpet.Run) -> str:
    return run.uuid()


@limpet.agent()
async def remembers(run: limpet.Run[Memory], first: str) -> int:
    async for turn in run.turns(max=5):
        await run.patch(data=Memory(seen=run.state.data.seen + turn.number))
    assert_type(run.state, limpet.State[Memory])
    return run.state.data.seen


@limpet.agent()
def blocking(run: sync.Run[Memory], ticket: Ticket) -> Verdict:
    assert_type(run.step(fetch, ticket.order), list[int])
    assert_type(run.step(pay, 5), str)
    assert_type(run.ask("Go on?"), bool)
    assert_type(run.ask("Which?", options=["red", "blue"]), str)
    assert_type(run.ask("How much?", answer=Verdict), Verdict)
    assert_type(run.decide("refund?", choose="full", over=["none", "full"], because="broken"), str)
    assert_type(run.receive("size", int), int)
    assert_type(run.call(child, ticket), int)
    run.patch(data=Memory(seen=run.state.data.seen + 1))
    for turn in run.turns():
        assert_type(turn.number, int)
    with run.scope("look"):
        run.sleep(3)
    return Verdict(cents=5)


@limpet.agent()
def blocking_alone(run: sync.Run) -> None: ...


assert_type(support, limpet.Agent[Ticket, Verdict])
assert_type(alone, limpet.Agent[None, str])
assert_type(remembers, limpet.Agent[str, int])
assert_type(blocking, limpet.Agent[Ticket, Verdict])
assert_type(blocking_alone, limpet.Agent[None, None])


async def use(app: limpet.App, ticket: Ticket) -> None:
    assert_type(await app.run(support, ticket, id="t-1", user="ann", labels={"team": "a"}), Verdict)
    assert_type(await app.run(alone), str)
    assert_type(await app.start(support, ticket), limpet.Handle[Verdict])
    assert_type(await app.start(blocking, ticket, session="s"), limpet.Handle[Verdict])
    assert_type(await app.start(alone, at="1h"), limpet.Handle[str])
    assert_type(await app.start("support", {"order": "o"}), limpet.Handle[Any])
    assert_type(await app.get("t-1", support), limpet.Handle[Verdict])
    assert_type(await app.get("t-1"), limpet.Handle[Any])
    handle = await app.start(support, ticket)
    assert_type(await handle.result(timeout="1h"), Verdict)
    assert_type(await handle.info(), limpet.RunInfo)
    async for event in handle.events():
        assert_type(event, limpet.EventView)
    for request in await app.inbox(to="finance"):
        await app.approve(request, by="ann", args={"cents": 4})
        await app.answer(request.id, Verdict(cents=4), by="ann")
    assert_type(await app.runs(status="failed", last=5), limpet.Page[limpet.RunInfo])


async def once(order: str, app: limpet.App) -> None:
    async def work() -> int:
        return len(order)

    assert_type(await app.once("key", work), int)


async def opened() -> None:
    async with limpet.open(agents=[support, alone, blocking], worker=limpet.Worker(concurrency=5)) as app:
        assert_type(app, limpet.App)
    assert_type(await limpet.open("memory:"), limpet.App)


def script(ticket: Ticket) -> None:
    with sync.open("memory:", agents=[support, alone]) as app:
        assert_type(app, sync.App)
        assert_type(app.run(support, ticket, id="t-1"), Verdict)
        assert_type(app.run(alone), str)
        assert_type(app.start(support, ticket), sync.Handle[Verdict])
        assert_type(app.start(support, ticket).result(timeout=3), Verdict)
        assert_type(app.get("t-1", support), sync.Handle[Verdict])
        assert_type(app.resume("t-1"), sync.Handle[Any])
        assert_type(app.messages("c-1", last=3), limpet.Page[limpet.Message])
        assert_type(app.state("t-1", before=2), limpet.Moment)
        assert_type(app.fork("t-1", at=2), sync.Handle[Any])
        assert_type(app.events("t-1", follow=False), Iterator[limpet.EventView])
        assert_type(app.once("key", lambda: 7), int)


async def tested(ticket: Ticket) -> None:
    async with testing.app(support) as app:
        assert_type(app, testing.TestApp)
        app.stub(fetch, ValueError("x"), [1])
        app.stub(pay, "R-1")
        assert_type(await app.run(support, ticket), Verdict)
