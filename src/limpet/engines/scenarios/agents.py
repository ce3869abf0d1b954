"""The agents of the scenarios, which workers serve: `limpet worker limpet.engines.scenarios.agents:agents`.

Their tools record each effect in the ledger. With kills, a worker dies before and after each effect, once.
"""

import os
import signal
from typing import Any

import limpet
from limpet.clock import SECOND, SystemClock
from limpet.engines.scenarios.ledger import die_once, ledger
from limpet.llm.model import Prompt
from limpet.testing import ScriptedModel, calls

__all__ = ["agents"]

MOMENT = SECOND // 50


# Tools


def apply(owner: str, label: str, key: str) -> str:
    """Record an effect, with places to die before and after it."""
    die_once(owner, f"{label} before")
    ledger().record(owner, label, key)
    die_once(owner, f"{label} after")
    return label


@limpet.tool(effect="idempotent", name="scenario_act")
async def act(owner: str, label: str) -> str:
    """Record an effect under the key of the step."""
    return apply(owner, label, limpet.idempotency_key())


@limpet.tool(effect="once", name="scenario_send")
async def send(owner: str, label: str) -> str:
    """Record an effect that must not be repeated: each execution counts."""
    return apply(owner, label, "")


@send.verify
async def was_sent(owner: str, label: str) -> limpet.Done[str] | None:
    """Look in the ledger."""
    is_there = any(each.label == label for each in ledger().entries(owner) if each.owner == owner)
    return limpet.Done(label) if is_there else None


@limpet.tool(effect="idempotent", name="scenario_book")
async def book(owner: str, label: str) -> str:
    """Record an effect that can be undone."""
    return apply(owner, label, limpet.idempotency_key())


@book.compensate
async def unbook(result: str | None, owner: str, label: str) -> None:  # noqa: ARG001 - compensations get the result
    """Record that an effect was undone."""
    die_once(owner, f"undo {label} before")
    ledger().record(owner, f"undo {label}", limpet.idempotency_key())
    die_once(owner, f"undo {label} after")


@limpet.tool(effect="idempotent", name="scenario_hold")
async def hold(owner: str, label: str) -> str:
    """Wait until the scenario releases the run, then record an effect. It lets the scenario know that it waits."""
    die_once(owner, f"{label} before")
    ledger().mark(f"{owner} holds")
    while not ledger().has(f"{owner} released"):
        await SystemClock().sleep(MOMENT)
    ledger().record(owner, label, limpet.idempotency_key())
    return label


class Unmended(Exception):
    """Raised by a tool until the scenario mends it."""


@limpet.tool(effect="idempotent", name="scenario_mended", not_applied=(Unmended,))
async def mended(owner: str, label: str) -> str:
    """Fail until the scenario mends it, then record an effect."""
    if not ledger().has(f"{owner} mended"):
        raise Unmended(label)
    return apply(owner, label, limpet.idempotency_key())


@limpet.tool(effect="none", name="scenario_poison")
async def poison(owner: str) -> None:
    """Kill the worker until the scenario mends it."""
    if not ledger().has(f"{owner} mended"):
        os.kill(os.getpid(), signal.SIGKILL)


@limpet.tool(effect="none", name="scenario_section")
async def section(owner: str, name: str) -> None:
    """Record when a section begins and ends, with some time in between."""
    ledger().mark(f"{name} begins")
    _note(owner, name, "begins")
    await SystemClock().sleep(5 * MOMENT)
    _note(owner, name, "ends")


def _note(owner: str, name: str, what: str) -> None:
    ledger().record(f"{owner}/sections", name, what)


# Agents


@limpet.agent(name="scenario-errand")
async def errand(run: limpet.Run) -> str:
    """Act three times and send once, with places to die between the steps."""
    await run.step(act, run.id, "a")
    die_once(run.id, "between a and b")
    await run.step(act, run.id, "b")
    await run.patch(facts={"b": "done"})
    die_once(run.id, "between b and mail")
    await run.step(send, run.id, "mail")
    await run.step(act, run.id, "c")
    die_once(run.id, "before the end")
    return "done"


@limpet.agent(name="scenario-asker")
async def asker(run: limpet.Run) -> bool:
    """Ask a person between two effects."""
    await run.step(act, run.id, "before")
    answer = await run.ask("Go on?")
    die_once(run.id, "answered")
    await run.step(act, run.id, "after")
    return answer


@limpet.agent(name="scenario-sleeper")
async def sleeper(run: limpet.Run, how_long: str) -> str:
    """Sleep between two effects."""
    await run.step(act, run.id, "before")
    await run.sleep(how_long)
    die_once(run.id, "slept")
    await run.step(act, run.id, "after")
    return "awake"


@limpet.agent(name="scenario-listener")
async def listener(run: limpet.Run, count: int) -> list[int]:
    """Receive signals, with an effect after each."""
    heard = []
    for number in range(count):
        heard.append(await run.receive("news", int))
        await run.step(act, run.id, f"heard {number}")
    return heard


@limpet.agent(name="scenario-sender")
async def sender(run: limpet.Run, to: str) -> str:
    """Act, and send a signal to another run."""
    await run.step(act, run.id, "prepare")
    await run.signal(to, "news", 7)
    die_once(run.id, "sent")
    return "sent"


