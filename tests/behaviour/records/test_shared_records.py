"""Shared records: several runs, people and services read and patch them, and no change is lost."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.testing.crash_points import When
from tests.servers.parking import parking


@limpet.agent(name="records_noter")
async def noter(run: limpet.Run, key: str) -> int:
    """Read the board, and note a fact there."""
    board = await run.record("board")
    await run.patch_record(board, facts={key: run.id}, source="the agent")
    return board.version


@limpet.agent(name="records_taker")
async def taker(run: limpet.Run) -> str:
    """Take the next item of the plan, however often another agent is faster."""
    while True:
        board = await run.record("board")
        free = [item for item, status in zip(board.plan, board.plan_status, strict=True) if status == "pending"]
        if not free:
            return "nothing left"
        try:
            await run.patch_record(board, revise={free[0]: "doing"}, data={free[0]: run.id})
        except limpet.RecordConflict:
            continue
        return free[0]


async def test_a_run_patches_a_record_that_others_read() -> None:
    async with testing.app(noter) as app:
        assert await app.run(noter, "owner", id="r1") == 0
        board = await app.record("board")
        [fact] = board.known_facts
        assert (fact.key, fact.value, fact.source) == ("owner", "r1", "the agent")
        assert (fact.by, fact.via, fact.step, fact.version) == ("r1", "run", 2, 2)
        assert [(each.name, each.version) for each in await app.records()] == [("board", 2)]
        tools = [(step.tool, step.status) for step in await app.steps("r1")]
        assert tools == [("limpet.record", "completed"), ("limpet.patch_record", "completed")]
        verified = await app.verify()
        assert (verified.runs, verified.records) == (1, 1)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("kind", "nth"),
    [("step.started", 1), ("step.completed", 1), ("step.started", 2), ("record.patched", 1), ("step.completed", 2)],
)
async def test_a_step_and_its_patch_survive_a_kill_together(when: When, kind: str, nth: int) -> None:
    async with testing.app(noter) as app:
        app.crash_at(when, kind, nth=nth)
        assert await app.run(noter, "owner", id="r1") == 0
        assert app.crashes == 1
        assert [each.version for each in await app.record_changes("board")] == [2]
        assert [step.status for step in await app.steps("r1")] == ["completed", "completed"]
        await app.verify()


@limpet.tool(effect="none", name="records_seen")
async def note_seen(seen: str) -> str:
    return seen


@limpet.agent(name="records_canceller")
async def canceller(run: limpet.Run, loops: int) -> str:
    """Cancel a patch that is under way, and continue after a wait."""
    board = await run.record("board")
    patching = asyncio.ensure_future(run.patch_record(board, facts={run.id: loops}))
    for _ in range(loops):
        await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
    patching.cancel()
    try:
        await patching
        seen = "done"
    except asyncio.CancelledError:
        seen = "cancelled"
    await run.step(note_seen, seen)
    await run.ask("Go on?")
    return seen


async def test_a_patch_that_the_code_cancels_while_it_is_written_is_cancelled_again_on_resume(tmp_path: Path) -> None:
    """Its outcome is unknown to the code: it may be in the record."""
    cancelled = 0
    app = parking(limpet.open(f"sqlite:///{tmp_path}/limpet.db", agents=[canceller]))
    async with asyncio.timeout(60), app:
        for handle in [await app.start(canceller, loops, id=f"c{loops}") for loops in range(2, 20)]:
            async for event in handle.events():
                if event.kind == "run.waiting":
                    break
            steps = {step.number: step.status for step in await app.steps(handle.id)}
            if steps.get(2) != "unknown":
                continue  # it had not begun, or was done
            [request] = await app.inbox(run=handle.id)
            await app.answer(request.id, True, by="ann")
            assert await handle.result() == "cancelled"
            cancelled += 1
        assert cancelled
        await app.verify()


async def test_changes_of_different_parts_merge_and_those_of_the_same_part_conflict() -> None:
    async with testing.app() as app:
        first = await app.patch_record(
            "board", read=0, facts={"a": 1}, questions={"q1": "When?"}, plan=["x", "y"], data={"k": 1}, by="ann"
        )
        assert first.version == 2
        await app.patch_record("board", read=2, facts={"b": 2}, by="bob")
        await app.patch_record("board", read=2, answered={"q1": "now"}, by="bob")
        await app.patch_record("board", read=2, data={"other": 2}, by="bob")
        merged = await app.patch_record("board", read=2, revise={"x": "done"}, by="ann")
        assert (dict(merged.facts), merged.data) == ({"a": 1, "b": 2}, {"k": 1, "other": 2})
        assert merged.plan_status == ("done", "pending")
        assert [(each.id, each.answer, each.answered_by) for each in merged.questions] == [("q1", "now", "bob")]
        for change in (
            {"facts": {"b": 3}},
            {"close": ["q1"]},
            {"data": {"other": 3}},
            {"plan": ["z"]},
        ):
            with pytest.raises(limpet.RecordConflict) as refused:
                await app.patch_record("board", read=2, **change)
            assert (refused.value.read, refused.value.version) == (2, 6)
            assert len(refused.value.changes) == 1
        assert "fact b in version 3 by bob" in str(await _conflict(app, facts={"b": 3}))
        assert (await app.record("board")).version == 6


async def _conflict(app: limpet.App, **change: object) -> limpet.RecordConflict:
    with pytest.raises(limpet.RecordConflict) as refused:
        await app.patch_record("board", read=2, **change)  # type: ignore[arg-type]
    return refused.value


async def test_a_record_is_there_at_every_version_and_tells_who_changed_what() -> None:
    async with testing.app() as app:
        await app.patch_record("board", read=0, facts={"a": 1}, by="ann")
        await app.patch_record("board", read=2, facts={"a": 2}, by="bob")
        await app.patch_record("board", read=3, retract=["a"], by="ann")
        assert [dict((await app.record("board", version=each)).facts) for each in (1, 2, 3, 4)] == [
            {},
            {"a": 1},
            {"a": 2},
            {},
        ]
        changes = await app.record_changes("board", since=2)
        assert [(each.version, each.read, each.by) for each in changes] == [(3, 2, "bob"), (4, 3, "ann")]
        assert [(each.before, each.after) for update in changes for each in update.changes] == [(1, 2), (2, None)]
        with pytest.raises(limpet.NotFound):
            await app.record("board", version=9)
        with pytest.raises(limpet.NotFound, match="patch-record nowhere"):
            await app.record("nowhere")


async def test_runs_that_take_items_of_one_plan_never_take_the_same() -> None:
    async with testing.app(taker) as app:
        await app.patch_record("board", read=0, plan=["a", "b", "c", "d"])
        taken = await asyncio.gather(*(app.run(taker, id=f"t{number}") for number in range(5)))
        assert sorted(taken) == ["a", "b", "c", "d", "nothing left"]
        board = await app.record("board")
        assert set(board.plan_status) == {"doing"}
        await app.verify()


async def test_a_conflict_is_the_same_on_replay() -> None:
    @limpet.agent(name="records_unlucky")
    async def unlucky(run: limpet.Run) -> tuple[int, list[str]]:
        board = await run.record("board")
        await run.ask("Go on?")
        try:
            await run.patch_record(board, facts={"a": 2})
        except limpet.RecordConflict as conflict:
            await run.ask("And now?")
            return conflict.version, list(conflict.changes)
        return 0, []

    async with testing.app(unlucky) as app:
        await app.patch_record("board", read=0, facts={"a": 1})
        handle = await app.start(unlucky, id="r1")
        await app.settle()
        await app.patch_record("board", read=2, facts={"a": 9}, by="ann")
        [request] = await app.inbox()
        await app.answer(request.id, True, by="ann")
        await app.settle()
        [request] = await app.inbox()
        await app.answer(request.id, True, by="ann")
        assert await handle.result() == (3, ["fact a in version 3 by ann"])
        assert (await app.record("board")).facts["a"] == 9
        await app.verify()


async def test_a_repeated_command_patches_once() -> None:
    async with testing.app() as app:
        for _ in range(2):
            found = await app.patch_record("board", read=0, facts={"a": 1}, command_id="c1")
            assert found.version == 2
        with pytest.raises(limpet.IdConflict):
            await app.patch_record("board", read=0, facts={"a": 2}, command_id="c1")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({}, "patch"),
        ({"facts": {"": 1}}, "facts"),
        ({"retract": ["missing"]}, "retract"),
        ({"answered": {"missing": "x"}}, "answered"),
        ({"close": ["missing"]}, "close"),
        ({"unset": ["missing"]}, "unset"),
        ({"data": {"k": 2}, "unset": ["k"]}, "unset"),
        ({"plan": ["y", "y"]}, "plan"),
        ({"revise": {"missing": "done"}}, "revise"),
        ({"revise": {"x": "unknown"}}, "revise"),
        ({"facts": {"big": "x" * 70_000}}, "patch"),
    ],
)
async def test_a_patch_that_does_not_fit_is_refused_before_anything_happens(
    change: dict[str, object], path: str
) -> None:
    async with testing.app() as app:
        await app.patch_record("board", read=0, plan=["x"], data={"k": 1})
        with pytest.raises(limpet.InvalidArgument) as refused:
            await app.patch_record("board", read=2, **change)  # type: ignore[arg-type]
        assert refused.value.path.startswith(path)
        assert (await app.record("board")).version == 2


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "x" * 200])
async def test_a_name_that_cannot_be_an_id_is_refused(name: str) -> None:
    async with testing.app() as app:
        with pytest.raises(limpet.InvalidArgument):
            await app.patch_record(name, read=0, facts={"a": 1})


async def test_a_stubbed_fork_leaves_the_record_alone() -> None:
    async with testing.app(noter) as app:
        await app.run(noter, "owner", id="r1")
        forked = await app.fork("r1", at=1, effects="stub")
        await forked.result()
        assert (await app.record("board")).version == 2


async def test_a_fork_asks_before_it_patches() -> None:
    async with testing.app(noter) as app:
        await app.run(noter, "owner", id="r1")
        forked = await app.fork("r1", at=1)
        await app.settle()
        [request] = await app.inbox()
        assert (request.tool, request.args) == (
            "limpet.patch_record",
            {"record": "board", "read": 2, "change": {"facts": {"owner": forked.id}, "source": "the agent"}},
        )
        await app.patch_record("board", read=2, retract=["owner"])
        await app.approve(request.id, by="ann")
        with pytest.raises(limpet.RunFailed, match="has changed since version 2"):
            await forked.result()


async def test_changes_are_watched() -> None:
    async with testing.app() as app:
        watched: Any = app.watch_records(record="board")
        item = asyncio.ensure_future(anext(watched))
        await app.patch_record("other", read=0, facts={"a": 1})
        while not item.done():
            await app.patch_record("board", read=0, data={"k": 1}, command_id="c1")
            await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
        found = item.result()
        assert (found.record, found.version) == ("board", 2)
        await watched.aclose()


def test_sync_agents_share_records() -> None:
    @limpet.agent(name="records_sync")
    def sync_noter(run: limpet.sync.Run) -> int:
        board = run.record("board")
        run.patch_record(board, facts={"a": 1})
        return run.record("board").version

    async def play() -> int:
        async with testing.app(sync_noter) as app:
            return await app.run(sync_noter, id="r1")

    assert asyncio.run(play()) == 2


async def test_two_apps_see_each_others_patches(tmp_path: Path) -> None:
    """A state that one of them keeps in memory goes on from what the other wrote."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    async with limpet.open(url, worker=False) as one, limpet.open(url, worker=False) as other:
        first = await one.patch_record("board", read=0, facts={"a": 1})
        for number in range(20):
            found = await (other if number % 2 else one).patch_record("board", read=2, data={f"k{number}": number})
        assert (await one.record("board")) == (await other.record("board")) == found
        assert len(found.data) == 20
        assert await other.record("board", version=2) == first


