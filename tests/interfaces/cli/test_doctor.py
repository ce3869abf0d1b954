"""`limpet doctor`: every problem is found with a hint, and repairable ones are fixed."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from typer.testing import Result

import limpet as package
from limpet import open_store, sync
from limpet.clock import FrozenClock, SystemClock
from limpet.events import bodies as b
from limpet.events import inline
from limpet.service import json_views
from limpet.stores import WorkerRow
from tests.interfaces.cli import run_cli
from tests.interfaces.cli.run_cli import LIMPET, lines, terminal

HOUR = 3_600_000_000
LEVELS = ("ok", "warn", "bad")
CREATED = b.RunCreated(agent="a", agent_version="1", input=inline(None))


def limpet(*words: str) -> Result:
    """Run the command in a thread, because the test has an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run_cli.limpet, *words).result()


def run_doctor(*words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code, and the worst finding per subject."""
    done = limpet("doctor", *words, "--json")
    findings = sorted(json.loads(done.stdout)["items"], key=lambda each: LEVELS.index(each["level"]))
    return done.exit_code, {each["what"]: each for each in findings}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a missing store."""
    return f"sqlite:///{tmp_path}/limpet.db"


def execute(url: str, statement: str) -> None:
    """Edit the database file."""
    with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as db:
        db.execute(statement)


async def test_doctor_reports_a_healthy_store(url: str) -> None:
    """One line per check, and exit code 0."""
    async with open_store(url) as store:
        await store.create("r1", CREATED, actor="test")
        await store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=HOUR)
    done = limpet("doctor", "--url", url)
    assert done.exit_code == 0
    assert [row[:2] for row in lines(done.stdout)] == [
        ["level", "what"],
        *(
            ["ok", what]
            for what in ("store", "database", "schema", "clock", "runs", "workers", "agents", "rows", "disk")
        ),
    ]
    _, worst = run_doctor("--url", url)
    assert worst["database"]["message"] == f"SQLite {apsw.sqlite_lib_version()}"
    assert worst["schema"]["message"].startswith("16, up to date")
    assert set(worst["rows"]) == set(json_views.fields_of(json_views.VIEWS["a finding of `limpet doctor`"]))


def test_doctor_reports_a_missing_store(url: str, tmp_path: Path) -> None:
    """It creates none, and leaves foreign files alone."""
    code, worst = run_doctor("--url", url)
    assert (code, worst["store"]["level"], worst["store"]["message"]) == (1, "bad", f"no store at {url}")
    assert list(tmp_path.iterdir()) == []
    execute(url, "CREATE TABLE theirs (x)")
    assert run_doctor("--url", url)[0] == 1
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 8)
    code, worst = run_doctor("--url", f"sqlite:///{tmp_path}/binary")
    assert (code, "file is not a database" in worst["store"]["message"]) == (1, True)
    assert "[store_unavailable]" in worst["store"]["message"]


async def test_doctor_reports_a_store_of_a_newer_version(url: str) -> None:
    async with open_store(url):
        pass
    execute(url, "UPDATE limpet_meta SET value = '99' WHERE name = 'schema'")
    code, worst = run_doctor("--url", url)
    assert (code, "[newer_version]" in worst["store"]["message"], bool(worst["store"]["hint"])) == (1, True, True)


async def test_doctor_reports_a_clock_difference(url: str) -> None:
    """The newest event is in the future."""
    async with open_store(url, clock=FrozenClock(SystemClock().now() + HOUR)) as store:
        await store.create("r1", CREATED, actor="test")
    code, worst = run_doctor("--url", url)
    assert (code, worst["clock"]["level"]) == (1, "bad")
    assert re.search(r"the newest event is 3[56]\d\d s ahead of this machine's clock", worst["clock"]["message"])
    assert "NTP" in worst["clock"]["hint"]


async def test_doctor_reports_a_run_on_a_dead_worker(url: str) -> None:
    """It also reports that no worker serves its agent."""
    async with open_store(url) as store:
        await store.create("r1", CREATED, actor="test")
        await store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=1)
        await store.claim("w1", limit=1)
    code, worst = run_doctor("--url", url)
    assert (code, worst["runs"]["level"], worst["workers"]["level"], worst["agents"]["level"]) == (
        1,
        "bad",
        "warn",
        "warn",
    )
    assert worst["runs"]["message"] == "1 run is running on a dead worker: r1"
    assert "limpet worker" in worst["runs"]["hint"]


async def test_doctor_warns_of_a_run_that_waits_for_a_slot(url: str) -> None:
    """It is not stuck: it goes on by itself."""
    async with open_store(url, clock=FrozenClock(SystemClock().now() - HOUR)) as store:
        for run in ("r1", "r2"):
            await store.create(run, CREATED, actor="test")
    async with open_store(url) as store:
        await store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=HOUR)
        await store.claim_run("w1", "r1", concurrency={"a": 1})
        code, worst = run_doctor("--url", url)
    assert (code, worst["runs"]["level"]) == (0, "warn")
    assert worst["runs"]["message"] == "long ready, but waiting for a slot: r2"
    assert worst["runs"]["hint"] == "Run `limpet show r1`: it has the slot of r2."


