"""Agents whose effects an outside service counts, for workers and servers that are killed at random moments."""

import asyncio
import os
from typing import Any

import limpet
from limpet.clock import SystemClock
from tests.crash.counting_service import request_service

__all__ = ["PORT", "agents", "trader"]

PORT = "TEMPORAL_TESTS_PORT"
WHILE = 30_000


async def post(path: str, key: str = "") -> int:
    """Post to the service; the answer is delayed, so that the outcome is unknown for a while."""
    answer = await asyncio.to_thread(request_service, int(os.environ[PORT]), "POST", path, key)
    await SystemClock().sleep(WHILE)
    return answer


@limpet.tool(effect="idempotent")
async def chaos_note(run: str, what: str) -> int:
    return await post(f"/keyed/{run}/{what}", limpet.idempotency_key())


@limpet.tool(effect="once")
async def chaos_pay(run: str) -> int:
    return await post(f"/once/{run}/pay")


@chaos_pay.verify
async def was_paid(run: str) -> limpet.Done[int] | None:
    times = await asyncio.to_thread(request_service, int(os.environ[PORT]), "GET", f"/once/{run}/pay")
    return limpet.Done(times) if times else None


@limpet.agent()
async def cashier(run: limpet.Run, way: str) -> int:
    await run.step(chaos_note, run.id, "cash")
    return await run.step(chaos_pay, run.id)


@limpet.agent()
async def trader(run: limpet.Run, way: str) -> int:
    """Wait in some way between effects."""
    done = await run.step(chaos_note, run.id, "begin")
    if way == "ask":
        await run.ask("Go on?")
    elif way == "sleep":
        await run.sleep("1500ms")
    elif way == "hear":
        await run.receive("word", str)
    elif way == "call":
        done += await run.call(cashier, way)
    done += await run.step(chaos_pay, run.id)
    return done + await run.step(chaos_note, run.id, "end")


agents: list[limpet.Agent[Any, Any]] = [trader, cashier]
