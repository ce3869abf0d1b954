"""Print the results of operations for people: tables, reports and lines."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, get_args

from msgspec.structs import asdict

from limpet.cli.load_app import worker_command
from limpet.cli.output import TableLayout, about, clean, console, print_data, print_table, print_text
from limpet.cli.pages import next_commands, print_error, print_inbox, print_report, print_unserved
from limpet.cli.record_pages import RECORD_RENDERERS
from limpet.context.slice import ContextSlice, SliceMessage
from limpet.engine.execution.views import EventView, Request, RunInfo, RunInput, Status
from limpet.engine.run.conversation import Message
from limpet.errors import NotPermitted
from limpet.events import Fact
from limpet.redaction import hide_secrets_in
from limpet.service.activity import Activity, AgentActivity
from limpet.service.app import App
from limpet.service.conversations import CompactionInfo, ConversationInfo, SessionInfo
from limpet.service.error_records import ErrorInfo, frame_at
from limpet.service.family import Family, Relative
from limpet.service.inbox import Decided, GrantInfo
from limpet.service.page import Page
from limpet.service.pieces import ValuePiece
from limpet.service.precedents import Precedent
from limpet.service.queries import CallInfo, DecisionInfo
from limpet.service.report import Report
from limpet.service.request_records import RequestDecision, RequestRecord
from limpet.service.scores import ScoreInfo
from limpet.service.step_details import StepDetail
from limpet.service.steps import StepInfo, describe_failure, describe_step
from limpet.service.timeline import TimelineRow
from limpet.service.views import one_line, waits_for_operator, waits_for_worker
from limpet.service.workers import AgentInfo, Stats, WorkerInfo
from limpet.state import TaskRecord
from limpet.times import format_time

__all__ = ["DETAILS", "RENDERERS", "print_compaction", "print_decided", "run_after"]

Arguments = Mapping[str, Any]
Renderer = Callable[[Any, datetime, Arguments], None]
STATUSES = get_args(Status)
# Maximum length of shown arguments; the JSON has all.
LONGEST = 200


def _table(row: Callable[[Any, datetime], Mapping[str, str]], layout: TableLayout, *, none: str) -> Renderer:
    """Return a renderer that prints a page as a table."""

    def render(found: Page[Any], now: datetime, _: Arguments) -> None:
        print_table([row(each, now) for each in found], layout, none=none)
        if found.next is not None:
            print_text(f"more: --cursor {found.next}")

    return render


def _text(found: Any, _: datetime, __: Arguments) -> None:
    print_text(str(found))


def _event(each: EventView, now: datetime) -> dict[str, str]:
    return {
        "run": each.run,
        "event": str(each.seq),
        "age": about(now - each.time),
        "kind": each.kind,
        "content": one_line(each.body),
    }


def _decision(each: DecisionInfo, now: datetime) -> dict[str, str]:
    return {
        "run": each.run,
        "agent": each.agent,
        "age": about(now - each.time),
        "question": each.question,
        "chosen": str(each.chosen),
        "because": each.because,
    }


def _error(each: ErrorInfo, now: datetime) -> dict[str, str]:
    tries = f", attempt {each.attempt} of {each.attempts}" if each.attempts > 1 else ""
    return {
        "run": each.run,
        "age": about(now - each.time),
        "step": f"{each.name}{tries}",
        "error": describe_failure(each),
        "at": frame_at(each.traceback),
        "handled": each.handled,
    }


def _errors(found: Page[ErrorInfo], now: datetime, given: Arguments) -> None:
    """Print failures as a table; those of one run with their input and the user's code."""
    if given.get("run") is None:
        _ERROR_TABLE(found, now, given)
        return
    out = console()
    for each in found:
        place = "" if each.step is None else f", step {each.step}"
        out.print(clean(f"{about(now - each.time)} ago{place}: {describe_failure(each)}"), style="bold")
        print_error(each, out)
        out.print()
    print_text("no errors" if not found else "" if found.next is None else f"more: --cursor {found.next}")


def _call(each: CallInfo, now: datetime) -> dict[str, str]:
    made = each.decision
    return {
        "run": each.run,
        "step": str(each.step.number),
        "age": about(now - each.step.started),
        "call": _call_text(each.step),
        "status": each.step.status,
        "because": "" if made is None else f"{made.question} {made.chosen}: {made.because}",
    }


