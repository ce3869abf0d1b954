"""Common parts of the model adapters: unique call ids, the meaning of error responses, one client per event loop."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, Generic, TypeVar

from msgspec import json, structs

from limpet.clock import SECOND, SystemClock
from limpet.engine.steps.verdict import Permanent, RetryAfter
from limpet.llm.model import Finish, PromptMessage, Thoughts, ToolCall
from limpet.redaction import hide_secrets

__all__ = [
    "PerLoop",
    "distinct",
    "finish_of",
    "fitting_name",
    "format_name",
    "kept_by",
    "meaning",
    "message_of",
    "thoughts",
    "whole",
    "whole_in",
]

T = TypeVar("T")
LONGEST_WAIT = 86_400
"""Maximum delay that a provider can request, in seconds."""
LONGEST_MESSAGE = 2_000
MAY_PASS = (408, 409, 425, 429)
"""Client errors (4xx) that are not caused by the content of the request."""
SAYS_WHEN = (429, 503)


def distinct(calls: Iterable[ToolCall], messages: Iterable[PromptMessage]) -> tuple[ToolCall, ...]:
    """Give each call an id that is unique in its conversation."""
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


def whole(text: str) -> str:
    """Return text joined from pieces: split surrogate pairs are joined, and lone halves are replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def thoughts(by: str, kept: Any) -> Thoughts | None:
    """Return reasoning data to keep, or None if there is none."""
    return Thoughts(by=by, kept=whole_in(kept)) if kept else None


def whole_in(value: Any) -> Any:
    """Apply `whole` to every text in a JSON value."""
    if isinstance(value, dict):
        return {whole_in(name): whole_in(each) for name, each in value.items()}
    if isinstance(value, list):
        return [whole_in(each) for each in value]
    return whole(value) if isinstance(value, str) else value


def kept_by(by: str, message: PromptMessage) -> Any:
    """Return the reasoning data of a message, or None if another model produced it."""
    return message.thoughts.kept if message.thoughts is not None and message.thoughts.by == by else None


def fitting_name(name: str) -> str:
    """Return a name that every provider accepts: letters, digits, _ and -, at most 64."""
    return re.sub("[^A-Za-z0-9_-]", "_", name)[:64]


def format_name(schema: Mapping[str, Any]) -> str:
    """Return a name for an output schema that every provider accepts."""
    return fitting_name(str(schema.get("title") or "output"))


def message_of(body: object) -> str:
    """Return the message in the body of an error response, whatever its form."""
    if isinstance(body, dict):
        inner = body.get("message") or body.get("error") or body.get("detail")
        return message_of(inner) if inner else json.encode(body, enc_hook=str).decode()
    return "" if body is None else str(body)


def meaning(who: str, status: int, says: str, headers: Mapping[str, str], *, spent: bool = False) -> Exception | None:
    """Return the exception for an error response, or None for a plain retry.

    `spent` means that the account's quota is used up, not only its rate limit. Credentials are removed from the
    message.
    """
    text = hide_secrets(f"{who} answered {status}: {says}"[:LONGEST_MESSAGE])
    if spent:
        return Permanent(text)
    wait = _wait(headers) if status in SAYS_WHEN else None
    if wait is not None:
        return RetryAfter(wait, text)
    if 400 <= status < 500 and status not in MAY_PASS:
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
    return min(max(found, 0), LONGEST_WAIT)


def _number(text: str, per_second: int) -> float | None:
    try:
        found = float(text) / per_second
    except ValueError:
        return None
    return found if isfinite(found) and found >= 0 else None


def _date(text: str) -> float | None:
    """Return seconds since 1970, or None."""
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
        self._held: dict[asyncio.AbstractEventLoop, _Held[T]] = {}

    async def get(self) -> T:
        """Return the resource of the running loop."""
        loop = asyncio.get_running_loop()
        held = self._held.get(loop)
        if held is None:
            held = _Held(self._make)
            self._held = {each: kept for each, kept in self._held.items() if not each.is_closed()} | {loop: held}
        return await held.get()


class _Held(Generic[T]):
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
