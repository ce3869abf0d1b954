"""Subscriptions: streams that tell clients which resources and tasks have changed.

Each app has one reader of its feed for all streams. A stream keeps what has changed since its client took something, so
its memory is bounded by what the client subscribed to. Closing a stream ends nothing else.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import mcp_types as t
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import (
    SUBSCRIPTION_ID_META_KEY,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    event_matches,
    event_to_notification,
)
from msgspec.structs import replace

from limpet.errors import AuthUnavailable, LimpetError, TooManyRequests
from limpet.mcp.offer import TASKS, McpCall
from limpet.mcp.resources import ResourceTable
from limpet.service.access import RECHECK, STOPPING
from limpet.service.app import App

__all__ = ["ChangeFeed", "Listening", "missing_tasks"]

# Streams at once, those of one caller, and URIs of one stream.
MOST, OF_ONE_CALLER, MOST_URIS = 1_000, 100, 500
TaskNotice = Callable[[McpCall, str], Awaitable[dict[str, Any] | None]]


class ChangeFeed:
    """The changes of an app, read once for all streams of this process."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._streams: dict[_Stream, None] = {}
        self._reading: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None

    @asynccontextmanager
    async def given_to(self, stream: "_Stream") -> AsyncIterator[None]:
        """Give changes to a stream. Nothing is missed once this is entered."""
        self._streams[stream] = None
        try:
            if self._ready is None or self._reading is None or self._reading.done():
                self._ready = asyncio.get_running_loop().create_future()
                self._reading = asyncio.create_task(self._read(self._ready), name="limpet:mcp-changes")
            await asyncio.shield(self._ready)
            yield
        finally:
            del self._streams[stream]
            if not self._streams and self._reading is not None:
                self._reading.cancel()
                self._reading = None

    def publish(self, event: ServerEvent) -> None:
        """Tell all streams that want to know of an event."""
        for stream in self._streams:
            stream.tell(event)

    async def _read(self, ready: "asyncio.Future[None]") -> None:
        try:
            async with aclosing(self._app._changed_names()) as changes:  # type: ignore[type-var]
                async for changed in changes:
                    if not ready.done():
                        ready.set_result(None)
                    for stream in list(self._streams):
                        stream.change(changed)
        except LimpetError as error:  # the store cannot be read: clients subscribe again
            if not ready.done():
                ready.set_exception(error)
            for stream in list(self._streams):
                stream.end()


class _Stream:
    """The wishes of one client, and the changes that it has not been told of yet."""

    def __init__(self, wanted: t.SubscriptionFilter, watched: Mapping[str, list[str]], tasks: Iterable[str]) -> None:
        self._wanted, self._watched = wanted, watched
        self._uris, self._tasks = frozenset(wanted.resource_subscriptions or ()), frozenset(tasks)
        self._events: dict[ServerEvent, None] = {}
        self._changed_tasks: dict[str, None] = {}
        self.ready = asyncio.Event()
        self.is_ended = False

    def change(self, names: frozenset[str]) -> None:
        """Note what has changed in the store."""
        is_any = "*" in names
        for name in self._watched if is_any else names & self._watched.keys():
            for uri in self._watched[name]:
                self.tell(ResourceUpdated(uri))
        if is_any or "runs" in names:
            self.tell(ResourcesListChanged())
        changed = [each for each in self._tasks if is_any or f"run:{each}" in names]
        if changed:
            self._changed_tasks |= dict.fromkeys(changed)
            self.ready.set()

    def tell(self, event: ServerEvent) -> None:
        """Note an event, if the client wants to know of it."""
        if event_matches(self._wanted, self._uris, event):
            self._events[event] = None
            self.ready.set()

    def end(self) -> None:
        """End the stream."""
        self.is_ended = True
        self.ready.set()

    def take(self) -> tuple[list[ServerEvent], list[str]]:
        """Return the events and tasks that the client has not been told of."""
        self.ready.clear()
        found = [*self._events], [*self._changed_tasks]
        self._events.clear()
        self._changed_tasks.clear()
        return found


