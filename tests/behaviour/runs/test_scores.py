"""Scores are said of runs and steps in any status, found and exported, and never change or reach the run."""

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

import limpet
from limpet import testing
from limpet.redaction import Redaction
from limpet.service.scores import score_condition
from limpet.stores.cipher import MasterKeys
from limpet.testing import TestApp

GITHUB = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2


@limpet.tool(effect="idempotent", name="scores_double")
async def double(number: int) -> int:
    return 2 * number


@limpet.tool(effect="idempotent", name="scores_break")
async def break_it(number: int) -> int:
    raise ValueError(f"{number} is wrong")


@limpet.agent(name="scores_counts")
async def counts(run: limpet.Run, number: int) -> int:
    """Double twice, with a wait in between."""
    number = await run.step(double, number)
    await run.receive("go", str)
    return await run.step(double, number)


@limpet.agent(name="scores_fails")
async def fails(run: limpet.Run, number: int) -> int:
    return await run.step(break_it, number)


async def waiting(app: TestApp, run: str = "r") -> None:
    await app.start(counts, 2, id=run)
    await app.settle()


async def ended(app: TestApp, run: str = "r") -> None:
    await waiting(app, run)
    await app.signal(run, "go", "now")
    await app.settle()


def told(scores: list[Any]) -> list[tuple[Any, ...]]:
    return [(each.run, each.step, each.name, each.value, each.comment, each.by) for each in scores]


async def test_a_score_is_recorded_with_who_where_and_when() -> None:
    """Value and comment may each be missing. The newest is first, and its event is in the log."""
    async with testing.app(counts) as app:
        await waiting(app)
        given = await app.score("r", "quality", 0.2, comment="too slow", step=1, by="ann")
        assert (given.agent, given.version, given.via, given.seq) == (
            "scores_counts",
            "1",
            "python",
            len(await app.log("r")),
        )
        await app.advance("1s")
        await app.score("r", "correct", True, by=limpet.Principal(name="checks", kind="service", door="http"))
        await app.advance("1s")
        await app.score("r", "note", comment="look again")
        assert told(await app.scores()) == [
            ("r", None, "note", None, "look again", ""),
            ("r", None, "correct", True, "", "checks"),
            ("r", 1, "quality", 0.2, "too slow", "ann"),
        ]
        assert [each.via for each in await app.scores()] == ["python", "http", "python"]
        assert (await app.show("r")).scores == tuple(await app.scores())


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"value": None}, "value"),
        ({"value": float("nan")}, "value"),
        ({"value": 2**60}, "value"),
        ({"value": [1]}, "value"),
        ({"value": ""}, "value"),
        ({"value": 1, "name": " "}, "name"),
    ],
)
async def test_a_wrong_score_is_refused(given: dict[str, Any], path: str) -> None:
    """The error names the argument, and nothing is recorded."""
    async with testing.app(counts) as app:
        await waiting(app)
        before = await app.log("r")
        with pytest.raises(limpet.InvalidArgument) as refused:
            await app.score("r", given.get("name", "quality"), given["value"])
        assert refused.value.path == path
        for step in (2, 99):
            with pytest.raises(limpet.NotFound, match=f"{step} of r"):
                await app.score("r", "quality", 1, step=step)
        with pytest.raises(limpet.NotFound):
            await app.unscore("r", "quality", by="ann")
        assert await app.log("r") == before


async def test_a_person_changes_and_withdraws_their_own_score() -> None:
    """The newest counts, others keep theirs, and the log has all of them."""
    async with testing.app(counts) as app:
        await waiting(app)
        await app.score("r", "quality", 0.2, by="ann")
        await app.score("r", "quality", 0.9, by="ben")
        await app.score("r", "quality", 0.4, by="ann")
        assert {(each.by, each.value) for each in await app.scores()} == {("ann", 0.4), ("ben", 0.9)}
        for _ in range(2):  # the repeated command has no further effect
            await app.unscore("r", "quality", by="ann", command_id="w-1")
        assert [each.by for each in await app.scores()] == ["ben"]
        with pytest.raises(limpet.NotFound, match="score"):
            await app.unscore("r", "quality", by="ann")
        kinds = [each.kind for each in await app.log("r") if each.kind.startswith("score.")]
        assert kinds == ["score.given"] * 3 + ["score.withdrawn"]


async def test_a_repeated_command_is_recorded_once() -> None:
    """Also after the score was changed; other content with the same id is refused."""
    async with testing.app(counts) as app:
        await waiting(app)
        first = await app.score("r", "quality", 0.2, by="ann", command_id="s-1")
        await app.score("r", "quality", 0.4, by="ann")
        assert await app.score("r", "quality", 0.2, by="ann", command_id="s-1") == first
        with pytest.raises(limpet.IdConflict):
            await app.score("r", "quality", 0.3, by="ann", command_id="s-1")
        assert [each.value for each in await app.scores()] == [0.4]


