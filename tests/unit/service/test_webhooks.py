"""Webhooks: one signed POST, the addresses that it may reach, and the meaning of the response."""

import hmac
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import limpet
from limpet import NotApplied, Permanent, RetryAfter
from limpet.errors import DefinitionError, InvalidArgument
from limpet.service.webhooks import Webhook, is_genuine
from tests.laws.values import characters
from tests.unit.service.webhook_addresses import PRIVATE, PUBLIC, SPELLINGS

SECRET = "correct horse battery"
NOW = 1_700_000_000_123_456
BODY = b'{"request":"r-1"}'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Answer = Callable[["Handler"], object]


class Post(NamedTuple):
    """A request that the receiver got."""

    target: str
    headers: "Message[str, str]"
    body: bytes


class Handler(BaseHTTPRequestHandler):
    """Reads a request and sends the receiver's response."""

    server: "Receiver"

    def handle(self) -> None:
        if self.server.reads:
            super().handle()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append(Post(self.path, self.headers, body))
        if callable(self.server.answer):
            self.server.answer(self)
        else:
            self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Receiver(ThreadingHTTPServer):
    """A local server that records its requests."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.posts: list[Post] = []
        self.answer: bytes | Answer = OK
        self.reads = True
        self.over = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Ignore errors: clients disconnect early on purpose."""

    def stop(self) -> None:
        self.over.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Return a server with a configurable response."""
    made = Receiver()
    yield made
    made.stop()


def deliver(url: str, **more: Any) -> None:
    """Deliver once to a local server."""
    Webhook(url, secret=SECRET, **{"allow_private": True, **more}).deliver(BODY, key="run:step_1:tell:ab", now=NOW)


def answering(status: int, **headers: str) -> bytes:
    """Return a response with a status."""
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "Content-Length: 0", "", ""]).encode()


def resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Resolve names to these addresses, one answer after the other; return the list of looked-up names."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))  # the machine may have no IPv6
            for each in answers[min(len(asked), len(answers)) - 1]
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Refuse every connection; return the list of addresses tried."""
    tried: list[Any] = []

    def connect(_: socket.socket, address: Any) -> None:
        tried.append(address)
        raise ConnectionRefusedError("refused by the test")

    monkeypatch.setattr(socket.socket, "connect", connect)
    return tried


def test_the_body_is_posted_unchanged_with_key_and_signature(receiver: Receiver) -> None:
    """The request has headers to check it by."""
    deliver(f"{receiver.url}/hooks/1?team=a")
    [post] = receiver.posts
    assert (post.target, post.body) == ("/hooks/1?team=a", BODY)
    digest = hmac.new(SECRET.encode(), b"1700000000." + BODY, "sha256").hexdigest()
    assert dict(post.headers) == {
        "Host": f"127.0.0.1:{receiver.server_port}",
        "Accept-Encoding": "identity",
        "User-Agent": f"limpet/{limpet.__version__}",
        "Content-Type": "application/json",
        "Content-Length": str(len(BODY)),
        "Idempotency-Key": "run:step_1:tell:ab",
        "Limpet-Signature": f"t=1700000000,v1={digest}",
        "Connection": "close",
    }
    assert is_genuine(SECRET, post.headers["Limpet-Signature"], post.body, now=NOW)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("", "/"),
        ("?", "/?"),
        ("?a=1", "/?a=1"),
        ("/a//b/../c", "/a//b/../c"),
        ("/%2e%2E/a%20b?x=%0d%0a", "/%2e%2E/a%20b?x=%0d%0a"),
        ("/ü b?q=ß c", "/%C3%BC%20b?q=%C3%9F%20c"),
        ('/"<>\\^`{|}', "/%22%3C%3E%5C%5E%60%7B%7C%7D"),
        ("/a;b=c,d:e@f!$&'()*+~-._?/?:@", "/a;b=c,d:e@f!$&'()*+~-._?/?:@"),
    ],
)
def test_path_and_query_are_sent_as_given(receiver: Receiver, path: str, target: str) -> None:
    """Only invalid characters are encoded."""
    deliver(receiver.url + path)
    assert [post.target for post in receiver.posts] == [target]


