"""SQLite only: versions, schemas, locks, and other transactions on the file."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from limpet import open_store
from limpet.clock import Clock
from limpet.errors import NewerVersion, StoreBusy, StoreUnavailable, Tampered
from limpet.events import AnyBody, Sealed, Spent
from limpet.stores import Appended, Missed, Store, WorkerRow
from limpet.stores.append import plan_extension
from limpet.stores.blobs import Blob
from limpet.stores.conformance import Harness, World
from limpet.stores.conformance.suite import completed, contract, created, signalled, started
from limpet.stores.processes import CAN_SEE
from limpet.stores.sql_files import load
from limpet.stores.sqlite import SqliteBackend, backend
from limpet.stores.sqlite.locks import HAVE_FLOCK, WorkerLocks, WriterQueue
from limpet.stores.sqlite.migrate import newest
from limpet.stores.writes import Append, Register, Work


def test_a_sqlite_that_can_lose_data_is_refused() -> None:
    """Versions up to 3.51.2 have the WAL-reset bug."""
    with pytest.raises(StoreUnavailable, match="can lose committed data"):
        backend._check_version("3.51.2")
    backend._check_version("3.51.3")
    backend._check_version(apsw.sqlite_lib_version())


async def test_a_newer_schema_is_refused_and_not_modified(tmp_path: Path) -> None:
    """A store is never downgraded to an older schema."""
    path = tmp_path / "limpet.db"
    async with open_store(f"sqlite:///{path}"):
        pass
    db = apsw.Connection(str(path))
    db.execute("UPDATE limpet_meta SET value = '99' WHERE name = 'schema'")
    db.close()
    with pytest.raises(NewerVersion) as error:
        await open_store(f"sqlite:///{path}").open()
    assert "99" in error.value.what
    assert error.value.reason.endswith(f"up to {newest()}")


async def test_every_connection_is_durable_and_strict(tmp_path: Path) -> None:
    """WAL, synchronous=FULL, foreign keys and no mmap apply to the writing and reading connections."""
    back = SqliteBackend(tmp_path / "limpet.db")
    async with Store(back):
        assert back._opened is not None
        with back._reader() as reading:
            for db in (back._opened.writing, reading):
                found = [db.pragma(name) for name in ("journal_mode", "synchronous", "foreign_keys", "mmap_size")]
                assert found == ["wal", 2, 1, 0]
            with pytest.raises(apsw.ReadOnlyError):
                reading.execute("DELETE FROM limpet_events")


async def test_no_statement_is_left_open(tmp_path: Path) -> None:
    """An open statement would keep its snapshot, and the next BEGIN IMMEDIATE would fail immediately."""
    path = tmp_path / "limpet.db"
    one, two = await open_store(f"sqlite:///{path}").open(), await open_store(f"sqlite:///{path}").open()
    for place in range(20):
        await one.create(f"a{place}", created(), actor="test")
        await two.create(f"b{place}", created(), actor="test")
    assert await one.count() == 40
    await one.close()
    await two.close()


async def test_an_append_waits_for_another_transaction_on_the_file(tmp_path: Path) -> None:
    """Another connection's open transaction delays an append, and does not fail it."""
    path = tmp_path / "limpet.db"
    async with open_store(f"sqlite:///{path}") as store:
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        creating = asyncio.create_task(store.create("r1", created(), actor="test"))
        await store.count()
        assert not creating.done()
        other.execute("COMMIT")
        _, fresh = await creating
        assert fresh
        other.close()


async def test_saving_an_unchanged_contract_writes_nothing(tmp_path: Path) -> None:
    """Other connections see no change when an app saves the same contracts."""
    path = tmp_path / "limpet.db"
    async with open_store(f"sqlite:///{path}") as store:
        other = apsw.Connection(str(path))
        seen = []
        for row in (contract(), contract(), contract(takes="number")):
            await store.save_contracts([row])
            seen.append(other.pragma("data_version"))
        assert seen[0] == seen[1] != seen[2]
        other.close()