async def test_a_score_changes_neither_a_waiting_nor_an_ended_run() -> None:
    """Status, waits, state, steps, output and replay are as before; a run that failed can be resumed."""
    async with testing.app(counts, fails) as app:
        await waiting(app)
        await ended(app, "done")
        await app.start(fails, 1, id="failed")
        await app.settle()
        for run, how in (("r", "waits"), ("done", "returned"), ("failed", "raised")):
            before, state, steps = await app.info(run), await app.state(run), await app.steps(run)
            for number in range(3):
                await app.score(run, f"quality-{number}", 0.1, step=1, by="ann")
            await app.settle()
            after = await app.info(run)
            assert (after.status, after.waits_for, after.ended) == (before.status, before.waits_for, before.ended)
            assert (after.position.step, after.output, after.error) == (
                before.position.step,
                before.output,
                before.error,
            )
            assert str(await app.state(run)).splitlines()[1:] == str(state).splitlines()[1:]
            assert await app.steps(run) == steps
            await app.verify(run)
            assert (await app.replay(run)).how == how
        await app.signal("r", "go", "now")
        assert await (await app.get("r", counts)).result() == 8
        await app.resume("failed")
        with pytest.raises(limpet.RunFailed):
            await (await app.get("failed", fails)).result()


async def test_a_run_that_is_driven_continues_while_it_is_scored() -> None:
    """Scores arrive between and during its steps, from several people at once."""
    entered, go = asyncio.Event(), asyncio.Event()

    @limpet.tool(effect="once", name="scores_slow")
    async def slow(number: int) -> int:
        entered.set()
        await go.wait()
        return number

    @limpet.agent(name="scores_driven")
    async def driven(run: limpet.Run) -> list[int]:
        return [await run.step(slow, number) for number in range(5)]

    async with limpet.open("memory:", agents=[driven]) as app:
        handle = await app.start(driven, id="r")
        await entered.wait()
        await asyncio.gather(*(app.score("r", "quality", n / 10, by=f"p{n}") for n in range(10)))
        go.set()
        await app.score("r", "late", 1, by="ann")
        assert await handle.result() == [*range(5)]
        kinds = [each.kind for each in await app.log("r")]
        assert kinds.count("step.started") == kinds.count("step.completed") == 5
        assert (kinds.count("score.given"), kinds.count("run.claimed")) == (11, 1)
        assert len(await app.scores(run="r", last=20)) == 11
        await app.verify("r")


async def test_a_fork_has_no_scores_of_its_origin() -> None:
    """Wherever it begins, also after the end of the origin; it has its own, also of shared steps."""
    async with testing.app(counts) as app:
        await waiting(app)
        await app.score("r", "quality", 0.1, step=1, by="ann")
        await app.signal("r", "go", "now")
        await app.settle()
        await app.score("r", "quality", 0.2, by="ann")
        for at in (2, 3):
            fork = await app.fork("r", at=at, effects="stub")
            await app.settle()
            assert await app.scores(run=fork.id) == []
            assert (await app.show(fork.id)).scores == ()
            await app.verify(fork.id)
            await app.score(fork.id, "quality", 0.9, step=1, by="ann")
            assert [each.value for each in await app.scores(run=fork.id)] == [0.9]
        assert {each.value for each in await app.scores(run="r")} == {0.1, 0.2}
        assert [each.id for each in await app.runs(scored="quality<0.5")] == ["r"]


async def test_the_agent_does_not_see_scores() -> None:
    """Neither its context nor its diff has them."""
    async with testing.app(counts) as app:
        await waiting(app)
        await app.score("r", "quality", comment="bollard", by="ann")
        await app.signal("r", "go", "now")
        await app.settle()
        assert "bollard" not in str(await app.context("r"))
        assert "bollard" not in str(await app.diff("r"))
        assert "bollard" in str((await app.search("bollard"))[0].body)


@pytest.mark.parametrize(
    ("scored", "runs"),
    [
        ("quality", "abcde"),
        ("quality<0.5", "a"),
        ("quality <= 0.5", "ab"),
        ("quality=0.5", "b"),
        ("quality>0.5", "ce"),
        ("quality>=0.5", "bce"),
        ("quality=true", "e"),
        ("quality=bad", "d"),
        ('quality="bad"', "d"),
        ("tone", ""),
        ("of a step", "a"),
    ],
)
async def test_runs_are_found_by_score(scored: str, runs: str) -> None:
    async with testing.app(counts) as app:
        for run, value in zip("abcde", (0.25, 0.5, 0.75, "bad", True), strict=True):
            await waiting(app, run)
            await app.score(run, "quality", value, by="ann")
        await waiting(app, "f")
        await app.score("a", "of a step", 1, step=1)
        for sort in ("created", "updated"):
            found = await app.runs(scored=scored, since="7d", sort=sort)
            assert sorted(each.id for each in found) == [*runs]


