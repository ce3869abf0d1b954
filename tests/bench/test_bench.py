"""The pieces of `make bench`: workloads at tiny sizes, programs that fail, aims, tables and the plot. No peers run."""

import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import limpet
from bench.aims import AIMS, Aim, Verdict, verdicts
from bench.plan import FULL, QUICK, plan
from bench.plot import LEFT_OUT, plot
from bench.processes import LIMPET, PEERS, Failed, Program, figures_in, takeover
from bench.report import TABLES, _closer, markdown, page
from bench.results import Results, Row
from bench.workloads import bulk, cold, engines, long_runs, steps, store, talks, values

ROOT = Path(__file__).parents[2]


def results() -> Results:
    """Return figures of every measurement of the full bench, two rounds each."""
    found = Results(environment={"Processor": "2 cores", "File system": "ext4"}, sizes=asdict(FULL))
    names = {table.workload: {column.figure for column in table.columns} for table in TABLES}
    for task in plan(FULL):
        for value in (100.0, 300.0):
            found.add(task.row, dict.fromkeys(names[task.row.workload], value))
    found.counts = {kind: {"bytes kept": 150.0, "event rows": 2.0} for kind in ("read", "effect")}
    return found


# Workloads

Measure = Callable[[str], Awaitable[dict[str, float]]]
TINY: dict[str, tuple[Measure, set[str]]] = {
    "store": (lambda url: store.store(url, callers=2, events=3), {"step", "steps", "cpu"}),
    "read": (
        lambda url: steps.one(url, "read", steps=3),
        {"step", "cpu", "loop", "writer", "others", "collector"},
    ),
    "effect": (
        lambda url: steps.many(url, "effect", runs=3, each=2),
        {"steps", "cpu", "loop", "writer", "others", "collector"},
    ),
    "workers": (lambda url: steps.workers(url, processes=1, runs=2, each=2), {"steps"}),
    "approval": (lambda url: long_runs.approval(url, times=1), {"round trip"}),
    "states": (lambda url: long_runs.states(url, steps=12, samples=3), {"read"}),
    "idle": (lambda url: long_runs.idle(url, seconds=0.05), {"idle"}),
    "values": (lambda url: values.values(url, "objects", steps=10), {"recorded", "alone", "share", "cpu"}),
    "conversation": (lambda url: talks.conversation(url, turns=2), {"turn", "cpu", "bytes"}),
    "turns": (lambda url: talks.turns_at(url, messages=6, turns=1), {"turn", "cpu"}),
    "engine": (
        lambda url: engines.engine(url, "limpet", steps=3, runs=2, each=2, times=1),
        {"one", "steps", "first step", "round trip"},
    ),
    "page": (lambda url: talks.last_page(url, messages=50, page=40, samples=1), {"read"}),
}


@pytest.mark.parametrize("name", TINY)
async def test_a_workload_returns_its_figures(tmp_path: Path, name: str) -> None:
    """Each is positive: something was measured."""
    measure, expected = TINY[name]
    found = await measure(f"sqlite:///{tmp_path}/store.db")
    assert found.keys() == expected
    assert all(value > 0 for figure, value in found.items() if figure not in ("others", "collector"))


@pytest.mark.parametrize("kind", ["steps", "turns"])
async def test_a_run_that_was_left_is_resumed(tmp_path: Path, kind: str) -> None:
    """It has ended afterwards."""
    url = f"sqlite:///{tmp_path}/store.db"
    await long_runs.leave(url, kind, 5)
    assert (await long_runs.resume(url))["resume"] > 0


async def test_a_store_is_filled_with_copies_of_runs(tmp_path: Path) -> None:
    """They are listed and counted, and new runs work beside them."""
    figures = await bulk.million(f"sqlite:///{tmp_path}/store.db", 300)
    assert all(value > 0 for value in figures.values())
    bare = steps.bare(f"sqlite:///{tmp_path}/bare.db", 10, 1)
    assert bare["step"] > 0


async def test_copies_of_runs_are_counted_on_both_databases(tmp_path: Path, postgres_schema: str) -> None:
    """The counters that triggers maintain agree with the rows that were written directly."""
    for url in (f"sqlite:///{tmp_path}/store.db", postgres_schema):
        await bulk.fill(url, 300)
        async with limpet.open(url, worker=False) as app:
            assert dict((await app.stats()).agents["bench_bulk"]) == {"completed": 292, "waiting": 7, "failed": 4}
            assert len(await app.runs(status="waiting", last=100)) == 7


def test_a_fresh_process_is_measured(tmp_path: Path) -> None:
    """Until its first step, and during its import."""
    for what in ("first step", "import"):
        found = cold.cold(f"sqlite:///{tmp_path}/store.db", what, times=1)
        assert found["cpu"] > 0


def test_a_takeover_is_measured(tmp_path: Path) -> None:
    """A second worker executes a step of the run after the first one was killed."""
    found = takeover(LIMPET, f"sqlite:///{tmp_path}/store.db", lease=2)
    assert found["takeover"] > 0


# Programs


