"""httpx: the current step's idempotency key goes out with every request, by itself.

    client = httpx.AsyncClient(event_hooks=limpet.adapters.httpx.async_hooks())

A request that has an `Idempotency-Key` keeps it. Outside of a step, in a tool without effect and in a `verify` nothing
is sent. httpx itself is not imported: a hook only touches the headers of the request that it is given.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from limpet.engine.definitions.call_context import header_key

__all__ = ["HEADER", "async_hooks", "hooks"]

HEADER = "Idempotency-Key"


class _Request(Protocol):
    @property
    def headers(self) -> MutableMapping[str, str]: ...


def hooks() -> dict[str, list[Callable[[Any], None]]]:
    """The `event_hooks` of an `httpx.Client`."""
    return {"request": [_send_key]}


def async_hooks() -> dict[str, list[Callable[[Any], Awaitable[None]]]]:
    """The `event_hooks` of an `httpx.AsyncClient`."""
    return {"request": [_send_key_async]}


def _send_key(request: _Request) -> None:
    key = header_key()
    if key and HEADER not in request.headers:
        request.headers[HEADER] = key


async def _send_key_async(request: _Request) -> None:
    _send_key(request)
