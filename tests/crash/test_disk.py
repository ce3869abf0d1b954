"""SQLite on a disk that fails, and is well again: everything goes on by itself, and nothing is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import limpet
from limpet.stores import Store
from tests.crash.disk import FAULTS
from tests.crash.outage_load import Walkers
from tests.servers.disk import ROOT, fill, run_on_faulty_disk, small_disk


@pytest.mark.parametrize("fault", FAULTS)
def test_runs_go_on_whichever_write_or_sync_fails(tmp_path: Path, fault: str, full: bool) -> None:
    """No space or an error at each of up to 300 writes with --full, else at 6; or at each sync."""
    places = range(1, 301) if full else range(2, 76, 13) if fault != "fsync" else range(1, 22, 4)
    met = run_on_faulty_disk(tmp_path, "tests.crash.disk", "each", fault, places.start, places.stop, places.step)
    print(f"{fault}: {met.strip()} of {len(places)} were met")
    assert int(met) >= (12 if full else 3)


def test_runs_go_on_after_failures_at_random(tmp_path: Path, full: bool) -> None:
    """500 failures with --full, else 30, under load."""
    print(run_on_faulty_disk(tmp_path, "tests.crash.disk", "chance", 500 if full else 30))


def test_nothing_is_acknowledged_after_a_failed_sync_before_everything_is_synced(tmp_path: Path) -> None:
    """Neither to who wrote it nor to who reads; once the database is synced, it goes on, and nothing is there twice."""
    assert run_on_faulty_disk(tmp_path, "tests.crash.disk", "unsynced").split() == ["3"]


@pytest.mark.parametrize("healing", ["60s", "10ms"])
async def test_runs_go_on_when_there_is_space_again(healing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is really full stops every run; when there is space, they complete in the same process.

    So they do after it was full for longer than a worker would wait.
    """
    monkeypatch.setenv("LIMPET_HEALING", healing)
    with small_disk("8m") as folder:
        url = f"sqlite:///{folder}/limpet.db"
        async with limpet.open(url, agents=Walkers.agents, worker=limpet.Worker(lease="1s")) as app:
            walkers = Walkers(app)
            await walkers.start()
            await walkers.more(20)
            filler = fill(folder)
            async with limpet.open_store(url, patience="200ms") as other:
                with pytest.raises(limpet.ConnectionLost, match="full"):
                    await use_up(other)
            while healing == "10ms" and app.store.failure is None:
                await app.runs()
            filler.unlink()
            await walkers.start()
            await walkers.arrive()
            assert app.store.failure is None


async def use_up(store: Store) -> None:
    """Write until it is refused; the log may have had some space left."""
    while True:
        await store.put_blob(os.urandom(65536))


@pytest.mark.parametrize("what", ["full", "deleted"])
def test_a_worker_that_cannot_go_on_ends(what: str) -> None:
    """A disk that stays full, or a file that was deleted: the process ends with an error, for its supervisor to see."""
    with small_disk("8m") as folder:
        env = {**os.environ, "LIMPET_URL": f"sqlite:///{folder}/limpet.db", "LIMPET_HEALING": "300ms"}
        command = [
            str(Path(sys.executable).with_name("limpet")),
            "worker",
            "tests.crash.outage_load:walk",
            "--lease",
            "300ms",
        ]
        with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as worker:
            assert worker.stderr is not None
            assert any("serving walk" in line for line in worker.stderr)
            if what == "full":
                fill(folder)
            else:
                (folder / "limpet.db").unlink()
            said = worker.stderr.read()
        assert worker.returncode == 1, said
        assert f"[{'store_unavailable' if what == 'full' else 'store_replaced'}]" in said
