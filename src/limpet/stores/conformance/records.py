"""Shared records: streams that any process patches, from a version that it has read."""

import asyncio
from typing import Any

import msgspec

from limpet.errors import InvalidAppend
from limpet.events import START, Fact, PlanItem, RecordPatch, inline, verify
from limpet.events import bodies as b
from limpet.events.values import encode
from limpet.state.shared_record import RecordFold
from limpet.stores import Appended, Create, Missed, RunFilter, SendCommands
from limpet.stores.conformance.suite import World, behaviour, completed, created, expect, started

BOARD = "limpet.record.board"


def _patched(command: str, read: int, **patch: Any) -> b.RecordPatched:
    facts = tuple(Fact(key=key, value=msgspec.Raw(encode(value))) for key, value in patch.pop("facts", {}).items())
    data = {key: msgspec.Raw(encode(value)) for key, value in patch.pop("data", {}).items()}
    return b.RecordPatched(
        command=command, read=read, patch=RecordPatch(facts=facts, data=data, **patch), by="ann", via="python"
    )


def _leg(body: b.RecordPatched) -> SendCommands:
    return SendCommands(run=BOARD, bodies=(body,), actor="test")


async def _write(world: World, command: str, read: int, **patch: Any) -> object:
    return await world.store.append(_leg(_patched(command, read, **patch)))


async def _facts(world: World) -> dict[str, object]:
    fold = RecordFold()
    for event in await world.log(BOARD):
        fold.add(event, world.store.decode(event))
    return {each.key: msgspec.json.decode(each.value) for each in fold.freeze().known_facts}


@behaviour()
async def a_record_is_created_by_its_first_patch(world: World) -> None:
    """It is a stream of its own type, sealed by the store in one chain; no worker claims it."""
    world.advance("5s")
    assert isinstance(await _write(world, "c1", 0, facts={"a": 1}), Appended)
    row = await world.store.get(BOARD)
    assert (row.type, row.status, row.ready_at, row.seq) == ("record", "open", None, 2)
    assert await world.kinds(BOARD) == ["record.created", "record.patched"]
    assert verify(await world.log(BOARD), START) == row.head
    assert {event.time for event in await world.log(BOARD)} == {world.clock.now()}
    assert [each.id for each in (await world.store.runs(RunFilter(type="record"))).rows] == [BOARD]
    assert (await world.store.runs()).rows == ()
    assert not any((await world.store.counts()).values())
    assert await world.store.check_counts() == await world.store.check_rows(BOARD) == []


@behaviour()
async def patches_of_different_parts_merge(world: World) -> None:
    """Writers that have read the same version can change different facts, questions, keys of the data, and the plan."""
    await _write(world, "c1", 0, facts={"a": 1})
    plan = (PlanItem(item="call"),)
    done = [
        await _write(world, "c2", 2, facts={"b": 2}),
        await _write(world, "c3", 2, facts={"c": 3}),
        await _write(world, "c4", 2, questions={"q": "When?"}),
        await _write(world, "c5", 2, data={"a": 1}),
        await _write(world, "c6", 2, plan=plan),
    ]
    assert all(isinstance(each, Appended) for each in done)
    assert await _facts(world) == {"a": 1, "b": 2, "c": 3}


@behaviour()
async def a_patch_of_a_part_that_has_changed_is_refused(world: World) -> None:
    """Its writer gets the patches that it missed, and nothing is written."""
    await _write(world, "c1", 0, facts={"a": 1}, data={"x": 1}, questions={"q": "When?"}, plan=())
    await _write(world, "c2", 2, facts={"a": 2})
    await _write(world, "c3", 2, facts={"b": 2})
    missed = await _write(world, "c4", 2, facts={"a": 3, "c": 4})
    assert isinstance(missed, Missed)
    assert (missed.run, [each.event.seq for each in missed.events]) == (BOARD, [3])
    others: tuple[dict[str, Any], ...] = (
        {"data": {"x": 2}},
        {"unset": ("x",)},
        {"answered": {"q": "now"}},
        {"close": ("q",)},
        {"plan": ()},
    )
    for number, patch in enumerate(others):
        assert isinstance(await _write(world, f"d{number}", 0, **patch), Missed)
    assert (await world.store.get(BOARD)).seq == 4
    assert await _facts(world) == {"a": 2, "b": 2}


