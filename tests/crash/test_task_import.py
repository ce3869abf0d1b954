"""An import is killed at every place: no run is half written, and importing again completes it."""

import json
from pathlib import Path

import pytest

import limpet
from tests.crash.task_import import import_all
from tests.crash.test_requests import KILLED, Process

STATES = ("pending", "running", "completed", "failed")
TASKS = [
    {
        "id": f"t-{number}",
        "user_input": f"do {number} " * (4000 if number % 3 == 0 else 1),
        "state": STATES[number % 4],
        "result": f"done {number} " * (4000 if number % 5 == 0 else 1),
        "error": "no",
        "created_at": "2026-05-05T10:00:00Z",
    }
    for number in range(9)
]
ENDED = {"completed": 3, "failed": 3, "pending": 1, "running": 1}


@limpet.agent(name="imported")
async def imported(run: limpet.Run, task: str) -> str:
    return f"did {task}"


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_an_import_that_was_killed_at_any_place_is_completed_by_the_next(
    store: str, request: pytest.FixtureRequest, tmp_path: Path, *, full: bool
) -> None:
    """Each run is complete or does not exist; in the end, each task was imported once."""
    source = tmp_path / "tasks.json"
    source.write_text(json.dumps(TASKS))
    is_sqlite, kills = store == "sqlite", 0
    shared = "" if is_sqlite else request.getfixturevalue("postgres_schema")
    unit, last, stride = ("statements", 200, 2 if full else 11) if is_sqlite else ("queries", 120, 40)
    for place in range(1, last, stride):
        url = f"sqlite:///{tmp_path}/{place}.db" if is_sqlite else shared
        async with limpet.open(url, agents=[imported], worker=False) as app:
            doomed = Process(import_all, url, str(source), f"{unit}:{place}")
            kills += await doomed.ended() == KILLED
            await check(app)
            if is_sqlite:
                await complete(app, source)
    if not is_sqlite:
        async with limpet.open(shared, worker=False) as app:
            await complete(app, source)
    assert kills > 1


async def complete(app: limpet.App, source: Path) -> None:
    """Import again, twice: the first completes it, and the second finds everything."""
    await app.import_tasks(source, agent="imported")
    await check(app)
    done = await app.import_tasks(source, agent="imported")
    assert (done.imported, len(done.existing)) == ([], len(TASKS))
    assert {each.id for each in await app.runs(last=1000)} == {task["id"] for task in TASKS}
    await app.verify()
    assert await (await app.get("t-2")).result() == "done 2 "


async def check(app: limpet.App) -> None:
    """Check that every run that exists has all its events."""
    for each in await app.runs(last=1000):
        events = [event async for event in app.store.log(each.id)]
        assert len(events) == ENDED[STATES[int(each.id.removeprefix("t-")) % 4]]
        assert await app.store.check_rows(each.id) == []
    assert await app.store.check_strays() == []
