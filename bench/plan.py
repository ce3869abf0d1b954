"""The plan of a bench: the workloads, the systems that take part in each, and their sizes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.processes import LIMPET, PEERS, Program, takeover
from bench.results import Row

__all__ = ["FULL", "QUICK", "Sizes", "Task", "plan"]

SQLITE, POSTGRES = "SQLite", "PostgreSQL"
BOTH = (SQLITE, POSTGRES)
KINDS = ("read", "effect")
# The databases of each peer.
DATABASES = {"LangGraph": BOTH, "DBOS": BOTH, "Absurd": (POSTGRES,), "Temporal": (SQLITE,)}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the workloads."""

    rounds: int = 5
    """Rounds of the short workloads; the longer ones have fewer."""
    commits: int = 2_000
    batches: int = 100
    steps: int = 300
    temporal_steps: int = 200
    runs: int = 200
    each: int = 10
    shared_runs: int = 600
    """Runs that worker processes share, each of 20 steps."""
    turns: int = 400
    measured_turns: int = 60
    messages: tuple[int, ...] = (10, 500, 5_000)
    turns_on: tuple[str, ...] = BOTH
    fresh: int = 5
    """Fresh processes in a round."""
    replayed: int = 10_000
    peers_replayed: int = 1_000
    long_turns: int = 100_000
    logged: int = 100_000
    listed: int = 5_000
    approvals: int = 20
    engine_runs: int = 50
    """Concurrent runs of the workload that compares engines."""
    bulk: int = 1_000_000
    idle: float = 20.0
    """Seconds that an idle worker is watched."""
    requests: int = 300
    """HTTP requests of one client, and of eight together."""
    mcp_calls: int = 2_000
    """Calls of an MCP tool on one connection."""
    lease: float = 10.0
    """Seconds that a worker counts as alive without a sign of life."""
    peers: tuple[str, ...] = tuple(PEERS)
    workloads: tuple[str, ...] = (
        "one",
        "many",
        "workers",
        "values",
        "conversation",
        "turns",
        "cold",
        "takeover",
        "resume",
        "approval",
        "reading",
        "bulk",
        "idle",
        "web",
        "mcp",
        "engine",
    )


FULL = Sizes()
QUICK = Sizes(
    rounds=2,
    commits=500,
    batches=50,
    steps=200,
    turns=50,
    measured_turns=20,
    messages=(10, 500),
    turns_on=(SQLITE,),
    fresh=1,
    peers=("LangGraph",),
    workloads=("one", "many", "values", "conversation", "turns", "cold", "takeover"),
)


class Task(NamedTuple):
    """A measurement that is repeated in each of its rounds."""

    row: Row
    program: Program
    measure: Callable[[str], Mapping[str, float]]
    """From the URL of a new database to figures."""
    rounds: int


def plan(sizes: Sizes) -> list[Task]:
    """Return the measurements of one round, in their order."""
    tasks = [task for workload in sizes.workloads for task in _TASKS[workload](sizes)]
    return [task for task in tasks if task.program is LIMPET or task.program.name in sizes.peers]


def _asked(program: Program, workload: str, **arguments: Any) -> Callable[[str], Mapping[str, float]]:
    return lambda url: program.measure(workload, url=url, **arguments)


def _limpet(workload: str, who: str, on: str, rounds: int, name: str, **arguments: Any) -> Task:
    return Task(Row(workload, who, on), LIMPET, _asked(LIMPET, name, **arguments), rounds)


def _peers(workload: str, rounds: int, name: str, *, without: tuple[str, ...] = (), **arguments: Any) -> Iterator[Task]:
    for peer, databases in DATABASES.items():
        if peer not in without:
            for on in databases:
                yield Task(Row(workload, peer, on), PEERS[peer], _asked(PEERS[peer], name, **arguments), rounds)


def _one(sizes: Sizes) -> Iterator[Task]:
    for on in BOTH:
        yield _limpet("one", "bare commits", on, sizes.rounds, "bare", commits=sizes.commits, batches=sizes.batches)
        work = {"commits": sizes.commits}
        yield _limpet("one", "bare commits between work", on, sizes.rounds, "bare_between_work", **work)
        yield _limpet("one", "Limpet's store", on, sizes.rounds, "store", callers=1, events=sizes.commits)
        for kind in KINDS:
            yield _limpet("one", f"Limpet, {kind}s", on, sizes.rounds, "one", kind=kind, steps=sizes.steps)
    yield from _peers("one", sizes.rounds, "one", without=("Temporal",), steps=sizes.steps)
    yield _temporal("one", steps=sizes.temporal_steps)