@limpet.agent(name="scenario-helper")
async def helper(run: limpet.Run, owner: str) -> str:
    """Act for another run, and wait a moment between the effects."""
    await run.step(act, owner, f"{run.id} first")
    await run.sleep("20ms")
    await run.step(act, owner, f"{run.id} second")
    return run.id


@limpet.agent(name="scenario-caller")
async def caller(run: limpet.Run) -> list[str]:
    """Call two helpers, with effects around the calls."""
    await run.step(act, run.id, "before")
    made = [await run.call(helper, run.id), await run.call(helper, run.id)]
    die_once(run.id, "has called")
    await run.step(act, run.id, "after")
    return made


@limpet.agent(name="scenario-giver")
async def giver(run: limpet.Run) -> str:
    """Act, and hand off to a helper."""
    await run.step(act, run.id, "before")
    return await run.handoff(helper, run.id)


@limpet.agent(name="scenario-starter")
async def starter(run: limpet.Run) -> str:
    """Start a helper, and end without it."""
    await run.step(act, run.id, "before")
    handle = await run.start(helper, run.id, id=f"{run.id}.later")
    die_once(run.id, "has started")  # only once: the workers of the helper die now, too
    return handle.id


@limpet.agent(name="scenario-holder")
async def holder(run: limpet.Run) -> str:
    """Hold until released, then act."""
    await run.step(hold, run.id, "held")
    await run.step(act, run.id, "after")
    return "done"


@limpet.agent(name="scenario-booker")
async def booker(run: limpet.Run, then: str) -> str:
    """Book twice; then fail, or wait for a signal."""
    await run.step(book, run.id, "a")
    await run.step(book, run.id, "b")
    if then == "fail":
        raise limpet.Permanent("as the scenario asked")
    await run.receive("news", int)
    return "booked"


@limpet.agent(name="scenario-walker")
async def walker(run: limpet.Run, owner: str) -> str:
    """Act three times for an owner, so that a fork acts for the same."""
    for label in ("a", "b", "c"):
        await run.step(act, owner, label)
    return run.id


@limpet.agent(name="scenario-thrifty", budget=limpet.Budget(max_steps=1))
async def thrifty(run: limpet.Run) -> str:
    """Need three steps with a budget of one."""
    for label in ("a", "b", "c"):
        await run.step(act, run.id, label)
    return "done"


@limpet.agent(name="scenario-late")
async def late(run: limpet.Run) -> int:
    """Wait for a signal, then act."""
    heard = await run.receive("news", int)
    await run.step(act, run.id, "after")
    return heard


@limpet.agent(name="scenario-broken")
async def broken(run: limpet.Run) -> str:
    """Act, and run a step that fails until it is mended."""
    await run.step(act, run.id, "before")
    await run.step(mended, run.id, "mended")
    return "done"


@limpet.agent(name="scenario-chatter")
async def chatter(run: limpet.Run, turns: int) -> str:
    """Act once in each turn, for the message that it received."""
    async for turn in run.turns(max=turns):
        said = await run.receive("user", str)
        await run.step(act, run.id, f"turn {turn.number} {said}")
        die_once(run.id, f"in turn {turn.number}")
        await run.patch(facts={"turns": turn.number})
    return f"{turns} turns"


def _call(label: str) -> Any:
    """Return a reply that acts for the run that the first message names."""

    def reply(prompt: Prompt) -> Any:
        owner = next(each.text for each in prompt.messages if each.role == "user")
        return calls("scenario_act", owner=owner, label=label)

    return reply


thinker = limpet.llm_agent(
    "scenario-thinker",
    model=ScriptedModel(_call("first"), _call("second"), "It is done."),
    instructions="You act twice.",
    tools=[act],
)


@limpet.agent(name="scenario-poisonous")
async def poisonous(run: limpet.Run) -> str:
    """Kill each worker until it is mended."""
    await run.step(poison, run.id)
    await run.step(act, run.id, "after")
    return "done"


@limpet.agent(name="scenario-limited", concurrency=1)
async def limited(run: limpet.Run, owner: str) -> str:
    """Run in a section that no two runs may be in."""
    await run.step(act, run.id, "before")
    await run.step(section, owner, run.id)
    await run.step(act, run.id, "after")
    return "done"


@limpet.agent(name="scenario-exclusive", exclusive="session")
async def exclusive(run: limpet.Run, owner: str) -> str:
    """Wait between two sections that runs of the same session may not mix."""
    await run.step(section, owner, run.id)
    await run.step(act, run.id, "between")
    await run.sleep("50ms")
    await run.step(section, owner, run.id)
    return "done"


def _letter(version: str, *accepts: str) -> limpet.Agent[None, str]:
    @limpet.agent(name="scenario-letter", version=version, accepts=accepts)
    async def letter(run: limpet.Run) -> str:
        """Act, wait, and return the version of this code."""
        await run.step(act, run.id, "before")
        await run.receive("news", int)
        await run.step(act, run.id, "after")
        return version

    return letter


letter_1, letter_2, letter_3 = _letter("1"), _letter("2"), _letter("3", "2")

agents: list[limpet.Agent[Any, Any]] = [
    errand,
    asker,
    sleeper,
    listener,
    sender,
    helper,
    caller,
    giver,
    starter,
    holder,
    booker,
    walker,
    thrifty,
    late,
    broken,
    chatter,
    thinker,
    poisonous,
    limited,
    exclusive,
    letter_1,
    letter_3,
]
"""All agents that a worker of the scenarios serves. It serves no code of version 2 of the letter."""
