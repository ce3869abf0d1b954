"""Runs as task records, and lists of runs by what they wait for."""

from typing import Any

import msgspec
import pytest

import limpet
from limpet import testing


@limpet.agent(name="tasks_worker")
async def worker(run: limpet.Run, what: Any) -> Any:
    """End, fail or wait, as the input says."""
    match what:
        case "ask":
            return await run.ask("Really?")
        case "sleep":
            await run.sleep("1h")
        case "signal":
            return await run.receive("go", str)
        case "fail":
            raise ValueError("no")
        case {"large": size}:
            return "x" * size
        case _:
            pass
    return f"did {what}"


async def test_a_run_is_shown_as_a_task_record() -> None:
    """Input and result that are not text are JSON; large ones are shown by size."""
    async with testing.app(worker) as app:
        for id, given in (("done", "dig"), ("failed", "fail"), ("asks", "ask"), ("large", {"large": 100_000})):
            await app.start(worker, given, id=id)
        await app.settle()
        done = msgspec.to_builtins(await app.task("done"))
        assert [*done] == ["id", "user_input", "state", "result", "created_at", "updated_at"]
        assert (done["user_input"], done["state"], done["result"]) == ("dig", "completed", "did dig")
        failed = await app.task("failed")
        assert (failed.state, failed.result, failed.error) == ("failed", "", "no")
        assert (await app.task("asks")).state == "awaiting_user"
        large = await app.task("large")
        assert (large.user_input, large.result) == ('{"large":100000}', '{"bytes":100002}')
        with pytest.raises(limpet.NotFound):
            await app.task("unknown")


async def test_tasks_are_listed_by_state() -> None:
    """Pages continue where the one before ended."""
    async with testing.app(worker) as app:
        for id in ("ask", "sleep", "signal", "fail", "dig", "dug"):
            await app.start(worker, id, id=id)
        await app.settle()
        found = {
            state: [each.id for each in await app.tasks(state=state)]
            for state in ("pending", "running", "awaiting_user", "waiting", "completed", "failed", "cancelled")
        }
        assert found["awaiting_user"] == ["ask"]
        assert found["waiting"] == ["signal", "sleep", "ask"]
        assert (found["failed"], found["completed"]) == (["fail"], ["dug", "dig"])
        assert found["pending"] == found["running"] == found["cancelled"] == []
        first = await app.tasks(last=4)
        rest = await app.tasks(last=4, cursor=first.next)
        assert [each.id for each in (*first, *rest)] == ["dug", "dig", "fail", "signal", "sleep", "ask"]
        assert rest.next is None
        with pytest.raises(limpet.InvalidArgument, match="must be one of 'pending'"):
            await app.tasks(state="done")  # type: ignore[arg-type]


async def test_runs_are_listed_by_what_they_wait_for() -> None:
    """A run that no live worker serves waits for a worker."""
    async with testing.app(worker) as app:
        for id in ("ask", "sleep", "signal", "dig"):
            await app.start(worker, id, id=id)
        await app.settle()
        await app.start(worker, "later", id="later", at="1h")
        await app.pause("sleep")
        waiting = {
            kind: [each.id for each in await app.runs(waits_for=kind)]
            for kind in ("person", "time", "signal", "operator", "run", "worker")
        }
        assert waiting == {
            "person": ["ask"],
            "time": [],
            "signal": ["signal"],
            "operator": ["sleep"],
            "run": [],
            "worker": [],
        }
        assert [each.id for each in await app.runs(waits_for="person", status="failed")] == []
