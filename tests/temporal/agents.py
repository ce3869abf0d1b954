"""Agents that tests run on Temporal. Each effect is a line in a ledger."""

from typing import Any

import limpet
from tests.temporal.ledger import is_open, pass_gate, record

__all__ = ["VERSIONS", "agents"]

SECRET = "xyzzy-secret"


@limpet.tool(effect="none")
async def temporal_look(number: int) -> int:
    return number


@limpet.tool(effect="once")
async def temporal_mark(what: str) -> None:
    """Record an effect that must never be repeated."""
    record(what)


@temporal_mark.verify
async def was_marked(what: str) -> None:
    """Ask a person, so that a test sees the doubt."""


@limpet.tool(effect="idempotent")
async def temporal_book(run: str, gate: str) -> str:
    """Begin an effect, wait at a gate, and end it."""
    record(f"{run} begins {limpet.idempotency_key()}")
    await pass_gate(gate)
    record(f"{run} books {limpet.idempotency_key()}")
    return gate


@temporal_book.compensate
async def unbook(result: str | None, run: str, gate: str) -> None:
    record(f"{run} unbooks")


@limpet.agent()
async def many_steps(run: limpet.Run, count: int) -> int:
    for number in range(count):
        await run.step(temporal_look, number)
    return count


@limpet.agent()
async def many_parks(run: limpet.Run, count: int) -> int:
    for _ in range(count):
        await run.sleep("15ms")
    return count


@limpet.agent()
async def asker(run: limpet.Run, question: str) -> str:
    """Ask between two effects."""
    await run.step(temporal_mark, f"{run.id} before")
    answer = await run.ask(question)
    await run.step(temporal_mark, f"{run.id} after")
    return str(answer)


@limpet.agent()
async def hearer(run: limpet.Run, count: int) -> list[str]:
    """Receive signals, each followed by an effect."""
    heard = []
    for number in range(count):
        heard.append(await run.receive("word", str))
        await run.step(temporal_mark, f"{run.id} heard {number}")
    return heard


@limpet.agent()
async def hurried(run: limpet.Run, patience: str) -> str:
    """Ask with a timeout."""
    answer = await run.receive("word", str, timeout=patience)
    await run.step(temporal_mark, f"{run.id} heard {answer}")
    return answer


@limpet.agent()
async def sleeper(run: limpet.Run, how_long: str) -> str:
    await run.step(temporal_mark, f"{run.id} before")
    await run.sleep(how_long)
    await run.step(temporal_mark, f"{run.id} after")
    return how_long


@limpet.agent()
async def booker(run: limpet.Run, gate: str) -> str:
    """Mark, book at a gate, and mark."""
    await run.step(temporal_mark, f"{run.id} before")
    await run.step(temporal_book, run.id, gate)
    await run.step(temporal_mark, f"{run.id} after")
    return gate


@limpet.agent()
async def parent(run: limpet.Run, gate: str) -> str:
    await run.step(temporal_mark, f"{run.id} before")
    found = await run.call(booker, gate)
    await run.step(temporal_mark, f"{run.id} after")
    return found


@limpet.tool(effect="none")
async def temporal_check(gate: str) -> str:
    """Fail until a gate is open."""
    if not is_open(gate):
        raise limpet.Permanent(f"{SECRET} in an error")
    return "done"


@limpet.agent()
async def failing(run: limpet.Run, gate: str) -> str:
    return await run.step(temporal_check, gate)


agents: list[limpet.Agent[Any, Any]] = [
    many_steps,
    many_parks,
    asker,
    hearer,
    hurried,
    sleeper,
    booker,
    parent,
    failing,
]


def version(number: str, *accepts: str) -> limpet.Agent[str, str]:
    """Return an agent with a version, which records it."""

    async def versioned(run: limpet.Run, gate: str) -> str:
        await run.step(temporal_mark, f"{run.id} begins")
        await run.ask("Go on?")
        await run.step(temporal_mark, f"{run.id} went on with {number}")
        return number

    return limpet.agent(name="versioned", version=number, accepts=accepts)(versioned)


VERSIONS = {"one": [version("1")], "two": [version("2")], "both": [version("2", "1")]}
one, two, both = VERSIONS["one"], VERSIONS["two"], VERSIONS["both"]
