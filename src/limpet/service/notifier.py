"""The built-in agent that notifies a channel of a request: one run per request and channel, retried until it succeeds.

Its log contains the ids of the request and the channel. The URL and its secret stay in this process. Values that look
like credentials are removed from the notification.
"""

import inspect
from dataclasses import replace
from typing import Any

from limpet.clock import Clock
from limpet.engine.definitions.agents import Agent, AgentOptions
from limpet.engine.definitions.call_context import idempotency_key
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.traits import Traits
from limpet.engine.execution.user_code import ThreadPool
from limpet.engine.execution.views import Request
from limpet.engine.run.run import Run
from limpet.engine.waits.notifications import AGENT
from limpet.events.values import encode
from limpet.policy.retry import Retry
from limpet.redaction import hide_secrets_in
from limpet.service.json_values import as_json
from limpet.service.settings import Channel
from limpet.service.views import request_of
from limpet.service.webhooks import Webhook
from limpet.stores import RequestFilter, Store

__all__ = ["notifier"]

# About a day; at the end, once an hour.
RETRY = Retry(40, first="1s", cap="1h")
TIMEOUT = 60_000_000


def notifier(store: Store, clock: Clock, name: str, channel: Channel) -> Agent[Any, Any]:
    """Return the agent for one channel. Only processes that have this channel serve it."""

    threads = ThreadPool("limpet-notify")

    async def deliver(request: str) -> str:
        found = await _open(store, request)
        if found is None:
            return "already decided"
        if isinstance(channel, Webhook):
            body, key = encode(hide_secrets_in(as_json(found))), idempotency_key()
            await threads.run(lambda: channel.deliver(body, key=key, now=clock.now()))
        else:
            is_async = inspect.iscoroutinefunction(channel)
            result = channel(found) if is_async else await threads.run(lambda: channel(found))
            if inspect.isawaitable(result):
                await result
        return "sent"

    tool: Tool[..., Any, Any] = Tool(deliver, AGENT, Traits(effect="idempotent", retry=RETRY, timeout=TIMEOUT))

    async def notify(run: Run, notice: dict[str, Any]) -> str:
        result: str = await run.step(tool, notice["request"])
        return result

    return Agent(notify, AGENT, AgentOptions(version=name))


async def _open(store: Store, request: str) -> Request | None:
    rows = await store.requests(RequestFilter(id=request))
    found = await request_of(store, rows[0]) if rows else None
    return None if found is None else replace(found, args=hide_secrets_in(dict(found.args)))
