"""`limpet show` and `limpet runs` fit any terminal, and distinguish work from waiting."""

import re
from datetime import datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from limpet import Retry, RunFailed, sync, tool
from limpet import agent as agent_of
from limpet.cli.waterfall import BLOCKS, Scale, waterfall
from limpet.clock import SECOND
from limpet.engine.run.run import Run
from limpet.service.steps import FailureInfo, StepInfo
from limpet.service.timeline import Span, TimelineRow
from limpet.times import to_datetime
from tests.interfaces.cli.run_cli import LIMPET, limpet, terminal

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TRIES: list[int] = []


@tool(effect="none", retry=Retry(3, first="50ms", jitter=False))
def page_flaky(text: str) -> str:
    """Fail twice."""
    TRIES.append(1)
    if len(TRIES) < 3:
        raise ConnectionError("die Leitung ist tot, 電話が切れました, and the line is long enough to be cut somewhere")
    return text


@tool(effect="none")
def page_broken() -> None:
    raise ValueError("kaputt")


@agent_of(name="page-agent", steps=9)
async def page_agent(run: Run, text: str) -> None:
    await run.patch(goal="日本語の目標はとても長いので切らなければならない、そうでしょう、そうでしょう、そうでしょう")
    async with run.scope("非常に長い名前の範囲、これは切られる"):
        await run.step(page_flaky, text)
    await run.decide("how?", choose="quickly", over=["quickly", "well"], because="es eilt")
    await run.step(page_broken)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a run that has retries, waits, wide characters and an error."""
    url = f"sqlite:///{tmp_path_factory.mktemp('page')}/limpet.db"
    TRIES.clear()
    with sync.open(url, agents=[page_agent]) as app, pytest.raises(RunFailed):
        app.run(page_agent, "名前", id="page-1")
    return url


def test_show_prints_status_attempts_error_and_next_command(store: str) -> None:
    said = limpet("show", "page", "--url", store).stdout
    assert '\ndecided how? "quickly": es eilt\n' in said
    for each in (
        "status    failed",
        "position  step 2 of 9",
        "completed ×3",
        "last error (step 2): ValueError: kaputt",
    ):
        assert each in said
    assert "\nnext: limpet resume page-1  (after fixing the cause: calls " in said


@pytest.mark.parametrize("columns", [120, 80, 60, 40])
@pytest.mark.parametrize("words", [["show", "page-1"], ["runs"]], ids=" ".join)
def test_no_line_is_wider_than_the_terminal(store: str, columns: int, words: list[str]) -> None:
    """Even with wide characters. Only the next command is never broken."""
    with terminal(LIMPET, *words, columns=columns, LIMPET_URL=store) as screen:
        shown, code = screen.end()
    assert code == 0
    lines = [ESCAPE.sub("", line) for line in shown.splitlines() if "next: " not in line]
    assert max(map(cell_len, lines)) <= columns
    assert any("page-1" in line for line in lines)
    assert ESCAPE.search(shown) is not None


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_no_color_and_dumb_terminals_get_plain_text(store: str, env: dict[str, str]) -> None:
    for words in (["show", "page-1"], ["runs"], ["log", "page-1"], ["verify"]):
        with terminal(LIMPET, *words, **{**env, "LIMPET_URL": store}) as screen:  # type: ignore[arg-type]
            shown, code = screen.end()
        assert code == 0
        assert "\x1b" not in shown or (words == ["verify"] and "NO_COLOR" in env)  # a bar moves


def test_an_ascii_terminal_gets_ascii_bars(store: str) -> None:
    """Other characters become question marks."""
    with terminal(LIMPET, "show", "page-1", LIMPET_URL=store, PYTHONIOENCODING="ascii") as screen:
        shown, code = screen.end()
    assert (code, "# work  x failed  . waits" in shown) == (0, True)


def at(seconds: float) -> datetime:
    """Return a time after the epoch."""
    return to_datetime(round(seconds * SECOND))


STEPS = [
    StepInfo(number=1, name="look/fetch#1", tool="fetch", effect="none", status="completed", started=at(0)),
    StepInfo(
        number=2,
        name="pay/refund#1",
        tool="refund",
        effect="once",
        status="completed",
        attempt_count=2,
        started=at(60),
        error=FailureInfo(type="builtins.TimeoutError", message="the bank does not answer"),
    ),
    StepInfo(number=3, name="tell/送信#1", tool="mail", effect="once", status="running", started=at(90)),
]
LINES = [
    TimelineRow(number=None, name="worker", spans=(Span(how="waits", start=at(0), end=at(0.001)),)),
    TimelineRow(
        number=1,
        name="look/fetch#1",
        spans=(Span(how="completed", start=at(0), end=at(0.008), at_most=True),),
    ),
    TimelineRow(number=None, name="person", spans=(Span(how="waits", start=at(0.008), end=at(60)),)),
    TimelineRow(
        number=2,
        name="pay/refund#1",
        spans=(
            Span(how="failed", start=at(60), end=at(70)),
            Span(how="waits", start=at(70), end=at(80)),
            Span(how="completed", start=at(80), end=at(90)),
        ),
    ),
    TimelineRow(number=3, name="tell/送信#1", spans=(Span(how="running", start=at(90)),)),
]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            72,
            """\
