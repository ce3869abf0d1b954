"""Say why a run waits, to a call that waits for its result."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpet.engine.execution.local_runs import LocalRun
from limpet.errors import LimpetError
from limpet.service.report import Report
from limpet.service.wait_notices import OperatorWait, operator_line, question_line, say_once, worker_line

if TYPE_CHECKING:
    from limpet.service.app import App

__all__ = ["announce_waits"]


async def announce_waits(app: "App", run: str, local: LocalRun) -> None:
    """Print what a run waits for, in lines on stderr, each once."""
    try:
        report = await app.show(run)
    except LimpetError:
        return  # The call that waits gets the error itself.
    for line in _lines(report):
        say_once(line, local)


def _lines(report: Report) -> Iterator[str]:
    run = report.run
    for wait in run.waits_for:
        if wait.what == "operator":
            yield operator_line(run.id, OperatorWait(key=wait.key, why=report.why or "", since=report.since))
        elif wait.what == "worker":
            yield worker_line(run.id, wait.key)
    for request in report.requests:  # also of the runs that it waits for
        yield question_line(request.run, request)
