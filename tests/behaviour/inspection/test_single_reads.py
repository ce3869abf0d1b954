"""One step, one request, the timeline and the family of a run."""

from pathlib import Path

import pytest

import limpet
from limpet import testing
from limpet.service.timeline import TimelineRow
from limpet.stores.api.logs import Logs
from tests.servers.parking import parking

LARGE = 20_000


@limpet.tool(effect="once", name="single_pay", risk="pay")
async def pay(note: str) -> str:
    """Pays, and returns something large."""
    return f"paid {note}"


@limpet.agent(name="single_payer", approvals=limpet.Approvals("pay", to="ann"))
async def payer(run: limpet.Run, note: str) -> str:
    return await run.step(pay, note)


async def open_request(app: limpet.App, run: limpet.Handle[str]) -> limpet.Request:
    """Return a run's open request, once it has parked."""
    async for event in run.events():
        if event.kind == "run.waiting":
            break
    [found] = await app.inbox(run=run.id)
    return found


async def test_a_step_has_its_whole_values_and_its_approval() -> None:
    """A list of steps has only the size of a large value."""
    async with parking(limpet.open("memory:", agents=[payer])) as app:
        run = await app.start(payer, "x" * LARGE, id="r")
        asked = await open_request(app, run)
        await app.approve(asked, by="ann")
        await run.result()
        [short] = await app.steps("r")
        whole = await app.step("r", 1)
        assert (short.args["bytes"] > LARGE, whole.args) == (True, {"note": "x" * LARGE})
        assert whole.result == "paid " + "x" * LARGE
        [made] = whole.requests
        assert (made.request, made.status, made.by, made.via) == (asked.id, "used", "ann", "python")
        assert made.decided is not None
        assert (whole.granted_by, whole.undo) == ("ann", None)


async def test_a_step_has_its_compensation_with_the_error() -> None:
    @limpet.tool(effect="idempotent", retry=limpet.Retry(1), name="single_book")
    async def book() -> None: ...

    @book.compensate
    async def unbook(result: None) -> None:
        raise ConnectionError("the line is dead")

    @limpet.agent(name="single_booker")
    async def booker(run: limpet.Run) -> None:
        await run.step(book)
        await run.sleep("1h")

    async with testing.app(booker) as app:
        await app.start(booker, id="r")
        await app.settle()
        await app.cancel("r", reason="withdrawn")
        await app.settle()
        step = await app.step("r", 1)
        assert step.undo is not None
        assert step.undo.error is not None
        assert (step.undo.status, step.undo.error.message) == ("failed", "the line is dead")
        [asked] = step.requests
        assert (asked.kind, asked.status) == ("compensation", "open")


async def test_a_missing_step_names_the_existing_ones() -> None:
    async with parking(limpet.open("memory:", agents=[payer])) as app:
        run = await app.start(payer, "1", id="r")
        await app.approve(await open_request(app, run), by="ann")
        await run.result()
        with pytest.raises(limpet.NotFound, match="r/2") as raised:
            await app.step("r", 2)
        assert raised.value.hint == "Pass a step from 1 to 1."


