"""A Limpet server, as its clients see it: requests that are repeated until they are answered, and streams.

A request carries the token, so plain HTTP is only used on the same machine, and redirects are not followed. A command
has an id, so repeating it after a lost reply has no further effect.
"""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

import httpx
import msgspec

from limpet.clock import SECOND, Clock
from limpet.errors import (
    AuthUnavailable,
    ConnectionLost,
    InvalidArgument,
    InvalidReply,
    LimpetError,
    Retryable,
    ServerBusy,
    StoreUnavailable,
    TooManyRequests,
    not_open,
)
from limpet.ids import check_id
from limpet.remote.decode import problem_error
from limpet.remote.sse import StreamMessage, messages_of
from limpet.service.json_views import VERSION
from limpet.service.operation import TIMEOUT, Operation

__all__ = ["RemoteServer", "checked_url"]

log = logging.getLogger("limpet")

ROOT = f"/v{VERSION}"
FIX = "Pass the address of `limpet serve`: https://host, or http://127.0.0.1:8700 on the same machine."
# Seconds to wait for a connection, for the reply of an operation, and for the next byte of a stream: a server sends
# something every 15 s.
CONNECT, REPLY, SILENCE = 10.0, TIMEOUT + 15.0, 45.0
# Delays between two attempts, in microseconds.
FIRST_DELAY, LONGEST_DELAY = SECOND // 20, 2 * SECOND
PATIENCE = 20 * SECOND
# A token beyond this, or with other characters, cannot be sent as a header.
LONGEST_TOKEN = 8_000


class _NoReply(NamedTuple):
    """Why a request has no result, and whether it may have had an effect."""

    error: LimpetError
    may_be_done: bool


class RemoteServer:
    """A server, and the token of its caller."""

    def __init__(self, url: str, token: str | None, clock: Clock, patience: int | None = None) -> None:
        self.url = checked_url(url)
        self._token, self._clock, self._patience = (
            _checked_token(token),
            clock,
            PATIENCE if patience is None else patience,
        )
        self._http: httpx.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"<server {self.url}>"

    def copy(self) -> "RemoteServer":
        """Return the same server, not open."""
        return RemoteServer(self.url, self._token, self._clock, self._patience)

    def open(self) -> None:
        """Prepare to send requests; the first one connects."""
        headers = {} if self._token is None else {"authorization": f"Bearer {self._token}"}
        is_encrypted = self.url.startswith("https:")
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(REPLY, connect=CONNECT),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),  # each stream has a connection
            follow_redirects=False,
            trust_env=is_encrypted,  # plain HTTP does not leave the machine through a proxy
            verify=is_encrypted,  # without TLS, certificates need not be loaded
        )

    async def close(self) -> None:
        """Close the connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def call(
        self, operation: Operation, given: Mapping[str, Any], key: str | None = None, *, is_repeatable: bool = True
    ) -> bytes:
        """Send an operation with its arguments, and return the reply as JSON. `key` makes a command repeatable.

        Raises StoreUnavailable if the reply to a command is lost that cannot be repeated.
        """
        rest = {name: value for name, value in given.items() if name not in operation.in_path}
        headers = {} if key is None else {"idempotency-key": key}
        url = self._url_of(operation, given)
        began, delay = self._clock.ticks(), FIRST_DELAY
        while True:
            found = await self._attempt(operation, url, rest, headers)
            if isinstance(found, bytes):
                return found
            if found.may_be_done and not is_repeatable:
                raise _unknown(found.error, operation.name)
            left = self._patience - (self._clock.ticks() - began)
            if not _passes(found.error) or left <= 0:
                raise found.error
            await self._clock.sleep(min(_delay_of(found.error, delay), left))
            delay = min(2 * delay, LONGEST_DELAY)

    async def _attempt(
        self, operation: Operation, url: str, rest: Mapping[str, Any], headers: Mapping[str, str]
    ) -> bytes | _NoReply:
        """Send a request once. Returns the body of the reply, or why there is none."""
        sent: dict[str, Any] = {"headers": headers, "params": _query(rest)}
        if operation.is_command:
            sent = {"headers": {**headers, "content-type": "application/json"}, "content": msgspec.json.encode(rest)}
        try:
            reply = await self._client.request(operation.http_method, url, **sent)
        except httpx.HTTPError as error:
            is_sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            return _NoReply(self._no_reply(error, operation), may_be_done=is_sent)
        except (httpx.InvalidURL, UnicodeError) as error:
            return _NoReply(InvalidArgument(path=operation.name, reason=str(error)), may_be_done=False)
        except RuntimeError:
            if self._http is None:
                raise not_open() from None  # it was closed meanwhile
            raise
        if reply.is_success:
            return reply.content
        told = self._error_of(reply)
        return _NoReply(told, may_be_done=isinstance(told, Retryable | StoreUnavailable))

    async def stream(
        self, operation: Operation, given: Mapping[str, Any], after: str | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the items of a stream as JSON. After a cut connection, it goes on from the last item."""
        rest = {name: value for name, value in given.items() if name not in operation.in_path}
        url, delay, cursor = self._url_of(operation, given), FIRST_DELAY, None
        if after is not None:
            rest["after"] = after
        while True:
            try:
                async with aclosing(self._connection(operation, url, rest, cursor)) as messages:
                    async for message in messages:
                        if message.event == "end":
                            return
                        cursor, delay = message.id or cursor, FIRST_DELAY
                        if message.data:
                            yield message.data
                await self._clock.sleep(FIRST_DELAY)  # the server asked for a new connection
            except LimpetError as error:
                delay = await self._before_next(operation, error, delay)

    async def _before_next(self, operation: Operation, error: LimpetError, delay: int) -> int:
        """Wait before a stream connects again, and return the next delay. Raises an error that does not pass."""
        if self._http is None or not _passes(error):
            raise error
        if delay == FIRST_DELAY:  # once for each outage
            log.warning("%s was interrupted, and goes on when the server answers: %s", operation.name, error)
        await self._clock.sleep(_delay_of(error, delay))
        return min(2 * delay, LONGEST_DELAY)

    async def _connection(
        self, operation: Operation, url: str, rest: Mapping[str, Any], after: str | None
    ) -> AsyncGenerator[StreamMessage, None]:
        """Yield the messages of one connection, until the server says how the stream goes on."""
        headers = {"accept": "text/event-stream", **({} if after is None else {"last-event-id": after})}
        timeout = httpx.Timeout(SILENCE, connect=CONNECT)
        try:
            async with self._client.stream("GET", url, params=_query(rest), headers=headers, timeout=timeout) as reply:
                if not reply.is_success:
                    await reply.aread()
                    raise self._error_of(reply)
                async for message in messages_of(reply.aiter_bytes()):
                    if message.event == "resume":
                        return
                    if message.event == "error":
                        raise problem_error(message.data)
                    yield message
                    if message.event == "end":
                        return
        except httpx.HTTPError as error:
            raise self._no_reply(error, operation) from error
        except (httpx.InvalidURL, UnicodeError) as error:
            raise InvalidArgument(path=operation.name, reason=str(error)) from error
        raise ConnectionLost(reason=f"{self.url} closed the connection")

    @property
    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            raise not_open()
        return self._http

    def _url_of(self, operation: Operation, given: Mapping[str, Any]) -> str:
        assert operation.path is not None
        for name in operation.in_path:
            if not operation.parameters[name].about.is_free_text:
                check_id(str(given[name]))
            elif given[name] in ("", ".", ".."):
                raise InvalidArgument(path=name, reason=f"{given[name]!r} cannot be sent in a URL")
        named = {name: quote(str(given[name]), safe="") for name in operation.in_path}
        return f"{self.url}{ROOT}{operation.path.format(**named)}"

    def _no_reply(self, error: httpx.HTTPError, operation: Operation) -> LimpetError:
        """Return the error for a request without a reply."""
        reason = f"no answer from {self.url}: {str(error) or type(error).__name__}"
        if isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol):
            return InvalidArgument(path=operation.name, reason=str(error))
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            fix = f"Start `limpet serve` there, or correct the address {self.url}. Nothing was sent."
            return StoreUnavailable(reason=reason, fix=fix)
        if not operation.is_command:
            return StoreUnavailable(reason=reason, fix="Retry later. A query changes nothing.")
        return ConnectionLost(reason=reason)

    def _error_of(self, reply: httpx.Response) -> LimpetError:
        """Return the error that a reply stands for. One that is not a problem came from another server or a proxy."""
        if reply.headers.get("content-type", "").startswith("application/problem+json"):
            return problem_error(reply.content)
        if reply.status_code in (502, 503, 504):
            return ConnectionLost(reason=f"a proxy before {self.url} replied {reply.status_code}")
        where = reply.headers.get("location")
        reason = "it is not the reply of a Limpet server" if where is None else f"it redirects to {where}"
        return InvalidReply(url=self.url, status=reply.status_code, reason=reason)


