"""Server-sent events: a stream of items over one HTTP response.

Each item is a message with its cursor as `id`, so that a client that was cut off goes on with `Last-Event-ID`. A stream
that begins now first sends a cursor without an item. The last message has a name: `end` if there is nothing more,
`resume` if the client should reconnect, and `error` with a problem.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from limpet.engine.execution.principal import Principal
from limpet.errors import AuthUnavailable, LimpetError, TooManyRequests
from limpet.service.access import RECHECK
from limpet.service.operation import FellBehind
from limpet.web.access_log import note
from limpet.web.replies import problem_of, refused

__all__ = ["ABORT", "MEDIA_TYPE", "STREAMING", "EventStream", "StreamLimits"]

ABORT = "limpet.abort"
"""Key in the scope of a request: a function that drops the connection."""
STREAMING = "limpet.streaming"
"""Key in the scope of a request that is answered with a stream."""
MEDIA_TYPE = "text/event-stream"
HEADERS = [(b"content-type", MEDIA_TYPE.encode()), (b"x-accel-buffering", b"no")]  # a proxy must not collect items
# Streams at once, and those of one caller.
MOST, OF_ONE_CALLER = 10_000, 4_000
# Seconds between two looks at the caller's rights, of silence before a comment is sent, and that a client may take
# nothing before it is dropped.
RECHECKED, SILENCE, STALLED = 1.0, 15.0, 30.0
# Seconds that an error of the request may take to become a reply of its own. A stream without items begins then.
FIRST = 0.25
COMMENT = b": \n\n"
END, RESUME = b"event: end\ndata: {}\n\n", b"event: resume\ndata: {}\n\n"


class StreamLimits:
    """Counts streams, which do not count as requests."""

    def __init__(self) -> None:
        self._open: Counter[Hashable] = Counter()

    @contextmanager
    def opened(self, who: Principal) -> Iterator[None]:
        """Count a stream of a caller while it is open. Raises TooManyRequests."""
        key = (who.tenant, who.name)
        if self._open.total() >= MOST or self._open[key] >= OF_ONE_CALLER:
            raise TooManyRequests(reason=f"{self._open[key]} streams of {who.name} are already open", seconds=10)
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]


class EventStream(Response):
    """A response that sends items until they end, the client leaves, or the caller may not see them any more."""

    def __init__(
        self,
        items: AsyncGenerator[tuple[str, bytes], None],
        who: Principal,
        limits: StreamLimits,
        stopping: asyncio.Event,
    ) -> None:
        super().__init__(status_code=200)
        self._items, self._who, self._limits, self._stopping = items, who, limits, stopping
        self._sent = self._begun = 0.0
        """When the last message was sent, and when the one began that is being sent, by the loop's clock."""
        self._is_sending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. An error before the first item is a reply of its own."""
        scope[STREAMING] = True
        try:
            with self._limits.opened(self._who):
                await self._serve(scope, receive, send)
        except LimpetError as error:
            note(scope, code=error.code)
            await refused(error)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._items):
            first = asyncio.ensure_future(anext(self._items, None))
            leaving = asyncio.ensure_future(_left(receive))
            tasks: list[asyncio.Future[Any]] = [first, leaving]
            try:
                await asyncio.wait(tasks, timeout=FIRST, return_when=asyncio.FIRST_COMPLETED)
                if first.done() and isinstance(error := first.exception(), LimpetError):
                    raise error  # of the request
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                if scope["method"] == "HEAD":
                    await send({"type": "http.response.body"})
                    return
                self._sent = asyncio.get_running_loop().time()
                sending = asyncio.ensure_future(self._send_items(first, send))
                ticking = asyncio.ensure_future(self._tick(scope, send))
                tasks += [sending, ticking]
                await asyncio.wait([leaving, sending, ticking], return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    return
                last = sending.result() if sending.done() else ticking.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        await self._finish(last, scope, send)

    async def _send_items(self, first: "asyncio.Future[tuple[str, bytes] | None]", send: Send) -> bytes:
        """Send all items; return the last message."""
        try:
            item = await first
            while item is not None:
                cursor, text = item
                data = b"data: %s\n" % text if text else b""
                await self._send(b"id: %s\n%s\n" % (cursor.encode(), data), send)
                item = await anext(self._items, None)
        except FellBehind:
            return RESUME
        except LimpetError as error:
            return b"event: error\ndata: %s\n\n" % msgspec.json.encode(problem_of(error), enc_hook=str)
        return END

    async def _tick(self, scope: Scope, send: Send) -> bytes:
        """Look at the caller's rights, and send something after a silence. Returns the last message when the stream has
        to end; nothing if the client does not take anything.
        """
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RECHECKED):
                    await self._stopping.wait()
                    return RESUME
            if self._is_sending and loop.time() - self._begun > STALLED:
                return b""
            if not self._is_sending and loop.time() - self._sent > SILENCE:
                try:
                    async with asyncio.timeout(STALLED):
                        await self._send(COMMENT, send)
                except TimeoutError:
                    return b""
            if not await self._is_unchanged(scope):
                return RESUME  # the next request is refused, or gets what the caller may see now

    async def _is_unchanged(self, scope: Scope) -> bool:
        """Return whether the caller still has the same rights."""
        recheck: Callable[[], Awaitable[Principal | None]] | None = scope.get(RECHECK)
        if recheck is None:
            return True
        try:
            return await recheck() == self._who
        except (AuthUnavailable, TooManyRequests):
            return True  # not known at the moment

    async def _send(self, message: bytes, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self._is_sending, self._begun = True, loop.time()
        try:
            await send({"type": "http.response.body", "body": message, "more_body": True})
        finally:
            self._is_sending, self._sent = False, loop.time()

    async def _finish(self, last: bytes, scope: Scope, send: Send) -> None:
        """Send the last message. Drop the connection if the client does not take it."""
        try:
            async with asyncio.timeout(RECHECKED if last else 0):
                await send({"type": "http.response.body", "body": last, "more_body": False})
        except TimeoutError:
            scope.get(ABORT, lambda: None)()


async def _left(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