async def test_a_users_own_tables_can_share_the_file(tmp_path: Path) -> None:
    """This holds whichever was created first; Limpet's tables are named limpet_*."""
    path = tmp_path / "limpet.db"
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE orders (id TEXT); PRAGMA user_version = 7")
    async with open_store(f"sqlite:///{path}") as store:
        await store.create("r1", created(), actor="test")
    async with open_store(f"sqlite:///{path}") as store:
        assert await store.count() == 1
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    assert all(str(name).startswith(("limpet_", "sqlite_")) for name in names if name != "orders")
    assert db.pragma("user_version") == 7
    db.close()


HOLD = {
    "the file": "import apsw; db = apsw.Connection(sys.argv[1]); db.execute('BEGIN IMMEDIATE')",
    "the gate": "import fcntl; file = open(sys.argv[1] + '-gate'); fcntl.flock(file, fcntl.LOCK_EX)",
}


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold a lock in another process."""
    code = f"import sys; {HOLD[what]}; print('held', flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
        holder.communicate()


@pytest.mark.parametrize("what", HOLD)
async def test_readers_do_not_wait_for_a_writers_lock(tmp_path: Path, what: str) -> None:
    """Opening an existing store writes nothing; a write is refused after `patience`, and succeeds later."""
    path = tmp_path / "limpet.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.create("r1", created(), actor="test")
    async with Store(SqliteBackend(path, patience="50ms")) as store:
        pass
    with held(path, what):
        store = await Store(SqliteBackend(path, patience="50ms"), patience=0).open()
        assert (await store.get("r1")).status == "pending"
        for _ in range(2):
            with pytest.raises(StoreBusy):
                await store.create("r2", created(), actor="test")
    await store.create("r2", created(), actor="test")
    assert await store.count() == 2
    await store.close()


async def test_a_copied_store_gets_its_own_write_ahead_log(tmp_path: Path) -> None:
    """A copy made by SQLite has no write-ahead log; opening it creates one."""
    path, copy = tmp_path / "limpet.db", tmp_path / "copy.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.create("r1", created(), actor="test")
    with closing(apsw.Connection(str(path))) as db:
        db.execute("VACUUM INTO ?", (str(copy),))
    back = SqliteBackend(copy)
    async with Store(back) as store:
        assert back._opened is not None
        assert (back._opened.writing.pragma("journal_mode"), await store.count()) == ("wal", 1)


def test_an_abandoned_place_in_the_writer_queue_does_not_block_others(tmp_path: Path) -> None:
    one, two, three = (WriterQueue(tmp_path / "gate", 20_000) for _ in range(3))
    one.enter()
    for _ in range(3):
        with pytest.raises(StoreBusy):
            two.enter()
    one.leave()
    patient = WriterQueue(tmp_path / "gate", 60_000_000)
    patient.enter()
    with pytest.raises(StoreBusy):
        three.enter()
    for gate in (one, two, three, patient):
        gate.close()


HOLDS = """
import os, signal, sys
from pathlib import Path
from limpet.stores.sqlite.locks import WriterQueue
gate = WriterQueue(Path(sys.argv[1]), 0)
gate.enter()
os.kill(os.getpid(), signal.SIGSTOP)
gate.leave()
"""


@pytest.mark.skipif(not HAVE_FLOCK or not CAN_SEE, reason="needs Linux's /proc")
async def test_a_stopped_process_that_holds_the_writer_queue_is_named(tmp_path: Path) -> None:
    """The error names the process and that it is stopped; the queue continues when the process does."""
    async with Store(SqliteBackend(tmp_path / "limpet.db", patience="100ms"), patience=0) as store:
        with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path / "limpet.db-gate")]) as holder:
            try:
                os.waitpid(holder.pid, os.WUNTRACED)
                with pytest.raises(StoreBusy, match=f"process {holder.pid} .* is stopped"):
                    await store.create("r1", created(), actor="test")
                holder.send_signal(signal.SIGCONT)
                assert holder.wait() == 0
            finally:
                holder.kill()
        await store.create("r1", created(), actor="test")


def test_a_held_lock_is_not_free_and_a_dropped_one_leaves_no_file(tmp_path: Path) -> None:
    """A free lock means a dead worker; nothing is known about a worker without a lock."""
    mine, others = WorkerLocks(tmp_path / "x.db"), WorkerLocks(tmp_path / "x.db")
    mine.hold("w1")
    mine.hold("w1")
    assert (mine.is_free("w1"), others.is_free("w1"), others.is_free("unknown")) == (False, False, False)
    mine.close()
    assert others.is_free("w1")
    others.drop("w1")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_file_was_removed_can_be_taken_again(tmp_path: Path) -> None:
    """The death of a worker that was removed by mistake and registers again can be detected."""
    mine, others = WorkerLocks(tmp_path / "x.db"), WorkerLocks(tmp_path / "x.db")
    mine.hold("w1")
    others.drop("w1")
    mine.hold("w1")
    assert not others.is_free("w1")
    mine.close()
    assert others.is_free("w1")


async def test_a_worker_whose_lock_cannot_be_created_is_refused_alone(tmp_path: Path) -> None:
    """The id is too long for a file name; only this registration is refused."""
    path = tmp_path / ("x" * 100)
    async with open_store(f"sqlite:///{path}") as store:
        with pytest.raises(StoreUnavailable, match="cannot lock"):
            await store.register(WorkerRow(id="w" * 200), lease=1)
        await store.create("r1", created(), actor="test")


def test_a_store_in_a_forked_child_is_refused(tmp_path: Path) -> None:
    """Threads and connections belong to the parent, which continues and keeps its locks."""
    with asyncio.Runner() as runner:
        store = runner.run(open_store(f"sqlite:///{tmp_path / 'limpet.db'}").open())
        runner.run(store.register(WorkerRow(id="w1"), lease=10**9))
        child = os.fork()
        if child == 0:
            os._exit(0 if asyncio.run(_refused(store)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not WorkerLocks(tmp_path / "limpet.db").is_free("w1")
        runner.run(store.create("r1", created(), actor="test"))
        runner.run(store.close())


async def _refused(store: Store) -> bool:
    for attempt in (store.count(), store.create("r2", created(), actor="test")):
        try:
            await attempt
        except StoreUnavailable as error:
            if "forked" not in error.reason:
                return False
        else:
            return False
    return True


async def test_an_unreadable_row_does_not_block_claims(tmp_path: Path) -> None:
    """Reading its run raises, and others are claimed."""
    path = tmp_path / "limpet.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.create("r1", created(), actor="test")
        await store.create("r2", created(), actor="test")
        db = apsw.Connection(str(path))
        db.execute("""UPDATE limpet_streams SET labels = '{"a":1}' WHERE id = 'r1'""")
        db.close()
        await store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=10**9)
        assert [claimed.row.id for claimed in await store.claim("w1", limit=5)] == ["r2"]
        with pytest.raises(Tampered, match="r1"):
            await store.get("r1")


async def test_reopening_waits_for_the_commit_in_progress(tmp_path: Path) -> None:
    """The store is reopened between two commits, and accepts work afterwards."""
    async with open_store(f"sqlite:///{tmp_path / 'limpet.db'}") as store:
        creating = [asyncio.create_task(store.create(f"r{place}", created(), actor="test")) for place in range(50)]
        await store.reopen()
        await asyncio.gather(*creating)
        assert await store.count() == 50


async def test_a_store_used_before_opening_works_after_opening(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'limpet.db'}")
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.create("r1", created(), actor="test")
    await store.open()
    await store.create("r1", created(), actor="test")
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.count()


async def test_the_schema_refuses_inconsistent_rows(tmp_path: Path) -> None:
    """Examples are a duplicate sequence, a running run without a worker, an end without a time and an orphan event."""
    path = tmp_path / "limpet.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.create("r1", created(), actor="test")
        db = apsw.Connection(str(path))
        db.pragma("foreign_keys", 1)
        columns = "seq, time, kind, version, fence, actor, codec, key_id, body, hash"
        for statement in (
            f"INSERT INTO limpet_events (run, {columns}) SELECT run, {columns} FROM limpet_events",
            f"INSERT INTO limpet_events (run, {columns}) SELECT 77, {columns} FROM limpet_events",
            "UPDATE limpet_streams SET status = 'running'",
            "UPDATE limpet_streams SET status = 'completed', ready_at = NULL",
            "UPDATE limpet_streams SET status = 'sleeping'",
            "UPDATE limpet_streams SET worker = 'w1'",
            "UPDATE limpet_streams SET hash = x'00'",
            "UPDATE limpet_streams SET seq = 'one'",
            "DELETE FROM limpet_streams",
        ):
            with pytest.raises(apsw.ConstraintError):
                db.execute(statement)
        db.close()


@asynccontextmanager
async def watched_statements(path: Path) -> AsyncIterator[tuple[World, SqliteBackend, list[str]]]:
    """A world on a SQLite file, and the statements that its writer executes."""
    back = None

    def made(clock: Clock) -> SqliteBackend:
        nonlocal back
        back = SqliteBackend(path / "limpet.db", clock)
        return back

    async with World(Harness(backend=made)) as world:
        await world.own("first")
        assert back is not None
        assert back._opened is not None
        asked: list[str] = []

        def traced(_: apsw.Cursor, statement: str, __: object) -> bool:
            asked.append(statement)
            return True

        back._opened.writing.exec_trace = traced
        yield world, back, asked


async def test_a_batch_of_many_appends_is_few_statements(tmp_path: Path) -> None:
    """Between two statements the writer may wait for a thread that computes, while other processes cannot write."""
    async with watched_statements(tmp_path) as (world, _, asked):
        owners = [await world.own(f"r{place:03}") for place in range(203)]
        await world.store.send_commands("r100", signalled(), actor="ann")
        asked.clear()
        done = await asyncio.gather(*(each.send(each.extend(started(), completed())) for each in owners))
        assert [type(each) for each in done] == [Appended] * 100 + [Missed] + [Appended] * 102
        # The writer may start before all are there. The refused one is tried twice more, alone.
        assert sum(each.startswith(("UPDATE", "INSERT")) for each in asked) <= 10
        assert len(asked) <= 40


async def test_a_batch_of_extensions_is_one_statement(tmp_path: Path) -> None:
    """It is its own transaction. Those that are stale, or too many for it, follow in another one."""
    async with watched_statements(tmp_path) as (world, back, asked):
        owners = [await world.own(f"r{place:03}") for place in range(300)]
        extensions = [plan_extension(each.extend(started(), completed())).extension for each in owners]
        asked.clear()
        assert back.commit(extensions[:60], world.store.codec) == [True] * 60
        assert [each.split("(")[0] for each in asked] == ["INSERT INTO limpet_extensions VALUES "]
        await world.store.send_commands("r100", signalled(), actor="ann")
        asked.clear()
        assert back.commit(extensions[60:], world.store.codec) == [place != 100 for place in range(60, 300)]
        kinds = [each.split()[0] for each in asked]
        assert (kinds.count("BEGIN"), kinds.count("INSERT")) == (1, 2)
        for owner in (owners[0], owners[99], owners[100], owners[299]):
            wanted = ["signal.received"] if owner is owners[100] else ["step.started", "step.completed"]
            assert (await world.kinds(owner.run))[2:] == wanted
            assert await world.store.check_rows(owner.run) == []


async def test_extensions_among_other_operations_are_one_statement(tmp_path: Path) -> None:
    async with watched_statements(tmp_path) as (world, back, asked):
        owners = [await world.own(f"r{place}") for place in range(20)]
        extensions = [plan_extension(each.extend(started())).extension for each in owners]
        asked.clear()
        done = back.commit([*extensions, Register(worker=WorkerRow(id="w2", agents={}), lease=1)], world.store.codec)
        assert done[:-1] == [True] * 20
        kinds = [each.split("(")[0] for each in asked]
        assert kinds.count("INSERT INTO limpet_extensions VALUES ") == kinds.count("BEGIN IMMEDIATE") == 1


async def test_an_append_that_is_repeated_in_a_batch_changes_nothing_twice(tmp_path: Path) -> None:
    """Its first reply was lost. It is not taken for one that this batch has written."""
    async with watched_statements(tmp_path) as (world, back, _):
        owners = [await world.own(f"r{place}") for place in range(3)]
        paid = replace(completed(), spent=Spent(cost=1.5))
        legs = [each.extend(started(), paid) for each in owners]
        first, *others = [Append(legs=(leg,)) for leg in legs]
        for other in others:
            done = back.commit([first, other], world.store.codec)
            assert [type(each) for each in done] == [Appended, Appended]
        assert [await world.store.check_rows(each.run) for each in owners] == [[], [], []]
        again = [plan_extension(leg).extension for leg in legs]
        new = plan_extension((await world.own("new")).extend(started())).extension
        assert back._opened is not None
        with back._opened.transaction as tables:
            assert [number is not None for number in tables.extend([*again, new])] == [False, False, False, True]


async def test_an_extension_under_another_fence_is_not_written(tmp_path: Path) -> None:
    async with watched_statements(tmp_path) as (world, back, _):
        owners = [await world.own("r1"), await world.own("r2")]
        extensions = [plan_extension(each.extend(started())).extension for each in owners]
        extensions[0] = replace(extensions[0], fence=7)
        assert back.commit(extensions, world.store.codec) == [False, True]


async def test_what_was_written_before_a_failure_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement is committed, and then the file is busy for the rest of the batch."""
    async with watched_statements(tmp_path) as (world, back, _):
        owners = [await world.own(f"r{place}") for place in range(3)]
        extensions = [plan_extension(each.extend(started())).extension for each in owners]
        await world.store.send_commands("r1", signalled(), actor="ann")

        def busy(*_: object) -> None:
            raise StoreBusy(reason="test")

        monkeypatch.setattr(back, "_perform", busy)
        done = back.commit(extensions, world.store.codec)
        assert (done[0], type(done[1]), done[2]) == (True, StoreBusy, True)
        with pytest.raises(StoreBusy):
            back.commit(extensions, world.store.codec)