class Listening:
    """Serves `subscriptions/listen`: one call is one stream."""

    def __init__(self, resources: ResourceTable, task_notice: TaskNotice) -> None:
        self._resources, self._task_notice = resources, task_notice
        self._open: Counter[tuple[str, str]] = Counter()

    async def __call__(
        self, call: McpCall, changes: ChangeFeed, wanted: t.SubscriptionFilter
    ) -> t.SubscriptionsListenResult:
        """Send what changes until the client leaves, the server stops, or the caller's rights change."""
        key = (call.who.tenant, call.who.name)
        if self._open.total() >= MOST or self._open[key] >= OF_ONE_CALLER:
            raise MCPError(t.INTERNAL_ERROR, f"{self._open[key]} subscriptions of {call.who.name} are already open")
        honored, watched, tasks = await self._honored(call, wanted)
        stream, meta = _Stream(honored, watched, tasks), {SUBSCRIPTION_ID_META_KEY: call.context.request_id}
        self._open[key] += 1
        try:
            async with changes.given_to(stream):
                await _send(call, _acknowledged(honored, meta))
                await self._serve(call, stream, meta)
        finally:
            self._open[key] -= 1
        return t.SubscriptionsListenResult(_meta=meta)

    async def _serve(self, call: McpCall, stream: _Stream, meta: dict[str, Any]) -> None:
        scope = {} if call.context.request is None else call.context.request.scope
        stopping = _stopped(scope.get(STOPPING), stream)
        try:
            while True:
                await stream.ready.wait()
                events, tasks = stream.take()
                if stream.is_ended or not await _is_unchanged(call, scope):
                    return
                for event in events:
                    await _send(call, event_to_notification(event, meta))
                for task in tasks:
                    notice = await self._task_notice(call, task)
                    if notice is not None:
                        await _send(call, _TaskNotification(params={**notice, "_meta": meta}))
        finally:
            stopping.cancel()

    async def _honored(
        self, call: McpCall, wanted: t.SubscriptionFilter
    ) -> tuple[t.SubscriptionFilter, dict[str, list[str]], list[str]]:
        """Return the part of a filter that is honored, the URIs of each name that changes, and the tasks."""
        uris, watched = list[str](), dict[str, list[str]]()
        for uri in dict.fromkeys((wanted.resource_subscriptions or [])[:MOST_URIS]):
            name = await self._name_of(call, uri)
            if name:
                uris.append(uri)
                watched.setdefault(name, []).append(uri)
        tasks = _tasks_of(call, wanted)
        honored = t.SubscriptionFilter(
            tools_list_changed=wanted.tools_list_changed or None,
            prompts_list_changed=wanted.prompts_list_changed or None,
            resources_list_changed=(wanted.resources_list_changed and call.may("runs")) or None,
            resource_subscriptions=uris or None,
            **({"taskIds": tasks} if tasks else {}),
        )
        return honored, watched, tasks

    async def _name_of(self, call: McpCall, uri: str) -> str:
        """Return what a change of a resource is announced under; empty if the caller may not read it, or none is."""
        try:
            offer, values = self._resources.find(uri)
            return await offer.watches(call, values) if offer.watches is not None and offer.may_use(call.who) else ""
        except LimpetError:
            return ""  # there is no such resource: its subscription is left out of the acknowledgement


class _TaskNotification(t.Notification[dict[str, Any], str]):
    """A change of a task."""

    method: str = "notifications/tasks"
    params: dict[str, Any]


def _tasks_of(call: McpCall, wanted: t.SubscriptionFilter) -> list[str]:
    """Return the tasks of a filter. Raises MCPError unless the client supports tasks."""
    given = (wanted.model_extra or {}).get("taskIds") or []
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise MCPError(t.INVALID_PARAMS, "taskIds must be a list of texts")
    if given and not call.has_tasks:
        raise missing_tasks()
    return list(dict.fromkeys(given[:MOST_URIS])) if call.may("info") else []


def missing_tasks() -> MCPError:
    """Return the error for a client that does not say that it supports tasks."""
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    return MCPError(t.MISSING_REQUIRED_CLIENT_CAPABILITY, f"The client must declare the extension {TASKS}", needed)


def _acknowledged(honored: t.SubscriptionFilter, meta: dict[str, Any]) -> t.SubscriptionsAcknowledgedNotification:
    params = t.SubscriptionsAcknowledgedNotificationParams(notifications=honored, _meta=meta)
    return t.SubscriptionsAcknowledgedNotification(params=params)


async def _send(call: McpCall, notification: Any) -> None:
    await call.context.session.send_notification(notification, related_request_id=call.context.request_id)


def _stopped(stopping: asyncio.Event | None, stream: _Stream) -> "asyncio.Task[None]":
    """End a stream when the server stops."""

    async def wait() -> None:
        if stopping is not None:
            await stopping.wait()
            stream.end()

    return asyncio.create_task(wait())


async def _is_unchanged(call: McpCall, scope: Mapping[str, Any]) -> bool:
    """Return whether the caller still has the same rights. They are looked up before anything is sent."""
    recheck: Callable[[], Awaitable[Any]] | None = scope.get(RECHECK)
    if recheck is None:
        return True
    try:
        found = await recheck()
    except (AuthUnavailable, TooManyRequests):
        return True  # not known at the moment
    return found is not None and replace(found, door=call.who.door) == call.who
