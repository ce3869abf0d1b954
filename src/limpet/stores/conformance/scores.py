"""Scores: said of a run in any status, changed and withdrawn by the person who gave them, and never seen by the run."""

import asyncio

from limpet.errors import IdConflict, InvalidAppend, NotFound
from limpet.events import bodies as b
from limpet.events import inline
from limpet.stores import Missed, RunFilter, ScoreCondition, ScoreFilter
from limpet.stores.conformance.suite import FAILED, World, behaviour, completed, expect, forked, started

LEAST, MOST = float("-inf"), float("inf")


def scored(
    command: str, value: float | str | None = 0.5, *, name: str = "quality", by: str = "ann", step: int | None = None
) -> b.ScoreGiven:
    """Return a score."""
    return b.ScoreGiven(command=command, score=name, value=value, number=step, by=by, comment="" if value else "why")


def withdrawn(command: str, *, name: str = "quality", by: str = "ann") -> b.ScoreWithdrawn:
    """Return the withdrawal of a score."""
    return b.ScoreWithdrawn(command=command, score=name, by=by)


@behaviour()
async def a_score_is_listed_with_its_value(world: World) -> None:
    """A score is listed with its name, person, step, value and event."""
    owner = await world.own()
    await owner.append(started(1), completed(1))
    await world.store.send_commands("r1", scored("c1", 0.25, step=1), actor="ann")
    await world.store.send_commands("r1", scored("c2", "good", name="verdict"), actor="ann")
    verdict, quality = sorted(await world.store.scores(), key=lambda row: -row.seq)
    assert (quality.run, quality.name, quality.by, quality.step, quality.number) == ("r1", "quality", "ann", 1, 0.25)
    assert (verdict.name, verdict.step, verdict.number, verdict.text) == ("verdict", 0, None, "good")
    assert verdict.seq == quality.seq + 1 == (await world.store.get("r1")).seq


@behaviour()
async def a_score_changes_nothing_of_a_run_but_its_head(world: World) -> None:
    """A parked run stays parked, an ended one ended, and neither becomes ready."""
    await world.waiting("signal", "go")
    owner = await world.own("r2", "w2")
    await owner.append(FAILED)
    for run in ("r1", "r2"):
        before = await world.store.get(run)
        await world.store.send_commands(run, scored("c1"), actor="ann")
        after = await world.store.get(run)
        fields = [name for name in before.__struct_fields__ if getattr(before, name) != getattr(after, name)]
        assert fields == ["seq", "hash"], fields
    assert not await world.claim()


@behaviour()
async def the_owner_of_a_scored_run_continues(world: World) -> None:
    """The worker that holds a run misses the score, and appends after it."""
    owner = await world.own()
    await world.store.send_commands("r1", scored("c1"), actor="ann")
    missed = await owner.send(owner.extend(started(1)))
    assert isinstance(missed, Missed)
    assert [each.event.kind for each in missed.events] == ["score.given"]
    owner.head = missed.events[-1].event.head
    await owner.append(started(1), completed(1))


@behaviour()
async def the_newest_score_of_a_person_counts(world: World) -> None:
    """The newest score of a name, person and step replaces the earlier one; others keep theirs."""
    owner = await world.own()
    await owner.append(started(1), completed(1))
    given = [scored("c1", 0.1), scored("c2", 0.2, by="bob"), scored("c3", 0.3, step=1), scored("c4", 0.9)]
    for each in given:
        await world.store.send_commands("r1", each, actor="ann")
    found = {(row.by, row.step): row.number for row in await world.store.scores()}
    assert found == {("ann", 0): 0.9, ("bob", 0): 0.2, ("ann", 1): 0.3}
    assert (await world.kinds()).count("score.given") == 4


@behaviour()
async def a_withdrawn_score_is_not_listed(world: World) -> None:
    """A withdrawn score leaves the list; one of another person stays. Both events stay in the log."""
    await world.create()
    for each in (scored("c1"), scored("c2", by="bob"), withdrawn("c3")):
        await world.store.send_commands("r1", each, actor="ann")
    assert [row.by for row in await world.store.scores()] == ["bob"]
    assert (await world.kinds())[1:] == ["score.given", "score.given", "score.withdrawn"]


@behaviour()
async def concurrent_scores_are_all_kept(world: World) -> None:
    """Ten people score a run at the same time, through two stores."""
    await world.create()
    stores = (world.store, await world.another())
    given = (stores[n % 2].send_commands("r1", scored(f"c{n}", by=f"p{n}"), actor="x") for n in range(10))
    await asyncio.gather(*given)
    assert len(await world.store.scores()) == 10


@behaviour()
async def a_score_sent_twice_is_recorded_once(world: World) -> None:
    """A repeated command is recorded once, and refused with another value."""
    await world.create()
    for _ in range(2):
        await world.store.send_commands("r1", scored("c1"), actor="ann")
    await expect(IdConflict, world.store.send_commands("r1", scored("c1", 0.9), actor="ann"))
    assert (await world.kinds()) == ["run.created", "score.given"]


