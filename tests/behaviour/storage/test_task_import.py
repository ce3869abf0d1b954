"""Importing tasks: each becomes a run, bad ones are named before anything is written, and repeating changes nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

import limpet
from limpet.stores.cipher import MasterKeys
from limpet.stores.postgres.connection import Address

TASKS: list[dict[str, Any]] = [
    {"id": "t-1", "user_input": "fix the disk", "state": "pending", "created_at": "2026-05-05T10:00:00Z",
     "updated_at": "2026-05-05T10:00:00.5Z"},
    {"id": "t-2", "user_input": "deploy", "state": "running", "created_at": "2026-05-05T10:00:00+02:00",
     "updated_at": "2026-05-05T11:00:00+02:00"},
    {"id": "t-3", "user_input": "größer " * 9000, "state": "completed", "result": "done " * 9000,
     "created_at": "2026-05-05T10:00:00.123456789Z", "updated_at": "0001-01-01T00:00:00Z"},
    {"id": "t-4", "user_input": "clean", "state": "failed", "error": "no space",
     "created_at": "2026-05-05 10:00:00", "updated_at": None},
]  # fmt: skip
CREATE = (
    "CREATE TABLE agent_tasks (id TEXT PRIMARY KEY, user_input TEXT NOT NULL, state TEXT NOT NULL, result TEXT,"
    " error TEXT, created_at {time}, updated_at {time})"
)
COLUMNS = ("id", "user_input", "state", "result", "error", "created_at", "updated_at")


@limpet.agent(name="import_helper")
async def helper(run: limpet.Run, task: str) -> str:
    return f"did {task}"


@limpet.agent(name="import_typed")
async def typed(run: limpet.Run, cents: int) -> list[int]:
    return [cents]


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[limpet.App]:
    """An app without a worker on a new store."""
    async with limpet.open(f"sqlite:///{tmp_path}/limpet.db", agents=[helper, typed], worker=False) as opened:
        yield opened


def written(path: Path, tasks: object) -> Path:
    """Write tasks as JSON."""
    path.write_text(json.dumps(tasks), encoding="utf-8")
    return path


def table(path: Path, tasks: Sequence[dict[str, Any]]) -> Path:
    """Write tasks as a table of a SQLite file."""
    db = apsw.Connection(str(path))
    db.execute(CREATE.format(time="TEXT")).fetchall()
    for task in tasks:
        db.execute("INSERT INTO agent_tasks VALUES (?, ?, ?, ?, ?, ?, ?)", [task.get(name) for name in COLUMNS])
    db.close()
    return path


async def test_every_state_of_a_task_becomes_a_run(app: limpet.App, tmp_path: Path) -> None:
    """A worker does those that had not ended; the others have their result or error. The old times are a fact."""
    done = await app.import_tasks(written(tmp_path / "tasks.json", TASKS), agent=helper, by="ann")
    assert done.imported == ["t-1", "t-2", "t-3", "t-4"]
    infos = {each.id: each.status for each in await app.runs()}
    assert infos == {"t-1": "pending", "t-2": "pending", "t-3": "completed", "t-4": "failed"}
    assert await (await app.get("t-3", helper)).result() == "done " * 9000
    with pytest.raises(limpet.RunFailed, match="no space"):
        await (await app.get("t-4")).result()
    await app.verify()
    assert (await app.state("t-3")).facts["imported_task"] == {
        "created_at": "2026-05-05T10:00:00.123456Z",
        "state": "completed",
        "updated_at": None,
    }
    assert await app.store.check_strays() == []
    async with limpet.open(f"sqlite:///{tmp_path}/limpet.db", agents=[helper, typed]) as worker:
        assert await (await worker.get("t-1", helper)).result() == "did fix the disk"
        assert await (await worker.get("t-2", helper)).result() == "did deploy"
        await worker.resume("t-4", by="ann")
        assert await (await worker.get("t-4", helper)).result() == "did clean"


async def test_a_task_that_was_running_can_become_a_failed_run(app: limpet.App, tmp_path: Path) -> None:
    await app.import_tasks(written(tmp_path / "tasks.json", TASKS[1:2]), agent="import_helper", running="failed")
    with pytest.raises(limpet.RunFailed, match="was running when it was imported"):
        await (await app.get("t-2")).result()


@pytest.mark.parametrize("form", ["object", "list", "file", "url"])
async def test_all_sources_give_the_same_runs(app: limpet.App, tmp_path: Path, form: str) -> None:
    """A JSON object by id, as the seed's program writes it; a list; a SQLite table by path and by URL."""
    path = tmp_path / "source"
    match form:
        case "object":
            source: str | Path = written(path, {task["id"]: task for task in TASKS})
        case "list":
            source = written(path, TASKS)
        case _:
            source = table(path, TASKS)
    await app.import_tasks(f"sqlite:///{path}" if form == "url" else source, agent=helper)
    assert {each.id: each.status for each in await app.runs()} == {
        "t-1": "pending", "t-2": "pending", "t-3": "completed", "t-4": "failed",
    }  # fmt: skip