def _step(each: StepInfo, now: datetime) -> dict[str, str]:
    return {
        "step": str(each.number),
        "name": each.name,
        "status": each.status,
        "tries": str(each.attempt_count),
        "age": about(now - each.started),
        "call": clean(each.text),
    }


def _agent(each: AgentInfo, _: datetime) -> dict[str, str]:
    return {
        "agent": each.name,
        "version": each.version,
        "served": "yes" if each.is_served else "no",
        "takes": _form(each.contract.get("input")),
        "gives": _form(each.contract.get("output")),
    }


def _worker(each: WorkerInfo, now: datetime) -> dict[str, str]:
    return {
        "worker": each.id,
        "state": "live" if each.is_live else "dead",
        "started": about(now - each.started),
        "lease": format_time(each.lease_until),
        "engine": each.engine,
        "duties": ", ".join(
            f"{name}: {'running' if done is None else f'done {about(now - done)} ago'}"
            for name, done in each.duties.items()
        ),
        "serves": ", ".join(f"{name} {' '.join(versions)}" for name, versions in each.agents.items()),
    }


def _session(each: SessionInfo, now: datetime) -> dict[str, str]:
    return {
        "session": each.id,
        "runs": str(each.runs),
        "conversations": str(each.conversations),
        "age": about(now - each.updated),
    }


def _conversation(each: ConversationInfo, now: datetime) -> dict[str, str]:
    return {
        "conversation": each.id,
        "messages": str(each.messages),
        "age": about(now - each.updated),
        "session": each.session or "",
        "user": each.user or "",
        "fork of": each.fork_of or "",
    }


def _grant(each: GrantInfo, _: datetime) -> dict[str, str]:
    return {"grant": each.grant, "tool": each.tool or "", "risk": each.risk or "", "by": each.by}


def _inbox(found: Page[Request], now: datetime, _: Arguments) -> None:
    print_inbox(found, now)
    if found.next is not None:
        print_text(f"more: --cursor {found.next}")


def _request(found: RequestRecord, now: datetime, _: Arguments) -> None:
    print_inbox([found], now)
    print_text(_decision_text(found.decision))


def _decision_text(made: RequestDecision) -> str:
    """Return how a request was decided, in one line."""
    if made.decided is None:
        return f"request {made.request} is {made.status}"
    by = f" by {made.by}" if made.by else ""
    answer = "" if made.answer is None else f": {hide_secrets_in(made.answer)}"
    because = f": {made.because}" if made.because else ""
    return clean(f"request {made.request} {made.status}{by} at {format_time(made.decided)}{answer}{because}")


def _step_detail(found: StepDetail, _: datetime, __: Arguments) -> None:
    print_text(clean(describe_step(found)))
    for made in found.requests:
        print_text(_decision_text(made))
    if found.undo is not None and found.undo.error is not None:
        print_text(clean(f"compensation failed: {describe_failure(found.undo.error)}"))
    print_data(hide_secrets_in({"args": found.args, "result": found.result}))


def _value(found: ValuePiece, _: datetime, __: Arguments) -> None:
    print_text(found.text)
    if found.next is not None:
        print_text(f"more: --start {found.next}")


def _timeline_row(each: TimelineRow, now: datetime) -> dict[str, str]:
    return {
        "step": "" if each.number is None else str(each.number),
        "name": each.name,
        "status": each.spans[-1].how,
        "started": format_time(each.start),
        "took": about((each.end or now) - each.start, exact=True),
        "tries": str(sum(span.how != "waits" for span in each.spans)),
    }


def _lineage(found: Family, now: datetime, _: Arguments) -> None:
    print_table([_relative(each, now) for each in found.runs], RELATIVES, none="")
    if not found.is_complete:
        print_text("There are more runs than these.")


def _relative(each: Relative, now: datetime) -> dict[str, str]:
    return {
        "run": each.id,
        "agent": each.agent,
        "status": each.status,
        "age": about(now - each.created),
        "from": "" if each.source is None else f"{each.relation} of {each.source}",
    }


