"""What all adapters of providers do alike: tell calls apart, read what a refusal means, hold one client per loop."""

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
"""Seconds that a provider may ask us to wait."""
LONGEST_MESSAGE = 2_000
MAY_PASS = (408, 409, 425, 429)
"""Of the statuses that blame the request: those that say nothing about it."""
SAYS_WHEN = (429, 503)


def distinct(calls: Iterable[ToolCall], messages: Iterable[PromptMessage]) -> tuple[ToolCall, ...]:
    """The calls, each with an id that is unique in its conversation: one without, or with a taken one, gets another."""
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
    """Why it ended; calls count more than what a server says of them, but they may have been cut off."""
    if finish == "length":
        return "length"
    if finish == "content_filter":
        return "refused"
    return "calls" if calls else "stop"


def whole(text: str) -> str:
    """Text that came in pieces: halves of a character that were told apart are one again, and half of one is none."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def thoughts(by: str, kept: Any) -> Thoughts | None:
    """What is kept of a reply, if there is anything; text in it is whole."""
    return Thoughts(by=by, kept=whole_in(kept)) if kept else None


def whole_in(value: Any) -> Any:
    """JSON in which every text is whole."""
    if isinstance(value, dict):
        return {whole_in(name): whole_in(each) for name, each in value.items()}
    if isinstance(value, list):
        return [whole_in(each) for each in value]
    return whole(value) if isinstance(value, str) else value


def kept_by(by: str, message: PromptMessage) -> Any:
    """What was kept of a message; none, if somebody else did."""
    return message.thoughts.kept if message.thoughts is not None and message.thoughts.by == by else None


def fitting_name(name: str) -> str:
    """A tool's name as every provider takes it: letters, digits, _ and -, and not too many."""
    return re.sub("[^A-Za-z0-9_-]", "_", name)[:64]


def format_name(schema: Mapping[str, Any]) -> str:
    """What the form of an answer is called: letters, digits, _ and -, and not too many."""
    return fitting_name(str(schema.get("title") or "output"))


def message_of(body: object) -> str:
    """What a provider says in the body of an error, whatever its form."""
    if isinstance(body, dict):
        inner = body.get("message") or body.get("error") or body.get("detail")
        return message_of(inner) if inner else json.encode(body, enc_hook=str).decode()
    return "" if body is None else str(body)


def meaning(who: str, status: int, says: str, headers: Mapping[str, str], *, spent: bool = False) -> Exception | None:
    """What a step makes of a refusal; None if it is simply tried again.

    `spent` says that the account is used up, and not just its rate. What is said holds nothing that looks like a key.
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
    """The seconds that an answer asks to wait; None if it does not, or not in words that can be read."""
    found = _number(headers.get("retry-after-ms", ""), 1000)
    if found is None:
        found = _number(headers.get("retry-after", ""), 1)
    if found is None:
        until, now = _date(headers.get("retry-after", "")), _date(headers.get("date", ""))
        if until is None:
            return None
        found = until - (SystemClock().now() / SECOND if now is None else now)  # by the provider's clock, if it tells
    return min(max(found, 0), LONGEST_WAIT)


def _number(text: str, per_second: int) -> float | None:
    try:
        found = float(text) / per_second
    except ValueError:
        return None
    return found if isfinite(found) and found >= 0 else None


def _date(text: str) -> float | None:
    """Seconds since 1970."""
    try:
        date = parsedate_to_datetime(text)
        return date.replace(tzinfo=date.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None


class PerLoop(Generic[T]):
    """Something that belongs to an event loop, such as open connections: one for each, closed when its loop ends.

    `make` is called in a thread: importing a provider's package takes seconds, in which nothing else would happen. What
    it returns is entered; it must not be a generator itself, because a loop that ends closes all of them at once.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._held: dict[asyncio.AbstractEventLoop, _Held[T]] = {}

    async def get(self) -> T:
        """The one of the running loop."""
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
        """What is held; opened by the first who asks for it, and by the next if that fails."""
        async with self._opening:
            if not self._opened:
                # A loop that ends closes its generators, and a generator that is closed leaves what it entered.
                keeper = _keep(await asyncio.to_thread(self._make))
                self._opened.append((keeper, await anext(keeper)))
        return self._opened[0][1]


async def _keep(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    async with context as found:
        yield found
