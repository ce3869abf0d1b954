"""Audit logs: events that any process sends, and the store seals in one chain."""

import asyncio

from limpet.errors import InvalidAppend
from limpet.events import START, inline, seal_all, verify
from limpet.events import bodies as b
from limpet.stores import Create, Extend, RunFilter, SendCommands, Taken
from limpet.stores.conformance.suite import World, behaviour, created, expect

LOG = "limpet.audit.2026-11"


def _event(command: str, action: str = "start") -> b.AuditRecorded:
    return b.AuditRecorded(command=command, by="ann", via="http", action=action, subject="r1", address="10.0.0.7")


async def _new_log(world: World) -> None:
    await world.store.append(Create(run=LOG, bodies=(b.AuditStarted(month="2026-11"),), actor="test"))


@behaviour()
async def audit_events_are_sealed_by_the_store(world: World) -> None:
    """They are in one chain, in the order of their arrival, with the store's time."""
    await _new_log(world)
    world.advance("5s")
    await world.store.send_commands(LOG, _event("e1"), _event("e2"), actor="test")
    events = await world.store.read(LOG)
    assert [world.store.decode(event) for event in events[1:]] == [_event("e1"), _event("e2")]
    assert {event.time for event in events[1:]} == {world.clock.now()}
    assert verify(events, START).seq == 3
    assert await world.store.check_rows(LOG) == []


@behaviour()
async def an_audit_log_is_neither_a_run_nor_a_conversation(world: World) -> None:
    """It is listed by its own type, is not counted, and no worker claims it."""
    await _new_log(world)
    assert [row.id for row in (await world.store.runs(RunFilter(type="audit"))).rows] == [LOG]
    assert (await world.store.runs()).rows == (await world.store.runs(RunFilter(type="conversation"))).rows == ()
    assert not any((await world.store.counts()).values())
    assert await world.store.check_counts() == []


@behaviour()
async def a_repeated_audit_event_is_recorded_once(world: World) -> None:
    """A batch that is sent again after a lost reply is not written again."""
    await _new_log(world)
    for _ in range(2):
        await world.store.send_commands(LOG, _event("e1"), _event("e2"), actor="test")
    assert (await world.store.get(LOG)).seq == 3


@behaviour()
async def an_audit_log_takes_only_audit_events(world: World) -> None:
    """Its events cannot be sealed by their writer, and other streams take none."""
    await _new_log(world)
    await world.store.create("r1", created(), actor="test")
    signal = b.SignalReceived(command="s1", signal="go", value=inline(1))
    await expect(InvalidAppend, world.store.send_commands(LOG, signal, actor="test"))
    await expect(InvalidAppend, world.store.send_commands("r1", _event("e1"), actor="test"))
    head = (await world.store.get(LOG)).head
    message = b.MessageAdded(message="m1", role="user", content=inline("hello"))
    events = seal_all(head, LOG, (message,), time=head.time, fence=0, actor="test", codec=world.store.codec)
    await expect(InvalidAppend, world.store.append(Extend(run=LOG, after=head, fence=None, events=events)))
    assert (await world.store.get(LOG)).seq == (await world.store.get("r1")).seq == 1


@behaviour()
async def the_id_of_an_audit_log_cannot_be_taken_by_a_run(world: World) -> None:
    """Nor can an audit log have the id of a run; creating one twice returns the first."""
    await expect(InvalidAppend, world.store.create(LOG, created(), actor="test"))
    other = Create(run="r1", bodies=(b.AuditStarted(month="2026-11"),), actor="test")
    await expect(InvalidAppend, world.store.append(other))
    await _new_log(world)
    again = Create(run=LOG, bodies=(b.AuditStarted(month="2026-11"),), actor="test")
    assert isinstance(await world.store.append(again), Taken)


@behaviour()
async def several_stores_write_one_audit_log(world: World) -> None:
    """Every event that was acknowledged is in the chain, once."""
    await _new_log(world)
    stores = [world.store, *[await world.another() for _ in range(3)]]
    sent = [
        store.send_commands(LOG, _event(f"e{place}-{each}"), actor=f"s{place}")
        for place, store in enumerate(stores)
        for each in range(10)
    ]
    await asyncio.gather(*sent)
    events = await world.store.read(LOG)
    assert verify(events, START).seq == 41
    bodies = [world.store.decode(event) for event in events[1:]]
    assert {body.command for body in bodies if isinstance(body, b.AuditRecorded)} == {
        f"e{place}-{each}" for place in range(4) for each in range(10)
    }


@behaviour()
async def an_audit_log_is_rebuilt_from_its_events(world: World) -> None:
    """Its row and the ids of its events are the same afterwards."""
    await _new_log(world)
    await world.store.append(SendCommands(run=LOG, bodies=(_event("e1"),), actor="test"))
    row = await world.store.get(LOG)
    await world.store.rebuild(LOG)
    assert await world.store.get(LOG) == row
    assert await world.store.check_rows(LOG) == []
