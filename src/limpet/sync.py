"""Limpet for blocking code: agents that are plain functions, and scripts without an event loop.

An app of this module runs an event loop in its own thread. Each method calls the method of `limpet.App` with the same
name and waits for it. An interrupt (Ctrl-C) ends the wait, not the run.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from threading import Thread, current_thread
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from limpet.clock import Duration
from limpet.compose import open as open_app
from limpet.engine.definitions.agents import Agent
from limpet.engine.execution.handle import Handle as AsyncHandle
from limpet.engine.execution.principal import Principal
from limpet.engine.execution.views import EventView, RunInfo
from limpet.engine.run.blocking import BlockingRun as Run
from limpet.engine.worker.worker_settings import Worker
from limpet.errors import WrongCall, not_open
from limpet.service.app import App as AsyncApp
from limpet.service.app import RunOptions, StartOptions
from limpet.service.notices import Channel

__all__ = ["App", "Handle", "Run", "open"]

P = ParamSpec("P")
T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")


class Loop:
    """An event loop in its own daemon thread, which does not keep the process alive."""

    def __init__(self) -> None:
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = Thread(target=lambda: asyncio.run(self._run()), name="limpet-sync", daemon=True)
        self._thread.start()
        self._loop, self._stopped = self._ready.result()

    async def _run(self) -> None:
        over = asyncio.Event()
        self._ready.set_result((asyncio.get_running_loop(), over))
        await over.wait()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and return or raise its result. An interrupt cancels it."""
        if current_thread() is self._thread:
            coroutine.close()
            raise WrongCall(
                reason="This call would block the event loop of its own app",
                fix="Make the tool or agent a plain `def`, which runs in a thread, or use `limpet.open` and await.",
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Stop the loop, and wait until its thread has ended."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()


class Handle(Generic[Out]):
    """A handle on a run."""

    def __init__(self, handle: AsyncHandle[Out], app: "App") -> None:
        self._handle, self._app = handle, app
        self.id = handle.id

    def __repr__(self) -> str:
        return f"<handle of run {self.id}>"

    def result(self, *, timeout: Duration | None = None, quiet: bool = False) -> Out:
        """Wait for the run to end and return its result. Raises RunFailed, RunCancelled, or NotDone on timeout.

        If the run waits for a person, an operator or a worker, a line on stderr says so, unless `quiet` is true.
        """
        return self._app.wait(lambda _: self._handle.result(timeout=timeout, quiet=quiet))

    def info(self) -> RunInfo:
        """Return the current summary of the run: status, position, what it waits for."""
        return self._app.wait(lambda _: self._handle.info())

    def events(self, *, after: int = 0, follow: bool = True) -> Iterator[EventView]:
        """Yield the events after `after` until the run has ended. Without `follow`, only yield those that exist now."""
        return self._app.each(lambda _: self._handle.events(after=after, follow=follow))

    def tokens(self, *, after: int = 0) -> Iterator[str]:
        """Yield the model's text piece by piece until the run has ended. `after` is an event number, to continue after
        a break.
        """
        return self._app.each(lambda _: self._handle.tokens(after=after))

    def cancel(self, reason: str, *, by: Principal | str | None = None) -> None:
        """Cancel the run. Running effects finish; steps with a compensation are undone. `by` is recorded."""
        self._app.wait(lambda _: self._handle.cancel(reason, by=by))


Method = Callable[Concatenate[AsyncApp, P], Coroutine[Any, Any, T]]


def _own(app: AsyncApp, method: Callable[..., Any]) -> Any:
    """Return the method of this app, which may override the one of its class."""
    return getattr(app, method.__name__)


def _blocking(method: Method[P, T]) -> Callable[Concatenate["App", P], T]:
    """Return the blocking version of a method."""

    @wraps(method)
    def call(app: "App", /, *args: P.args, **named: P.kwargs) -> T:
        found: T = app.wait(lambda behind: _own(behind, method)(*args, **named))
        return found

    return call


def _blocking_handle(method: Method[P, AsyncHandle[Out]]) -> Callable[Concatenate["App", P], Handle[Out]]:
    """Return the blocking version of a method that returns a handle."""

    @wraps(method)
    def call(app: "App", /, *args: P.args, **named: P.kwargs) -> Handle[Out]:
        return Handle(app.wait(lambda behind: _own(behind, method)(*args, **named)), app)

    return call


def _blocking_iterator(
    method: Callable[Concatenate[AsyncApp, P], AsyncIterator[T]],
) -> Callable[Concatenate["App", P], Iterator[T]]:
    """Return the blocking version of a method that yields values."""

    @wraps(method)
    def call(app: "App", /, *args: P.args, **named: P.kwargs) -> Iterator[T]:
        return app.each(lambda behind: _own(behind, method)(*args, **named))

    return call


async def _next(found: AsyncIterator[T]) -> list[T]:
    """Return the next value in a list, or an empty list at the end."""
    try:
        return [await anext(found)]
    except StopAsyncIteration:
        return []


class App:
    """Start, control and inspect the runs of one store, from blocking code.

    Created by `limpet.sync.open`. Use it with `with`, or call `open()` and `close()`.
    """

    def __init__(self, app: AsyncApp) -> None:
        self._app = app
        self._loop: Loop | None = None

    def open(self) -> Self:
        """Open the store. With agents, start a worker and claim runs that an earlier process left."""
        self._loop = Loop()
        try:
            self._loop.wait(self._app.open())
        except BaseException:
            self._stop()
            raise
        return self

    def close(self) -> None:
        """Wait for running effects within the worker's grace period, release its runs, and close the store."""
        if self._loop is None:
            return
        try:
            self._loop.wait(self._app.close())
        finally:
            self._stop()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        loop.stop()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def wait(self, make: Callable[[AsyncApp], Coroutine[Any, Any, T]]) -> T:
        """Call a function with the async app on its event loop, and return what its coroutine returns."""
        if self._loop is None:
            raise not_open()
        return self._loop.wait(make(self._app))

    def each(self, make: Callable[[AsyncApp], AsyncIterator[T]]) -> Iterator[T]:
        """Call a function with the async app, and yield the values of its async iterator."""
        found = make(self._app)
        while more := self.wait(lambda _: _next(found)):
            yield from more

    def __getattr__(self, name: str) -> Any:
        """Return the blocking version of an operation that a subclass of the async app declares."""
        method = getattr(type(self.__dict__.get("_app")), name, None)
        if method is None or not hasattr(method, "__operation__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return partial(_blocking(method), self)

    # Start runs

    @overload
    def run(self, agent: Agent[None, Out], /, *, quiet: bool = ..., **how: Unpack[RunOptions]) -> Out: ...

    @overload
    def run(self, agent: Agent[In, Out], input: In, /, *, quiet: bool = ..., **how: Unpack[RunOptions]) -> Out: ...

    def run(
        self, agent: Agent[Any, Any], input: Any = None, /, *, quiet: bool = False, **how: Unpack[RunOptions]
    ) -> Any:
        """Start a run, wait for it, and return its result. If a run with this id exists, wait for that one.

        Raises RunFailed or RunCancelled, and IdConflict if the existing run has another agent, input or options. If the
        run waits for a person, an operator or a worker, a line on stderr says so, unless `quiet` is true.
        """
        return self.wait(lambda app: app.run(agent, input, quiet=quiet, **how))

    @overload
    def start(self, agent: Agent[None, Out], /, **how: Unpack[StartOptions]) -> Handle[Out]: ...

    @overload
    def start(self, agent: Agent[In, Out], input: In, /, **how: Unpack[StartOptions]) -> Handle[Out]: ...

    @overload
    def start(self, agent: str, input: Any = None, /, **how: Unpack[StartOptions]) -> Handle[Any]: ...

    def start(self, agent: Agent[Any, Any] | str, input: Any = None, /, **how: Unpack[StartOptions]) -> Handle[Any]:
        """Start a run and return a handle, without waiting for it.

        If a run with this id exists for the same agent, input and options, return a handle on it; otherwise it raises
        IdConflict. `agent` may be the name of an agent that other workers serve; then `input` is plain JSON.
        """
        return Handle(self.wait(lambda app: app.start(agent, input, **how)), self)

    @overload
    def get(self, run: str, agent: Agent[Any, Out], /) -> Handle[Out]: ...

    @overload
    def get(self, run: str, /) -> Handle[Any]: ...

    def get(self, run: str, agent: Agent[Any, Any] | None = None, /) -> Handle[Any]:
        """Return a handle on an existing run. With `agent`, its result has that agent's output type."""
        return Handle(self.wait(lambda app: app.get(run) if agent is None else app.get(run, agent)), self)

    def once(self, key: str, fn: Callable[[], T], /) -> T:
        """Call `fn` once for a key and record its result; later calls with the same key return that result.

        Use this in a server that has to handle repeated requests with an idempotency key. If the process dies during
        the call, the next `once` with the same key calls `fn` again.
        """
        return self.wait(lambda app: app.once(key, partial(asyncio.to_thread, fn)))

    # Control runs

    resume = _blocking_handle(AsyncApp.resume)
    extend = _blocking(AsyncApp.extend)
    pause = _blocking(AsyncApp.pause)
    cancel = _blocking(AsyncApp.cancel)
    move = _blocking(AsyncApp.move)
    batch = _blocking_handle(AsyncApp.batch)
    signal = _blocking(AsyncApp.signal)
    patch = _blocking(AsyncApp.patch)

    # Conversations

    say = _blocking(AsyncApp.say)
    messages = _blocking(AsyncApp.messages)
    compact = _blocking(AsyncApp.compact)
    conversations = _blocking(AsyncApp.conversations)
    sessions = _blocking(AsyncApp.sessions)

    # Requests

    inbox = _blocking(AsyncApp.inbox)
    precedents = _blocking(AsyncApp.precedents)
    answer = _blocking(AsyncApp.answer)
    approve = _blocking(AsyncApp.approve)
    reject = _blocking(AsyncApp.reject)
    request = _blocking(AsyncApp.request)
    grant = _blocking(AsyncApp.grant)
    grants = _blocking(AsyncApp.grants)
    revoke = _blocking(AsyncApp.revoke)

    # Scores

    score = _blocking(AsyncApp.score)
    unscore = _blocking(AsyncApp.unscore)
    scores = _blocking(AsyncApp.scores)

    # Shared records

    records = _blocking(AsyncApp.records)
    record = _blocking(AsyncApp.record)
    record_changes = _blocking(AsyncApp.record_changes)
    patch_record = _blocking(AsyncApp.patch_record)
    watch_records = _blocking_iterator(AsyncApp.watch_records)

    # Runs

    find = _blocking(AsyncApp.find)
    now = _blocking(AsyncApp.now)
    runs = _blocking(AsyncApp.runs)
    info = _blocking(AsyncApp.info)
    task = _blocking(AsyncApp.task)
    tasks = _blocking(AsyncApp.tasks)
    result = _blocking(AsyncApp.result)
    show = _blocking(AsyncApp.show)
    input = _blocking(AsyncApp.input)
    steps = _blocking(AsyncApp.steps)
    step = _blocking(AsyncApp.step)
    log = _blocking(AsyncApp.log)
    events = _blocking_iterator(AsyncApp.events)
    value = _blocking(AsyncApp.value)
    value_piece = _blocking(AsyncApp.value_piece)
    artifact = _blocking(AsyncApp.artifact)
    artifact_piece = _blocking(AsyncApp.artifact_piece)
    timeline = _blocking(AsyncApp.timeline)
    lineage = _blocking(AsyncApp.lineage)
    state = _blocking(AsyncApp.state)
    context = _blocking(AsyncApp.context)
    prompt = _blocking(AsyncApp.prompt)
    diff = _blocking(AsyncApp.diff)
    compare = _blocking(AsyncApp.compare)

    # Watch

    replies = _blocking_iterator(AsyncApp.replies)
    watch_run = _blocking_iterator(AsyncApp.watch_run)
    watch_replies = _blocking_iterator(AsyncApp.watch_replies)
    watch_runs = _blocking_iterator(AsyncApp.watch_runs)
    watch_inbox = _blocking_iterator(AsyncApp.watch_inbox)

    # Fork and replay

    fork = _blocking_handle(AsyncApp.fork)
    replay = _blocking(AsyncApp.replay)
    replay_all = _blocking_iterator(AsyncApp.replay_all)

    # Verify, export and delete

    verify = _blocking(AsyncApp.verify)
    save_heads = _blocking(AsyncApp.save_heads)
    export = _blocking(AsyncApp.export)
    load = _blocking_handle(AsyncApp.load)
    import_tasks = _blocking(AsyncApp.import_tasks)
    prune = _blocking(AsyncApp.prune)

    # Access tokens

    whoami = _blocking(AsyncApp.whoami)
    tokens = _blocking(AsyncApp.tokens)
    create_token = _blocking(AsyncApp.create_token)
    revoke_token = _blocking(AsyncApp.revoke_token)
    create_login = _blocking(AsyncApp.create_login)

    # The audit log

    audit = _blocking(AsyncApp.audit)
    export_audit = _blocking(AsyncApp.export_audit)

    # Queries across runs

    search = _blocking(AsyncApp.search)
    decisions = _blocking(AsyncApp.decisions)
    errors = _blocking(AsyncApp.errors)
    tool_calls = _blocking(AsyncApp.tool_calls)
    agents = _blocking(AsyncApp.agents)
    workers = _blocking(AsyncApp.workers)
    stats = _blocking(AsyncApp.stats)
    activity = _blocking(AsyncApp.activity)
    doctor = _blocking(AsyncApp.doctor)


def open(  # noqa: PLR0913 - all by name, and few at a time
    url: str | None = None,
    *,
    agents: Sequence[Agent[Any, Any]] = (),
    worker: bool | Worker = True,
    people: Mapping[str, Sequence[str]] | None = None,
    notify: Mapping[str, Channel] | None = None,
    redact: bool | Sequence[str | re.Pattern[str]] | None = None,
    token: str | None = None,
) -> App:
    """Return an app for blocking code, which opens when it is entered. See `limpet.open` for the parameters."""
    return App(open_app(url, agents=agents, worker=worker, people=people, notify=notify, redact=redact, token=token))