def test_a_key_cannot_inject_headers(receiver: Receiver) -> None:
    """Characters that a header cannot contain are encoded, and different keys stay different."""
    hook = Webhook(receiver.url, secret=SECRET, allow_private=True)
    for key in ("a\r\nX-Evil: 1", "a%0D%0AX-Evil: 1", "schlüssel"):
        hook.deliver(BODY, key=key, now=NOW)
    keys = [post.headers["Idempotency-Key"] for post in receiver.posts]
    assert keys == ["a%0D%0AX-Evil:%201", "a%250D%250AX-Evil:%201", "schl%C3%BCssel"]
    assert not any("X-Evil" in post.headers for post in receiver.posts)


def test_a_large_body_arrives_completely(receiver: Receiver) -> None:
    """The socket takes it in several pieces."""
    body = b"x" * 5_000_000
    Webhook(receiver.url, secret=SECRET, allow_private=True).deliver(body, key="k", now=NOW)
    assert receiver.posts[0].body == body


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_2xx_status_is_a_delivery(receiver: Receiver, status: int) -> None:
    receiver.answer = answering(status)
    deliver(receiver.url)


@pytest.mark.parametrize("status", [300, 304, 400, 401, 403, 404, 409, 410, 413, 422, 451, 499])
def test_a_3xx_or_4xx_status_is_permanent(receiver: Receiver, status: int) -> None:
    receiver.answer = answering(status, Retry_After="5")
    with pytest.raises(Permanent, match=str(status)):
        deliver(receiver.url)


@pytest.mark.parametrize("status", [101, 103, 408, 425, 429, 500, 502, 503, 504, 599, 600, 999])
def test_a_server_error_of_the_receiver_is_retried(receiver: Receiver, status: int) -> None:
    """The receiver may have accepted the request; the key makes a repeat safe."""
    receiver.answer = answering(status)
    with pytest.raises(ConnectionError, match=str(status)):
        deliver(receiver.url)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(receiver: Receiver, status: int) -> None:
    """The target of the redirect gets no request."""
    other = Receiver()
    try:
        receiver.answer = answering(status, Location=f"{other.url}/secret")
        with pytest.raises(Permanent, match="redirects are not followed"):
            deliver(receiver.url)
        assert (len(receiver.posts), other.posts) == (1, [])
    finally:
        other.stop()


def http_date(seconds: int) -> str:
    """Return a date some seconds from now, in the HTTP format."""
    now = datetime.fromtimestamp(NOW // 10**6, UTC)
    return format_datetime(now + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        (" 120 ", 120),
        ("3601", 3600),
        ("9" * 5000, 3600),
        (http_date(90), 89.876544),
        (http_date(-90), 0),
        (http_date(10**6), 3600),
        ("Tue, 14 Nov 2023 22:13:30 -0000", 9.876544),
    ],
)
def test_the_receivers_retry_after_is_used(receiver: Receiver, status: int, header: str, seconds: float) -> None:
    """The value is in seconds or a date, and at most an hour."""
    receiver.answer = answering(status, Retry_After=header)
    with pytest.raises(RetryAfter) as caught:
        deliver(receiver.url)
    assert caught.value.after == pytest.approx(seconds * 10**6, abs=1)


@pytest.mark.parametrize(
    "header", ["", "soon", "-5", "1.5", "1e9", "٣", "Tue, 99 Nov 2023 99:99:99 GMT", "1 Jan 99999999999999999999 0:0:0"]
)
def test_an_unreadable_retry_after_header_is_ignored(receiver: Receiver, header: str) -> None:
    """The tool's own retry applies."""
    receiver.answer = answering(503, Retry_After=header).replace("٣".encode(), b"\xb3")
    with pytest.raises(ConnectionError, match="503"):
        deliver(receiver.url)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 2",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/9\r\n",
        b"\x00\xff" * 100,
        b"HTTP/1.1 " + b"2" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000 + OK,
    ],
    ids=range(10),
)
def test_an_invalid_response_is_retried(receiver: Receiver, answer: bytes) -> None:
    """The response is garbage, empty or too long."""
    receiver.answer = answer
    with pytest.raises(ConnectionError):
        deliver(receiver.url)


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: -9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabcdefgh",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 4000 + b"\r\nabc",
        b"HTTP/1.1 200 OK\r\n\x00\xff: \xfe\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 10_000_000,
    ],
    ids=range(13),
)
def test_only_the_status_of_a_response_matters(receiver: Receiver, answer: bytes) -> None:
    """Headers and bodies are ignored."""
    receiver.answer = answer
    deliver(receiver.url)


