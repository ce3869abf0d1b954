"""Conversations from outside: saying something in one, reading one, and which there are."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from limpet.engine.run.conversation import INTERRUPT, USER, Message, conversation_of, shown
from limpet.errors import InvalidArgument, NotFound, WrongState
from limpet.events import bodies as b
from limpet.events import inline
from limpet.ids import check_id
from limpet.journal import ConversationWriter, latest
from limpet.service.settings import Settings
from limpet.service.views import LIVE
from limpet.stores import Leg, RunFilter, RunRow
from limpet.stores.blobs import SAID
from limpet.stores.store import LARGEST_PAGE

__all__ = ["ConversationInfo", "Conversations", "SessionInfo"]


@dataclass(frozen=True, kw_only=True)
class ConversationInfo:
    """A conversation as lists show it."""

    id: str
    session: str | None
    user: str | None
    messages: int
    """How many, about: what was compacted or forked counts too."""
    updated: int
    fork_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class SessionInfo:
    """A session as lists show it."""

    id: str
    runs: int
    conversations: int
    updated: int


class Conversations:
    """All conversations of a store."""

    def __init__(self, settings: Settings, tell: Callable[..., Awaitable[None]], now: Callable[[], int]) -> None:
        self._settings, self._store, self._tell, self._now = settings, settings.store, tell, now

    def talk(self, id: str, actor: str, *, session: str | None = None, user: str | None = None) -> ConversationWriter:
        """A conversation that is written to from here."""
        first = b.ConversationCreated(session=session, user=user)
        return ConversationWriter(self._store, id, self._now, actor, first)

    async def check(self, conversation: str) -> bool:
        """Refuse the name of a run, where that of a conversation is wanted; whether there is one of this name."""
        try:
            row = await self._store.get(check_id(conversation))
        except NotFound:
            return False
        if row.type != "conversation":
            reason = f"{conversation!r} is a run; its conversation is {row.conversation or conversation_of(row.id)!r}"
            raise InvalidArgument(path="conversation", reason=reason)
        return True

    async def say(self, conversation: str, text: str, *, actor: str, interrupt: bool) -> str | None:
        """Give a message to the run that goes on in a conversation, and say which; else keep it there for the next."""
        await self.check(conversation)
        run = await self._listener(conversation)
        if run is not None:
            packed, blobs = self._store.pack(text, inline=SAID)
            new = self._settings.ids.new
            bodies = [b.SignalReceived(command=new(), signal=USER, value=packed)]
            if interrupt:
                bodies.append(b.SignalReceived(command=new(), signal=INTERRUPT, value=inline(None)))
            try:
                await self._tell(run, *bodies, blobs=blobs)
            except (WrongState, NotFound):
                pass  # it has ended meanwhile
            else:
                return run
        packed, blobs = self._store.pack(text, inline=SAID)
        added = b.MessageAdded(message=self._settings.ids.new(), role="user", content=packed)
        await self.talk(conversation, actor).append(added, blobs=blobs)
        return None

    async def _listener(self, conversation: str) -> str | None:
        """The newest run in a conversation that has not ended."""
        page = await self._store.runs(RunFilter(conversation=conversation, status=LIVE), limit=1)
        if page.rows:
            return page.rows[0].id
        own = conversation.removesuffix(".chat")
        try:
            row = await self._store.get(own) if own != conversation else None
        except NotFound:
            return None
        return row.id if row is not None and row.type == "run" and row.status in LIVE else None

    async def first(self, conversation: str, text: str, run: str, actor: str, **owner: Any) -> tuple[Leg, Any]:
        """What adds the text that a run is started with to its conversation, and the blobs that come with it."""
        talk = self.talk(conversation, actor, **owner)
        await talk.look()
        packed, blobs = self._store.pack(text, inline=SAID)
        added = b.MessageAdded(message=self._settings.ids.new(), role="user", content=packed, run=run)
        return talk.leg((added,)), blobs

    async def messages(self, conversation: str, *, last: int | None, whole: bool) -> list[Message]:
        """The newest messages of a conversation, in order."""
        if not await self.check(conversation):
            raise NotFound(what="conversation", id=conversation)
        return await shown(self._store, await latest(self._store, conversation, last=last, whole=whole))

    async def all(self, session: str | None) -> list[ConversationInfo]:
        """The newest conversations."""
        page = await self._store.runs(RunFilter(type="conversation", session=session), limit=LARGEST_PAGE)
        return [_info(row) for row in page.rows]

    async def sessions(self) -> list[SessionInfo]:
        """The sessions of the newest runs and conversations, the newest first."""
        found: dict[str, list[RunRow]] = {}
        for where in (RunFilter(), RunFilter(type="conversation")):
            for row in (await self._store.runs(where, limit=LARGEST_PAGE)).rows:
                if row.session is not None:
                    found.setdefault(row.session, []).append(row)
        sessions = [_session(name, rows) for name, rows in found.items()]
        return sorted(sessions, key=lambda each: -each.updated)


def _info(row: RunRow) -> ConversationInfo:
    return ConversationInfo(
        id=row.id,
        session=row.session,
        user=row.user,
        messages=row.seq - 1,
        updated=row.time,
        fork_of=row.origin,
    )


def _session(name: str, rows: list[RunRow]) -> SessionInfo:
    talks = [row for row in rows if row.type == "conversation"]
    return SessionInfo(
        id=name, runs=len(rows) - len(talks), conversations=len(talks), updated=max(row.time for row in rows)
    )
