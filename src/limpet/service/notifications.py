"""The built-in agent that tells people of requests: once for each channel, again until it was taken.

What is kept in its log is which request and which channel; the address and its secret are this process's own. What
looks like a secret in what is asked is not told.
"""

import inspect
from dataclasses import asdict, replace
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
from limpet.service.settings import Channel
from limpet.service.views import request_of
from limpet.service.webhooks import Webhook
from limpet.stores import RequestFilter, Store

__all__ = ["notifier"]

# About a day, at last once an hour.
PATIENCE = Retry(40, first="1s", cap="1h")
ONE_TRY = 60_000_000


def notifier(store: Store, clock: Clock, name: str, channel: Channel) -> Agent[Any, Any]:
    """The agent for one channel, which only those serve who know it."""

    threads = ThreadPool("limpet-notify")

    async def tell(request: str) -> str:
        found = await _open(store, request)
        if found is None:
            return "it was decided meanwhile"
        if isinstance(channel, Webhook):
            body, key = encode(hide_secrets_in(asdict(found))), idempotency_key()
            await threads.run(lambda: channel.deliver(body, key=key, now=clock.now()))
        else:
            is_async = inspect.iscoroutinefunction(channel)
            told = channel(found) if is_async else await threads.run(lambda: channel(found))
            if inspect.isawaitable(told):
                await told
        return "told"

    tool: Tool[..., Any, Any] = Tool(tell, AGENT, Traits(effect="idempotent", retry=PATIENCE, timeout=ONE_TRY))

    async def notify(run: Run, told: dict[str, Any]) -> str:
        result: str = await run.step(tool, told["request"])
        return result

    return Agent(notify, AGENT, AgentOptions(version=name))


async def _open(store: Store, request: str) -> Request | None:
    rows = await store.requests(RequestFilter(id=request))
    found = await request_of(store, rows[0]) if rows else None
    return None if found is None else replace(found, args=hide_secrets_in(dict(found.args)))
