"""How the newest runs went, what followed a call in others, and the timeline of a part of a long run."""

import asyncio
from contextlib import suppress

import pytest

import limpet
from limpet import RunFailed
from limpet.events import AnyBody, Event
from limpet.service.timeline import TimelineRow


@limpet.tool(effect="once", name="activity_pay", risk="external_action")
async def pay(cents: int) -> str:
    """Pay."""
    if cents > 900:
        raise limpet.Permanent("too much")
    limpet.current().spent(cost=cents / 100)
    return f"P-{cents}"


@limpet.tool(effect="none", name="activity_note")
async def note(text: str) -> str:
    """Note."""
    return text


@limpet.agent(name="activity_payer", version="2")
async def payer(run: limpet.Run, cents: int) -> str:
    """Pay, and note it."""
    receipt = await run.step(pay, cents)
    return await run.step(note, receipt)


@limpet.agent(name="activity_asker", approvals=limpet.Approvals("external_action", to="ann"))
async def asker(run: limpet.Run, cents: int) -> str:
    """Pay when it is approved."""
    receipt = await run.step(pay, cents)
    return await run.step(note, receipt)


@limpet.agent(name="activity_parent")
async def parent(run: limpet.Run, cents: int) -> str:
    """Let another agent pay."""
    return await run.call(payer, cents)


@limpet.agent(name="activity_long")
async def long(run: limpet.Run, steps: int) -> None:
    """Make many steps, with a wait after each third."""
    for place in range(1, steps + 1):
        await run.step(note, str(place))
        if place % 3 == 0:
            await run.receive(f"go-{place}", int)


async def test_activity_counts_the_newest_runs_by_time_and_agent() -> None:
    """Success, durations and costs; those of a called run count in its caller, too."""
    async with limpet.open("memory:", agents=[payer, parent, asker]) as app:
        assert (await app.activity()).runs == 0
        for cents in (100, 200, 600):
            await app.run(payer, cents)
        with pytest.raises(RunFailed):
            await app.run(payer, 1000)
        await app.run(parent, 300, id="p")
        await app.start(asker, 10, id="a")
        while not await app.inbox():
            await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
        assert (await app.info("p")).cost == 3
        found = await app.activity()
        assert (found.runs, found.ended, found.failed, found.cost) == (7, 6, 1, 15)
        assert [sum(getattr(each, name) for each in found.periods) for name in ("created", "completed", "failed")] == [
            *(7, 5, 1)
        ]
        [asked] = await app.inbox()
        assert found.oldest_request == found.median_request == asked.opened
        assert [each.waiting_since for each in found.periods if each.waiting_since] == [asked.opened]
        [first, *others] = found.agents
        assert (first.agent, first.versions, first.runs, first.completed, first.failed) == (
            *("activity_payer", ("2",), 5, 4, 1),
        )
        assert (first.success, first.median_cost, first.p95_cost, first.cost) == (0.8, 2, 6, 12)
        assert first.median_seconds is not None
        assert first.p95_seconds is not None
        assert 0 < first.median_seconds <= first.p95_seconds
        assert {each.agent: each.success for each in others} == {"activity_parent": 1, "activity_asker": None}
        only = await app.activity(agent="activity_payer", last=1)
        assert (only.runs, [each.agent for each in only.agents]) == (1, ["activity_payer"])


async def test_precedents_tell_what_followed_the_same_call() -> None:
    """In the agent's other runs, the newest first; a question without a call has none."""
    async with limpet.open("memory:", agents=[asker]) as app:
        for cents in (10, 20, 950):
            await app.start(asker, cents, id=f"a-{cents}")
            while not (open_now := await app.inbox(run=f"a-{cents}")):
                await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
            if cents == 20:
                [asked] = open_now
                found = await app.precedents(asked.id)
                assert [(each.run, each.step_status, each.next, each.status) for each in found] == [
                    ("a-10", "completed", "activity_note#1", "completed")
                ]
            await app.approve(open_now[0], by="ann")
            with suppress(RunFailed):
                await (await app.get(f"a-{cents}")).result()
        found = await app.precedents(asked.id)
        assert [(each.run, each.step_status, each.next, each.status) for each in found] == [
            ("a-950", "failed", "", "failed"),
            ("a-10", "completed", "activity_note#1", "completed"),
        ]


async def test_a_page_of_a_timeline_reads_only_its_part_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages together are the whole, with every wait once, and a page in the middle reads few events."""
    async with limpet.open("memory:", agents=[long]) as app:
        await app.start(long, 60, id="r")
        for place in range(3, 61, 3):
            await app.signal("r", f"go-{place}", 1)
        await (await app.get("r")).result()
        whole, found, cursor = await app.timeline("r"), list[TimelineRow](), None
        assert [row.number for row in whole if row.number] == [*range(1, 61)]
        while True:
            page = await app.timeline("r", limit=7, cursor=cursor)
            found += page
            if (cursor := page.next) is None:
                break
        assert found == whole
        read: list[int] = []
        events = app.store.decode

        def decode(event: Event) -> AnyBody:
            read.append(event.seq)
            return events(event)

        monkeypatch.setattr(app.store, "decode", decode)
        middle = await app.timeline("r", limit=3, cursor="30")
        assert [row.number for row in middle if row.number] == [31, 32, 33]
        assert len(read) < 40


@limpet.agent(name="activity_decider")
async def decider(run: limpet.Run, count: int) -> None:
    """Decide often."""
    for place in range(count):
        await run.decide(f"which {place}?", choose=place, over=[place, -1], because="it is")
        await run.step(note, str(place))


async def test_the_decisions_of_one_run_are_listed() -> None:
    """The newest first, with their options; also those that its state does not keep, and none before a cursor twice."""
    async with limpet.open("memory:", agents=[decider]) as app:
        await app.run(decider, 60, id="r")
        await app.run(decider, 2, id="other")
        assert [each.chosen for each in await app.decisions(run="other")] == [1, 0]
        found, cursor = list[int](), None
        while True:
            page = await app.decisions(run="r", last=7, cursor=cursor)
            found += [each.chosen for each in page]
            if (cursor := page.next) is None:
                break
        assert found == [*range(59, -1, -1)]
        [newest, *_] = await app.decisions(run="r", last=3)
        assert (newest.options, newest.because) == ([59, -1], "it is")
