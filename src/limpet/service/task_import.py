"""Import tasks that another program kept, one row per task, as runs.

A task that has not ended becomes a run that a worker will do. An ended one becomes an ended run with its recorded
result or error. The times in the log are those of the import; the task's own state and times are a fact of the run.
Everything is checked before anything is written, each run is written in one transaction, and a task whose run exists is
left alone, so that an import can be repeated.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from limpet.engine.definitions.agents import Agent
from limpet.engine.run.children import creation
from limpet.engine.run.conversation import CHAT
from limpet.errors import ContractError, IdConflict, InvalidArgument, InvalidTasks, InvalidValue, NotFound
from limpet.events import START, AnyBody, Fact, Failure, Payload, StatePatch, canonical, seal
from limpet.events import bodies as b
from limpet.ids import check_id
from limpet.service.progress import progress
from limpet.stores import Store
from limpet.stores.foreign_tasks import is_database, read_file, read_server
from limpet.view import View

__all__ = ["ImportedTasks", "Importer", "Running", "read_tasks"]

Running = Literal["pending", "failed"]
"""The fate of a task that was running: a run that starts again, or a failed run."""
STATES = ("pending", "running", "completed", "failed")
# The fact with the task's state and times, and the label by which imported runs are found.
FACT, LABEL = "imported_task", {"imported": "task"}
INTERRUPTED = "the task was running when it was imported"
WORKER = "import"
# An earlier time means none, such as the zero time of Go.
FIRST_YEAR = 1970
_decoder = msgspec.json.Decoder()


class ImportedTasks(View, frozen=True, kw_only=True):
    """The tasks of an import, by id: which ones became runs, and which had a run before."""

    imported: list[str] = []
    existing: list[str] = []
    """Imported before; unchanged."""
    changed: list[str] = []
    """Imported before, and changed in the source since. Their runs are unchanged."""

    def __str__(self) -> str:
        lines = [f"tasks imported: {len(self.imported)}"]
        if self.existing:
            lines.append(f"imported before: {len(self.existing)}")
        if self.changed:
            names = ", ".join(self.changed[:20]) + (" …" if len(self.changed) > 20 else "")
            lines.append(f"changed since they were imported, and left alone: {names}")
        return "\n".join(lines)


class Task(NamedTuple):
    """A task as the other program kept it."""

    id: str
    user_input: Any
    state: str
    result: Any
    error: str
    created_at: str | None
    updated_at: str | None


class _Plan(NamedTuple):
    """The run of a task: its first body, and its last if the task has ended, with the values that they contain."""

    task: Task
    input: Any
    output: Any
    first: b.RunCreated


def read_tasks(source: str | Path) -> list[Task]:
    """Read tasks from a `tasks.json`, a SQLite file, or the URL of a database. Raises InvalidTasks."""
    text, rows = str(source), list[Any]()
    if text.startswith(("postgresql:", "postgres:")):
        rows = list(enumerate(read_server(text), 1))
    else:
        path = Path(text.removeprefix("sqlite:///"))
        is_table = text.startswith("sqlite:///") or is_database(path)
        rows = list(enumerate(read_file(path), 1)) if is_table else _read_json(path)
    problems, tasks = list[str](), list[Task]()
    for place, row in rows:
        try:
            tasks.append(_task(place, row))
        except _Refused as error:
            problems.append(str(error))
    twice = sorted(name for name, number in Counter(task.id for task in tasks).items() if number > 1)
    problems += [f"task {name}: its id occurs twice" for name in twice]
    if problems:
        raise InvalidTasks(path=_shown(source), problems=tuple(problems))
    return tasks


def _shown(source: str | Path) -> str:
    return "the database" if "@" in str(source) else str(source)


def _read_json(path: Path) -> list[tuple[object, Any]]:
    """Return the tasks of a JSON object by id, or of a list, each with its place."""
    try:
        found = _decoder.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidTasks(path=str(path), problems=(f"not JSON: {error}",)) from error
    if isinstance(found, dict):
        return list(found.items())
    if isinstance(found, list):
        return list(enumerate(found, 1))
    raise InvalidTasks(path=str(path), problems=("neither an object of tasks by id nor a list of tasks",))


class _Refused(Exception):
    """The task cannot be imported; the message names it and says why."""


def _task(place: object, row: Any) -> Task:
    """Return a row as a task. Raises _Refused."""
    if not isinstance(row, dict):
        raise _Refused(f"task {place}: not an object")
    name = _id(place, row.get("id", place if isinstance(place, str) else None))
    where, state, reason = f"task {name}", row.get("state"), row.get("error") or ""
    if state not in STATES:
        raise _Refused(f"{where}: state {state!r} is not one of {', '.join(STATES)}")
    if row.get("user_input") is None:
        raise _Refused(f"{where}: user_input is missing")
    if not isinstance(reason, str):
        raise _Refused(f"{where}: error is not text")
    created, updated = (_time(where, each, row.get(each)) for each in ("created_at", "updated_at"))
    return Task(name, row["user_input"], state, row.get("result"), reason, created, updated)


def _id(place: object, id: Any) -> str:
    """Return the id of a task at a place: its key in an object, or its number in a list."""
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise _Refused(f"task {place}: id is missing or not text")
    if isinstance(place, str) and str(id) != place:
        raise _Refused(f"task {place}: its id is {id}, but its key is {place}")
    try:
        name = check_id(str(id))
    except InvalidArgument as error:
        raise _Refused(f"task {place}: {error.summary.removesuffix('.')}") from error
    if name.endswith(CHAT):
        raise _Refused(f"task {name}: an id that ends with {CHAT} is a conversation's")
    return name


def _time(where: str, name: str, value: Any) -> str | None:
    """Return a time as ISO 8601 in UTC: from text, a datetime, or a number of seconds since 1970."""
    if value is None or value == "":
        return None
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = datetime.fromtimestamp(value, UTC)
        time = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise _Refused(f"{where}: {name} {value!r} is not a time") from error
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return None if time.year < FIRST_YEAR else time.isoformat().replace("+00:00", "Z")


class Importer:
    """Writes tasks as runs of one agent."""

    def __init__(
        self, store: Store, agent: Agent[Any, Any], *, running: Running, sender: Mapping[str, Any], engine: str = ""
    ) -> None:
        self._store, self._agent, self._running, self._sender, self._engine = store, agent, running, sender, engine

    async def run(self, source: str | Path) -> ImportedTasks:
        """Check all tasks, then write those that have no run yet."""
        done, plans, problems = ImportedTasks(), list[_Plan](), list[str]()
        for task in await asyncio.to_thread(read_tasks, source):
            try:
                plan = self._plan(task)
                if not await self._sort(plan, done):
                    plans.append(plan)
            except (ContractError, IdConflict, InvalidValue) as error:
                problems.append(f"task {task.id}: {error.summary.removesuffix('.')}")
        if problems:
            raise InvalidTasks(path=_shown(source), problems=tuple(problems))
        for number, plan in enumerate(plans, 1):
            progress(number, len(plans))
            await self._write(plan, done)
        return done

    def _plan(self, task: Task) -> _Plan:
        """Return the run of a task. Raises if its input or result does not fit the agent."""
        if task.state == "running":
            task = task._replace(error=task.error or INTERRUPTED)
        input = _fitting(self._agent.dump_json, task.user_input)
        output = _fitting(self._agent.load_output, task.result or "") if task.state == "completed" else None
        known = {"state": task.state, "created_at": task.created_at, "updated_at": task.updated_at}
        limits = self._agent.rules.budget
        initial = StatePatch(facts=(Fact(key=FACT, value=Raw(canonical(known)), source=WORKER),))
        body = creation(
            self._agent,
            self._store.pack(input)[0],
            deadline=None,
            initial=initial if limits is None else replace(initial, budget=limits),
            more={"labels": LABEL, "engine": self._engine, **self._sender},
        )
        return _Plan(task, input, output, body)

    async def _sort(self, plan: _Plan, done: ImportedTasks) -> bool:
        """Return whether the task's run exists, and record how. Raises IdConflict if it is another run."""
        try:
            [first] = await self._store.read(plan.task.id, limit=1)
        except NotFound:
            return False
        body = self._store.decode(first)
        facts = _facts(body)
        if not facts or not isinstance(body, b.RunCreated) or body.agent != plan.first.agent:
            raise IdConflict(what="run", id=plan.task.id, reason="by a run that was not imported from a task")
        is_same = facts == _facts(plan.first) and body.input == plan.first.input
        (done.existing if is_same else done.changed).append(plan.task.id)
        return True

    async def _write(self, plan: _Plan, done: ImportedTasks) -> None:
        """Write the run of a task in one transaction. Another process may be importing the same task."""
        with suppress(IdConflict):
            last = await self._last(plan)
            if last is None:
                await self._create(plan)
            else:
                await self._load(plan, last)
            done.imported.append(plan.task.id)
            return
        await self._sort(plan, done)

    async def _create(self, plan: _Plan) -> None:
        body, blobs = plan.first, self._store.pack(plan.input)[1]
        if (age := self._agent.rules.deadline) is not None:
            body = replace(body, deadline=await self._store.now() + age)
        await self._store.create(plan.task.id, body, actor=WORKER, blobs=blobs)

    async def _last(self, plan: _Plan) -> AnyBody | None:
        """Return the last event of an ended task; None if a worker has to do it."""
        state = self._running if plan.task.state == "running" else plan.task.state
        match state:
            case "completed":
                return b.RunCompleted(output=(await self._stored(plan.output)).under(self._agent.output_codec.versions))
            case "failed":
                return b.RunFailed(failure=Failure(type="ImportedTaskFailed", message=plan.task.error))
            case _:
                return None

    async def _load(self, plan: _Plan, last: AnyBody) -> None:
        """Load the log of an ended run, as if the importing process had been its worker."""
        await self._stored(plan.input)
        run, time, head, events = plan.task.id, await self._store.now(), START, list[Any]()
        for fence, body in enumerate((plan.first, b.RunClaimed(worker=WORKER), last)):
            sealed = seal(head, run, body, time=time, fence=min(fence, 1), actor=WORKER, codec=self._store.codec)
            events.append(sealed.event)
            head = sealed.event.head
        await self._store.load(events, actor=WORKER)

    async def _stored(self, value: Any) -> Payload:
        """Return a value as a payload whose blob, if it needs one, is stored."""
        packed, blobs = self._store.pack(value)
        return await self._store.put_blob(canonical(self._store.redaction.value(value))) if blobs else packed


def _facts(body: AnyBody) -> Sequence[Fact]:
    """Return the fact that marks an imported run."""
    initial = body.initial if isinstance(body, b.RunCreated) else None
    facts: Iterable[Fact] = () if initial is None else initial.facts
    return [each for each in facts if each.key == FACT]


def _fitting(check: Any, value: Any) -> Any:
    """Return a value that fits, or the JSON in a text that does."""
    try:
        return _plain(check, value)
    except ContractError:
        if not isinstance(value, str):
            raise
        try:
            parsed = _decoder.decode(value.encode())
        except (msgspec.DecodeError, UnicodeEncodeError):
            parsed = value
        return _plain(check, parsed)


def _plain(check: Any, value: Any) -> Any:
    check(value)
    return value