async def test_doctor_reports_a_run_that_is_not_claimed(url: str) -> None:
    """Although a worker serves its agent. `--stuck` sets the tolerated time."""
    async with open_store(url, clock=FrozenClock(SystemClock().now() - HOUR)) as store:
        await store.create("r1", CREATED, actor="test")
    async with open_store(url) as store:
        await store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=HOUR)
        code, worst = run_doctor("--url", url)
        assert (code, "ready for long" in worst["runs"]["message"], worst["workers"]["message"]) == (
            1,
            True,
            "1 worker alive",
        )
        assert run_doctor("--url", url, "--stuck", "2h")[0] == 0
    assert "[invalid_argument]" in limpet("doctor", "--url", url, "--stuck", "soon").stderr


def test_doctor_reports_a_run_that_waits_for_an_operator(url: str) -> None:
    """Here, its code has diverged. A paused run is not reported."""

    @package.tool(effect="none", name="doctor_look")
    def look() -> int:
        return 1

    @package.tool(effect="none", name="doctor_see")
    def see() -> int:
        return 1

    @package.agent(name="doctor_asks")
    async def asks(run: package.Run) -> None:
        await run.step(look.options(name="look"))
        await run.ask("Go on?")

    @package.agent(name="doctor_asks")
    async def other(run: package.Run) -> None:
        await run.step(see.options(name="look"))

    with sync.open(url, agents=[asks]) as app:
        app.start(asks, id="r1")
        app.start(asks, id="r2")
        while len(found := app.inbox()) < 2:
            threading.Event().wait(0.01)
        app.pause("r2")
    with sync.open(url, agents=[other]) as app:
        app.approve(next(each for each in found if each.run == "r1"), by="ann")
        while app.info("r1").waits_for == () and app.info("r1").status != "completed":
            threading.Event().wait(0.01)
        code, worst = run_doctor("--url", url)
    assert (code, worst["runs"]["message"]) == (1, "1 run is waiting for an operator: diverged: r1")
    hint = worst["runs"]["hint"]
    assert re.match(r"r1 has diverged since 20\d\d-.* UTC: The code of r1 no longer matches its log at ", hint)
    end = "Nothing was done. After fixing the cause, run `limpet resume r1`; `limpet show r1` has more."
    assert hint.endswith(end)


async def test_doctor_fix_rebuilds_wrong_rows_and_counters(url: str) -> None:
    """From the logs."""
    async with open_store(url) as store:
        for place in range(3):
            await store.create(f"r{place}", CREATED, actor="test")
    execute(url, "UPDATE limpet_counters SET n = n + 5")
    execute(url, "UPDATE limpet_streams SET goal = 'another' WHERE id = 'r1'")
    code, worst = run_doctor("--url", url)
    assert (code, worst["rows"]["level"]) == (1, "bad")
    assert worst["rows"]["hint"].endswith("`limpet doctor --fix`.")
    said = limpet("doctor", "--url", url).stdout
    assert "wrong counters: a pending: the counter is 8, but there are 3" in said
    assert "1 row does not match the log: r1: run: goal is 'another'" in said
    code, worst = run_doctor("--url", url, "--fix")
    assert (code, worst["rows"]["level"]) == (0, "warn")
    code, worst = run_doctor("--url", url)
    assert (code, worst["rows"]["message"]) == (0, "counters, and 3 rows of the newest runs, match the logs")


async def test_a_failed_check_is_reported_as_a_finding(url: str) -> None:
    """The other checks are still made."""
    async with open_store(url) as store:
        await store.create("r1", CREATED, actor="test")
    execute(url, """UPDATE limpet_streams SET labels = '{"a":1}'""")
    code, worst = run_doctor("--url", url)
    assert (code, "[tampered]" in worst["rows"]["message"], worst["disk"]["level"]) == (1, True, "ok")


def test_doctor_does_not_create_a_schema_on_a_server(postgres_schema: str) -> None:
    """Once it exists, all checks pass."""
    for _ in range(2):
        code, worst = run_doctor("--url", postgres_schema)
        assert (code, worst["store"]["message"].partition(" at ")[0]) == (1, "no store")
    with sync.open(postgres_schema):
        pass
    code, worst = run_doctor("--url", postgres_schema)
    assert (code, worst["database"]["message"].startswith("PostgreSQL "), "disk" in worst) == (0, True, False)


def test_doctor_checks_code_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects without a risk are listed; a missing store is only a warning."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_URL", raising=False)
    code, worst = run_doctor("tests.interfaces.cli.shop:both")
    assert (code, worst["store"]["level"], worst["tools"]["level"]) == (0, "warn", "warn")
    assert list(tmp_path.iterdir()) == []


async def test_doctor_output_fits_the_terminal(url: str) -> None:
    async with open_store(url) as store:
        await store.create("r1", CREATED, actor="test")
    with terminal(LIMPET, "doctor", LIMPET_URL=url, NO_COLOR="1") as screen:
        shown, code = screen.end()
    assert (code, max(map(len, shown.splitlines())) <= 80, "MODULE:ATTRIBUTE" in shown) == (0, True, True)
