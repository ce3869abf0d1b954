"""Notices of runs: a channel is told how runs end, and that they wait; ids and status, nothing else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.service.notices import Notice, NoticeChannel, RunNotice
from limpet.testing.app import TestApp

ALL = ("asks", "waits", "completed", "failed", "cancelled")


class Kept(NoticeChannel):
    """Keeps the notices that it gets. It fails the first times if told to."""

    def __init__(self, *on: Any, failures: int = 0) -> None:
        super().__init__(on)
        self.failures = failures
        self.got: list[tuple[str, Notice]] = []

    def send(self, notice: Notice, *, key: str, now: int) -> None:  # noqa: ARG002 - it has no use for the time
        """Keep a notice."""
        self.got.append((key, notice))
        if len(self.got) <= self.failures:
            raise ConnectionError("not now")

    @property
    def told(self) -> list[tuple[str, str, str]]:
        """Each notice of a run: its kind, the run, and its status."""
        return [(each.what, each.run, each.status) for _, each in self.got if isinstance(each, RunNotice)]


@limpet.agent(name="notices_done")
async def done(run: limpet.Run, word: str) -> str:
    return word


@limpet.agent(name="notices_broken")
async def broken(run: limpet.Run, word: str) -> str:
    raise limpet.Permanent(word)


@limpet.agent(name="notices_asking")
async def asking(run: limpet.Run, word: str) -> str:
    await run.sleep("1h")
    return str(await run.ask(f"{word}?"))


@asynccontextmanager
async def app_with(**channels: Any) -> AsyncIterator[TestApp]:
    """Yield an app with these channels."""
    async with testing.app(done, broken, asking) as app:
        app._settings.channels = channels
        await app.crash()  # its worker starts again, with the channels
        yield app


async def test_a_channel_is_told_how_runs_end() -> None:
    """With ids and the status; the input, the output and the error stay in the store."""
    kept = Kept("completed", "failed", "cancelled")
    async with app_with(ops=kept) as app:
        await app.run(done, "oyster", id="r1")
        with pytest.raises(limpet.RunFailed):
            await app.run(broken, "oyster", id="r2")
        await app.start(asking, "oyster", id="r3")
        await app.settle()
        await app.cancel("r3", reason="oyster")
        await app.settle()
        assert sorted(kept.told, key=lambda each: each[1]) == [
            ("completed", "r1", "completed"),
            ("failed", "r2", "failed"),
            ("cancelled", "r3", "cancelled"),
        ]
        assert "oyster" not in str(kept.got)
        assert len({key for key, _ in kept.got}) == 3
        assert all(key == notice.delivery for key, notice in kept.got if isinstance(notice, RunNotice))


async def test_a_channel_is_told_that_a_run_waits_for_somebody() -> None:
    """Not for time. A request is another notice."""
    kept = Kept("waits", "asks")
    async with app_with(ops=kept) as app:
        await app.start(asking, "oyster", id="r1")
        await app.settle()
        assert kept.got == []
        await app.advance("2h")
        assert [type(notice).__name__ for _, notice in kept.got].count("Request") == 1
        [notice] = [notice for _, notice in kept.got if isinstance(notice, RunNotice)]
        assert (notice.what, notice.run, notice.status) == ("waits", "r1", "waiting")
        assert [each.partition(":")[0] for each in notice.waits_for] == ["person"]


async def test_a_notice_is_repeated_with_its_id_until_it_arrives() -> None:
    kept = Kept("completed", failures=3)
    async with app_with(ops=kept) as app:
        await app.run(done, "x", id="r1")
        await app.advance("1h")
        assert kept.told == [("completed", "r1", "completed")] * 4
        assert len({key for key, _ in kept.got}) == 1


async def test_each_end_of_a_run_is_told() -> None:
    """A failed run that is resumed and fails again gives another notice."""
    kept = Kept("failed")
    async with app_with(ops=kept) as app:
        with pytest.raises(limpet.RunFailed):
            await app.run(broken, "x", id="r1")
        await app.resume("r1")
        await app.settle()
        assert kept.told == [("failed", "r1", "failed")] * 2
        assert len({key for key, _ in kept.got}) == 2


async def test_runs_of_built_in_agents_give_no_notice() -> None:
    """So a notice causes no other one. They are hidden from lists."""
    kept, other = Kept(*ALL), Kept(*ALL)
    async with app_with(ops=kept, more=other) as app:
        await app.run(done, "x", id="r1")
        await app.batch("pause", status="failed")
        await app.settle()
        for each in (kept, other):
            assert each.told == [("completed", "r1", "completed")]
        assert [info.id for info in await app.runs()] == ["r1"]
        notices = await app.runs(agent="limpet.notify")
        assert len(notices) == 2
        assert {info.parent for info in notices} == {"r1"}


async def test_a_fork_without_effects_and_a_function_get_no_notice() -> None:
    kept, told = Kept("completed"), list[Any]()
    async with app_with(ops=kept, own=told.append) as app:
        await app.run(done, "x", id="r1")
        await (await app.fork("r1", seq=1, effects="stub", id="r2")).result()
        await app.settle()
        assert kept.told == [("completed", "r1", "completed")]
        assert told == []


async def test_a_notice_of_a_deleted_run_is_dropped() -> None:
    kept = Kept("completed", failures=1)
    async with app_with(ops=kept) as app:
        await app.run(done, "x", id="r1")
        await app.settle()
        await app.prune(older_than=0, dry_run=False, by_agent={"limpet.notify": None})
        await app.advance("1h")
        assert len(kept.got) <= 2
        await app.verify()
