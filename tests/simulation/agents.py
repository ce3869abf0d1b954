"""The simulated agents, which use every feature, and the external world that their tools act on.

The numbers that a run works with start with its own: 2017 belongs to run r1. A number that leaks into another run is
detected.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import limpet
from limpet.clock import Clock
from tests.simulation.invariants import Watcher

RISK = "external_action"
HOSTILE: list[Any] = [
    {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}},
    {"json": {"a": 1}, "blob": "0" * 64, "bytes": 3},
    {"$ref": "#/definitions/x", "__class__": "Run", "py/object": "os.system", "@type": "exception"},
    {"kind": "step.completed", "version": 1, "body": {"number": 1}},
    [None, False, 0, "", {}, [], -0.0, "\x00", "${jndi:x}", {"": {"": None}}],
]


class Outside:
    """The external world: keyed actions are applied once for each key, others whenever they arrive."""

    def __init__(self, chance: random.Random, clock: Clock, watcher: Watcher) -> None:
        self.chance, self.clock, self.watcher = chance, clock, watcher
        self.calm = False
        self.applied = Counter[str]()
        """Number of applications of keyed actions by key, not counting deduplication."""
        self.sent = Counter[str]()
        """Number of actions without an idempotency key, by the key of their step."""
        self.undone = Counter[str]()

    async def some_time(self) -> None:
        for _ in range(self.chance.randrange(8)):
            await asyncio.sleep(0)

    def is_unlucky(self, how_often: float) -> bool:
        return not self.calm and self.chance.random() < how_often

    async def act(self, done: Counter[str]) -> None:
        """Apply an irreversible effect, with random delays, errors and deaths around it."""
        key = limpet.current().key
        await self.some_time()
        self.maybe_die()
        if self.is_unlucky(0.1):
            raise limpet.NotApplied("not yet") if done is self.applied else limpet.Permanent("never")
        self.watcher.effect(key)
        done[key] += 1
        self.maybe_die()
        await self.some_time()
        if self.is_unlucky(0.15):
            raise ConnectionError("the answer was lost")

    async def page(self, _: limpet.Request) -> None:
        """Notify people of a request."""
        await self.some_time()
        self.maybe_die()
        if self.is_unlucky(0.3):
            raise ConnectionError("the pager is unreachable")

    def maybe_die(self) -> None:
        """Possibly kill the process within the next turns of the event loop."""
        if self.is_unlucky(0.06):
            doom.get()()

    def returns(self, tool: str, n: int, value: Any) -> Any:
        self.watcher.returned.setdefault((tool, n), []).append(value)
        return value


EXPECTED = (limpet.StepFailed, limpet.Expired, limpet.BudgetExceeded, limpet.AgentFailed)
outside: ContextVar[Outside] = ContextVar("outside")
doom: ContextVar[Callable[[], None]] = ContextVar("doom")


@limpet.tool(effect="none", name="sim_read", retry=limpet.Retry(3, on=(OSError, limpet.NotApplied)))
async def sim_read(n: int) -> Any:
    world = outside.get()
    await world.some_time()
    if world.is_unlucky(0.15):
        raise world.chance.choice([ConnectionError("?"), TimeoutError("?"), limpet.NotApplied("busy"), ValueError("?")])
    return world.returns("sim_read", n, world.chance.choice(HOSTILE))


@limpet.tool(effect="idempotent", name="sim_pay", retry=limpet.Retry(2, first="3s"), timeout="30s")
async def sim_pay(n: int) -> str:
    await outside.get().act(outside.get().applied)
    return str(outside.get().returns("sim_pay", n, f"paid {n}"))


@sim_pay.compensate
async def sim_unpay(result: str | None, n: int) -> None:
    world = outside.get()
    await world.some_time()
    if world.is_unlucky(0.1):
        raise ConnectionError("the answer was lost")
    world.undone[limpet.current().original_key] += 1


@limpet.tool(effect="once", name="sim_mail")
async def sim_mail(n: int) -> str:
    await outside.get().act(outside.get().sent)
    return str(outside.get().returns("sim_mail", n, f"sent {n}"))


@limpet.tool(effect="idempotent", name="sim_slow", retry=limpet.Retry(2), timeout="1s")
async def sim_slow(n: int) -> str:
    """Apply an effect, sometimes after the timeout."""
    world = outside.get()
    await world.clock.sleep(world.chance.randrange(2_000_000))
    await world.act(world.applied)
    return str(world.returns("sim_slow", n, f"slowly {n}"))


@limpet.tool(effect="idempotent", name="sim_wire", risk=RISK, retry=limpet.Retry(2))
async def sim_wire(n: int, cents: int) -> str:
    await outside.get().act(outside.get().applied)
    return str(outside.get().returns("sim_wire", n, f"wired {cents} for {n}"))


@limpet.tool(effect="once", name="sim_fax", risk=RISK, retry=limpet.Retry(2))
async def sim_fax(n: int, cents: int) -> str:
    await outside.get().act(outside.get().sent)
    return str(outside.get().returns("sim_fax", n, f"faxed {cents} for {n}"))


async def was_sent(n: int) -> limpet.Done[str] | None:
    world = outside.get()
    await world.some_time()
    if world.is_unlucky(0.5):
        raise ConnectionError("cannot tell")
    return limpet.Done(f"found {n}") if world.sent[limpet.current().key] else None


@sim_mail.verify
async def sim_was_mailed(n: int) -> limpet.Done[str] | None:
    return await was_sent(n)


@sim_fax.verify
async def sim_was_faxed(n: int, cents: int) -> limpet.Done[str] | None:
    return await was_sent(n)


@limpet.tool(effect="transaction", name="sim_note", retry=limpet.Retry(3))
def sim_note(n: int) -> str:
    world = outside.get()
    limpet.current().transaction(limpet.idempotency_key())
    if world.is_unlucky(0.2):
        raise ValueError("after it wrote")
    return str(world.returns("sim_note", n, f"noted {n}"))


@limpet.tool(effect="none", name="sim_poison")
async def sim_poison(n: int) -> None:
    """Kill the process that runs this tool."""
    doom.get()()
    await asyncio.get_running_loop().create_future()


async def results(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Return the results of concurrent calls, or the names of their errors."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException) and not isinstance(each, EXPECTED):
            raise each
    return [f"error: {type(each).__name__}" if isinstance(each, EXPECTED) else each for each in found]


async def steps(run: limpet.Run, *wanted: tuple[Any, ...]) -> list[Any]:
    """Run steps concurrently, and report their results to the watcher."""
    found = await results(*(run.step(tool, *args) for tool, *args in wanted))
    for (tool, n, *_), value in zip(wanted, found, strict=True):
        outside.get().watcher.result(run.id, tool.name, n, value)
    return found


async def step(run: limpet.Run, *wanted: Any) -> Any:
    """Run one step, and report its result to the watcher."""
    return (await steps(run, wanted))[0]


async def first_of(*calls: Coroutine[Any, Any, Any]) -> list[int]:
    """Return the positions of the calls that finished first; cancel the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return [place for place, task in enumerate(tasks) if task in done]


