"""Pages for people: the list of runs, the inbox, and the report of a run (`limpet show`)."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from limpet.cli.load_app import worker_command
from limpet.cli.output import TableLayout, about, clean, console, fit_table, print_pairs, print_text, until
from limpet.cli.waterfall import waterfall
from limpet.engine.execution.views import Request, RunInfo
from limpet.redaction import hide_secrets_in
from limpet.service.error_records import ErrorInfo, frame_lines
from limpet.service.report import CommandInfo, Report
from limpet.service.steps import call_text, describe_failure, short
from limpet.service.views import waiting_patches, waits_for_operator, waits_for_worker
from limpet.service.wait_notices import decision_commands
from limpet.times import format_time

__all__ = [
    "next_commands",
    "print_error",
    "print_inbox",
    "print_report",
    "print_runs",
    "print_unserved",
    "question_of",
    "runs_table",
]

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


# Number of steps and decisions shown with a request.
SHOWN = 8
RUNS = TableLayout(
    narrow={"goal": 8, "agent": 8, "age": 3, "waits for": 10, "position": 11},
    left_out=("goal", "agent", "age", "waits for", "position"),
)


def print_runs(runs: Sequence[RunInfo], now: datetime) -> None:
    """Print a table of runs, newest first."""
    out = console()
    out.print(runs_table(runs, now, out.width) if runs else "no runs")


def runs_table(runs: Sequence[RunInfo], now: datetime, width: int) -> "Table":
    """Return a table of runs. A narrow one drops columns; ids are never truncated."""
    return fit_table([_row(run, now) for run in runs], width, RUNS)


def _row(run: RunInfo, now: datetime) -> dict[str, str]:
    return {
        "run": run.id,
        "agent": f"{run.agent} {run.version}",
        "status": run.status,
        "position": run.position.text,
        "age": about(now - run.updated),
        "waits for": run.waits_text,
        "goal": run.goal,
    }


def print_inbox(requests: Sequence[Request], now: datetime) -> None:
    """Print each request with its context and the consequence of each answer."""
    out = console()
    for request in requests:
        out.print(question_of(request), style="bold")
        print_pairs(out, ((f"  {name}", value) for name, value in _details(request, now)))
        for command in decision_commands(request):
            out.print(f"  next: {command}", soft_wrap=True)
        out.print()
    if not requests:
        out.print("no open requests")


def _details(request: Request, now: datetime) -> Iterator[tuple[str, str]]:
    yield "request", f"{request.id}, {about(now - request.opened)} old"
    yield "to", f"{', '.join(request.to)}{until(request.expires)}"
    found = request.context
    if found is None:
        return
    yield "run", f"{request.run} of {found.agent}" + (f": {found.goal}" if found.goal else "")
    yield "input", found.input
    yield "why", found.why
    for step in found.steps[-SHOWN:]:
        yield (
            "did",
            f"{step.number} {step.tool}: {step.status} {step.error if step.status != 'completed' else step.result}",
        )
    for fact in found.facts[:SHOWN]:
        yield "knows", fact.text(now)
    for made in found.decisions[-SHOWN:]:
        yield "chose", f"{made.chosen} ({made.question}): {made.because}"
    if found.flags:
        yield "flags", ", ".join(found.flags)
    if found.spent:
        yield "spent", ", ".join(f"{name} {number:g}" for name, number in found.spent.items())
    for choice in found.choices:
        yield "answer", f"{choice.answer}: {choice.effect}"
    yield "if unanswered", found.if_unanswered


def question_of(request: Request) -> str:
    """Return the question, with the tool call it is about and the options."""
    args = ", ".join(f"{name}={value!r}" for name, value in hide_secrets_in(dict(request.args)).items())
    call = f" {request.tool}({args})" if request.tool else ""
    options = f" [{' | '.join(map(str, request.options))}]" if request.options else ""
    return clean(f"{request.question}{call}{options}")


# Number of newest decisions shown; `limpet state` has more.
DECISIONS = 5
# The command in a hint that lets a run continue that failed on its budget or deadline.
EXTEND = re.compile(r"`(limpet extend [^`]*)`")
# Commands that create a run, and what each of the others did.
CREATED = ("start", "fork")
CONTROLLED = {
    "pause": "paused",
    "resume": "resumed",
    "cancel": "cancelled",
    "extend": "extended",
    "patch": "patched",
    "move": "moved",
}


def print_report(report: Report, now: datetime) -> None:
    """Print a run on one page: status, timeline, decisions, requests, the last error, and the next command."""
    out = console()
    print_pairs(out, _facts(report))
    drawn = [*waterfall(report.steps, report.timeline, now, out, earlier=report.earlier_steps)]
    for line in ("", *drawn) if drawn else ():
        out.print(line, soft_wrap=True)
    made = [f"decided {each.question} {each.chosen}: {each.because}" for each in report.decisions[-DECISIONS:]]
    for text in ("", *made) if made else ():
        out.print(clean(text))
    for request in report.requests:
        where = "" if request.run == report.run.id else f" (in {request.run})"
        out.print(f"\nasks {question_of(request)}{where}")
        out.print(f"     {request.id}, to {', '.join(request.to)}{until(request.expires)}", soft_wrap=True)
        print_pairs(out, ((f"     {name}", value) for name, value in _consequences(request)))
    if report.error is not None and report.run.status != "completed":
        place = "" if report.error.step is None else f" (step {report.error.step})"
        out.print(f"\nlast error{place}: {clean(describe_failure(report.error))}")
        print_error(report.error, out)
    commands = [*next_commands(report)]
    if commands:
        out.print()
    for command in commands:
        out.print(f"next: {command}", soft_wrap=True)


def _consequences(request: Request) -> Iterator[tuple[str, str]]:
    """Return what each answer causes."""
    if request.context is not None:
        yield from ((choice.answer, choice.effect) for choice in request.context.choices)
        if request.expires is not None:
            yield "if unanswered", request.context.if_unanswered


def print_error(error: ErrorInfo, out: "Console") -> None:
    """Print the details of a failure: the call, the user's code, how it was handled, and what to do."""
    print_pairs(out, ((f"  {name}", value) for name, value in _error_details(error)))