@behaviour()
async def a_patch_needs_a_version_that_exists(world: World) -> None:
    """A patch from a version that the record never had is refused, also if there is no record."""
    assert await _write(world, "c1", 3, facts={"a": 1}) == Missed(BOARD, ())
    assert (await world.store.runs(RunFilter(type="record"))).rows == ()
    await _write(world, "c2", 0, facts={"a": 1})
    assert await _write(world, "c3", 9, facts={"b": 1}) == Missed(BOARD, ())
    assert (await world.store.get(BOARD)).seq == 2


@behaviour()
async def a_repeated_patch_is_written_once(world: World) -> None:
    """After a lost reply, also if others have changed the same part meanwhile."""
    first = await _write(world, "c1", 0, facts={"a": 1})
    await _write(world, "c2", 2, facts={"a": 2})
    assert await _write(world, "c1", 0, facts={"a": 1}) == first
    assert (await world.store.get(BOARD)).seq == 3


@behaviour()
async def a_step_and_its_patch_are_one_append(world: World) -> None:
    """If the record refuses the patch, nothing is written to the run either."""
    owner = await world.own()
    done = await world.store.append(owner.extend(started(), completed()), _leg(_patched("c1", 0, facts={"a": 1})))
    assert isinstance(done, Appended)
    owner.head = (await owner.row()).head
    seq = owner.head.seq
    again = owner.extend(started(number=2), completed(number=2))
    assert isinstance(await world.store.append(again, _leg(_patched("c2", 0, facts={"a": 2}))), Missed)
    assert ((await owner.row()).seq, (await world.store.get(BOARD)).seq) == (seq, 2)


@behaviour()
async def a_record_takes_only_patches(world: World) -> None:
    """Other streams take none, and no other stream has such an id."""
    await _write(world, "c1", 0, facts={"a": 1})
    await world.store.create("r1", created(), actor="test")
    signal = b.SignalReceived(command="s1", signal="go", value=inline(1))
    await expect(InvalidAppend, world.store.send_commands(BOARD, signal, actor="test"))
    await expect(InvalidAppend, world.store.send_commands("r1", _patched("c2", 0, facts={"b": 1}), actor="test"))
    two = SendCommands(run=BOARD, bodies=(_patched("c3", 2, unset=("a",)), _patched("c4", 2, unset=("b",))), actor="t")
    await expect(InvalidAppend, world.store.append(two))
    await expect(InvalidAppend, world.store.create(BOARD, created(), actor="test"))
    other = Create(run="r2", bodies=(b.RecordCreated(record="r2"),), actor="test")
    await expect(InvalidAppend, world.store.append(other))
    assert ((await world.store.get(BOARD)).seq, (await world.store.get("r1")).seq) == (2, 1)


@behaviour()
async def several_stores_patch_one_record(world: World) -> None:
    """Each fact that was acknowledged is in the record; of patches of one fact from one version, one is written."""
    stores = [world.store, *[await world.another() for _ in range(3)]]
    patches = [
        (store, _patched(f"c{place}-{each}", 0, facts={f"own-{place}-{each}": each}))
        for place, store in enumerate(stores)
        for each in range(10)
    ]
    patches += [(store, _patched(f"d{place}", 0, facts={"shared": place})) for place, store in enumerate(stores)]
    done = await asyncio.gather(*(store.append(_leg(body)) for store, body in patches))
    assert [type(each) for each in done[:40]] == [Appended] * 40
    assert sorted(type(each).__name__ for each in done[40:]) == ["Appended", "Missed", "Missed", "Missed"]
    assert verify(await world.log(BOARD), START).seq == 42
    assert len(await _facts(world)) == 41


@behaviour()
async def a_record_is_rebuilt_from_its_events(world: World) -> None:
    """Its row and the ids of its patches are the same afterwards."""
    await _write(world, "c1", 0, facts={"a": 1})
    row = await world.store.get(BOARD)
    await world.store.rebuild(BOARD)
    assert await world.store.get(BOARD) == row
    assert await world.store.check_rows(BOARD) == []
    await _write(world, "c1", 0, facts={"a": 1})
    assert await world.store.get(BOARD) == row
