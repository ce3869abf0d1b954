"""Notices of requests and runs, and the channels that they are sent to.

A channel is created in code, never by a caller, because it decides where data goes. A notice of a run has ids and the
status, and no payloads.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Self, get_args

from limpet.engine.execution.kit import NoticeKind
from limpet.engine.execution.views import Request
from limpet.errors import DefinitionError
from limpet.redaction import hide_secrets
from limpet.secret import Secret
from limpet.view import View

__all__ = ["Channel", "Notice", "NoticeChannel", "RequestNotice", "RunNotice", "link_in", "told_of", "words_of"]

LONGEST_NAME = 200


class RunNotice(View, frozen=True, kw_only=True):
    """A run that has ended, or that waits for people or programs outside."""

    delivery: str
    """Id of this notice; it is the same if the notice arrives again."""
    what: NoticeKind
    """The event: `waits`, `completed`, `failed` or `cancelled`."""
    run: str
    """Run id."""
    agent: str
    """Name of the agent."""
    version: str
    """Version of the agent."""
    status: str
    """Status of the run when the notice was sent."""
    waits_for: tuple[str, ...]
    """The conditions that the run waited for, such as `person:01j9x`."""
    time: datetime
    """When it happened."""


class RequestNotice(Request, frozen=True, kw_only=True):
    """A request with the link to decide it. The link exists only while the notice is delivered."""

    link: Secret[str]
    """Address of the page for this one request."""

    @classmethod
    def of(cls, request: Request, link: str) -> Self:
        """Return a request with its link."""
        return cls(**{name: getattr(request, name) for name in request.__struct_fields__}, link=Secret(link))


Notice = Request | RunNotice


def link_in(notice: Notice) -> str | None:
    """Return the link of a notice, if it has one."""
    return notice.link.reveal() if isinstance(notice, RequestNotice) else None


class NoticeChannel(ABC):
    """Sends notices to a place outside. `on` names what it is notified of.

    `person` is the one person who reads the channel. Links in it are sent to this person; if several read it, links are
    sent to no one in particular, and whoever opens one logs in.
    """

    def __init__(self, on: Sequence[NoticeKind], *, person: str = "") -> None:
        known = get_args(NoticeKind)
        if isinstance(on, str) or not on or not set(on) <= set(known):
            raise DefinitionError(what="a channel", reason=f"on={on!r} must name some of {', '.join(known)}")
        self.on: frozenset[NoticeKind] = frozenset(on)
        if not person.isprintable() or len(person) > LONGEST_NAME:
            reason = f"person= must have at most {LONGEST_NAME} visible characters"
            raise DefinitionError(what="a channel", reason=reason)
        self.person = person

    @abstractmethod
    def send(self, notice: Notice, *, key: str, now: int) -> None:
        """Send a notice once, and return if it was accepted.

        Raises NotApplied if nothing was sent, RetryAfter if a delay is requested, Permanent if a retry cannot help, and
        otherwise an OSError: the notice may have been accepted, and `key` makes a retry safe.
        """


Channel = NoticeChannel | Callable[[Request], object]
"""Receives notices: a webhook, Slack, e-mail, or a function that takes a request, async or not."""


def told_of(channel: Channel) -> frozenset[NoticeKind]:
    """Return what a channel is notified of. A function takes requests."""
    return channel.on if isinstance(channel, NoticeChannel) else frozenset({"asks"})


def words_of(notice: Notice) -> tuple[str, str]:
    """Return the title and the text of a notice for people."""
    if isinstance(notice, RunNotice):
        title = f"{notice.agent}: run {notice.run} {_VERBS[notice.what]}"
        waits = f"It waits for {', '.join(notice.waits_for)}.\n" if notice.waits_for else ""
        return title, f"{waits}limpet show {notice.run}"
    asked = hide_secrets(notice.question)
    options = f"Options: {', '.join(map(str, notice.options))}\n" if notice.options else ""
    until = "" if notice.expires is None else f"Expires: {notice.expires:%Y-%m-%d %H:%M} UTC\n"
    link = "" if (address := link_in(notice)) is None else f"Decide: {address}\n"
    return f"Run {notice.run} asks: {asked}", f"{asked}\n{options}{until}{link}limpet inbox\nlimpet show {notice.run}"


_VERBS = {"waits": "waits", "completed": "is completed", "failed": "failed", "cancelled": "is cancelled"}
