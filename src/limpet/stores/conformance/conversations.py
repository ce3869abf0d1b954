"""Conversations: streams of messages, appended like runs but without a fence."""

import asyncio

from limpet.errors import InvalidAppend
from limpet.events import bodies as b
from limpet.events import seal_all, verify
from limpet.stores import Appended, Create, Extend, Missed, RunFilter, Taken
from limpet.stores.conformance.suite import World, behaviour, expect, message, signalled, started


@behaviour()
async def a_conversation_is_created_with_its_first_messages(world: World) -> None:
    """A new conversation is open, and its log is chained like a run's."""
    head = await world.conversation(message())
    row = await world.store.get("c1")
    assert (row.type, row.status, row.ready_at, row.head) == ("conversation", "open", None, head)
    assert await world.kinds("c1") == ["conversation.created", "message.added"]
    assert verify(await world.log("c1")) == head


@behaviour()
async def messages_are_appended_without_a_fence(world: World) -> None:
    """A writer that knows the head can append messages without a fence."""
    head = await world.conversation()
    done = await world.store.append(world.message_leg(head, message("hi")))
    assert isinstance(done, Appended)
    assert (await world.store.get("c1")).seq == 2


@behaviour()
async def of_two_messages_after_one_head_one_is_written(world: World) -> None:
    """Of two messages after the same head one is written; the other writer gets the events that it missed."""
    head = await world.conversation()
    done = await asyncio.gather(
        *(world.store.append(world.message_leg(head, message(text))) for text in ("one", "two"))
    )
    assert sorted(type(each).__name__ for each in done) == ["Appended", "Missed"]
    [missed] = [each for each in done if isinstance(each, Missed)]
    assert missed.events[0].event.seq == 2


@behaviour()
async def a_repeated_message_is_stored_once(world: World) -> None:
    """Repeating an append of a message stores it once."""
    head = await world.conversation()
    leg = world.message_leg(head, message("hi"))
    await world.store.append(leg)
    assert isinstance(await world.store.append(leg), Appended)
    assert len(await world.log("c1")) == 2


@behaviour()
async def a_conversation_accepts_only_messages(world: World) -> None:
    """A conversation refuses steps, commands and anything under a fence."""
    head = await world.conversation()
    events = seal_all(head, "c1", (started(),), time=0, fence=0, actor="x", codec=world.store.codec)
    await expect(InvalidAppend, world.store.append(Extend(run="c1", after=head, fence=None, events=events)))
    await expect(InvalidAppend, world.store.send_commands("c1", signalled(), actor="ann"))
    fenced = seal_all(head, "c1", (started(),), time=0, fence=1, actor="x", codec=world.store.codec)
    await expect(InvalidAppend, world.store.append(Extend(run="c1", after=head, fence=1, events=fenced)))
    assert len(await world.log("c1")) == 1


@behaviour()
async def a_runs_log_refuses_messages(world: World) -> None:
    """A run's log refuses messages."""
    owner = await world.own()
    events = seal_all(owner.head, "r1", (message("x"),), time=0, fence=0, actor="x", codec=world.store.codec)
    await expect(InvalidAppend, world.store.append(Extend(run="r1", after=owner.head, fence=None, events=events)))
    await expect(InvalidAppend, owner.send(owner.extend(message("x"))))


@behaviour()
async def a_run_and_a_conversation_cannot_share_an_id(world: World) -> None:
    """Runs and conversations cannot have the same id."""
    await world.create("x")
    done = await world.store.append(Create(run="x", bodies=(b.ConversationCreated(),), actor="test"))
    assert isinstance(done, Taken)
    assert done.row.type == "run"


@behaviour()
async def a_message_and_the_runs_record_of_it_are_one_append(world: World) -> None:
    """A message and the run's record of it are written in one append, both or neither."""
    head = await world.conversation()
    owner = await world.own()
    record = b.MessageSaid(name="say#1", conversation="c1", message=2)
    assert isinstance(await world.store.append(owner.extend(record), world.message_leg(head, message("hi"))), Appended)
    owner.head = (await owner.row()).head
    stale = await world.store.append(owner.extend(record), world.message_leg(head, message("again")))
    assert isinstance(stale, Missed)
    assert (len(await world.log("c1")), (await owner.row()).head) == (2, owner.head)


@behaviour()
async def conversations_are_listed_by_session(world: World) -> None:
    """Conversations are listed by session, with their labels."""
    await world.conversation(session="s1", user="ann", labels={"topic": "x"})
    [row] = (await world.store.runs(RunFilter(type="conversation", labels={"topic": "x"}))).rows
    assert (row.id, row.session, row.user) == ("c1", "s1", "ann")