async def test_importing_again_changes_nothing(app: limpet.App, tmp_path: Path) -> None:
    """Not one event is added, also after a worker has done the runs. New tasks are imported, changed ones named."""
    source = written(tmp_path / "tasks.json", TASKS)
    await app.import_tasks(source, agent=helper)
    before = await app.store.feed_end()
    again = await app.import_tasks(source, agent=helper)
    assert (again.imported, again.existing, again.changed) == ([], ["t-1", "t-2", "t-3", "t-4"], [])
    assert await app.store.feed_end() == before
    changed = [{**TASKS[0], "state": "completed", "result": "x"}, *TASKS[1:], {**TASKS[0], "id": "t-5"}]
    third = await app.import_tasks(written(tmp_path / "tasks.json", changed), agent=helper)
    assert (third.imported, third.changed) == (["t-5"], ["t-1"])
    assert (await app.info("t-1")).status == "pending"


async def test_two_imports_at_the_same_time_import_each_task_once(app: limpet.App, tmp_path: Path) -> None:
    source = written(tmp_path / "tasks.json", [{**TASKS[n % 4], "id": f"n-{n}"} for n in range(40)])
    done = await asyncio.gather(*(app.import_tasks(source, agent=helper) for _ in range(3)))
    assert {each.id for each in await app.runs(last=1000)} == {f"n-{n}" for n in range(40)}
    for each in done:
        assert sorted(each.imported + each.existing) == sorted(f"n-{n}" for n in range(40))
    for n in range(40):
        assert len([event async for event in app.store.log(f"n-{n}")]) == (1 if n % 4 < 2 else 3)


async def test_bad_tasks_are_named_one_by_one_and_nothing_is_written(app: limpet.App, tmp_path: Path) -> None:
    await app.start(helper, "mine", id="taken")
    bad: list[Any] = [
        "text",
        {"user_input": "x", "state": "pending"},
        {"id": "a/b c\n", "user_input": "x", "state": "pending"},
        {"id": "s", "user_input": "x", "state": "paused"},
        {"id": "i", "state": "pending"},
        {"id": "c", "user_input": "x", "state": "pending", "created_at": "yesterday"},
        {"id": "twice", "user_input": "x", "state": "pending"},
        {"id": "twice", "user_input": "x", "state": "pending"},
        {"id": "good", "user_input": "x", "state": "pending"},
    ]
    with pytest.raises(limpet.InvalidTasks) as refused:
        await app.import_tasks(written(tmp_path / "tasks.json", bad), agent=helper)
    found = refused.value.problems
    assert len(found) == 7
    for text in ("task 1: not an object", "task 2: id is missing", "state 'paused'", "task i: user_input", "yesterday",
                 "task twice: its id occurs twice"):  # fmt: skip
        assert any(text in each for each in found), (text, found)
    more = [{"id": "taken", "user_input": "x", "state": "pending"}, {"id": "n", "user_input": 7, "state": "pending"}]
    with pytest.raises(limpet.InvalidTasks) as refused:
        await app.import_tasks(written(tmp_path / "tasks.json", more), agent=helper)
    assert ["task taken" in refused.value.problems[0], "task n" in refused.value.problems[1]] == [True, True]
    assert {each.id for each in await app.runs()} == {"taken"}


async def test_text_is_read_as_json_for_an_agent_that_takes_something_else(app: limpet.App, tmp_path: Path) -> None:
    tasks = [{"id": "t", "user_input": "12", "state": "completed", "result": "[12]"}]
    await app.import_tasks(written(tmp_path / "tasks.json", tasks), agent=typed)
    assert await (await app.get("t", typed)).result() == [12]


@pytest.mark.parametrize("text", ["", "{", "7", '"x"'])
async def test_a_file_that_has_no_tasks_is_refused(app: limpet.App, tmp_path: Path, text: str) -> None:
    (tmp_path / "tasks.json").write_text(text)
    with pytest.raises(limpet.InvalidTasks):
        await app.import_tasks(tmp_path / "tasks.json", agent=helper)


async def test_a_missing_file_and_a_missing_table_are_said(app: limpet.App, tmp_path: Path) -> None:
    with pytest.raises(limpet.FileFailed):
        await app.import_tasks(tmp_path / "none.json", agent=helper)
    with pytest.raises(limpet.InvalidTasks, match="agent_tasks"):
        await app.import_tasks(tmp_path / "limpet.db", agent=helper)
    with pytest.raises(limpet.NotFound):
        await app.import_tasks(written(tmp_path / "tasks.json", TASKS), agent="unknown")


# The view


