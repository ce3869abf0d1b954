"""Runs as task records, with the seven fields of a task table."""

import pytest

import limpet
from limpet import testing


@limpet.agent(name="tasks_divide")
async def divide(run: limpet.Run, by: int) -> int:
    if by == 1 and not await run.ask("Really?", to="ann"):
        return 0
    return 100 // by


async def test_a_run_is_a_task_record_with_seven_fields() -> None:
    async with testing.app(divide) as app:
        assert await app.run(divide, 5, id="t-5") == 20
        task = await app.task("t-5")
        assert task.__struct_fields__ == (
            "id", "user_input", "state", "result", "error", "created_at", "updated_at",
        )  # fmt: skip
        assert (task.id, task.user_input, task.state, task.result, task.error) == ("t-5", "5", "completed", "20", "")
        assert task.created_at <= task.updated_at
        await app.start(divide, 0, id="t-0")
        await app.settle()
        task = await app.task("t-0")
        assert (task.state, task.result, task.error) == ("failed", "", "integer division or modulo by zero")
        with pytest.raises(limpet.NotFound):
            await app.task("t-9")


async def test_tasks_and_runs_that_wait_for_a_person_are_filtered() -> None:
    """The newest task is first. An unknown state is refused with the known ones."""
    async with testing.app(divide) as app:
        for by in (1, 0, 5, 4):
            await app.start(divide, by, id=f"t-{by}")
            await app.settle()
        assert [task.id for task in await app.tasks(state="completed")] == ["t-4", "t-5"]
        assert [task.id for task in await app.tasks(state="failed")] == ["t-0"]
        [task] = await app.tasks(state="awaiting_user")
        assert (task.id, task.state) == ("t-1", "awaiting_user")
        assert [info.id for info in await app.runs(waits_for="person")] == ["t-1"]
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        await app.settle()
        assert [task.id for task in await app.tasks(state="awaiting_user")] == []
        assert (await app.task("t-1")).result == "100"
        with pytest.raises(limpet.InvalidArgument, match="awaiting_user"):
            await app.tasks(state="asleep")  # type: ignore[arg-type]
