"""Agents that are called by name: which version runs, and what a replay returns."""

from pathlib import Path
from typing import Any

import limpet
from limpet import testing
from limpet.engine.definitions.contracts import save_contracts


async def test_a_result_is_the_same_on_replay_after_a_contract_change() -> None:
    """It was checked when it was received."""

    def defined(kind: type) -> limpet.Agent[Any, Any]:
        @limpet.agent(name="other")
        async def other(run: limpet.Run) -> kind:  # type: ignore[valid-type]
            return kind(1)  # type: ignore[no-any-return]

        return other

    @limpet.agent()
    async def agent(run: limpet.Run) -> Any:
        found = await run.call("other", None)
        await run.ask("go on?")
        return found

    async with testing.app(agent, defined(int)) as app:
        handle = await app.start(agent)
        await app.settle()
        await save_contracts(app.store, [defined(str)], served=True)
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == 1


async def test_a_call_by_name_runs_the_version_that_is_served_now(tmp_path: Path) -> None:
    """Also after a rollback. An app without a worker does not change it."""
    url = f"sqlite:///{tmp_path}/x.db"

    def defined(version: str) -> limpet.Agent[Any, Any]:
        @limpet.agent(name="other", version=version)
        async def other(run: limpet.Run) -> str:
            return version

        return other

    for version in ("1", "2", "1"):
        async with limpet.open(url, agents=[defined(version)]) as app:
            assert await (await app.start("other")).result(timeout="10s") == version
    async with limpet.open(url, agents=[defined("3")], worker=False) as app:
        assert [row.version for row in await app.store.contracts("other")][-1] == "1"
