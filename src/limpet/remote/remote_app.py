"""The app of a remote client: every operation is a request to a server, with the same arguments, results and errors.

The methods are made from the operations of `App`. What needs the store itself raises NotRemote.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from difflib import get_close_matches
from functools import wraps
from types import NoneType
from typing import Any, NoReturn, Self, TypeVar, get_origin

import msgspec

from limpet.arguments import checked
from limpet.clock import SECOND, Clock, Duration, microseconds
from limpet.engine.definitions.agents import Agent, check_agent
from limpet.engine.execution.handle import Handle, Result
from limpet.engine.execution.local_runs import LocalRuns
from limpet.engine.execution.principal import Principal
from limpet.engine.execution.views import EventView, RunInfo
from limpet.engine.worker.worker_settings import Worker
from limpet.errors import (
    InvalidArgument,
    InvalidReply,
    NotDone,
    NotFound,
    NotPermitted,
    NotRemote,
    RunCancelled,
    not_open,
    other_loop,
)
from limpet.events import bodies as b
from limpet.ids import Ids, check_id
from limpet.remote.announced_waits import announce_waits
from limpet.remote.decode import decoded, shortened
from limpet.remote.encode import sent
from limpet.remote.remote_server import RemoteServer
from limpet.service.api.core import FoundKind
from limpet.service.api.streams import ENDS
from limpet.service.app import App, run_failed
from limpet.service.conversations import Delivery
from limpet.service.operation import Operation, operations_of
from limpet.service.page import Page
from limpet.service.pieces import MAX_CHARACTER
from limpet.service.resolve import suggest, unique_prefix
from limpet.service.tokens import CallerInfo
from limpet.state import ENDED
from limpet.stores import Store

__all__ = ["RemoteApp"]

T = TypeVar("T")
# Size of the pieces in which values and artifacts are read, in bytes. As JSON, a character of a value has up to 2 bytes
# and one of a text up to 6, and a reply has less than 4 MB.
VALUE_PIECE, TEXT_PIECE = 1_900_000, 600_000
# Number of items in a page.
ITEMS = 1_000
OPERATIONS = operations_of(App)


class RemoteApp(App):
    """Start, control and inspect the runs of a store on a server. Created by `limpet.open("https://…")`."""

    def __init__(self, server: RemoteServer, clock: Clock, ids: Ids, agents: Sequence[Agent[Any, Any]] = ()) -> None:
        # The state of an app that has a store does not exist here.
        for each in agents:
            check_agent(each)
        self._server, self._clock, self._ids = server, clock, ids
        self._all = tuple(agents)
        self._agents = {each.name: each for each in agents}
        self.local_runs = LocalRuns()
        self._caller: CallerInfo | None = None
        self._loop = None

    def __repr__(self) -> str:
        return f"<app of {self._server.url}>"

    def replace(
        self,
        *,
        worker: Worker | None = None,
        store: Store | None = None,
        url: str | None = None,
        interface: str | None = None,
        idle: bool = False,
        creates_store: bool = True,
    ) -> "RemoteApp":
        """Return a copy of this app that is not open. A worker, or another store, needs the store itself."""
        del interface, idle, creates_store  # the server knows them
        for name, given in (("worker", worker), ("store", store), ("url", url)):
            if given is not None:
                raise NotRemote(what=f"replace({name}=…)")
        return RemoteApp(self._server.copy(), self._clock, self._ids, self._all)

    def with_engine(self, engine: object) -> "RemoteApp":
        """Raise NotRemote: the server has an engine of its own."""
        del engine
        raise NotRemote(what="app.with_engine")

    @property
    def is_open(self) -> bool:
        """Whether the app is open."""
        return self._caller is not None

    @property
    def address(self) -> str:
        """Address of the server."""
        return self._server.url

    @property
    def worker(self) -> None:
        """None: workers open the store itself."""

    @property
    def engine(self) -> None:
        """None: the server has the runs driven."""

    @property
    def store(self) -> Store:
        """Not available: only the server opens the store."""
        raise NotRemote(what="app.store")

    # Open and close

    async def open(self) -> Self:
        """Connect, and check the token."""
        await self._server.close()
        self._server.open()
        try:
            text = await self._server.call(OPERATIONS["whoami"], {})
            self._caller = self._decoded(text, CallerInfo)
        except BaseException:
            await self.close()
            raise
        self._loop = asyncio.get_running_loop()
        return self

    async def close(self) -> None:
        """Close the connections. Runs go on."""
        self._caller = None
        await self._server.close()

    def _owner(self) -> CallerInfo:
        """Return whose token the app has. Raises if the app is not open."""
        if self._caller is None:
            raise not_open()
        if self._loop is not asyncio.get_running_loop():
            raise other_loop()
        return self._caller

    # Send operations

    async def _operate(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        """Send an operation with its arguments, and return its result."""
        text = await self._call(operation, dict(arguments))
        for name in ("limit", "last"):
            size: Any = arguments.get(name) or getattr(operation.parameters.get(name), "default", 1)
            while shortened(text) and size > 1:  # of large items, a page holds fewer
                size //= 2
                text = await self._call(operation, {**arguments, name: size})
        if cut := shortened(text):
            fix = "Ask for less: a step, a value or an artifact, in pieces."
            raise InvalidReply(url=self._server.url, status=200, reason=f"it was shortened, at {cut[0]}", fix=fix)
        return self._decoded(text, operation.result_type if _is_other(operation) else operation.python_type)

    def _decoded(self, text: bytes, kind: Any) -> Any:
        """Return a reply as an object. Raises InvalidReply."""
        try:
            return decoded(text, kind)
        except msgspec.DecodeError as error:
            raise InvalidReply(url=self._server.url, status=200, reason=str(error)) from error

    async def _call(self, operation: Operation, given: dict[str, Any]) -> bytes:
        owner = self._owner()
        _check_sender(given.pop("by", None), owner)
        key = given.pop("command_id", None)
        if key is not None:
            key = check_id(key)
        arguments = _arguments(operation, given)
        is_repeatable = True
        if operation.is_command and key is None and "command_id" in operation.parameters:
            key = self._ids.new()
        elif operation.name in ("start", "batch"):
            arguments.setdefault("id", self._ids.new())
        elif operation.name == "fork":
            is_repeatable = "id" in arguments  # the server names it
        elif operation.name == "prune":
            is_repeatable = arguments.get("dry_run", True)  # the second reply would not tell what the first deleted
        return await self._server.call(operation, arguments, key, is_repeatable=is_repeatable)

    async def _result(self, operation: Operation, given: dict[str, Any]) -> Any:
        """Send an operation, and return what its method returns."""
        agent = given.get("agent")
        if isinstance(agent, Agent):
            check_agent(agent)
            given |= {"agent": agent.name, "input": agent.dump_input(given.get("input"))}
        found = await self._operate(operation, given)
        if operation.python_type is NoneType:
            return None
        if get_origin(operation.python_type) is Handle:
            code = agent if isinstance(agent, Agent) else self._find_code(found.agent, found.version)
            return Handle(self, found.id, code)
        return found.run if isinstance(found, Delivery) else found

    async def _items(self, operation: Operation, given: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """Yield the items of a stream."""
        self._owner()
        after = given.pop("after", None)
        async with aclosing(self._server.stream(operation, _arguments(operation, given), after)) as items:
            async for item in items:
                yield self._decoded(item, operation.result_type)

    # Methods that are not operations

    async def now(self) -> datetime:
        """Return the time by the store's clock."""
        return (await self.whoami()).time

    async def find(self, kind: FoundKind, given: str, /, *, run: str = "") -> str:
        """Return the id that a unique prefix stands for. Raises NotFound, with a note that suggests ids."""
        missing = await self._missing(kind, given, run)
        if missing is None:
            return given
        known = await self._listed(kind, given, run)
        found = [id for id in known if id.startswith(given)]
        first = unique_prefix(found)
        if first is not None:
            return first
        if found:
            fix = f"Pass more of the id: several {kind}s begin with this."
            raise suggest(NotFound(what=kind, id=given, fix=fix), found)
        if kind == "run":
            known = [each.id for each in await self.runs(last=ITEMS)]
        raise suggest(missing, get_close_matches(given, known))

    async def _listed(self, kind: FoundKind, given: str, run: str) -> list[str]:
        """Return the ids that lists show, of runs only those that contain the given one."""
        match kind:
            case "run":
                pages = _each(lambda cursor: self.runs(text=given, last=ITEMS, cursor=cursor))
                return [each.id async for each in pages]
            case "request":
                return [each.id async for each in _each(lambda cursor: self.inbox(limit=ITEMS, cursor=cursor))]
            case "conversation":
                pages = _each(lambda cursor: self.conversations(last=ITEMS, cursor=cursor))
                return [each.id async for each in pages]
            case "artifact":
                return [each.artifact_id for each in (await self.state(run)).artifacts]

    async def _missing(self, kind: FoundKind, id: str, run: str) -> NotFound | None:
        """Return the error for an id that is not a whole one, or None. What the caller may not see is left to the
        operation to refuse.
        """
        look: Mapping[FoundKind, Callable[[], Awaitable[Any]]] = {
            "run": lambda: self.grants(id),
            "request": lambda: self.request(id),
            "conversation": lambda: self.messages(id, last=1),
            "artifact": lambda: self.artifact_piece(run, id, limit=MAX_CHARACTER),
        }
        try:
            await look[kind]()
        except NotFound as error:
            return error
        except InvalidArgument:
            return NotFound(what=kind, id=id)
        except NotPermitted:
            return None
        return None

    async def get(self, run: str, agent: Agent[Any, Any] | None = None, /) -> Handle[Any]:
        """Return a handle on an existing run. With `agent`, its result has that agent's output type."""
        info = await self.info(run)
        return Handle(self, run, agent or self._find_code(info.agent, info.version))

    async def events(self, run: str, after: int = 0, *, follow: bool = True) -> AsyncIterator[EventView]:
        """Yield the events of a run until it has ended. Without `follow`, only yield those that exist now."""
        if follow:
            watched: Any = self.watch_run(run, after=str(after))
            async with aclosing(watched) as events:
                async for event in events:
                    yield event
            return
        async for event in _each(lambda cursor: self.log(run, cursor=cursor), str(after)):
            yield event

    async def artifact(self, run: str, artifact: str, /) -> bytes:
        """Return the content of an artifact: unchanged with the right `raw`, else without credentials."""
        raw, content, start = "raw" in self._owner().rights, b"", 0
        while True:
            piece = await self.artifact_piece(run, artifact, start=start, limit=TEXT_PIECE, raw=raw)
            content += (piece.text or "").encode() if piece.base64 is None else msgspec.convert(piece.base64, bytes)
            if piece.next is None:
                return content
            start = piece.next

    async def result(self, run: str, timeout: Duration | None, *, quiet: bool = False) -> Result:
        """Wait until a run has ended, and return its result. Raises RunFailed, RunCancelled, or NotDone after the
        timeout.
        """
        info = await self.info(run)
        try:
            async with asyncio.timeout(None if timeout is None or info.ended else microseconds(timeout) / SECOND):
                ended = await self._end_of(info, quiet=quiet)
        except TimeoutError:
            raise NotDone(run=run, status=info.status) from None
        match ended.kind:
            case "run.completed":
                output = ended.body["output"]
                value = await self._value(run, output["blob"]) if "blob" in output else output.get("json")
                return Result(value, output.get("versions", {}))
            case "run.failed":
                raise run_failed(run, msgspec.convert(ended.body, b.RunFailed), is_recorded=True)
            case _:
                raise RunCancelled(run=run, reason=ended.body["reason"])

    async def _end_of(self, info: RunInfo, *, quiet: bool) -> EventView:
        """Wait for the event with which a run ends, on a stream."""
        run, local = info.id, self.local_runs.of(info.id)
        while True:
            if info.status in ENDED and (ended := await self._recorded_end(run, info.position.seq)) is not None:
                return ended
            if not quiet:
                await announce_waits(self, run, local)
            watched: Any = self.watch_run(run, after=str(info.position.seq))
            async with aclosing(watched) as events:
                async for event in events:
                    if event.kind in ENDS:
                        found: EventView = event
                        return found
                    if event.kind == "run.waiting" and not quiet:
                        await announce_waits(self, run, local)
            info = await self.info(run)

    async def _recorded_end(self, run: str, seq: int) -> EventView | None:
        """Return the event with which a run has ended, which only few others follow. None if it was resumed since."""
        back = 1
        while True:
            events = [event async for event in self.events(run, max(0, seq - back), follow=False)]
            for event in reversed(events):
                if event.kind in ENDS:
                    return event
                if event.kind == "resume.requested":
                    return None
            if back >= seq:
                return None
            back *= 10

    async def _value(self, run: str, blob: str) -> Any:
        """Return a value that is not in its event, as the server shows it."""
        text, start = "", 0
        while True:
            piece = await self.value_piece(run, blob, start=start, limit=VALUE_PIECE)
            text += piece.text
            if piece.next is None:
                return self._decoded(text.encode(), Any)
            start = piece.next

    # What needs the store itself

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse the parts of an app that belong to its store."""
        if name in ("audit_log", "audit_trail"):
            raise NotRemote(what=f"app.{name}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    async def value(self, payload: Mapping[str, Any]) -> Any:
        """Return the value of a payload in an event, unless it is in a blob."""
        if "blob" in payload:
            raise NotRemote(what="app.value of a blob", fix="Call app.value_piece(run, blob).")
        return payload.get("json")


def _is_other(operation: Operation) -> bool:
    """Return whether the server sends something else than the method returns: a run instead of its handle."""
    returned = operation.python_type
    return returned is NoneType or get_origin(returned) is Handle or operation.result is Delivery


def _arguments(operation: Operation, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method as the server takes them, without defaults. Raises NotRemote."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        known = operation.sent.get(name)
        if known is None:
            if value is not None and value is not ... and name != "caller":
                raise NotRemote(what=f"{operation.name} with {name}=…")
        elif value is not known.default and (plain := sent(value, known)) is not None:
            found[name] = plain
    for name in operation.in_path:
        if found.get(name) is None:
            raise NotRemote(what=f"{operation.name} without {name}")
    return found


def _check_sender(by: Principal | str | None, owner: CallerInfo) -> None:
    """Raise InvalidArgument if a command is to be sent in the name of another caller than the token's."""
    name = by.name if isinstance(by, Principal) else by
    if name and name != owner.name:
        reason = f"is {name!r}, but the server records the owner of the token, {owner.name!r}"
        raise InvalidArgument(path="by", reason=reason, fix=f"Pass by={owner.name!r}, or open with a token of {name}.")