async def test_a_checkpoint_keeps_other_processes_from_writing(tmp_path: Path) -> None:
    """Otherwise the write-ahead log would never be empty. If another one writes now, a later batch repeats it."""
    path = tmp_path / "limpet.db"
    back = SqliteBackend(path, patience="50ms")
    async with Store(back) as store:
        await store.create("r1", created(), actor="test")
        before, gate = path.stat().st_size, WriterQueue(path.with_name(f"{path.name}-gate"), 0)
        gate.enter()
        back.tidy()
        assert path.stat().st_size == before
        gate.leave()
        back.tidy()
        assert path.stat().st_size > before
        gate.close()


async def test_a_store_closes_although_a_watch_starts_meanwhile(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/limpet.db").open()
    store._watching.close()
    with store.watch() as watch:
        await asyncio.wait_for(watch.changed(), 60)
        await asyncio.wait_for(store.close(), 60)


async def test_a_claim_that_finds_nothing_looks_once_for_all_agents(tmp_path: Path) -> None:
    """An idle worker claims every second, and a busy one while its writer has other work."""
    async with watched_statements(tmp_path) as (world, _, asked):
        await world.worker("w2", agents=[f"agent-{place}" for place in range(20)])
        asked.clear()
        assert await world.claim("w2") == ()
        assert len(asked) == 5  # a transaction, both workers, and a look
        for agent in ("agent-3", "agent-7", "other"):
            await world.create(agent, agent=agent)
        assert [each.row.id for each in await world.claim("w2")] == ["agent-3", "agent-7"]


async def test_an_extension_that_the_schema_refuses_does_not_affect_its_batch(tmp_path: Path) -> None:
    async with watched_statements(tmp_path) as (world, back, _):
        owners = [await world.own(f"r{place}") for place in range(3)]
        bad = owners[1].extend(started())
        event = replace(bad.events[0].event, hash=b"short")
        bad = replace(bad, events=(Sealed(event, started()),))
        legs = [owners[0].extend(started()), bad, owners[2].extend(started())]
        extensions = [plan_extension(leg).extension for leg in legs]
        done = back.commit(extensions, world.store.codec)
        assert [each is True for each in done] == [True, False, True]
        assert "CHECK constraint failed" in str(done[1])
        assert [len(await world.kinds(each.run)) for each in owners] == [3, 2, 3]


async def test_nothing_of_a_batch_of_extensions_is_in_the_file_before_all_of_it(tmp_path: Path) -> None:
    """A process that is killed during the statement has written nothing."""
    async with watched_statements(tmp_path) as (world, back, _):
        owners = [await world.own(f"r{place}") for place in range(3)]
        other = apsw.Connection(str(tmp_path / "limpet.db"))
        seen: list[int] = []

        def count(*_: object) -> bool:
            seen.extend(row[0] for row in other.execute("SELECT count(*) FROM limpet_events"))
            return False

        assert back._opened is not None
        before = len(owners) * 2 + 2
        back._opened.writing.set_progress_handler(count, 20)
        await asyncio.gather(*(world.store.extend(each.extend(started(), completed())) for each in owners))
        back._opened.writing.set_progress_handler(None)
        assert seen[0] == before
        assert set(seen) <= {before, before + 6}
        count()
        assert seen[-1] == before + 6
        other.close()


HOT = {
    "ready": 4,
    "ready_agents": 2,
    "row": 1,
    "events": 3,
    "read": 4,
    "read_backwards": 4,
    "command": 2,
    "held_by": 1,
    "request": 1,
    "open_requests": 1,
    "snapshot": 2,
    "late": 1,
}


@pytest.mark.parametrize("name", HOT)
async def test_hot_statements_use_an_index_and_sort_nothing(tmp_path: Path, name: str) -> None:
    """The number of ended runs does not matter for claiming and reading."""
    plan = await _plan(tmp_path, SQL[name], (None,) * HOT[name])
    assert "SCAN s" not in plan
    assert "SCAN e" not in plan
    assert "SCAN r" not in plan
    assert "TEMP B-TREE" not in plan or name == "open_requests"


async def test_many_heads_are_moved_without_reading_other_runs(tmp_path: Path) -> None:
    """Each is found by its number, however many runs have a worker."""
    async with watched_statements(tmp_path) as (_, back, _):
        assert back._opened is not None
        back._opened.writing.config(apsw.SQLITE_DBCONFIG_TRIGGER_EQP, 1)
        statement = f"EXPLAIN QUERY PLAN INSERT INTO limpet_extensions VALUES ({', '.join('?' * 16)})"
        plan = " ".join(str(row[3]) for row in back._opened.writing.execute(statement, (None,) * 16))
    assert "SEARCH limpet_streams USING INTEGER PRIMARY KEY" in plan
    assert "SCAN limpet_streams" not in plan
    assert "limpet_streams_worker" not in plan


@pytest.mark.parametrize(
    "part", ["", "runs.status", "runs.agent", "runs.session", "runs.user", "runs.parent", "runs.label"]
)
async def test_lists_use_an_index_for_their_order(tmp_path: Path, part: str) -> None:
    """A page of the newest runs is read from the end of an index."""
    parts = [SQL["runs"], *([SQL[part] % (0, 0) if "label" in part else SQL[part]] if part else []), SQL["runs.order"]]
    plan = await _plan(tmp_path, " ".join(parts), dict.fromkeys(NAMES))
    assert "TEMP B-TREE" not in plan
    column = part.removeprefix("runs.")
    assert part in ("", "runs.label") or f"limpet_streams_{column}" in plan


@pytest.mark.parametrize("place", ["", "latest.rested_before"])
async def test_the_runs_that_were_updated_last_are_read_from_an_index(tmp_path: Path, place: str) -> None:
    """Those that no worker holds; the index of held runs has the others."""
    order = SQL["latest.rested_order"]
    parts = [SQL["latest.rested_runs"], SQL["latest.rested"], *([SQL[place]] if place else []), order]
    plan = await _plan(tmp_path, " ".join(parts), dict.fromkeys(NAMES))
    assert ("limpet_streams_rested" in plan, "TEMP B-TREE" in plan) == (True, False)
    held = await _plan(tmp_path, " ".join([SQL["latest.held_runs"], SQL["latest.held"]]), dict.fromkeys(NAMES))
    assert "limpet_streams_worker" in held


NAMES = (
    "before_time",
    "before_number",
    "type",
    "status",
    "agent",
    "session",
    "user",
    "parent",
    "limit",
    "label_name_0",
    "label_value_0",
)
SQL = load("limpet.stores.sqlite", "statements.sql")


async def _plan(tmp_path: Path, statement: str, bindings: tuple[None, ...] | dict[str, None]) -> str:
    path = tmp_path / "limpet.db"
    async with open_store(f"sqlite:///{path}"):
        db = apsw.Connection(str(path))
        found = " ".join(str(row[3]) for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", bindings))
        db.close()
    return found


OURS = [
    "INSERT INTO limpet_meta VALUES ('x', 'y')",
    "UPDATE limpet_streams SET status = 'completed'",
    "DELETE FROM limpet_events",
    "DELETE FROM LIMPET_EVENTS",
    "DROP TABLE limpet_late",
    "ALTER TABLE limpet_late RENAME TO mine",
    "ALTER TABLE limpet_late ADD COLUMN mine",
    "DROP INDEX limpet_streams_ready",
    "CREATE INDEX mine ON limpet_events (kind)",
    "DROP TRIGGER limpet_count_new",
    "DROP TRIGGER limpet_extend",
    "DROP VIEW limpet_extensions",
    "CREATE TEMP TRIGGER mine INSTEAD OF INSERT ON limpet_extensions BEGIN SELECT 1; END",
    f"INSERT INTO limpet_extensions VALUES ({', '.join(['1'] * 16)})",
    "CREATE TRIGGER mine AFTER INSERT ON limpet_events BEGIN SELECT 1; END",
    "CREATE TEMP TRIGGER mine AFTER INSERT ON limpet_events BEGIN SELECT 1; END",
    "CREATE TRIGGER mine2 AFTER INSERT ON orders BEGIN DELETE FROM limpet_events; END; INSERT INTO orders VALUES ('x')",
    "WITH x AS (SELECT 1) DELETE FROM limpet_events",
    "REPLACE INTO limpet_meta VALUES ('schema', '9')",
    "CREATE TABLE limpet_mine (id TEXT)",
    "PRAGMA writable_schema = ON",
    "PRAGMA foreign_keys = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA journal_mode = DELETE",
    "COMMIT",
    "ROLLBACK",
    "END",
    "SAVEPOINT limpet",
    "RELEASE limpet",
    "ROLLBACK TO limpet",
    "ATTACH ':memory:' AS other",
]


@pytest.mark.parametrize("statement", OURS)
async def test_a_callers_work_cannot_change_limpets_tables(tmp_path: Path, statement: str) -> None:
    """Tables, indexes, triggers and the transaction are protected; the work is rolled back."""
    path = tmp_path / "limpet.db"
    async with World(Harness(backend=lambda clock: SqliteBackend(path, clock))) as world:
        owner = await world.own()
        await owner.transact(_executing("CREATE TABLE orders (id TEXT)"))
        before = _schema(path)

        with pytest.raises(apsw.AuthError):
            await owner.transact(_executing("INSERT INTO orders VALUES ('mine')", statement))
        await owner.append(completed())
        assert (await world.kinds())[2:] == ["step.started", "step.completed"]
        assert await world.store.check_rows("r1") == []
        assert _schema(path) == before


async def test_a_callers_work_can_do_anything_with_its_own_tables(tmp_path: Path) -> None:
    """The work may create, change, fill, index and drop its tables, and read Limpet's."""
    path = tmp_path / "limpet.db"
    async with World(Harness(backend=lambda clock: SqliteBackend(path, clock))) as world:
        owner = await world.own()

        def work(db: apsw.Connection) -> tuple[list[AnyBody], list[Blob]]:
            db.execute("CREATE TABLE orders (id TEXT); CREATE TABLE log (id TEXT); CREATE INDEX i ON orders (id)")
            db.execute("CREATE TRIGGER t AFTER INSERT ON orders BEGIN INSERT INTO log VALUES (new.id); END")
            db.execute("ALTER TABLE orders ADD COLUMN what TEXT; INSERT INTO orders VALUES (?, ?)", ("1", "x"))
            db.execute("CREATE VIEW v AS SELECT * FROM orders; DROP INDEX i; PRAGMA table_info(orders)").fetchall()
            [(status,)] = db.execute("SELECT status FROM limpet_streams").fetchall()
            return [completed(output=[status, *map(list, db.execute("SELECT * FROM log").fetchall())])], []

        await owner.transact(work)
        assert (await world.bodies())[-1] == completed(output=["running", ["1"]])
        await owner.transact(_executing("DROP VIEW v", "DROP TABLE orders"))


async def test_cached_statements_are_refused_in_a_callers_work(tmp_path: Path) -> None:
    """A statement in the connection's cache is checked again for the caller."""
    sql = load("limpet.stores.sqlite", "statements.sql")
    async with World(Harness(backend=lambda clock: SqliteBackend(tmp_path / "limpet.db", clock))) as world:
        owner = await world.own()
        for name in ("commit", "rollback", "drop_keys", "savepoint"):
            with pytest.raises(apsw.AuthError):
                await owner.transact(_executing(sql[name]))
        await owner.append(completed())
        assert len(await world.log()) == 3


async def test_limpets_statements_work_after_a_callers_work(tmp_path: Path) -> None:
    """This holds whether the work succeeded or not."""
    async with World(Harness(backend=lambda clock: SqliteBackend(tmp_path / "limpet.db", clock))) as world:
        owner = await world.own()
        with pytest.raises(ZeroDivisionError):
            await owner.transact(_raising(ZeroDivisionError()))
        await owner.transact(_executing("SELECT 1"))
        await world.create("r2")
        await world.store.reopen()
        await owner.append(completed())


async def test_an_error_of_sqlite_in_the_work_does_not_stop_the_store(tmp_path: Path) -> None:
    """The caller's statement has failed, not the disk."""
    async with World(Harness(backend=lambda clock: SqliteBackend(tmp_path / "limpet.db", clock))) as world:
        owner = await world.own()
        for error in (apsw.BusyError("mine"), apsw.IOError("mine"), apsw.FullError("mine"), OSError("mine")):
            with pytest.raises(type(error)) as raised:
                await owner.transact(_raising(error))
            assert raised.value is error
            await owner.append(started())


async def test_a_statement_left_open_by_the_work_does_not_block_the_commit(tmp_path: Path) -> None:
    """The cursor was not read to its end; the commit succeeds."""
    async with World(Harness(backend=lambda clock: SqliteBackend(tmp_path / "limpet.db", clock))) as world:
        owner = await world.own()
        kept: list[apsw.Cursor] = []

        def work(db: apsw.Connection) -> tuple[list[AnyBody], list[Blob]]:
            kept.append(db.execute("SELECT * FROM limpet_events"))
            next(kept[0])
            return [completed()], []

        await owner.transact(work)
        await owner.append(started())
        other = await world.another()
        await other.create("r2", created(), actor="test")
        await owner.append(started(2))
        assert len(await world.log()) == 5
        del kept[:]


def _executing(*statements: str) -> Work:
    """Return work that executes these statements."""

    def work(db: apsw.Connection) -> tuple[list[AnyBody], list[Blob]]:
        for statement in statements:
            db.execute(statement)
        return [started()], []

    return work


def _raising(error: Exception) -> Work:
    """Return work that raises this error."""

    def work(db: apsw.Connection) -> tuple[list[AnyBody], list[Blob]]:
        raise error

    return work


def _schema(path: Path) -> list[Any]:
    db = apsw.Connection(str(path))
    found = db.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()
    settings = [db.pragma(name) for name in ("journal_mode", "writable_schema")]
    db.close()
    return [*found, *settings]


def test_importing_limpet_does_not_import_optional_packages() -> None:
    """pydantic would take most of the start-up time."""
    code = "import limpet, sys; print([name for name in ('pydantic', 'typer', 'fastapi') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
