"""A store that refuses a call says nothing about the run: the run stops where it is, and does not fail."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

import limpet
import limpet.sync
from limpet.events import bodies as b

LARGE = "x" * 20_000
Code = Callable[[limpet.Run], Coroutine[Any, Any, str]]
calls: list[str] = []


@limpet.tool(effect="once")
async def large() -> str:
    """Return a result that is stored as a blob."""
    calls.append("large")
    return LARGE


@limpet.agent()
async def helper(run: limpet.Run, given: str) -> str:
    """Return a large result."""
    return LARGE


async def step(run: limpet.Run) -> str:
    """Call a tool."""
    found = await run.step(large)
    await run.ask("go on?")
    return found


async def child(run: limpet.Run) -> str:
    """Call an agent."""
    found = await run.call(helper, "x")
    await run.ask("go on?")
    return found


async def messages(run: limpet.Run) -> str:
    """Read the conversation."""
    await run.say(LARGE)
    await run.ask("go on?")
    [found] = await run.messages()
    return found.text


async def content(run: limpet.Run) -> str:
    """Read an artifact."""
    stored = await run.artifact(LARGE, type="text/plain", summary="a text")
    await run.ask("go on?")
    return (await run.content(stored)).decode()


async def content_in_a_tool(run: limpet.Run) -> str:
    """Read an artifact in a tool, whose attempt fails and is repeated."""
    stored = await run.artifact(LARGE, type="text/plain", summary="a text")
    await run.ask("go on?")

    @limpet.tool(effect="none", retry=limpet.Retry(100, first="10ms", cap="10ms"))
    async def read() -> str:
        return (await run.content(stored)).decode()

    return await run.step(read)


@contextmanager
def refusing(file: Path) -> Iterator[None]:
    """Make the database refuse to read blobs."""
    with closing(apsw.Connection(str(file))) as db:
        db.set_busy_timeout(10_000)
        db.execute("ALTER TABLE limpet_chunks RENAME TO limpet_away")
        try:
            yield
        finally:
            db.execute("ALTER TABLE limpet_away RENAME TO limpet_chunks")


async def asked_in(app: limpet.App) -> limpet.Request:
    """Wait until a run asks a person, and return its request."""
    while not (asked := await app.inbox()):
        await asyncio.sleep(0.01)  # noqa: TID251 - a real process
    return asked[0]


@pytest.mark.parametrize("code", [step, child, messages, content], ids=lambda each: each.__name__)
async def test_a_refused_read_stops_the_run(code: Code, tmp_path: Path) -> None:
    """The run waits for an operator with the reason; resumed, it has the same result, with no call repeated."""
    calls.clear()
    agent: limpet.Agent[None, str] = limpet.agent(name="reader")(code)
    url = f"sqlite:///{tmp_path}/a.db"
    async with limpet.open(url, agents=[agent, helper]) as app:
        await app.start(agent, id="r")
        await asked_in(app)
    async with limpet.open(url, agents=[agent, helper]) as app:
        with refusing(tmp_path / "a.db"):
            await app.approve((await app.inbox())[0], by="ann")
            row = await app.store.get("r")
            while "operator" not in str(row.waits) and row.status != "failed":
                await asyncio.sleep(0.01)  # noqa: TID251 - a real process
                row = await app.store.get("r")
        assert [str(wait) for wait in row.waits] == ["operator:refused"]
        await app.resume("r")
        assert await (await app.get("r")).result() == LARGE
    assert calls == (["large"] if code is step else [])


async def test_a_refused_read_in_a_tool_fails_its_attempt(tmp_path: Path) -> None:
    """The tool is retried, and succeeds when the database is well."""
    agent = limpet.agent(name="reader")(content_in_a_tool)
    async with limpet.open(f"sqlite:///{tmp_path}/a.db", agents=[agent]) as app:
        await app.start(agent, id="r")
        asked = await asked_in(app)
        with refusing(tmp_path / "a.db"):
            await app.approve(asked, by="ann")
            while not [each for each in await app.steps("r") if each.attempt_count > 1]:
                await asyncio.sleep(0.01)  # noqa: TID251 - a real process
        assert await (await app.get("r")).result() == LARGE


def agent_that_prefetches() -> limpet.Agent[None, str]:
    """Return an agent whose tool waits for a read of the agent's code."""

    async def prefetches(run: limpet.Run) -> str:
        stored = await run.artifact(LARGE, type="text/plain", summary="a text")
        await run.ask("go on?")
        text = asyncio.ensure_future(run.content(stored))

        @limpet.tool(effect="none", retry=limpet.Retry(100, first="10ms", cap="10ms"))
        async def read() -> str:
            return (await text).decode()

        return await run.step(read)

    return limpet.agent(name="prefetches")(prefetches)


def agent_that_reads_on_threads() -> limpet.Agent[None, str]:
    """Return an agent whose tool reads on threads that do not know that they belong to a tool."""

    def reads_on_threads(run: limpet.sync.Run) -> str:
        stored = run.artifact(LARGE, type="text/plain", summary="a text")
        run.ask("go on?")

        @limpet.tool(effect="none", retry=limpet.Retry(100, first="10ms", cap="10ms"))
        def read() -> str:
            with ThreadPoolExecutor(2) as pool:
                return next(pool.map(run.content, [stored, stored])).decode()

        return run.step(read)

    return limpet.agent(name="reads_on_threads")(reads_on_threads)