@limpet.agent(name="sim_child")
async def sim_child(run: limpet.Run, n: int) -> Any:
    await run.sleep("5s")
    found = await run.step(sim_pay, n)
    return [found, await step(run, sim_read, n + 1)]


@limpet.agent(name="sim_agent")
async def sim_agent(run: limpet.Run, n: int) -> list[Any]:
    """Use reads, effects, a question, a signal against a timer, a child and turns."""
    found: list[Any] = [run.random(), run.version("one")]
    await run.patch(goal=f"run {n}", plan=["first", "rest"])
    async with run.scope("first"):
        found.append(await step(run, sim_read, n))
        found.append(await step(run, sim_pay, n))
    asking = run.ask("really?", expires="1m", default=True)
    found += await asyncio.gather(run.step(sim_mail, n), run.sleep("3s"), asking)
    found.append(await first_of(run.sleep("8s"), run.receive("go", int)))
    found += await results(run.call("sim_child", n + 20))
    async for turn in run.turns(max=2):
        await run.patch(facts={"turn": turn.number, "seen": found[2]})
        await step(run, sim_pay, n + 100 + turn.number)
    return [*found, run.state.facts["turn"], run.state.facts["seen"]]


@limpet.agent(
    name="sim_clerk",
    approvals=limpet.Approvals(RISK, to="desk", expires="15s", escalate=["boss"]),
    budget=limpet.Budget(max_steps=4, exhausted="ask"),
)
async def sim_clerk(run: limpet.Run, n: int) -> list[Any]:
    """Use tools that need approval, alone and concurrently, and more steps than the budget allows."""
    found: list[Any] = [await step(run, sim_note, n)]
    found.append(await step(run, sim_wire, n + 1, 5))
    found += await steps(run, (sim_fax, n + 2, 6), (sim_wire, n + 3, 7), (sim_read, n))
    await run.decide("more?", choose="yes", over=["yes", "no"], because=str(found))
    found.append(await first_of(run.step(sim_wire, n + 5, 8), run.sleep("2s")))
    return [*found, await step(run, sim_note, n + 4), await step(run, sim_wire, n + 6, 9)]


@limpet.agent(name="sim_heir")
async def sim_heir(run: limpet.Run, n: int) -> list[Any]:
    """Check that only the named facts were handed over."""
    assert run.state.facts == {"seen": n}
    return [await step(run, sim_pay, n), await run.ask("enough?", expires="20s", default=False)]


@limpet.agent(
    name="sim_team",
    escalate=limpet.Escalate(ValueError, retries=True, unknown=True, confidence=0.8, to="desk", expires="40s"),
)
async def sim_team(run: limpet.Run, n: int) -> list[Any]:
    """Use concurrent and independent children, steps that the code cancels, uncertain decisions and a handoff."""
    found: list[Any] = [await first_of(run.step(sim_slow, n), run.sleep("1s"))]
    found += await results(*(run.call(sim_child, n + 10 * k) for k in (1, 2)), run.step(sim_note, n + 1))
    found += [(await run.start(sim_child, n + 30)).id, await step(run, sim_read, n + 7)]
    found.append(await first_of(run.step(sim_read, n + 2), run.step(sim_slow, n + 3)))
    found += await results(run.decide("more?", choose=1, over=[1, 2], because="it may be", confidence=0.5))
    asking = run.ask("all of it?", expires="1m", default=True)
    found += await asyncio.gather(run.step(sim_mail, n + 4), asking)
    await run.patch(facts={"seen": n + 5, "found": str(found)})
    try:
        return await run.handoff(sim_heir, n + 5, facts=["seen"])
    finally:
        with suppress(limpet.HandedOff, limpet.Suspended):
            await run.step(sim_pay, n + 6)


@limpet.agent(name="sim_killer")
async def sim_killer(run: limpet.Run, n: int) -> None:
    await run.step(sim_poison, n)


MAIN = (sim_agent, sim_clerk, sim_team)
AGENTS = (*MAIN, sim_child, sim_heir, sim_killer)
