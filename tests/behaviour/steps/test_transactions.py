"""Tools whose writes commit in one transaction with their event."""

from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing


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
