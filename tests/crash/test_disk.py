"""SQLite on a failing disk: runs continue after the failure, and nothing is lost."""

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
def test_runs_continue_after_any_failed_write_or_sync(tmp_path: Path, fault: str, full: bool) -> None:
    """No space or an I/O error at each of up to 300 writes or syncs with --full, otherwise at 3."""
    places = range(1, 301) if full else range(2, 76, 26) if fault != "fsync" else range(1, 22, 8)
    met = run_on_faulty_disk(tmp_path, "tests.crash.disk", "each", fault, places.start, places.stop, places.step)
    print(f"{fault}: {met.strip()} of {len(places)} were met")
    assert int(met) >= (12 if full else 3)


def test_runs_continue_after_random_disk_failures(tmp_path: Path, full: bool) -> None:
    """500 failures with --full, otherwise 15, under load."""
    print(run_on_faulty_disk(tmp_path, "tests.crash.disk", "chance", 500 if full else 15))


def test_nothing_is_acknowledged_between_a_failed_sync_and_the_next_full_sync(tmp_path: Path) -> None:
    """Neither to writers nor to readers. After the sync the store continues, and no run exists twice."""
    assert run_on_faulty_disk(tmp_path, "tests.crash.disk", "unsynced").split() == ["3"]


@pytest.mark.parametrize("healing", ["60s", "10ms"])
async def test_runs_continue_when_a_full_disk_has_space_again(healing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They complete in the same process, even if the disk was full for longer than LIMPET_HEALING."""
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
    """Write until the disk is full; the log may have some space left."""
    while True:
        await store.put_blob(os.urandom(65536))


@pytest.mark.parametrize("what", ["full", "deleted"])
def test_a_worker_exits_if_its_store_stays_unusable(what: str) -> None:
    """A disk that stays full or a deleted file: the process exits with 1, for its supervisor."""
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
