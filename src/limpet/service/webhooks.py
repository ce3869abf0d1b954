"""Send a signed POST to a webhook, and decide from the response whether to retry.

A URL must not reach services that only this machine can reach. So the host is resolved once, all its addresses must be
public, and the connection uses exactly the address that was checked. Redirects are not followed, and proxies are not
used.
"""

import hmac
import importlib
import io
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from limpet.arguments import defining
from limpet.clock import SECOND, Duration, microseconds
from limpet.engine.execution.kit import NoticeKind
from limpet.engine.steps.verdict import NotApplied, Permanent, RetryAfter
from limpet.errors import DefinitionError
from limpet.events.values import encode
from limpet.redaction import hide_secrets_in
from limpet.service.json_values import as_json
from limpet.service.notices import Notice, NoticeChannel, link_in

__all__ = ["Webhook", "is_genuine"]

MIN_SECRET = 16
MAX_SECONDS = 3600
"""Maximum timeout of a delivery, and maximum delay that a receiver can request, in seconds."""
MAX_RESPONSE = 64 * 1024
_HOST = re.compile(r"[a-z0-9._-]*[a-z0-9_-]\.?")
_SAFE = "%/:;=@!$&'()*+,~"
_INTERNET = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = [IPv6Network(each) for each in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")]
_NOT_PUBLIC_4 = [
    IPv4Network(each)
    for each in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",  # looks public, but is Azure's service for the machines in it
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
    )
]