@pytest.mark.parametrize("wrong", ["", " ", "<1", "quality<", "quality<bad", "quality=", "=1", "quality<1e999"])
def test_an_unclear_condition_is_refused(wrong: str) -> None:
    with pytest.raises(limpet.InvalidArgument, match="scored"):
        score_condition(wrong)


async def test_a_dataset_has_inputs_and_outputs() -> None:
    """Of the run, or of the step with its tool; why there is none; filtered, and page by page."""
    async with testing.app(counts, fails) as app:
        await ended(app)
        await app.start(fails, 7, id="failed")
        await app.settle()
        for run, step, name in (
            ("r", None, "quality"),
            ("r", 2, "quality"),
            ("failed", 1, "why"),
            ("failed", None, "why"),
        ):
            await app.advance("1s")
            await app.score(run, name, 0.5, step=step, by="ann")
        found = await app.scores(dataset=True)
        assert [(each.run, each.step, each.tool, each.input, each.output) for each in found] == [
            ("failed", None, "", 7, None),
            ("failed", 1, "scores_break", {"number": 7}, None),
            ("r", 2, "scores_double", {"number": 4}, 8),
            ("r", None, "", 2, 8),
        ]
        assert all("7 is wrong" in each.error for each in found[:2])
        assert [each.error for each in found[2:]] == ["", ""]
        assert await app.scores(name="why", agent="scores_fails", dataset=True) == found[:2]
        assert await app.scores(agent="scores_counts", since="1s") == []
        read, cursor = list[Any](), None
        while True:
            page = await app.scores(dataset=True, last=1, cursor=cursor)
            read += page
            if (cursor := page.next) is None:
                break
        assert read == found


async def test_scores_move_with_their_run_and_are_pruned_with_it(tmp_path: Path) -> None:
    """An exported run is loaded with its scores and hashes."""
    async with testing.app(counts) as app:
        await ended(app)
        await app.score("r", "quality", 0.2, comment="slow", step=1, by="ann")
        before, log = told(await app.scores()), await app.log("r")
        await app.export("r", tmp_path / "r.zip")
        await app.advance("2d")
        await app.prune(older_than="1d", dry_run=False)
        assert (await app.runs(), await app.scores()) == ([], [])
        await app.load(tmp_path / "r.zip")
        assert told(await app.scores()) == before
        assert await app.log("r") == log
        await app.verify("r")


async def test_in_an_encrypted_store_names_categories_and_comments_are_hidden(tmp_path: Path) -> None:
    """They are found by their exact text; a number stays readable, so that it can be compared."""
    path = tmp_path / "store.db"
    store = limpet.open_store(f"sqlite:///{path}", keys=MasterKeys(lambda: bytes(32)))
    async with limpet.open(agents=[counts], worker=False).replace(store=store) as app:
        await app.start(counts, 2, id="r")
        await app.score("r", "bollard", "capstan", comment="hawser", by="ann")
        await app.score("r", "bollard", 0.25, by="ben")
        assert {each.value for each in await app.scores(name="bollard")} == {"capstan", 0.25}
        for condition, runs in (("bollard=capstan", ["r"]), ("bollard<0.5", ["r"]), ("bollard>0.5", []), ("other", [])):
            assert [each.id for each in await app.runs(scored=condition)] == runs
        await app.verify("r")
    rows = list(apsw.Connection(str(path)).execute("SELECT by, number FROM limpet_scores ORDER BY by"))
    assert rows == [("ann", None), ("ben", 0.25)]
    content = path.read_bytes()
    assert not any(word in content for word in (b"bollard", b"capstan", b"hawser"))


async def test_credentials_are_removed_from_scores() -> None:
    """From what is shown, and with `redact` from what is recorded."""
    async with testing.app(counts) as app:
        await waiting(app)
        await app.score("r", "note", comment=f"it used {GITHUB}")
        assert GITHUB in str((await app.store.read("r"))[-1].body)
        app.store.redaction = Redaction(patterns=True)
        await app.score("r", "key", GITHUB, comment=f"it used {GITHUB}")
        assert GITHUB not in str((await app.store.read("r"))[-1].body)
        assert GITHUB not in str(await app.scores())


async def test_the_result_of_a_run_with_many_scores_is_found() -> None:
    """Whatever follows its end, also a stream of its events ends."""
    async with testing.app(counts, fails) as app:
        await ended(app)
        await app.start(fails, 1, id="failed")
        await app.settle()
        await app.resume("failed")
        await app.settle()
        for number in range(150):
            await app.score("r", "quality", number, by="ann")
        await app.score("failed", "quality", 1, by="ann")
        assert await (await app.get("r", counts)).result() == 8
        with pytest.raises(limpet.RunFailed):
            await (await app.get("failed", fails)).result()
        assert len([each async for each in app.events("r")]) == len(await app.log("r", limit=1000))