async def _each(read: Callable[[str | None], Any], cursor: str | None = None) -> AsyncGenerator[Any, None]:
    """Yield the items of all pages of a list."""
    while True:
        page: Page[Any] = await read(cursor)
        for item in page:
            yield item
        if (cursor := page.next) is None:
            return


def _method(operation: Operation) -> Any:
    """Return the method of an operation, which has the parameters of the one of `App`."""
    signature = inspect.signature(operation.function)
    options = next((each.name for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD), "")

    def bound(app: RemoteApp, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        given = dict(signature.bind(app, *args, **named).arguments)
        del given["self"]
        more = given.pop(options, {})
        for name in more.keys() - operation.parameters.keys():
            allowed = [each for each in operation.parameters if each not in signature.parameters]
            raise InvalidArgument(path=name, reason=f"unknown option; allowed: {', '.join(allowed)}")
        return {**more, **given}

    if operation.is_stream:

        @wraps(operation.function)
        def watch(self: RemoteApp, *args: Any, **named: Any) -> AsyncIterator[Any]:
            return self._items(operation, bound(self, args, named))

        return watch

    @wraps(operation.function)
    async def call(self: RemoteApp, *args: Any, **named: Any) -> Any:
        return await self._result(operation, bound(self, args, named))

    return call


def _refusal(name: str) -> Any:
    """Return a method that needs the store itself."""

    method = getattr(App, name)

    @wraps(method)
    async def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotRemote(what=f"app.{name}")

    @wraps(method)
    async def refuse_each(*_: Any, **__: Any) -> AsyncIterator[Any]:
        for _each in [refuse()]:
            yield await _each

    return refuse_each if inspect.isasyncgenfunction(inspect.unwrap(method)) else refuse


for _operation in OPERATIONS.values():
    setattr(RemoteApp, _operation.function.__name__, _method(_operation))
for _name in (
    *("once", "replay", "replay_all", "save_heads", "export", "load", "import_tasks", "export_audit"),
    "create_login",
):
    setattr(RemoteApp, _name, _refusal(_name))
checked(RemoteApp)
