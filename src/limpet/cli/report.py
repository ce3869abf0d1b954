"""The page of 3 a.m.: where a run is, what it waits for, when it worked and waited, what went wrong, what to type."""

from collections.abc import Iterator

from limpet.cli.load_app import worker_command
from limpet.cli.output import clean, console, print_pairs, print_text
from limpet.cli.pages import decide, question_of
from limpet.cli.times import until
from limpet.cli.waterfall import waterfall
from limpet.clock import moment
from limpet.engine.execution.views import RunInfo
from limpet.service.report import Report
from limpet.service.views import waits_for_operator, waits_for_worker

__all__ = ["next_commands", "print_report", "print_unserved"]

# The last ones; `limpet state` has more.
DECISIONS = 5


def print_report(report: Report, now: int) -> None:
    """Everything about a run that matters first, and what to type next."""
    out = console()
    print_pairs(out, _facts(report))
    drawn = [*waterfall(report.steps, report.timeline, now, out)]
    for line in ("", *drawn) if drawn else ():
        out.print(line, soft_wrap=True)
    made = [f"decided {each.question} {each.chosen}: {each.because}" for each in report.decisions[-DECISIONS:]]
    for text in ("", *made) if made else ():
        out.print(clean(text))
    for request in report.requests:
        out.print(f"\nasks {question_of(request)}")
        out.print(f"     {request.id}, to {', '.join(request.to)}{until(request.expires)}", soft_wrap=True)
    if report.error is not None and report.info.status != "completed":
        place = "" if report.error_step is None else f" (step {report.error_step})"
        out.print(f"\nlast error{place}: {clean(report.error.type)}: {clean(report.error.message)}")
    commands = [*next_commands(report)]
    if commands:
        out.print()
    for command in commands:
        out.print(f"next: {command}", soft_wrap=True)


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    info = report.info
    yield "run", info.id
    yield "agent", f"{info.agent} {info.version}"
    yield "status", info.status
    yield "position", info.position
    wake = "" if waits_for_worker(info) else until(report.wake)
    more: dict[str, str | None] = {"goal": info.goal, "input": report.input, "output": report.output}
    more |= {"waits for": info.waits_for and f"{info.waits_for}{wake}", "why": report.why}
    more |= {"goes on": moment(report.wake) if info.status == "pending" and report.wake is not None else None}
    more |= {"parent": info.parent, "fork of": info.fork_of, "user": info.user, "session": info.session}
    more |= {"labels": ", ".join(f"{name}={value}" for name, value in info.labels.items())}
    yield from ((name, value) for name, value in more.items() if value)
    yield "created", moment(info.created)
    yield "ended" if info.ended else "updated", moment(info.ended or info.updated)


def next_commands(report: Report) -> Iterator[str]:
    """What to type next: to decide, to let it go on, to see it go on, or to see what it did."""
    info, waits = report.info, report.info.waits_for or ""
    for request in report.requests:
        yield from decide(request)
    if info.status == "failed" or waits_for_operator(info):
        yield f"limpet resume {info.id}"
    elif waits_for_worker(info):
        died = "the worker that had it died, and " * (info.status == "running")
        yield f"{worker_command()}  ({died}nobody serves {clean(waits.removeprefix('worker:'))})"
    elif info.status in ("pending", "running") or (info.status == "waiting" and not waits):
        yield f"limpet log {info.id} --follow"
    elif info.status in ("completed", "cancelled"):
        yield f"limpet log {info.id}"
    yield from (f"limpet show {each.removeprefix('run:')}" for each in waits.split(", ") if each.startswith("run:"))


def print_unserved(run: RunInfo) -> None:
    """Say of a run that could go on that no live worker serves it, if that is so."""
    if waits_for_worker(run):
        print_text(f"no live worker serves {run.agent} {run.version}: it goes on when one does")
        print_text(f"next: {worker_command()}")
