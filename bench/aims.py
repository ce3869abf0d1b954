"""The aims, each with its figure and whether it is met."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bench.processes import PEERS
from bench.results import Results

__all__ = ["AIMS", "Aim", "Verdict", "verdicts"]

SQLITE, POSTGRES = "SQLite", "PostgreSQL"
CODE = (
    "Most of it is Python code: more than 100 calls for a read. After each commit it goes on with cold caches, and "
    "takes half as long again as on a RAM disk; so does the next commit, as the bare commits between work show. Each "
    "commit writes six pages instead of four: positions without AUTOINCREMENT, and steps without an index, would save "
    "15 µs together. Compiling the modules with Cython or mypyc makes a step 15 to 20 % slower, because larger code "
    "is read into cold caches. C code written by hand for sealing and appending could save about 50 µs."
)
ROUND_TRIPS = (
    "A server is never called on the event loop, so each commit also switches threads twice, about 150 µs; a driver "
    "that waits for the socket on the loop would save most of these. The server takes about 100 µs longer than for the "
    "bare loop: it also moves the head of the run, and maintains two more indexes."
)
INTERPRETER = (
    "The interpreter of one process is busy with Python code, more than 100 calls a read, and on SQLite also with the "
    "commits. A shorter life of a run (some 0.6 ms before and after its ten steps) and C code written by hand would "
    "shorten it; modules compiled with Cython do not. A read as one event, about 9 %, would cost every reader of the "
    "log. Two processes add up."
)
CHECKS = (
    "The types of all values of one depth are collected with few C calls: 30 ns a value, where the encoder takes 40. "
    "No C function at hand refuses exactly what JSON would change; one written by hand would."
)
ONE_WRITER = "SQLite has one writer at a time; PostgreSQL has many."
TURNS = (
    "A turn is a whole run with thousands of calls on the loop, none of which stands out, and two commits: of its "
    "start, and of the reply with the end."
)
REPLAY = (
    "The code of the agent runs again: 10,000 awaited calls with some 100 calls each. Handing several recorded "
    "results over at a time would shorten it."
)
OPENING = (
    "Most of it is the opening: three connections of about 5 ms each, and the first use of every statement, for which "
    "a new server process reads its catalog. A connection that is opened meanwhile on another thread saves nothing on "
    "two cores."
)
POLLING = (
    "An idle worker polls the store for changes of other processes, 40 times a second; on a virtual machine, a third "
    "of a poll is its wake-up. Fewer polls would find these changes later."
)
IMPORTS = "Nearly all of it is importing modules: pydantic models of the MCP SDK, and dataclasses of Limpet."
CALLS = "The rest is spread over the access log, the guard, limits, roles and redaction."
Figure = Callable[[Results], float | None]


class Aim(NamedTuple):
    """A limit for one figure, and where it shall go later."""

    title: str
    figure: Figure
    at_most: float | None = None
    at_least: float | None = None
    unit: str = "×"
    later: float | None = None
    """A stricter aim, of the same direction."""
    closer: str = ""
    """Names the cause of a miss, and a change that would bring the figure closer."""

    @property
    def limit(self) -> float:
        limit = self.at_most if self.at_least is None else self.at_least
        assert limit is not None
        return limit

    def distance(self, figure: float, limit: float) -> float:
        """Return by which share of the limit a figure misses it; 0 if it is met."""
        over = figure / limit - 1 if self.at_least is None else 1 - figure / limit
        return max(over, 0.0)


class Verdict(NamedTuple):
    """An aim and its figure."""

    aim: Aim
    figure: float | None

    @property
    def is_missed(self) -> bool:
        """Whether the figure misses its limit."""
        return self.figure is not None and self.aim.distance(self.figure, self.aim.limit) > 0

    @property
    def text(self) -> str:
        """`met`, `missed by …`, or `not measured`."""
        if self.figure is None:
            return "not measured"
        missed = self.aim.distance(self.figure, self.aim.limit)
        if missed:
            return f"missed by {missed:.0%}" if missed >= 0.005 else "missed by less than 1%"
        if self.aim.later is None:
            return "met"
        further = self.aim.distance(self.figure, self.aim.later)
        return "met, also the later aim" if not further else f"met; {further:.0%} to the later aim"

    @property
    def aimed(self) -> str:
        """The limit in words."""
        word = "at most" if self.aim.at_least is None else "at least"
        later = f" (later {self.aim.later:,g}{_unit(self.aim)})" if self.aim.later else ""
        return f"{word} {self.aim.limit:,g}{_unit(self.aim)}{later}"

    @property
    def shown(self) -> str:
        """The figure with its unit."""
        if self.figure is None:
            return "–"
        return f"{self.figure:,.{0 if self.figure >= 100 else 1 if self.figure >= 10 else 2}f}{_unit(self.aim)}"

    def as_json(self) -> dict[str, Any]:
        """Return this for programs."""
        found = {"aim": self.aim.title, "limit": self.aimed, "figure": self.figure, "verdict": self.text}
        return found | ({"closer": self.aim.closer} if self.is_missed else {})


def _unit(aim: Aim) -> str:
    return aim.unit if aim.unit in ("×", "%") else f" {aim.unit}"


def verdicts(results: Results) -> list[Verdict]:
    """Return every aim with its figure."""
    return [Verdict(aim, aim.figure(results)) for aim in AIMS]


def _of(workload: str, who: str, on: str, figure: str) -> Figure:
    return lambda results: results.median(workload, who, on, figure)


def _ratio(one: Figure, other: Figure) -> Figure:
    def ratio(results: Results) -> float | None:
        upper, lower = one(results), other(results)
        return None if upper is None or not lower else upper / lower

    return ratio


def _count(kind: str, name: str) -> Figure:
    return lambda results: results.counts.get(kind, {}).get(name)


def _best_peer(on: str) -> Figure:
    def best(results: Results) -> float | None:
        peers = [row for row in results.rows("many") if row.on == on and row.who.split(",")[0] in PEERS]
        return max((found for row in peers if (found := results.median(*row, "steps"))), default=None)

    return best


def _aims() -> Iterator[Aim]:
    for on, kind, most in (
        (SQLITE, "read", 2.2),
        (SQLITE, "effect", 3.0),
        (POSTGRES, "read", 2.5),
        (POSTGRES, "effect", 3.5),
    ):
        step = _ratio(_of("one", f"Limpet, {kind}s", on, "step"), _of("one", "bare commits", on, "step"))
        article = "a read" if kind == "read" else "an effect"
        title = f"One run on {on}: {article}, compared with a bare commit"
        yield Aim(title, step, at_most=most, closer=CODE if on == SQLITE else ROUND_TRIPS)
    read = _of("one", "Limpet, reads", SQLITE, "step")
    faster = _ratio(_of("one", "LangGraph", SQLITE, "step"), read)
    yield Aim("One run on SQLite: faster than LangGraph", faster, at_least=3.5, later=4, closer=CODE)
    for kind, least, later in (("reads", 7_500, 10_000), ("effects", 5_500, 7_000)):
        steps = _of("many", f"Limpet, {kind}", SQLITE, "steps")
        title = f"200 runs on SQLite: {kind}"
        yield Aim(title, steps, at_least=least, later=later, unit="steps/s", closer=INTERPRETER)
    best = _ratio(_of("many", "Limpet, reads", POSTGRES, "steps"), _best_peer(POSTGRES))
    yield Aim("200 runs on PostgreSQL: faster than the best peer", best, at_least=8, closer=INTERPRETER)
    two = _ratio(
        _of("workers", "Limpet, 2 processes", SQLITE, "steps"), _of("workers", "Limpet, 1 process", SQLITE, "steps")
    )
    yield Aim("Two worker processes on SQLite, compared with one", two, at_least=1.6, closer=ONE_WRITER)
    checked = _of("values", "50 small objects", SQLITE, "share")
    yield Aim("50 small objects, checked and encoded, compared with encoding", checked, at_most=2, closer=CHECKS)
    for count in (10, 500, 5_000):
        cpu = _of("turns", f"after {count:,} messages", SQLITE, "cpu")
        yield Aim(f"CPU of an LLM turn after {count:,} messages", cpu, at_most=5, unit="ms", closer=TURNS)
    for title, who, figure, most in (
        ("CPU of `import limpet`", "`import limpet`", "cpu", 200),
        ("Start of a script until its first step", "first step", "time", 500),
        ("`limpet --help`", "`limpet --help`", "time", 300),
    ):
        yield Aim(title, _of("cold", who, SQLITE, figure), at_most=most, unit="ms", closer=IMPORTS)
    for on in (SQLITE, POSTGRES):
        steps, turns = (_of("resume", f"Limpet, {what}", on, "resume") for what in ("10,000 steps", "100,000 turns"))
        yield Aim(f"Resume after 10,000 steps on {on}, with opening", steps, at_most=250, unit="ms", closer=REPLAY)
        yield Aim(f"Resume after 100,000 turns on {on}, with opening", turns, at_most=50, unit="ms", closer=OPENING)
    for on in (SQLITE, POSTGRES):
        used = _of("idle", "Limpet", on, "idle")
        yield Aim(f"CPU of an idle worker on {on}", used, at_most=1, unit="%", closer=POLLING)
    yield Aim("Memory that a read keeps until the run ends", _count("read", "bytes kept"), at_most=200, unit="bytes")
    for who in ("HTTP, echo", "HTTP, info", "stdio, echo", "stdio, info"):
        share = _of("mcp", who, SQLITE, "share")
        yield Aim(f"MCP calls over {who}: share of a minimal server", share, at_least=80, unit="%", closer=CALLS)
    first = _of("mcp", "first answer of `limpet mcp`", SQLITE, "cpu")
    yield Aim("CPU of the first answer of `limpet mcp`", first, at_most=1_000, unit="ms", closer=IMPORTS)


AIMS: tuple[Aim, ...] = tuple(_aims())