@defining
class Webhook(NoticeChannel):
    """A URL that receives a signed POST for each request, or for what `on` names.

    `on` has one or more of `asks` (a request), `waits` (a run waits for a person, a signal or an operator),
    `completed`, `failed` and `cancelled`. `secret` signs the body; it needs at least 16 characters. `allow_private`
    allows http and addresses that are not public, for development. `timeout` limits one delivery, up to an hour.
    `person` is the one person to whom the receiver passes notices on, for links.
    """

    def __init__(  # noqa: PLR0913 - all by name
        self,
        url: str,
        *,
        secret: str,
        on: Sequence[NoticeKind] = ("asks",),
        person: str = "",
        allow_private: bool = False,
        timeout: Duration = "10s",
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(on, person=person)
        parts = _split(url)
        if parts.scheme == "http" and not allow_private:
            raise _invalid("http is not encrypted; use https, or pass allow_private=True for development")
        if len(secret) < MIN_SECRET:
            raise _invalid(f"the secret is too short; use at least {MIN_SECRET} random characters")
        if not 0 < microseconds(timeout) <= MAX_SECONDS * SECOND:
            raise _invalid("the timeout must be more than 0 and at most an hour, such as '10s'")
        self._secret, self._allow_private, self._ticks = secret, allow_private, ticks
        self._timeout = microseconds(timeout) / SECOND
        self._tls, self._host = parts.scheme == "https", _host(parts)
        usual = 443 if self._tls else 80
        self._port = usual if parts.port is None else parts.port
        name = f"[{self._host}]" if ":" in self._host else self._host.removesuffix(".")
        self._authority = name if self._port == usual else f"{name}:{self._port}"
        query = f"?{quote(parts.query, safe=_SAFE + '?')}" if "?" in url else ""
        self._target = quote(parts.path or "/", safe=_SAFE) + query

    def __repr__(self) -> str:
        """Show only the host: paths and queries of such URLs often contain a token."""
        return f"Webhook('{'https' if self._tls else 'http'}://{self._authority}/…')"

    def send(self, notice: Notice, *, key: str, now: int) -> None:
        """Post a notice once, and return if the receiver accepted it."""
        self.deliver(self._body(notice), key=key, now=now)

    def _body(self, notice: Notice) -> bytes:
        """Return a notice as redacted JSON, with its link."""
        link = link_in(notice)
        return encode({**hide_secrets_in(as_json(notice)), **({} if link is None else {"link": link})})

    def deliver(self, body: bytes, *, key: str, now: int) -> None:
        """Post a JSON body once, and return if the receiver accepted it.

        Raises NotApplied if the receiver was not reached, RetryAfter if it requests a delay, Permanent if a retry
        cannot help, and otherwise ConnectionError or TimeoutError: the receiver may have accepted it, and `key` makes a
        retry safe.
        """
        over = self._ticks() + self._timeout
        headers = {"Idempotency-Key": quote(key, safe=_SAFE.removeprefix("%")), **self._signed(body, now)}
        with self._connect(over) as sock:
            status, retry_after = self._post(_Wire(sock, lambda: self._left(over)), body, headers)
        if 200 <= status < 300:
            return
        wait = _seconds(retry_after, now) if status in (429, 503) else None
        if wait is not None:
            raise RetryAfter(wait, f"{self} answered {status}; retry after {wait:.0f} s")
        if 300 <= status < 400:
            raise Permanent(f"{self} answered {status}; redirects are not followed, use the target URL")
        if 400 <= status < 500 and status not in (408, 425, 429):
            raise Permanent(f"{self} answered {status}")
        raise ConnectionError(f"{self} answered {status}")

    def _connect(self, over: float) -> socket.socket:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NotApplied(f"{self} was not found: {error}") from error
        private = [str(each[4][0]) for each in found if not _is_public(str(each[4][0]))]
        if private and not self._allow_private:
            raise Permanent(
                f"{self} resolves to {private[0]}, which is not public; pass allow_private=True to allow it"
            )
        failure: OSError | None = None
        for tried, (family, kind, protocol, _, address) in enumerate(found):
            try:
                return self._open(socket.socket(family, kind, protocol), address, over, len(found) - tried)
            except OSError as error:
                failure = error
        raise NotApplied(f"{self} was not reached: {failure}") from failure

    def _open(self, sock: socket.socket, address: Any, over: float, share: int) -> socket.socket:
        """Connect to a checked address. Each of several addresses gets its share of the remaining time."""
        try:
            sock.settimeout(self._left(over) / share)
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(self._left(over))
            if self._tls:
                return ssl.create_default_context().wrap_socket(sock, server_hostname=self._host.removesuffix("."))
        except BaseException:
            sock.close()
            raise
        return sock

    def _left(self, over: float) -> float:
        left = over - self._ticks()
        if left <= 0:
            raise self._timed_out()
        return left

    def _timed_out(self) -> TimeoutError:
        return TimeoutError(f"{self} took longer than {self._timeout:g} s")

    def _signed(self, body: bytes, now: int) -> dict[str, str]:
        """Return the headers that prove where a body comes from."""
        return {"Limpet-Signature": f"t={now // SECOND},v1={_sign(self._secret, str(now // SECOND), body)}"}

    def _post(self, wire: "_Wire", body: bytes, more: Mapping[str, str]) -> tuple[int, str]:
        """Send the request; return the status of the response and its Retry-After header."""
        from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 - slow to import

        version = importlib.import_module("importlib.metadata").version("limpet")
        headers = {
            "Host": self._authority,
            "User-Agent": f"limpet/{version}",
            "Content-Type": "application/json",
            "Connection": "close",
            **more,
        }
        http = HTTPConnection(self._authority)
        http.sock, http.auto_open = wire, 0
        try:
            http.request("POST", self._target, body, headers)
            answer = http.getresponse()
        except TimeoutError as error:
            raise self._timed_out() from error
        except (OSError, HTTPException) as error:
            raise ConnectionError(f"{self} did not answer: {type(error).__name__}") from error
        with answer, suppress(OSError, HTTPException, ValueError):
            answer.read(MAX_RESPONSE)  # the status is known: errors in the rest do not matter
        return answer.status, answer.headers.get("Retry-After", "")


def is_genuine(secret: str, signature: str | None, body: bytes, *, now: int, tolerance: Duration = "5m") -> bool:
    """Return whether a body was signed with this secret, within `tolerance` of `now` (microseconds since 1970).

    `signature` is the value of the Limpet-Signature header. Invalid values return False; nothing is raised.
    """
    parts = [each.strip().partition("=") for each in (signature or "").split(",")]
    times = [value for name, _, value in parts if name == "t"]
    if len(times) != 1 or not re.fullmatch("[0-9]{1,12}", times[0]) or len(secret) < MIN_SECRET:
        return False
    expected = _sign(secret, times[0], body).encode()
    given = [value.encode("utf-8", "replace") for name, _, value in parts if name == "v1"]
    signed = any([hmac.compare_digest(expected, each) for each in given])  # noqa: C419 - compares all, in constant time
    return signed and abs(now - int(times[0]) * SECOND) <= microseconds(tolerance)


class _Wire(io.RawIOBase):
    """A socket for http.client that enforces one deadline, and a maximum number of bytes to read."""

    def __init__(self, sock: socket.socket, left: Callable[[], float]) -> None:
        self._sock, self._left, self._unread = sock, left, MAX_RESPONSE

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._unread:
            return 0
        self._sock.settimeout(self._left())
        count = self._sock.recv_into(buffer[: self._unread])
        self._unread -= count
        return count

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._sock.settimeout(self._left())
            rest = rest[self._sock.send(rest) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        """Do nothing: http.client closes the connection before the response is read. `deliver` closes the socket."""


def _sign(secret: str, seconds: str, body: bytes) -> str:
    return hmac.digest(secret.encode("utf-8", "surrogatepass"), f"{seconds}.".encode() + body, "sha256").hex()


def _invalid(reason: str) -> DefinitionError:
    return DefinitionError(what="a webhook", reason=reason)


def _split(url: str) -> SplitResult:
    """Split and check a URL. Error messages do not repeat it, because it may contain a password."""
    if not url.isprintable() or url != url.strip():
        raise _invalid("the URL contains control characters, or spaces around it; remove them")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise _invalid("the URL cannot be parsed; use https://host/path") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _invalid("the URL needs http or https and a host, such as https://host/path")
    if "@" in parts.netloc:
        raise _invalid("the URL contains a user or password; remove it, the secret signs the body")
    if "#" in url:
        raise _invalid("the URL has a fragment, which is never sent; remove # and everything after it")
    return parts


def _host(parts: SplitResult) -> str:
    """Return the host for DNS and TLS: an IPv6 address, or a lower-case ASCII name."""
    host = parts.hostname or ""
    try:
        if "[" in parts.netloc and "%" not in host:
            return IPv6Address(host).compressed
        host = host.encode("idna").decode("ascii").lower()
    except ValueError:
        raise _invalid("the host is invalid; use a name or an IP address") from None
    if not _HOST.fullmatch(host):
        raise _invalid("the host contains invalid characters; use a name, or an IP address without a zone")
    return host


def _is_public(text: str) -> bool:
    """Return whether an address is on the public internet. IPv6 addresses that embed IPv4 are not, or are checked by
    it.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in each for each in _NOT_PUBLIC_4)
    if address not in _INTERNET or any(address in each for each in _NOT_PUBLIC_6):
        return False
    is_isatap = int(address) >> 32 & 0xFDFF_FFFF == 0x5EFE
    return not is_isatap or _is_public(str(IPv4Address(int(address) & 0xFFFF_FFFF)))


def _seconds(retry_after: str, now: int) -> float | None:
    """Return the delay that a Retry-After header requests, from 0 s to an hour, or None if it cannot be parsed."""
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - slow to import

    text = retry_after.strip()
    if re.fullmatch("[0-9]+", text):
        return min(float(text), MAX_SECONDS)
    try:
        date = parsedate_to_datetime(text)
        when = date.replace(tzinfo=date.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(when - now / SECOND, 0), MAX_SECONDS)
