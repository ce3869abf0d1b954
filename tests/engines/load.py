"""Agents with slow effects of all kinds, of which many runs are under way while workers are killed."""

import limpet
from limpet.clock import SECOND, SystemClock
from limpet.engines.scenarios.ledger import ledger

__all__ = ["EFFECTS", "KINDS", "agents", "load_job"]

# An effect is under way for this long before and after it is recorded, so that many kills interrupt one.
WHILE = SECOND // 10
KINDS = ("plain", "sleep", "ask", "signal", "call", "handoff")
EFFECTS = {
    "plain": ("a", "b", "c"),
    "sleep": ("a", "b", "c"),
    "ask": ("a", "b", "c"),
    "signal": ("a", "b", "c"),
    "call": ("a", "b", "child a", "child b", "c"),
    "handoff": ("a", "b", "child a", "child b"),
}
"""Effects of a run, by kind."""


async def apply(owner: str, label: str, key: str) -> str:
    """Record an effect, slowly."""
    await SystemClock().sleep(WHILE)
    ledger().record(owner, label, key)
    await SystemClock().sleep(WHILE)
    return label


@limpet.tool(effect="idempotent")
async def load_pay(owner: str, label: str) -> str:
    return await apply(owner, label, limpet.idempotency_key())


@limpet.tool(effect="once")
async def load_mail(owner: str, label: str) -> str:
    return await apply(owner, label, "")


@load_mail.verify
async def was_mailed(owner: str, label: str) -> limpet.Done[str] | None:
    found = [each for each in ledger().entries(owner) if (each.owner, each.label) == (owner, label)]
    return limpet.Done(label) if found else None


@limpet.agent()
async def load_child(run: limpet.Run, owner: str) -> str:
    await run.step(load_pay, owner, "child a")
    await run.step(load_mail, owner, "child b")
    return "done"


@limpet.agent()
async def load_job(run: limpet.Run, kind: str) -> str:
    """Pay, mail, wait in one of several ways, and pay again."""
    await run.step(load_pay, run.id, "a")
    await run.step(load_mail, run.id, "b")
    if kind == "handoff":
        return await run.handoff(load_child, run.id)
    if kind == "sleep":
        await run.sleep("3s")
    elif kind == "ask":
        await run.ask("Go on?")
    elif kind == "signal":
        await run.receive("go", int)
    elif kind == "call":
        await run.call(load_child, run.id)
    await run.step(load_pay, run.id, "c")
    return "done"


agents = [load_job, load_child]
