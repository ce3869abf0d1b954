"""Common parts of the model adapters: unique call ids, the meaning of error responses, one client per event loop."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC
from math import isfinite
from typing import Any, Generic, TypeVar

from msgspec import json, structs

from limpet.clock import SECOND, SystemClock
from limpet.engine.steps.verdict import Permanent, RetryAfter
from limpet.llm.model import Finish, PromptMessage, Thoughts, ToolCall
from limpet.redaction import hide_secrets

__all__ = [
    "PerLoop",
    "error_of",
    "finish_of",
    "format_name",
    "join_surrogates",
    "join_surrogates_in",
    "kept_by",
    "message_of",
    "thoughts_of",
    "unique_calls",
    "valid_name",
]

T = TypeVar("T")
MAX_WAIT = 86_400
"""Maximum delay that a provider can request, in seconds."""
MAX_MESSAGE = 2_000
TRANSIENT = (408, 409, 425, 429)
"""Client errors (4xx) that are not caused by the content of the request."""
WITH_RETRY_AFTER = (429, 503)


def unique_calls(calls: Iterable[ToolCall], messages: Iterable[PromptMessage]) -> tuple[ToolCall, ...]:
    """Give each call an id that is unique in its conversation."""
    if not (calls := tuple(calls)):
        return ()
    taken = {call.id for message in messages for call in message.calls}
    found: list[ToolCall] = []
    for call in calls:
        id = _free(call.id, taken)
        taken.add(id)
        found.append(call if id == call.id else structs.replace(call, id=id))
    return tuple(found)


def _free(id: str, taken: set[str]) -> str:
    if id and id not in taken:
        return id
    number = 1
    while (free := f"{id or 'call'}_{number}") in taken:
        number += 1
    return free


def finish_of(finish: str | None, calls: Sequence[ToolCall]) -> Finish:
    """Return why a reply ended. Calls take precedence over the server's reason, but they may have been cut off."""
    if finish == "length":
        return "length"
    if finish == "content_filter":
        return "refused"
    return "calls" if calls else "stop"


def join_surrogates(text: str) -> str:
    """Return text joined from pieces: split surrogate pairs are joined, and lone halves are replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def thoughts_of(by: str, kept: Any) -> Thoughts | None:
    """Return reasoning data to keep, or None if there is none."""
    return Thoughts(by=by, kept=join_surrogates_in(kept)) if kept else None


def join_surrogates_in(value: Any) -> Any:
    """Apply `whole` to every text in a JSON value."""
    if isinstance(value, dict):
        return {join_surrogates_in(name): join_surrogates_in(each) for name, each in value.items()}
    if isinstance(value, list):
        return [join_surrogates_in(each) for each in value]
    return join_surrogates(value) if isinstance(value, str) else value


def kept_by(by: str, message: PromptMessage) -> Any:
    """Return the reasoning data of a message, or None if another model produced it."""
    return message.thoughts.kept if message.thoughts is not None and message.thoughts.by == by else None


def valid_name(name: str) -> str:
    """Return a name that every provider accepts: letters, digits, _ and -, at most 64."""
    return re.sub("[^A-Za-z0-9_-]", "_", name)[:64]


def format_name(schema: Mapping[str, Any]) -> str:
    """Return a name for an output schema that every provider accepts."""
    return valid_name(str(schema.get("title") or "output"))


def message_of(body: object) -> str:
    """Return the message in the body of an error response, whatever its form."""
    if isinstance(body, dict):
        inner = body.get("message") or body.get("error") or body.get("detail")
        return message_of(inner) if inner else json.encode(body, enc_hook=str).decode()
    return "" if body is None else str(body)


def error_of(who: str, status: int, says: str, headers: Mapping[str, str], *, spent: bool = False) -> Exception | None:
    """Return the exception for an error response, or None for a plain retry.

    `spent` means that the account's quota is used up, not only its rate limit. Credentials are removed from the
    message.
    """
    text = hide_secrets(f"{who} answered {status}: {says}"[:MAX_MESSAGE])
    if spent:
        return Permanent(text)
    wait = _wait(headers) if status in WITH_RETRY_AFTER else None
    if wait is not None:
        return RetryAfter(wait, text)
    if 400 <= status < 500 and status not in TRANSIENT:
        return Permanent(text)
    return None


def _wait(headers: Mapping[str, str]) -> float | None:
    """Return the delay in seconds that a response requests, or None."""
    found = _number(headers.get("retry-after-ms", ""), 1000)
    if found is None:
        found = _number(headers.get("retry-after", ""), 1)
    if found is None:
        until, now = _date(headers.get("retry-after", "")), _date(headers.get("date", ""))
        if until is None:
            return None
        found = until - (SystemClock().now() / SECOND if now is None else now)  # its own clock, if it sends one
    return min(max(found, 0), MAX_WAIT)


def _number(text: str, per_second: int) -> float | None:
    try:
        found = float(text) / per_second
    except ValueError:
        return None
    return found if isfinite(found) and found >= 0 else None


def _date(text: str) -> float | None:
    """Return seconds since 1970, or None."""
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - slow to import

    try:
        date = parsedate_to_datetime(text)
        return date.replace(tzinfo=date.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None


class PerLoop(Generic[T]):
    """A resource that belongs to an event loop, such as open connections: one per loop, closed when the loop ends.

    `make` is called in a thread, because importing a provider's package can take seconds. Its result is entered as a
    context manager; it must not be a generator, because an event loop closes all generators when it ends.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._held: dict[asyncio.AbstractEventLoop, _Resource[T]] = {}

    async def get(self) -> T:
        """Return the resource of the running loop."""
        loop = asyncio.get_running_loop()
        held = self._held.get(loop)
        if held is None:
            held = _Resource(self._make)
            self._held = {each: kept for each, kept in self._held.items() if not each.is_closed()} | {loop: held}
        return await held.get()


class _Resource(Generic[T]):
    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._opening = asyncio.Lock()
        self._opened: list[tuple[AsyncIterator[T], T]] = []

    async def get(self) -> T:
        """Return the resource. The first caller opens it; after a failure, the next caller tries again."""
        async with self._opening:
            if not self._opened:
                # An event loop closes its generators when it ends, and a closed generator exits the context it entered.
                keeper = _keep(await asyncio.to_thread(self._make))
                self._opened.append((keeper, await anext(keeper)))
        return self._opened[0][1]


async def _keep(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    async with context as found:
        yield found
