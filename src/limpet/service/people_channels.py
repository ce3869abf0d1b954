"""Channels for people: Slack and e-mail."""

import smtplib
import ssl
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import parseaddr

import msgspec

from limpet.arguments import defining
from limpet.clock import SECOND, Duration, microseconds
from limpet.engine.execution.kit import NoticeKind
from limpet.engine.steps.verdict import NotApplied, Permanent
from limpet.errors import DefinitionError
from limpet.service.notices import Notice, NoticeChannel, words_of
from limpet.service.webhooks import MIN_SECRET, Webhook

__all__ = ["Email", "Slack"]


@defining
class Slack(Webhook):
    """A channel of Slack, by the URL of an incoming webhook. `on` and `person` are those of `Webhook`."""

    def __init__(
        self,
        url: str,
        *,
        on: Sequence[NoticeKind] = ("asks",),
        person: str = "",
        allow_private: bool = False,
        timeout: Duration = "10s",
    ) -> None:
        # Slack checks no signature: the URL is the secret.
        secret = "-" * MIN_SECRET
        super().__init__(url, secret=secret, on=on, person=person, allow_private=allow_private, timeout=timeout)

    def __repr__(self) -> str:
        return super().__repr__().replace("Webhook", "Slack")

    def _body(self, notice: Notice) -> bytes:
        title, text = words_of(notice)
        return msgspec.json.encode({"text": _escaped(f"*{title}*\n{text}")})

    def _signed(self, body: bytes, now: int) -> dict[str, str]:  # noqa: ARG002 - nothing is signed
        return {}


@defining
class Email(NoticeChannel):
    """Sends an e-mail by SMTP. `on` is that of `Webhook`. `person` is the reader of the one address in `to`.

    The connection is encrypted with STARTTLS, or from its start with port 465. `allow_plain` allows a server that
    offers neither, for development.
    """

    def __init__(  # noqa: PLR0913 - all by name
        self,
        server: str,
        *,
        sender: str,
        to: Sequence[str],
        port: int = 587,
        user: str | None = None,
        password: str | None = None,
        on: Sequence[NoticeKind] = ("asks",),
        person: str = "",
        allow_plain: bool = False,
        timeout: Duration = "30s",
    ) -> None:
        super().__init__(on, person=person)
        addresses = [sender, *([to] if isinstance(to, str) else to)]
        for each in addresses:
            if "@" not in parseaddr(each)[1] or not each.isprintable():
                raise DefinitionError(what="an e-mail channel", reason=f"{each!r} is not an address")
        if len(addresses) < 2:
            raise DefinitionError(what="an e-mail channel", reason="to= names no address")
        if person and len(addresses) > 2:
            reason = "person= is for one address; make a channel for each"
            raise DefinitionError(what="an e-mail channel", reason=reason)
        self._server, self._port, self._sender, self._to = server, port, addresses[0], addresses[1:]
        self._login = (user, password or "") if user is not None else None
        self._allow_plain, self._timeout = allow_plain, microseconds(timeout) / SECOND

    def __repr__(self) -> str:
        """Show neither user nor password."""
        return f"Email('{self._server}:{self._port}')"

    def send(self, notice: Notice, *, key: str, now: int) -> None:  # noqa: ARG002 - nothing is signed
        """Send a notice once, and return if the server accepted it."""
        message = self._message(notice, key)
        try:
            server = self._connected()
        except (OSError, smtplib.SMTPException) as error:
            raise NotApplied(f"{self} was not reached: {error}") from error
        with server:
            try:
                server.send_message(message)
            except smtplib.SMTPResponseException as error:
                raise self._refused(error.smtp_code, error) from error
            except smtplib.SMTPRecipientsRefused as error:
                raise self._refused(max(code for code, _ in error.recipients.values()), error) from error
            except smtplib.SMTPException as error:
                raise ConnectionError(f"{self} did not accept the message: {error}") from error

    def _refused(self, code: int, error: Exception) -> Exception:
        text = f"{self} answered {code}: {error}"
        return Permanent(text) if 500 <= code < 600 else ConnectionError(text)

    def _connected(self) -> smtplib.SMTP:
        tls = ssl.create_default_context()
        if self._port == 465:
            server: smtplib.SMTP = smtplib.SMTP_SSL(self._server, self._port, timeout=self._timeout, context=tls)
        else:
            server = smtplib.SMTP(self._server, self._port, timeout=self._timeout)
        try:
            if self._port != 465:
                server.ehlo()
                if server.has_extn("starttls"):
                    server.starttls(context=tls)
                else:
                    self._check_plain()
            if self._login is not None:
                server.login(*self._login)
        except BaseException:
            server.close()
            raise
        return server

    def _check_plain(self) -> None:
        if not self._allow_plain:
            raise Permanent(f"{self} offers no encryption; pass allow_plain=True to allow that")

    def _message(self, notice: Notice, key: str) -> EmailMessage:
        title, text = words_of(notice)
        message = EmailMessage()
        message["Subject"] = " ".join(title.split())[:200]
        message["From"], message["To"] = self._sender, ", ".join(self._to)
        message["Message-ID"] = f"<{''.join(each for each in key if each.isalnum() or each in '.-')}@limpet>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text)
        return message


def _escaped(text: str) -> str:
    """Escape a text for Slack, so that it neither mentions people nor hides a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