@behaviour()
async def a_wrong_score_is_refused(world: World) -> None:
    """A score of a step that does not exist, without value and comment, without a name, or with a long one."""
    await world.create()
    await expect(NotFound, world.store.send_commands("r1", scored("c1", step=1), actor="ann"))
    for wrong in (
        b.ScoreGiven(command="c1", score="quality"),
        scored("c1", name=""),
        scored("c1", name="q" * 501),
        scored("c1", "é" * 251),
        scored("c1", 2**60),
        scored("c1", step=-1),
    ):
        await expect(InvalidAppend, world.store.send_commands("r1", wrong, actor="ann"))
    assert await world.kinds() == ["run.created"]


@behaviour()
async def runs_are_found_by_score(world: World) -> None:
    """Runs are found by the name, number or category of a score."""
    for place, value in enumerate((0.1, 0.5, 0.9, "bad", None)):
        await world.create(f"r{place}")
        await world.store.send_commands(f"r{place}", scored("c1", value), actor="ann")
    await world.create("r9")
    for wanted, runs in (
        (ScoreCondition("quality"), ["r0", "r1", "r2", "r3", "r4"]),
        (ScoreCondition("quality", LEAST, 0.5), ["r0", "r1"]),
        (ScoreCondition("quality", 0.5, 0.5), ["r1"]),
        (ScoreCondition("quality", 0.6, MOST), ["r2"]),
        (ScoreCondition("quality", text="bad"), ["r3"]),
        (ScoreCondition("other"), []),
    ):
        where = RunFilter(scored=wanted)
        assert [row.id for row in (await world.store.runs(where)).rows][::-1] == runs, wanted
        assert sorted(row.id for row in await world.store.latest_runs(where)) == runs, wanted
        assert await world.store.count(where) == len(runs), wanted


@behaviour()
async def scores_are_listed_newest_first_page_by_page(world: World) -> None:
    """Scores are listed newest first, by run, name, person and time, and page by page."""
    for place in range(4):
        world.advance("1s")
        await world.create(f"r{place}")
        for name in ("quality", "correct"):
            by = "ann" if place % 2 else "bob"
            await world.store.send_commands(f"r{place}", scored(name, name=name, by=by), actor="x")
    everything = await world.store.scores()
    assert [(row.run, row.name) for row in everything[:3]] == [("r3", "correct"), ("r3", "quality"), ("r2", "correct")]
    read, before = list(everything[:0]), None
    while page := await world.store.scores(ScoreFilter(before=before), limit=3):
        read += page
        before = (page[-1].time, page[-1].run, page[-1].seq)
    assert read == everything
    assert len(everything) == 8
    assert len(await world.store.scores(ScoreFilter(run="r1"))) == 2
    assert len(await world.store.scores(ScoreFilter(name="quality", by="ann"))) == 2
    assert len(await world.store.scores(ScoreFilter(time_from=everything[3].time))) == 4
    assert await world.store.scores(ScoreFilter(step=1)) == []


@behaviour()
async def a_fork_has_no_scores(world: World) -> None:
    """A fork shares the events of its origin, also a score, but it is not scored."""
    owner = await world.own()
    await world.store.send_commands("r1", scored("c1"), actor="ann")
    missed = await owner.send(owner.extend(started(1)))
    assert isinstance(missed, Missed)
    owner.head = missed.events[-1].event.head
    at = (await owner.append(started(1), completed(1))).seq
    await world.store.create("r2", forked(at, step=1), actor="test")
    await world.store.rebuild("r2")
    assert [row.run for row in await world.store.scores()] == ["r1"]
    await world.store.send_commands("r2", scored("c1", 0.9, step=1), actor="ann")
    assert {row.run: row.number for row in await world.store.scores()} == {"r1": 0.5, "r2": 0.9}


@behaviour()
async def scores_are_found_after_a_rebuild(world: World) -> None:
    """A rebuild restores every score, and the log matches its rows before and after."""
    await world.create()
    for each in (scored("c1"), scored("c2", "bad", name="verdict"), scored("c3", by="bob"), withdrawn("c4", by="bob")):
        await world.store.send_commands("r1", each, actor="ann")
    before = await world.store.scores()
    assert await world.store.check_rows("r1") == []
    await world.store.rebuild("r1")
    assert await world.store.scores() == before
    assert await world.store.check_rows("r1") == []
    assert len(before) == 2


@behaviour()
async def the_scores_of_a_pruned_run_are_gone(world: World) -> None:
    """A run is pruned with its scores."""
    owner = await world.own()
    await owner.append(b.RunCompleted(output=inline(None)))
    await world.store.send_commands("r1", scored("c1"), actor="ann")
    assert await world.store.prune({"r1": (await world.store.get("r1")).head})
    assert await world.store.scores() == []
    assert await world.store.check_strays() == []