async def test_a_full_record_takes_a_repeated_patch_and_removals() -> None:
    """A patch that was written stays written, although the record has been filled since."""
    async with testing.app() as app:
        large = {"text": "x" * 60_000}
        await app.patch_record("board", read=0, data={"first": large}, command_id="c1")
        for number in range(15):
            await app.patch_record("board", read=2, data={f"k{number}": large})
        with pytest.raises(limpet.InvalidArgument, match="larger than"):
            await app.patch_record("board", read=2, data={"last": large})
        assert (await app.patch_record("board", read=0, data={"first": large}, command_id="c1")).version == 2
        found = await app.patch_record("board", read=17, unset=["k0"])
        assert "k0" not in found.data


@limpet.agent(name="records_traveller")
async def traveller(run: limpet.Run) -> list[str]:
    """Read the board, move to another store, and note a fact there."""
    told = list[str]()
    board = await run.record("board")
    await run.receive("moved", bool)
    try:
        await run.patch_record(board, facts={"guest": run.id})
    except limpet.RecordConflict as error:
        told += error.changes
        await run.patch_record(await run.record("board"), facts={"guest": run.id})
    return told


@pytest.mark.parametrize("has_board", [True, False])
async def test_a_run_that_moved_does_not_patch_another_record_unread(tmp_path: Path, has_board: bool) -> None:
    """The other store has another record of that name and version, or none."""
    bundle = tmp_path / "r.zip"
    async with testing.app(traveller) as app:
        await app.patch_record("board", read=0, facts={"owner": "ann"})
        await app.start(traveller, id="r")
        await app.settle()
        await app.export("r", bundle)
    async with testing.app(traveller) as app:
        if has_board:
            await app.patch_record("board", read=0, facts={"owner": "bob"})
        handle = await app.load(bundle)
        await app.signal(handle.id, "moved", True)
        await app.resume(handle.id)
        assert await handle.result() == ["this store has another record of that name"]
        board = await app.record("board")
        assert board.facts == ({"owner": "bob"} if has_board else {}) | {"guest": handle.id}
