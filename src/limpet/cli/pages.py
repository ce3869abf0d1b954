"""The pages for people: a list of runs, and one run."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from limpet.cli.output import cell, clean, console, table
from limpet.engine.views import Request, RunInfo
from limpet.redaction import say_value
from limpet.service.report import Report, StepInfo

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["print_inbox", "print_report", "print_runs"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The last ones; all are in the JSON.
STEPS = 20
# Of what led to a request.
SHOWN = 8


def print_runs(runs: Sequence[RunInfo], now: int) -> None:
    """A line for each run, the newest first."""
    found = table("run", "agent", "status", "position", "age", "waits for", "goal")
    for run in runs:
        told = (run.status, run.position, _age(now - run.updated), run.waits_for or "", run.goal)
        found.add_row(clean(run.id), f"{clean(run.agent)} {clean(run.version)}", *map(cell, told))
    console().print(found if runs else "no runs")


def print_report(report: Report) -> None:
    """Everything about a run that matters first, and what to type next."""
    info, out = report.info, console()
    facts = table("", "")
    facts.show_header = False
    for name, value in _facts(report):
        facts.add_row(name, cell(value))
    out.print(facts)
    if report.steps:
        hidden = len(report.steps) - STEPS
        out.print(f"\n… {hidden} steps before these" if hidden > 0 else "")
        out.print(_steps(report.steps[-STEPS:]))
    for request in report.requests:
        out.print(f"\nasks {_question(request)}")
        out.print(f"     {request.id}, to {', '.join(request.to)}{_until(request.expires)}")
    if report.error is not None and info.status != "completed":
        place = "" if report.error_step is None else f" (step {report.error_step})"
        out.print(f"\nlast error{place}: {clean(report.error.type)}: {clean(report.error.message)}")
    out.print()
    for command in _next(report):
        out.print(f"next: {command}")


def print_inbox(requests: Sequence[Request], now: int) -> None:
    """A page for each request: what is asked, what led to it, and what each answer causes."""
    out = console()
    for request in requests:
        out.print(f"{_question(request)}", style="bold")
        facts = table("", "")
        facts.show_header = False
        for name, value in _asked(request, now):
            facts.add_row(f"  {name}", cell(value))
        out.print(facts)
        for command in _decide(request):
            out.print(f"  next: {command}")
        out.print()
    if not requests:
        out.print("nothing waits for a person")


def _asked(request: Request, now: int) -> Iterator[tuple[str, str]]:
    yield "request", f"{request.id}, {_age(now - request.opened)} old"
    yield "to", f"{', '.join(request.to)}{_until(request.expires)}"
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


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    info = report.info
    yield "run", info.id
    yield "agent", f"{info.agent} {info.version}"
    yield "status", info.status
    yield "position", info.position
    more = {"goal": info.goal, "waits for": info.waits_for and f"{info.waits_for}{_until(report.wake)}"}
    more |= {"parent": info.parent, "fork of": info.fork_of, "user": info.user, "session": info.session}
    more |= {"labels": ", ".join(f"{name}={value}" for name, value in info.labels.items())}
    yield from ((name, value) for name, value in more.items() if value)
    yield "created", _time(info.created)
    yield "ended" if info.ended else "updated", _time(info.ended or info.updated)


def _steps(steps: Sequence[StepInfo]) -> "Table":
    found = table("#", "step", "status", "attempts", "note", "last error")
    for step in steps:
        told = (step.name, step.status, str(step.attempts), step.note, step.error or "")
        found.add_row(str(step.number), *map(cell, told))
    return found


def _question(request: Request) -> str:
    args = ", ".join(f"{name}={value!r}" for name, value in say_value(dict(request.args)).items())
    call = f" {request.tool}({args})" if request.tool else ""
    options = f" [{' | '.join(map(str, request.options))}]" if request.options else ""
    return clean(f"{request.question}{call}{options}")


def _next(report: Report) -> Iterator[str]:
    """What to type next; nothing where the run goes on, or is over."""
    info, waits = report.info, report.info.waits_for or ""
    for request in report.requests:
        yield from _decide(request)
    if info.status == "failed" or "operator:" in waits:
        yield f"limpet resume {info.id}"
    elif waits.startswith("worker:"):
        yield f"limpet worker MODULE:ATTRIBUTE  (nobody serves {clean(waits.removeprefix('worker:'))})"
    yield from (f"limpet show {each.removeprefix('run:')}" for each in waits.split(", ") if each.startswith("run:"))


def _decide(request: Request) -> Iterator[str]:
    if request.kind == "approval" or (request.kind == "ask" and request.schema == {"type": "boolean"}):
        yield f"limpet approve {request.id}"
        yield f"limpet reject {request.id} --because …"
    else:
        yield f"limpet answer {request.id} …"


def _until(time: int | None) -> str:
    return "" if time is None else f" until {_time(time)}"


def _time(microseconds: int) -> str:
    return f"{_EPOCH + timedelta(microseconds=microseconds):%Y-%m-%d %H:%M:%S} UTC"


def _age(microseconds: int) -> str:
    """About how long, in the largest unit that fits."""
    seconds = max(microseconds, 0) // 10**6
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
