"""Limpet for blocking code: agents that are plain functions, and scripts without an event loop.

An app of this module has an event loop on a thread of its own; each of its methods is the one of `limpet.App` of the
same name, waited for. An interrupt (Ctrl-C) ends the waiting, not the run.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from threading import Thread, current_thread
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack, overload

from limpet.clock import Duration
from limpet.engine.agents import Agent
from limpet.engine.blocking import BlockingRun as Run
from limpet.engine.duty import Worker
from limpet.engine.handle import Handle as AsyncHandle
from limpet.engine.views import Event, Request, RunInfo
from limpet.errors import StoreUnavailable
from limpet.service.app import App as AsyncApp
from limpet.service.settings import Channel
from limpet.state.run import Grant

__all__ = ["App", "Handle", "Run", "open"]

T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")


class About(TypedDict, total=False):
    """What may be said about a new run."""

    id: str | None
    session: str | None
    user: str | None
    conversation: str | None
    labels: Mapping[str, str] | None
    constraints: Mapping[str, Any] | None


class Begin(About, total=False):
    """The same, and when it begins."""

    at: datetime | Duration | None


class Loop:
    """An event loop on a thread of its own, which does not keep the process alive."""

    def __init__(self) -> None:
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = Thread(target=lambda: asyncio.run(self._live()), name="limpet-sync", daemon=True)
        self._thread.start()
        self._loop, self._over = self._ready.result()

    async def _live(self) -> None:
        over = asyncio.Event()
        self._ready.set_result((asyncio.get_running_loop(), over))
        await over.wait()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What it returns or raises; whoever is interrupted stops waiting."""
        if current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("this code runs on the app's own event loop: use limpet.open() and await there")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def end(self) -> None:
        """Stop it, and wait until its thread has ended."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


class Handle(Generic[Out]):
    """A run that was started."""

    def __init__(self, handle: AsyncHandle[Out], app: "App") -> None:
        self._handle, self._app = handle, app
        self.id = handle.id

    def __repr__(self) -> str:
        return f"<handle of run {self.id}>"

    def result(self, *, timeout: Duration | None = None) -> Out:
        """What it returned, once it has; raises RunFailed, RunCancelled, or NotDone after the time-out."""
        return self._app.wait(lambda _: self._handle.result(timeout=timeout))

    def info(self) -> RunInfo:
        """Where it is now."""
        return self._app.wait(lambda _: self._handle.info())

    def cancel(self, reason: str) -> None:
        """Stop it: effects under way finish, what can be undone is."""
        self._app.wait(lambda _: self._handle.cancel(reason))


class App:
    """Start runs, answer, look, steer, from blocking code. Use as `with`, or open it and close it."""

    def __init__(self, app: AsyncApp) -> None:
        self._app = app
        self._loop: Loop | None = None

    def open(self) -> Self:
        """Open the store; with agents, begin to work, and go on with what an earlier process left behind."""
        self._loop = Loop()
        try:
            self._loop.wait(self._app.open())
        except BaseException:
            self._stop()
            raise
        return self

    def close(self) -> None:
        """Let effects under way finish, give back what is being driven, and close the store."""
        if self._loop is None:
            return
        try:
            self._loop.wait(self._app.close())
        finally:
            self._stop()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        loop.end()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def wait(self, make: Callable[[AsyncApp], Coroutine[Any, Any, T]]) -> T:
        """What the app itself, on its event loop, gives."""
        if self._loop is None:
            raise StoreUnavailable(reason="the app is not open")
        return self._loop.wait(make(self._app))

    # Starting

    @overload
    def run(self, agent: Agent[None, Out], /, **about: Unpack[About]) -> Out: ...

    @overload
    def run(self, agent: Agent[In, Out], input: In, /, **about: Unpack[About]) -> Out: ...

    def run(self, agent: Agent[Any, Any], input: Any = None, /, **about: Unpack[About]) -> Any:
        """Start a run, or find the one of this id, and wait for its result."""
        return self.wait(lambda app: app.run(agent, input, **about))

    @overload
    def start(self, agent: Agent[None, Out], /, **how: Unpack[Begin]) -> Handle[Out]: ...

    @overload
    def start(self, agent: Agent[In, Out], input: In, /, **how: Unpack[Begin]) -> Handle[Out]: ...

    @overload
    def start(self, agent: str, input: Any = None, /, **how: Unpack[Begin]) -> Handle[Any]: ...

    def start(self, agent: Agent[Any, Any] | str, input: Any = None, /, **how: Unpack[Begin]) -> Handle[Any]:
        """Start a run, or find the one of this id with the same input; it goes on by itself."""
        return Handle(self.wait(lambda app: app.start(agent, input, **how)), self)

    @overload
    def get(self, run: str, agent: Agent[Any, Out], /) -> Handle[Out]: ...

    @overload
    def get(self, run: str, /) -> Handle[Any]: ...

    def get(self, run: str, agent: Agent[Any, Any] | None = None, /) -> Handle[Any]:
        """A handle on a run that exists."""
        return Handle(self.wait(lambda app: app.get(run) if agent is None else app.get(run, agent)), self)

    # Steering

    def resume(self, run: str, /) -> Handle[Any]:
        """Let a failed run go on from the step that failed, or a paused one; one that completed stays as it is."""
        return Handle(self.wait(lambda app: app.resume(run)), self)

    def pause(self, run: str, /) -> None:
        """Let a run wait until it is resumed; effects under way finish first."""
        self.wait(lambda app: app.pause(run))

    def cancel(self, run: str, /, *, reason: str) -> None:
        """Stop a run, and the runs it called: effects under way finish, and what can be undone is."""
        self.wait(lambda app: app.cancel(run, reason=reason))

    def signal(self, run: str, name: str, value: object, /) -> None:
        """Send a run something that it receives: in order, each once."""
        self.wait(lambda app: app.signal(run, name, value))

    # People

    def inbox(
        self,
        *,
        to: str | None = None,
        run: str | None = None,
        risk: str | None = None,
        older_than: Duration | None = None,
    ) -> list[Request]:
        """What waits for a person, the oldest first; `to` is a person, with the groups they are in, or a group."""
        return self.wait(lambda app: app.inbox(to=to, run=run, risk=risk, older_than=older_than))

    def answer(self, request: str | Request, answer: object, /, *, by: str) -> None:
        """Answer a request; the answer must fit what it asks for, and the first one stands."""
        self.wait(lambda app: app.answer(request, answer, by=by))

    def approve(
        self, request: str | Request, /, *, by: str, args: Mapping[str, Any] | None = None, standing: bool = False
    ) -> None:
        """Say yes; with other arguments, if they were edited; or `standing`, for this tool in the rest of this run."""
        self.wait(lambda app: app.approve(request, by=by, args=args, standing=standing))

    def reject(self, request: str | Request, /, *, by: str, because: str) -> None:
        """Say no, and why."""
        self.wait(lambda app: app.reject(request, by=by, because=because))

    def grants(self, run: str, /) -> list[Grant]:
        """The standing permissions of a run."""
        return self.wait(lambda app: app.grants(run))

    def revoke(self, run: str, grant: str, /, *, by: str, because: str = "") -> None:
        """End a standing permission: the next call of its tool asks again."""
        self.wait(lambda app: app.revoke(run, grant, by=by, because=because))

    # Looking

    def runs(
        self, *, status: str | None = None, agent: str | None = None, session: str | None = None, last: int = 50
    ) -> list[RunInfo]:
        """The newest runs that match."""
        return self.wait(lambda app: app.runs(status=status, agent=agent, session=session, last=last))

    def log(self, run: str, /) -> list[Event]:
        """Everything that happened to a run."""
        return self.wait(lambda app: app.log(run))


def open(
    url: str | None = None,
    *,
    agents: Sequence[Agent[Any, Any]] = (),
    worker: bool | Worker = True,
    people: Mapping[str, Sequence[str]] | None = None,
    notify: Mapping[str, Channel] | None = None,
    redact: bool | Sequence[str | re.Pattern[str]] | None = None,
) -> App:
    """An app for blocking code; see `limpet.open`. Nothing is touched until it is entered."""
    import limpet  # noqa: PLC0415 - the composition root, which imports this module

    return App(limpet.open(url, agents=agents, worker=worker, people=people, notify=notify, redact=redact))
