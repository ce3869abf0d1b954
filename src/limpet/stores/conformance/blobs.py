"""Blobs: large content is stored once, exists while an event refers to it, and is collected afterwards."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from hashlib import shake_256

from limpet.errors import IdConflict, InvalidAppend, LeaseLost, NotFound
from limpet.events import Failure, Lineage, Payload, inline
from limpet.events import bodies as b
from limpet.events.codec import DEFLATED
from limpet.stores import Appended, Create, Missed, SendCommands, Store
from limpet.stores.blobs import CHUNK, INLINE, Blob, pack_blob
from limpet.stores.conformance.suite import (
    Owner,
    World,
    asked,
    behaviour,
    completed,
    created,
    expect,
    forked,
    gave,
    started,
)

BIG = {"nested": [{"a": None, "b": [1.5, -0.0, True, "é"]}], "pages": ["so much of it"] * 2_000}
NOWHERE = Payload(blob="0" * 64, bytes=9)


# Inline or blob


@behaviour()
async def a_value_of_8192_bytes_stays_inline(world: World) -> None:
    """A value of up to 8,192 bytes of JSON stays inline, without a blob."""
    value = "x" * (INLINE - 2)
    payload, blobs = world.store.pack(value)
    assert (INLINE, blobs, payload.value()) == (8192, (), value)
    assert await world.store.unpack(payload) == value


@behaviour()
async def a_value_of_8193_bytes_becomes_a_blob(world: World) -> None:
    """A value of 8,193 bytes of JSON becomes a blob, and its payload has the size."""
    value = "x" * (INLINE - 1)
    payload, [blob] = world.store.pack(value)
    assert (payload.blob, payload.bytes, blob.size) == (blob.id, 8193, 8193)
    owner = await world.own()
    await owner.append(gave(payload), blobs=[blob])
    assert await world.store.unpack(payload) == value


@behaviour()
async def payloads_unpacked_together_give_their_values_in_order(world: World) -> None:
    """Payloads that are unpacked together (inline, in blobs, of many chunks, repeated) give their values in order."""
    values = ["small", "s" * 300, {"n": 1}, BIG, "s" * 300, _noise(CHUNK + 1).hex(), None]
    packed = [world.store.pack(value, inline=256) for value in values]
    owner = await world.own()
    for payload, blobs in packed:
        await owner.append(gave(payload), blobs=blobs)
    assert await world.store.unpack_all([payload for payload, _ in packed]) == values
    assert await world.store.unpack_all([]) == []
    small = {payload.blob for payload, _ in packed if not payload.is_inline}
    assert len(small) == 3


@behaviour()
async def unpacking_payloads_with_a_missing_blob_is_not_found(world: World) -> None:
    """Unpacking several payloads raises NotFound if one blob is missing."""
    payload, blobs = world.store.pack(BIG)
    owner = await world.own()
    await owner.append(gave(payload), blobs=blobs)
    await expect(NotFound, world.store.unpack_all([payload, NOWHERE]))


@behaviour()
async def a_large_value_is_unpacked_unchanged(world: World) -> None:
    """A large value that is unpacked from the log equals the packed value."""
    await _own_with(world, BIG)
    last = (await world.bodies())[-1]
    assert isinstance(last, b.StepCompleted)
    assert last.output is not None
    assert await world.store.unpack(last.output) == BIG
    assert str(await world.store.unpack(last.output)) == str(BIG)


@behaviour()
async def a_blob_is_readable_from_every_store_on_the_same_data(world: World) -> None:
    """Another store on the same data can read a blob as soon as the append has returned."""
    payload = await _own_with(world, BIG)
    assert await (await world.another()).unpack(payload) == BIG


@behaviour()
async def an_unknown_blob_is_not_found(world: World) -> None:
    """Reading an unknown blob raises NotFound."""
    error = await expect(NotFound, _content(world.store, NOWHERE))
    assert (error.what, error.id) == ("blob", NOWHERE.blob)
    await expect(NotFound, world.store.unpack(NOWHERE))


@behaviour()
async def content_is_compressed_only_if_that_saves_space(world: World) -> None:
    """Content is compressed if that saves space, and comes back unchanged either way."""
    text, noise = b"the same words again " * 5_000, _noise(100_000)
    packed = [pack_blob(world.store.codec, data).chunks[0] for data in (text, noise)]
    assert [each.codec.startswith(DEFLATED) for each in packed] == [True, False]
    assert len(packed[0].data) < len(text) // 8
    for data in (text, noise):
        assert await _content(world.store, await world.store.put_blob(data)) == data


# Sizes and streams


@behaviour()
async def empty_content_is_stored_as_a_blob(world: World) -> None:
    """Empty content is stored as a blob, from bytes and from a stream without parts."""
    one = await world.store.put_blob(b"")
    two = await world.store.put_blob(_stream(()))
    assert one == two
    assert await _content(world.store, one) == b""


@behaviour()
async def blobs_around_the_chunk_size_are_read_back_unchanged(world: World) -> None:
    """Content of about one and two chunks comes back without a lost or added byte."""
    for size in (CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK):
        data = _noise(size)
        put = await world.store.put_blob(data)
        streamed = await world.store.put_blob(_stream([data]))
        assert put == streamed
        assert put.bytes == size
        assert await _content(world.store, put) == data


@behaviour()
async def a_blob_of_several_chunks_is_read_chunk_by_chunk(world: World) -> None:
    """A blob is read in parts of at most one chunk, so that it need not fit into memory."""
    data = _noise(5 * CHUNK // 2)
    payload = await world.store.put_blob(data)
    assert isinstance(payload.blob, str)
    parts = [part async for part in world.store.read_blob(payload.blob)]
    assert [len(part) for part in parts] == [CHUNK, CHUNK, CHUNK // 2]
    assert b"".join(parts) == data


@behaviour()
async def streamed_content_gives_the_same_blob_however_it_is_split(world: World) -> None:
    """Content gives the same blob, however it was split when streamed."""
    data = _noise(5 * CHUNK // 2)
    whole = await world.store.put_blob(data)
    for cuts in ([1, 7, CHUNK - 3, CHUNK], [0, 2 * CHUNK + 5, 0], [CHUNK]):
        assert await world.store.put_blob(_stream(_cut(data, cuts))) == whole
    assert await _content(world.store, whole) == data
    assert await _collected(world) == 1


@behaviour()
async def events_can_refer_to_a_blob_that_was_streamed_before(world: World) -> None:
    """Streamed content can be read, and events can refer to it."""
    data = _noise(3 * CHUNK)
    payload = await world.store.put_blob(_stream(_cut(data, [99, CHUNK, 12345])))
    owner = await world.own()
    await owner.append(gave(payload))
    assert await _collected(world) == 0
    assert await _content(world.store, payload) == data


@behaviour()
async def a_value_of_several_chunks_is_uploaded_before_its_append(world: World) -> None:
    """A value of several chunks is uploaded before the append that refers to it."""
    value = _noise(CHUNK).hex() + "!"
    payload = await _own_with(world, value)
    assert payload.bytes > 2 * CHUNK
    assert await world.store.unpack(payload) == value
    assert await _collected(world) == 0


@behaviour()
async def an_interrupted_upload_is_unreadable_and_collected(world: World) -> None:
    """An interrupted upload raises its own error, cannot be read, and is collected."""
    data = _noise(2 * CHUNK)

    async def breaks() -> AsyncIterator[bytes]:
        yield data[: CHUNK + 10]
        raise ConnectionResetError

    assert await _interrupted(world.store.put_blob(breaks()))
    for wanted in (data, data[:CHUNK], data[: CHUNK + 10]):
        await expect(NotFound, _content(world.store, _named(world, wanted)))
    assert await _collected(world) == 1
    assert await _collected(world) == 0


@behaviour()
async def content_can_be_uploaded_again_after_an_interruption(world: World) -> None:
    """Content can be uploaded again immediately after an interrupted upload."""
    data = _noise(2 * CHUNK)

    async def breaks() -> AsyncIterator[bytes]:
        yield data[: CHUNK + 10]
        raise ConnectionResetError

    assert await _interrupted(world.store.put_blob(breaks()))
    assert await _content(world.store, await world.store.put_blob(_stream([data]))) == data
    assert await _content(world.store, await world.store.put_blob(data)) == data
    assert await _collected(world) == 2


@behaviour()
async def an_append_cannot_refer_to_an_unfinished_upload(world: World) -> None:
    """An append cannot refer to an unfinished upload."""
    owner = await world.own()
    name = _named(world, b"x").blob
    for blob in (f"upload:{name}", "upload:", ""):
        await expect(NotFound, owner.send(owner.extend(gave(Payload(blob=blob)))))
        await expect(NotFound, _content(world.store, Payload(blob=blob)))


# Deduplication


@behaviour()
async def content_is_stored_once(world: World) -> None:
    """Content is stored once, however often and in whatever way it arrives."""
    data = _noise(50_000)
    blob = pack_blob(world.store.codec, data)
    names = {await world.store.put_blob(each) for each in (data, data, _stream([data]), _stream(_cut(data, [3, 999])))}
    owner = await world.own()
    await owner.append(started(), blobs=[blob, blob])
    await owner.append(started(2), blobs=[blob])
    assert names == {Payload(blob=blob.id, bytes=50_000)}
    assert await _collected(world) == 1


@behaviour()
async def content_put_concurrently_is_stored_once(world: World) -> None:
    """Content is stored once when several stores and callers put it concurrently."""
    data = _noise(5 * CHUNK // 2)
    stores = [world.store, await world.another()]
    puts = [store.put_blob(each) for store in stores for each in (data, data, _stream([data]))]
    [payload] = set(await asyncio.gather(*puts))
    assert await _content(world.store, payload) == data
    assert await _collected(world) == 1


@behaviour()
async def different_content_has_different_names(world: World) -> None:
    """Different contents have different names, even with the same length."""
    datas = [bytes([place]) * 10_000 for place in range(20)]
    payloads = await asyncio.gather(*(world.store.put_blob(data) for data in datas))
    assert len({payload.blob for payload in payloads}) == 20
    assert [await _content(world.store, payload) for payload in payloads] == datas


@behaviour()
async def a_blob_stays_while_any_run_refers_to_it(world: World) -> None:
    """A blob is readable for every run that refers to it, and stays while one of them does."""
    payload, blobs = world.store.pack(BIG)
    for place in range(5):
        owner = await world.own(f"r{place}")
        await owner.append(gave(payload), blobs=blobs if place == 0 else ())
    assert await _collected(world) == 0
    assert await world.store.unpack(payload) == BIG


# Events never refer to missing blobs


@behaviour()
async def an_append_that_refers_to_a_missing_blob_is_refused(world: World) -> None:
    """An append that refers to a missing blob writes nothing; repeated with the blob, it is written."""
    owner = await world.own()
    payload, blobs = world.store.pack(BIG)
    leg = owner.extend(started(), gave(payload))
    error = await expect(NotFound, owner.send(leg))
    assert (error.what, error.id) == ("blob", payload.blob)
    assert (await owner.row()).head == owner.head
    assert isinstance(await owner.send(leg, blobs), Appended)


@behaviour()
async def an_append_with_a_missing_blob_changes_no_row(world: World) -> None:
    """A request, a patch or an end that refers to a missing blob changes no row."""
    owner = await world.own()
    before = await owner.row()
    await expect(NotFound, owner.send(owner.extend(asked(context=NOWHERE))))
    await expect(NotFound, owner.send(owner.extend(b.RunCompleted(output=NOWHERE))))
    assert await owner.row() == before
    assert await world.store.requests() == []
    assert len(await world.log()) == 2


@behaviour()
async def a_creation_that_refers_to_a_missing_blob_is_refused(world: World) -> None:
    """A creation that refers to a missing blob creates no run; with the blob, it does."""
    payload, blobs = world.store.pack(BIG)
    error = await expect(NotFound, world.store.create("r1", created(input=payload), actor="test"))
    assert error.what == "blob"
    await expect(NotFound, world.store.get("r1"))
    _, fresh = await world.store.create("r1", created(input=payload), actor="test", blobs=blobs)
    assert fresh
    assert await world.store.check_rows("r1") == []


@behaviour()
async def a_command_that_refers_to_a_missing_blob_is_refused(world: World) -> None:
    """A command that refers to a missing blob is refused and wakes no run; with the blob, it is accepted."""
    await world.waiting("person", "q1")
    payload, blobs = world.store.pack(BIG)
    answer = b.RequestAnswered(command="c1", request="q1", decision="answered", by="ann", answer=payload)
    before = await world.store.get("r1")
    error = await expect(NotFound, world.store.send_commands("r1", answer, actor="ann"))
    assert error.what == "blob"
    assert await world.store.get("r1") == before
    assert [request.id for request in await world.store.requests()] == ["q1"]
    await world.store.send_commands("r1", answer, actor="ann", blobs=blobs)
    assert len(await world.claim()) == 1
    assert await _collected(world) == 0


@behaviour()
async def a_command_with_a_blob_can_be_repeated(world: World) -> None:
    """A command with a blob can be repeated, with or without the blob, and is recorded once."""
    await world.own()
    payload, blobs = world.store.pack(BIG)
    signal = b.SignalReceived(command="c1", signal="go", value=payload)
    first = await world.store.send_commands("r1", signal, actor="ann", blobs=blobs)
    assert await world.store.send_commands("r1", signal, actor="ann", blobs=blobs) == first
    assert await world.store.send_commands("r1", signal, actor="ann") == first
    assert (await world.kinds()).count("signal.received") == 1


@behaviour()
async def if_one_leg_refers_to_a_missing_blob_no_leg_is_written(world: World) -> None:
    """If one leg refers to a missing blob, no leg is written, in any order."""
    parent = await world.own("p1")
    call = parent.extend(b.AgentCalled(name="call#1", run="c1", agent="a", mode="call", asked=""))
    child = Create(run="c1", bodies=(created(input=NOWHERE, parent=Lineage(run="p1")),), actor="w1")
    for legs in ((call, child), (child, call)):
        error = await expect(NotFound, world.store.append(*legs))
        assert error.what == "blob"
    ending = parent.extend(b.RunCompleted(output=NOWHERE))
    await world.create("p2")
    command = SendCommands(run="p2", bodies=(b.AgentReturned(command="c1", run="p1", outcome="completed"),), actor="w1")
    for ends in ((ending, command), (command, ending)):
        await expect(NotFound, world.store.append(*ends))
    assert (await parent.row()).head == parent.head
    assert await world.kinds("p2") == ["run.created"]
    await expect(NotFound, world.store.get("c1"))


@behaviour()
async def several_legs_of_an_append_can_bring_blobs(world: World) -> None:
    """Several legs bring their blobs, and each stream refers to its own."""
    parent = await world.own("p1")
    asks, [one] = world.store.pack(BIG)
    takes, [two] = world.store.pack([BIG, "more"])
    call = parent.extend(b.AgentCalled(name="call#1", run="c1", agent="a", mode="call", asked=""), gave(asks))
    child = Create(run="c1", bodies=(created(input=takes, parent=Lineage(run="p1")),), actor="w1")
    assert isinstance(await world.store.append(call, child, blobs=[one, two]), Appended)
    assert await _collected(world) == 0
    assert [await world.store.check_rows(run) for run in ("p1", "c1")] == [[], []]


@behaviour()
async def an_optional_command_that_refers_to_a_missing_blob_is_skipped(world: World) -> None:
    """An optional command that refers to a missing blob is skipped, and the rest of the append is written."""
    owner = await world.own("r1")
    await world.create("r2")
    signal = b.SignalReceived(command="c1", signal="go", value=NOWHERE)
    done = await world.store.append(
        owner.extend(started()), SendCommands(run="r2", bodies=(signal,), actor="w1", optional=True)
    )
    assert isinstance(done, Appended)
    assert done.heads[1] is None
    assert await world.kinds("r2") == ["run.created"]


@behaviour()
async def a_missing_blob_does_not_fail_concurrent_appends(world: World) -> None:
    """Of many concurrent appends, only those with missing blobs are refused."""
    owners = [await world.own(f"r{place}") for place in range(20)]
    payload, blobs = world.store.pack(BIG)
    asks = [
        owner.send(owner.extend(gave(NOWHERE))) if place % 2 else owner.send(owner.extend(gave(payload)), blobs)
        for place, owner in enumerate(owners)
    ]
    done = await asyncio.gather(*asks, return_exceptions=True)
    assert [isinstance(each, NotFound) for each in done] == [bool(place % 2) for place in range(20)]
    assert [len(await world.log(owner.run)) for owner in owners] == [3, 2] * 10


@behaviour()
async def every_payload_of_an_event_counts_as_a_reference(world: World) -> None:
    """Every payload of an event counts as a reference, also in requests, decisions and failures."""
    owner = await world.own()
    payloads, blobs = _several(world, 8)
    schema, options, default, args, context, chosen, choices, facts = payloads
    await owner.append(
        asked(schema=schema, options=options, default=default, args=args, context=context),
        b.DecisionMade(name="d#1", question="?", chosen=chosen, options=choices, because="x"),
        b.StepFailed(name="t#1", number=1, attempt=1, failure=Failure(type="builtins.ValueError", facts=facts)),
        blobs=blobs,
    )
    assert await _collected(world) == 0
    assert [await world.store.unpack(payload) for payload in payloads] == [_value(place) for place in range(8)]


@behaviour()
async def one_append_can_bring_two_hundred_blobs(world: World) -> None:
    """Two hundred blobs in one append are all stored, and all have a reference."""
    owner = await world.own()
    payloads, blobs = _several(world, 200)
    await owner.append(*(gave(payload, place + 1) for place, payload in enumerate(payloads)), blobs=blobs)
    assert await _collected(world) == 0
    assert [await world.store.unpack(payload) for payload in payloads] == [_value(place) for place in range(200)]
    assert await world.store.check_rows("r1") == []


@behaviour()
async def a_conversation_refers_to_blobs_as_a_run_does(world: World) -> None:
    """A conversation refers to blobs as a run does, from its first message on."""
    payload, blobs = world.store.pack(BIG)
    first = Create(run="c1", bodies=(b.ConversationCreated(), _message(payload)), actor="test")
    error = await expect(NotFound, world.store.append(first))
    assert error.what == "blob"
    await world.store.append(first, blobs=blobs)
    head = (await world.store.get("c1")).head
    await expect(NotFound, world.store.append(world.message_leg(head, _message(NOWHERE))))
    assert isinstance(await world.store.append(world.message_leg(head, _message(payload))), Appended)
    assert await _collected(world) == 0
    assert await world.store.unpack(payload) == BIG
    assert await world.store.check_rows("c1") == []


# Repeats and refusals


@behaviour()
async def an_append_with_blobs_can_be_repeated(world: World) -> None:
    """An append with blobs can be repeated, with or without the blobs."""
    owner = await world.own()
    payload, blobs = world.store.pack(BIG)
    leg = owner.extend(gave(payload))
    first = await world.store.append(leg, blobs=blobs)
    assert isinstance(first, Appended)
    assert await world.store.append(leg, blobs=blobs) == first
    assert await world.store.append(leg) == first
    assert len(await world.log()) == 3
    assert await _collected(world) == 0


@behaviour()
async def a_creation_with_a_large_input_can_be_repeated(world: World) -> None:
    """A repeated creation with a large input gives the same run; other content is a conflict."""
    payload, blobs = world.store.pack(BIG)
    other, others = world.store.pack({**BIG, "more": 1})
    for fresh in (True, False, False):
        assert (await world.store.create("r1", created(input=payload), actor="test", blobs=blobs))[1] is fresh
    await expect(IdConflict, world.store.create("r1", created(input=other), actor="test", blobs=others))
    assert await world.store.unpack(payload) == BIG


@behaviour()
async def blobs_of_a_refused_append_are_collected(world: World) -> None:
    """The blobs of a stale append, and of one by a superseded worker, are collected."""
    old = await world.own()
    payload, blobs = world.store.pack(BIG)
    stale = old.extend(gave(payload))
    await old.append(started())
    assert isinstance(await world.store.append(stale, blobs=blobs), Missed)
    new = await world.take_over()
    await expect(LeaseLost, old.send(old.extend(gave(payload)), blobs))
    assert await _collected(world) <= 1
    await expect(NotFound, world.store.unpack(payload))
    await expect(NotFound, new.send(new.extend(gave(payload))))
    await new.append(gave(payload), blobs=blobs)


@behaviour()
async def a_malformed_append_stores_no_blob(world: World) -> None:
    """A malformed append is refused before its blobs are stored."""
    owner = await world.own()
    _, small = world.store.pack(BIG)
    _, large = world.store.pack(_noise(CHUNK).hex())
    nowhere = Create(run="r2", bodies=(forked(at=0),), actor="x")
    for blobs in (small, large):
        await expect(InvalidAppend, world.store.append(nowhere, blobs=blobs))
        await expect(InvalidAppend, owner.send(owner.extend(b.ConversationCreated()), blobs))
    assert await _collected(world) == 0


@behaviour()
async def a_blob_without_references_is_collected(world: World) -> None:
    """A blob that comes with an append, but that no event refers to, is collected."""
    owner = await world.own()
    payload, blobs = world.store.pack(BIG)
    await owner.append(completed(), blobs=blobs)
    assert await world.store.unpack(payload) == BIG
    assert await _collected(world) == 1
    await expect(NotFound, world.store.unpack(payload))


# Collection


@behaviour()
async def a_loose_blob_is_kept_for_an_hour(world: World) -> None:
    """A blob without references is collected after an hour of the store's clock, and not before."""
    payload = await world.store.put_blob(_noise(10_000))
    world.advance("1h")
    assert await world.store.collect_blobs() == 0
    assert await _content(world.store, payload) == _noise(10_000)
    world.advance("1us")
    assert await world.store.collect_blobs() == 1
    await expect(NotFound, _content(world.store, payload))
    assert await world.store.collect_blobs() == 0


