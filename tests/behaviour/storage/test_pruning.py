"""Pruning: related runs that ended long ago are deleted together; others are kept."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.service.bundles import read_bundle
from limpet.stores.api.logs import LogPosition
from limpet.testing.app import TestApp


@limpet.tool(effect="none", name="prune_look")
async def look(n: int) -> int:
    return n


@limpet.agent(name="prune_plain")
async def plain(run: limpet.Run, fails: bool) -> int:
    found = await run.step(look, 1)
    if fails:
        raise ValueError("no")
    return found


@limpet.agent(name="prune_asker")
async def asker(run: limpet.Run) -> bool:
    return await run.ask("go on?")


@limpet.agent(name="prune_caller")
async def caller(run: limpet.Run, waits: bool) -> int:
    found = await run.call(plain, False)
    await run.start(plain, False, id=f"{run.id}-alone")
    if waits:
        await run.ask("go on?")
    return found


async def run_ids(app: TestApp) -> set[str]:
    """Return the ids of all runs."""
    return {each.id for each in await app.runs(last=1000)}


async def test_a_dry_run_of_prune_reports_what_would_be_deleted() -> None:
    """It changes nothing; without dry_run, exactly these runs are deleted."""
    async with testing.app(plain, asker) as app:
        await app.start(plain, False, id="done")
        await app.start(plain, True, id="failed")
        await app.start(asker, id="waits")
        await app.advance("31d")
        await app.start(plain, False, id="young")
        await app.settle()
        before = await run_ids(app)
        found = await app.prune(older_than="30d")
        assert (sorted(found.runs), found.kept, found.dry_run) == (
            ["done", "failed"],
            {"not old enough": 1},
            True,
        )
        assert str(found).startswith("runs would be deleted: 2, with ")
        assert await run_ids(app) == before
        done = await app.prune(older_than="30d", dry_run=False)
        assert sorted(done.runs) == ["done", "failed"]
        assert await run_ids(app) == {"waits", "young"}
        assert (await app.verify()).runs == 2
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        await app.settle()
        assert (await app.info("waits")).status == "completed"


async def test_prune_keeps_runs_by_rules_for_status_and_agent() -> None:
    """Failed runs are kept for longer, and those of one agent permanently."""
    async with testing.app(plain, asker) as app:
        await app.start(plain, False, id="done")
        await app.start(plain, True, id="failed")
        await app.start(asker, id="asked")
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        await app.settle()
        await app.advance("40d")
        rules: dict[str, Any] = {"by_status": {"failed": "90d"}, "by_agent": {"prune_asker": None}}
        done = await app.prune(older_than="30d", dry_run=False, **rules)
        assert done.runs == ["done"]
        assert done.kept == {"kept permanently": 1, "not old enough": 1}
        await app.advance("60d")
        assert (await app.prune(older_than="30d", dry_run=False, **rules)).runs == ["failed"]
        assert await run_ids(app) == {"asked"}
        for wrong in ({"older_than": "soon"}, {"older_than": "1d", "by_status": {"waiting": "1d"}}):
            with pytest.raises(limpet.LimpetError):
                await app.prune(**wrong)


async def test_related_runs_are_pruned_together() -> None:
    """Forks with their originals, and callers with their children, but not runs that were started independently."""
    async with testing.app(plain, caller) as app:
        await app.start(plain, False, id="r")
        await app.settle()
        await app.fork("r", at=1, id="fork")
        await app.start(caller, True, id="c")
        await app.settle()
        await app.advance("10d")
        young = await app.fork("fork", at=2)
        await app.settle()
        assert await run_ids(app) == {"r", "fork", young.id, "c", "c.prune_plain-1", "c-alone"}
        found = await app.prune(older_than="5d")
        assert found.runs == ["c-alone"]
        assert any("a related run is kept" in reason for reason in found.kept)
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        await app.settle()
        await app.advance("6d")
        done = await app.prune(older_than="5d", dry_run=False)
        assert set(done.runs) == {"r", "fork", young.id, "c", "c.prune_plain-1", "c-alone"}
        assert await run_ids(app) == set()
        assert done.events > 30


async def test_pruned_runs_are_archived_first(tmp_path: Path) -> None:
    """Archives can be loaded again. With the list of pruned runs, saved heads still verify."""
    async with testing.app(plain, asker) as app:
        await app.start(plain, False, id="r")
        await app.start(asker, id="waits")
        await app.settle()
        await app.fork("r", at=1, id="r.x")
        await app.settle()
        log = await app.log("r.x")
        await app.save_heads(tmp_path / "heads.jsonl")
        await app.advance("10d")
        done = await app.prune(older_than="1d", dry_run=False, archive=tmp_path / "old")
        assert sorted(done.runs) == ["r", "r.x"]
        with pytest.raises(limpet.Tampered, match="the log is missing"):
            await app.verify(heads=tmp_path / "heads.jsonl")
        found = await app.verify(heads=tmp_path / "heads.jsonl", pruned=tmp_path / "old" / "pruned.jsonl")
        assert found.heads == 3
        await app.load(tmp_path / "old" / "r.x.zip")
        assert await app.log("r.x") == log
        assert (await app.verify(heads=tmp_path / "heads.jsonl")).runs == 3


async def test_prune_thins_snapshots() -> None:
    """The state of the run is unchanged."""

    @limpet.tool(effect="none", name="prune_big")
    async def big(n: int) -> str:
        return str(n) * 9_000

    @limpet.agent(name="prune_long")
    async def long(run: limpet.Run, count: int) -> int:
        total = 0
        for n in range(count):
            total += len(await run.step(big, n))
        await run.ask("go on?")
        return total

    async with testing.app(long, plain) as app:
        await app.start(long, 40, id="live")
        await app.settle()
        await app.store.save_snapshot("live", (await app.store.get("live")).head, b"{}")
        for seq in (2, 4, 6):
            [event] = await app.store.read("live", after=seq - 1, limit=1)
            await app.store.save_snapshot("live", event.head, b"{}")
        await app.start(plain, False, id="r")
        await app.settle()
        await app.advance("10d")
        done = await app.prune(older_than="1d", dry_run=False, snapshots=1)
        assert done.snapshots >= 3
        assert len(await app.store.snapshots("live")) == 1
        assert (await app.state("live")).step == 40


async def test_waiting_for_a_run_that_is_pruned_raises_not_found() -> None:
    """The run ended in another process, and was deleted before this one read its end."""
    async with testing.app(asker) as app:
        handle = await app.start(asker, id="r")
        await app.settle()
        [request] = await app.inbox()
        async with app.replace(idle=True) as other:
            look, here = other.store.positions, asyncio.Event()

            async def late(runs: Sequence[str]) -> dict[str, LogPosition]:
                await here.wait()
                return await look(runs)

            other.store.positions = late  # type: ignore[method-assign]
            waiting = asyncio.ensure_future((await other.get("r")).result())
            await app.approve(request, by="ann")
            assert await handle.result()
            assert (await app.prune(older_than=0, dry_run=False)).runs == ["r"]
            here.set()
            with pytest.raises(limpet.NotFound):
                await waiting


async def test_an_archive_keeps_all_runs_with_the_same_id(tmp_path: Path) -> None:
    """A bundle is never overwritten by another run with the same id."""
    async with testing.app(plain) as app:
        for fails in (False, True, False):
            await app.start(plain, fails, id="r")
            await app.settle()
            await app.advance("1s")
            await app.prune(older_than=0, dry_run=False, archive=tmp_path)
        logs = [await read_bundle(path) for path in tmp_path.glob("*.zip")]
        assert (tmp_path / "r.zip").exists()
        listed = [json.loads(line)["hash"] for line in (tmp_path / "pruned.jsonl").read_text().splitlines()]
        assert sorted(bundle.events[-1].hash.hex() for bundle in logs) == sorted(listed)
        assert len(set(listed)) == 3
        assert [path for path in tmp_path.iterdir() if path.suffix == ".part"] == []


async def test_a_new_run_does_not_adopt_the_child_of_a_pruned_run_with_its_id() -> None:
    """The child runs on independently, and the new run's child gets another id."""

    @limpet.agent(name="prune_starter")
    async def starter(run: limpet.Run) -> str:
        return (await run.start(asker, None)).id

    async with testing.app(starter, asker) as app:
        first = await app.run(starter, id="r")
        await app.advance("1s")
        assert (await app.prune(older_than=0, dry_run=False)).runs == ["r"]
        second = await app.run(starter, id="r")
        assert (first, second) == ("r.prune_asker-1", "r.prune_asker-2")
        assert {each.run for each in await app.inbox()} == {first, second}
        await app.verify()


async def test_the_own_conversation_of_a_run_is_pruned_with_it() -> None:
    """A conversation that the run was started in is kept."""

    @limpet.agent(name="prune_talker")
    async def talker(run: limpet.Run, text: str) -> None:
        await run.say("hello")

    async with testing.app(talker) as app:
        await app.start(talker, "hi", id="alone")
        await app.start(talker, "hi", id="shared", conversation="c")
        await app.settle()
        fork = await app.fork("alone", seq=2)
        await app.settle()
        await app.advance("10d")
        done = await app.prune(older_than="1d", dry_run=False)
        assert sorted(done.runs) == sorted(["alone", "shared", fork.id])
        assert [each.id for each in await app.conversations()] == ["c"]
        found = await app.verify()
        assert (found.runs, found.conversations) == (0, 1)
