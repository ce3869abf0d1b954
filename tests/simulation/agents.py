"""What is simulated: an agent with everything in it, and the outside world that its tools act on."""

import asyncio
import random
from collections import Counter
from contextvars import ContextVar
from typing import Any

import limpet


class Outside:
    """What the world saw: keyed actions are applied once for each key; others whenever they arrive."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.calm = False
        self.applied = Counter[str]()
        """Keyed actions, by key: how often they would have been applied without their key."""
        self.sent = Counter[str]()
        """Actions without a key, by run and number."""
        self.undone = Counter[str]()

    def count_of(self, run: str, tool: str) -> int:
        return sum(count for key, count in self.sent.items() if key.startswith(f"{run}:") and f":{tool}:" in key)

    async def some_time(self) -> None:
        for _ in range(self.chance.randrange(12)):
            await asyncio.sleep(0)

    def maybe_fail(self) -> None:
        if not self.calm and self.chance.random() < 0.15:
            raise self.chance.choice([ConnectionError("?"), TimeoutError("?"), limpet.NotApplied("busy")])


outside: ContextVar[Outside] = ContextVar("outside")


@limpet.tool(effect="none", name="sim_read", retry=limpet.Retry(3))
async def sim_read(n: int) -> int:
    world = outside.get()
    await world.some_time()
    world.maybe_fail()
    return n * 2


@limpet.tool(effect="idempotent", name="sim_pay", retry=limpet.Retry(4), timeout="30s")
async def sim_pay(n: int) -> str:
    world, key = outside.get(), limpet.idempotency_key()
    await world.some_time()
    if not world.calm and world.chance.random() < 0.1:
        raise limpet.NotApplied("not yet")
    world.applied[key] += 1
    await world.some_time()
    if not world.calm and world.chance.random() < 0.1:
        raise ConnectionError("the answer was lost")
    return f"paid {n}"


@sim_pay.compensate
async def sim_unpay(result: str | None, n: int) -> None:
    world = outside.get()
    await world.some_time()
    if not world.calm and world.chance.random() < 0.1:
        raise ConnectionError("the answer was lost")
    world.undone[limpet.idempotency_key()] += 1


@limpet.tool(effect="once", name="sim_mail")
async def sim_mail(n: int) -> str:
    world = outside.get()
    await world.some_time()
    world.sent[limpet.current().key] += 1
    await world.some_time()
    if not world.calm and world.chance.random() < 0.1:
        raise ConnectionError("the answer was lost")
    return f"sent {n}"


@sim_mail.verify
async def sim_was_sent(n: int) -> limpet.Done[str] | None:
    world = outside.get()
    await world.some_time()
    if not world.calm and world.chance.random() < 0.3:
        raise ConnectionError("cannot tell")
    return limpet.Done(f"sent {n}") if world.sent[limpet.current().key] else None


@limpet.agent(name="sim_child")
async def sim_child(run: limpet.Run, n: int) -> str:
    await run.sleep("5s")
    return await run.step(sim_pay, n)


@limpet.agent(name="sim_agent")
async def sim_agent(run: limpet.Run, n: int) -> list[Any]:
    found: list[Any] = [run.random(), run.version("one")]
    await run.patch(goal=f"run {n}", plan=["first", "rest"])
    async with run.scope("first"):
        try:
            found.append(await run.step(sim_read, n))
        except limpet.StepFailed as error:
            found.append(error.error_type)
        try:
            found.append(await run.step(sim_pay, n))
        except limpet.OutcomeUnknown:
            found.append("unknown")
    asking = run.ask("really?", expires="1m", default=True)
    found += await asyncio.gather(run.step(sim_mail, n), run.sleep("3s"), asking)
    tasks = [asyncio.ensure_future(run.sleep("8s")), asyncio.ensure_future(run.receive("go", int))]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    found.append([tasks.index(task) for task in done])
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    try:
        found.append(await run.call(sim_child, n))
    except limpet.AgentFailed as error:
        found.append(error.outcome)
    async for turn in run.turns(max=3):
        await run.patch(facts={"turn": turn.number})
        try:
            await run.step(sim_pay, 100 + turn.number)
        except limpet.OutcomeUnknown:
            await run.patch(flags=["unknown"])
    found.append(run.state.facts["turn"])
    return found


AGENTS = (sim_agent, sim_child)