@behaviour()
async def putting_a_blob_again_restarts_its_grace_period(world: World) -> None:
    """Putting a blob again, in any way, restarts its hour."""
    data = _noise(5 * CHUNK // 2)
    small = _noise(10_000)
    blob = pack_blob(world.store.codec, small)
    owner = await world.own()
    await world.store.put_blob(data)
    await world.store.put_blob(small)
    again = (
        lambda: asyncio.gather(world.store.put_blob(data), world.store.put_blob(small)),
        lambda: asyncio.gather(world.store.put_blob(_stream([data])), owner.append(started(), blobs=[blob])),
    )
    for put in again:
        world.advance("40m")
        assert await world.store.collect_blobs() == 0
        await put()
    world.advance("40m")
    assert await world.store.collect_blobs() == 0
    world.advance("21m")
    assert await world.store.collect_blobs() == 2


@behaviour()
async def an_upload_in_progress_is_not_collected(world: World) -> None:
    """The hour of an upload starts with its last chunk."""
    data = _noise(4 * CHUNK)

    async def slow() -> AsyncIterator[bytes]:
        for part in _cut(data, [CHUNK, CHUNK, CHUNK]):
            yield part
            world.advance("40m")
            assert await world.store.collect_blobs() == 0

    assert await _content(world.store, await world.store.put_blob(slow())) == data


@behaviour()
async def the_grace_period_can_be_changed(world: World) -> None:
    """The grace period can be shorter or longer than an hour."""
    await world.store.put_blob(b"x")
    world.advance("2h")
    assert await world.store.collect_blobs(grace="3h") == 0
    assert await world.store.collect_blobs(grace="0s") == 1


@behaviour()
async def a_blob_with_references_is_never_collected(world: World) -> None:
    """A blob with references is never collected, even if it is old and its run has ended."""
    owner = await world.own()
    payload, blobs = world.store.pack(BIG)
    await owner.append(gave(payload), blobs=blobs)
    await owner.append(b.RunCompleted(output=inline(None)))
    world.advance("400d")
    assert await world.store.collect_blobs(grace="0s") == 0
    assert await world.store.unpack(payload) == BIG


@behaviour()
async def a_blob_put_before_its_event_is_not_collected_once_referenced(world: World) -> None:
    """A blob that was put first is not collected once an event refers to it."""
    payload = await world.store.put_blob(_noise(10_000))
    owner = await world.own()
    world.advance("59m")
    await owner.append(gave(payload))
    assert await _collected(world) == 0
    assert await _content(world.store, payload) == _noise(10_000)


@behaviour()
async def a_blob_that_another_run_refers_to_is_not_collected(world: World) -> None:
    """A blob that one run refers to stays, even if another run put it without a reference."""
    payload, blobs = world.store.pack(BIG)
    one = await world.own("r1")
    two = await world.own("r2")
    await one.append(started(), blobs=blobs)
    await two.append(gave(payload))
    await one.append(started(2), blobs=blobs)
    assert await _collected(world) == 0
    assert await world.store.unpack(payload) == BIG


@behaviour()
async def a_collected_blob_can_be_stored_again(world: World) -> None:
    """A collected blob can be stored again under the same name."""
    data = _noise(5 * CHUNK // 2)
    for each in (data, _stream([data]), data):
        payload = await world.store.put_blob(each)
        assert await _content(world.store, payload) == data
        assert await _collected(world) == 1
    owner = await world.own()
    await expect(NotFound, owner.send(owner.extend(gave(payload))))
    await world.store.put_blob(data)
    await owner.append(gave(payload))
    assert await _content(world.store, payload) == data


@behaviour()
async def many_loose_blobs_are_all_collected(world: World) -> None:
    """All loose blobs are collected, also more than one batch, and none with references."""
    owner = await world.own()
    _, loose = _several(world, 600)
    payload, held = world.store.pack(BIG)
    await owner.append(gave(payload), blobs=[*loose, *held])
    assert await _collected(world) == 600
    assert await world.store.unpack(payload) == BIG


@behaviour()
async def collecting_during_appends_breaks_no_reference(world: World) -> None:
    """An append that reuses old content during a collection is written, or refused and then written with its blob."""
    payload, blobs = world.store.pack(BIG)
    owners = [await world.own(f"r{place}") for place in range(20)]
    stores = [world.store, await world.another()]
    await owners[0].append(started(), blobs=blobs)
    world.advance("2h")

    async def reuse(owner: Owner) -> None:
        leg = owner.extend(gave(payload))
        try:
            assert isinstance(await owner.send(leg), Appended)
        except NotFound:
            assert isinstance(await owner.send(leg, blobs), Appended)

    await asyncio.gather(
        *(reuse(owner) for owner in owners), *(store.collect_blobs() for store in stores for _ in range(5))
    )
    assert await _collected(world) == 0
    assert await world.store.unpack(payload) == BIG
    assert [await world.store.check_rows(owner.run) for owner in owners] == [[]] * 20


@behaviour()
async def collection_keeps_snapshots_and_late_results(world: World) -> None:
    """Collection deletes only blobs: snapshots and late results stay."""
    owner = await world.own()
    await world.store.save_snapshot("r1", owner.head, b"state")
    await world.store.keep_late(owner.seal(completed(output="late")))
    await world.store.put_blob(b"x")
    log = await world.log()
    assert await _collected(world) == 1
    snapshot = await world.store.snapshot("r1")
    assert snapshot is not None
    assert snapshot.data == b"state"
    assert len(await world.store.late("r1")) == 1
    assert await world.log() == log


def _noise(size: int) -> bytes:
    """Return the same incompressible bytes every time."""
    return shake_256(b"limpet").digest(size)


async def _stream(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def _cut(data: bytes, cuts: list[int]) -> Iterable[bytes]:
    for length in cuts:
        yield data[:length]
        data = data[length:]
    yield data


async def _interrupted(putting: Awaitable[object]) -> bool:
    try:
        await putting
    except ConnectionResetError:
        return True
    return False


async def _content(store: Store, payload: Payload) -> bytes:
    assert isinstance(payload.blob, str)
    return b"".join([part async for part in store.read_blob(payload.blob)])


def _named(world: World, data: bytes) -> Payload:
    """Return the name that content gets."""
    return Payload(blob=pack_blob(world.store.codec, data).id, bytes=len(data))


async def _collected(world: World) -> int:
    """Return the number of blobs collected after every grace period has passed."""
    world.advance("2h")
    return await world.store.collect_blobs()


async def _own_with(world: World, value: object) -> Payload:
    """Return a run with a result in a blob."""
    owner = await world.own()
    payload, blobs = world.store.pack(value)
    await owner.append(gave(payload), blobs=blobs)
    return payload


def _value(place: int) -> list[object]:
    return [place, "x" * 9_000]


def _several(world: World, count: int) -> tuple[list[Payload], list[Blob]]:
    packed = [world.store.pack(_value(place)) for place in range(count)]
    return [payload for payload, _ in packed], [blob for _, blobs in packed for blob in blobs]


def _message(content: Payload) -> b.MessageAdded:
    return b.MessageAdded(message="m", role="user", content=content)
