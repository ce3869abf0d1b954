"""The hash chain: events are numbered and chained, and every change inside a log is found."""

import hashlib
import json
from typing import Any

import pytest
from msgspec.structs import replace

from limpet.errors import Tampered
from limpet.events import GENESIS, START, AnyBody, Event, Head, inline, seal, seal_all, verify
from limpet.events import bodies as b

CREATED = b.RunCreated(agent="support", agent_version="1", input=inline({"order": "é-42"}))
CLAIMED = b.RunClaimed(worker="w-1")
COMPLETED = b.RunCompleted(output=inline("done"))
BODIES: list[AnyBody] = [CREATED, CLAIMED, b.TurnStarted(loop="turns#1", number=1), COMPLETED]


def log(bodies: list[AnyBody] | None = None) -> list[Event]:
    """Return a small intact log with increasing times and fences."""
    head, events = START, list[Event]()
    for place, body in enumerate(bodies or BODIES):
        events.append(seal(head, "run-1", body, time=1000 + place, fence=place, actor="worker:w-1").event)
        head = events[-1].head
    return events


def resealed(events: list[Event]) -> list[Event]:
    """Return the same events with correct hashes, whatever their content."""
    before, found = GENESIS, list[Event]()
    for event in events:
        before = independent_hash(before, event)
        found.append(replace(event, hash=before))
    return found


def independent_hash(before: bytes, event: Event) -> bytes:
    """Compute the hash by the specification, with the standard library alone."""
    envelope = [event.run, event.seq, event.time, event.kind, event.version, event.fence, event.actor]
    data = json.dumps([*envelope, event.codec, event.key_id], separators=(",", ":"), ensure_ascii=False).encode()
    return hashlib.sha256(b"limpet.event.1\0" + before + data + b"\0" + event.body).digest()


def test_an_empty_log_is_intact() -> None:
    assert verify([]) == START


def test_the_start_of_a_log_has_sequence_zero_and_a_hash_of_zeros() -> None:
    """Frozen: the first event of every log is chained to this."""
    assert Head(0, bytes(32), 0) == START


def test_events_of_the_same_time_and_fence_are_accepted() -> None:
    """A worker writes a batch at one time."""
    batch = [each.event for each in seal_all(START, "run-1", BODIES, time=5, fence=1, actor="a")]
    assert verify(batch) == batch[-1].head


def test_an_intact_log_verifies_to_its_head() -> None:
    events = log()
    assert verify(events) == events[-1].head == Head(4, events[-1].hash, 1003)


def test_a_log_can_be_verified_in_pieces() -> None:
    """The next piece starts from the head of the previous one."""
    events = log()
    assert verify(events[2:], after=verify(events[:2]), fence=1) == verify(events)


def test_events_are_numbered_from_the_head_on() -> None:
    """The first event has sequence 1."""
    assert [event.seq for event in log()] == [1, 2, 3, 4]


def test_sealing_writes_the_kind_and_version_of_the_body() -> None:
    event = seal(START, "run-1", CLAIMED, time=5, fence=7, actor="store").event
    assert replace(event, hash=b"") == Event(
        "run-1", 1, 5, "run.claimed", 2, 7, "store", "json", "", b'{"worker":"w-1"}', b""
    )


def test_sealing_keeps_the_body_beside_the_event() -> None:
    """A writer need not decode the event that it has just encoded."""
    assert seal(START, "run-1", CLAIMED, time=5, fence=7, actor="store").body is CLAIMED


def test_event_times_never_decrease() -> None:
    """If the clock jumps back, an event gets the time of the previous one."""
    head = seal(START, "run-1", CREATED, time=100, fence=0, actor="a").event.head
    assert seal(head, "run-1", CLAIMED, time=7, fence=1, actor="a").event.time == 100


def test_sealing_a_batch_equals_sealing_one_by_one() -> None:
    together = seal_all(START, "run-1", BODIES, time=5, fence=1, actor="a")
    head, apart = START, list[Event]()
    for body in BODIES:
        apart.append(seal(head, "run-1", body, time=5, fence=1, actor="a").event)
        head = apart[-1].head
    assert [each.event for each in together] == apart
    assert [each.body for each in together] == BODIES


def test_sealing_no_bodies_gives_no_events() -> None:
    assert seal_all(START, "run-1", [], time=5, fence=1, actor="a") == ()


def test_an_event_decodes_to_its_body() -> None:
    assert [event.decode() for event in log()] == BODIES


def test_hashes_match_the_specification() -> None:
    """The expected hash is computed with the standard library alone, from the text of the specification."""
    events = log()
    befores = [GENESIS, *(event.hash for event in events)]
    assert [event.hash for event in events] == [
        independent_hash(before, event) for before, event in zip(befores, events, strict=False)
    ]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (0, "d4c59f5637ddd41d41e15d412677ddd41d3475489519f05999bfc3b81e9319d7"),
        (1, "4ce8c6a830091814c3b939b2e022197901b830eef4229dbc9d35284a84573505"),
        (2, "8aa6f8cc2957fa6a5fb2e15b4206ab42ee519b064f78683d4452699cccdc8ea2"),
        (3, "221e56fa74d50090d94534096f30dd292d7ce7f7c519ec4ace5dd76a1b7ea2a1"),
    ],
)
def test_hashes_never_change(place: int, expected: str) -> None:
    """Frozen: every version of Limpet computes these hashes for these events."""
    assert log()[place].hash.hex() == expected


