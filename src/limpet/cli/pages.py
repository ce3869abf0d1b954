"""The pages for people: a list of runs, and the inbox."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from limpet.cli.output import clean, console, print_pairs
from limpet.cli.tables import Shape, fitted
from limpet.cli.times import about, until
from limpet.engine.execution.views import Request, RunInfo
from limpet.redaction import say_value

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["decide", "print_inbox", "print_runs", "question_of", "runs_table"]

# Of what led to a request.
SHOWN = 8
RUNS = Shape(
    narrow={"goal": 8, "agent": 8, "age": 3, "waits for": 10, "position": 11},
    left_out=("goal", "agent", "age", "waits for", "position"),
)


def print_runs(runs: Sequence[RunInfo], now: int) -> None:
    """A line for each run, the newest first."""
    out = console()
    out.print(runs_table(runs, now, out.width) if runs else "no runs")


def runs_table(runs: Sequence[RunInfo], now: int, width: int) -> "Table":
    """A line for each run; where it is narrow, some columns are left out, and ids are never cut."""
    return fitted([_told(run, now) for run in runs], width, RUNS)


def _told(run: RunInfo, now: int) -> dict[str, str]:
    return {
        "run": run.id,
        "agent": f"{run.agent} {run.version}",
        "status": run.status,
        "position": run.position,
        "age": about(now - run.updated),
        "waits for": run.waits_for or "",
        "goal": run.goal,
    }


def print_inbox(requests: Sequence[Request], now: int) -> None:
    """A page for each request: what is asked, what led to it, and what each answer causes."""
    out = console()
    for request in requests:
        out.print(question_of(request), style="bold")
        print_pairs(out, ((f"  {name}", value) for name, value in _asked(request, now)))
        for command in decide(request):
            out.print(f"  next: {command}", soft_wrap=True)
        out.print()
    if not requests:
        out.print("nothing waits for a person")


def _asked(request: Request, now: int) -> Iterator[tuple[str, str]]:
    yield "request", f"{request.id}, {about(now - request.opened)} old"
    yield "to", f"{', '.join(request.to)}{until(request.expires)}"
    found = request.context
    if found is None:
        return
    yield "run", f"{request.run} of {found.agent}" + (f": {found.goal}" if found.goal else "")
    yield "input", found.input
    yield "why", found.why
    for step in found.did[-SHOWN:]:
        yield (
            "did",
            f"{step.number} {step.tool}: {step.status} {step.error if step.status != 'completed' else step.result}",
        )
    for made in found.decisions[-SHOWN:]:
        yield "chose", f"{made.chosen} ({made.question}): {made.because}"
    if found.flags:
        yield "flags", ", ".join(found.flags)
    if found.spent:
        yield "spent", ", ".join(f"{name} {number:g}" for name, number in found.spent.items())
    for choice in found.choices:
        yield "say", f"{choice.say}: {choice.causes}"
    yield "silence", found.silence


def question_of(request: Request) -> str:
    """What is asked, with the call that it is about, and what may be said."""
    args = ", ".join(f"{name}={value!r}" for name, value in say_value(dict(request.args)).items())
    call = f" {request.tool}({args})" if request.tool else ""
    options = f" [{' | '.join(map(str, request.options))}]" if request.options else ""
    return clean(f"{request.question}{call}{options}")


def decide(request: Request) -> Iterator[str]:
    """What to type to decide it."""
    if request.kind == "approval" or (request.kind == "ask" and request.schema == {"type": "boolean"}):
        yield f"limpet approve {request.id}"
        yield f"limpet reject {request.id} --because …"
    else:
        yield f"limpet answer {request.id}"
