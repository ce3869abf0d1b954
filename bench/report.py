"""The results as Markdown: environment, aims, a table for each workload, the parts of the CPU, and the counts.

Tables are padded, so that a terminal shows them well too.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.aims import Verdict, verdicts
from bench.results import Measured, Results, Row

__all__ = ["markdown", "page"]

PAGE = Path(__file__).with_name("page.md")
NONE = "–"


class Column(NamedTuple):
    """A figure of a table; with `of`, the ratio to this figure of another row on the same database."""

    title: str
    figure: str
    of: tuple[str, str] | None = None


class Table(NamedTuple):
    """How a workload is shown, and how it is measured. The texts name fields of `Sizes`."""

    workload: str
    title: str
    how: str
    columns: Sequence[Column]


TABLES = (
    Table(
        "one",
        "One run",
        "One run executes {steps} steps, one after the other; Temporal's has {temporal_steps}. A first run of the same "
        "length is not measured, so that no system measures a file that still grows. The bare loop inserts a "
        "row of 1 KB and commits it: no durable step can be faster. Between work, its process computes for 0.2 ms "
        "before each commit, about as long as between two steps; the time is that of the commit alone. Limpet's store "
        "appends one event at a time, without the engine. A read's result is durable before the next step starts; an "
        "effect's intent is durable before it is called, too. Of the peers, only Temporal records an intent. The time "
        "is that of the whole run, divided by its steps. CPU is that of the process that runs the steps, without the "
        "database server.",
        [
            Column("µs a step", "step"),
            Column("× a bare commit", "step", of=("bare commits", "step")),
            Column("CPU, µs a step", "cpu"),
        ],
    ),
    Table(
        "many",
        "{runs} runs at once",
        "One process executes {runs} runs of {each} steps each, from their start until the last result is there. The "
        "bare loop commits 200 rows together. LangGraph uses 16 threads, or asyncio. Limpet's worker has "
        "`relaxed_gc`, as in `limpet worker`. Limpet's store has {runs} callers that wait for their own events.",
        [Column("steps/s", "steps"), Column("CPU, µs a step", "cpu")],
    ),
    Table(
        "workers",
        "Worker processes on one store",
        "{shared_runs} runs of 20 reads wait in a store. One or two worker processes start at the same moment; the "
        "time ends with the last run. On a machine with two cores, a PostgreSQL server shares them with the workers.",
        [Column("steps/s", "steps"), Column("× one process", "steps", of=("Limpet, 1 process", "steps"))],
    ),
    Table(
        "values",
        "Results of several shapes",
        "The time to check that a result will be decoded unchanged, and to encode it; and the time to encode it with "
        "msgspec alone, which checks nothing. Then the CPU of a read that returns it: the "
        "code gets what was recorded, converted to the annotated type. Results over 8 KB are stored as blobs.",
        [
            Column("check and encode, µs", "recorded"),
            Column("encode alone, µs", "alone"),
            Column("× encoding alone", "share"),
            Column("CPU, µs a step", "cpu"),
        ],
    ),
    Table(
        "conversation",
        "A conversation of {turns} turns",
        "Each turn is a message and a reply of 1 KB: noise, which does not compress, or prose. The model replies "
        "immediately. "
        "Limpet: each turn is a run of an LLM agent. LangGraph: each turn invokes a graph of one node. The bytes are "
        "those of the SQLite file.",
        [Column("bytes", "bytes"), Column("ms a turn", "turn"), Column("CPU, ms a turn", "cpu")],
    ),
    Table(
        "turns",
        "An LLM turn in a long conversation",
        "The conversation already has this many messages of 1 KB. The model replies immediately, so this is what "
        "Limpet adds: recording, choosing the messages that fit, and storing the reply.",
        [Column("ms a turn", "turn"), Column("CPU, ms a turn", "cpu")],
    ),
    Table(
        "cold",
        "A fresh process",
        "The fastest of {fresh} processes, after one that is not counted. The import is what it adds inside a process; "
        "`limpet --help` is a whole process, with its end. The first step is that of a script with one agent, on a new "
        "SQLite file; its time is that from the start of Python until the tool is called.",
        [Column("ms", "time"), Column("CPU, ms", "cpu")],
    ),
    Table(
        "takeover",
        "Takeover after a kill",
        "Two workers share a store. One is killed (SIGKILL) in the middle of a run; the time is that until the other "
        "executes a step of this run. Limpet: a lease of {lease:g} s; a worker that was killed on the same machine is "
        "found without waiting for its lease, and on another machine a takeover takes the lease. Absurd: a claim of "
        "{lease:g} s (default 120 s). Temporal: an activity's timeout of {lease:g} s. LangGraph has no workers; DBOS "
        "needs Conductor.",
        [Column("seconds", "takeover"), Column("lease, s", "lease")],
    ),
    Table(
        "resume",
        "Resume of a long run",
        "A run waits for a person after many steps or turns, and is answered while no worker is there. The time is "
        "that from opening the store in a new process (after its imports) until the run has ended: the code runs "
        "again, and gets its recorded results.",
        [Column("ms", "resume")],
    ),
    Table(
        "approval",
        "Approval round trip",
        "A run waits for a person. The time is that from the answer until the run has ended, in one process. Absurd "
        "polls every 250 ms, DBOS on SQLite every second, by default.",
        [Column("ms", "round trip")],
    ),
    Table(
        "reading",
        "Reading long logs",
        "The state before a step of a run with {logged:,} steps, at 101 places of its log; the last page of a long "
        "conversation.",
        [Column("ms", "read")],
    ),
    Table(
        "bulk",
        "{bulk:,} runs in the store",
        "97% of the runs are completed, 2% wait, 1% failed. They are copies of three real runs, written into the "
        "tables directly. Then: start a run; start a run until its first step is called; list the newest 50 runs; "
        "list the failed ones; count the runs.",
        [
            Column("start, ms", "start"),
            Column("first step, ms", "first step"),
            Column("list, ms", "list"),
            Column("failed, ms", "failed"),
            Column("count, ms", "count"),
        ],
    ),
    Table(
        "idle",
        "An idle worker",
        "The CPU of a worker process that has nothing to do, in percent of a core. Temporal's server is a process of "
        "its own.",
        [Column("worker, %", "idle"), Column("server, %", "server")],
    ),
    Table(
        "web",
        "The HTTP API",
        "A server process (`limpet serve`) on the same machine. The latency is that of {requests} requests of one "
        "client on one connection; the requests a second are those of eight. A command is durable, and recorded in "
        "the audit log, before its reply. The bare route returns a constant of 500 bytes.",
        [Column("requests/s", "requests"), Column("p50, ms", "p50"), Column("p99, ms", "p99")],
    ),
    Table(
        "mcp",
        "MCP",
        "Calls of a tool of `limpet serve` and `limpet mcp`, one after the other, beside those of a minimal server on "
        "the same SDK with the same tool; both run at once, are called in turns, and log requests over HTTP. `echo` "
        "returns its text. `info` reads a run: the minimal server calls the same method of the app, without roles, "
        "redaction or limits. Limpet should reach 80 % of the minimal server. The first answer should need less than a "
        "second of CPU; the minimal server's own is beside it.",
        [
            Column("calls/s", "calls"),
            Column("minimal, calls/s", "bare"),
            Column("share, %", "share"),
            Column("p50, ms", "p50"),
            Column("CPU, ms", "cpu"),
            Column("minimal, CPU, ms", "minimal cpu"),
        ],
    ),
    Table(
        "engine",
        "Engines",
        "The same agent on Limpet's own workers and on Temporal, whose own activities are beside: one run of "
        "{temporal_steps} effects; {engine_runs} runs of {each} effects at once; from the start of a run until its "
        "first step is called; from the answer to a run that waits for a person until it has ended. One process "
        "works. Limpet's log is in PostgreSQL; Temporal's development server has a SQLite file.",
        [
            Column("one run, steps/s", "one"),
            Column("all runs, steps/s", "steps"),
            Column("first step, ms", "first step"),
            Column("approval, ms", "round trip"),
        ],
    ),
)


def page(results: Results) -> str:
    """Return the published page: how the bench works, and its results."""
    text = PAGE.read_text(encoding="utf-8")
    return text.replace("<!-- results -->\n", markdown(results, heading="##"))


def markdown(results: Results, heading: str = "#") -> str:
    """Return the results as Markdown."""
    parts = list(_parts(results, heading))
    return "\n\n".join(parts) + "\n" if parts else "No results yet.\n"


def _parts(results: Results, heading: str) -> Iterable[str]:
    if not results.figures:
        return
    yield f"{heading} Environment"
    yield _table(["", ""], [[title, fact] for title, fact in results.environment.items()])
    if results.settings:
        rows = [[who, ", ".join(f"{k}={v}" for k, v in found.items())] for who, found in results.settings.items()]
        yield _table(["durability as found", ""], rows)
    yield f"{heading} Aims"
    yield from _aims(results)
    for table in TABLES:
        if rows := [_line(results, row, table) for row in results.rows(table.workload)]:
            yield f"{heading} {table.title.format(**results.sizes)}"
            yield table.how.format(**results.sizes)
            yield _table(["", "on", *(column.title for column in table.columns)], rows)
    yield from _cpu_parts(results, heading)
    yield from _counts(results, heading)
    if results.failures:
        yield f"{heading} Not measured"
        yield _table(["", "why"], [[what, why] for what, why in results.failures.items()])
    yield f"The bench took {results.minutes:.0f} minutes."


def _aims(results: Results) -> Iterable[str]:
    found = verdicts(results)
    measured = [verdict for verdict in found if verdict.figure is not None]
    if measured:
        rows = [[verdict.aim.title, verdict.aimed, verdict.shown, verdict.text] for verdict in measured]
        yield _table(["aim", "limit", "figure", ""], rows)
        yield from _closer(measured)
    if len(measured) < len(found):
        yield f"{len(found) - len(measured)} aims were not measured in this run."


def _closer(measured: Iterable[Verdict]) -> Iterable[str]:
    """Explain the aims that are missed; those with the same cause together."""
    causes: dict[str, list[str]] = {}
    for verdict in measured:
        if verdict.is_missed:
            causes.setdefault(verdict.aim.closer, []).append(verdict.aim.title)
    if causes:
        yield "What keeps figures from their aims, and what would bring them closer:"
        yield "\n".join(f"- **{'; '.join(titles)}.** {cause}".rstrip() for cause, titles in causes.items())


def _line(results: Results, row: Row, table: Table) -> list[str]:
    return [row.who, row.on, *(_cell(results, row, column) for column in table.columns)]


def _cell(results: Results, row: Row, column: Column) -> str:
    found = results.measured(row, column.figure)
    if found is None:
        return NONE
    if column.of is None:
        return _spread(found)
    base = results.median(row.workload, column.of[0], row.on, column.of[1])
    return f"{found.median / base:.2f}×" if base else NONE


def _spread(found: Measured) -> str:
    """Return the median, and the smallest and largest value in brackets."""
    if found.low == found.high:
        return _number(found.median)
    return f"{_number(found.median)} ({_number(found.low)}–{_number(found.high)})"


def _number(value: float) -> str:
    size = abs(value)
    return f"{value:,.{0 if size >= 100 else 1 if size >= 10 else 2}f}"


def _cpu_parts(results: Results, heading: str) -> Iterable[str]:
    """Show which thread of Limpet's process spends the CPU."""
    rows = []
    for workload, title in (("one", "one run"), ("many", "many runs")):
        for row in results.rows(workload):
            parts = [results.measured(row, name) for name in ("cpu", "loop", "writer", "others", "collector")]
            if all(parts):
                rows.append([f"{title}, {row.who}", row.on, *(_number(part.median) for part in parts if part)])
    if rows:
        yield f"{heading} CPU of a step, and its parts"
        yield (
            "Microseconds of CPU per step: on the thread of the event loop, on the writer's thread, and on other "
            "threads (reads and the lease). The garbage collector runs on one of these threads, and is included there."
        )
        yield _table(["", "on", "CPU, µs", "loop", "writer", "others", "of which collector"], rows)


def _counts(results: Results, heading: str) -> Iterable[str]:
    if results.counts:
        kinds = list(results.counts)
        names = list(results.counts[kinds[0]])
        yield f"{heading} Counts of a step"
        yield (
            "Counts of a step of one run on SQLite, which do not depend on the machine. "
            "`tests/behaviour/steps/test_step_costs.py` holds their limits."
        )
        rows = [[name, *(_count(results.counts[kind].get(name)) for kind in kinds)] for name in names]
        yield _table(["", *(f"a plain {kind}" for kind in kinds)], rows)


def _count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a padded table. Columns of numbers are aligned to the right."""
    widths = [max(len(row[place]) for row in (header, *rows)) for place in range(len(header))]
    right = [place > 0 and all(_is_number(row[place]) for row in rows) for place in range(len(header))]
    lines = [
        "| " + " | ".join(_padded(*cell) for cell in zip(row, widths, right, strict=True)) + " |"
        for row in (header, *rows)
    ]
    rule = "|" + "|".join("-" * (w + 1) + (":" if r else "-") for w, r in zip(widths, right, strict=True)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _padded(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


def _is_number(text: str) -> bool:
    return text == NONE or text[:1].isdigit()
