"""Tools whose writes commit in one transaction with their event."""

from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.errors import ConnectionLost, StoreUnavailable


def execute(sql: str) -> list[Any]:
    """Execute SQL on the store's connection, inside its transaction."""
    connection = limpet.current().transaction
    found = connection.execute(sql)
    return list(found) if sql.startswith("SELECT") else []


@limpet.tool(effect="transaction", name="tx_write", retry=limpet.Retry(2, first="1ms"))
def tx_write(n: int, fail_at: int = 0) -> str:
    execute("CREATE TABLE IF NOT EXISTS mine (n integer, key text)")
    execute(f"INSERT INTO mine VALUES ({n}, '{limpet.idempotency_key()}')")
    if limpet.current().attempt <= fail_at:
        raise ValueError("after it wrote")
    return f"wrote {n}"


@limpet.tool(effect="transaction", name="tx_read")
def tx_read() -> list[int]:
    return [row[0] for row in execute("SELECT n FROM mine ORDER BY n")]


@limpet.agent(name="transacting")
async def transacting(run: limpet.Run) -> list[Any]:
    found: list[Any] = [await run.step(tx_write, 1), await run.step(tx_write, 2, fail_at=1)]
    with pytest.raises(limpet.StepFailed):
        await run.step(tx_write, 3, fail_at=9)
    return [*found, await run.step(tx_read)]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_transaction_tool_commits_its_writes_with_its_event_or_not_at_all(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A failed attempt leaves no rows, and no outcome is ever unknown."""
    url = f"sqlite:///{tmp_path}/t.db" if store == "sqlite" else request.getfixturevalue("postgres_schema")
    async with limpet.open(url, agents=[transacting]) as app:
        handle = await app.start(transacting, id="r1")
        assert await handle.result(timeout="30s") == ["wrote 1", "wrote 2", [1, 2]]
        log = [event.kind for event in await app.log("r1") if event.kind.startswith("step.")]
        assert "step.unknown" not in log
        assert log.count("step.completed") == 3
        await app.verify("r1")


async def test_a_stubbed_transaction_tool_needs_no_database() -> None:
    """The memory store has no transactions."""
    async with testing.app(transacting) as app:
        app.stub(tx_write, "one", "two", ValueError("no"))
        app.stub(tx_read, [7])
        assert await app.run(transacting) == ["one", "two", [7]]


async def kinds(app: limpet.App, run: str) -> list[str]:
    return [event.kind for event in await app.log(run)]


async def test_the_partial_value_of_a_failed_transaction_is_redacted(tmp_path: Path) -> None:

    @limpet.tool(effect="transaction", name="tx_partial")
    def partial() -> None:
        limpet.current().partial({"password": "hunter2hunter2"})
        raise ValueError("no")

    @limpet.agent(name="tx_partial_agent")
    async def agent(run: limpet.Run) -> None:
        with pytest.raises(limpet.StepFailed):
            await run.step(partial)

    async with limpet.open(f"sqlite:///{tmp_path}/t.db", agents=[agent], redact=True) as app:
        await (await app.start(agent, id="r1")).result(timeout="30s")
        assert "step.progressed" in await kinds(app, "r1")
        assert "hunter2" not in str(await app.log("r1"))


@limpet.tool(effect="none", name="tx_look")
async def tx_look(n: int) -> int:
    return n


@limpet.agent(name="tx_lost")
async def tx_lost(run: limpet.Run) -> int:
    written = await run.step(tx_write, 1)
    return await run.step(tx_look, len(written))


async def test_a_lost_reply_after_which_the_log_cannot_be_read_releases_the_run(tmp_path: Path) -> None:
    """The run continues with the committed result, and none of its calls waits for one that never returns."""
    lost: list[str] = []
    async with limpet.open(f"sqlite:///{tmp_path}/t.db", agents=[tx_lost]) as app:
        transact, read = app.store.transact, app.store.read

        async def transacting(*args: Any, **more: Any) -> Any:
            done = await transact(*args, **more)
            if not lost:
                lost.append("reply")
                raise ConnectionLost(reason="test")
            return done

        async def reading(*args: Any, **more: Any) -> Any:
            if lost == ["reply"]:
                lost.append("read")
                raise StoreUnavailable(reason="test")
            return await read(*args, **more)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(app.store, "transact", transacting)
            patched.setattr(app.store, "read", reading)
            assert await app.run(tx_lost, id="r") == len("wrote 1")
        assert lost == ["reply", "read"]
        kinds = [event.kind async for event in (await app.get("r")).events()]
        assert kinds.count("step.completed") == 2
        assert kinds.count("run.released") == 1