def expected() -> list[tuple[str, str, str, str, str]]:
    """Return the first columns of the rows that old readers find. Values in blobs are not shown."""
    return [
        ("t-1", "fix the disk", "pending", "", ""),
        ("t-2", "deploy", "pending", "", ""),
        ("t-3", "", "completed", "", ""),
        ("t-4", "clean", "failed", "", "no space"),
    ]


async def test_an_old_reader_finds_the_runs_in_a_view(app: limpet.App, tmp_path: Path) -> None:
    """With exactly the old columns, and the old times until a run changes. A cancelled run has an old state."""
    await app.import_tasks(written(tmp_path / "tasks.json", TASKS), agent=helper)
    db = apsw.Connection(str(tmp_path / "limpet.db"))
    db.set_busy_timeout(10_000)
    db.execute("CREATE VIEW agent_tasks AS SELECT * FROM limpet_agent_tasks").fetchall()
    cursor = db.execute("SELECT * FROM agent_tasks ORDER BY id")
    assert tuple(name for name, *_ in cursor.get_description()) == COLUMNS
    rows = cursor.fetchall()
    assert [row[:5] for row in rows] == expected()
    assert rows[0][5:] == ("2026-05-05T10:00:00Z", "2026-05-05T10:00:00.500000Z")
    assert rows[1][5:] == ("2026-05-05T08:00:00Z", "2026-05-05T09:00:00Z")
    assert rows[3][5] == "2026-05-05T10:00:00Z"
    await app.cancel("t-1", reason="no need", by="ann")
    await app.start(typed, 7, id="own")
    async with limpet.open(f"sqlite:///{tmp_path}/limpet.db", agents=[helper, typed]) as worker:
        assert await (await worker.get("own")).result() == [7]
        with pytest.raises(limpet.RunCancelled):
            await (await worker.get("t-1")).result()
    found = {row[0]: row for row in db.execute("SELECT * FROM agent_tasks")}
    assert found["own"][1:5] == ("7", "completed", "[7]", "")
    assert found["t-1"][2:5] == ("failed", "", "cancelled: no need")
    assert found["t-1"][5] == "2026-05-05T10:00:00Z"
    assert found["t-1"][6] != rows[0][6]
    db.close()


async def test_the_view_of_an_encrypted_store_shows_no_text(tmp_path: Path) -> None:
    """Ids, states and the times of the log are shown; input, result, error and old times are not."""
    url, keys = f"sqlite:///{tmp_path}/limpet.db", MasterKeys(lambda: bytes(32))
    source = written(tmp_path / "tasks.json", TASKS)
    settings = limpet.open(url, agents=[helper], worker=False)
    async with settings.replace(store=limpet.open_store(url, keys=keys)) as app:
        await app.import_tasks(source, agent=helper)
        again = await app.import_tasks(source, agent=helper)
        assert again.existing == ["t-1", "t-2", "t-3", "t-4"]
        assert await (await app.get("t-3", helper)).result() == "done " * 9000
        await app.verify()
    db = apsw.Connection(str(tmp_path / "limpet.db"))
    db.set_busy_timeout(10_000)
    rows = db.execute("SELECT * FROM limpet_agent_tasks ORDER BY id").fetchall()
    assert [row[:5] for row in rows] == [(id, "", state, "", "") for id, _, state, _, _ in expected()]
    db.close()


async def test_tasks_move_between_tables_on_postgres(postgres_schema: str) -> None:
    """A table `agent_tasks` in the search path is imported, and the view has the same rows."""
    address = Address.parse(postgres_schema)
    with psycopg.connect(address.server, autocommit=True) as db:
        async with limpet.open(postgres_schema, agents=[helper], worker=False) as app:
            old = f"{address.schema}_old"
            db.execute(f"CREATE SCHEMA {old}".encode())
            db.execute(CREATE.format(time="TIMESTAMPTZ").replace("agent_tasks", f"{old}.agent_tasks").encode())
            for task in TASKS:
                values = [task.get(name) if task.get(name) != "0001-01-01T00:00:00Z" else None for name in COLUMNS]
                db.execute(f"INSERT INTO {old}.agent_tasks VALUES (%s, %s, %s, %s, %s, %s, %s)".encode(), values)
            source = address.server.replace(address.schema, old)
            try:
                assert len((await app.import_tasks(source, agent=helper)).imported) == 4
                assert len((await app.import_tasks(source, agent=helper)).existing) == 4
            finally:
                db.execute(f"DROP SCHEMA {old} CASCADE".encode())
            await app.start(helper, "with\0nul", id="t-5")
        cursor = db.execute(f"SELECT * FROM {address.schema}.agent_tasks ORDER BY id".encode())
        assert cursor.description is not None
        assert tuple(column.name for column in cursor.description) == COLUMNS
        rows = cursor.fetchall()
    assert [row[:5] for row in rows] == [*expected(), ("t-5", "", "pending", "", "")]
    assert rows[0][5].isoformat().startswith("2026-05-05T10:00:00")
    assert rows[0][6].isoformat().startswith("2026-05-05T10:00:00.5")