def _passes(error: LimpetError) -> bool:
    """Return whether a request may succeed if it is repeated."""
    return isinstance(error, Retryable | StoreUnavailable | ServerBusy | TooManyRequests | AuthUnavailable)


def _delay_of(error: LimpetError, delay: int) -> int:
    """Return how long to wait before the next attempt, in microseconds: as long as the server asks for, if it does."""
    return error.seconds * SECOND if isinstance(error, TooManyRequests | ServerBusy) else delay


def _unknown(error: LimpetError, what: str) -> StoreUnavailable:
    """Return the error for a command that may have been done, and that would be done again if it were repeated."""
    return StoreUnavailable(
        reason=f"the reply to `{what}` was lost, so it may have been done ({error.summary})",
        fix="Run `limpet audit` or `limpet runs` to see whether it was done, before you repeat it.",
    )


def _query(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for the query of a URL."""
    return {name: ("true" if value else "false") if isinstance(value, bool) else value for name, value in given.items()}


def checked_url(url: str) -> str:
    """Return the address of a server without a slash at its end. Raises InvalidArgument."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgument(path="url", reason=str(error), fix=FIX) from None
    if not host:
        raise InvalidArgument(path="url", reason=f"{url!r} has no host", fix=FIX)
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument(path="url", reason="has a user or password", fix="Pass token=, or set LIMPET_TOKEN.")
    if parts.query or parts.fragment:
        raise InvalidArgument(path="url", reason="has a query or fragment", fix=FIX)
    if parts.scheme == "http" and not _is_loopback(host):
        reason = f"{url!r} would send the token unencrypted to another machine"
        raise InvalidArgument(path="url", reason=reason, fix=f"Use https://{parts.netloc}.")
    return SplitResult(parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "").geturl()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _checked_token(token: str | None) -> str | None:
    """Return a token that can be sent as a header. The error does not show it."""
    text = "" if token is None else token.strip()
    if token is None or (0 < len(text) < LONGEST_TOKEN and text.isascii() and text.isprintable() and " " not in text):
        return None if token is None else text
    raise InvalidArgument(path="token", reason="is empty or has characters that no token has")
