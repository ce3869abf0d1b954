"""The app: the public API to start, control and inspect runs of one store. With agents, it also runs a worker."""

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Self, TypedDict, TypeVar, Unpack, overload

from limpet.arguments import checked
from limpet.clock import Duration, microseconds, to_microseconds
from limpet.engine.definitions.agents import Agent, Budget, check_agent
from limpet.engine.definitions.contracts import save_contracts
from limpet.engine.execution.failures import hint_of
from limpet.engine.execution.handle import Handle, Result
from limpet.engine.execution.local_runs import LocalRun
from limpet.engine.execution.views import RunInfo
from limpet.engine.run.children import creation
from limpet.engine.run.conversation import CHAT
from limpet.engine.worker.change_listener import GONE, ChangeListener, Subscription
from limpet.engine.worker.duties import Duty
from limpet.engine.worker.engine import Engine
from limpet.engine.worker.run_host import RunHost
from limpet.engine.worker.worker_settings import Worker
from limpet.errors import (
    InvalidAppend,
    InvalidArgument,
    NoStore,
    NotDone,
    NotFound,
    RunCancelled,
    RunFailed,
    Tampered,
)
from limpet.events import Payload
from limpet.events import bodies as b
from limpet.ids import check_id
from limpet.journal import ConversationWriter
from limpet.service.api.access_tokens import AccessTokens
from limpet.service.api.all_runs import AllRuns
from limpet.service.api.auditing import Auditing
from limpet.service.api.batches import Batches
from limpet.service.api.control import Control
from limpet.service.api.fleet import Fleet
from limpet.service.api.forks import Forks
from limpet.service.api.inspection import Inspection
from limpet.service.api.messages import Messages
from limpet.service.api.requests import Requests
from limpet.service.api.scoring import Scoring
from limpet.service.api.shared_state import SharedState
from limpet.service.api.storage import Storage
from limpet.service.api.streams import Streams
from limpet.service.batch_agent import batch_agent
from limpet.service.given_times import read_time
from limpet.service.initial_state import GivenState, digest_of, initial_patch
from limpet.service.notifier import notifier
from limpet.service.once import agent_of, create_once
from limpet.service.operation import ALL_DOORS, By, InDoors, Param, Resource, command
from limpet.service.prune import retention_duty
from limpet.service.resolve import run_of
from limpet.service.settings import Settings
from limpet.service.views import Ended, read_end
from limpet.service.wait_notices import WaitNotices
from limpet.state import ENDED, AgentState
from limpet.stores import Appended, Claimed, Create, Store, Taken
from limpet.stores.api.logs import LogPosition
from limpet.stores.blobs import INLINE, MESSAGE_INLINE, Blob

if TYPE_CHECKING:
    from limpet.engine.worker.wake_calls import WakeCalls

__all__ = ["App", "RunOptions", "StartOptions", "run_failed"]

log = logging.getLogger("limpet")

T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")


class RunOptions(TypedDict, total=False):
    """Options of a new run."""

    id: Annotated[str | None, Param(description="Run id. Starting the same again with this id returns the same run.")]
    """Run id. Starting the same agent, input and options again with this id returns the existing run. The default is
    random.
    """
    session: Annotated[str | None, Param(description="Session that the run belongs to.")]
    user: Annotated[str | None, Param(description="User that the run belongs to.")]
    conversation: Annotated[str | None, Param(description="Conversation that the run takes part in.")]
    """Id of the conversation that the run takes part in; an input that is text is added to it as a message."""
    labels: Annotated[
        Mapping[str, str] | None, Param(description="Labels to attach.", flag="label"), InDoors(dict[str, str] | None)
    ]
    state: Annotated[
        AgentState | Mapping[str, Any] | None,
        Param(description="Working state to start with, as JSON."),
        InDoors(dict[str, Any] | None),
    ]
    """The working state to start with: an `AgentState`, or its JSON. The options below add to it."""
    goal: Annotated[str | None, Param(description="Goal of the run.")]
    facts: Annotated[
        Mapping[str, Any] | None,
        Param(description="Facts that the agent knows, by key."),
        InDoors(dict[str, Any] | None),
    ]
    plan: Annotated[Sequence[str] | None, Param(description="Items of the plan."), InDoors(list[str] | None)]
    constraints: Annotated[
        Mapping[str, Any] | None,
        Param(description="Restrictions on the agent. human_in_the_loop is enforced."),
        InDoors(dict[str, Any] | None),
    ]
    """Restrictions on the agent. `human_in_the_loop` is enforced; the others are your own, for the agent to read."""
    budget: Annotated[
        Budget | Mapping[str, Any] | None,
        Param(description="Limits: max_steps, max_cost, ….", examples=[{"max_steps": 40}]),
        InDoors(dict[str, int | float | str] | None),
    ]
    """Limits of this run, which replace those of its agent."""
    deadline: Annotated[
        datetime | Duration | None,
        Param(description="Maximum time until the run ends, such as 2h, or a time.", examples=["2h"]),
        InDoors(str | None),
    ]
    """A datetime with a time zone, or the time from the run's start. It replaces the agent's deadline."""
    by: By
    """Who starts the run, which is recorded."""


