"""A run is scored while workers drive it and are killed: it continues, and every score is recorded once."""

import asyncio
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import limpet
from tests.crash.test_requests import KILLED, Process

STEPS = 12


@limpet.tool(effect="idempotent", name="scores_act")
async def act(number: int) -> int:
    return number


@limpet.agent(name="scores_acts")
async def acts(run: limpet.Run) -> list[int]:
    """Act, and wait for a signal in the middle, so that a test can kill the worker there."""
    done = [await run.step(act, number) for number in range(STEPS // 2)]
    await run.receive("go", str)
    return done + [await run.step(act, number) for number in range(STEPS // 2, STEPS)]


async def work(pipe: Connection, url: str, place: int) -> None:
    """Drive the run, score it after each of its own events, and die after one of them; or live on."""
    async with limpet.open(url, agents=[acts]) as app:
        handle = await app.get("r", acts)
        pipe.send("ready")
        async for event in handle.events():
            if event.kind.startswith("score."):
                continue
            await app.score("r", "quality", event.seq / 100, by=f"worker-{place}", command_id=f"{place}-{event.seq}")
            if 0 < place <= event.seq:
                os.kill(os.getpid(), signal.SIGKILL)
        await handle.result()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_killed_run_that_is_scored_continues(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Two people score it through other processes at the same time. No step is done twice."""
    url = request.getfixturevalue("postgres_schema") if store == "postgres" else f"sqlite:///{tmp_path}/s.db"
    async with limpet.open(url, agents=[acts], worker=False) as app:
        await app.start(acts, id="r")
        for place in (4, 9):
            killed = Process(work, url, place)
            people = (app.score("r", f"n{n}", n, by=f"p{n}", command_id=f"{place}-p{n}") for n in range(2))
            await asyncio.gather(*people)
            assert await killed.ended() == KILLED
        await app.signal("r", "go", "now")
        assert await Process(work, url, 0).ended() == 0
        log = await app.log("r", limit=1000)
        kinds = [each.kind for each in log]
        assert kinds.count("step.completed") == STEPS
        assert (await app.info("r")).output == [*range(STEPS)]
        given = [each.body["command"] for each in log if each.kind == "score.given"]
        assert len(given) == len(set(given))
        assert {each.by for each in await app.scores(run="r")} == {"p0", "p1", "worker-4", "worker-9", "worker-0"}
        await app.verify("r")
