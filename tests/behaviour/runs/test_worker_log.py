"""Lines of the logger "limpet" about runs: one for each thing that happens to a run, none for its steps."""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing


@limpet.tool(effect="idempotent", name="worklog_pay", risk="pay")
async def pay(cents: int) -> str:
    if cents > 900:
        raise limpet.NotApplied("too much")
    return "paid"


@limpet.agent(name="worklog_payer", version="7", approvals=limpet.Approvals("pay"))
async def payer(run: limpet.Run, cents: int) -> str:
    return await run.step(pay, cents)


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "limpet")


def about(caplog: pytest.LogCaptureFixture, run: str) -> list[Any]:
    """Return the records about a run."""
    return [each for each in caplog.records if getattr(each, "run", None) == run]


def texts(caplog: pytest.LogCaptureFixture, run: str) -> list[str]:
    """Return the lines about a run, without its id."""
    return [each.getMessage().removeprefix(f"run {run}: ") for each in about(caplog, run)]


async def test_each_thing_that_happens_to_a_run_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Claimed, asks, waits, resumed, completed, each with the run, agent, version and step as attributes."""
    async with testing.app(payer) as app:
        handle = await app.start(payer, 5, id="r")
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == "paid"
        worker = "w-worklog_payer"
        assert texts(caplog, "r") == [
            f"claimed by worker {worker}",
            f'asks "May worklog_pay run with these arguments?" (request {request.id})',
            f"waits for person:{request.id}",
            f"resumed by worker {worker}",
            "completed",
        ]
        records = about(caplog, "r")
        assert {(each.run, each.agent, each.version, each.levelname) for each in records} == {
            ("r", "worklog_payer", "7", "INFO")
        }
        assert [each.step for each in records] == [None, 1, None, None, 1]


async def test_a_failed_run_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """As an error, unless code of the process waits for the run: that gets the exception."""

    @limpet.agent(name="worklog_broken")
    async def broken(run: limpet.Run) -> None:
        raise KeyError("order")

    async with limpet.open("memory:", agents=[broken]) as app:
        with pytest.raises(limpet.RunFailed):
            await app.run(broken, id="awaited")
    async with testing.app(broken) as app:
        await app.start(broken, id="r")
        await app.settle()
    for run, level in (("r", "ERROR"), ("awaited", "INFO")):
        failed = about(caplog, run)[-1]
        assert (failed.levelname, failed.getMessage()) == (level, f"run {run}: failed: builtins.KeyError: 'order'")
        assert 'raise KeyError("order")' in failed.exc_text


async def test_secrets_are_removed_from_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    password = limpet.Secret("walrus-and-carpenter")

    @limpet.agent(name="worklog_secretive")
    async def secretive(run: limpet.Run) -> None:
        with suppress(limpet.Expired):
            await run.ask(f"Is {password.reveal()} right?", expires="1h")
        raise PermissionError(f"wrong password {password.reveal()}")

    async with testing.app(secretive) as app:
        await app.start(secretive, id="r")
        await app.advance("2h")
        assert "wrong password [secret]" in caplog.text
        assert "walrus" not in f"{caplog.text} {[vars(each) for each in caplog.records]}"


async def test_a_takeover_is_logged(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """By the worker that claims the run after the lease of the dead one has expired."""
    entered = asyncio.Event()

    @limpet.tool(effect="none", name="worklog_slow")
    async def slow() -> None:
        if not entered.is_set():
            entered.set()
            await asyncio.get_running_loop().create_future()

    @limpet.agent(name="worklog_survivor")
    async def survivor(run: limpet.Run) -> None:
        await run.step(slow)

    url, worker = f"sqlite:///{tmp_path}/limpet.db", limpet.Worker(lease="200ms")
    async with limpet.open(url, agents=[survivor], worker=worker) as first:
        await first.start(survivor, id="r")
        await entered.wait()
        assert first._worker_loop is not None
        await first._worker_loop.kill()
        async with limpet.open(url, agents=[survivor], worker=worker) as second:
            await (await second.get("r")).result()
    claimed, taken, completed = texts(caplog, "r")
    assert claimed.startswith("claimed by worker w-")
    assert taken.startswith("taken over by worker w-")
    assert taken.endswith(": the worker before died")
    assert completed == "completed"


async def test_a_release_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """When the worker stops while it drives the run."""
    entered = asyncio.Event()

    @limpet.agent(name="worklog_unfinished")
    async def unfinished(run: limpet.Run) -> None:
        entered.set()
        await asyncio.get_running_loop().create_future()

    async with limpet.open("memory:", agents=[unfinished]) as app:
        await app.start(unfinished, id="r")
        await entered.wait()
    assert texts(caplog, "r")[-1] == "released: the worker stops"


async def test_a_cancelled_and_a_diverged_run_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    @limpet.tool(effect="none", name="worklog_look")
    async def look() -> int:
        return 1

    @limpet.agent(name="worklog_changed")
    async def old(run: limpet.Run) -> None:
        await run.step(look)
        await run.ask("Go on?")

    @limpet.agent(name="worklog_changed")
    async def new(run: limpet.Run) -> None:
        await run.step(look)

    async with testing.app(old) as app:
        for run in ("r", "c"):
            await app.start(old, id=run)
        await app.settle()
        await app.cancel("c", reason="no longer needed")
        await app.settle()
        app.deploy(new)
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        await app.settle()
    assert texts(caplog, "c")[-1] == "cancelled: no longer needed"
    parked = about(caplog, "r")[-1]
    assert (parked.levelname, parked.step) == ("WARNING", 1)
    assert parked.getMessage().startswith("run r: parked for an operator (diverged): The code of r no longer matches")


async def test_a_quarantined_run_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Its report says why, since when, and when it is retried."""
    entered = asyncio.Event()

    @limpet.tool(effect="none", name="worklog_poison")
    async def poison() -> None:
        entered.set()
        await asyncio.get_running_loop().create_future()

    @limpet.agent(name="worklog_poisoned")
    async def agent(run: limpet.Run) -> None:
        await run.step(poison)

    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        for _ in range(5):
            await entered.wait()
            entered.clear()
            await app.crash()
        await app.settle()
        report = await app.show("r")
        assert (report.run.waits_text, report.why) == (
            "operator:quarantined",
            "3 workers died while driving the run alone",
        )
        assert report.since is not None
        assert report.wake is not None
        assert report.since < report.wake
    quarantined = about(caplog, "r")[-1]
    assert quarantined.levelname == "WARNING"
    assert quarantined.getMessage() == "run r: quarantined: 3 workers died while driving the run alone"


async def test_steps_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    @limpet.agent(name="worklog_long")
    async def long(run: limpet.Run) -> None:
        for _ in range(50):
            run.now()
            await run.step(pay, 1)

    async with testing.app(long) as app:
        await app.run(long, id="r")
    assert texts(caplog, "r") == ["claimed by worker w-worklog_long", "completed"]
