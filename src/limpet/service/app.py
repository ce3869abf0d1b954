"""The app: everything a user does with runs, over one store, with a worker of its own where it has agents."""

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
from limpet.service.files import using
from limpet.service.fork import ForkOptions, make_fork, plan_fork
from limpet.service.notifications import notifier
from limpet.service.once import agent_of, create_once
from limpet.service.prune import Pruned, prune, rotate
from limpet.service.queries import check_last, check_status
from limpet.service.read_api import ReadApi
from limpet.service.replay import Replay, ReplayCheck, ReplayOptions, check, replay
from limpet.service.resolve import each_run, run_of
from limpet.service.settings import Settings
from limpet.service.views import Ended, end_of, entries_of
from limpet.state import ENDED
from limpet.stores import Appended, Create, RunFilter, RunRow, Store, Taken
from limpet.stores.blobs import INLINE, SAID, Blob
from limpet.stores.store import LARGEST_PAGE

__all__ = ["App", "RunOptions", "StartOptions"]

log = logging.getLogger("limpet")

T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")


class RunOptions(TypedDict, total=False):
    """What may be said about a new run."""

    id: str | None
    session: str | None
    user: str | None
    conversation: str | None
    labels: Mapping[str, str] | None
    constraints: Mapping[str, Any] | None


class StartOptions(RunOptions, total=False):
    """The same, and when it begins."""

    at: datetime | Duration | None