1m in all: █ work  ▒ failed  · waits
1  look/fetch#1   █                           <8ms  completed
   waits: person  ··············               59s
2  pay/refund#1                 ▒▒▒··███       30s  completed ×2
   TimeoutError: the bank does not answer
3  tell/送信#1                          ██     10s  running
""",
        ),
        (
            38,
            """\
1m in all: █ work  ▒ failed  · waits
1  look/fetch#1    <8ms  completed
   waits: pers…     59s
2  pay/refund#1     30s  completed ×2
   TimeoutError: the bank does not an…
3  tell/送信#1      10s  running
""",
        ),
    ],
)
def test_the_waterfall_shows_attempts_and_waits(columns: int, expected: str) -> None:
    """In order of time. Very short waits are left out, and narrow terminals get no bars."""
    out = Console(width=columns, force_terminal=True, file=StringIO())
    drawn = [line.plain for line in waterfall(STEPS, LINES, at(100), out)]
    assert "\n".join(drawn) + "\n" == expected


def test_an_unknown_outcome_has_its_own_sign_in_the_waterfall() -> None:
    """The legend explains it."""
    line = TimelineRow(number=1, name="look/fetch#1", spans=(Span(how="unknown", start=at(0), end=at(8)),))
    out = Console(width=72, force_terminal=True, file=StringIO())
    head, drawn = (each.plain for each in waterfall(STEPS[:1], [line], at(8), out))
    assert head == "8.0s in all: █ work  ▒ failed  ? unknown  · waits"
    assert "?" * 8 in drawn


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 10, "completed")], "██████████"),
        ([(0, 5, "completed")], "█████     "),
        ([(9.99, 10, "failed")], "         ▒"),
        ([(0, 5, "unknown"), (5, 10, "completed")], "?????█████"),
        ([(10, 10, "completed")], "         █"),
        ([(0, 2, "failed"), (2, 8, "waits"), (8, None, "running")], "▒▒······██"),
        ([(0, 0.001, "failed"), (0.001, 10, "waits")], "▒·········"),
        ([(-5, 1, "completed")], "█         "),
        ([], "          "),
    ],
)
def test_bars_are_to_scale(spans: list[tuple[float, float | None, str]], expected: str) -> None:
    """Even a very short span is visible; waits give way."""
    scale = Scale(start=at(0), end=at(10), width=10, ink=BLOCKS)
    made = [
        Span(start=at(start), end=None if end is None else at(end), how=how)  # type: ignore[arg-type]
        for start, end, how in spans
    ]
    assert scale.bar(made) == expected


def test_show_prints_only_the_last_20_steps(tmp_path: Path) -> None:
    """It counts the earlier ones."""

    @agent_of(name="page-long")
    async def long(run: Run, text: str) -> None:
        for _ in range(25):
            await run.step(page_quiet, text)

    url = f"sqlite:///{tmp_path}/limpet.db"
    with sync.open(url, agents=[long]) as app:
        app.run(long, "x", id="long")
    said = limpet("show", "long", "--url", url).stdout
    assert "… 5 steps before these" in said
    assert re.findall(r"^ *(\d+)  page_quiet", said, re.MULTILINE) == [str(n) for n in range(6, 26)]
    assert said.endswith("next: limpet log long\n")


@tool(effect="none")
def page_quiet(text: str) -> str:
    return text
