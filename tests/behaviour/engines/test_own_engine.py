"""Another engine has runs driven: the engine of docs/write-an-engine.md, in one process with a real store."""

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.clock import SECOND, SystemClock
from limpet.engines import Engine, ReadyRun
from limpet.events import bodies as b

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "write-an-engine.md"
MADE: list[str] = []


@limpet.tool(effect="idempotent", name="engines_make")
async def make(what: str) -> str:
    """Make something once."""
    MADE.append(f"{limpet.current().key} {what}")
    return what.upper()


@limpet.agent(name="engines_child")
async def child(run: limpet.Run, what: str) -> str:
    """Make one thing."""
    return await run.step(make, what)


@limpet.agent(name="engines_parent")
async def parent(run: limpet.Run, what: str) -> str:
    """Make a thing, let another agent make one, sleep, ask, and make the last one."""
    first = await run.step(make, what)
    second = await run.call(child, f"{what}-child")
    await run.sleep("1.2s")
    answer = await run.ask("Go on?", to="ann")
    return f"{first} {second} {answer} {await run.step(make, 'last')}"


@limpet.agent(name="engines_asking")
async def asking(run: limpet.Run) -> str:
    """Ask twice."""
    first = await run.ask("First?", to="ann", answer=str)
    await run.step(make, first)
    second = await run.ask("Second?", to="ann", answer=str)
    return await run.step(make, second)


@limpet.agent(name="engines_failing")
async def failing(run: limpet.Run) -> str:
    """Fail until it is allowed."""
    await run.step(make, "before")
    if not ALLOWED:
        raise ValueError("not yet")
    return await run.step(make, "after")


ALLOWED: list[bool] = []
AGENTS: list[limpet.Agent[Any, Any]] = [parent, child, asking, failing]


def engine_of_the_page() -> Engine:
    """Return the engine that the page shows."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    made: Engine = names["LocalQueue"]()
    return made


@pytest.fixture
def engine() -> Engine:
    """The engine that the page shows."""
    MADE.clear()
    ALLOWED.clear()
    return engine_of_the_page()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A SQLite store."""
    return f"sqlite:///{tmp_path / 'engines.db'}"


@pytest.fixture
async def app(url: str, engine: Engine) -> AsyncIterator[limpet.App]:
    """An app whose runs the engine has driven."""
    async with limpet.open(url, engine=engine, agents=AGENTS) as opened:
        yield opened


async def until(condition: Callable[[], Any], what: str) -> Any:
    """Return the condition's first true value."""
    for _ in range(1500):
        if found := await condition():
            return found
        await SystemClock().sleep(SECOND // 50)
    raise AssertionError(what)


async def answer(app: limpet.App, value: object) -> None:
    """Answer the open request, once there is one."""
    [request] = await until(app.inbox, "no request")
    await app.answer(request.id, value, by="ann")


def test_the_engine_of_the_page_is_one() -> None:
    """It has every member of the protocol."""
    assert isinstance(engine_of_the_page(), Engine)


async def test_a_run_with_a_child_a_sleep_and_a_question(app: limpet.App) -> None:
    """The same agent, unchanged: its child is a run of the engine, too."""
    handle = await app.start(parent, "a", id="r")
    await answer(app, True)
    assert await handle.result(timeout="20s") == "A A-CHILD True LAST"
    assert len(MADE) == len(set(MADE)) == 3
    [called] = await app.runs(parent="r")
    assert {(await app.info(run)).engine for run in ("r", called.id)} == {"local-queue"}
    await app.verify("r")


async def test_a_client_without_the_engine_is_served_by_the_sweep(app: limpet.App, url: str) -> None:
    """It knows only the store: a worker of the engine finds what it sent."""
    async with limpet.open(url, worker=False) as client:
        await app.start(asking, id="r")
        await answer(client, "one")
        await answer(client, "two")
        assert await (await client.get("r", asking)).result(timeout="20s") == "TWO"


class Deaf:
    """An engine that cannot be told anything, as if each creator died before it could."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.calls = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def wake(self, run: ReadyRun, *, is_missed: bool = False) -> None:
        """Fail the first calls."""
        self.calls += 1
        if self.calls <= 3:
            raise OSError("away")
        await self._engine.wake(run, is_missed=is_missed)


async def test_an_engine_that_is_away_is_told_again(url: str, engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """The command is committed; the sweep repeats the call until it succeeds."""
    deaf: Any = Deaf(engine)
    async with limpet.open(url, engine=deaf, agents=AGENTS) as app:
        assert await (await app.start(child, "x", id="r")).result(timeout="30s") == "X"
    assert deaf.calls > 3
    assert "local-queue could not be told of run r: OSError: away" in caplog.text


async def test_a_parked_run_moves_to_an_engine_and_back(url: str, engine: Engine) -> None:
    """Each part is driven where the run is; nothing is made twice, and the log verifies."""
    async with limpet.open(url, agents=AGENTS) as built_in:
        await built_in.start(asking, id="r")
        await until(lambda: waits(built_in), "it does not park")
        async with limpet.open(url, engine=engine, agents=AGENTS) as other:
            await other.move("r", engine="local-queue", by="ann")
            await answer(built_in, "one")
            await until(lambda: made(1), "the engine does not drive it")
            await until(lambda: waits(built_in), "it does not park again")
            assert (await built_in.info("r")).engine == "local-queue"
            await built_in.move("r", engine="builtin", by="ann")
            await answer(other, "two")
            assert await (await built_in.get("r", asking)).result(timeout="20s") == "TWO"
        assert len(MADE) == len(set(MADE)) == 2
        assert (await built_in.info("r")).engine == ""
        await built_in.verify("r")
        bodies = [built_in.store.decode(event) async for event in built_in.store.log("r")]
        moves = [(body.engine, body.by) for body in bodies if isinstance(body, b.RunMoved)]
        assert moves == [("local-queue", "ann"), ("builtin", "ann")]
        assert len({body.worker for body in bodies if isinstance(body, b.RunClaimed)}) == 2


async def test_a_failed_run_is_resumed_where_it_was_moved(url: str, engine: Engine) -> None:
    """A failed run moves as a parked one does."""
    async with limpet.open(url, agents=AGENTS) as built_in:
        with pytest.raises(limpet.RunFailed):
            await built_in.run(failing, id="r")
        ALLOWED.append(True)
        async with limpet.open(url, engine=engine, agents=AGENTS) as other:
            await other.move("r", engine="local-queue")
            handle = await other.resume("r")
            assert await handle.result(timeout="20s") == "AFTER"
    assert len(MADE) == len(set(MADE)) == 2


async def test_a_move_is_refused_while_the_run_is_driven_or_over(app: limpet.App) -> None:
    """So is a move to an engine that no worker serves."""
    await app.run(child, "x", id="done")
    with pytest.raises(limpet.WrongState):
        await app.move("done", engine="builtin")
    await app.start(asking, id="r")
    with pytest.raises(limpet.InvalidArgument, match="no live worker drives runs of 'temporal'; known: builtin, local"):
        await app.move("r", engine="temporal")


async def waits(app: limpet.App) -> bool:
    """Return whether the run is parked."""
    return (await app.info("r")).status == "waiting"


async def made(count: int) -> bool:
    """Return whether so many things were made."""
    return len(MADE) == count
