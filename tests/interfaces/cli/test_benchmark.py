"""Measuring on one's own machine: figures beside bare loops, and nothing stays."""

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from limpet.service import json_views
from tests.interfaces.cli.run_cli import LIMPET, limpet, lines, terminal, told

FEW = ["--runs", "3", "--steps", "5"]


def test_a_table_with_ratios_and_aims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this folder, which is as it was before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_URL", raising=False)
    done = limpet("bench", *FEW)
    assert (done.exit_code, list(tmp_path.iterdir())) == (0, [])
    rows = {row[0]: row for row in lines(done.stdout)}
    assert rows["one run of 5 reads"][-1] == "at most 3×"
    assert rows["one run of 5 effects"][-1] == "at most 5×"
    assert rows["3 concurrent runs of 10 reads"][-2].startswith("1/")


def test_beside_the_store_that_is_named(tmp_path: Path) -> None:
    """On its disk, and not in it; as JSON."""
    found = told("bench", *FEW, "--url", f"sqlite:///{tmp_path}/limpet.db")
    assert [each["unit"] for each in found] == ["µs each", "µs each", "µs each", "rows/s", "steps/s", "steps/s"]
    assert all(set(each) == set(json_views.fields_of(json_views.VIEWS["a result of `limpet bench`"])) for each in found)
    assert all(each["figure"] > 0 for each in found)
    assert list(tmp_path.iterdir()) == []


def test_on_a_server_in_a_schema_that_is_gone_afterwards(postgres: str) -> None:
    """Whatever schema the address names is left alone."""

    def schemas() -> list[tuple[object, ...]]:
        with psycopg.connect(postgres) as db:
            return db.execute(b"SELECT nspname FROM pg_namespace ORDER BY nspname").fetchall()

    before = schemas()
    assert len(told("bench", *FEW, "--url", f"{postgres}?schema=mine")) == 6
    assert schemas() == before


def test_how_far_it_is_is_seen_and_no_line_is_too_long(tmp_path: Path) -> None:
    """On a terminal of 80 columns."""
    with terminal(LIMPET, "bench", *FEW, "--url", f"sqlite:///{tmp_path}/limpet.db", NO_COLOR="1") as screen:
        shown, code = screen.end()
    table = shown[shown.index("measured") :].splitlines()[:7]
    assert (code, "━" in shown, max(map(len, table)) <= 80) == (0, True, True)


def test_what_has_no_commits_is_not_measured() -> None:
    """Memory, and what is no store."""
    for url in ("memory:", "nonsense"):
        done = limpet("bench", "--url", url)
        assert (done.exit_code, "only SQLite and PostgreSQL" in done.stderr) == (2, True)


def test_the_command_as_a_module() -> None:
    """`python -m limpet` is the same."""
    done = subprocess.run([sys.executable, "-m", "limpet", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, limpet("--version").stdout)
