"""A run's conversation: append messages, and read the same messages in every execution."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct, structs

from limpet.context.slice import SliceMessage
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.principal import Sender
from limpet.engine.replay.history import Record
from limpet.errors import InvalidArgument
from limpet.events import Head, Payload, digest
from limpet.events import bodies as b
from limpet.ids import LONGEST_ID
from limpet.journal import ConversationWriter, Entry, OutgoingMessages, Summary, latest, replaced
from limpet.stores import Leg, Store
from limpet.stores.blobs import MESSAGE_INLINE, Blob
from limpet.times import to_datetime

__all__ = [
    "CHAT",
    "INTERRUPT",
    "USER",
    "Message",
    "Role",
    "RunConversation",
    "conversation_of",
    "shown",
    "task_of",
    "text_of",
]

Role = Literal["user", "assistant", "system"]
# Signal that carries messages of people to a run.
USER = "user"
# Signal that tells a run to stop its current work.
INTERRUPT = "limpet.interrupt"
# Suffix of the conversation of a run that was not started in one.
CHAT = ".chat"
LONGEST_TASK = 64_000
ROLES = ("user", "assistant", "system", "tool")
ReadHead = Callable[[], Awaitable[Head | None]]


class Message(Struct, frozen=True, kw_only=True):
    """A message of a conversation. A summary has the role "system"."""

    role: str
    """Who said it."""
    text: str
    """Text of the message."""
    seq: int = 0
    """Sequence of the message in the conversation."""
    is_summary: bool = False
    """Whether the message summarises the messages before it."""
    calls: tuple[str, ...] = ()
    """Tool calls that the message requests, as text."""
    tool: str = ""
    """Name of the tool, if the message is a tool's result."""
    by: str = ""
    """Who sent it, if that is known: the name of a person or service."""
    run: str | None = None
    """The run that added it. None for a message that no run has received."""
    step: int | None = None
    """Number of the run's step that it belongs to: a model call, a tool call, or the last step before `run.say`."""
    time: datetime
    """When it was added."""

    def spoken(self) -> SliceMessage:
        """Return the message in the form that a context slice uses."""
        return SliceMessage(role=self.role, text=self.text, seq=self.seq, calls=self.calls, tool=self.tool)


def conversation_of(run: str) -> str:
    """Return the id of the conversation of a run that was not started in one."""
    name = f"{run}{CHAT}"
    return name if len(name) <= LONGEST_ID else f"{run[: LONGEST_ID - 22]}.{digest(run)[:16]}{CHAT}"


def text_of(content: Any) -> str:
    """Return the text of a message, whose content is text or a model's reply with text and tool calls."""
    return str(content.get("text", "")) if isinstance(content, Mapping) else str(content)


