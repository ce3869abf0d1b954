"""Timelines: when a run worked and when it waited, computed from its log."""

import asyncio
from itertools import pairwise

import pytest

import limpet
from limpet import Retry, RunFailed
from limpet.service.timeline import TimelineRow, timeline_page

TRIES: list[int] = []


@limpet.tool(effect="idempotent", retry=Retry(3, first="5ms", jitter=False))
async def timeline_flaky() -> None:
    """Fail twice."""
    TRIES.append(1)
    if len(TRIES) < 3:
        raise ConnectionError("again")


@limpet.tool(effect="once", risk="external_action")
async def timeline_send() -> None:
    pass


@limpet.agent(name="timeline-child")
async def child(run: limpet.Run, text: str) -> str:
    await run.sleep("2s")
    return text


@limpet.agent(name="timeline-agent", approvals=limpet.Approvals("external_action", to="ann"))
async def agent(run: limpet.Run, text: str) -> str:
    await run.step(timeline_flaky)
    await run.step(timeline_send)
    await run.receive("paid", str)
    return await run.call(child, text)


async def lines_of(app: limpet.App, run: str) -> list[TimelineRow]:
    rows, more = await timeline_page(app.store, await app.store.get(run), 100)
    assert more is None
    return rows


async def test_a_timeline_separates_attempts_and_waits() -> None:
    """The timeline has each attempt and the waits in between: for a person, a signal, another run and a worker."""
    TRIES.clear()
    async with limpet.open("memory:", agents=[agent, child]) as app:
        handle = await app.start(agent, "x", id="r")
        while not (requests := await app.inbox()):
            await asyncio.to_thread(int)  # let the worker run
        [waiting] = [line for line in await lines_of(app, "r") if line.name == "person"]
        assert waiting.end is None
        await app.approve(requests[0], by="ann")
        await app.signal("r", "paid", "yes")
        assert await handle.result() == "x"
        found = await lines_of(app, "r")
    steps = [line for line in found if line.number is not None]
    assert [span.how for span in steps[0].spans] == ["failed", "waits", "failed", "waits", "completed"]
    assert [span.how for span in steps[1].spans] == ["completed"]
    names = [line.name for line in found if line.number is None]
    assert [name for name in names if name != "worker"][:1] == ["person"]
    assert names[0] == "worker"
    assert any(name.startswith("run r.") for name in names)
    for line in found:
        assert line.end is not None
        assert all(one.end == other.start for one, other in pairwise(line.spans))


async def test_a_forks_timeline_omits_the_shared_events() -> None:
    TRIES.clear()

    @limpet.agent(name="timeline-short")
    async def short(run: limpet.Run, text: str) -> None:
        await run.step(timeline_flaky)
        raise ValueError(text)

    async with limpet.open("memory:", agents=[short]) as app:
        with pytest.raises(RunFailed):
            await app.run(short, "x", id="r")
        made = await app.fork("r", seq=(await app.log("r"))[-2].seq, effects="stub")
        with pytest.raises(RunFailed):
            await made.result()
        assert [line.number for line in await lines_of(app, "r") if line.number] == [1]
        assert [line.number for line in await lines_of(app, made.id) if line.number] == []


async def test_a_step_recorded_with_its_end_took_at_most_the_time_before() -> None:
    """A read is appended with its result: its start is, at the earliest, the end of the step before it."""

    @limpet.tool(effect="none", name="timeline_read")
    async def read() -> None: ...

    @limpet.agent(name="timeline-reader")
    async def reader(run: limpet.Run) -> None:
        await run.step(timeline_send)
        await asyncio.to_thread(int)
        await run.step(read)

    async with limpet.open("memory:", agents=[reader]) as app:
        await app.run(reader, id="r")
        [sent, found] = [line for line in await lines_of(app, "r") if line.number is not None]
        events = await app.log("r")
    [started, ended] = [each.time for each in events if each.body.get("name") == "timeline_read#1"]
    assert [span.at_most for span in (*sent.spans, *found.spans)] == [False, started == ended]
    assert found.start == (sent.end if started == ended else started)