def _stats(found: Stats, _: datetime, __: Arguments) -> None:
    print_table(_counts(found), COUNTS, none="no runs")
    print_text(f"\nopen requests: {found.requests}, live workers: {found.workers}")
    if found.unserved:
        print_text(f"No live worker serves {', '.join(found.unserved)}.\nnext: {worker_command()}")


def _activity(found: Activity, now: datetime, _: Arguments) -> None:
    print_table([_agent_activity(each) for each in found.agents], ACTIVITY, none="no runs")
    since = "" if found.since is None else f" in {about(now - found.since)}"
    print_text(f"\n{found.runs} runs{since}: {found.ended} ended, {found.failed} of them failed")
    if found.oldest_request is not None:
        print_text(f"The oldest open request has waited for {about(now - found.oldest_request)}.")


def _agent_activity(each: AgentActivity) -> dict[str, str]:
    return {
        "agent": each.agent,
        "versions": " ".join(each.versions),
        "runs": str(each.runs),
        "failed": str(each.failed),
        "success": "" if each.success is None else f"{each.success:.1%}",
        "median": _seconds(each.median_seconds),
        "p95": _seconds(each.p95_seconds),
        "cost": f"{each.cost:.4g}",
        "cost p95": f"{each.p95_cost:.4g}",
    }


def _seconds(number: float | None) -> str:
    return "" if number is None else about(timedelta(seconds=number), exact=True)


def _precedent(each: Precedent, now: datetime) -> dict[str, str]:
    return {
        "run": each.run,
        "step": str(each.step),
        "call": each.step_status,
        "then": each.next,
        "run is": each.status,
        "age": about(now - each.time),
    }


def _context(found: ContextSlice, _: datetime, __: Arguments) -> None:
    print_text("\n".join(_lines(found)) or "no state yet")


def _messages(found: Page[Message], _: datetime, __: Arguments) -> None:
    if found.next is not None:
        print_text(f"older: --cursor {found.next}")
    if not found:
        print_text("no messages")
    run: str | None = None
    for each in found:
        if each.run is not None and each.run != run:
            run = each.run
            print_text(f"run {run}")
        print_text(f"{each.seq:>4}  {format_time(each.time)}  {_spoken(each)}")


def print_compaction(found: CompactionInfo | None) -> None:
    """Print which messages a summary replaced."""
    if found is None:
        print_text("Nothing was replaced: there are no older messages. Pass a smaller --keep.")
        return
    stay = f", except {found.kept}" if found.kept else ""
    print_text(f"A summary replaces messages {found.first} to {found.last} of {found.conversation}{stay}.")


def _spoken(message: Message) -> str:
    about = ", ".join(filter(None, (message.by, f"step {message.step}" if message.step is not None else "")))
    if message.is_summary:
        return f"summary{f' ({about})' if about else ''}: {message.text}"
    return _message(message.spoken(), about)


def _input(found: RunInput, _: datetime, __: Arguments) -> None:
    plain = hide_secrets_in(found.input)
    print_text(plain) if isinstance(plain, str) else print_data(plain)


def _resumed(run: RunInfo, _: datetime, __: Arguments) -> None:
    print_text(f"{run.id} has already completed." if run.status == "completed" else f"Resumed {run.id}.")
    print_unserved(run)


def _paused(run: RunInfo, _: datetime, __: Arguments) -> None:
    print_text(f"Pausing {run.id}; running effects finish first.\nnext: limpet resume {run.id}")


def _cancelled(run: RunInfo, _: datetime, __: Arguments) -> None:
    how = "running effects finish, and completed ones are compensated where possible."
    print_text(f"Cancelling {run.id}; {how}\nnext: limpet log {run.id} --follow")


def _moved(run: RunInfo, _: datetime, given: Arguments) -> None:
    print_text(f"{run.id} is driven by {clean(given['engine'])} from now on.")
    print_unserved(run)


def _signalled(run: RunInfo, _: datetime, given: Arguments) -> None:
    print_text(f"Sent {clean(given['name'])} to {run.id}.")
    print_unserved(run)


def _extended(run: RunInfo, _: datetime, __: Arguments) -> None:
    print_text(f"Extended {run.id}.")
    if run.status == "failed":
        print_text(f"next: limpet resume {run.id}")


def _patched(run: RunInfo, _: datetime, __: Arguments) -> None:
    print_text(f"Sent a patch to {run.id}, which applies it at its next turn.")
    print_unserved(run)


