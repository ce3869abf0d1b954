"""Timelines: when a run worked and when it waited, computed from its log."""

import asyncio
from itertools import pairwise

import pytest

import limpet
from limpet import Retry, RunFailed
from limpet.service.timeline import Span, TimelineRow, timeline

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
    return await timeline(app.store, run)


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


def test_a_step_written_in_one_append_has_a_maximum_duration() -> None:
    """The start is unknown, and the span is marked `at_most`."""
    line = TimelineRow(number=1, name="read#1", spans=[Span(how="completed", start=5, end=5)])
    assert line.set_earliest_start(2)
    assert line.spans == [Span(how="completed", start=2, end=5, at_most=True)]
    longer = TimelineRow(number=1, name="read#1", spans=[Span(how="completed", start=4, end=5)])
    assert not longer.set_earliest_start(2)
