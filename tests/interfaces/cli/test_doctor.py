"""The doctor: each thing that can be wrong is found, with its cure, and what can be mended is."""

import json
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
    """The command, beside the event loop that the test has."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run_cli.limpet, *words).result()


def examined(*words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """How it ends, and the worst finding about each thing."""
    done = limpet("doctor", *words, "--json")
    told = sorted(json.loads(done.stdout), key=lambda each: LEVELS.index(each["level"]))
    return done.exit_code, {each["what"]: each for each in told}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Where nothing is yet."""
    return f"sqlite:///{tmp_path}/limpet.db"


def execute(url: str, statement: str) -> None:
    """Somebody changes the file by hand."""
    with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as db:
        db.execute(statement)


async def test_a_store_that_is_well(url: str) -> None:
    """A line for each thing that was looked at; 0."""
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
    _, worst = examined("--url", url)
    assert worst["database"]["message"] == f"SQLite {apsw.sqlite_lib_version()}"
    assert worst["schema"]["message"].startswith("4, up to date")
    assert set(worst["rows"]) == set(json_views.fields_of(json_views.VIEWS["a finding of `limpet doctor`"]))


def test_there_is_no_store(url: str, tmp_path: Path) -> None:
    """None is made; a file of something else is left alone."""
    code, worst = examined("--url", url)
    assert (code, worst["store"]["level"], worst["store"]["message"]) == (1, "bad", "no store")
    assert list(tmp_path.iterdir()) == []
    execute(url, "CREATE TABLE theirs (x)")
    assert examined("--url", url)[0] == 1
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 8)
    code, worst = examined("--url", f"sqlite:///{tmp_path}/binary")
    assert (code, "file is not a database" in worst["store"]["message"]) == (1, True)
    assert "[store_unavailable]" in worst["store"]["message"]


async def test_a_store_of_a_newer_version(url: str) -> None:
    """It is said what to do."""
    async with open_store(url):
        pass
    execute(url, "UPDATE limpet_meta SET value = '99' WHERE name = 'schema'")
    code, worst = examined("--url", url)
    assert (code, "[newer_version]" in worst["store"]["message"], bool(worst["store"]["hint"])) == (1, True, True)


async def test_clocks_that_differ(url: str) -> None:
    """Of a file: somebody wrote into it from the future."""
    async with open_store(url, clock=FrozenClock(SystemClock().now() + HOUR)) as store:
        await store.create("r1", CREATED, actor="test")
    code, worst = examined("--url", url)
    assert (code, worst["clock"]["level"]) == (1, "bad")
    assert "the newest event is 3600 s ahead of this machine's clock" in worst["clock"]["message"]
    assert "NTP" in worst["clock"]["hint"]


async def test_a_run_whose_worker_is_dead(url: str) -> None:
    """It does not go on by itself; nor is its agent served."""
    async with open_store(url) as store:
        await store.create("r1", CREATED, actor="test")
        await store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=1)
        await store.claim("w1", limit=1)
    code, worst = examined("--url", url)
    assert (code, worst["runs"]["level"], worst["workers"]["level"], worst["agents"]["level"]) == (
        1,
        "bad",
        "warn",
        "warn",
    )
    assert worst["runs"]["message"] == "1 run is running on a dead worker: r1"
    assert "limpet worker" in worst["runs"]["hint"]


async def test_a_run_that_nobody_takes(url: str) -> None:
    """Though a worker serves its agent; for how long that is all right can be said."""
    async with open_store(url, clock=FrozenClock(SystemClock().now() - HOUR)) as store:
        await store.create("r1", CREATED, actor="test")
    async with open_store(url) as store:
        await store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=HOUR)
        code, worst = examined("--url", url)
        assert (code, "ready for long" in worst["runs"]["message"], worst["workers"]["message"]) == (
            1,
            True,
            "1 worker alive",
        )
        assert examined("--url", url, "--stuck", "2h")[0] == 0
    assert "[invalid_argument]" in limpet("doctor", "--url", url, "--stuck", "soon").stderr


def test_a_run_that_waits_for_somebody_to_look(url: str) -> None:
    """Because its code is another by now; one that was paused on purpose is nobody's concern."""

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
        while app.info("r1").waits_for is None and app.info("r1").status != "completed":
            threading.Event().wait(0.01)
        code, worst = examined("--url", url)
    assert (code, worst["runs"]["message"]) == (1, "1 run is waiting for an operator: diverged: r1")
    hint = "Run `limpet show r1` to see why. After fixing the cause, run `limpet resume r1`."
    assert worst["runs"]["hint"] == hint


async def test_rows_and_counters_that_do_not_fit_are_made_anew(url: str) -> None:
    """If that is wanted; the logs are the truth."""
    async with open_store(url) as store:
        for place in range(3):
            await store.create(f"r{place}", CREATED, actor="test")
    execute(url, "UPDATE limpet_counters SET n = n + 5")
    execute(url, "UPDATE limpet_streams SET goal = 'another' WHERE id = 'r1'")
    code, worst = examined("--url", url)
    assert (code, worst["rows"]["level"]) == (1, "bad")
    assert worst["rows"]["hint"].endswith("`limpet doctor --fix`.")
    said = limpet("doctor", "--url", url).stdout
    assert "wrong counters: a pending: the counter is 8, but there are 3" in said
    assert "1 row does not match the log: r1: run: goal is 'another'" in said
    code, worst = examined("--url", url, "--fix")
    assert (code, worst["rows"]["level"]) == (0, "warn")
    code, worst = examined("--url", url)
    assert (code, worst["rows"]["message"]) == (0, "counters, and 3 rows of the newest runs, match the logs")


async def test_a_check_that_cannot_be_made_is_a_finding(url: str) -> None:
    """The others are made all the same."""
    async with open_store(url) as store:
        await store.create("r1", CREATED, actor="test")
    execute(url, """UPDATE limpet_streams SET labels = '{"a":1}'""")
    code, worst = examined("--url", url)
    assert (code, "[tampered]" in worst["rows"]["message"], worst["disk"]["level"]) == (1, True, "ok")


def test_a_schema_on_a_server(postgres_schema: str) -> None:
    """It is not made either; once it is there, all is well."""
    for _ in range(2):
        code, worst = examined("--url", postgres_schema)
        assert (code, worst["store"]["message"]) == (1, "no store")
    with sync.open(postgres_schema):
        pass
    code, worst = examined("--url", postgres_schema)
    assert (code, worst["database"]["message"].startswith("PostgreSQL "), "disk" in worst) == (0, True, False)


def test_code_alone_is_looked_at_where_no_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a check of what is deployed: effects without a risk are named, a missing store is none of its concern."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_URL", raising=False)
    code, worst = examined("tests.interfaces.cli.shop:both")
    assert (code, worst["store"]["level"], worst["tools"]["level"]) == (0, "warn", "warn")
    assert list(tmp_path.iterdir()) == []


async def test_the_page_fits_the_terminal(url: str) -> None:
    """At 80 columns no line is longer."""
    async with open_store(url) as store:
        await store.create("r1", CREATED, actor="test")
    with terminal(LIMPET, "doctor", LIMPET_URL=url, NO_COLOR="1") as screen:
        shown, code = screen.end()
    assert (code, max(map(len, shown.splitlines())) <= 80, "MODULE:ATTRIBUTE" in shown) == (0, True, True)
