"""Slack and e-mail, against servers of this process: what is sent, and the meaning of the replies."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import limpet
from limpet import NotApplied, Permanent, RetryAfter
from limpet.errors import DefinitionError
from limpet.service.notices import RunNotice

NOTICE = RunNotice(
    delivery="01j9:1",
    what="waits",
    run="ticket-42",
    agent="support",
    version="1",
    status="waiting",
    waits_for=("person:q-1",),
    time=datetime(2026, 11, 17, tzinfo=UTC),
)


@contextmanager
def slack_server(*statuses: int) -> Iterator[tuple[str, list[Any]]]:
    """Run a server that answers with these statuses, then with 200; yield its URL and what it got."""
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((dict(self.headers), json.loads(body)))
            self.send_response(statuses[len(got) - 1] if len(got) <= len(statuses) else 200)
            self.send_header("Retry-After", "7")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/services/T0/B0/secret", got
    finally:
        server.shutdown()
        server.server_close()


class Mailbox(socketserver.StreamRequestHandler):
    """A session with an SMTP server: it takes one message, or answers as the server is told to."""

    server: "MailServer"

    def handle(self) -> None:
        self._say("220 ready")
        while line := self.rfile.readline().decode().strip():
            word = line.split(":")[0].upper()
            told = self.server.answers.get(word)
            if told is not None:
                self._say(told)
            elif word.startswith("EHLO"):
                self._say("250 localhost")
            elif word == "DATA":
                self._say("354 go")
                text = b""
                while not text.endswith(b"\r\n.\r\n"):
                    text += self.rfile.readline()
                self.server.got.append(message_from_bytes(text))
                self._say("250 queued")
            else:
                self._say("221 bye" if word == "QUIT" else "250 ok")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


class MailServer(socketserver.ThreadingTCPServer):
    """An SMTP server on a port of its own."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, **answers: str) -> None:
        super().__init__(("127.0.0.1", 0), Mailbox)
        self.answers = {word.replace("_", " "): told for word, told in answers.items()}
        self.got: list[Message] = []

    @property
    def port(self) -> int:
        """The port."""
        return int(self.server_address[1])


@contextmanager
def mail_server(**answers: str) -> Iterator[MailServer]:
    """Run an SMTP server that gives these answers to some words of the protocol."""
    with MailServer(**answers) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def email(server: MailServer, **more: Any) -> limpet.Email:
    """Return a channel to this server."""
    to = ["ann@example.com", "Bob <bob@example.com>"]
    return limpet.Email("127.0.0.1", port=server.port, sender="limpet@example.com", to=to, allow_plain=True, **more)


def test_slack_gets_a_message_without_mentions_or_links() -> None:
    """Text from a run cannot address the whole channel. Nothing is signed."""
    slack_of = limpet.Slack
    with slack_server() as (url, got):
        slack = slack_of(url, on=["waits"], allow_private=True)
        slack.send(NOTICE, key="k-1", now=0)
        slack.send(msg_replace(agent="<!channel> & co"), key="k-2", now=0)
        (headers, first), (_, second) = got
        assert first == {"text": "*support: run ticket-42 waits*\nIt waits for person:q-1.\nlimpet show ticket-42"}
        assert second["text"].startswith("*&lt;!channel&gt; &amp; co: run")
        assert "Limpet-Signature" not in headers
        assert "secret" not in repr(slack)


def msg_replace(**more: Any) -> RunNotice:
    """Return the notice with other fields."""
    return RunNotice(**{**{name: getattr(NOTICE, name) for name in NOTICE.__struct_fields__}, **more})


def test_replies_of_slack_decide_about_a_retry() -> None:
    with slack_server(429, 404, 500) as (url, _):
        slack = limpet.Slack(url, allow_private=True)
        for error in (RetryAfter, Permanent, ConnectionError):
            with pytest.raises(error):
                slack.send(NOTICE, key="k", now=0)
        slack.send(NOTICE, key="k", now=0)


def test_an_email_has_a_subject_addresses_and_a_stable_id() -> None:
    """The same delivery has the same Message-ID."""
    with mail_server() as server:
        for _ in range(2):
            email(server).send(NOTICE, key="01j9:1", now=0)
        first, second = server.got
        assert first["Subject"] == "support: run ticket-42 waits"
        assert (first["From"], first["To"]) == ("limpet@example.com", "ann@example.com, Bob <bob@example.com>")
        assert first["Message-ID"] == second["Message-ID"] == "<01j91@limpet>"
        assert "It waits for person:q-1." in str(first.get_payload())


def test_a_subject_cannot_add_headers() -> None:
    """Names come from code and callers."""
    with mail_server() as server:
        email(server).send(msg_replace(agent="a\r\nBcc: eve@example.com"), key="k", now=0)
        assert server.got[0]["Bcc"] is None
        assert server.got[0]["Subject"] == "a Bcc: eve@example.com: run ticket-42 waits"


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ({"MAIL_FROM": "550 no"}, Permanent),
        ({"RCPT_TO": "550 no"}, Permanent),
        ({"RCPT_TO": "450 later"}, ConnectionError),
        ({"DATA": "451 later"}, ConnectionError),
        ({"DATA": "554 spam"}, Permanent),
    ],
)
def test_answers_of_the_mail_server_decide_about_a_retry(answers: dict[str, str], error: type[Exception]) -> None:
    with mail_server(**answers) as server, pytest.raises(error):
        email(server).send(NOTICE, key="k", now=0)


def test_a_mail_server_that_is_not_there_or_offers_no_encryption() -> None:
    """A message is not sent in plain text, unless that is allowed."""
    with mail_server() as server:
        plain = limpet.Email("127.0.0.1", port=server.port, sender="a@example.com", to=["b@example.com"])
        with pytest.raises(Permanent, match="allow_plain"):
            plain.send(NOTICE, key="k", now=0)
        assert server.got == []
        gone = email(server)
    with pytest.raises(NotApplied):
        gone.send(NOTICE, key="k", now=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: limpet.Email("mail", sender="nobody", to=["b@example.com"]),
        lambda: limpet.Email("mail", sender="a@example.com", to=[]),
        lambda: limpet.Email("mail", sender="a@example.com", to=["b@example.com\nBcc: c@example.com"]),
        lambda: limpet.Slack("https://hooks.example.com/x", on=["started"]),  # type: ignore[list-item]
        lambda: limpet.Slack("https://hooks.example.com/x", on="failed"),  # type: ignore[arg-type]
        lambda: limpet.Webhook("https://hooks.example.com/x", secret="s" * 20, on=[]),
    ],
)
def test_a_wrong_channel_is_refused(make: Any) -> None:
    with pytest.raises(DefinitionError):
        make()