def test_figures_are_the_last_line_of_a_program() -> None:
    """Whatever it printed before."""
    assert figures_in('a log line\n{"step": 1}\n{"step": 2.5}\n\n') == {"step": 2.5}
    for output in ("", "done\n", "[1]\n"):
        with pytest.raises(Failed, match="no figures"):
            figures_in(output)


def test_a_program_that_fails_is_named_with_its_error() -> None:
    """The last line of its traceback."""
    with pytest.raises(Failed, match="KeyError: 'nonsense'"):
        LIMPET.measure("nonsense")
    with pytest.raises(Failed, match="No module named"):
        Program("Other", "bench.peers.other", Path(sys.executable)).measure("one")


def test_every_peer_has_a_program_and_pinned_versions() -> None:
    """Each line of the pins is `name==version`."""
    for peer in PEERS.values():
        folder = ROOT / "bench" / "peers"
        assert (folder / f"{peer.name.lower()}.py").exists()
        lines = (folder / f"{peer.name.lower()}.txt").read_text(encoding="utf-8").splitlines()
        assert all(re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[A-Za-z0-9.+!]+", line) for line in lines)


# Results


def test_every_measurement_is_shown_and_every_aim_is_measured() -> None:
    """An aim that names a figure that is never measured would never be missed."""
    found = results()
    assert {row.workload for row in found.figures} == {table.workload for table in TABLES}
    assert [verdict.aim.title for verdict in verdicts(found) if verdict.figure is None] == []
    assert {task.row for task in plan(QUICK)} <= set(found.figures)


def test_results_survive_json() -> None:
    """With every value."""
    found = results()
    again = Results.from_json(found.to_json([verdict.as_json() for verdict in verdicts(found)]))
    assert (again.figures, again.counts, again.environment) == (found.figures, found.counts, found.environment)


def test_tables_show_medians_with_their_spread() -> None:
    """And ratios to the bare loop; what failed is named."""
    found = results()
    found.failures["one · Absurd · PostgreSQL"] = "no schema"
    text = markdown(found)
    assert "200 (100–300)" in text
    assert re.search(r"\| Limpet, reads +\| SQLite +\| +200 \(100–300\) \| +1\.00× \|", text)
    assert re.search(r"\| one · Absurd · PostgreSQL \| no schema \|", text)
    assert "## " not in text
    for table in TABLES:
        assert f"# {table.title.format(**found.sizes)}\n" in text


@pytest.mark.parametrize(
    ("aim", "figure", "text"),
    [
        (Aim("", lambda _: None, at_most=2), None, "not measured"),
        (Aim("", lambda _: None, at_most=2), 1.9, "met"),
        (Aim("", lambda _: None, at_most=2), 2.5, "missed by 25%"),
        (Aim("", lambda _: None, at_least=10), 8.0, "missed by 20%"),
        (Aim("", lambda _: None, at_least=10, later=20), 15.0, "met; 25% to the later aim"),
        (Aim("", lambda _: None, at_least=10, later=20), 21.0, "met, also the later aim"),
    ],
)
def test_a_verdict_says_by_how_much_an_aim_is_missed(aim: Aim, figure: float | None, text: str) -> None:
    """As a share of the limit."""
    assert Verdict(aim, figure).text == text


def test_the_plot_has_a_bar_for_each_system() -> None:
    """It is well-formed, and texts are escaped."""
    found = results()
    found.environment["Processor"] = "2 cores < 3"
    drawn = ET.fromstring(plot(found))
    bars = [each for each in drawn.iter() if each.tag.endswith("rect")]
    shown = [row for row in found.figures if row.workload in ("one", "many")]
    left_out = [row for row in shown if row.who in LEFT_OUT]
    assert len(bars) == 1 + len(shown) - len(left_out)
    assert any("2 cores < 3" in (each.text or "") for each in drawn.iter())


def test_the_published_page_and_plot_show_the_published_figures() -> None:
    """`make bench PUBLISH=1` writes all three."""
    stored = Results.from_json((ROOT / "docs" / "bench.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "bench.md").read_text(encoding="utf-8") == page(stored)
    assert (ROOT / "docs" / "bench.svg").read_text(encoding="utf-8") == plot(stored)


def test_missed_aims_are_explained_once_for_each_cause() -> None:
    """An aim that is met needs no explanation."""
    aim = Aim("a", lambda _: 3.0, at_most=2.0, closer="The disk is slow.")
    found = [Verdict(aim, 3.0), Verdict(aim._replace(title="b"), 4.0), Verdict(aim._replace(title="c"), 1.0)]
    [_, text] = _closer(found)
    assert text == "- **a; b.** The disk is slow."
    assert [each.as_json().get("closer") for each in found] == ["The disk is slow.", "The disk is slow.", None]
    assert not list(_closer(found[2:]))


def test_aims_are_distinct() -> None:
    """Each is printed once."""
    assert len({aim.title for aim in AIMS}) == len(AIMS)
    assert Row("one", "bare commits", "SQLite") in {task.row for task in plan(FULL)}
