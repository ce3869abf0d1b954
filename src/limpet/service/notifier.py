"""The built-in agent that notifies a channel of a request or a run: one run per notice, retried until it succeeds.

Its log contains ids and the name of the channel. The URL and its secret stay in this process. Values that look
like credentials are removed from the notification. The link to decide a request is made here, after that, and is
recorded nowhere.
"""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from limpet.clock import Clock, to_microseconds
from limpet.engine.definitions.agents import Agent, AgentOptions
from limpet.engine.definitions.call_context import idempotency_key
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.traits import Traits
from limpet.engine.execution.user_code import ThreadPool
from limpet.engine.execution.views import Request
from limpet.engine.run.run import Run
from limpet.engine.waits.notifications import AGENT
from limpet.policy.retry import Retry
from limpet.redaction import hide_secrets_in
from limpet.service.notices import Channel, NoticeChannel, RequestNotice, RunNotice
from limpet.service.views import request_of
from limpet.stores import RequestFilter, Store
from limpet.times import to_datetime

if TYPE_CHECKING:
    from limpet.service.decision_links import LinkMint

__all__ = ["notifier"]

# About a day; at the end, once an hour.
RETRY = Retry(40, first="1s", cap="1h")
TIMEOUT = 60_000_000


def notifier(
    store: Store, clock: Clock, name: str, channel: Channel, links: "LinkMint | None" = None
) -> Agent[Any, Any]:
    """Return the agent for one channel. Only processes that have this channel serve it."""

    threads = ThreadPool("limpet-notify")

    async def deliver(notice: dict[str, Any]) -> str:
        key = idempotency_key()
        found = await (_open(store, notice["request"]) if "request" in notice else _run_notice(store, notice, key))
        if found is None:
            return "already decided" if "request" in notice else "deleted"
        if links is not None and isinstance(found, Request):
            found = await _linked(store, links, channel, found)
        if isinstance(channel, NoticeChannel):
            await threads.run(lambda: channel.send(found, key=key, now=clock.now()))
        else:
            assert isinstance(found, Request), "a function is only told of requests"
            request = found
            is_async = inspect.iscoroutinefunction(channel)
            result = channel(request) if is_async else await threads.run(lambda: channel(request))
            if inspect.isawaitable(result):
                await result
        return "sent"

    tool: Tool[..., Any, Any] = Tool(deliver, AGENT, Traits(effect="idempotent", retry=RETRY, timeout=TIMEOUT))

    async def notify(run: Run, notice: dict[str, Any]) -> str:
        result: str = await run.step(tool, notice)
        return result

    return Agent(notify, AGENT, AgentOptions(version=name))


async def _open(store: Store, request: str) -> Request | None:
    rows = await store.requests(RequestFilter(id=request))
    found = await request_of(store, rows[0]) if rows else None
    return None if found is None else replace(found, args=hide_secrets_in(dict(found.args)))


async def _linked(store: Store, links: "LinkMint", channel: Channel, request: Request) -> RequestNotice:
    """Return a request with a link to decide it."""
    expires = None if request.expires is None else to_microseconds(request.expires, "expires")
    person = channel.person if isinstance(channel, NoticeChannel) else ""
    link = links.mint(request=request.id, digest=request.digest, person=person, expires=expires, now=await store.now())
    return RequestNotice.of(request, link)


async def _run_notice(store: Store, notice: Mapping[str, Any], key: str) -> RunNotice | None:
    """Return a notice of a run, None if it was deleted since."""
    row = (await store.rows([notice["run"]])).get(notice["run"])
    if row is None:
        return None
    return RunNotice(
        delivery=key,
        what=notice["what"],
        run=row.id,
        agent=row.agent,
        version=row.agent_version,
        status=row.status,
        waits_for=tuple(notice["waits_for"]),
        time=to_datetime(row.time),
    )