def _scored(score: ScoreInfo, _: datetime, __: Arguments) -> None:
    print_text(f"Scored {score.run}: {clean(score)}.")


def _withdrew(run: RunInfo, _: datetime, given: Arguments) -> None:
    print_text(f"Withdrew {clean(given['name'])} of {run.id}.")


def _task(found: TaskRecord, _: datetime, __: Arguments) -> None:
    width = max(map(len, found.__struct_fields__))
    for name, value in asdict(found).items():
        if value:
            print_text(f"{name:{width}}  {clean(value)}")


def _task_row(found: TaskRecord, _: datetime) -> dict[str, str]:
    return {name.replace("_", " "): clean(value) for name, value in asdict(found).items()}


def _started(found: Report, _: datetime, __: Arguments) -> None:
    run = found.run
    print_text(f"{run.id} is {run.status}")
    if waits_for_worker(run):
        print_text(f"No live worker serves {run.agent} {run.version}; the run starts when one does.")
    for each in (*next_commands(found), f"limpet show {run.id}"):
        print_text(f"next: {each}")


def _decided(found: tuple[Decided, RunInfo | None], _: datetime, given: Arguments) -> None:
    done, run = found
    print_decided(done, run, ", with all later calls of its tool in this run" * bool(given.get("standing")))


async def run_after(app: App, done: Decided) -> tuple[Decided, RunInfo | None]:
    """Return a decision, and its run, unless the caller may only decide."""
    try:
        return done, await app.info(done.run)
    except NotPermitted:
        return done, None


async def _report_of(app: App, run: RunInfo) -> Report:
    return await app.show(run.id)


def print_decided(found: Decided, run: RunInfo | None, more: str = "") -> None:
    """Print a decision, and whether its run lacks an operator or a worker."""
    print_text(f"Request {found.request} {found.decision} by {found.by}{more}.")
    if run is None:
        return
    if waits_for_operator(run):
        print_text(f"{run.id} needs an operator ({run.waits_text}).\nnext: limpet resume {run.id}")
    print_unserved(run)


def _call_text(step: StepInfo) -> str:
    """Describe a call in one line: a model by its name, a tool with its arguments."""
    args = hide_secrets_in(step.args)
    if step.kind == "model" and isinstance(args, dict) and isinstance(args.get("reference"), dict):
        args = args["reference"].get("model", "")
    shown = ", ".join(f"{name}={value!r}" for name, value in args.items()) if isinstance(args, dict) else str(args)
    return clean(f"{step.tool}({shown if len(shown) <= LONGEST else f'{shown[:LONGEST]}…'})")


def _counts(found: Stats) -> list[dict[str, str]]:
    """Return a row for each agent, and a total if there are several."""
    rows = [{"agent": agent, **{each: str(of.get(each, 0)) for each in STATUSES}} for agent, of in found.agents.items()]
    total = {"agent": "all", **{each: str(found.runs.get(each, 0)) for each in STATUSES}}
    return [*rows, total] if len(rows) > 1 else rows


def _form(schema: Any) -> str:
    """Return the title or type of a JSON Schema."""
    if not isinstance(schema, Mapping):
        return ""
    return str(schema.get("title") or schema.get("type") or "anything")


def _lines(found: ContextSlice) -> Iterator[str]:
    if found.goal:
        yield f"goal: {found.goal}"
    if found.status:
        yield f"status: {found.status}"
    if found.current_step:
        yield f"at: {found.current_step}"
    if found.plan:
        yield f"plan: {', '.join(found.plan)}"
    yield from map(_fact, found.facts)
    yield from (f"artifact {each.artifact_id}: {each.type}, {each.summary}" for each in found.artifacts)
    yield from (f"open question: {each}" for each in found.open_questions)
    yield from (f"flag: {each}" for each in found.risk_flags)
    yield from (_message(each) for each in found.messages)
    if found.left_out:
        yield f"left out: {', '.join(f'{count} {name}' for name, count in found.left_out.items())}"


def _message(message: SliceMessage, about: str = "") -> str:
    called = f" [calls {', '.join(message.calls)}]" if message.calls else ""
    who = " ".join(filter(None, (message.role, message.tool, f"({about})" if about else "")))
    return f"{who}: {message.text}{called}"


