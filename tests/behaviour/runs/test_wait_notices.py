"""Lines on stderr for a call that waits for a run which itself waits for a person, an operator or a worker."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import sync
from limpet.service.app import App


@limpet.agent(name="notices_asker")
async def asker(run: limpet.Run, question: str) -> Any:
    return await run.ask(question)


@limpet.agent(name="notices_boss")
async def boss(run: limpet.Run) -> Any:
    return await run.call(asker, "May I?")


@asynccontextmanager
async def opened(*agents: limpet.Agent[Any, Any], linger: int = 0, url: str = "memory:") -> AsyncIterator[App]:
    """Open an app that parks runs at once."""
    app = limpet.open(url, agents=agents)
    app._settings.linger = linger
    async with app:
        yield app


class Stderr:
    """The lines printed to stderr so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self.lines = capsys, list[str]()

    def read(self) -> list[str]:
        self.lines += self._capsys.readouterr().err.splitlines()
        return self.lines

    async def until(self, count: int) -> list[str]:
        """Wait until there are enough lines."""
        while len(self.read()) < count:
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        return self.lines


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Stderr:
    return Stderr(capsys)


async def parked(app: App, run: str, *, status: str = "waiting") -> None:
    """Wait until a run is parked."""
    while (await app.info(run)).status != status:
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)


async def test_a_run_that_asks_a_person_is_announced_once(stderr: Stderr) -> None:
    """With the command to type, for any number of calls that wait."""
    async with opened(asker) as app:
        handle = await app.start(asker, "Refund 4900?", id="ticket-42")
        waiting = [asyncio.create_task(handle.result()) for _ in range(2)]
        [line] = await stderr.until(1)
        [request] = await app.inbox()
        assert line == f'limpet: ticket-42 asks "Refund 4900?" (request {request.id}): limpet approve {request.id}'
        with pytest.raises(limpet.NotDone):
            await handle.result(timeout=0)
        other = await app.start(asker, "Another?", id="other")
        await parked(app, other.id)
        await app.approve(request, by="ann")
        assert await asyncio.gather(*waiting) == [True, True]
        assert stderr.read() == [line]


async def test_a_request_that_is_decided_at_once_is_not_announced(stderr: Stderr) -> None:
    """While the run lingers in memory, a decision may still come."""
    async with opened(asker, linger=3600 * 10**6) as app:
        waiting = asyncio.create_task(app.run(asker, "Now?", id="r"))
        while not (found := await app.inbox()):
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        await app.approve(found[0], by="ann")
        assert await waiting is True
        assert stderr.read() == []


async def test_quiet_prints_nothing(stderr: Stderr) -> None:
    async with opened(asker) as app:
        waiting = asyncio.create_task(app.run(asker, "Now?", id="r", quiet=True))
        await asyncio.wait({waiting}, timeout=0)
        while not (found := await app.inbox()):
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        await parked(app, "r")
        handle = await app.get("r")
        loud = asyncio.create_task(handle.result())
        assert len(await stderr.until(1)) == 1
        await app.approve(found[0], by="ann")
        await asyncio.gather(waiting, loud)


async def test_a_called_run_that_asks_is_announced_to_the_call_that_waits_for_its_caller(stderr: Stderr) -> None:
    async with opened(asker, boss) as app:
        waiting = asyncio.create_task(app.run(boss, id="boss"))
        [line] = await stderr.until(1)
        [request] = await app.inbox()
        assert line.startswith(f'limpet: {request.run} asks "May I?" (request {request.id})')
        await app.approve(request, by="ann")
        await waiting
        assert stderr.read() == [line]