def test_an_endless_response_body_is_not_read_to_its_end(receiver: Receiver) -> None:
    """An endless response does not block the delivery."""

    def for_ever(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not receiver.over.is_set():
            handler.wfile.write(b"x" * 65536)

    receiver.answer = for_ever
    deliver(receiver.url, timeout="5m")


def test_a_refused_connection_means_not_applied() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(NotApplied, match="not reached"):
        deliver(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("found", [socket.gaierror(socket.EAI_NONAME, "unknown"), OSError("no network"), None])
def test_an_unresolvable_name_means_not_applied(monkeypatch: pytest.MonkeyPatch, found: OSError | None) -> None:
    """This applies to a name without an address, too."""

    def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        if found is not None:
            raise found
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(NotApplied):
        deliver("https://nowhere.example/")


def test_a_connection_closed_before_reading_has_an_unknown_outcome(receiver: Receiver) -> None:
    """It is unknown how much of the request arrived."""
    receiver.reads = False
    with pytest.raises(ConnectionError):
        deliver(receiver.url)
    assert receiver.posts == []


def test_a_connection_closed_after_the_request_has_an_unknown_outcome(receiver: Receiver) -> None:
    """The receiver got the request."""
    receiver.answer = b""
    with pytest.raises(ConnectionError):
        deliver(receiver.url)
    assert len(receiver.posts) == 1


def test_a_receiver_that_does_not_respond_times_out(receiver: Receiver) -> None:
    """The TimeoutError names the webhook and the timeout."""
    receiver.answer = lambda _: receiver.over.wait(60)
    with pytest.raises(TimeoutError, match=r"Webhook\('http://127.* took longer than 0\.5 s"):
        deliver(receiver.url, timeout="500ms")
    assert len(receiver.posts) == 1


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_slow_response_times_out(receiver: Receiver, start: bytes) -> None:
    """The timeout is for the whole exchange, not for each byte."""

    def trickle(handler: Handler) -> None:
        handler.wfile.write(start)
        while not receiver.over.wait(0.01):
            handler.wfile.write(b"H")

    receiver.answer = trickle
    with pytest.raises(TimeoutError, match=r"longer than 0\.5 s"):
        deliver(receiver.url, timeout="500ms")


def test_a_slow_response_body_does_not_change_the_status(receiver: Receiver) -> None:
    """The receiver has accepted the request; the rest is read until the timeout."""

    def trickle(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n")
        while not receiver.over.wait(0.01):
            handler.wfile.write(b"x")

    receiver.answer = trickle
    deliver(receiver.url, timeout="500ms")


def test_a_receiver_that_does_not_read_times_out() -> None:
    """Its buffers are full before the whole request is sent."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        hook = Webhook(url, secret=SECRET, allow_private=True, timeout="500ms")
        with pytest.raises(TimeoutError):
            hook.deliver(b"x" * 50_000_000, key="k", now=NOW)


def test_the_timeout_includes_the_name_lookup(connected: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """After the timeout, no connection is opened."""
    resolve_to(monkeypatch, ["8.8.8.8", "1.1.1.1"])
    ticks = iter([0.0, 10.5, 11.0])
    with pytest.raises(NotApplied, match="longer than 10 s"):
        deliver("https://slow.example/", ticks=lambda: next(ticks))
    assert connected == []


def test_the_next_address_is_tried_after_a_failure(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is that of the resolver, and each address is checked."""
    resolve_to(monkeypatch, ["127.0.0.2", "127.0.0.1"])
    deliver(f"http://twofold.example:{receiver.server_port}/")
    assert [post.headers["Host"] for post in receiver.posts] == [f"twofold.example:{receiver.server_port}"]


def test_a_silent_address_leaves_time_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address gets its share of the remaining time."""
    limits: list[float | None] = []

    def connect(sock: socket.socket, _: Any) -> None:
        limits.append(sock.gettimeout())
        raise TimeoutError("silence")

    monkeypatch.setattr(socket.socket, "connect", connect)
    resolve_to(monkeypatch, ["8.8.8.8", "1.1.1.1"])
    with pytest.raises(NotApplied, match="silence"):
        deliver("https://silent.example/", ticks=lambda: 0.0)
    assert limits == [5, 10]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_refused(address: str, connected: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is opened, whatever the name."""
    resolve_to(monkeypatch, [address])
    with pytest.raises(Permanent, match="not public"):
        deliver("https://innocent.example/", allow_private=False)
    assert connected == []


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_connected_to(address: str, connected: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection goes to the address that was checked."""
    asked = resolve_to(monkeypatch, [address])
    with pytest.raises(NotApplied, match="refused by the test"):
        deliver("https://public.example/", allow_private=False)
    assert (asked, connected) == (["public.example"], [(address, 443)])


def test_the_address_lists_are_long_and_distinct() -> None:
    assert len({*PRIVATE, *SPELLINGS}) >= 60
    assert len({*PUBLIC}) >= 10
    assert len({*PRIVATE}) == len(PRIVATE)


@pytest.mark.parametrize("host", SPELLINGS)
def test_odd_spellings_of_private_addresses_are_refused(host: str, connected: list[Any]) -> None:
    """This uses the real resolver."""
    with pytest.raises(Permanent, match="not public"):
        deliver(f"https://{host}/", allow_private=False)
    assert connected == []


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_private_address_among_public_ones_is_refused(
    place: int, connected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver could choose any of them."""
    found = ["8.8.8.8", "2606:4700:4700::1111"]
    found.insert(place, "10.0.0.1")
    resolve_to(monkeypatch, found)
    with pytest.raises(Permanent, match=r"10\.0\.0\.1"):
        deliver("https://mixed.example/", allow_private=False)
    assert connected == []


def test_a_name_is_looked_up_once(connected: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A second lookup could give another address."""
    asked = resolve_to(monkeypatch, ["8.8.8.8"], ["127.0.0.1"])
    with pytest.raises(NotApplied):
        deliver("https://rebinding.example/", allow_private=False)
    assert (asked, connected) == (["rebinding.example"], [("8.8.8.8", 443)])


def test_every_delivery_looks_up_the_name_again(connected: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result is checked."""
    resolve_to(monkeypatch, ["8.8.8.8"], ["127.0.0.1"])
    hook = Webhook("https://rebinding.example/", secret=SECRET)
    with pytest.raises(NotApplied):
        hook.deliver(BODY, key="k", now=NOW)
    with pytest.raises(Permanent):
        hook.deliver(BODY, key="k", now=NOW)
    assert connected == [("8.8.8.8", 443)]


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("EXAMPLE.com", "example.com"),
        ("example.com.", "example.com."),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("ｅｘａｍｐｌｅ.com", "example.com"),
        ("my_service", "my_service"),
        ("localhost.", "localhost."),
    ],
)
def test_names_are_looked_up_in_lower_case_ascii(
    host: str, asked: str, connected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name looked up, sent and verified is the same."""
    found = resolve_to(monkeypatch, ["127.0.0.1"])
    with pytest.raises(Permanent):
        deliver(f"https://{host}/", allow_private=False)
    assert (found, connected) == ([asked], [])


def test_private_addresses_can_be_allowed(receiver: Receiver) -> None:
    """For receivers in the same network."""
    deliver(receiver.url)
    assert len(receiver.posts) == 1


def test_any_port_can_be_used(connected: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is that of the scheme."""
    resolve_to(monkeypatch, ["8.8.8.8"])
    for url in ("https://a.example", "https://a.example:/", "https://a.example:8443/", "http://a.example"):
        with pytest.raises(NotApplied):
            deliver(url)
    assert [port for _, port in connected] == [443, 443, 8443, 80]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Return a self-signed certificate for localhost, with its key."""
    pytest.importorskip("cryptography", reason="NO CRYPTOGRAPHY: that TLS is verified was NOT tested")
    from cryptography import x509  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    today = datetime.now(UTC)  # noqa: TID251 - OpenSSL asks the machine
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path / "certificate.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)
    return path


@pytest.fixture
def secure(receiver: Receiver, certificate: Path) -> Receiver:
    """Return a receiver that uses TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    receiver.socket = context.wrap_socket(receiver.socket, server_side=True)
    return receiver


def test_an_untrusted_certificate_is_refused(secure: Receiver) -> None:
    """This applies to private addresses, too; nothing is sent."""
    with pytest.raises(NotApplied, match="CERTIFICATE_VERIFY_FAILED"):
        deliver(f"https://localhost:{secure.server_port}")
    assert secure.posts == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "LOCALHOST", "localhost."])
def test_a_certificate_of_a_trusted_authority_is_accepted(
    host: str, secure: Receiver, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate is checked against the host's name, although the connection goes to an address."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    resolve_to(monkeypatch, ["127.0.0.1"])
    deliver(f"https://{host}:{secure.server_port}")
    assert [post.headers["Host"] for post in secure.posts] == [f"{host.lower().rstrip('.')}:{secure.server_port}"]


def test_a_certificate_of_another_host_is_refused(
    secure: Receiver, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate is checked against the name in the URL, not the resolved address."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    resolve_to(monkeypatch, ["127.0.0.1"])
    with pytest.raises(NotApplied, match="Hostname mismatch"):
        deliver(f"https://other.example:{secure.server_port}")
    assert secure.posts == []


def test_a_receiver_without_tls_is_refused(receiver: Receiver) -> None:
    """Nothing readable is sent."""
    with pytest.raises(NotApplied):
        deliver(f"https://127.0.0.1:{receiver.server_port}", timeout="5s")
    assert receiver.posts == []


def test_a_tls_handshake_without_response_times_out() -> None:
    """Nothing was applied."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening, pytest.raises(NotApplied, match="timed out"):
        deliver(f"https://127.0.0.1:{listening.getsockname()[1]}", timeout="500ms")


@pytest.mark.parametrize(
    ("url", "cure"),
    [
        ("", "https://host/path"),
        ("example.com/hook", "https://host/path"),
        ("//example.com/hook", "https://host/path"),
        ("ftp://example.com/", "https://host/path"),
        ("file:///etc/passwd", "https://host/path"),
        ("javascript:alert(1)", "https://host/path"),
        ("https:///path", "https://host/path"),
        ("https://:443/", "https://host/path"),
        ("https:example.com", "https://host/path"),
        ("https://example.com:99999/", "https://host/path"),
        ("https://example.com:ab/", "https://host/path"),
        ("https://example.com:-1/", "https://host/path"),
        ("https://[::1/", "https://host/path"),
        ("https://example.com℀.org/", "https://host/path"),
        ("https://user:hunter2@example.com/", "remove it"),
        ("https://user@example.com/", "remove it"),
        ("https://@example.com/", "remove it"),
        ("https://example.com\\@evil.example/", "remove it"),
        ("https://example.com/#top", "remove #"),
        ("https://example.com/#", "remove #"),
        ("https://example.com#@evil.example/", "remove #"),
        ("https://example.com/a\r\nX-Evil: 1", "control characters"),
        ("https://example.com/a\nb", "control characters"),
        ("https://example.com/a\tb", "control characters"),
        ("https://example.com/\x00", "control characters"),
        ("https://example.com/\x7f", "control characters"),
        ("https://example.com/\x85", "control characters"),
        ("https://example.com/\u2028", "control characters"),
        ("https://example.com/\ud800", "a lone surrogate"),
        ("https://exam\u200bple.com/", "control characters"),
        (" https://example.com/", "spaces around it"),
        ("https://example.com/ ", "spaces around it"),
        ("https://exa mple.com/", "use a name"),
        ("https://exa%6dple.com/", "use a name"),
        ("https://%31%32%37.0.0.1/", "use a name"),
        ("https://evil.example\\.example.com/", "use a name"),
        ("https://a..b/", "use a name"),
        ("https://.example.com/", "use a name"),
        ("https://./", "use a name"),
        ("https://../", "use a name"),
        (f"https://{'a' * 64}.example/", "use a name"),
        ("https://a,b/", "use a name"),
        ("https://$(id)/", "use a name"),
        ("https://[fe80::1%eth0]/", "without a zone"),
        ("https://[fe80::1%25eth0]/", "without a zone"),
        ("https://[127.0.0.1]/", "use "),
        ("https://[v1.a]/", "use "),
        ("https://[example.com]/", "use "),
        ("http://example.com/", "use https"),
        ("HTTP://example.com/", "use https"),
    ],
)
def test_an_invalid_url_is_refused_at_the_definition(url: str, cure: str) -> None:
    """The error has a hint, and does not repeat a URL that may contain a password."""
    with pytest.raises(DefinitionError) as caught:
        Webhook(url, secret=SECRET)
    assert cure in caught.value.reason
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("secret", ["", "short", "x" * 15])
def test_a_short_secret_is_refused(secret: str) -> None:
    with pytest.raises(DefinitionError, match="at least 16 random characters"):
        Webhook("https://example.com/", secret=secret)


@pytest.mark.parametrize("timeout", [0, "0s", "61m", "100d"])
def test_a_timeout_outside_zero_to_one_hour_is_refused(timeout: str | int) -> None:
    with pytest.raises(DefinitionError, match="timeout"):
        Webhook("https://example.com/", secret=SECRET, timeout=timeout)


def test_a_timeout_that_is_not_a_duration_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        Webhook("https://example.com/", secret=SECRET, timeout="soon")


def test_neither_secret_nor_path_nor_query_is_shown(receiver: Receiver) -> None:
    """This applies to the repr and to errors."""
    receiver.answer = answering(404)
    hook = Webhook(f"{receiver.url}/T0KEN?key=T0KEN", secret="T0KEN" * 4, allow_private=True)
    assert repr(hook) == str(hook) == f"Webhook('{receiver.url}/…')"
    with pytest.raises(Permanent) as caught:
        hook.deliver(BODY, key="k", now=NOW)
    assert "T0KEN" not in str(caught.value)
    assert repr(Webhook("https://[2606:4700::0:1]:444/x", secret=SECRET)) == "Webhook('https://[2606:4700::1]:444/…')"


def signed(secret: str = SECRET, at: int = NOW // 10**6, body: bytes = BODY) -> str:
    """Return a signature in hex."""
    return hmac.new(secret.encode(), f"{at}.".encode() + body, "sha256").hexdigest()


GOOD = f"t={NOW // 10**6},v1={signed()}"


def test_a_signature_verifies_only_the_unchanged_request() -> None:
    """The signature covers body, secret and time."""
    assert is_genuine(SECRET, GOOD, BODY, now=NOW)
    assert not is_genuine(SECRET, GOOD, BODY + b" ", now=NOW)
    assert not is_genuine(SECRET + "!", GOOD, BODY, now=NOW)
    assert not is_genuine(SECRET, GOOD.replace("t=17", "t=18"), BODY, now=NOW)


@pytest.mark.parametrize(("seconds", "genuine"), [(0, True), (300, True), (-300, True), (301, False), (-301, False)])
def test_an_old_or_future_signature_is_refused(seconds: int, genuine: bool) -> None:
    """Recorded requests may be replayed later, and clocks may be ahead."""
    now = NOW // 10**6 * 10**6 + seconds * 10**6
    assert is_genuine(SECRET, GOOD, BODY, now=now) is genuine
    assert is_genuine(SECRET, GOOD, BODY, now=now, tolerance="10m")


@pytest.mark.parametrize(
    "signature",
    [
        f"t={NOW // 10**6},v1={signed('another secret, older')},v1={signed()}",
        f"t={NOW // 10**6},v1={signed()},v1=",
        f"v1={signed()},t={NOW // 10**6}",
        f" t={NOW // 10**6} , v1={signed()} ",
        f"t={NOW // 10**6},v2=whatever,v1={signed()},nonsense",
    ],
)
def test_one_valid_signature_of_several_is_enough(signature: str) -> None:
    """Secrets can be rotated."""
    assert is_genuine(SECRET, signature, BODY, now=NOW)


@pytest.mark.parametrize(
    "signature",
    [
        None,
        "",
        ",",
        "=",
        "t=",
        "v1=",
        "t=,v1=",
        f"t={NOW // 10**6}",
        f"v1={signed()}",
        f"t={NOW // 10**6},v1=",
        f"t={NOW // 10**6},v0={signed()}",
        f"t={NOW // 10**6},v1={signed()[:-1]}",
        f"t={NOW // 10**6},v1={signed()}0",
        f"t={NOW // 10**6},v1={signed().upper()}",
        f"t={NOW // 10**6},v1=ü\ud800\x00",
        f"t={NOW // 10**6},t={NOW // 10**6},v1={signed()}",
        f"t=0{NOW // 10**6},v1={signed()}",
        f"t=-{NOW // 10**6},v1={signed()}",
        f"t={NOW // 10**6}.0,v1={signed()}",
        f"t={'9' * 5000},v1={signed()}",
        f"t=١٧,v1={signed()}",
        f"T={NOW // 10**6},V1={signed()}",
        f"t={NOW // 10**6};v1={signed()}",
    ],
)
def test_malformed_signatures_are_refused(signature: str | None) -> None:
    """Nothing is raised."""
    assert not is_genuine(SECRET, signature, BODY, now=NOW)


def test_an_empty_secret_verifies_nothing() -> None:
    """An empty setting must not accept every request."""
    assert not is_genuine("", f"t={NOW // 10**6},v1={signed('')}", BODY, now=NOW)


@given(st.text(characters) | st.from_regex(r"(t=[0-9]+|v1=[0-9a-f]*|,)*"), st.binary())
def test_arbitrary_signatures_are_refused_without_an_error(signature: str, body: bytes) -> None:
    assert not is_genuine(SECRET, signature, body, now=NOW)