def _fact(fact: Fact) -> str:
    since = "" if fact.step is None else f" (step {fact.step})"
    return f"fact {fact.key} = {bytes(fact.value).decode()}{since}"


FOUND = TableLayout(narrow={"content": 20}, left_out=("age", "event"), wraps=("content",))
DECISIONS = TableLayout(
    narrow={"because": 20, "question": 10, "chosen": 8, "agent": 8},
    left_out=("agent", "age", "question"),
    wraps=("because", "question", "chosen"),
)
ERRORS = TableLayout(narrow={"error": 24, "step": 10, "at": 10}, left_out=("age", "at"), wraps=("error", "step"))
_ERROR_TABLE = _table(_error, ERRORS, none="no errors")
CALLS = TableLayout(
    narrow={"because": 18, "call": 18, "run": 12},
    left_out=("step", "age"),
    wraps=("because", "call"),
)
COUNTS = TableLayout(narrow={"agent": 8}, left_out=("cancelled", "pending"))
AGENTS = TableLayout(narrow={"gives": 6, "takes": 6}, left_out=("gives", "takes"))
WORKERS = TableLayout(narrow={"serves": 10, "duties": 10}, left_out=("started", "lease"), wraps=("serves", "duties"))
SESSIONS = TableLayout(narrow={}, left_out=("conversations",))
CONVERSATIONS = TableLayout(
    narrow={"fork of": 8, "session": 8, "user": 6}, left_out=("fork of", "age", "user", "session")
)
STEPS = TableLayout(narrow={"call": 20, "name": 12}, left_out=("age", "name", "tries"), wraps=("call",))
TIMELINE = TableLayout(narrow={"name": 12}, left_out=("tries", "started"), wraps=("name",))
RELATIVES = TableLayout(narrow={"from": 12, "agent": 8}, left_out=("age", "agent"), wraps=("from",))
TASKS = TableLayout(
    narrow={"user input": 12, "result": 10, "error": 10}, left_out=("updated at", "created at", "result", "error")
)
ACTIVITY = TableLayout(narrow={"agent": 8, "versions": 6}, left_out=("versions", "cost p95", "p95", "cost"))
PRECEDENTS = TableLayout(narrow={"then": 8, "run": 8}, left_out=("age", "step"))
GRANTS = TableLayout(narrow={"risk": 6}, left_out=("risk",))

RENDERERS: Mapping[str, Renderer] = {
    "show": lambda found, now, _: print_report(found, now),
    "input": _input,
    "task": _task,
    "tasks": _table(_task_row, TASKS, none="no runs"),
    "steps": _table(_step, STEPS, none="no steps"),
    "step": _step_detail,
    "value": _value,
    "timeline": _table(_timeline_row, TIMELINE, none="nothing has started yet"),
    "lineage": _lineage,
    "state": _text,
    "diff": _text,
    "compare": _text,
    "context": _context,
    "search": _table(_event, FOUND, none="no matching events"),
    "decisions": _table(_decision, DECISIONS, none="no decisions"),
    "errors": _errors,
    "calls": _table(_call, CALLS, none="no matching calls"),
    "agents": _table(_agent, AGENTS, none="no agents"),
    "workers": _table(_worker, WORKERS, none="no workers"),
    "stats": _stats,
    "activity": _activity,
    "inbox": _inbox,
    "request": _request,
    "precedents": _table(_precedent, PRECEDENTS, none="no such call in the agent's last 20 runs"),
    "grants": _table(_grant, GRANTS, none="no standing approvals"),
    "messages": _messages,
    "conversations": _table(_conversation, CONVERSATIONS, none="no conversations"),
    "sessions": _table(_session, SESSIONS, none="no sessions"),
    "resume": _resumed,
    "pause": _paused,
    "cancel": _cancelled,
    "move": _moved,
    "signal": _signalled,
    "extend": _extended,
    "patch": _patched,
    "score": _scored,
    "unscore": _withdrew,
    "start": _started,
    "approve": _decided,
    "reject": _decided,
    **RECORD_RENDERERS,
}
# What the text shows beyond the result of a command: how its run continues.
DETAILS: Mapping[str, Callable[[App, Any], Awaitable[Any]]] = {
    "start": _report_of,
    "approve": run_after,
    "reject": run_after,
}
