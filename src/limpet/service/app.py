"""The app: the public API to start, control and inspect runs of one store. With agents, it also runs a worker."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack, overload

import msgspec
from msgspec import UNSET

from limpet.arguments import checked
from limpet.clock import Duration, microseconds, to_microseconds
from limpet.engine.definitions.agents import Agent, check_agent
from limpet.engine.definitions.contracts import find_agent, save_contracts
from limpet.engine.execution.handle import Handle, Result
from limpet.engine.execution.views import EventView, Request
from limpet.engine.run.children import creation
from limpet.engine.run.conversation import CHAT
from limpet.engine.worker.change_listener import GONE, ChangeListener, Subscription
from limpet.engine.worker.worker import Worker, WorkerLoop
from limpet.errors import (
    ContractError,
    InvalidArgument,
    NoStore,
    NotDone,
    RunCancelled,
    RunFailed,
    not_open,
)
from limpet.events import Constraints, Effects, Outside, Payload, StatePatch
from limpet.events import bodies as b
from limpet.ids import check_id
from limpet.policy.retention import KeepRule
from limpet.service.archives import MAX_BYTES
from limpet.service.bundles import export_run, load_run
from limpet.service.files import file_errors
from limpet.service.fork import ForkOptions, make_fork, plan_fork
from limpet.service.notifier import notifier
from limpet.service.once import agent_of, create_once
from limpet.service.prune import Pruned, prune, rotate
from limpet.service.queries import check_last, check_status
from limpet.service.read_api import ReadApi
from limpet.service.replay import Replay, ReplayCheck, ReplayOptions, check, replay
from limpet.service.resolve import each_run, run_of
from limpet.service.settings import Settings
from limpet.service.views import Ended, event_views, read_end
from limpet.state import ENDED
from limpet.stores import Appended, Create, RunFilter, RunRow, Store, Taken
from limpet.stores.blobs import INLINE, MESSAGE_INLINE, Blob
from limpet.stores.store import LARGEST_PAGE

__all__ = ["App", "RunOptions", "StartOptions"]

log = logging.getLogger("limpet")

T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")


class RunOptions(TypedDict, total=False):
    """Options of a new run."""

    id: str | None
    """Run id. Starting the same agent and input again with this id returns the existing run. Random by default."""
    session: str | None
    user: str | None
    conversation: str | None
    """Id of the conversation that the run takes part in; an input that is text is added to it as a message."""
    labels: Mapping[str, str] | None
    constraints: Mapping[str, Any] | None
    """Restrictions on what the agent may do without a person, such as `human_in_the_loop`."""


class StartOptions(RunOptions, total=False):
    """Options of a new run, and its start time."""

    at: datetime | Duration | None
    """A datetime with a time zone, or the delay before the run starts. The default is now."""


@checked
class App(ReadApi):
    """Start, control and inspect the runs of one store.

    Created by `limpet.open`. Use it with `async with`, or `await` it and call `close()`.
    """

    def __init__(self, settings: Settings, agents: Sequence[Agent[Any, Any]] = ()) -> None:
        for each in agents:
            check_agent(each)
        super().__init__(settings, {each.name: each for each in agents}, self._send)
        self._all = tuple(agents)
        self._worker_loop: WorkerLoop | None = None
        self._listener: ChangeListener | None = None
        self._listener_task: asyncio.Task[None] | None = None

    def replace(
        self,
        *,
        worker: Worker | None = None,
        store: Store | None = None,
        url: str | None = None,
        interface: str | None = None,
        idle: bool = False,
        creates_store: bool = True,
    ) -> "App":
        """Return a copy of this app that is not open, with some settings replaced.

        `worker` also lets an app without a worker have one; `idle` removes it. `store` and `url` name another store.
        `interface` is recorded with each decision. With `creates_store=False`, opening raises NoStore where no store
        exists, and writes no contracts.
        """
        settings = copy(self._settings)
        settings.worker = None if idle else worker or settings.worker
        settings.store, settings.url = store or settings.store, url or settings.url
        settings.store.redaction = self.store.redaction
        settings.interface, settings.creates_store = (
            interface or settings.interface,
            creates_store and settings.creates_store,
        )
        return App(settings, self._all)

    @property
    def is_open(self) -> bool:
        """Whether the app is open."""
        return self._listener_task is not None

    @property
    def serves(self) -> tuple[Agent[Any, Any], ...]:
        """The agents that the app was created with."""
        return self._all

    # Open and close

    def _check_open(self) -> ChangeListener:
        if self._listener is None:
            raise not_open()
        return self._listener

    async def open(self) -> Self:
        """Open the store. With agents, start a worker and claim runs that an earlier process left."""
        if not self._settings.creates_store:
            await self._check_store_exists()
        await self.store.open()
        try:
            self._time.sync(await self.store.now())
            is_working = self._settings.worker is not None
            if self._settings.creates_store:  # An app that only reads writes nothing.
                await save_contracts(self.store, self._all, served=is_working)
            self._listener = ChangeListener(self.store, self._settings.clock, self._settings.listen_interval)
            self._listener_task = asyncio.create_task(self._listener.run(), name="limpet:change-listener")
            if (self._all or self._settings.channels) and self._settings.worker is not None:
                await self._start_worker(self._settings.worker)
        except BaseException:
            await self.close()
            raise
        return self

    async def _check_store_exists(self) -> None:
        exists = False
        try:
            exists = await self.store.exists()
        finally:
            if not exists:
                await self.store.close()
        if not exists:
            raise NoStore(url=self._settings.url)

    async def _start_worker(self, worker: Worker) -> None:
        assert self._listener is not None
        notifiers = [notifier(self.store, self._settings.clock, *each) for each in self._settings.channels.items()]
        self._worker_loop = self._settings.worker_loop([*self._all, *notifiers], worker, self._time, self)
        found = await self._worker_loop.start(self._listener)
        names = ", ".join(sorted(self._agents))
        log.info("worker %s: serving %s; resuming %d runs", self._worker_loop.id, names, found)

    async def close(self) -> None:
        """Wait for running effects within the worker's grace period, release its runs, and close the store."""
        if self._worker_loop is not None:
            await self._worker_loop.stop()
            self._worker_loop = None
        if self._listener_task is not None:
            self._listener_task.cancel()
            self._listener_task = None
        await self.store.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    # Start runs

    @overload
    async def run(self, agent: Agent[None, Out], /, **how: Unpack[RunOptions]) -> Out: ...

    @overload
    async def run(self, agent: Agent[In, Out], input: In, /, **how: Unpack[RunOptions]) -> Out: ...

    async def run(self, agent: Agent[Any, Any], input: Any = None, /, **how: Unpack[RunOptions]) -> Any:
        """Start a run, wait for it, and return its result. If a run with this id exists, wait for that one.

        Raises RunFailed or RunCancelled, and IdConflict if the existing run has another agent or input.
        """
        handle = await self.start(agent, input, **how)
        return await handle.result()

    @overload
    async def start(self, agent: Agent[None, Out], /, **how: Unpack[StartOptions]) -> Handle[Out]: ...

    @overload
    async def start(self, agent: Agent[In, Out], input: In, /, **how: Unpack[StartOptions]) -> Handle[Out]: ...

    @overload
    async def start(self, agent: str, input: Any = None, /, **how: Unpack[StartOptions]) -> Handle[Any]: ...

    async def start(
        self, agent: Agent[Any, Any] | str, input: Any = None, /, **how: Unpack[StartOptions]
    ) -> Handle[Any]:
        """Start a run and return a handle, without waiting for it.

        If a run with this id exists for the same agent and input, return a handle on it; otherwise it raises
        IdConflict. `agent` may be the name of an agent that other workers serve; then `input` is plain JSON.
        """
        self._check_open()
        for name in how.keys() - StartOptions.__annotations__:
            raise InvalidArgument(
                path=name, reason=f"unknown option; allowed: {', '.join(StartOptions.__annotations__)}"
            )
        if isinstance(agent, str):
            known = self._agents.get(agent) or await find_agent(self.store, agent)
            plain = known.dump_json(input)
        else:
            check_agent(agent)
            known, plain = agent, agent.dump_input(input)
        redaction = self.store.redaction
        plain = redaction.value(plain)
        packed, blobs = self.store.pack(plain, inline=MESSAGE_INLINE if how.get("conversation") else INLINE)
        begins = await self._start_time(how.get("at"))
        deadline = known.rules.deadline
        more = {name: how.get(name) for name in ("session", "user", "conversation")}
        body = creation(
            known,
            packed,
            deadline=None if deadline is None else (begins or self._time.now()) + deadline,
            initial=_initial(known, how.get("constraints")),
            more={**more, "labels": redaction.value(dict(how.get("labels") or {})), "start_at": begins},
        )
        run = await self._new_run_id(how.get("id"), how.get("conversation"))

        def alike(stored: Payload) -> bool:
            if not stored.is_inline:
                return False
            return bool(known.dump_input(known.input_codec.load(stored.value(), stored.versions)) == plain)

        await self._create(run, body, plain, alike, blobs)
        if self._worker_loop is not None:
            self._worker_loop.wake()
        return Handle(self, run, known)

    async def _new_run_id(self, id: str | None, conversation: str | None) -> str:
        """Return the id for a new run. Runs and conversations share one namespace."""
        run = self._settings.ids.new() if id is None else check_id(id)
        if run == conversation or run.endswith(CHAT):
            reason = f"{run!r} is a conversation's id; a run needs another id, which does not end with {CHAT}"
            raise InvalidArgument(path="id", reason=reason)
        if conversation is not None:
            await self._conversations.exists(conversation)
        return run

    async def _create(self, run: str, body: b.RunCreated, plain: Any, alike: Any, blobs: Sequence[Blob]) -> None:
        """Create a run. If it starts in a conversation with a text, also append the text there, in the same write."""
        if body.conversation is None or not isinstance(plain, str):
            await self.store.create(run, body, actor=self._actor, alike=alike, blobs=blobs)
            return
        check_id(body.conversation)
        while True:
            owner = {"session": body.session, "user": body.user}
            said, more = await self._conversations.first_message(body.conversation, plain, run, self._actor, **owner)
            created = Create(run=run, bodies=(body,), actor=self._actor)
            done = await self.store.append(created, said, blobs=(*blobs, *more))
            if isinstance(done, Taken) and done.row.id == run:
                await self.store.create(run, body, actor=self._actor, alike=alike)  # raises IdConflict
                return
            if isinstance(done, Appended):
                return

    async def _start_time(self, at: datetime | Duration | None) -> int | None:
        if at is None:
            return None
        if isinstance(at, datetime):
            return to_microseconds(at, "at")
        return await self.store.now() + microseconds(at)

    @overload
    async def get(self, run: str, agent: Agent[Any, Out], /) -> Handle[Out]: ...

    @overload
    async def get(self, run: str, /) -> Handle[Any]: ...

    async def get(self, run: str, agent: Agent[Any, Any] | None = None, /) -> Handle[Any]:
        """Return a handle on an existing run. With `agent`, its result has that agent's output type."""
        row = await run_of(self.store, run)
        return Handle(self, run, agent or self._find_code(row.agent, row.agent_version))

    async def once(self, key: str, fn: Callable[[], Awaitable[T]], /) -> T:
        """Call `fn` once for a key and record its result; later calls with the same key return that result.

        Use this in a server that has to handle repeated requests with an idempotency key. If the process dies during
        the call, the next `once` with the same key calls `fn` again.
        """
        listener = self._check_open()
        created = await create_once(self._settings, key)
        if created.status not in ENDED:
            loop = self._settings.worker_loop([agent_of(key, fn)], self._settings.worker or Worker(), self._time, self)
            await loop.start(listener)
            try:
                await self._wait_until_ended(key, None)
            finally:
                await loop.stop()
        result: T = (await self._outcome(key)).value
        return result

    # Control runs

    async def resume(self, run: str, /) -> Handle[Any]:
        """Continue a paused run, or a failed one from its failed step. A completed run is left unchanged."""
        row = await run_of(self.store, run)
        if row.status != "completed":
            await self._send(run, b.ResumeRequested(command=self._settings.ids.new()))
        return Handle(self, run, self._find_code(row.agent, row.agent_version))

    async def pause(self, run: str, /) -> None:
        """Pause a run until it is resumed. Running effects finish first."""
        await run_of(self.store, run)
        await self._send(run, b.PauseRequested(command=self._settings.ids.new()))

    async def cancel(self, run: str, /, *, reason: str) -> None:
        """Cancel a run and the runs that it called. Running effects finish; steps with a compensation are undone."""
        await run_of(self.store, run)
        reason = self.store.redaction.text(reason)
        await self._send(run, b.CancelRequested(command=self._settings.ids.new(), reason=reason))

    async def signal(self, run: str, name: str, value: object, /) -> None:
        """Send a value to a run, which `run.receive(name)` returns. Each value is delivered once, in order."""
        await run_of(self.store, run)
        packed, blobs = self.store.pack(value)
        body = b.SignalReceived(command=self._settings.ids.new(), signal=name, value=packed)
        await self._send(run, body, blobs=blobs)

    async def _send(self, run: str, *bodies: Any, blobs: Any = (), judged: tuple[str, ...] | None = None) -> None:
        self._check_open()
        await self.store.send_commands(run, *bodies, actor=self._actor, blobs=blobs, judged=judged)
        if self._worker_loop is not None:
            self._worker_loop.wake()

    # Conversations

    async def say(self, conversation: str, text: str, /, *, interrupt: bool = False) -> str | None:
        """Add a user message to a conversation, and return the id of the run that receives it.

        If no run is active there, the message is stored for the next one, and None is returned. With `interrupt`, an
        LLM agent ends its turn after the steps that are running.
        """
        return await self._conversations.say(conversation, text, actor=self._actor, interrupt=interrupt)

    # Requests

    async def answer(self, request: str | Request, answer: object, /, *, by: str) -> None:
        """Answer a request. The answer must match what the request asks for. The first answer is final."""
        await self._inbox.answer(request, answer, by)

    async def approve(
        self, request: str | Request, /, *, by: str, args: Mapping[str, Any] | None = None, standing: bool = False
    ) -> None:
        """Approve a request, once.

        `args` replaces some of the tool's arguments. `standing=True` also approves further calls of this tool in this
        run, until `revoke`.
        """
        await self._inbox.approve(request, by, args, standing=standing)

    async def reject(self, request: str | Request, /, *, by: str, because: str) -> None:
        """Reject a request, with a reason."""
        await self._inbox.reject(request, by, because)

    async def revoke(self, run: str, grant: str, /, *, by: str, because: str = "") -> None:
        """Revoke a standing approval: the next call of its tool asks again."""
        await self._inbox.revoke(run, grant, by, because)

    # Fork and replay

    async def fork(  # noqa: PLR0913 - keyword-only
        self,
        run: str,
        /,
        *,
        at: int | None = None,
        seq: int | None = None,
        patch: Mapping[str, Any] | None = None,
        results: Mapping[int, Any] | None = None,
        effects: Effects = "ask",
        reads: Literal["live"] | None = None,
        model: Literal["live"] | None = None,
        input: Any = ...,
        version: str | None = None,
        id: str | None = None,
    ) -> Handle[Any]:
        """Start a new run that shares the events of another run up to a point, and continues from there on its own.

        The original run does not change. `at` is the first step that is not shared; `seq` is the last event that is
        shared (to open a request again, for example). `patch` changes the state (as for `run.patch`), `results`
        replaces results of shared steps by number, `input` and `version` replace the input and the agent's version.

        `effects` controls the effects of the fork: `"ask"` asks a person before each one, `"live"` executes them, and
        `"stub"` makes no external calls. In a stubbed fork, a tool returns what the original run got from the same
        call, or a sample of its type, and a model call parks the fork; `reads="live"` allows external sources and tools
        without an effect, and `model="live"` allows model calls.
        """
        row = await run_of(self.store, run)
        agent = self._find_code(row.agent, version or row.agent_version)
        more = {"patch": patch or {}, "results": results or {}, "input": input}
        modes: Mapping[Outside, str | None] = {"reads": reads, "model": model}
        live = tuple(outside for outside, mode in modes.items() if mode == "live")
        options = ForkOptions(at=at, seq=seq, effects=effects, live=live, version=version, **more)
        body, blobs = await plan_fork(self.store, row, agent, options, self._time.now())
        name = await make_fork(self.store, run, body, blobs, actor=self._actor, id=id)
        if self._worker_loop is not None:
            self._worker_loop.wake()
        return Handle(self, name, agent)

    async def replay(
        self,
        run: str,
        /,
        *,
        to: int | None = None,
        allow: Collection[str] = (),
        on_step: Callable[[int], object] | None = None,
    ) -> Replay:
        """Replay a run in memory with the current code, up to the end of step `to`, or to the end of its log.

        Nothing is written. Recorded calls return their recorded results; other calls are not made, unless `allow` names
        their tool. `on_step` is called with the number of each step when the code reaches it.
        """
        agent = self._require_code(await run_of(self.store, run))
        return await replay(self.store, run, agent, self, to, ReplayOptions(allow, on_step))

    async def replay_all(
        self, *, agent: str | None = None, last: int = 100, status: Sequence[str] = ()
    ) -> AsyncIterator[ReplayCheck]:
        """Replay the newest runs of the app's agents with the current code, and yield whether each still matches its
        log.

        Use this before a deployment. It makes no calls and writes nothing. `last` is the maximum number of runs per
        agent; `agent` and `status` limit the check to one agent or to some statuses.
        """
        check_last(last)
        for each in status:
            check_status(each)
        for name in [agent] if agent is not None else list(self._agents):
            left, where = last, RunFilter(agent=name, status=tuple(status))
            async for row in each_run(self.store, where, page=min(last, LARGEST_PAGE)):
                yield await check(self.store, row.id, self._require_code(row), self)
                if (left := left - 1) == 0:
                    break

    def _find_code(self, name: str, version: str) -> Agent[Any, Any] | None:
        """Return the code for a version of an agent: exactly this version, else one that accepts it, else the last one
        given.
        """
        serving = [each for each in self._all if each.name == name]
        exact = [each for each in serving if each.version == version]
        fitting = [each for each in serving if version in each.rules.accepts]
        return next(iter(exact or fitting or serving[::-1]), None)

    def _require_code(self, row: RunRow) -> Agent[Any, Any]:
        """Return the current code of a run's agent."""
        found = self._find_code(row.agent, row.agent_version)
        if found is None:
            reason = f"the code of {row.agent} is required: limpet.open(..., agents=[...]), or --app MODULE:ATTRIBUTE"
            raise InvalidArgument(path="agents", reason=reason)
        return found

    # Export and delete

    async def export(self, run: str, path: str | Path, /) -> None:
        """Write a run to a file that people can read, and that `load` imports into another store."""
        with file_errors(path) as file:
            await export_run(self.store, run, file)

    async def load(self, path: str | Path, /, *, max_bytes: int = MAX_BYTES) -> Handle[Any]:
        """Import a run from a file. A run that has not ended continues when it is resumed.

        The file is read into memory as a whole: one that would unpack to more than `max_bytes` (1 GiB) is rejected.
        """
        with file_errors(path) as file:
            row = await load_run(self.store, file, self._actor, max_bytes)
        return Handle(self, row.id, self._find_code(row.agent, row.agent_version))

    async def prune(
        self,
        *,
        older_than: Duration,
        dry_run: bool = True,
        by_status: Mapping[str, Duration | None] | None = None,
        by_agent: Mapping[str, Duration | None] | None = None,
        archive: str | Path | None = None,
        snapshots: int | None = None,
    ) -> Pruned:
        """Delete runs that ended longer ago than `older_than`. With `dry_run`, only report them.

        `by_status` and `by_agent` set another age for some runs; None keeps them forever. Runs that belong together (a
        fork and its origin, a caller and the runs it called) are deleted together or not at all. With `archive`, a
        folder, each run is exported there first. `snapshots` is the number of snapshots to keep per run.
        """
        rule = KeepRule(older_than=older_than, by_status=by_status, by_agent=by_agent)
        with nullcontext() if archive is None else file_errors(archive) as folder:
            done = await prune(self.store, rule, dry_run=dry_run, archive=folder)
        if snapshots is not None and not dry_run:
            done.snapshots = await rotate(self.store, keep=snapshots, older_than=older_than)
        return done

    # For handles

    async def result(self, run: str, timeout: Duration | None) -> Result:
        """Wait until a run has ended, and return its result. Raises RunFailed, RunCancelled, or NotDone after the
        timeout.
        """
        ended = await read_end(self.store, run)
        if ended is None:
            await self._wait_until_ended(run, timeout)
        return await self._outcome(run, ended)

    async def _outcome(self, run: str, ended: Ended | None = None) -> Result:
        match ended or await read_end(self.store, run):
            case b.RunCompleted(output=output):
                return Result(await self.store.unpack(output), output.versions)
            case b.RunFailed(failure=failure, number=step):
                raise RunFailed(
                    run=run,
                    error_type=failure.type,
                    message=failure.message,
                    step=step,
                    error_types=failure.mro,
                )
            case b.RunCancelled(reason=reason):
                raise RunCancelled(run=run, reason=reason)
            case None:
                raise NotDone(run=run, status=(await self.store.get(run)).status)

    async def _wait_until_ended(self, run: str, timeout: Duration | None) -> None:
        listener = self._check_open()
        ended = asyncio.Event()
        loop = self._worker_loop
        subscription = Subscription(
            run,
            lambda: None if loop is not None and loop.is_driving(run) else 0,
            lambda place: ended.set() if place is GONE or place.status in ENDED else None,
        )
        cancel_timer = None if timeout is None else self._settings.clock.call_later(microseconds(timeout), ended.set)
        listener.subscribe(subscription)
        try:
            await ended.wait()
        finally:
            listener.unsubscribe(subscription)
            if cancel_timer is not None:
                cancel_timer()

    async def events(self, run: str, after: int = 0, *, follow: bool = True) -> AsyncIterator[EventView]:
        """Yield the events of a run until it has ended. Without `follow`, only yield those that exist now."""
        grown = asyncio.Event()
        subscription = Subscription(run, lambda: after, lambda _: grown.set())
        if follow and self._listener is not None:
            self._listener.subscribe(subscription)
        try:
            while True:
                row = await self.store.get(run)
                async for event in self.store.log(run, after=after):
                    after = event.seq
                    [entry] = await event_views(self.store, [event])
                    yield entry
                if not follow or (row.status in ENDED and after >= row.seq):
                    return
                if after > row.seq:
                    continue  # The log grew after the row was read, and may have ended, which would not wake this wait.
                await grown.wait()
                grown.clear()
        finally:
            if self._listener is not None:
                self._listener.unsubscribe(subscription)

    @property
    def _actor(self) -> str:
        return self._worker_loop.id if self._worker_loop is not None else "app"


def _initial(agent: Agent[Any, Any], constraints: Mapping[str, Any] | None) -> StatePatch | None:
    """Return the initial state of a run: its budget and constraints."""
    limits = agent.rules.budget
    if limits is None and constraints is None:
        return None
    try:
        bound = UNSET if constraints is None else msgspec.convert(dict(constraints), Constraints)
    except msgspec.ValidationError as error:
        raise ContractError(agent=agent.name, what="constraints", reason=str(error)) from error
    return StatePatch(budget=UNSET if limits is None else limits, constraints=bound)
