"""Replay checks before a deployment: recorded runs under the current code."""

from pathlib import Path

import limpet
from limpet import testing
from limpet.testing.replay import still_replays


@limpet.tool(effect="once", name="replay_act")
async def replay_act(what: str) -> str:
    return what


async def first(run: limpet.Run, what: str) -> str:
    done = await run.step(replay_act, what)
    if what != "done":
        await run.ask("go on?")
    return await run.step(replay_act, done + "!")


async def reads_more(run: limpet.Run, what: str) -> str:
    run.now()
    return await first(run, what)


async def acts_before(run: limpet.Run, what: str) -> str:
    await run.step(replay_act.options(name="new"), "new")
    return await first(run, what)


async def returns_else(run: limpet.Run, what: str) -> str:
    return (await first(run, what)).upper()


async def test_recorded_runs_are_replayed_with_the_current_code(tmp_path: Path) -> None:
    """One run waits and one has completed; a safe edit passes, other edits are named, and no effect happens."""
    agent = limpet.agent(name="replayed")(first)
    async with testing.app(agent) as app:
        for id in ("done", "waits"):
            await app.start(agent, id, id=id)
            await app.settle()
            await app.export(id, tmp_path / f"{id}.zip")

    async def problems(code: object) -> list[str]:
        return await still_replays(limpet.agent(name="replayed")(code), bundles=tmp_path)  # type: ignore[call-overload]

    assert await problems(first) == []
    assert await problems(reads_more) == []
    assert [line.split(":")[0] for line in await problems(acts_before)] == ["done.zip", "waits.zip"]
    assert await problems(returns_else) == ["done.zip: returns a different result"]
    (tmp_path / "waits.zip").write_bytes(b"?")
    assert "is not a valid bundle" in (await problems(first))[0]