def _error_details(error: ErrorInfo) -> Iterator[tuple[str, str]]:
    attempts = f", attempt {error.attempt} of {error.attempts}" if error.attempt and error.attempts > 1 else ""
    if error.step is not None:
        yield "in", f"{error.name}{attempts}"
    if error.tool:
        yield "call", call_text(error.tool, hide_secrets_in(error.input))
    elif error.input is not None:
        yield "input", short(str(hide_secrets_in(error.input)))
    if error.output is not None:
        yield "so far", short(str(hide_secrets_in(error.output)))
    for place, line in enumerate(frame_lines(error.traceback)):
        yield "" if place else "at", line
    yield "handled", "its outcome is unknown" if error.handled == "unknown" else error.handled
    if error.hint:
        yield "hint", error.hint


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    info = report.run
    yield "run", info.id
    yield "agent", f"{info.agent} {info.version}"
    yield "status", info.status
    yield "position", info.position.text
    if info.status == "completed" and report.failed_steps:
        count = f"{report.failed_steps} step{'s' * (report.failed_steps > 1)}"
        yield "failures", f"{count} failed, and the run continued: limpet errors --run {info.id}"
    if not report.is_served and info.status not in ("completed", "cancelled") and not waits_for_worker(info):
        yield "worker", f"no live worker serves {info.agent} {info.version}"
    wake = "" if waits_for_worker(info) else until(report.wake)
    more: dict[str, str | None] = {
        "engine": info.engine,
        "goal": info.goal,
        "input": report.input,
        "output": report.output,
    }
    since = "" if report.since is None else f" since {format_time(report.since)}"
    more |= {"waits for": f"{info.waits_text}{since}{wake}" if info.waits_for else "", "why": report.why}
    more |= {"resumes at": format_time(report.wake) if info.status == "pending" and report.wake is not None else None}
    more |= {"parent": info.parent, "fork of": info.fork_of, "user": info.user, "session": info.session}
    count = f"{report.messages} message{'s' * (report.messages > 1)}"
    more |= {"conversation": f"{info.conversation}, {count}" if report.messages else None}
    more |= {"labels": ", ".join(f"{name}={value}" for name, value in info.labels.items())}
    yield from ((name, value) for name, value in more.items() if value)
    if info.deadline is not None and info.status not in ("completed", "cancelled"):
        yield "deadline", format_time(info.deadline)
    for place, score in enumerate(report.scores):
        yield "" if place else "scores", str(score)
    if report.patches:
        yield "patches", waiting_patches(report.patches, info.status)
    created = [_sent(each) for each in report.commands if each.kind in CREATED]
    yield "created", "".join((format_time(info.created), *created))
    for each in report.commands:
        if each.kind not in CREATED:
            yield CONTROLLED[each.kind], f"{format_time(each.time)}{_sent(each)}"
    yield "ended" if info.ended else "updated", format_time(info.ended or info.updated)