class RunConversation:
    """The conversation of one execution."""

    def __init__(self, execution: Execution) -> None:
        self._x = x = execution
        created = x.memory.created
        self.id = created.conversation or conversation_of(x.run)
        first = b.ConversationCreated(session=created.session, user=created.user)
        self._writer = ConversationWriter(x.kit.store, self.id, x.kit.now, x.kit.worker, first)

    def message(
        self, role: Role | Literal["tool"], content: Any, *, reply: Any = None, **more: Any
    ) -> tuple[b.MessageAdded, list[Blob]]:
        """Return a message and its blobs. `reply` is the reply as its step recorded it, which is stored once.

        The message belongs to the last step that the code called, unless a user sent it or `number` names another.
        """
        store = self._x.kit.store
        packed, blobs = store.pack(content, inline=MESSAGE_INLINE)
        if reply is not None:
            more["reply"], others = store.pack(reply, inline=MESSAGE_INLINE)
            blobs = (*blobs, *others)
        more.setdefault("number", None if role == "user" else self._x.last_step())
        added = b.MessageAdded(message=self._x.kit.ids.new(), role=role, content=packed, run=self._x.run, **more)
        return added, list(blobs)

    async def say(self, name: str, record: Record | None, text: str, role: Role, sender: Sender | None = None) -> None:
        """Append a message, once. `sender` is who said it, if it was not the agent."""
        if role not in ROLES:
            raise InvalidArgument(path="role", reason=f"must be one of {', '.join(ROLES)}, not {role!r}")
        if record is None:
            await self.put_all(name, None, [self.message(role, text, **dict(sender or {}))])
        else:
            await self.put(name, record, (), ())

    async def put(
        self,
        name: str,
        record: Record | None,
        messages: Sequence[b.MessageAdded | b.ConversationCompacted],
        blobs: Sequence[Blob],
        *,
        is_flushed: bool = True,
    ) -> None:
        """Append messages together with the run's own event.

        Unless `is_flushed`, they are written with the next events of the run.
        """
        x = self._x
        await x.gate.wait_until_open()
        if record is not None:
            await x.recorder.recall(record, b.MessageSaid)
            return
        await x.check_new(name)

        def note(seq: int) -> b.MessageSaid:
            return b.MessageSaid(name=name, conversation=self.id, message=seq, count=len(messages))

        with x.gate.work():
            await x.recorder.write_until_stored(self._writer.look)
            x.journal.say(self._writer, OutgoingMessages(tuple(messages), note), blobs)
            ticket = x.return_order.issue_ticket()
        await x.recorder.finish(ticket, "say_returns" if is_flushed else None)

    async def put_all(
        self,
        name: str,
        record: Record | None,
        added: Sequence[tuple[b.MessageAdded, Sequence[Blob]]],
        *,
        is_flushed: bool = True,
    ) -> None:
        """Append messages, each with its blobs; see `put`."""
        blobs = [blob for _, each in added for blob in each]
        await self.put(name, record, [message for message, _ in added], blobs, is_flushed=is_flushed)

    def summary(
        self, text: str, gone: Collection[int], shown: Iterable[int], summaries: Iterable[Summary]
    ) -> tuple[b.ConversationCompacted, tuple[Blob, ...]]:
        """Return the event that replaces messages by a summary, and its blobs; see `replaced`."""
        packed, blobs = self._x.kit.store.pack(text)
        body = replaced(gone, shown, summaries, packed)
        return structs.replace(body, run=self._x.run, number=self._x.last_step()), blobs

    async def keep_unread(self, signals: Sequence[b.SignalReceived]) -> Leg:
        """Return the append that keeps messages which an ending run has not received, for the next run."""
        await self._x.recorder.retry_store(self._writer.look)
        new = self._x.kit.ids.new
        return self._writer.leg(
            [
                b.MessageAdded(message=new(), role="user", content=each.value, by=each.by, via=each.via)
                for each in signals
            ]
        )

    async def exists(self) -> bool:
        """Return whether the conversation has messages, or the run was started in it."""
        return self._x.memory.created.conversation is not None or bool(
            await self._x.recorder.retry_store(self._last_seq)
        )

    async def head(self, name: str, record: Record | None, read: ReadHead | None = None) -> int:
        """Return the sequence of the last message, the same in every execution.

        `read` returns the current head if it can; otherwise the head is loaded here.
        """
        x = self._x
        await x.gate.wait_until_open()
        if record is not None:
            seq: int = (await x.recorder.recall(record, b.ValueRecorded)).value.value()
            return seq
        if x.journal.has_messages:
            await x.recorder.flush()
        found = None if read is None else await x.recorder.ask_store(read)
        if found is not None:
            self._writer.adopt(found)
        seq = found.seq if found is not None else await x.recorder.ask_store(self._last_seq)
        await x.recorder.record(name, seq)
        return seq

    async def _last_seq(self) -> int:
        head = await self._writer.look_again()
        return head.seq if head is not None else 0

    async def messages(self, name: str, record: Record | None, last: int | None) -> list[Message]:
        """Return the newest messages in order, after the latest summary if there is one."""
        seq = await self.head(name, record)
        if not seq:
            return []
        store = self._x.kit.store

        async def load() -> list[Message]:
            return await shown(store, await latest(store, self.id, last=last, upto=seq))

        return await self._x.recorder.load(load)


async def task_of(store: Store, input: Payload) -> str:
    """Return the input of a run if it is a text of at most 64,000 bytes, else ""."""
    value = await store.unpack(input) if input.size <= LONGEST_TASK else None
    return value if isinstance(value, str) else ""


async def shown(store: Store, found: Sequence[Entry | Summary]) -> list[Message]:
    """Return the entries of a conversation as messages; a summary has the role "system"."""
    contents = await store.unpack_all([each.content for each in found])
    tools: dict[str, str] = {}
    return [_shown(each, content, tools) for each, content in zip(found, contents, strict=True)]


def _shown(each: Entry | Summary, content: Any, tools: dict[str, str]) -> Message:
    """Return one message. `tools` maps the ids of the calls so far to their tools."""
    if isinstance(each, Summary):
        body = each.compacted
        return Message(
            role="system",
            text=text_of(content),
            seq=each.seq,
            is_summary=True,
            by=body.by,
            run=body.run,
            step=body.number,
            time=to_datetime(each.time),
        )
    calls = content.get("calls") if isinstance(content, Mapping) else None
    made = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    tools.update({str(call.get("id")): str(call.get("name")) for call in made})
    return Message(
        role=each.message.role,
        text=text_of(content),
        seq=each.seq,
        calls=tuple(f"{call.get('name')}({call.get('args') or ''})" for call in made),
        tool=tools.get(each.message.call or "", ""),
        by=each.message.by,
        run=each.message.run,
        step=each.message.number,
        time=to_datetime(each.time),
    )