async def test_only_the_events_of_a_step_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the log is, and wherever the step is in it."""

    @limpet.tool(effect="none", name="single_count")
    async def count(place: int) -> int:
        return place

    @limpet.agent(name="single_long")
    async def long(run: limpet.Run) -> None:
        for place in range(300):
            await run.step(count, place)

    async with limpet.open("memory:", agents=[long]) as app:
        await app.run(long, id="r")

        async def refuse(*_: object, **__: object) -> None:
            raise AssertionError("the log was read")

        monkeypatch.setattr(Logs, "read", refuse)
        assert (await app.step("r", 150)).result == 149


async def test_a_decided_request_can_be_read() -> None:
    """With its decision, and with the context that the person saw."""
    async with parking(limpet.open("memory:", agents=[payer])) as app:
        run = await app.start(payer, "1", id="r")
        asked = await open_request(app, run)
        before = await app.request(asked.id)
        assert (before.decision.status, before.decision.decided) == ("open", None)
        await app.reject(asked, by="ann", because="too much")
        with pytest.raises(limpet.RunFailed):
            await run.result()
        found = await app.request(asked.id)
        assert (found.decision.status, found.decision.by, found.decision.because) == ("rejected", "ann", "too much")
        assert (found.question, found.args, found.context) == (asked.question, asked.args, asked.context)
        with pytest.raises(limpet.NotFound, match="request"):
            await app.request("none")


async def test_the_answer_to_a_question_is_shown() -> None:
    @limpet.agent(name="single_asker")
    async def asker(run: limpet.Run) -> str:
        return await run.ask("Which colour?", options=["red", "blue"])

    async with parking(limpet.open("memory:", agents=[asker])) as app:
        run = await app.start(asker, id="r")
        asked = await open_request(app, run)
        await app.answer(asked, "red", by="ann")
        await run.result()
        assert (await app.request(asked.id)).decision.answer == "red"


async def test_the_timeline_is_read_page_by_page() -> None:
    @limpet.tool(effect="none", name="single_tick")
    async def tick(place: int) -> int:
        return place

    @limpet.agent(name="single_ticker")
    async def ticker(run: limpet.Run) -> None:
        for place in range(5):
            await run.step(tick, place)

    async with limpet.open("memory:", agents=[ticker]) as app:
        await app.run(ticker, id="r")
        whole, found, cursor = await app.timeline("r"), list[TimelineRow](), None
        while True:
            page = await app.timeline("r", limit=2, cursor=cursor)
            found += page
            if (cursor := page.next) is None:
                break
        assert found == whole
        assert [row.number for row in whole if row.number is not None] == [1, 2, 3, 4, 5]


async def test_the_lineage_has_ancestors_and_descendants(tmp_path: Path) -> None:
    """Called runs, handoffs and forks, each with the run that it came from."""

    @limpet.agent(name="single_last")
    async def last(run: limpet.Run) -> str:
        return "done"

    @limpet.agent(name="single_middle")
    async def middle(run: limpet.Run) -> str:
        return await run.handoff(last, None)

    @limpet.agent(name="single_first")
    async def first(run: limpet.Run) -> str:
        return await run.call(middle, None)

    async with limpet.open(f"sqlite:///{tmp_path}/limpet.db", agents=[first, middle, last]) as app:
        await app.run(first, id="r")
        await (await app.fork("r", seq=1, id="fork")).result()
        tree = [(each.id, each.source, each.relation) for each in (await app.lineage("r")).runs]
        children = [
            ("r.single_middle-1", "r", "call"),
            ("r.single_middle-1.single_last-1", "r.single_middle-1", "handoff"),
        ]
        assert tree[0] == ("r", None, None)
        assert ("fork", "r", "fork") in tree
        assert [each for each in tree if each in children] == children
        family = await app.lineage("r.single_middle-1")
        assert [each.id for each in family.runs] == ["r", "r.single_middle-1", "r.single_middle-1.single_last-1"]
        assert (family.run, family.is_complete) == ("r.single_middle-1", True)


async def test_a_large_family_is_cut() -> None:
    @limpet.agent(name="single_child")
    async def child(run: limpet.Run, place: int) -> None: ...

    @limpet.agent(name="single_parent")
    async def parent(run: limpet.Run) -> None:
        for place in range(205):
            await run.start(child, place)

    async with limpet.open("memory:", agents=[parent, child]) as app:
        await app.run(parent, id="r")
        family = await app.lineage("r")
        assert (len(family.runs), family.is_complete) == (201, False)


async def test_doctor_reports_without_a_change() -> None:
    async with parking(limpet.open("memory:", agents=[payer])) as app:
        found = {each.what: each.level for each in await app.doctor()}
        assert found["store"] == found["runs"] == found["workers"] == "ok"