@pytest.mark.parametrize("make", [agent_that_prefetches, agent_that_reads_on_threads])
async def test_a_tool_that_waits_for_a_refused_read_does_not_block_the_run(
    make: Callable[[], limpet.Agent[None, str]], tmp_path: Path
) -> None:
    """The run stops, which waits for its tools: so the read raises the error, and the tool ends."""
    agent = make()
    async with limpet.open(f"sqlite:///{tmp_path}/a.db", agents=[agent]) as app:
        await app.start(agent, id="r")
        asked = await asked_in(app)
        with refusing(tmp_path / "a.db"):
            await app.approve(asked, by="ann")
            while "operator:refused" not in map(str, (await app.store.get("r")).waits):
                await asyncio.sleep(0.01)  # noqa: TID251 - a real process
        await app.resume("r")
        assert await (await app.get("r")).result() == LARGE


async def test_a_run_whose_page_is_damaged_is_released_with_growing_pauses(tmp_path: Path) -> None:
    """It is not started every second: each release that followed no progress doubles the pause."""
    agent: limpet.Agent[None, str] = limpet.agent(name="reader")(step)
    file = tmp_path / "a.db"
    async with limpet.open(f"sqlite:///{file}", agents=[agent]) as app:
        await app.start(agent, id="r")
        await asked_in(app)
    with closing(apsw.Connection(str(file))) as db:
        db.pragma("wal_checkpoint(truncate)")
        size, root = (
            db.pragma("page_size"),
            db.execute("SELECT rootpage FROM sqlite_schema WHERE name='limpet_chunks'").get,
        )
    with file.open("r+b") as raw:
        raw.seek((root - 1) * size)
        raw.write(b"\xff" * size)
    async with limpet.open(f"sqlite:///{file}", agents=[agent]) as app:
        await app.approve((await app.inbox())[0], by="ann")
        releases: list[b.RunReleased] = []
        while len(releases) < 2:
            await asyncio.sleep(0.05)  # noqa: TID251 - a real process
            decoded = [(event.time, app.store.decode(event)) async for event in app.store.log("r")]
            pauses = [
                (body.retry_at - time) // 1_000_000
                for time, body in decoded
                if isinstance(body, b.RunReleased) and body.fruitless and body.retry_at is not None
            ]
            releases = [body for _, body in decoded if isinstance(body, b.RunReleased) and body.fruitless]
    assert all("malformed" in each.reason for each in releases)
    assert pauses[0] < pauses[1]


async def test_a_tool_may_read_while_the_run_is_asked_to_stop(tmp_path: Path) -> None:
    """A cancel waits for running tools, so a tool that reads an artifact must not wait for the cancel."""
    go, began = asyncio.Event(), asyncio.Event()

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        stored = await run.artifact(LARGE, type="text/plain", summary="a text")

        @limpet.tool(effect="once")
        async def read() -> str:
            began.set()
            await go.wait()
            return (await run.content(stored)).decode()

        return await run.step(read)

    async with limpet.open(f"sqlite:///{tmp_path}/a.db", agents=[agent]) as app:
        handle = await app.start(agent)
        await began.wait()
        await app.cancel(handle.id, reason="enough")
        go.set()
        with pytest.raises(limpet.RunCancelled):
            await handle.result()
        assert [each.status for each in await app.steps(handle.id)] == ["completed"]


async def signals(run: limpet.Run) -> None:
    """Send a signal."""
    await run.signal("other", "go", "now")


async def patches(run: limpet.Run) -> None:
    """Send a patch."""
    await run.send_patch("other", goal="another")


@pytest.mark.parametrize(("send", "kind"), [(signals, "signal.received"), (patches, "patch.received")])
async def test_a_refused_message_to_another_run_stops_the_sender(
    send: Callable[[limpet.Run], Coroutine[Any, Any, None]], kind: str, tmp_path: Path
) -> None:
    """The step does not fail, because the message can be sent when the database is well. It is sent once."""

    @limpet.agent()
    async def other(run: limpet.Run) -> str:
        return await run.receive("end", str)

    @limpet.agent()
    async def sender(run: limpet.Run) -> str:
        await send(run)
        return "sent"

    async with limpet.open(f"sqlite:///{tmp_path}/a.db", agents=[other, sender]) as app:
        await app.start(other, id="other")
        with closing(apsw.Connection(str(tmp_path / "a.db"))) as db:
            db.set_busy_timeout(10_000)
            too_big = f"WHEN NEW.kind = '{kind}' BEGIN SELECT zeroblob(2000000000 + NEW.seq); END"
            db.execute(f"CREATE TRIGGER refuse BEFORE INSERT ON limpet_events {too_big}")
            await app.start(sender, id="r")
            while (row := await app.store.get("r")).status in ("pending", "running"):
                await asyncio.sleep(0.01)  # noqa: TID251 - a real process
            assert [str(wait) for wait in row.waits] == ["operator:refused"]
            db.execute("DROP TRIGGER refuse")
        await app.resume("r")
        assert await (await app.get("r")).result() == "sent"
        assert [event.kind async for event in app.store.log("other")].count(kind) == 1
        assert [each.status for each in await app.steps("r")] == ["completed"]
