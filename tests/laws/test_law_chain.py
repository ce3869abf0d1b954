"""Laws of the hash chain: an unchanged log verifies, and a log with any single edit does not."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from limpet.errors import Tampered
from limpet.events import START, Event, seal, verify
from limpet.events import bodies as b
from tests.laws.logs import run_logs
from tests.laws.values import law_settings

few = law_settings(40)
some = law_settings(100)


def edits(event: Event) -> dict[str, Any]:
    """Return another value for every field of an event."""
    return {
        "run": event.run + "x",
        "seq": event.seq + 1,
        "time": event.time + 1,
        "kind": event.kind + "x",
        "version": event.version + 1,
        "fence": event.fence + 1,
        "actor": event.actor[:-1],
        "codec": "zstd",
        "key_id": "k",
        "body": event.body + b" ",
        "hash": event.hash[::-1],
    }


def is_found(events: list[Event]) -> bool:
    """Return whether the log is refused."""
    try:
        verify(events)
    except Tampered:
        return True
    return False


def test_every_field_of_an_event_is_edited_by_these_laws() -> None:
    """A new field of the envelope must be hashed, too."""
    event = seal(START, "run-1", b.RunReleased(reason="drain"), time=1, fence=1, actor="a").event
    assert tuple(edits(event)) == Event.__struct_fields__


@some
@given(run_logs())
def test_an_unchanged_log_verifies(events: list[Event]) -> None:
    """The result is the head of the last event, for the whole log and for two pieces."""
    assert verify(events) == events[-1].head
    for cut in range(1, len(events)):
        assert verify(events[cut:], verify(events[:cut]), events[cut - 1].fence) == events[-1].head


@few
@given(events=run_logs())
def test_a_change_of_any_field_of_any_event_is_found(events: list[Event]) -> None:
    """This applies to the envelope, body and hash of every event."""
    for place, event in enumerate(events):
        for field, value in edits(event).items():
            changed = replace(event, **{field: value})
            assert is_found([*events[:place], changed, *events[place + 1 :]]), field


@few
@given(run_logs(), st.data())
def test_any_flipped_bit_of_a_body_is_found(events: list[Event], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(events) - 1))
    body = bytearray(events[place].body)
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert is_found([*events[:place], replace(events[place], body=bytes(body)), *events[place + 1 :]])


@few
@given(run_logs(min_size=2))
def test_the_deletion_of_any_event_but_the_last_is_found(events: list[Event]) -> None:
    """This applies with renumbered events, too."""
    for place in range(len(events) - 1):
        shorter = events[:place] + events[place + 1 :]
        assert is_found(shorter)
        assert is_found([replace(event, seq=seq) for seq, event in enumerate(shorter, 1)])


@few
@given(run_logs(min_size=2))
def test_a_swap_of_any_two_neighbours_is_found(events: list[Event]) -> None:
    """This applies with swapped numbers, too."""
    for place in range(len(events) - 1):
        one, two = events[place], events[place + 1]
        assert is_found([*events[:place], two, one, *events[place + 2 :]])
        exchanged = [replace(two, seq=one.seq), replace(one, seq=two.seq)]
        assert is_found([*events[:place], *exchanged, *events[place + 2 :]])


@few
@given(run_logs())
def test_a_repeated_event_at_any_position_is_found(events: list[Event]) -> None:
    """This applies with the number of its new position, too."""
    for place in range(len(events) + 1):
        for event in events:
            assert is_found([*events[:place], event, *events[place:]])
            assert is_found([*events[:place], replace(event, seq=place + 1), *events[place:]])


@few
@given(run_logs(min_size=2))
def test_an_insertion_with_a_correct_hash_breaks_the_next_event(events: list[Event]) -> None:
    """A forger who computes hashes must rewrite all later events."""
    for place in range(len(events)):
        head, fence = (events[place - 1].head, events[place - 1].fence) if place else (START, 0)
        forged = seal(head, events[0].run, b.RunReleased(reason="forged"), time=0, fence=fence, actor="a").event
        rest = [replace(event, seq=event.seq + 1) for event in events[place:]]
        assert is_found([*events[:place], forged, *rest])


@few
@given(run_logs(min_size=2))
def test_a_truncation_is_found_only_by_the_head(events: list[Event]) -> None:
    """A truncated log is found only by comparing it with an exported head."""
    assert verify(events[:-1]) == events[-2].head != events[-1].head
