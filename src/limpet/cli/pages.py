"""The pages for people: a list of runs, and the inbox."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from limpet.cli.output import cell, clean, console, table
from limpet.cli.times import about, until
from limpet.engine.views import Request, RunInfo
from limpet.redaction import say_value

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["decide", "print_inbox", "print_runs", "question_of", "runs_table"]

# Of what led to a request.
SHOWN = 8
# Of the list of runs; how narrow each may be, and which go first where there is no room.
COLUMNS = ("run", "agent", "status", "position", "age", "waits for", "goal")
LEAST = {"agent": 8, "position": 11, "age": 3, "waits for": 10, "goal": 8}
LEFT_OUT = ("goal", "agent", "age", "waits for", "position")


def print_runs(runs: Sequence[RunInfo], now: int) -> None:
    """A line for each run, the newest first."""
    out = console()
    out.print(runs_table(runs, now, out.width) if runs else "no runs")


def runs_table(runs: Sequence[RunInfo], now: int, width: int) -> "Table":
    """A line for each run; where it is narrow, some columns are left out, and ids are never cut."""
    rows = [{name: cell(value) for name, value in _told(run, now).items()} for run in runs]
    natural = {name: max(len(name), *(row[name].cell_len for row in rows)) for name in COLUMNS}
    widths = _fitting(natural, width)
    found = table(*widths)
    for column, each in zip(found.columns, widths.values(), strict=True):
        column.no_wrap, column.overflow, column.width = True, "ellipsis", each
    found.columns[0].no_wrap, found.columns[0].overflow = False, "fold"
    for row in rows:
        found.add_row(*(row[name] for name in widths))
    return found


def _fitting(natural: dict[str, int], width: int) -> dict[str, int]:
    """How wide each column is; those that find no room are left out."""
    names = list(natural)
    for gone in (None, *LEFT_OUT):
        names = [name for name in names if name != gone]
        widths = {name: natural[name] for name in names}
        for name in (name for name in LEFT_OUT if name in widths):
            excess = sum(widths.values()) + 2 * len(widths) - width
            widths[name] = max(widths[name] - max(excess, 0), min(widths[name], LEAST[name]))
        if sum(widths.values()) + 2 * len(widths) <= width:
            return widths
    return {**widths, "run": max(width - widths["status"] - 4, 1)}


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
        out.print(f"{question_of(request)}", style="bold")
        facts = table("", "")
        facts.show_header = False
        for name, value in _asked(request, now):
            facts.add_row(f"  {name}", cell(value))
        out.print(facts)
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
