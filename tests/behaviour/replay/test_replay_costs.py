"""The costs of a replay, in counts that do not depend on the machine."""

from hashlib import sha256
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.engine.definitions import plain_call
from limpet.engine.execution.step import Step
from limpet.engine.steps import plain_steps


@limpet.tool(effect="none", name="replay_costs_look")
async def look(n: int) -> int:
    """Return the number."""
    return n


@limpet.agent(name="replay_costs_looker")
async def looker(run: limpet.Run, count: int) -> int:
    found = [await run.step(look, n) for n in range(count)]
    await run.ask("go on?")
    return sum(found)


async def test_a_recorded_step_needs_no_digest_and_no_step_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments are compared themselves. A new step needs both."""
    digests, steps = list[Any](), list[Any]()

    def hashing(data: bytes) -> Any:
        digests.append(data)
        return sha256(data)

    def making(*args: Any) -> Any:
        steps.append(args)
        return Step(*args)

    monkeypatch.setattr(plain_call, "sha256", hashing)
    monkeypatch.setattr(plain_steps, "Step", making)
    async with testing.app(looker) as app:
        handle = await app.start(looker, 50, id="r")
        await app.settle()
        assert (len(digests), len(steps)) == (50, 50)
        await app.crash()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == sum(range(50))
        assert (len(digests), len(steps)) == (50, 50)