def _many(sizes: Sizes) -> Iterator[Task]:
    load = {"runs": sizes.runs, "each": sizes.each}
    for on in BOTH:
        yield _limpet("many", "bare batches", on, sizes.rounds, "bare", commits=100, batches=sizes.batches)
        yield _limpet("many", "Limpet's store", on, sizes.rounds, "store", callers=sizes.runs, events=sizes.batches)
        for kind in KINDS:
            yield _limpet("many", f"Limpet, {kind}s", on, sizes.rounds, "many", kind=kind, **load)
    yield from _peers("many", sizes.rounds, "many", without=("Temporal",), **load)
    peer = PEERS["LangGraph"]
    for on in BOTH:
        row = Row("many", "LangGraph, asyncio", on)
        yield Task(row, peer, _asked(peer, "many_async", **load), sizes.rounds)
    yield _temporal("many", **load)


def _temporal(workload: str, **arguments: Any) -> Task:
    peer = PEERS["Temporal"]
    return Task(Row(workload, "Temporal", SQLITE), peer, _asked(peer, workload, **arguments), 2)


def _workers(sizes: Sizes) -> Iterator[Task]:
    for on in BOTH:
        for count, who in ((1, "Limpet, 1 process"), (2, "Limpet, 2 processes")):
            load = {"processes": count, "runs": sizes.shared_runs, "each": 20}
            yield _limpet("workers", who, on, min(sizes.rounds, 3), "workers", **load)


def _values(sizes: Sizes) -> Iterator[Task]:
    titles = {"text": "text of 1 KB", "objects": "50 small objects", "fractions": "1,536 fractions (26 KB)"}
    for shape, title in titles.items():
        yield _limpet("values", title, SQLITE, min(sizes.rounds, 3), "values", shape=shape, steps=sizes.steps)


def _conversation(sizes: Sizes) -> Iterator[Task]:
    rounds, peer = min(sizes.rounds, 2), PEERS["LangGraph"]
    yield _limpet("conversation", "Limpet", SQLITE, rounds, "conversation", turns=sizes.turns)
    yield _limpet("conversation", "Limpet, prose", SQLITE, rounds, "conversation", turns=sizes.turns, prose=True)
    measure = _asked(peer, "conversation", turns=sizes.turns)
    yield Task(Row("conversation", "LangGraph", SQLITE), peer, measure, rounds)


def _turns(sizes: Sizes) -> Iterator[Task]:
    for on in sizes.turns_on:
        for count in sizes.messages:
            load = {"messages": count, "turns": sizes.measured_turns}
            yield _limpet("turns", f"after {count:,} messages", on, min(sizes.rounds, 3), "turns_at", **load)


def _cold(sizes: Sizes) -> Iterator[Task]:
    titles = {
        "python": "Python alone",
        "import": "`import limpet`",
        "help": "`limpet --help`",
        "first step": "first step",
    }
    for what, title in titles.items():
        yield _limpet("cold", title, SQLITE, min(sizes.rounds, 3), "cold", what=what, times=sizes.fresh)


def _takeover(sizes: Sizes) -> Iterator[Task]:
    taking_part = [(LIMPET, on) for on in BOTH] + [(PEERS["Absurd"], POSTGRES), (PEERS["Temporal"], SQLITE)]
    for program, on in taking_part:
        rounds = min(sizes.rounds, 3 if program is LIMPET else 2)
        yield Task(Row("takeover", program.name, on), program, _taken_over(program, sizes.lease), rounds)


def _taken_over(program: Program, lease: float) -> Callable[[str], Mapping[str, float]]:
    return lambda url: takeover(program, url, lease)


