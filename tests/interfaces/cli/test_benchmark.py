"""`limpet bench`: measures on this machine, beside bare loops, and leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from limpet.service import json_views
from tests.interfaces.cli.run_cli import LIMPET, limpet, limpet_json, lines, terminal

FEW = ["--runs", "3", "--steps", "5"]


def test_bench_prints_ratios_and_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is unchanged."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_URL", raising=False)
    done = limpet("bench", *FEW)
    assert (done.exit_code, list(tmp_path.iterdir())) == (0, [])
    rows = {row[0]: row for row in lines(done.stdout)}
    assert rows["one run of 5 reads"][-1] == "at most 2.2×"
    assert rows["one run of 5 effects"][-1] == "at most 3×"
    assert rows["3 concurrent runs of 10 reads"][-2].startswith("1/")


def test_bench_measures_beside_the_given_store(tmp_path: Path) -> None:
    """On the same disk, but not in the store; as JSON."""
    found = limpet_json("bench", *FEW, "--url", f"sqlite:///{tmp_path}/limpet.db")
    assert [each["unit"] for each in found] == ["µs each", "µs each", "µs each", "rows/s", "steps/s", "steps/s"]
    assert all(set(each) == set(json_views.fields_of(json_views.VIEWS["a result of `limpet bench`"])) for each in found)
    assert all(each["figure"] > 0 for each in found)
    assert list(tmp_path.iterdir()) == []


def test_bench_on_a_server_deletes_its_schema(postgres: str) -> None:
    """The schema in the URL is left alone."""

    def schemas() -> list[tuple[object, ...]]:
        with psycopg.connect(postgres) as db:
            return db.execute(b"SELECT nspname FROM pg_namespace ORDER BY nspname").fetchall()

    before = schemas()
    assert len(limpet_json("bench", *FEW, "--url", f"{postgres}?schema=mine")) == 6
    assert schemas() == before


def test_bench_shows_progress_and_fits_the_terminal(tmp_path: Path) -> None:
    """On a terminal of 80 columns."""
    with terminal(LIMPET, "bench", *FEW, "--url", f"sqlite:///{tmp_path}/limpet.db", NO_COLOR="1") as screen:
        shown, code = screen.end()
    table = shown[shown.index("measured") :].splitlines()[:7]
    assert (code, "━" in shown, max(map(len, table)) <= 80) == (0, True, True)


def test_bench_refuses_stores_without_commits() -> None:
    """The memory store and invalid URLs."""
    for url in ("memory:", "nonsense"):
        done = limpet("bench", "--url", url)
        assert (done.exit_code, "only SQLite and PostgreSQL" in done.stderr) == (2, True)


def test_python_m_limpet_runs_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "limpet", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, limpet("--version").stdout)
