"""Telling an address: one signed POST, to a place on the public internet, with an answer that says what to do next.

It knows nothing of runs. Whoever gives an address may not reach what only this machine can reach: the name is looked up
once, everything it stands for must be public, and what is connected to is what was checked. Redirects are not followed,
proxies are not asked.
"""

import hmac
import importlib
import io
import re
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from limpet.arguments import defining
from limpet.clock import SECOND, Duration, microseconds
from limpet.engine.steps.verdict import NotApplied, Permanent, RetryAfter
from limpet.errors import DefinitionError

__all__ = ["Webhook", "is_genuine"]

SHORTEST_SECRET = 16
LONGEST_WAIT = 3600
"""Seconds; for one delivery, and for what a receiver may ask us to wait."""
MOST_READ = 64 * 1024
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
        "168.63.129.16/32",  # looks public, and is Azure's own service to the machines in it
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
class Webhook:
    """An address that is told of requests, and the secret that signs what is sent there."""

    def __init__(
        self,
        url: str,
        *,
        secret: str,
        allow_private: bool = False,
        timeout: Duration = "10s",
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = _split(url)
        if parts.scheme == "http" and not allow_private:
            raise _wrong("what is sent over http can be read on its way: say https, or allow_private=True at home")
        if len(secret) < SHORTEST_SECRET:
            raise _wrong(f"its secret is too short: take at least {SHORTEST_SECRET} characters, drawn at random")
        if not 0 < microseconds(timeout) <= LONGEST_WAIT * SECOND:
            raise _wrong("its timeout is not between nothing and an hour: say '10s'")
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
        """Its host only: paths and queries of such addresses often hold a token."""
        return f"Webhook('{'https' if self._tls else 'http'}://{self._authority}/…')"

    def deliver(self, body: bytes, *, key: str, now: int) -> None:
        """Post some JSON, once; returns if the receiver took it.

        Raises NotApplied if the receiver was not reached, RetryAfter if it says when, Permanent if no retry helps, and
        otherwise a ConnectionError or TimeoutError: it may have been taken, and the same key makes repeating safe.
        """
        over = self._ticks() + self._timeout
        with self._connect(over) as sock:
            status, retry_after = self._post(_Wire(sock, lambda: self._left(over)), body, key, now)
        if 200 <= status < 300:
            return
        wait = _seconds(retry_after, now) if status in (429, 503) else None
        if wait is not None:
            raise RetryAfter(wait, f"{self} answered {status}: again after {wait:.0f} s")
        if 300 <= status < 400:
            raise Permanent(f"{self} answered {status}, and redirects are not followed: give the address it leads to")
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
            raise Permanent(f"{self} is at {private[0]}, which is not public: say allow_private=True if that is meant")
        failure: OSError | None = None
        for tried, (family, kind, protocol, _, address) in enumerate(found):
            try:
                return self._open(socket.socket(family, kind, protocol), address, over, len(found) - tried)
            except OSError as error:
                failure = error
        raise NotApplied(f"{self} was not reached: {failure}") from failure

    def _open(self, sock: socket.socket, address: Any, over: float, share: int) -> socket.socket:
        """Connect to an address as it was checked; one of several addresses gets its share of the time."""
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
            raise self._too_slow()
        return left

    def _too_slow(self) -> TimeoutError:
        return TimeoutError(f"{self} took longer than {self._timeout:g} s")

    def _post(self, wire: "_Wire", body: bytes, key: str, now: int) -> tuple[int, str]:
        """The status of the answer and its Retry-After."""
        version = importlib.import_module("importlib.metadata").version("limpet")
        headers = {
            "Host": self._authority,
            "User-Agent": f"limpet/{version}",
            "Content-Type": "application/json",
            "Idempotency-Key": quote(key, safe=_SAFE.removeprefix("%")),
            "Limpet-Signature": f"t={now // SECOND},v1={_sign(self._secret, str(now // SECOND), body)}",
            "Connection": "close",
        }
        http = HTTPConnection(self._authority)
        http.sock, http.auto_open = wire, 0
        try:
            http.request("POST", self._target, body, headers)
            answer = http.getresponse()
        except TimeoutError as error:
            raise self._too_slow() from error
        except (OSError, HTTPException) as error:
            raise ConnectionError(f"{self} gave no answer: {type(error).__name__}") from error
        with answer, suppress(OSError, HTTPException, ValueError):
            answer.read(MOST_READ)  # its status was said: what is wrong with the rest does not matter
        return answer.status, answer.headers.get("Retry-After", "")


def is_genuine(secret: str, signature: str | None, body: bytes, *, now: int, tolerance: Duration = "5m") -> bool:
    """Whether a body was signed with this secret, not long before or after `now` (microseconds since 1970).

    `signature` is the header Limpet-Signature as it came; whatever it holds, nothing is raised.
    """
    parts = [each.strip().partition("=") for each in (signature or "").split(",")]
    times = [value for name, _, value in parts if name == "t"]
    if len(times) != 1 or not re.fullmatch("[0-9]{1,12}", times[0]) or len(secret) < SHORTEST_SECRET:
        return False
    expected = _sign(secret, times[0], body).encode()
    given = [value.encode("utf-8", "replace") for name, _, value in parts if name == "v1"]
    signed = any([hmac.compare_digest(expected, each) for each in given])  # noqa: C419 - all, always
    return signed and abs(now - int(times[0]) * SECOND) <= microseconds(tolerance)


class _Wire(io.RawIOBase):
    """A socket as http.client uses it, which keeps to one deadline and brings so many bytes at most."""

    def __init__(self, sock: socket.socket, left: Callable[[], float]) -> None:
        self._sock, self._left, self._unread = sock, left, MOST_READ

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
        """The socket is closed by whoever opened it: http.client lets go before it has read."""


def _sign(secret: str, seconds: str, body: bytes) -> str:
    return hmac.digest(secret.encode("utf-8", "surrogatepass"), f"{seconds}.".encode() + body, "sha256").hex()


def _wrong(reason: str) -> DefinitionError:
    return DefinitionError(what="A webhook", reason=reason)


def _split(url: str) -> SplitResult:
    """The parts of an address that may be one; the reasons do not repeat it, for it may hold a password."""
    if not url.isprintable() or url != url.strip():
        raise _wrong("its address holds control characters or stray spaces: take them out")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise _wrong("its address cannot be read: say https://host/path") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _wrong("its address is none of the web: say https://host/path")
    if "@" in parts.netloc:
        raise _wrong("its address holds a user or a password: take it out; the secret signs what is sent")
    if "#" in url:
        raise _wrong("its address has a fragment, which is never sent: take out # and what follows")
    return parts


def _host(parts: SplitResult) -> str:
    """The host as it is looked up, and named in TLS: an IPv6 address, or ASCII in small letters."""
    host = parts.hostname or ""
    try:
        if "[" in parts.netloc and "%" not in host:
            return IPv6Address(host).compressed
        host = host.encode("idna").decode("ascii").lower()
    except ValueError:
        raise _wrong("its host cannot be one: say a name or an address") from None
    if not _HOST.fullmatch(host):
        raise _wrong("its host holds characters that no host has: say a name, or an address without a zone")
    return host


def _is_public(text: str) -> bool:
    """Whether an address is one on the public internet; what carries IPv4 inside IPv6 is not, or is what it carries."""
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
    """How long a Retry-After asks to wait, from 0 to an hour; None if it cannot be read."""
    text = retry_after.strip()
    if re.fullmatch("[0-9]+", text):
        return min(float(text), LONGEST_WAIT)
    try:
        date = parsedate_to_datetime(text)
        when = date.replace(tzinfo=date.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(when - now / SECOND, 0), LONGEST_WAIT)