def _resume(sizes: Sizes) -> Iterator[Task]:
    left = (("steps", sizes.peers_replayed), ("steps", sizes.replayed), ("turns", sizes.long_turns))
    for on in BOTH:
        for kind, count in left:
            who, rounds = f"Limpet, {count:,} {kind}", min(sizes.rounds, 2 if kind == "turns" else 3)
            yield Task(Row("resume", who, on), LIMPET, _left(LIMPET, kind=kind, count=count), rounds)
    for task in _peers("resume", min(sizes.rounds, 2), "resume", without=("Temporal",)):
        row = task.row._replace(who=f"{task.row.who}, {sizes.peers_replayed:,} steps")
        yield task._replace(row=row, measure=_left(task.program, steps=sizes.peers_replayed))


def _left(program: Program, **arguments: Any) -> Callable[[str], Mapping[str, float]]:
    """Leave a run in one process, and resume it in the next."""

    def measure(url: str) -> Mapping[str, float]:
        program.measure("leave", url=url, **arguments)
        return program.measure("resume", url=url)

    return measure


def _approval(sizes: Sizes) -> Iterator[Task]:
    rounds = min(sizes.rounds, 3)
    for on in BOTH:
        yield _limpet("approval", "Limpet", on, rounds, "approval", times=sizes.approvals)
    yield from _peers("approval", min(rounds, 2), "approval", times=sizes.approvals)


def _reading(sizes: Sizes) -> Iterator[Task]:
    for on in BOTH:
        who = f"state at a step of {sizes.logged:,}"
        yield _limpet("reading", who, on, 1, "states", steps=sizes.logged, samples=101)
        who, load = f"last 40 of {sizes.listed:,} messages", {"messages": sizes.listed, "page": 40, "samples": 21}
        yield _limpet("reading", who, on, min(sizes.rounds, 3), "last_page", **load)


def _bulk(sizes: Sizes) -> Iterator[Task]:
    for on in BOTH:
        for runs in (sizes.bulk // 1_000, sizes.bulk):
            yield _limpet("bulk", f"Limpet, {runs:,} runs", on, 1, "million", runs=runs)


def _idle(sizes: Sizes) -> Iterator[Task]:
    for on in BOTH:
        yield _limpet("idle", "Limpet", on, min(sizes.rounds, 2), "idle", seconds=sizes.idle)
    yield from _peers("idle", 1, "idle", without=("LangGraph",), seconds=sizes.idle)


def _web(sizes: Sizes) -> Iterator[Task]:
    titles = {"bare": "bare FastAPI route", "get": "GET run", "start": "POST start", "answer": "POST answer"}
    for on in BOTH:
        for what, title in titles.items():
            if what != "bare" or on == SQLITE:
                yield _limpet("web", title, on, min(sizes.rounds, 3), "web", what=what, requests=sizes.requests)


def _mcp(sizes: Sizes) -> Iterator[Task]:
    rounds = min(sizes.rounds, 3)
    for how, title in (("http", "HTTP"), ("stdio", "stdio")):
        for tool in ("echo", "info"):
            load = {"how": how, "tool": tool, "calls": sizes.mcp_calls}
            yield _limpet("mcp", f"{title}, {tool}", SQLITE, rounds, "mcp_calls", **load)
    yield _limpet("mcp", "first answer of `limpet mcp`", SQLITE, rounds, "mcp_start", times=sizes.fresh)


def _engine(sizes: Sizes) -> Iterator[Task]:
    rounds, peer = min(sizes.rounds, 3), PEERS["Temporal"]
    load = {"steps": sizes.temporal_steps, "runs": sizes.engine_runs, "each": sizes.each, "times": sizes.approvals}
    for system, who in (("limpet", "Limpet's own workers"), ("temporal", "Limpet on Temporal")):
        yield _limpet("engine", who, POSTGRES, rounds, "engine", system=system, **load)
    yield Task(Row("engine", "Temporal's own activities", SQLITE), peer, _asked(peer, "engine", **load), rounds)


_TASKS: dict[str, Callable[[Sizes], Iterator[Task]]] = {
    "one": _one,
    "many": _many,
    "workers": _workers,
    "values": _values,
    "conversation": _conversation,
    "turns": _turns,
    "cold": _cold,
    "takeover": _takeover,
    "resume": _resume,
    "approval": _approval,
    "reading": _reading,
    "bulk": _bulk,
    "idle": _idle,
    "web": _web,
    "mcp": _mcp,
    "engine": _engine,
}
