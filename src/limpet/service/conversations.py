"""Conversations: add a message, read the messages, list conversations and sessions."""

from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from datetime import datetime

from msgspec import Struct, structs

from limpet.engine.execution.principal import Sender
from limpet.engine.run.compaction import (
    Summarise,
    Summariser,
    as_summariser,
    checked_summary,
    old_messages,
    read_talk,
)
from limpet.engine.run.conversation import INTERRUPT, USER, Message, conversation_of, shown
from limpet.errors import InvalidArgument, NotFound, WrongState
from limpet.events import Event, inline
from limpet.events import bodies as b
from limpet.ids import check_id
from limpet.journal import ConversationWriter, Entry, Summary, entries, latest, replaced
from limpet.service.moments import Point, point
from limpet.service.page import Page
from limpet.service.resolve import owner_of
from limpet.service.settings import Settings
from limpet.service.views import LIVE
from limpet.stores import RunFilter, RunRow, Store
from limpet.stores.api.base import LARGEST_PAGE
from limpet.stores.blobs import MESSAGE_INLINE, Blob
from limpet.times import to_datetime
from limpet.view import View

# Number of newest messages that are searched for a repeated command.
SEARCHED = 20
# Kinds of the events with which a run ends.
ENDS = ("run.completed", "run.failed", "run.cancelled")
# More tokens than any conversation has.
LARGEST = 1 << 62
__all__ = ["CompactionInfo", "ConversationInfo", "Conversations", "Delivery", "SessionInfo", "last_message_at"]


class Delivery(Struct, frozen=True):
    """The delivery of a message to a conversation."""

    run: str | None
    """Run that receives it; None if it waits for the next run."""


class ConversationInfo(View, frozen=True, kw_only=True):
    """Summary of a conversation, for lists."""

    id: str
    """Conversation id."""
    session: str | None
    """Session that it belongs to."""
    user: str | None
    """User that it belongs to."""
    messages: int
    """Approximate number of messages; includes compactions and forks."""
    updated: datetime
    """Time of the last message."""
    fork_of: str | None = None
    """The conversation that this one was forked from."""


class SessionInfo(View, frozen=True, kw_only=True):
    """Summary of a session, for lists."""

    id: str
    """Session id."""
    runs: int
    """Number of runs."""
    conversations: int
    """Number of conversations."""
    updated: datetime
    """Time of the last event."""


class CompactionInfo(View, frozen=True, kw_only=True):
    """A summary that replaces messages of a conversation."""

    conversation: str
    """Conversation id."""
    seq: int
    """Sequence of the summary in the conversation."""
    first: int
    """Sequence of the first message that it replaces."""
    last: int
    """Sequence of the last message that it replaces."""
    kept: int
    """Number of messages between these two that are still shown."""


