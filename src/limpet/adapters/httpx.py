"""httpx: send the idempotency key of the current step with every request, automatically.

    client = httpx.AsyncClient(event_hooks=limpet.adapters.httpx.async_hooks())

A request that already has an `Idempotency-Key` keeps it. Outside of a step, in a tool without effect and in a `verify`,
no key is sent. httpx itself is not imported: a hook only changes the headers of the request.
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
    """Return the `event_hooks` for an `httpx.Client`."""
    return {"request": [_send_key]}


def async_hooks() -> dict[str, list[Callable[[Any], Awaitable[None]]]]:
    """Return the `event_hooks` for an `httpx.AsyncClient`."""
    return {"request": [_send_key_async]}


def _send_key(request: _Request) -> None:
    key = header_key()
    if key and HEADER not in request.headers:
        request.headers[HEADER] = key


async def _send_key_async(request: _Request) -> None:
    _send_key(request)
