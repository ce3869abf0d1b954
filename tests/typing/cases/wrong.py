"""User code with type errors on the marked lines and on no others; never run."""

from pydantic import BaseModel

import limpet
from limpet import sync


class Ticket(BaseModel):
    order: str


class Verdict(BaseModel):
    cents: int


@limpet.tool(effect="idempotent")
async def pay(order: str, cents: int) -> str:
    return order


@limpet.tool()  # error
async def no_effect() -> None: ...


@limpet.tool(effect="sometimes")  # error
async def odd_effect() -> None: ...


@limpet.tool(effect="none", retry="5")  # error
async def odd_retry() -> None: ...


@pay.verify  # error
async def was_paid(order: str) -> limpet.Done[str] | None: ...


@pay.verify  # error
async def was_paid_how(order: str, cents: int) -> limpet.Done[int] | None: ...


@pay.compensate  # error
async def unpay(receipt: int, order: str, cents: int) -> None: ...


@limpet.agent()
async def child(run: limpet.Run, ticket: Ticket) -> int:
    return 1


@limpet.agent(checkpoint="never")  # error
async def odd_checkpoint(run: limpet.Run) -> None: ...


@limpet.agent()  # error
async def too_much(run: limpet.Run, ticket: Ticket, more: int) -> None: ...


@limpet.agent()  # error
async def no_run(ticket: Ticket) -> None: ...


async def plain(order: str) -> str:
    return order


@limpet.agent()
async def support(run: limpet.Run, ticket: Ticket) -> Verdict:
    await run.step(pay, ticket.order)  # error
    await run.step(pay, ticket.order, "5")  # error
    await run.step(pay, ticket.order, 5, 6)  # error
    await run.step(pay, ticket.order, cent=5)  # error
    await run.step(plain, ticket.order)  # error
    await run.step(pay(ticket.order, 5))  # error
    await run.step(pay.options(naem="x"), ticket.order, 5)  # error
    receipt: int = await run.step(pay, ticket.order, 5)  # error
    await run.call(child, "o-1")  # error
    await run.call(child)  # error
    name: str = await run.call(child, ticket)  # error
    await run.start(child, 5)  # error
    await run.ask("Go on?", default="yes")  # error
    await run.ask("How much?", answer=Verdict, options=["a"])  # error
    verdict: Verdict = await run.ask("How much?", answer=int)  # error
    number: int = await run.ask("Which?", options=["red"])  # error
    size: str = await run.receive("size", int)  # error
    await run.decide("refund?", choose="full", over=["none", "full"])  # error
    await run.patch(goal=5)  # error
    await run.patch(facts=["cents"])  # error
    return Verdict(cents=receipt + len(name) + number + len(size) + verdict.cents)


@limpet.agent()
async def remembers(run: limpet.Run[Verdict], ticket: Ticket) -> None:
    await run.patch(data=Ticket(order="o"))  # error
    await run.step(pay, run.state.data.order, 5)  # error


@limpet.agent()
def blocking(run: sync.Run, ticket: Ticket) -> int:
    run.step(pay, ticket.order)  # error
    return run.step(pay, ticket.order, 5)  # error


async def use(app: limpet.App, ticket: Ticket) -> None:
    await app.run(support, "o-1")  # error
    await app.run(support)  # error
    await app.start(support, 5)  # error
    await app.run(support, ticket, session=5)  # error
    number: int = await app.run(support, ticket)  # error
    handle: limpet.Handle[int] = await app.start(support, ticket)  # error
    await handle.result(timeout=ticket)  # error
    await app.approve("r-1")  # error
    await app.reject("r-1", by=str(number))  # error


def script(ticket: Ticket) -> None:
    with sync.open(agents=[pay]) as app:  # error
        app.run(support, "o-1")  # error
        app.run(support)  # error
        app.run(support, ticket, sesion="s")  # error
        number: int = app.run(support, ticket)  # error
        app.cancel(f"t-{number}")  # error