class StartOptions(RunOptions, total=False):
    """Options of a new run, and its start time."""

    at: Annotated[
        datetime | Duration | None, Param(description="Delay before the run starts, or a time."), InDoors(str | None)
    ]
    """A datetime with a time zone, or the delay before the run starts. The default is now."""


# Options that a repeated start with the same id must repeat; anyone may send it again.
COMPARED = tuple(name for name in StartOptions.__annotations__ if name not in ("id", "by"))


@checked
class App(
    Control,
    Batches,
    Inspection,
    Requests,
    Scoring,
    Forks,
    Messages,
    SharedState,
    AllRuns,
    Streams,
    Fleet,
    Storage,
    AccessTokens,
    Auditing,
):
    """Start, control and inspect the runs of one store.

    Created by `limpet.open`. Use it with `async with`, or `await` it and call `close()`.
    """

    def __init__(self, settings: Settings, agents: Sequence[Agent[Any, Any]] = ()) -> None:
        for each in agents:
            check_agent(each)
        super().__init__(settings, agents)
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

    def with_engine(self, engine: Engine | None) -> "App":
        """Return a copy of this app that is not open, with another engine; None for the workers of Limpet."""
        found = self.replace()
        found._settings.engine = engine
        return found

    @property
    def is_open(self) -> bool:
        """Whether the app is open."""
        return self._listener_task is not None

    @property
    def serves(self) -> tuple[Agent[Any, Any], ...]:
        """The agents that the app was created with."""
        return self._all

    @property
    def worker(self) -> Worker | None:
        """The settings of the app's worker; None if it has none."""
        return self._settings.worker

    @property
    def engine(self) -> Engine | None:
        """The engine that has the runs of this app driven; None for the workers of Limpet."""
        return self._settings.engine

    # Open and close

    async def open(self) -> Self:
        """Open the store. With agents, start a worker and claim runs that an earlier process left."""
        if not self._settings.creates_store:
            await self._check_store_exists()
        worker = self._settings.worker
        has_work = worker is not None and bool(self._all or self._settings.channels or worker.keep)
        await self.store.open(to_write=has_work)
        try:
            self._time.sync(await self.store.now())
            if self._settings.creates_store and self.store.read_only is None:  # An app that only reads writes nothing.
                await save_contracts(self.store, self._all, served=worker is not None)
            self._loop = asyncio.get_running_loop()
            self._listener = ChangeListener(self.store, self._settings.clock, self._settings.listen_interval)
            self._listener_task = asyncio.create_task(self._listener.run(), name="limpet:change-listener")
            if self._settings.engine is not None:
                await self._open_engine(self._settings.engine)
            if worker is not None and has_work:
                await self._start_worker(worker)
        except BaseException:
            await self.close()
            raise
        return self

    async def _open_engine(self, engine: Engine) -> None:
        await engine.open(await self.store.identity())
        found = importlib.import_module("limpet.engine.worker.wake_calls")  # few processes need it
        calls: WakeCalls = found.WakeCalls(engine, self._settings.clock)
        self._wake_calls, self.store.on_ready = calls, calls.send

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
        channels, links = self._settings.channels.items(), self._settings.links
        notifiers = [notifier(self.store, self._settings.clock, *each, links) for each in channels]
        agents, duties = [*self._all, *notifiers, batch_agent(self)], _duties(self.store, worker)
        engine = self._settings.engine
        if engine is None:
            self._worker_loop = self._settings.worker_loop(agents, worker, self._time, self, duties)
        else:
            self._worker_loop = self._settings.engine_loop(engine, agents, worker, self._time, self, duties)
        found = await self._worker_loop.start(self._listener)
        names = ", ".join(sorted(self._agents))
        where = "" if engine is None else f" on {engine.name}"
        log.info("worker %s: serving %s%s; resuming %d runs", self._worker_loop.id, names, where, found)

    async def close(self) -> None:
        """Wait for running effects within the worker's grace period, release its runs, and close the store."""
        if self._worker_loop is not None:
            await self._worker_loop.stop()
            self._worker_loop = None
        if self._listener_task is not None:
            self._listener_task.cancel()
            self._listener_task = None
        if self._wake_calls is not None and self._settings.engine is not None:
            await self._wake_calls.close()
            self._wake_calls = None
            await self._settings.engine.close()
        self._feed.close()
        await self.audit_log.drain()
        await self.store.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    # Start runs

    @overload
    async def run(self, agent: Agent[None, Out], /, *, quiet: bool = ..., **how: Unpack[RunOptions]) -> Out: ...

    @overload
    async def run(
        self, agent: Agent[In, Out], input: In, /, *, quiet: bool = ..., **how: Unpack[RunOptions]
    ) -> Out: ...

    async def run(
        self, agent: Agent[Any, Any], input: Any = None, /, *, quiet: bool = False, **how: Unpack[RunOptions]
    ) -> Any:
        """Start a run, wait for it, and return its result. If a run with this id exists, wait for that one.

        Raises RunFailed or RunCancelled, and IdConflict if the existing run has another agent, input or options. If the
        run waits for a person, an operator or a worker, a line on stderr says so, unless `quiet` is true.
        """
        handle = await self.start(agent, input, **how)
        return await handle.result(quiet=quiet)

    @overload
    async def start(self, agent: Agent[None, Out], /, **how: Unpack[StartOptions]) -> Handle[Out]: ...

    @overload
    async def start(self, agent: Agent[In, Out], input: In, /, **how: Unpack[StartOptions]) -> Handle[Out]: ...

    @overload
    async def start(self, agent: str, input: Any = None, /, **how: Unpack[StartOptions]) -> Handle[Any]: ...

    @command(
        "/runs",
        needs="control",
        doors=ALL_DOORS,
        result=RunInfo,
        example="support --id ticket-42 --input '{...}'",
    )
    async def start(
        self,
        agent: Annotated[
            Agent[Any, Any] | str,
            Param(description="Name of the agent.", examples=["support"]),
            Resource("agent"),
            InDoors(str),
        ],
        input: Annotated[
            Any, Param(description="Input of the run, as JSON; text if it does not parse.", flag="input")
        ] = None,
        /,
        **how: Unpack[StartOptions],
    ) -> Handle[Any]:
        """Start a run, without waiting for it.

        A run that exists with this id, agent, input and options is not started again. Raises IdConflict if one of them
        differs; who starts it does not matter. `agent` may be the name of an agent that other workers serve; then
        `input` is plain JSON.
        """
        self._check_open()
        if isinstance(agent, str):
            known = self._agents.get(agent) or await self._find_agent(agent)
            plain = known.dump_json(input)
        else:
            check_agent(agent)
            known, plain = agent, agent.dump_input(input)
        redaction = self.store.redaction
        plain = redaction.value(plain)
        packed, blobs = self.store.pack(plain, inline=MESSAGE_INLINE if how.get("conversation") else INLINE)
        how = _with_times(how)
        at = how.get("at")
        begins = None if at is None else await self._time_of(at, "at")
        sender = self._principal(how.get("by")).sender
        given = GivenState(
            how.get("state"),
            how.get("goal"),
            how.get("facts"),
            how.get("plan"),
            how.get("constraints"),
            how.get("budget"),
            sender["by"] or "start",
        )
        more = {name: how.get(name) for name in ("session", "user", "conversation")}
        body = creation(
            known,
            packed,
            deadline=self._deadline(how.get("deadline"), known, begins or self._time.now()),
            initial=initial_patch(known, given, redaction),
            more={
                **more,
                **sender,
                "labels": redaction.value(dict(how.get("labels") or {})),
                "start_at": begins,
                "engine": "" if self._settings.engine is None else self._settings.engine.name,
                "asked": "" if how.get("id") is None else digest_of({name: how.get(name) for name in COMPARED}),
            },
        )
        run = self._new_run_id(how.get("id"), body.conversation)
        text, talk = plain if isinstance(plain, str) else None, None
        if body.conversation is not None:
            talk = self._conversations.writer(
                check_id(body.conversation), self._actor, session=body.session, user=body.user
            )
            if text is None or not talk.recall():
                await self._conversations.load_end(talk)

        def alike(stored: Payload) -> bool:
            if not stored.is_inline:
                return False
            return bool(known.dump_input(known.input_codec.load(stored.value(), stored.versions)) == plain)

        await self._create(run, body, text, talk, alike, blobs)
        return Handle(self, run, known)

    def _deadline(self, given: datetime | Duration | None, agent: Agent[Any, Any], begins: int) -> int | None:
        """Return the deadline of a new run: the given one, else its agent's."""
        if isinstance(given, datetime):
            return to_microseconds(given, "deadline")
        limit = agent.rules.deadline if given is None else microseconds(given)
        return None if limit is None else begins + limit

    def _new_run_id(self, id: str | None, conversation: str | None) -> str:
        """Return the id for a new run. Runs and conversations share one namespace."""
        run = self._settings.ids.new() if id is None else check_id(id)
        if run == conversation or run.endswith(CHAT):
            reason = f"{run!r} is a conversation's id; a run needs another id, which does not end with {CHAT}"
            raise InvalidArgument(path="id", reason=reason)
        return run

    async def _create(
        self,
        run: str,
        body: b.RunCreated,
        text: str | None,
        talk: ConversationWriter | None,
        alike: Any,
        blobs: Sequence[Blob],
    ) -> None:
        """Create a run, and let this app's worker drive it immediately, if it can.

        `text` is its input, if that is the first message of its conversation.
        """

        async def write(worker: str | None) -> Claimed | None:
            if talk is not None and text is not None:
                created = Create(run=run, bodies=(body,), actor=self._actor, worker=worker)
                said, more = self._conversations.first_message(text, run, body)
                return await self._create_in_conversation(created, said, talk, alike, (*blobs, *more))
            return await self.store.create_claimed(
                run, body, actor=self._actor, worker=worker, alike=alike, blobs=blobs
            )

        if self._worker_loop is None:
            await write(None)
        else:
            await self._worker_loop.create(body.agent, body.agent_version, write)

    async def _create_in_conversation(
        self, created: Create, said: b.MessageAdded, talk: ConversationWriter, alike: Any, blobs: Sequence[Blob]
    ) -> Claimed | None:
        """Create a run and append its first message to the conversation, in one write. Returns the claim, if any."""
        leg, is_loaded = talk.leg((said,)), False
        while True:
            try:
                done = await self.store.append(created, leg, blobs=blobs)
            except (NotFound, InvalidAppend, Tampered):
                if is_loaded:
                    raise
                done = None  # The conversation may have been deleted since this process wrote to it.
            if isinstance(done, Appended):
                talk.landed(leg)
                return done.claimed
            if isinstance(done, Taken) and done.row.id == created.run:
                body = created.bodies[0]
                assert isinstance(body, b.RunCreated)
                await self.store.create(created.run, body, actor=self._actor, alike=alike)  # raises IdConflict
                return None
            await self._conversations.load_end(talk)
            leg, is_loaded = talk.leg((said,)), True

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
        listener, local = self._check_open(), self.local_runs.of(key)
        created = await create_once(self._settings, key)
        if created.status not in ENDED:
            loop = self._settings.worker_loop([agent_of(key, fn)], self._settings.worker or Worker(), self._time, self)
            await loop.start(listener)
            local.waiters += 1
            try:
                await self._wait_until_ended(key, None)
            finally:
                local.waiters -= 1
                await loop.stop()
        result: T = (await self._outcome(key)).value
        return result

    # For handles

    @property
    def _host(self) -> RunHost | None:
        """The runs that this app's worker drives."""
        return None if self._worker_loop is None else self._worker_loop.host

    async def result(self, run: str, timeout: Duration | None, *, quiet: bool = False) -> Result:
        """Wait until a run has ended, and return its result. Raises RunFailed, RunCancelled, or NotDone after the
        timeout.
        """
        local, host = self.local_runs.of(run), self._host
        ended = None if host is not None and host.is_driving(run) else await read_end(self.store, run)
        if ended is not None:
            return await self._outcome(run, (ended[0].seq, ended[1]))
        local.waiters += 1
        try:
            seq = await self._wait_until_ended(run, timeout, None if quiet else local)
        finally:
            local.waiters -= 1
        told = local.end_at(seq)
        return await self._outcome(run, None if told is None else (seq, told))

    async def _outcome(self, run: str, ended: tuple[int, Ended] | None = None) -> Result:
        if ended is None and (found := await read_end(self.store, run)) is not None:
            ended = found[0].seq, found[1]
        match ended:
            case _, b.RunCompleted(output=output):
                return Result(await self.store.unpack(output), output.versions)
            case seq, b.RunFailed() as failed:
                cause = self.local_runs.of(run).error_at(seq)
                raise run_failed(run, failed, is_recorded=cause is None) from cause
            case _, b.RunCancelled(reason=reason):
                raise RunCancelled(run=run, reason=reason)
            case _:
                raise NotDone(run=run, status=(await self.store.get(run)).status)

    async def _wait_until_ended(self, run: str, timeout: Duration | None, local: LocalRun | None = None) -> int:
        """Wait until a run has ended; return the sequence of its last event, 0 if that is unknown.

        With `local`, say on stderr why it waits.
        """
        listener = self._check_open()
        ended, last = asyncio.Event(), 0
        host = self._host
        notices = None if local is None else WaitNotices(self.store, listener, host, local)

        def notify(place: LogPosition) -> None:
            nonlocal last
            if place is GONE or place.status in ENDED:
                last = place.seq
                ended.set()
            elif notices is not None:
                notices.notify(run, place)

        subscription = Subscription(run, lambda: None if host is not None and host.is_driving(run) else 0, notify)
        cancel_timer = None if timeout is None else self._settings.clock.call_later(microseconds(timeout), ended.set)
        listener.subscribe(subscription)
        try:
            await ended.wait()
        finally:
            listener.unsubscribe(subscription)
            if notices is not None:
                notices.close()
            if cancel_timer is not None:
                cancel_timer()
        return last


def _with_times(how: StartOptions) -> StartOptions:
    """Return options whose texts that are times are read, so that a repeated start may have other ones."""
    found = StartOptions(**how)
    if (at := how.get("at")) is not None:
        found["at"] = read_time(at, "at")
    if (deadline := how.get("deadline")) is not None:
        found["deadline"] = read_time(deadline, "deadline")
    return found


def _duties(store: Store, worker: Worker) -> list[Duty]:
    return [] if worker.keep is None else [retention_duty(store, worker.keep)]


def run_failed(run: str, failed: b.RunFailed, *, is_recorded: bool) -> RunFailed:
    """Return the error of a failed run. If its exception is only recorded, a note has the traceback."""
    failure = failed.failure
    error = RunFailed(
        run=run,
        error_type=failure.type,
        message=failure.message,
        step=failed.number,
        error_types=failure.mro,
        traceback=failure.traceback,
        fix=hint_of(failure, run),
    )
    if is_recorded and failure.traceback:
        error.add_note(f"The traceback, as it was recorded:\n{failure.traceback.rstrip()}")
    return error