def _sent(sent: CommandInfo) -> str:
    """Return who sent a command, through which interface, and why."""
    who = " by ".join(("", f"run {sent.by}" if sent.via == "run" else sent.by)) if sent.by else ""
    door = f" ({sent.via})" if sent.by and sent.via and sent.via != "run" else ""
    return f"{who}{door}{f': {sent.reason}' if sent.reason else ''}"


def next_commands(report: Report) -> Iterator[str]:
    """Return the commands to type next: to decide, resume, follow or inspect the run."""
    info = report.run
    for request in report.requests:
        yield from decision_commands(request)
    if info.status == "failed":
        yield from _after_failure(report)
    elif waits_for_operator(info):
        yield f"limpet resume {info.id}"
    elif waits_for_worker(info):
        died = "its worker died, and " * (info.status == "running")
        yield f"{worker_command(info.engine)}  ({died}no live worker serves {clean(info.waits_for[0].key)})"
    elif info.status in ("pending", "running") or (info.status == "waiting" and not info.waits_for):
        yield f"limpet log {info.id} --follow"
    elif info.status in ("completed", "cancelled"):
        yield f"limpet log {info.id}"
    yield from (f"limpet show {wait.key}" for wait in info.waits_for if wait.what == "run")
    yield from (f"limpet show {wait.key}  (it has the slot)" for wait in info.waits_for if wait.what == "slot")
    yield from (f"limpet signal {info.id} {wait.key} VALUE" for wait in info.waits_for if wait.what == "signal")
    if not report.is_served and info.status == "waiting" and not waits_for_worker(info):
        yield f"{worker_command(info.engine)}  (no live worker would continue the run)"


def _after_failure(report: Report) -> Iterator[str]:
    """Return the command that continues a failed run, and what must be done before it."""
    error, run = report.error, report.run.id
    extend = None if error is None else EXTEND.search(error.hint)
    if extend is not None and not _is_extended(report):
        yield f"{extend[1]}  (then: limpet resume {run})"
        return
    if error is not None and error.hint and "limpet resume" not in error.hint:
        yield f"limpet log {run}  (resuming would fail again; see the hint)"
    elif error is not None and error.type == "limpet.Rejected":
        yield f"limpet resume {run}  (asks again for what was rejected)"
    elif error is not None and error.tool:
        yield f"limpet resume {run}  (after fixing the cause: calls {clean(error.tool)} again)"
    else:
        yield f"limpet resume {run}  (after fixing the cause: settled steps are not repeated)"


def _is_extended(report: Report) -> bool:
    """Return whether the budget or deadline was extended since the run failed."""
    ended = report.run.ended
    return any(each.kind == "extend" and ended is not None and each.time >= ended for each in report.commands)


def print_unserved(run: RunInfo) -> None:
    """Print that no live worker serves the run, if that is so."""
    if waits_for_worker(run):
        print_text(f"No live worker serves {run.agent} {run.version}; the run continues when one does.")
        print_text(f"next: {worker_command(run.engine)}")