@checked
class App(ReadApi):
    """Start runs, answer, look, steer. Use as `async with`, or `await` it and close it."""

    def __init__(self, settings: Settings, agents: Sequence[Agent[Any, Any]] = ()) -> None:
        for each in agents:
            check_agent(each)
        super().__init__(settings, {each.name: each for each in agents}, self._tell)
        self._all = tuple(agents)
        self._duty: WorkerLoop | None = None
        self._ear: ChangeListener | None = None
        self._hearing: asyncio.Task[None] | None = None

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
        """The same app, not opened: a worker whatever it was before, or none, in another store, or for another door.

        One that is not to make a store where none is refuses to open there.
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
        """Whether it was opened, and not closed since."""
        return self._hearing is not None

    @property
    def serves(self) -> tuple[Agent[Any, Any], ...]:
        """The agents that it was opened with."""
        return self._all

    # Opening and closing

    def _check_open(self) -> ChangeListener:
        if self._ear is None:
            raise not_open()
        return self._ear

    async def open(self) -> Self:
        """Open the store; with agents, begin to work, and go on with what an earlier process left behind."""
        if not self._settings.creates_store:
            await self._check_there()
        await self.store.open()
        try:
            self._time.sync(await self.store.now())
            is_working = self._settings.worker is not None
            if self._settings.creates_store:  # whoever only looks leaves nothing
                await save_contracts(self.store, self._all, served=is_working)
            self._ear = ChangeListener(self.store, self._settings.clock, self._settings.listen)
            self._hearing = asyncio.create_task(self._ear.run(), name="limpet:ear")
            if (self._all or self._settings.channels) and self._settings.worker is not None:
                await self._begin_duty(self._settings.worker)
        except BaseException:
            await self.close()
            raise
        return self

    async def _check_there(self) -> None:
        is_there = False
        try:
            is_there = await self.store.is_there()
        finally:
            if not is_there:
                await self.store.close()
        if not is_there:
            raise NoStore(url=self._settings.url)

    async def _begin_duty(self, worker: Worker) -> None:
        assert self._ear is not None
        telling = [notifier(self.store, self._settings.clock, *each) for each in self._settings.channels.items()]
        self._duty = self._settings.worker_loop([*self._all, *telling], worker, self._time, self)
        found = await self._duty.start(self._ear)
        names = ", ".join(sorted(self._agents))
        log.info("worker %s serves %s and goes on with %d runs", self._duty.id, names, found)

    async def close(self) -> None:
        """Let effects under way finish, give back what is being driven, and close the store."""
        if self._duty is not None:
            await self._duty.stop()
            self._duty = None
        if self._hearing is not None:
            self._hearing.cancel()
            self._hearing = None
        await self.store.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    # Starting

    @overload
    async def run(self, agent: Agent[None, Out], /, **how: Unpack[RunOptions]) -> Out: ...

    @overload
    async def run(self, agent: Agent[In, Out], input: In, /, **how: Unpack[RunOptions]) -> Out: ...

    async def run(self, agent: Agent[Any, Any], input: Any = None, /, **how: Unpack[RunOptions]) -> Any:
        """Start a run, or find the one of this id, and wait for its result."""
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
        """Start a run, or find the one of this id with the same input; it goes on by itself."""
        self._check_open()
        for name in how.keys() - StartOptions.__annotations__:
            raise InvalidArgument(path=name, reason=f"of a run one says {', '.join(StartOptions.__annotations__)}")
        if isinstance(agent, str):
            known = self._agents.get(agent) or await find_agent(self.store, agent)
            plain = known.dump_json(input)
        else:
            check_agent(agent)
            known, plain = agent, agent.dump_input(input)
        redaction = self.store.redaction
        plain = redaction.value(plain)
        packed, blobs = self.store.pack(plain, inline=SAID if how.get("conversation") else INLINE)
        begins = await self._begins(how.get("at"))
        deadline = known.rules.deadline
        more = {name: how.get(name) for name in ("session", "user", "conversation")}
        body = creation(
            known,
            packed,
            deadline=None if deadline is None else (begins or self._time.now()) + deadline,
            initial=_initial(known, how.get("constraints")),
            more={**more, "labels": redaction.value(dict(how.get("labels") or {})), "start_at": begins},
        )
        run = await self._own_id(how.get("id"), how.get("conversation"))

        def alike(stored: Payload) -> bool:
            if not stored.is_inline:
                return False
            return bool(known.dump_input(known.input_codec.load(stored.value(), stored.versions)) == plain)

        await self._create(run, body, plain, alike, blobs)
        if self._duty is not None:
            self._duty.wake()
        return Handle(self, run, known)

    async def _own_id(self, id: str | None, conversation: str | None) -> str:
        """The id of a run that is started; runs and conversations share one room of names."""
        run = self._settings.ids.new() if id is None else check_id(id)
        if run == conversation or run.endswith(CHAT):
            reason = f"{run!r} is the name of a conversation: a run has another, which does not end with {CHAT}"
            raise InvalidArgument(path="id", reason=reason)
        if conversation is not None:
            await self._talks.check(conversation)
        return run

    async def _create(self, run: str, body: b.RunCreated, plain: Any, alike: Any, blobs: Sequence[Blob]) -> None:
        """A run that is started in a conversation with a text has that text there as its first message."""
        if body.conversation is None or not isinstance(plain, str):
            await self.store.create(run, body, actor=self._actor, alike=alike, blobs=blobs)
            return
        check_id(body.conversation)
        while True:
            owner = {"session": body.session, "user": body.user}
            said, more = await self._talks.first(body.conversation, plain, run, self._actor, **owner)
            created = Create(run=run, bodies=(body,), actor=self._actor)
            done = await self.store.append(created, said, blobs=(*blobs, *more))
            if isinstance(done, Taken) and done.row.id == run:
                await self.store.create(run, body, actor=self._actor, alike=alike)  # it is there, or another one is
                return
            if isinstance(done, Appended):
                return

    async def _begins(self, at: datetime | Duration | None) -> int | None:
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
        """A handle on a run that exists."""
        row = await run_of(self.store, run)
        return Handle(self, run, agent or self._serving(row.agent, row.agent_version))

    async def once(self, key: str, fn: Callable[[], Awaitable[T]], /) -> T:
        """Do something once for a key, and give the same result ever after: for whoever writes a tool's server."""
        ear = self._check_open()
        created = await create_once(self._settings, key)
        if created.status not in ENDED:
            duty = self._settings.worker_loop([agent_of(key, fn)], self._settings.worker or Worker(), self._time, self)
            await duty.start(ear)
            try:
                await self._until_ended(key, None)
            finally:
                await duty.stop()
        result: T = (await self._how_it_ended(key)).value
        return result

    # Steering

    async def resume(self, run: str, /) -> Handle[Any]:
        """Let a failed run go on from the step that failed, or a paused one; one that completed stays as it is."""
        row = await run_of(self.store, run)
        if row.status != "completed":
            await self._tell(run, b.ResumeRequested(command=self._settings.ids.new()))
        return Handle(self, run, self._serving(row.agent, row.agent_version))

    async def pause(self, run: str, /) -> None:
        """Let a run wait until it is resumed; effects under way finish first."""
        await run_of(self.store, run)
        await self._tell(run, b.PauseRequested(command=self._settings.ids.new()))

    async def cancel(self, run: str, /, *, reason: str) -> None:
        """Stop a run, and the runs it called: effects under way finish, and what can be undone is."""
        await run_of(self.store, run)
        reason = self.store.redaction.text(reason)
        await self._tell(run, b.CancelRequested(command=self._settings.ids.new(), reason=reason))

    async def signal(self, run: str, name: str, value: object, /) -> None:
        """Send a run something that it receives: in order, each once."""
        await run_of(self.store, run)
        packed, blobs = self.store.pack(value)
        body = b.SignalReceived(command=self._settings.ids.new(), signal=name, value=packed)
        await self._tell(run, body, blobs=blobs)

    async def _tell(self, run: str, *bodies: Any, blobs: Any = (), judged: tuple[str, ...] | None = None) -> None:
        self._check_open()
        await self.store.send_commands(run, *bodies, actor=self._actor, blobs=blobs, judged=judged)
        if self._duty is not None:
            self._duty.wake()

    # Talking

    async def say(self, conversation: str, text: str, /, *, interrupt: bool = False) -> str | None:
        """Say something in a conversation: the run that goes on there receives it as `user`; else it is kept there.

        Returns the id of that run. With `interrupt`, an agent of a model ends its turn after the step that is running.
        """
        return await self._talks.say(conversation, text, actor=self._actor, interrupt=interrupt)

    # People

    async def answer(self, request: str | Request, answer: object, /, *, by: str) -> None:
        """Answer a request; the answer must fit what it asks for, and the first one stands."""
        await self._desk.answer(request, answer, by)

    async def approve(
        self, request: str | Request, /, *, by: str, args: Mapping[str, Any] | None = None, standing: bool = False
    ) -> None:
        """Say yes; with other arguments, if they were edited; or `standing`, for this tool in the rest of this run."""
        await self._desk.approve(request, by, args, standing=standing)

    async def reject(self, request: str | Request, /, *, by: str, because: str) -> None:
        """Say no, and why."""
        await self._desk.reject(request, by, because)

    async def revoke(self, run: str, grant: str, /, *, by: str, because: str = "") -> None:
        """End a standing permission: the next call of its tool asks again."""
        await self._desk.revoke(run, grant, by, because)

    # Going back

    async def fork(  # noqa: PLR0913 - all by name, and few at a time
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
        """A new run that shares everything before a step of another, which stays as it is, and goes on from there.

        `seq` says it by the last event that is shared: to be asked something again, say.
        `patch` is what it knows otherwise (as `run.patch` takes it), `results` are other results of shared steps by
        their numbers, `input` and `version` are another input and another version of the agent. With `effects="ask"`
        a person is asked before each effect, with `"live"` they happen. With `"stub"` nothing outside is touched: a
        tool gives what the other run got from the same call, or a sample of its type, and a model call parks the fork;
        `reads="live"` calls tools without an effect and sources all the same, `model="live"` asks models.
        """
        row = await run_of(self.store, run)
        agent = self._serving(row.agent, version or row.agent_version)
        more = {"patch": patch or {}, "results": results or {}, "input": input}
        said: Mapping[Outside, str | None] = {"reads": reads, "model": model}
        live = tuple(outside for outside, how in said.items() if how == "live")
        wanted = ForkOptions(at=at, seq=seq, effects=effects, live=live, version=version, **more)
        body, blobs = await plan_fork(self.store, row, agent, wanted, self._time.now())
        name = await make_fork(self.store, run, body, blobs, actor=self._actor, id=id)
        if self._duty is not None:
            self._duty.wake()
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
        """Go through a run again under today's code, up to the end of a step or as far as it is recorded.

        It happens in a copy in memory: recorded calls answer as they did, others are not made, unless their tools are
        allowed by name. `coming_to` is told the number of each step as the code comes to it, for a debugger.
        """
        agent = self._agent_of(await run_of(self.store, run))
        return await replay(self.store, run, agent, self, to, ReplayOptions(allow, on_step))

    async def replay_all(
        self, *, agent: str | None = None, last: int = 100, status: Sequence[str] = ()
    ) -> AsyncIterator[ReplayCheck]:
        """Whether today's code goes through the newest runs of its agents as they are recorded; nothing is done.

        A check before a deploy: of one agent or of all, so many of each; of any status, or of some: those that have not
        ended would have to go on.
        """
        check_last(last)
        for each in status:
            check_status(each)
        for name in [agent] if agent is not None else list(self._agents):
            left, where = last, RunFilter(agent=name, status=tuple(status))
            async for row in each_run(self.store, where, page=min(last, LARGEST_PAGE)):
                yield await check(self.store, row.id, self._agent_of(row), self)
                if (left := left - 1) == 0:
                    break

    def _serving(self, name: str, version: str) -> Agent[Any, Any] | None:
        """The code of a version of an agent: just that, what accepts it, else whatever there is."""
        serving = [each for each in self._all if each.name == name]
        exact = [each for each in serving if each.version == version]
        fitting = [each for each in serving if version in each.rules.accepts]
        return next(iter(exact or fitting or serving[::-1]), None)

    def _agent_of(self, row: RunRow) -> Agent[Any, Any]:
        """Today's code of a run."""
        found = self._serving(row.agent, row.agent_version)
        if found is None:
            reason = f"the code of {row.agent} is needed: limpet.open(..., agents=[...]), or --app MODULE:ATTRIBUTE"
            raise InvalidArgument(path="agents", reason=reason)
        return found

    # Keeping

    async def export(self, run: str, path: str | Path, /) -> None:
        """Write a run to a file, readable by people, that `load` takes into another store."""
        with using(path) as file:
            await export_run(self.store, run, file)

    async def load(self, path: str | Path, /, *, max_bytes: int = MAX_BYTES) -> Handle[Any]:
        """Take a run from a file into this store; one that has not ended goes on here when it is resumed.

        A file that would unpack to more than `max_bytes`, 1 GiB, is refused: it is read as a whole.
        """
        with using(path) as file:
            row = await load_run(self.store, file, self._actor, max_bytes)
        return Handle(self, row.id, self._serving(row.agent, row.agent_version))

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
        """Delete runs that ended longer ago than this; without `dry_run=False` only say which.

        `by_status` and `by_agent` keep some for longer, shorter, or for ever (None). Forks and what they branched off,
        callers and whom they called go together or stay. With `archive`, a folder, each is exported there first.
        `snapshots` is how many cached states of a run stay.
        """
        rule = KeepRule(older_than=older_than, by_status=by_status, by_agent=by_agent)
        with nullcontext() if archive is None else using(archive) as folder:
            done = await prune(self.store, rule, dry_run=dry_run, archive=folder)
        if snapshots is not None and not dry_run:
            done.snapshots = await rotate(self.store, keep=snapshots, older_than=older_than)
        return done

    # What handles are made over

    async def result(self, run: str, timeout: Duration | None) -> Result:
        """What a run returned, once it has ended; raises how it ended otherwise."""
        ended = await end_of(self.store, run)
        if ended is None:
            await self._until_ended(run, timeout)
        return await self._how_it_ended(run, ended)

    async def _how_it_ended(self, run: str, ended: Ended | None = None) -> Result:
        match ended or await end_of(self.store, run):
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

    async def _until_ended(self, run: str, timeout: Duration | None) -> None:
        ear = self._check_open()
        ended = asyncio.Event()
        duty = self._duty
        interest = Subscription(
            run,
            lambda: None if duty is not None and duty.is_driving(run) else 0,
            lambda place: ended.set() if place is GONE or place.status in ENDED else None,
        )
        take_back = None if timeout is None else self._settings.clock.call_later(microseconds(timeout), ended.set)
        ear.subscribe(interest)
        try:
            await ended.wait()
        finally:
            ear.unsubscribe(interest)
            if take_back is not None:
                take_back()

    async def events(self, run: str, after: int = 0, *, follow: bool = True) -> AsyncIterator[EventView]:
        """A run's events, until it has ended; without `follow`, those that there are."""
        grown = asyncio.Event()
        interest = Subscription(run, lambda: after, lambda _: grown.set())
        if follow and self._ear is not None:
            self._ear.subscribe(interest)
        try:
            while True:
                row = await self.store.get(run)
                async for event in self.store.log(run, after=after):
                    after = event.seq
                    [entry] = await entries_of(self.store, [event])
                    yield entry
                if not follow or (row.status in ENDED and after >= row.seq):
                    return
                if after > row.seq:
                    continue  # it went on between the two reads, and may have ended: nobody would tell of that
                await grown.wait()
                grown.clear()
        finally:
            if self._ear is not None:
                self._ear.unsubscribe(interest)

    @property
    def _actor(self) -> str:
        return self._duty.id if self._duty is not None else "app"


def _initial(agent: Agent[Any, Any], constraints: Mapping[str, Any] | None) -> StatePatch | None:
    """What a run is bound by from its start: its budget, and what it may not do by itself."""
    limits = agent.rules.budget
    if limits is None and constraints is None:
        return None
    try:
        bound = UNSET if constraints is None else msgspec.convert(dict(constraints), Constraints)
    except msgspec.ValidationError as error:
        raise ContractError(agent=agent.name, what="constraints", reason=str(error)) from error
    return StatePatch(budget=UNSET if limits is None else limits, constraints=bound)
