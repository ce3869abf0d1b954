"""The base of the app's topics: its settings and agents, the store, and how commands are sent."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from limpet.arguments import checked
from limpet.clock import Duration, microseconds, to_microseconds
from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.contracts import find_agent
from limpet.engine.execution.handle import Handle, Port
from limpet.engine.execution.local_runs import LocalRuns
from limpet.engine.execution.principal import Principal, principal_of
from limpet.engine.execution.views import RunInfo
from limpet.engine.worker.change_listener import ChangeListener
from limpet.engine.worker.worker import WorkerLoop
from limpet.engine.worker.worker_settings import StoreClock
from limpet.errors import InvalidArgument, NotFound, not_open, other_loop
from limpet.service.artifacts import find_artifact
from limpet.service.audit import AuditEvent, AuditLog
from limpet.service.audit_trail import AuditTrail
from limpet.service.conversations import Conversations, Delivery
from limpet.service.feed_reader import FeedReader
from limpet.service.given_times import read_time
from limpet.service.inbox import Inbox
from limpet.service.resolve import find_conversation, find_request, find_run, run_of, suggest_agent
from limpet.service.settings import Settings
from limpet.service.views import run_info
from limpet.service.workers import LiveWorkers, live_workers, waits_of
from limpet.state.run import ENDED
from limpet.stores import RunRow, Store
from limpet.times import to_datetime

if TYPE_CHECKING:
    from limpet.engine.worker.engine_loop import EngineLoop
    from limpet.engine.worker.wake_calls import WakeCalls

__all__ = ["AppCore", "FoundKind"]

FoundKind = Literal["run", "request", "conversation", "artifact"]


@checked
class AppCore:
    """The base of the app's topics."""

    topic = ""

    def __init__(self, settings: Settings, agents: Sequence[Agent[Any, Any]]) -> None:
        self._settings, self._all = settings, tuple(agents)
        self._agents: Mapping[str, Agent[Any, Any]] = {each.name: each for each in agents}
        self.local_runs = LocalRuns()
        """The runs that this process has handles on."""
        self._time = StoreClock(settings.clock)
        self._conversations = Conversations(settings, self._send, self._time.now)
        self._worker_loop: WorkerLoop | EngineLoop | None = None
        self._wake_calls: WakeCalls | None = None
        self._listener: ChangeListener | None = None
        self.audit_log = AuditLog(settings.store, settings.ids)
        self.audit_trail = AuditTrail(self.audit_log, settings.store, settings.clock)
        """Records who did what. Servers record the requests of their callers."""
        self._feed = FeedReader(settings.store, settings.clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        """Event loop on which the app was opened."""

    @property
    def address(self) -> str:
        """URL of the store, without credentials."""
        parts = urlsplit(self._settings.url)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}:{'//' if '://' in self._settings.url else ''}{host}{parts.path}"

    @property
    def store(self) -> Store:
        """The store of this app."""
        return self._settings.store

    async def now(self) -> datetime:
        """Return the time by the store's clock."""
        return to_datetime(await self.store.now())

    async def find(self, kind: FoundKind, given: str, /, *, run: str = "") -> str:
        """Return the id that a unique prefix stands for. Raises NotFound, with a note that suggests ids.

        `kind` is run, request, conversation or artifact; an artifact is one of a run.
        """
        match kind:
            case "run":
                return (await find_run(self.store, given)).id
            case "request":
                return (await find_request(self.store, given)).id
            case "conversation":
                return await find_conversation(self.store, given)
            case "artifact":
                return await find_artifact(self.store, run, given)

    async def _operate(self, operation: Any, arguments: dict[str, Any]) -> Any:
        """Run an operation with checked arguments. The result is that of the interfaces: a run, not its handle.

        A remote app sends it instead.
        """
        positional = [arguments.pop(name) for name in list(arguments) if operation.is_positional(name)]
        method = getattr(type(self), operation.function.__name__, operation.function)
        found = await method(self, *positional, **arguments)
        if operation.result_type is RunInfo and not isinstance(found, RunInfo):
            return await self._port.info(found.id if isinstance(found, Handle) else positional[0])
        return Delivery(found) if operation.result is Delivery and not isinstance(found, Delivery) else found

    async def _info(self, run: str) -> RunInfo:
        """Return the summary of a run, as lists show it."""
        row = await run_of(self.store, run)
        if row.status in ENDED:
            return run_info(row, [])
        [waits] = await waits_of(self.store, await self._live_workers(), [row])
        return run_info(row, waits)

    async def _live_workers(self) -> LiveWorkers:
        return await live_workers(self.store, self._time.now())

    async def _time_of(self, given: datetime | Duration, path: str) -> int:
        """Return a time by the store's clock: a datetime, or a duration from now."""
        given = read_time(given, path)
        if isinstance(given, datetime):
            return to_microseconds(given, path)
        return await self.store.now() + microseconds(given)

    @property
    def _inbox(self) -> Inbox:
        return Inbox(self._settings, self._send)

    def _check_open(self) -> ChangeListener:
        if self._listener is None:
            raise not_open()
        if self._loop is not asyncio.get_running_loop():
            raise other_loop()
        return self._listener

    async def _send(self, run: str, *bodies: Any, blobs: Any = (), judged: tuple[str, ...] | None = None) -> None:
        self._check_open()
        await self.store.send_commands(run, *bodies, actor=self._actor, blobs=blobs, judged=judged)
        if self._worker_loop is not None:
            self._worker_loop.wake()

    def _principal(self, who: Principal | str | None) -> Principal:
        """Return the sender of a command that arrives through this app."""
        return principal_of(who, self._settings.interface)

    def _command_id(self, given: str | None) -> str:
        """Return the caller's id of a command, or a new one."""
        if given == "":
            raise InvalidArgument(path="command_id", reason="is empty; pass an id of your own, or None")
        return self._settings.ids.new() if given is None else str.__str__(given)

    async def _record_export(self, action: str, subject: str, by: Principal | str | None) -> None:
        """Record that data leaves the store, before it does. A store that can only be read has no audit log."""
        who = self._principal(by)
        if self.store.read_only is None:
            await self.audit_log.record(AuditEvent(action=action, who=who, subject=subject))

    @property
    def _port(self) -> Port:
        """The app itself, as handles need it."""
        return cast("Port", self)

    @property
    def _actor(self) -> str:
        return self._worker_loop.id if self._worker_loop is not None else "app"

    async def _find_agent(self, name: str) -> Agent[Any, Any]:
        """Return an agent that the store knows by name. Raises NotFound, with a similar name if there is one."""
        try:
            return await find_agent(self.store, name)
        except NotFound as error:
            raise (await suggest_agent(self.store, error)) from None

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