async def test_a_run_without_a_live_worker_is_announced(stderr: Stderr, tmp_path: Path) -> None:
    """Also by the blocking facade."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    async with opened(asker, url=url):
        pass
    async with limpet.open(url, worker=False) as app:
        handle = await app.start("notices_asker", "Now?", id="r")
        waiting = asyncio.create_task(handle.result())
        line = "limpet: no live worker serves notices_asker 1, the agent of r: limpet worker MODULE:ATTRIBUTE"
        assert await stderr.until(1) == [line]
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_a_version_that_only_other_workers_serve_is_announced(stderr: Stderr, tmp_path: Path) -> None:
    """Although this process serves another version of the agent."""

    @limpet.agent(name="notices_asker", version="2")
    async def newer(run: limpet.Run, question: str) -> None: ...

    url = f"sqlite:///{tmp_path}/limpet.db"
    async with limpet.open(url, agents=[asker], worker=False) as app:
        await app.start(asker, "Now?", id="r")
    async with opened(newer, url=url) as app:
        waiting = asyncio.create_task((await app.get("r")).result())
        [line] = await stderr.until(1)
        assert line.startswith("limpet: no live worker serves notices_asker 1, the agent of r:")
        waiting.cancel()
        await asyncio.wait({waiting})


def test_blocking_code_is_told_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limpet.db"
    with sync.open(url, agents=[asker]):
        pass
    with sync.open(url, worker=False) as app:
        handle = app.start("notices_asker", "Now?", id="r")
        said = ""
        while "limpet: no live worker serves notices_asker 1" not in said:
            with pytest.raises(limpet.NotDone):
                handle.result(timeout="10ms")
            said += capsys.readouterr().err
        with pytest.raises(limpet.NotDone):
            handle.result(timeout=0)
        assert (said + capsys.readouterr().err).count("\n") == 1


async def test_a_run_that_waits_for_an_operator_is_announced_with_the_reason(stderr: Stderr, tmp_path: Path) -> None:
    """Here it has diverged; a report shows why and since when, too."""

    @limpet.tool(effect="none", name="notices_look")
    async def look() -> int:
        return 1

    @limpet.agent(name="notices_diverges")
    async def old(run: limpet.Run) -> Any:
        await run.step(look)
        return await run.ask("Go on?")

    @limpet.agent(name="notices_diverges")
    async def new(run: limpet.Run) -> Any:
        return await run.step(look)

    @limpet.agent(name="notices_sleeper")
    async def sleeper(run: limpet.Run) -> None:
        await run.sleep("1d")

    url = f"sqlite:///{tmp_path}/limpet.db"
    async with opened(old, sleeper, url=url) as app:
        await app.start(old, id="r")
        await app.start(sleeper, id="s")
        await parked(app, "r")
        await parked(app, "s")
        await app.pause("s", reason="holidays")
        [request] = await app.inbox()
    async with opened(new, sleeper, url=url) as app:
        await app.approve(request, by="ann")
        waiting = [asyncio.create_task((await app.get(run)).result()) for run in "rs"]
        while not any(" has diverged " in line for line in stderr.read()) or len(stderr.lines) < 2:
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        [diverged] = [line for line in stderr.lines if " has diverged " in line]
        [paused] = [line for line in stderr.lines if " is paused " in line]
        assert re.match(r"limpet: r has diverged since 20.* UTC: The code of r no longer matches", diverged)
        assert diverged.endswith("Nothing was done. After fixing the cause: limpet resume r")
        assert re.match(r"limpet: s is paused since 20.* UTC: holidays\. limpet resume s$", paused)
        report = await app.show("r")
        assert report.since is not None
        assert report.why is not None
        assert "no longer matches its log" in report.why
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_a_request_for_approval_is_announced_with_the_call(stderr: Stderr) -> None:
    @limpet.tool(effect="once", risk="pay", name="notices_refund")
    async def refund(order: str, cents: int) -> str:
        return "R-7"

    @limpet.agent(name="notices_support", approvals=limpet.Approvals("pay"))
    async def support(run: limpet.Run) -> str:
        return await run.step(refund, "o-1", 4900)

    async with opened(support) as app:
        waiting = asyncio.create_task(app.run(support, id="r"))
        [line] = await stderr.until(1)
        [request] = await app.inbox()
        call = "notices_refund(cents=4900, order='o-1')"
        assert line == (
            f'limpet: r asks "May notices_refund run with these arguments?" {call} (request {request.id}): '
            f"limpet approve {request.id}"
        )
        await app.approve(request, by="ann")
        assert await waiting == "R-7"