class Conversations:
    """All conversations of a store."""

    def __init__(self, settings: Settings, send: Callable[..., Awaitable[None]], now: Callable[[], int]) -> None:
        self._settings, self._store, self._send, self._now = settings, settings.store, send, now

    def writer(self, id: str, actor: str, *, session: str | None = None, user: str | None = None) -> ConversationWriter:
        """Return a writer for a conversation."""
        first = b.ConversationCreated(session=session, user=user)
        return ConversationWriter(self._store, id, self._now, actor, first)

    async def exists(self, conversation: str) -> bool:
        """Return whether a conversation exists. Raises InvalidArgument if the id is that of a run."""
        return await self.find(conversation) is not None

    async def find(self, conversation: str) -> RunRow | None:
        """Return the row of a conversation, or None if there is none. Raises InvalidArgument if the id is that of a
        run.
        """
        try:
            row = await self._store.get(check_id(conversation))
        except NotFound:
            return None
        if row.type != "conversation":
            reason = (
                f"{conversation!r} is a run; pass its conversation, {row.conversation or conversation_of(row.id)!r}"
            )
            raise InvalidArgument(path="conversation", reason=reason)
        return row

    async def load_end(self, talk: ConversationWriter) -> None:
        """Let a writer continue after the current end. Raises InvalidArgument if the id is that of a run."""
        row = await self.find(talk.id)
        talk.adopt(None if row is None else row.head)

    async def say(
        self, conversation: str, text: str, *, actor: str, interrupt: bool, id: str, sender: Sender
    ) -> str | None:
        """Send a message to the active run of a conversation and return its id, or store it and return None."""
        await self.exists(conversation)
        run = await self._active_run(conversation)
        if run is not None:
            packed, blobs = self._store.pack(text, inline=MESSAGE_INLINE)
            bodies = [b.SignalReceived(command=id, signal=USER, value=packed, **sender)]
            if interrupt:
                stop = f"{id}:interrupt"
                bodies.append(b.SignalReceived(command=stop, signal=INTERRUPT, value=inline(None), **sender))
            try:
                await self._send(run, *bodies, blobs=blobs)
            except (WrongState, NotFound):
                pass  # the run has ended since
            else:
                return run
        if await self._has_message(conversation, id):
            return None  # the command is repeated
        packed, blobs = self._store.pack(text, inline=MESSAGE_INLINE)
        added = b.MessageAdded(message=id, role="user", content=packed, **sender)
        await self.writer(conversation, actor).append(added, blobs=blobs)
        return None

    async def _has_message(self, conversation: str, id: str) -> bool:
        """Return whether one of the newest messages has this id."""
        newest = await latest(self._store, conversation, last=SEARCHED, whole=True)
        return any(isinstance(each, Entry) and each.message.message == id for each in newest)

    async def _active_run(self, conversation: str) -> str | None:
        """Return the id of the newest run in a conversation that has not ended."""
        page = await self._store.runs(RunFilter(conversation=conversation, status=LIVE), limit=1)
        if page.rows:
            return page.rows[0].id
        owner = await owner_of(self._store, conversation)
        return owner.id if owner is not None and owner.status in LIVE else None

    def first_message(self, text: str, run: str, created: b.RunCreated) -> tuple[b.MessageAdded, Sequence[Blob]]:
        """Return a run's input as the first message in its conversation, and its blobs."""
        packed, blobs = self._store.pack(text, inline=MESSAGE_INLINE)
        added = b.MessageAdded(
            message=self._settings.ids.new(),
            role="user",
            content=packed,
            run=run,
            by=created.by,
            via=created.via,
        )
        return added, blobs

    async def messages(self, conversation: str, *, limit: int, cursor: str | None, whole: bool) -> Page[Message]:
        """Return the newest messages of a conversation before a cursor, in order."""
        if not await self.exists(conversation):
            if await owner_of(self._store, conversation) is not None:
                return Page(())  # The run has said nothing yet.
            raise NotFound(what="conversation", id=conversation)
        found: list[Entry | Summary] = []
        before = None if cursor is None else _place(cursor)
        async for each in entries(self._store, conversation, whole=whole):
            if before is None or _first_of(each) < before:
                found.append(each)
            if len(found) > limit:
                break
        newest = found[:limit]
        shown_ = await shown(self._store, newest[::-1])
        return Page(shown_, str(_first_of(newest[-1])) if len(found) > limit else None)

    async def compact(
        self,
        conversation: str,
        summary: str | Summarise | Summariser,
        *,
        keep: int,
        actor: str,
        id: str,
        sender: Sender,
    ) -> "CompactionInfo | None":
        """Let a summary replace the older messages of a conversation, or return None if there are none to replace.

        A text replaces all older messages; a function as many as fit its window, the oldest first.
        """
        if not await self.exists(conversation):
            raise NotFound(what="conversation", id=conversation)
        if (found := await self._find_compaction(conversation, id)) is not None:
            return found  # the command is repeated
        store, talk = self._store, await read_talk(self._store, conversation)
        made = (
            Summariser(lambda _: summary, room=LARGEST)
            if isinstance(summary, str)
            else as_summariser(summary, "summary")
        )
        old, messages = await old_messages(store, talk, keep, made.room)
        if not old:
            return None
        try:
            text = checked_summary(await made.summarise(messages))
        except ValueError as error:
            raise InvalidArgument(path="summary", reason=str(error)) from error
        packed, blobs = store.pack(text)
        body = replaced([each.seq for each in old], [each.seq for each in talk.entries], talk.summaries, packed)
        body = structs.replace(body, command=id, **sender)
        return _compaction(conversation, await self.writer(conversation, actor).append(body, blobs=blobs), body)

    async def _find_compaction(self, conversation: str, id: str) -> "CompactionInfo | None":
        """Return the compaction by a command, if it is one of the newest events."""
        for event in await self._store.read(conversation, limit=SEARCHED, backwards=True):
            body = self._store.decode(event)
            if isinstance(body, b.ConversationCompacted) and body.command == id:
                return _compaction(conversation, event.seq, body)
        return None

    async def all(
        self, session: str | None, user: str | None, *, limit: int, cursor: str | None
    ) -> Page[ConversationInfo]:
        """Return the newest conversations before a cursor."""
        before = None if cursor is None else _place(cursor)
        where = RunFilter(type="conversation", session=session, user=user)
        page = await self._store.runs(where, before=before, limit=min(limit, LARGEST_PAGE))
        return Page(map(_info, page.rows), None if page.next is None else str(page.next))

    async def sessions(self, *, limit: int, cursor: str | None) -> Page[SessionInfo]:
        """Return the sessions of the newest runs and conversations, the newest first."""
        found: dict[str, list[RunRow]] = {}
        for where in (RunFilter(), RunFilter(type="conversation")):
            for row in (await self._store.runs(where, limit=LARGEST_PAGE)).rows:
                if row.session is not None:
                    found.setdefault(row.session, []).append(row)
        sessions = [_session(name, rows) for name, rows in found.items()]
        sessions.sort(key=lambda each: each.updated, reverse=True)
        names = [each.id for each in sessions]
        if cursor is not None and cursor not in names:
            raise _wrong_cursor(cursor)
        start = 0 if cursor is None else names.index(cursor) + 1
        return Page.cut(sessions[start:], limit, lambda each: each.id)