def test_the_bytes_of_a_first_event_never_change() -> None:
    """Frozen: the stored form of a body."""
    assert log()[0].body == b'{"agent":"support","agent_version":"1","input":{"json":{"order":"\xc3\xa9-42"}}}'


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    "change",
    [
        {"run": "run-2"},
        {"seq": 9},
        {"seq": 0},
        {"time": 999},
        {"time": 2000},
        {"kind": "run.released"},
        {"version": 9},
        {"fence": 99},
        {"fence": -1},
        {"actor": "eve"},
        {"actor": ""},
        {"codec": "zstd"},
        {"key_id": "k-1"},
        {"body": b"{}"},
        {"body": b""},
        {"hash": GENESIS},
        {"hash": b""},
    ],
    ids=str,
)
def test_a_change_of_any_field_is_found(place: int, change: dict[str, Any]) -> None:
    """This applies to every field of the envelope, the body and the hash."""
    events = log()
    events[place] = replace(events[place], **change)
    with pytest.raises(Tampered):
        verify(events)


def test_one_flipped_bit_in_a_body_is_found() -> None:
    """The hash covers the bytes, not their meaning."""
    events = log()
    flipped = bytes([events[0].body[0], events[0].body[1], events[0].body[2] ^ 1]) + events[0].body[3:]
    with pytest.raises(Tampered) as caught:
        verify([replace(events[0], body=flipped), *events[1:]])
    assert (caught.value.run, caught.value.seq, caught.value.reason) == ("run-1", 1, "the hash does not match")


def test_white_space_in_a_body_is_found() -> None:
    events = log()
    events[1] = replace(events[1], body=b'{"worker": "w-1"}')
    with pytest.raises(Tampered, match="the hash does not match"):
        verify(events)


@pytest.mark.parametrize("place", range(3))
def test_a_deletion_inside_is_found(place: int) -> None:
    """The sequence has a gap."""
    events = log()
    del events[place]
    with pytest.raises(Tampered, match="follows event"):
        verify(events)


@pytest.mark.parametrize("place", range(3))
def test_a_deletion_with_renumbered_events_is_found(place: int) -> None:
    """The hashes no longer match."""
    events = log()
    del events[place]
    events = [replace(event, seq=seq) for seq, event in enumerate(events, 1)]
    with pytest.raises(Tampered, match="the hash does not match"):
        verify(events)


@pytest.mark.parametrize("place", range(3))
def test_a_swap_of_neighbours_is_found(place: int) -> None:
    events = log()
    events[place], events[place + 1] = events[place + 1], events[place]
    with pytest.raises(Tampered):
        verify(events)


@pytest.mark.parametrize("place", range(3))
def test_a_swap_of_two_bodies_is_found(place: int) -> None:
    """The numbers are in order, but the bodies are swapped."""
    events = log()
    one, two = events[place], events[place + 1]
    events[place] = replace(one, kind=two.kind, body=two.body)
    events[place + 1] = replace(two, kind=one.kind, body=one.body)
    with pytest.raises(Tampered):
        verify(events)


@pytest.mark.parametrize("place", range(1, 4))
def test_an_insertion_is_found(place: int) -> None:
    """This applies to an event that is chained to its predecessor, too."""
    events = log()
    forged = seal(events[place - 1].head, "run-1", CLAIMED, time=1003, fence=3, actor="a").event
    with pytest.raises(Tampered):
        verify([*events[:place], forged, *events[place:]])


@pytest.mark.parametrize("place", range(4))
def test_a_repeated_event_is_found(place: int) -> None:
    events = log()
    with pytest.raises(Tampered):
        verify([*events[: place + 1], *events[place:]])


def test_an_event_of_another_log_is_found() -> None:
    """The event is chained to another history."""
    other = log([CREATED, b.RunClaimed(worker="w-2"), *BODIES[2:]])
    events = log()
    with pytest.raises(Tampered, match="the hash does not match"):
        verify([*events[:2], *other[2:]])


def test_a_missing_start_of_a_log_is_found() -> None:
    """A tail without its head proves nothing."""
    with pytest.raises(Tampered, match="follows event 0"):
        verify(log()[1:])


def test_a_tail_with_the_wrong_head_is_found() -> None:
    events = log()
    with pytest.raises(Tampered, match="the hash does not match"):
        verify(events[2:], after=replace(events[1].head, hash=GENESIS))


@pytest.mark.parametrize("change", [{"time": 1000}, {"fence": 0}], ids=str)
def test_decreasing_times_and_fences_are_found_even_with_correct_hashes(change: dict[str, int]) -> None:
    """A rewritten log with correct hashes must still be one that Limpet could have written."""
    events = log()
    events[2] = replace(events[2], **change)
    with pytest.raises(Tampered, match="time or fence is before"):
        verify(resealed(events))


def test_a_fence_below_that_of_the_previous_piece_is_found() -> None:
    """The fence before a piece is passed in, like its head."""
    events = log()
    with pytest.raises(Tampered, match="time or fence is before"):
        verify(events[2:], after=events[1].head, fence=3)


def test_a_complete_rewrite_is_not_found_by_the_chain_alone() -> None:
    """Finding it takes heads that were exported before."""
    forged = log([CREATED, b.RunClaimed(worker="w-2"), *BODIES[2:]])
    assert verify(forged) != verify(log())


def test_a_forked_log_verifies_across_its_fork_point() -> None:
    """Shared events keep the parent's id, and the fork's first event is chained to them."""
    shared = log()[:2]
    body = b.RunForked(run="run-1", at=2, step=0, effects="ask")
    own = seal(shared[-1].head, "run-1.1", body, time=2000, fence=1, actor="a").event
    assert verify([*shared, own]) == own.head
