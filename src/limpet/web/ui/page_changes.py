"""The stream that tells open pages of changes: one for all tabs of a browser."""

import asyncio
from collections.abc import AsyncGenerator

from limpet.engine.execution.principal import Principal
from limpet.service.access import may
from limpet.service.app import App
from limpet.web.ui.page_context import OPERATIONS

__all__ = ["page_changes"]

Items = AsyncGenerator[tuple[str, bytes], None]


def page_changes(app: App, who: Principal, after: str | None) -> Items:
    """Return the stream for a person: changes of runs and shared records, or of requests for one who only decides."""
    names = ("watch_runs", "watch_records") if may(who, "look") else ("watch_inbox",)
    given = {} if after is None else {"after": after}
    return _merged([OPERATIONS[name].stream(app, given, who=who) for name in names])


async def _merged(streams: list[Items]) -> Items:
    """Yield the items of several streams as they come, until one of them ends.

    A cursor may be ahead of what another stream has yet to yield. A page is fetched again after each connection, so it
    misses nothing.
    """
    coming = {asyncio.ensure_future(anext(each, None)): each for each in streams}
    try:
        while True:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                stream = coming.pop(each)
                item = each.result()
                if item is None:
                    return
                coming[asyncio.ensure_future(anext(stream, None))] = stream
                yield item
    finally:
        for each in coming:
            each.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        for stream in streams:
            await stream.aclose()