def _place(cursor: str) -> int:
    if not cursor.isdecimal():
        raise _wrong_cursor(cursor)
    return int(cursor)


def _wrong_cursor(cursor: str) -> InvalidArgument:
    return InvalidArgument(path="cursor", reason=f"{cursor!r} is not a cursor; pass `next` of the page before")


def _first_of(entry: Entry | Summary) -> int:
    """Return the sequence of a message, or of the first message that a summary replaces."""
    return entry.compacted.first if isinstance(entry, Summary) else entry.seq


def _info(row: RunRow) -> ConversationInfo:
    return ConversationInfo(
        id=row.id,
        session=row.session,
        user=row.user,
        messages=row.seq - 1,
        updated=to_datetime(row.time),
        fork_of=row.origin,
    )


def _compaction(conversation: str, seq: int, body: b.ConversationCompacted) -> CompactionInfo:
    return CompactionInfo(conversation=conversation, seq=seq, first=body.first, last=body.last, kept=len(body.pinned))


def _session(name: str, rows: list[RunRow]) -> SessionInfo:
    talks = [row for row in rows if row.type == "conversation"]
    return SessionInfo(
        id=name,
        runs=len(rows) - len(talks),
        conversations=len(talks),
        updated=to_datetime(max(row.time for row in rows)),
    )


async def last_message_at(store: Store, run: str, seq: int, conversation: str) -> int:
    """Return the number of the last message in a conversation at an event of a run, or 0.

    Times may be wrong, so the result is corrected by the run's own messages: it includes all those that the run had
    sent by then, and none that it sent later. Messages to a live run reach its conversation through the run, so those
    after its last one came after its end.
    """
    [event] = await store.read(run, after=seq - 1, limit=1)
    earlier = await _first_message(store, _backwards(store, run, seq), conversation)
    if earlier is not None and event.kind in ENDS:
        return earlier.message + earlier.count - 1
    try:
        upto = await point(store, conversation, Point(at=event.time))
    except NotFound:
        upto = 0
    later = await _first_message(store, store.log(run, after=seq), conversation)
    if earlier is not None:
        upto = max(upto, earlier.message + earlier.count - 1)
    return upto if later is None else min(upto, later.message - 1)


async def _first_message(store: Store, events: AsyncIterable[Event], conversation: str) -> b.MessageSaid | None:
    """Return the first of some events that adds messages to a conversation."""
    async for event in events:
        body = store.decode(event) if event.kind == "message.said" else None
        if isinstance(body, b.MessageSaid) and body.conversation == conversation:
            return body
    return None


async def _backwards(store: Store, run: str, seq: int) -> AsyncIterable[Event]:
    """Yield the events of a run up to one, the newest first."""
    before: int | None = seq + 1
    while page := await store.read(run, before=before, backwards=True):
        for event in page:
            yield event
        before = page[-1].seq
